"""Scores of answers from elsewhere: each id counts once."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.rollout.outcomes import Rollout
from services.rollout.policy.evidence import Moments, clip_score


@dataclass(frozen=True, slots=True)
class Score:
    """One score of an answer."""

    id: str
    rollout: Rollout
    arm: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of scores."""

    accepted: int
    repeated: int
    rollouts: frozenset[Rollout]
    """Whose evidence changed."""


class Scores:
    """Moments per arm and metric, over the whole of a rollout: how good an answer is does not depend on the step."""

    def __init__(self, *, memory: int) -> None:
        """:param memory: ids that are remembered per arm; one repeated after so many others counts again."""
        self._memory = memory
        self._ids: dict[tuple[Rollout, str], OrderedDict[tuple[str, str], None]] = {}
        self._moments: dict[Rollout, dict[str, dict[str, Moments]]] = {}

    def take(self, scores: Iterable[Score]) -> Taken:
        """Takes finite scores."""
        accepted = repeated = 0
        changed = set()
        for score in scores:
            if self._repeated(score):
                repeated += 1
                continue
            arms = self._moments.setdefault(score.rollout, {})
            metrics = arms.setdefault(score.arm, {})
            one = Moments.of((clip_score(score.metric, score.value),))
            metrics[score.metric] = metrics[score.metric] + one if score.metric in metrics else one
            accepted += 1
            changed.add(score.rollout)
        return Taken(accepted, repeated, frozenset(changed))

    def of(self, rollout: Rollout) -> Mapping[str, Mapping[str, Moments]]:
        """Arm → metric → moments."""
        return self._moments.get(rollout, {})

    def keep(self, rollouts: Mapping[str, str]) -> None:
        """Forgets rollouts other than these (alias → id)."""
        for rollout in [known for known in self._moments if rollouts.get(known.alias) != known.id]:
            del self._moments[rollout]
        for key in [known for known in self._ids if rollouts.get(known[0].alias) != known[0].id]:
            del self._ids[key]

    def _repeated(self, score: Score) -> bool:
        ids = self._ids.setdefault((score.rollout, score.arm), OrderedDict())
        name = (score.metric, score.id)
        if name in ids:
            return True
        ids[name] = None
        if len(ids) > self._memory:
            ids.popitem(last=False)
        return False


def fault_of(score: Score) -> str:
    """Why a score cannot be taken; empty when it can."""
    if not score.id or not score.metric:
        return "a score needs an id and a metric"
    if not math.isfinite(score.value):
        return f"score {score.id!r} is not finite"
    return ""
