"""What became of requests, as sums: nothing here depends on the order in which they came.

The values mirror `weir.rollout.v1.ArmOutcomes`. They add: reports of several gateways, or of several incarnations of
one, are one arm's evidence once they are merged, so a controller that has just been elected knows as much as the one
before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

from services.rollout.policy.cohorts import Cohorts
from services.rollout.policy.keys import ByKey
from services.rollout.policy.phases import Phase

BINS_PER_DOUBLING = 8
"""Bin i of a distribution counts values from 2^(i/8) to 2^((i+1)/8)."""
_LOG_BIN = math.log(2.0) / BINS_PER_DOUBLING
_BOUNDS = {
    "shadow_exact": (0.0, 1.0),
    "shadow_length": (0.0, 1.0),
    "shadow_logprob": (0.0, 20.0),
    "shadow_flips": (0.0, 1.0),
    "shadow_scores": (0.0, 1.0),
    "mean_logprob": (-20.0, 0.0),
}
_FAR = 1e6


def score_bounds(metric: str) -> tuple[float, float]:
    """Between what scores of this metric lie; those of unknown metrics between −1e6 and 1e6."""
    return _BOUNDS.get(metric, (-_FAR, _FAR))


def clip_score(metric: str, value: float) -> float:
    """The score as it is to be counted: within `score_bounds`, so that one wild value cannot own a mean.

    :raises ValueError: it is not a number.
    """
    if math.isnan(value):
        raise ValueError(f"{metric} is not a number")
    low, high = score_bounds(metric)
    return min(max(value, low), high)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Positive numbers: counts in logarithmic bins, with exact moments of their natural logarithms."""

    bins: tuple[int, ...] = ()
    """Ascending."""
    counts: tuple[int, ...] = ()
    """As many."""
    sum_log: float = 0.0
    sum_log2: float = 0.0

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.counts)

    @property
    def mean_log(self) -> float:
        """Mean of the logarithms; 0 without values."""
        count = self.count
        return self.sum_log / count if count else 0.0

    def quantile(self, share: float) -> float:
        """The value that this share of values lies under, taking those of a bin as evenly spread; 0 without values."""
        every = self.count
        if not every:
            return 0.0
        wanted, passed = share * every, 0
        for index, count in zip(self.bins, self.counts, strict=True):
            if count and passed + count >= wanted:
                return math.exp(_LOG_BIN * (index + max(wanted - passed, 0.0) / count))
            passed += count
        return math.exp(_LOG_BIN * (self.bins[-1] + 1))

    def edges(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Logarithms of the occupied bins' edges, ascending, and how many values lie above each."""
        places: list[int] = []
        above: list[int] = []
        left = self.count
        for index, count in zip(self.bins, self.counts, strict=True):
            if not places or places[-1] != index:
                places.append(index)
                above.append(left)
            left -= count
            places.append(index + 1)
            above.append(left)
        return tuple(_LOG_BIN * place for place in places), tuple(above)

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        """Of these positive values."""
        counts: dict[int, int] = {}
        first = second = 0.0
        for value in values:
            log = math.log(value)
            place = math.floor(log / _LOG_BIN)
            counts[place] = counts.get(place, 0) + 1
            first += log
            second += log * log
        bins = tuple(sorted(counts))
        return cls(bins, tuple(counts[place] for place in bins), first, second)

    def __add__(self, other: Distribution) -> Distribution:
        if not other.counts:
            return self
        counts = dict(zip(self.bins, self.counts, strict=True))
        for place, count in zip(other.bins, other.counts, strict=True):
            counts[place] = counts.get(place, 0) + count
        bins = tuple(sorted(counts))
        return Distribution(
            bins,
            tuple(counts[place] for place in bins),
            self.sum_log + other.sum_log,
            self.sum_log2 + other.sum_log2,
        )


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, sum and sum of squares."""

    count: int = 0
    sum: float = 0.0
    sum2: float = 0.0

    @property
    def mean(self) -> float:
        """Their mean; 0 without any."""
        return self.sum / self.count if self.count else 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Moments:
        """Of these values."""
        every = tuple(values)
        return cls(len(every), sum(every), sum(value * value for value in every))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.sum + other.sum, self.sum2 + other.sum2)


@dataclass(frozen=True, slots=True)
class CostMoments:
    """Moments of cost, tokens and reference cost per request."""

    count: int = 0
    cost: float = 0.0
    """Micro-dollars."""
    tokens: float = 0.0
    """Prompt and output tokens."""
    cost2: float = 0.0
    tokens2: float = 0.0
    cost_tokens: float = 0.0
    reference: float = 0.0
    """What the same tokens would have cost on the baseline, micro-dollars."""
    reference2: float = 0.0
    cost_reference: float = 0.0

    @property
    def per_1k_tokens(self) -> float:
        """Micro-dollars; 0 without tokens."""
        return 1000.0 * self.cost / self.tokens if self.tokens else 0.0

    @property
    def per_request(self) -> float:
        """Micro-dollars; 0 without requests."""
        return self.cost / self.count if self.count else 0.0

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]], references: Iterable[float] = ()) -> CostMoments:
        """Of these pairs of cost (micro-dollars) and tokens; `references` are their reference costs, if known."""
        every = tuple(pairs)
        known = tuple(references)
        return cls(
            len(every),
            sum(cost for cost, _ in every),
            sum(tokens for _, tokens in every),
            sum(cost * cost for cost, _ in every),
            sum(tokens * tokens for _, tokens in every),
            sum(cost * tokens for cost, tokens in every),
            sum(known),
            sum(reference * reference for reference in known),
            sum(cost * reference for (cost, _), reference in zip(every, known, strict=False)),
        )

    def __add__(self, other: CostMoments) -> CostMoments:
        return CostMoments(
            self.count + other.count,
            self.cost + other.cost,
            self.tokens + other.tokens,
            self.cost2 + other.cost2,
            self.tokens2 + other.tokens2,
            self.cost_tokens + other.cost_tokens,
            self.reference + other.reference,
            self.reference2 + other.reference2,
            self.cost_reference + other.cost_reference,
        )


@dataclass(frozen=True, slots=True)
class GoodBad:
    """Events that met an objective and events that did not."""

    good: int = 0
    bad: int = 0

    def __add__(self, other: GoodBad) -> GoodBad:
        return GoodBad(self.good + other.good, self.bad + other.bad)


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """What became of the requests of one arm during one step."""

    requests: int = 0
    """That ended, and count."""
    errors: int = 0
    """Of those, failed through our fault."""
    streams: int = 0
    """That gave a first token."""
    completed: int = 0
    """Of those, came to their end."""
    ttft: Distribution = Distribution()
    """Seconds."""
    itl: Distribution = Distribution()
    """Seconds, the mean of each request."""
    cost: CostMoments = CostMoments()
    scores: Mapping[str, Moments] = field(default_factory=dict)
    objectives: Mapping[str, GoodBad] = field(default_factory=dict)
    cohorts: Cohorts | None = None
    """Requests by when they began; None: not told."""
    keys: ByKey = field(default_factory=dict)
    """Requests by sticky key; empty: not told."""

    @property
    def started(self) -> int:
        """Requests that began; those that ended, where that is not told."""
        return self.cohorts.every.started if self.cohorts is not None else self.requests

    def __add__(self, other: ArmEvidence) -> ArmEvidence:
        return ArmEvidence(
            self.requests + other.requests,
            self.errors + other.errors,
            self.streams + other.streams,
            self.completed + other.completed,
            self.ttft + other.ttft,
            self.itl + other.itl,
            self.cost + other.cost,
            _added(self.scores, other.scores),
            _added(self.objectives, other.objectives),
            other.cohorts
            if self.cohorts is None
            else self.cohorts
            if other.cohorts is None
            else self.cohorts + other.cohorts,
            _added(self.keys, other.keys),
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """Whose evidence it is: one arm's during one step, users' requests or mirrored copies of them."""

    phase: Phase
    step: int
    arm: str
    """"baseline" or the arm's name."""
    mirrored: bool = False


Evidence = Mapping[Stage, ArmEvidence]
"""Of one rollout, over all gateways; what is missing has not happened."""


def merge(reports: Iterable[tuple[Stage, ArmEvidence]]) -> Evidence:
    """One rollout's evidence from the reports of all sources, each source's last one once per stage."""
    merged: dict[Stage, ArmEvidence] = {}
    for stage, evidence in reports:
        merged[stage] = merged[stage] + evidence if stage in merged else evidence
    return merged


class _Sum(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


_T = TypeVar("_T", bound=_Sum)


def _added(one: Mapping[str, _T], other: Mapping[str, _T]) -> Mapping[str, _T]:
    if not other:
        return one
    sums = dict(one)
    for name, value in other.items():
        sums[name] = sums[name] + value if name in sums else value
    return sums
