"""Breakers by (model version, zone), and the order in which they leave a version's zones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from libs.breaker.breaker import Breaker, BreakerOptions, BreakerState, Standing

Pair = tuple[str, str]
"""A model version and a zone."""


class BreakerBoard:
    """One breaker per (model version, zone), made on its first outcome; a pair without outcomes is closed.

    Bounded: at most `max_breakers`. For a further pair the idle ones are forgotten; with none idle, its outcomes are.
    """

    def __init__(self, options: BreakerOptions | None = None, *, max_breakers: int = 4096) -> None:
        self.options = options or BreakerOptions()
        """Of every breaker."""
        self._max = max_breakers
        self._breakers: dict[Pair, Breaker] = {}

    def record(self, model_version: str, zone: str, *, successes: int, failures: int, now: float) -> bool:
        """Learns outcomes of one pair; what is not the zone's fault belongs in neither count (`is_fault`). Whether that
        opened or closed its breaker."""
        breaker = self._breakers.get((model_version, zone))
        if breaker is None:
            if len(self._breakers) >= self._max and not self._forget_idle(now):
                return False
            breaker = self._breakers[model_version, zone] = Breaker(self.options)
        return breaker.record(successes=successes, failures=failures, now=now)

    def arrange(self, model_version: str, zones: Sequence[str], now: float) -> tuple[str, ...]:
        """A version's zones, best first, as one request should use them; none only when none were given.

        - Zones whose breaker is not closed are left out, unless none would stay: then all do, because breakers that
          are wrong everywhere must not turn a partial failure into a full one.
        - A half-open zone with a probe left comes first for this one request, and the probe is used up. Only one: a
          zone that is not tried first is not tried.
        - A zone that closed lately passes a part of its turns to be first, and comes last then.
        """
        if not self._breakers:
            return tuple(zones)
        closed: list[str] = []
        probed: tuple[str, Breaker] | None = None
        for zone in zones:
            breaker = self._breakers.get((model_version, zone))
            if breaker is None or breaker.state(now) is BreakerState.CLOSED:
                closed.append(zone)
            elif probed is None and breaker.can_probe(now):
                probed = zone, breaker
        if probed is not None:
            probed[1].take_probe(now)
            return (probed[0], *closed)
        return self._in_turn(model_version, closed, now) if closed else tuple(zones)

    def half_open(self, model_version: str, zones: Iterable[str], now: float) -> bool:
        """Is one of a version's zones half-open? Then who may probe it is for the breaker's owner to say."""
        return bool(self._breakers) and any(
            breaker.state(now) is BreakerState.HALF_OPEN
            for zone in zones
            if (breaker := self._breakers.get((model_version, zone))) is not None
        )

    def standings(self, now: float) -> dict[Pair, Standing]:
        """Where the breakers stand that are not simply closed, for the boards that follow this one."""
        return {
            pair: standing
            for pair, breaker in self._breakers.items()
            if (standing := breaker.standing(now)) is not None
        }

    def follow(self, standings: Mapping[Pair, Standing], now: float) -> None:
        """Stands where another process's board does: all breakers that it does not name are closed. A board that
        follows records nothing."""
        for pair in self._breakers.keys() - standings.keys():
            del self._breakers[pair]
        for pair, standing in standings.items():
            self._breakers.setdefault(pair, Breaker(self.options)).follow(standing, now)

    def states(self, now: float) -> dict[Pair, BreakerState]:
        """Where every known breaker stands; uses up nothing."""
        return {pair: breaker.state(now) for pair, breaker in list(self._breakers.items())}

    def _in_turn(self, model_version: str, closed: list[str], now: float) -> tuple[str, ...]:
        for passed in range(len(closed) - 1):
            breaker = self._breakers.get((model_version, closed[passed]))
            if breaker is None or breaker.take_turn(now):
                return (*closed[passed:], *closed[:passed])
        # All but the last one passed: that one takes what nobody else does.
        return (closed[-1], *closed[:-1])

    def _forget_idle(self, now: float) -> bool:
        """Makes room; whether there is any."""
        idle = [pair for pair, breaker in self._breakers.items() if breaker.idle(now)]
        for pair in idle:
            del self._breakers[pair]
        return bool(idle)
