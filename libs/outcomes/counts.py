"""What became of the requests of one arm, as `weir.rollout.v1.ArmOutcomes` says it.

Failures come sooner than answers, so among the requests that have ended too many failed, the more so the longer answers
take. So requests count by when they began, too; errors of those that began do not depend on that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec
from weir.rollout.v1 import rollout_pb2 as pb

BINS_PER_OCTAVE = 8
"""Bin i of a distribution counts values in [2^(i/8), 2^((i+1)/8)): about 9% wide."""
BUCKETS = 64
"""Of sticky keys."""
MOST_SCORES = 32
"""Metrics of one arm; more are not kept."""
PROMPT_SECONDS = 2.0
"""An error within so many seconds of the beginning is told apart."""
KEPT_SECONDS = 160
"""Seconds that are told one by one; what began earlier is one sum."""
_LEAST = 1e-9
_COLUMNS = ("started", "ended", "errors", "broken", "prompt")
_STARTED, _ENDED, _ERRORS, _BROKEN, _PROMPT = range(5)
_COST = ("count", "cost", "tokens", "cost2", "tokens2", "cost_tokens", "reference", "reference2", "cost_reference")


@dataclass(frozen=True, slots=True, order=True)
class ArmKey:
    """Where a request counts. `phase` is the number of the `RolloutPhase`."""

    alias: str
    rollout_id: str
    phase: int
    step: int
    arm: str
    mirrored: bool = False


@dataclass(slots=True)
class Begun:
    """A request that was given an arm."""

    key: ArmKey
    second: int
    """Unix time of its beginning."""
    at: float
    """The same, monotonic seconds."""
    bucket: int | None
    """Of its sticky key; None: mirrored copies are drawn one by one, whatever their keys."""
    open: bool = True
    """It is not over."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
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
    """What the same would have cost on the baseline, micro-dollars."""
    tokens: int = 0
    """Of prompt and output, or rows; 0: it cost nothing, and does not count among costs."""
    objectives: Sequence[tuple[str, bool]] = ()
    scores: Sequence[tuple[str, float]] = ()


