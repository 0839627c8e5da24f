"""Error budgets and how fast they burn: one implementation for alerts, the rollout gates and the freeze.

Multi-window, multi-burn-rate alerting as in the SRE workbook (Beyer et al., "The Site Reliability Workbook", chapter 5,
"Alerting on SLOs"): an alert fires while both a long and a short window burn faster than its factor; the long one says
that it matters, the short one that it is still going on. See README.md.
"""

from libs.burn.objectives import slo_targets
from libs.burn.rates import (
    MIN_EVENTS,
    PERIOD,
    WINDOWS,
    Burn,
    Window,
    alert_of,
    burn_rate,
    burns,
    consumed,
    scaled,
)
from libs.burn.tally import Tally, TallyError

__all__ = [
    "MIN_EVENTS",
    "PERIOD",
    "WINDOWS",
    "Burn",
    "Tally",
    "TallyError",
    "Window",
    "alert_of",
    "burn_rate",
    "burns",
    "consumed",
    "scaled",
    "slo_targets",
]
