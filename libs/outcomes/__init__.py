"""What became of requests, as evidence: per arm of a rollout, and per route and tier over all traffic.

Counts only grow while the process lives, so that reports may be lost or repeated. What counts is said in `standing.py`,
what declared objectives make of it in `objectives.py`.
"""

from libs.outcomes.counts import BUCKETS, ArmKey, Begun, Sample
from libs.outcomes.objectives import Objectives, Ran, judge, objectives_of
from libs.outcomes.recorder import Recorder
from libs.outcomes.reporter import OutcomeReporter
from libs.outcomes.standing import CRASHES, RUNNING, Standing, of_error
from libs.outcomes.table import OutcomeTable

__all__ = [
    "BUCKETS",
    "CRASHES",
    "RUNNING",
    "ArmKey",
    "Begun",
    "Objectives",
    "OutcomeReporter",
    "OutcomeTable",
    "Ran",
    "Recorder",
    "Sample",
    "Standing",
    "judge",
    "objectives_of",
    "of_error",
]
