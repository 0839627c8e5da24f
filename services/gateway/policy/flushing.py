"""How long output waits for company before its reader is woken. Pure.

An event costs the gateway and the edge some 60 µs each, whatever is in it. While there is time for that, a token leaves
at once. When there is little, a reader gets the tokens of a few steps together, which it does not notice.
"""

from __future__ import annotations

_FROM, _FULL = 0.25, 0.6
"""Shares of a core that the gateway's process uses: from here on events wait, and here they wait as long as they may.
Beside Envoy, its leaves and its workers it seldom gets more than that of a machine that is full."""

_LATE = 0.005
"""Seconds that any loop may be late."""


def wait_for_company(busy: float, late: float, most: float) -> float:
    """Seconds, `most` at most.

    :param busy: the share of a core that the process has lately used.
    :param late: seconds by which its loop has lately been late: the machine is full, whoever fills it.
    """
    share = (busy - _FROM) / (_FULL - _FROM)
    return min(most, max(0.0, most * share, late - _LATE))
