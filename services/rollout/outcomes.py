"""What gateways reported: for each of their incarnations the last count of everything, so that sums are right however
often a report comes, and a gateway that starts anew adds to what it counted before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from services.rollout.policy.evidence import ArmEvidence, Evidence, Stage, merge

_AHEAD_SECONDS = 60.0
"""For a rollout that gateways know and we do not yet: our view follows within milliseconds, or the store is away."""
_GONE_SECONDS = 600.0
"""Without a word."""


class Rollout(NamedTuple):
    """Which rollout."""

    alias: str
    id: str


class Place(NamedTuple):
    """Where requests of a stage went; a stage may have several."""

    stage: Stage
    route: str
    tier: str


@dataclass(frozen=True, slots=True)
class ArmReport:
    """A gateway's count of one stage."""

    rollout: Rollout
    place: Place
    evidence: ArmEvidence


@dataclass(slots=True)
class _Incarnation:
    source: str
    heard: float
    counts: dict[Rollout, dict[Place, ArmEvidence]] = field(default_factory=dict)
    places: int = 0


class Outcomes:
    """All gateways' counts. Times are monotonic seconds."""

    def __init__(self, *, max_sources: int, max_arms: int) -> None:
        """:param max_sources: incarnations that are kept; the one not heard for longest goes first.

        :param max_arms: places that are kept per incarnation.
        """
        self._max_sources = max_sources
        self._max_arms = max_arms
        self._incarnations: dict[tuple[str, str], _Incarnation] = {}
        self._sums: dict[Rollout, Evidence] = {}
        self._since: dict[Rollout, float] = {}
        self.ignored = 0
        """Counts that found no room."""

    def hear(self, source: str, incarnation: str, now: float) -> None:
        """A sign of life."""
        found = self._incarnations.get((source, incarnation))
        if found is None:
            if len(self._incarnations) >= self._max_sources:
                oldest = min(self._incarnations, key=lambda key: self._incarnations[key].heard)
                self._forget(oldest)
            found = self._incarnations[source, incarnation] = _Incarnation(source, now)
        found.heard = max(found.heard, now)

    def take(self, source: str, incarnation: str, reports: Iterable[ArmReport], now: float) -> set[Rollout]:
        """Takes the counts; returns whose changed. Counts only grow: what is behind what is known says nothing new."""
        self.hear(source, incarnation, now)
        into = self._incarnations[source, incarnation]
        changed = set()
        for report in reports:
            counts = into.counts.setdefault(report.rollout, {})
            known = counts.get(report.place)
            if known is None:
                if into.places >= self._max_arms:
                    self.ignored += 1
                    continue
                into.places += 1
            elif not _newer(report.evidence, known):
                continue
            counts[report.place] = report.evidence
            changed.add(report.rollout)
            self._since.setdefault(report.rollout, now)
            self._sums.pop(report.rollout, None)
        return changed

    def evidence(self, rollout: Rollout) -> Evidence:
        """All gateways' counts of a rollout, those of gone incarnations too."""
        found = self._sums.get(rollout)
        if found is None:
            found = self._sums[rollout] = merge(
                (place.stage, evidence)
                for incarnation in self._incarnations.values()
                for place, evidence in incarnation.counts.get(rollout, {}).items()
            )
        return found

    def places(self, rollout: Rollout) -> set[tuple[str, str]]:
        """Routes and tiers of a rollout's requests."""
        return {
            (place.route, place.tier)
            for incarnation in self._incarnations.values()
            for place in incarnation.counts.get(rollout, {})
            if place.route
        }

    def heard(self, since: float) -> set[str]:
        """Gateways heard since then."""
        return {each.source for each in self._incarnations.values() if each.heard >= since}

    def keep(self, rollouts: Mapping[str, str], now: float) -> None:
        """Forgets rollouts other than these (alias → id), unless their first count came just now: reports may be
        ahead of what we know of the registry. Forgets gateways that are long gone and have nothing left to tell."""
        for rollout in [known for known in self._since if rollouts.get(known.alias) != known.id]:
            if self._since[rollout] < now - _AHEAD_SECONDS:
                del self._since[rollout]
                self._sums.pop(rollout, None)
                for each in self._incarnations.values():
                    each.places -= len(each.counts.pop(rollout, {}))
        for key, each in tuple(self._incarnations.items()):
            if not each.counts and each.heard < now - _GONE_SECONDS:
                self._forget(key)

    @property
    def rollouts(self) -> set[Rollout]:
        """All that something is known of."""
        return set(self._since)

    def _forget(self, key: tuple[str, str]) -> None:
        for rollout in self._incarnations.pop(key).counts:
            self._sums.pop(rollout, None)


def _newer(one: ArmEvidence, known: ArmEvidence) -> bool:
    """A later count of the same incarnation: frames of an old stream may come behind those of a new one."""
    return one != known and _size(one) >= _size(known)


def _size(evidence: ArmEvidence) -> tuple[int, int, int, int, int, int]:
    scores = sum(each.count for each in evidence.scores.values())
    events = sum(each.good + each.bad for each in evidence.objectives.values())
    ended = evidence.cohorts.every.ended if evidence.cohorts is not None else 0
    return evidence.started, ended, evidence.requests, evidence.streams, scores, events
