"""All counts of one gateway: bounded, and with a number for every change, so that a reporter knows what is new."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from services.gateway.outcomes.cohorts import Begun
from services.gateway.outcomes.counts import ArmCounts, Sample, count_objective
from services.gateway.policy.finals import ArmKey

KEPT_SECONDS = 60.0
"""An ended rollout's counts are kept for so long, for the requests that were under way and for lost reports."""
MOST_ARMS = 2048
"""Entries of arms; more are not taken."""
MOST_OBJECTIVES = 1024
"""Routes and tiers; more are not taken."""
_REMEMBERED = 4096


class ObjectiveCounts:
    """Objectives of one route and tier over all traffic."""

    __slots__ = ("changed", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        self.changed = 0


class OutcomeTable:
    """Counts only grow, until their rollout has been over for a minute: then they go, and do not come back."""

    def __init__(self) -> None:
        self.sequence = 0
        """Grows with every change."""
        self.refused = 0
        """Samples that found no room."""
        self._arms: dict[ArmKey, ArmCounts] = {}
        self._objectives: dict[tuple[str, str], ObjectiveCounts] = {}
        self._away: dict[str, float] = {}  # rollouts that are not under way, and since when
        self._over: dict[str, None] = {}  # rollouts whose counts are gone, oldest first

    def __len__(self) -> int:
        return len(self._arms)

    def arm(self, key: ArmKey) -> ArmCounts | None:
        """The counts of an arm, if there are any."""
        return self._arms.get(key)

    def objectives(self, route: str, tier: str) -> dict[str, list[int]]:
        """By objective of a route and tier: how many met it, and how many did not."""
        found = self._objectives.get((route, tier))
        return found.counts if found is not None else {}

    def begin(self, begun: Begun, given: float, *, model_version: str, route: str, tier: str) -> Begun | None:
        """Count a request that was given an arm and `given` seconds; `end` or `add` must follow. None: no room."""
        counts = self._touch(begun.key, model_version, route, tier)
        if counts is None:
            return None
        counts.begin(begun, given)
        return begun

    def end(self, begun: Begun | None) -> None:
        """It is over and says nothing of its arm; nothing if that was said before."""
        counts = self._arms.get(begun.key) if begun is not None and begun.open else None
        if counts is not None and begun is not None:
            counts.end(begun)
            self._changed(counts)

    def add(self, begun: Begun, sample: Sample, now: float) -> None:
        """It is over, at `now` (monotonic seconds), and counts under its arm."""
        counts = self._arms.get(begun.key)
        if counts is not None and begun.open:
            counts.add(sample, begun, now)
            self._changed(counts)

    def score(self, key: ArmKey, metric: str, value: float) -> None:
        """Add a score to an arm that has counts."""
        counts = self._arms.get(key)
        if counts is not None:
            counts.score(metric, value)
            self._changed(counts)

    def judge(self, route: str, tier: str, told: Collection[tuple[str, bool]]) -> None:
        """Count events of objectives."""
        if not told:
            return
        found = self._objectives.get((route, tier))
        if found is None:
            if len(self._objectives) >= MOST_OBJECTIVES:
                self.refused += 1
                return
            found = self._objectives[route, tier] = ObjectiveCounts()
        for name, met in told:
            count_objective(found.counts, name, met=met)
        self.sequence += 1
        found.changed = self.sequence

    def sweep(self, live: Collection[str], now: float) -> None:
        """Drop the counts of rollouts that have been away from `live` (ids under way) for a minute; called about twice
        a second, at `now` (monotonic seconds)."""
        for counts in self._arms.values():
            if counts.cohorts.open:  # that they go on is news: at their deadline they have failed
                self._changed(counts)
        known = {key.rollout_id for key in self._arms}
        self._away = {one: self._away.get(one, now) for one in known if one not in live}
        gone = {one for one, since in self._away.items() if now - since >= KEPT_SECONDS}
        if not gone:
            return
        self._arms = {key: counts for key, counts in self._arms.items() if key.rollout_id not in gone}
        for one in gone:
            del self._away[one]
            self._over[one] = None
        while len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]

    def arms_since(self, sequence: int) -> Iterator[tuple[ArmKey, ArmCounts]]:
        """Arms that changed after a sequence number."""
        return ((key, counts) for key, counts in self._arms.items() if counts.changed > sequence)

    def objectives_since(self, sequence: int) -> Iterator[tuple[tuple[str, str], ObjectiveCounts]]:
        """Routes and tiers that changed after a sequence number."""
        return ((key, found) for key, found in self._objectives.items() if found.changed > sequence)

    def _touch(self, key: ArmKey, model_version: str, route: str, tier: str) -> ArmCounts | None:
        counts = self._arms.get(key)
        if counts is None:
            if key.rollout_id in self._over:  # a count that began anew would not grow
                return None
            if len(self._arms) >= MOST_ARMS:
                self.refused += 1
                return None
            counts = self._arms[key] = ArmCounts(model_version, route, tier)
        self._changed(counts)
        return counts

    def _changed(self, counts: ArmCounts) -> None:
        self.sequence += 1
        counts.changed = self.sequence
