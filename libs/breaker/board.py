"""Breakers by (pool, zone)."""

from __future__ import annotations

from libs.breaker.breaker import Breaker, BreakerOptions, BreakerState


class BreakerBoard:
    """One breaker per (pool, zone), made on its first outcome; a pair without outcomes is closed.

    Bounded: at most `max_breakers`; outcomes of further pairs are not kept. Pairs come from our own gateways and are
    as many as pools times zones.
    """

    def __init__(self, options: BreakerOptions | None = None, *, max_breakers: int = 4096) -> None:
        self._options = options or BreakerOptions()
        self._max = max_breakers
        self._breakers: dict[tuple[str, str], Breaker] = {}

    def record(self, pool: str, zone: str, *, successes: int, failures: int, now: float) -> None:
        """Learns outcomes of one pair; client errors belong in neither count."""
        breaker = self._breakers.get((pool, zone))
        if breaker is None:
            if len(self._breakers) >= self._max:
                return
            breaker = self._breakers[pool, zone] = Breaker(self._options)
        breaker.record(successes=successes, failures=failures, now=now)

    def is_open(self, pool: str, zone: str, now: float) -> bool:
        """Must the pair be left out now? Asking uses up a probe while the pair's breaker is half-open."""
        breaker = self._breakers.get((pool, zone))
        return breaker is not None and not breaker.allow(now)

    def states(self, now: float) -> dict[tuple[str, str], BreakerState]:
        """Where every known breaker stands; uses up nothing."""
        return {pair: breaker.state(now) for pair, breaker in list(self._breakers.items())}