class ArmCounts:
    """Of one arm during one step. Numbers are kept as Python's, which cost a third of a message's to count up."""

    __slots__ = (
        "_cost",
        "_itl",
        "_keys",
        "_longest",
        "_objectives",
        "_of",
        "_older",
        "_scores",
        "_seconds",
        "_sums",
        "_ttft",
        "changed",
    )

    def __init__(self, key: ArmKey, model_version: str, route: str, tier: str) -> None:
        self._of = {**asdict(key), "model_version": model_version, "route": route, "tier": tier}
        self._sums = (0, 0, 0, 0)  # requests, errors, streams, completed
        self._ttft, self._itl = _Distribution(), _Distribution()
        self._cost = (0, *(0.0,) * 8)
        self._scores: dict[str, tuple[int, float, float]] = {}
        self._objectives: dict[str, list[int]] = {}
        self._keys: dict[str, tuple[list[int], list[float]]] = {}
        self._older = [0] * 5
        self._seconds: dict[int, list[int]] = {}  # what began in each, in the order of the beginnings
        self._longest = 0.0
        self.changed = 0
        """The table's sequence number at the last change."""

    def told(self, now: float) -> pb.ArmOutcomes:
        """The arm's entry at `now`, Unix seconds."""
        requests, errors, streams, completed = self._sums
        columns = zip(_COLUMNS, zip(self._older, *self._seconds.values(), strict=True), strict=True)
        return pb.ArmOutcomes(
            **self._of,
            requests=requests,
            errors=errors,
            streams=streams,
            completed=completed,
            ttft=self._ttft.told(),
            itl=self._itl.told(),
            cost=pb.CostMoments(**dict(zip(_COST, self._cost, strict=True))),  # type: ignore[arg-type]
            cohorts=pb.Cohorts(seconds=self._seconds, longest=self._longest, now=now, **dict(columns)),
            scores={name: pb.Moments(count=n, sum=one, sum2=two) for name, (n, one, two) in self._scores.items()},
            objectives=events(self._objectives),
            keys={metric: pb.KeySums(counts=counts, sums=sums) for metric, (counts, sums) in self._keys.items()},
        )

    @property
    def open(self) -> bool:
        """Some of its requests have not ended."""
        return any(row[_STARTED] > row[_ENDED] for row in (self._older, *self._seconds.values()))

    def begin(self, begun: Begun, given: float) -> None:
        """A request was given this arm, and `given` seconds."""
        seconds, second = self._seconds, begun.second
        while seconds and (first := next(iter(seconds))) < second - KEPT_SECONDS:
            self._older = [a + b for a, b in zip(self._older, seconds.pop(first), strict=True)]
        self._longest = max(self._longest, given)
        row = seconds.get(second)
        if row is None:
            row = seconds[second] = [0] * 5
        row[_STARTED] += 1
        self._by_key(begun, "errors", 0.0)
        self._by_key(begun, "broken", 0.0)

    def end(self, begun: Begun) -> None:
        """It is over, and says nothing more than that."""
        begun.open = False
        self._seconds.get(begun.second, self._older)[_ENDED] += 1

    def add(self, sample: Sample, begun: Begun, now: float) -> None:
        """A request that began here is over, at `now` (monotonic seconds), and counts."""
        self.end(begun)
        failed, began_stream = sample.failed, bool(sample.first)
        broken = began_stream and not sample.completed
        row = self._seconds.get(begun.second, self._older)
        row[_ERRORS] += failed
        row[_BROKEN] += broken
        row[_PROMPT] += failed and now - begun.at <= PROMPT_SECONDS
        self._by_key(begun, "errors", float(failed), 0)
        self._by_key(begun, "broken", float(broken), 0)
        requests, errors, streams, completed = self._sums
        ended = completed + (began_stream and sample.completed)
        self._sums = requests + 1, errors + failed, streams + began_stream, ended
        if began_stream:
            self._by_key(begun, "ttft", self._ttft.add(sample.first))
        if sample.itl:
            self._by_key(begun, "itl", self._itl.add(sample.itl))
        if sample.tokens:
            self._spend(begun, sample.cost, sample.tokens, sample.reference)
        for name, met in sample.objectives:
            count(self._objectives, name, met=met)
            self._by_key(begun, f"objective:{name}", 0.0 if met else 1.0)
        for name, value in sample.scores:
            if self.score(name, value):
                self._by_key(begun, f"score:{name}", value)

    def score(self, metric: str, value: float) -> bool:
        """One more score; False where it does not count: it is no finite number, or of a metric beyond the first 32."""
        known = self._scores.get(metric)
        if not math.isfinite(value) or (known is None and len(self._scores) >= MOST_SCORES):
            return False
        n, one, two = known or (0, 0.0, 0.0)
        self._scores[metric] = n + 1, one + value, two + value * value
        return True

    def _spend(self, begun: Begun, cost: float, tokens: int, reference: float) -> None:
        n, c, t, cc, tt, ct, r, rr, cr = self._cost
        self._cost = (
            n + 1,
            c + cost,
            t + tokens,
            cc + cost * cost,
            tt + tokens * tokens,
            ct + cost * tokens,
            r + reference,
            rr + reference * reference,
            cr + cost * reference,
        )
        self._by_key(begun, "cost", cost)
        self._by_key(begun, "tokens", tokens)
        self._by_key(begun, "reference", reference)

    def _by_key(self, begun: Begun, metric: str, value: float, count: int = 1) -> None:
        bucket = begun.bucket
        if bucket is None:
            return
        found = self._keys.get(metric)
        if found is None:
            found = self._keys[metric] = [0] * BUCKETS, [0.0] * BUCKETS
        found[0][bucket] += count
        found[1][bucket] += value


class _Distribution:
    """Positive numbers in logarithmic bins, with exact moments of their natural logarithms."""

    __slots__ = ("_bins", "_sum", "_sum2")

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._sum = self._sum2 = 0.0

    def add(self, value: float) -> float:
        """One more, and its logarithm; what is below a nanosecond counts as one."""
        value = max(value, _LEAST)
        log = math.log(value)
        self._sum += log
        self._sum2 += log * log
        place = bin_of(value)
        self._bins[place] = self._bins.get(place, 0) + 1
        return log

    def told(self) -> pb.Distribution:
        """Bins in ascending order."""
        bins = sorted(self._bins)
        counts = [self._bins[place] for place in bins]
        return pb.Distribution(bins=bins, counts=counts, sum_log=self._sum, sum_log2=self._sum2)


def bin_of(value: float) -> int:
    """The bin of a positive number."""
    return math.floor(math.log2(value) * BINS_PER_OCTAVE)


def count(counts: dict[str, list[int]], name: str, *, met: bool) -> None:
    """One more event of an objective: [met, not met]."""
    pair = counts.get(name)
    if pair is None:
        pair = counts[name] = [0, 0]
    pair[0 if met else 1] += 1


def events(counts: dict[str, list[int]]) -> dict[str, pb.GoodBad]:
    """Objectives' events as they are told."""
    return {name: pb.GoodBad(good=good, bad=bad) for name, (good, bad) in counts.items()}
