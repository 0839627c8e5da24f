"""Cumulative counts: pure, exact where the proto says so (`weir.rollout.v1.ArmOutcomes`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.outcomes.cohorts import PROMPT_SECONDS, Begun, Cohorts, KeySums

BINS_PER_OCTAVE = 8
"""Bin i of a distribution counts values in [2^(i/8), 2^((i+1)/8)): about 9% wide."""
MOST_SCORES = 32
"""Metrics of one arm; more are not kept."""
_LEAST = 1e-9


class Distribution:
    """Positive numbers in logarithmic bins, with exact moments of their natural logarithms."""

    __slots__ = ("bins", "sum_log", "sum_log2")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.sum_log = 0.0
        self.sum_log2 = 0.0

    def add(self, value: float) -> None:
        """One more; what is below a nanosecond counts as one."""
        value = max(value, _LEAST)
        log = math.log(value)
        self.sum_log += log
        self.sum_log2 += log * log
        place = bin_of(value)
        self.bins[place] = self.bins.get(place, 0) + 1

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.bins.values())


def bin_of(value: float) -> int:
    """The bin of a positive number."""
    return math.floor(math.log2(value) * BINS_PER_OCTAVE)


class Moments:
    """Count, sum and sum of squares."""

    __slots__ = ("count", "sum", "sum2")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.sum2 = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        self.sum += value
        self.sum2 += value * value


class CostMoments:
    """Moments of cost, tokens and reference cost per request; costs in micro-dollars."""

    __slots__ = (
        "cost",
        "cost2",
        "cost_reference",
        "cost_tokens",
        "count",
        "reference",
        "reference2",
        "tokens",
        "tokens2",
    )

    def __init__(self) -> None:
        self.count = 0
        self.cost = 0.0
        self.tokens = 0.0
        self.cost2 = 0.0
        self.tokens2 = 0.0
        self.cost_tokens = 0.0
        self.reference = 0.0
        self.reference2 = 0.0
        self.cost_reference = 0.0

    def add(self, cost: float, tokens: int, reference: float) -> None:
        """One more request."""
        self.count += 1
        self.cost += cost
        self.tokens += tokens
        self.cost2 += cost * cost
        self.tokens2 += tokens * tokens
        self.cost_tokens += cost * tokens
        self.reference += reference
        self.reference2 += reference * reference
        self.cost_reference += cost * reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request that counts."""

    failed: bool = False
    first: float = 0.0
    """Seconds to its first token; 0: there was none."""
    completed: bool = False
    """It came to its end."""
    itl: float = 0.0
    """Mean seconds between its tokens; 0: not known."""
    cost: float = 0.0
    """Micro-dollars."""
    reference: float = 0.0
    """What the same tokens would have cost on the baseline, micro-dollars."""
    tokens: int = 0
    """Of prompt and output; 0: it cost nothing, and does not count among costs."""
    objectives: Sequence[tuple[str, bool]] = ()
    scores: Sequence[tuple[str, float]] = ()


@dataclass(slots=True)
class ArmCounts:
    """What became of the requests of one arm during one step."""

    model_version: str
    route: str
    tier: str
    requests: int = 0
    errors: int = 0
    streams: int = 0
    completed: int = 0
    ttft: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    cost: CostMoments = field(default_factory=CostMoments)
    scores: dict[str, Moments] = field(default_factory=dict)
    objectives: dict[str, list[int]] = field(default_factory=dict)
    """By objective: how many met it, and how many did not."""
    cohorts: Cohorts = field(default_factory=Cohorts)
    keys: dict[str, KeySums] = field(default_factory=dict)
    """By metric, as in the proto."""
    changed: int = 0
    """The table's sequence number at the last change."""

    def begin(self, begun: Begun, given: float) -> None:
        """A request was given this arm, and `given` seconds."""
        self.cohorts.begin(begun.second, given)
        for metric in ("errors", "broken"):
            self._by_key(begun, metric, 0.0)

    def end(self, begun: Begun) -> None:
        """It is over, and says nothing more than that."""
        begun.open = False
        self.cohorts.of(begun.second).ended += 1

    def add(self, sample: Sample, begun: Begun, now: float) -> None:
        """A request that began here is over, at `now` (monotonic seconds), and counts."""
        self.end(begun)
        self._fail(sample, begun, now)
        self.requests += 1
        self.errors += sample.failed
        if sample.first:
            self.streams += 1
            self.completed += sample.completed
            self.ttft.add(sample.first)
            self._by_key(begun, "ttft", math.log(max(sample.first, _LEAST)))
        if sample.itl:
            self.itl.add(sample.itl)
            self._by_key(begun, "itl", math.log(max(sample.itl, _LEAST)))
        if sample.tokens:
            self.cost.add(sample.cost, sample.tokens, sample.reference)
            for metric, value in (("cost", sample.cost), ("tokens", sample.tokens), ("reference", sample.reference)):
                self._by_key(begun, metric, value)
        for name, met in sample.objectives:
            count_objective(self.objectives, name, met=met)
            self._by_key(begun, f"objective:{name}", 0.0 if met else 1.0)
        for name, value in sample.scores:
            self.score(name, value)
            if name in self.scores and math.isfinite(value):
                self._by_key(begun, f"score:{name}", value)

    def _fail(self, sample: Sample, begun: Begun, now: float) -> None:
        cell = self.cohorts.of(begun.second)
        broken = bool(sample.first) and not sample.completed
        cell.errors += sample.failed
        cell.broken += broken
        cell.prompt += sample.failed and now - begun.at <= PROMPT_SECONDS
        if begun.bucket is not None:
            self.keys["errors"].add(begun.bucket, float(sample.failed), 0)
            self.keys["broken"].add(begun.bucket, float(broken), 0)

    def _by_key(self, begun: Begun, metric: str, value: float) -> None:
        if begun.bucket is None:
            return
        sums = self.keys.get(metric)
        if sums is None:
            sums = self.keys[metric] = KeySums()
        sums.add(begun.bucket, value)

    def score(self, metric: str, value: float) -> None:
        """One more score; what is no finite number does not count, nor does a metric beyond the first 32."""
        moments = self.scores.get(metric)
        if not math.isfinite(value) or (moments is None and len(self.scores) >= MOST_SCORES):
            return
        if moments is None:
            moments = self.scores[metric] = Moments()
        moments.add(value)


def count_objective(counts: dict[str, list[int]], name: str, *, met: bool) -> None:
    """One more event of an objective."""
    pair = counts.get(name)
    if pair is None:
        pair = counts[name] = [0, 0]
    pair[0 if met else 1] += 1
