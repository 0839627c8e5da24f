"""What became of requests, as evidence: per arm of a rollout, and per route and tier over all traffic.

Counts only grow while the process lives, so that reports may be lost or repeated. What counts is said in
`policy/standing.py`.
"""

from services.gateway.outcomes.cohorts import Begun
from services.gateway.outcomes.counts import ArmCounts, CostMoments, Distribution, Moments, Sample
from services.gateway.outcomes.recorder import Outcomes
from services.gateway.outcomes.table import OutcomeTable

__all__ = ["ArmCounts", "Begun", "CostMoments", "Distribution", "Moments", "OutcomeTable", "Outcomes", "Sample"]
