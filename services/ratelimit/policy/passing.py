"""How many requests of a tenant the edge may let pass without asking: many while it is far from its limits, else none.

They are not lost: the gateway's reservation counts, and refuses, whatever the edge did not count.
"""

from __future__ import annotations

from libs.quota import Admitted

PASS_MS = 2000
"""For how long a number holds."""
_MOST = 1000
_PARTS = 16
"""Into which what is left is parted: every worker thread of every edge may be given one."""
_NEAR = 5
"""Limits of which no more than one in so many units is left are near."""


def may_pass(state: Admitted) -> int:
    """Requests within `PASS_MS`; 0 near a limit."""
    for report in (state.requests, state.tokens, state.spend):
        if report.limit and report.remaining * _NEAR <= report.limit:
            return 0
    return min(_MOST, state.requests.remaining // _PARTS) if state.requests.limit else _MOST
