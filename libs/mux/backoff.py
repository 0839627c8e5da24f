"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Exponential back-off with equal jitter: the n-th delay lies between half and all of `first * 2**n`, capped.

    The half keeps a floor under the delay, the other half spreads the clients of a server that restarts.
    """

    __slots__ = ("_attempt", "_cap", "_first", "_uniform")

    def __init__(self, *, first: float, cap: float, uniform: Callable[[], float]) -> None:
        """`first` and `cap` in seconds; `uniform` draws from [0, 1)."""
        self._first = first
        self._cap = cap
        self._uniform = uniform
        self._attempt = 0

    def next(self) -> float:
        """The delay before the next attempt, in seconds."""
        # 2**32 seconds are beyond any cap; the bound keeps the power finite after days of outage.
        delay: float = min(self._cap, self._first * 2 ** min(self._attempt, 32))
        self._attempt += 1
        return delay * (0.5 + 0.5 * self._uniform())

    def reset(self) -> None:
        """A connection proved stable."""
        self._attempt = 0
