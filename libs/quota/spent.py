"""What was spent in calendar periods: like a `Window`, by who decided it, and yet not forgotten after a time.

A period never goes back. What is charged counts for the latest day (or month) that was ever seen, here or wherever a
state came from. What counts *at* a day is what was charged for it and for later ones: when a clock, or a tenant's time
zone, goes back over midnight, the day before goes on with what it had and with what was spent since, and when it comes
to the later day again, that goes on too. Neither begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from libs.quota.window import LOCAL, Part

STORED: Part = ("", "stored")
"""The part of what the registry's record says beyond all that is known by who decided it."""
_MOST_PERIODS = 3
_MOST_PARTS = 32
"""Per period; a month sees that many starts of limiters at most kept apart."""


class Tally(NamedTuple):
    """What a record says of the latest period."""

    key: str = ""
    """"2026-11-23" or "2026-11"; empty: nothing."""
    microusd: int = 0
    alert_percent: int = 0
    """The highest threshold that was told; 0: none."""

    def joined(self, other: Tally) -> Tally:
        """The later period of both; of the same period, the larger numbers."""
        if self.key != other.key:
            return max(self, other)
        return Tally(self.key, max(self.microusd, other.microusd), max(self.alert_percent, other.alert_percent))


class SpentState(NamedTuple):
    """One period at rest."""

    key: str
    alert_percent: int
    parts: tuple[tuple[Part, int], ...]
    """Micro-dollars by who decided them."""


class BudgetState(NamedTuple):
    """A tenant's spend at rest."""

    tenant: str
    time_zone: str
    days: tuple[SpentState, ...]
    months: tuple[SpentState, ...]


class Spent:
    """A tenant's spend in days, or in months."""

    __slots__ = ("_alerted", "_parts", "_totals", "latest")

    def __init__(self) -> None:
        self.latest = ""
        """The key of the period that is charged."""
        self._parts: dict[str, dict[Part, int]] = {}
        self._totals: dict[str, int] = {}
        """By period, as `_parts`, of which they are the sums."""
        self._alerted = 0

    def see(self, key: str) -> None:
        """It is that period. One before the latest changes nothing."""
        if key > self.latest:
            self.latest = key
            self._alerted = 0

    def used(self, key: str) -> int:
        """Micro-dollars that count in a period."""
        return sum(total for each, total in self._totals.items() if each >= key)

    def charge(self, amount: int, part: Part = LOCAL) -> None:
        """Counts for the latest period."""
        if amount:
            self._add(self.latest, part, amount)

    def void(self, amount: int, key: str, part: Part) -> None:
        """Takes back what was charged in a period, if that is still the latest."""
        if key == self.latest:
            self._add(key, part, -min(amount, self._parts.get(key, {}).get(part, 0)))

    def tally(self) -> Tally:
        """Of the latest period."""
        return Tally(self.latest, self._totals.get(self.latest, 0), self._alerted)

    def adopt(self, stored: Tally) -> None:
        """Takes the larger of what is known and what a record says."""
        self.see(stored.key)
        if stored.key == self.latest:
            self._alerted = max(self._alerted, stored.alert_percent)
        missing = stored.microusd - self._totals.get(stored.key, 0)
        if missing > 0:
            self._add(stored.key, STORED, missing)

    def alert(self, bound: int, percents: Iterable[int]) -> list[int]:
        """The percentages of `bound` that the latest period has reached since this was last asked, lowest first."""
        spent = self._totals.get(self.latest, 0)
        reached = [each for each in sorted(percents) if each > self._alerted and 100 * spent >= each * bound > 0]
        if reached:
            self._alerted = reached[-1]
        return reached

    def state(self) -> tuple[SpentState, ...]:
        """At rest."""
        return tuple(
            SpentState(key, self._alerted if key == self.latest else 0, tuple(parts.items()))
            for key, parts in self._parts.items()
        )

    def join(self, states: Iterable[SpentState], better: Collection[Part]) -> None:
        """Takes over what another knows better: these parts.

        What is learnt of them may have been in the record's sum: it is taken from that, and nothing counts twice.
        """
        for told in states:
            self.see(told.key)
            if told.key == self.latest:
                self._alerted = max(self._alerted, told.alert_percent)
            known, stored = self._parts.get(told.key, {}), dict(told.parts).get(STORED, 0)
            learnt = {part: amount - known.get(part, 0) for part, amount in told.parts if part in better}
            for part, amount in learnt.items():
                self._add(told.key, part, amount)
            known = self._parts.get(told.key, {})
            rest = max(known.get(STORED, 0) - sum(more for more in learnt.values() if more > 0), stored)
            self._add(told.key, STORED, rest - known.get(STORED, 0))

    def _add(self, key: str, part: Part, amount: int) -> None:
        if not amount:
            return
        parts = self._parts.setdefault(key, {})
        parts[part] = parts.get(part, 0) + amount
        self._totals[key] = self._totals.get(key, 0) + amount
        if len(parts) - (STORED in parts) > _MOST_PARTS:
            # The oldest life, by the time of its start: the same one wherever as much is known.
            oldest = min(parts, key=lambda each: each[1])
            parts[STORED] = parts.get(STORED, 0) + parts.pop(oldest)
        if len(self._parts) > _MOST_PERIODS:
            earliest = min(self._parts)
            del self._parts[earliest], self._totals[earliest]
