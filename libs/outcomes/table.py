"""All counts of one process: bounded, and with a number for every change, so that a reporter knows what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from weir.rollout.v1 import rollout_pb2 as pb

from libs.outcomes.counts import ArmCounts, ArmKey, Begun, Sample, count, events

KEPT_SECONDS = 60.0
"""An ended rollout's counts are kept for so long, for the requests that were under way and for lost reports."""
MOST_ARMS = 2048
"""Entries of arms; more are not taken."""
MOST_OBJECTIVES = 1024
"""Routes and tiers; more are not taken."""
_REMEMBERED = 4096


class OutcomeTable:
    """Counts only grow, until their rollout has been over for a minute: then they go, and do not come back."""

    def __init__(self) -> None:
        self.sequence = 0
        """Grows with every change."""
        self.refused = 0
        """Samples that found no room."""
        self._arms: dict[ArmKey, ArmCounts] = {}
        self._objectives: dict[tuple[str, str], dict[str, list[int]]] = {}
        self._judged: dict[tuple[str, str], int] = {}  # the sequence number at their last change
        self._away: dict[str, float] = {}  # rollouts that are not under way, and since when
        self._over: dict[str, None] = {}  # rollouts whose counts are gone, oldest first
        self._moved = asyncio.Event()  # set at the first change after somebody began to wait

    def __len__(self) -> int:
        return len(self._arms)

    async def beyond(self, sequence: int) -> None:
        """Returns once something has changed after a sequence number."""
        while self.sequence <= sequence:
            self._moved.clear()
            await self._moved.wait()

    def arm(self, key: ArmKey, now: float = 0.0) -> pb.ArmOutcomes | None:
        """The entry of an arm at `now`, Unix seconds, if there is one."""
        counts = self._arms.get(key)
        return counts.told(now) if counts is not None else None

    def objectives(self, route: str, tier: str) -> pb.ObjectiveOutcomes | None:
        """The entry of a route and tier over all traffic, likewise."""
        counts = self._objectives.get((route, tier))
        return _told(route, tier, counts) if counts is not None else None

    def begin(self, begun: Begun, given: float, *, model_version: str, route: str, tier: str) -> Begun | None:
        """Count a request that was given an arm and `given` seconds; `end` or `add` must follow. None: no room."""
        counts = self._arms.get(begun.key)
        if counts is None:
            if begun.key.rollout_id in self._over:  # a count that began anew would not grow
                return None
            if len(self._arms) >= MOST_ARMS:
                self.refused += 1
                return None
            counts = self._arms[begun.key] = ArmCounts(begun.key, model_version, route, tier)
        counts.begin(begun, given)
        self._changed(counts)
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
            found = self._objectives[route, tier] = {}
        for name, met in told:
            count(found, name, met=met)
        self._judged[route, tier] = self._move()

    def sweep(self, live: Collection[str], now: float) -> None:
        """Drop the counts of rollouts that have been away from `live` (ids under way) for a minute; called about twice
        a second, at `now` (monotonic seconds)."""
        for counts in self._arms.values():
            if counts.open:  # that they go on is news: at their deadline they have failed
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

    def arms_since(self, sequence: int, now: float) -> Iterator[pb.ArmOutcomes]:
        """Entries that changed after a sequence number, as they are at `now`, Unix seconds."""
        return (counts.told(now) for counts in self._arms.values() if counts.changed > sequence)

    def objectives_since(self, sequence: int) -> Iterator[pb.ObjectiveOutcomes]:
        """Likewise of routes and tiers."""
        return (_told(*key, self._objectives[key]) for key, changed in self._judged.items() if changed > sequence)

    def _changed(self, counts: ArmCounts) -> None:
        counts.changed = self._move()

    def _move(self) -> int:
        self.sequence += 1
        self._moved.set()
        return self.sequence


def _told(route: str, tier: str, counts: dict[str, list[int]]) -> pb.ObjectiveOutcomes:
    return pb.ObjectiveOutcomes(route=route, tier=tier, objectives=events(counts))
