"""Circuit breakers: stop sending where work fails, probe, and come back. Pure; the caller passes the time.

    closed ──failure rate over the window, with enough volume──► open ──open_for──► half-open
      ▲                                                           ▲                   │  │
      └──────────────── `probes` successes in a row ──────────────┼───────────────────┘  │
                                                                  └────── one failure ───┘

After closing, a breaker takes a growing share of its turns (slow start). Only failures that are the zone's own count
(`is_fault`): the caller reports neither client errors, nor refusals, nor cancellations.
"""

from libs.breaker.board import BreakerBoard
from libs.breaker.breaker import Breaker, BreakerOptions, BreakerState, Standing
from libs.breaker.faults import FAULTS, is_fault

__all__ = ["FAULTS", "Breaker", "BreakerBoard", "BreakerOptions", "BreakerState", "Standing", "is_fault"]
