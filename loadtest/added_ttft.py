"""Times to first token of several ways to an engine, under the same arrivals, and what a way adds to another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from loadtest.figures import percentile
from loadtest.scenarios import open_loop

RATE = 50.0
"""Requests per second, Poisson."""
TOKENS = 4
WARM_UP = 2.0
"""Seconds of load at most before each window."""
QUANTILES = {"p50": 0.5, "p99": 0.99}

Call = Callable[[], Awaitable[float]]
"""Sends one request and gives the seconds to its first token."""
Times = Mapping[str, Sequence[float]]
"""Seconds by the name of the way."""


async def round_of(calls: Mapping[str, Call], *, seconds: float, turn: int) -> Times:
    """One after the other, each turn beginning with another one; each opens its connections before it counts."""
    names = list(calls)
    begin = turn % len(names)
    times: dict[str, list[float]] = {}
    for name in names[begin:] + names[:begin]:
        await open_loop(calls[name], rate=RATE, seconds=min(WARM_UP, seconds), seed=0)
        times[name] = await open_loop(calls[name], rate=RATE, seconds=seconds, seed=turn + 1)
    return times


def row(times: Times, way: str, direct: str) -> dict[str, float]:
    """Milliseconds: both ways' percentiles and their differences, which are no percentiles of differences. Pure."""
    found: dict[str, float] = {}
    for name, q in QUANTILES.items():
        through, without = percentile(times[way], q) * 1e3, percentile(times[direct], q) * 1e3
        found |= {f"through {name}": through, f"direct {name}": without, f"added {name}": through - without}
    return found
