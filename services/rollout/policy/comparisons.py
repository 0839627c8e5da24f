"""An arm beside the baseline, by each kind of metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from services.rollout.policy import keys, means, proportions, quantiles, ratios
from services.rollout.policy.cohorts import Cohorts, prefixes
from services.rollout.policy.evidence import ArmEvidence, CostMoments, Distribution, GoodBad, Moments, score_bounds
from services.rollout.policy.footing import STARTED, Footing
from services.rollout.policy.intervals import NOTHING, Interval, Level
from services.rollout.policy.keys import KeySums
from services.rollout.policy.means import Estimate
from services.rollout.policy.plan import Gate
from services.rollout.policy.proportions import Share

TAILS = {"p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}
"""Shares of values above the quantiles that gates may name."""
SPREAD_OF_LOGS = 0.05
"""Least standard deviation that logarithms of times are taken to have: nothing is timed better than to 5 percent."""
_LEAST_SCORE_SPREAD = 0.01
_LARGEST_LOG = 700.0


_DISTANCES = frozenset({"score:shadow_logprob", "score:shadow_distance", "score:shadow_flips", "score:shadow_scores"})
"""Comparisons with the baseline's own answers that are best at 0."""
_SAME = {
    "latency": "ttft",
    "latency_p95": "ttft_p95",
    "latency_p99": "ttft_p99",
    "cost_per_1k_rows": "cost_per_1k_tokens",
}
"""How predictions' metrics are called, and where they are counted: an answer comes at once, with rows for tokens."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is known of one metric."""

    worse: Interval
    """By how much the arm is worse, or for one measured against a bar, by how much it misses it."""
    tolerated: float
    shown: Interval
    """As `GateStatus` reports it."""
    samples: int
    baseline_samples: int
    ours: float
    """The arm's own figure, in the metric's unit."""
    theirs: float
    unit: str
    """"times", "points" or "plain"."""
    bar: float | None = None
    """What the arm alone is measured against; then the baseline has no part in it."""
    same_tokens: bool = False
    """`theirs` is what the arm's own tokens would have cost on the baseline."""


def bar(gate: Gate) -> float | None:
    """What a score is measured against, where that is not the baseline's.

    Comparisons with the baseline's own answers have a perfect value; without `at_least`, tolerance is the distance
    from it.
    """
    if gate.at_least is not None:
        return gate.at_least
    if gate.metric in _DISTANCES:
        return gate.tolerance
    return 1.0 - gate.tolerance if gate.metric.startswith("score:shadow_") else None


def lower_is_better(gate: Gate) -> bool:
    """More of this score is worse."""
    return gate.lower_is_better or gate.metric in _DISTANCES


@dataclass(frozen=True, slots=True)
class Sides:
    """An arm and the baseline, and how they are to be compared."""

    ours: ArmEvidence
    theirs: ArmEvidence
    level: Level
    footing: Footing

    def firm(
        self, found: Interval, metric: str, by_key: Callable[[KeySums, KeySums], Interval], spread: float
    ) -> Interval:
        """The interval over requests, and over keys or with room for what they differ by (`spread`), where keys are
        told."""
        if self.footing is not Footing.KEYS:
            return self.with_room(found, spread)
        if metric not in self.ours.keys or metric not in self.theirs.keys:
            return found if metric.startswith("score:") else NOTHING  # scores from elsewhere come without keys
        other = by_key(self.ours.keys[metric], self.theirs.keys[metric])
        return Interval(found.estimate, min(found.low, other.low), max(found.high, other.high))

    def with_room(self, found: Interval, spread: float) -> Interval:
        """With room for what keys differ by, where they are few or not split as they should be."""
        if self.footing is not Footing.ROOM:
            return found
        started = self.ours.keys[STARTED], self.theirs.keys[STARTED]
        below, above = (keys.room(spread, *started, budget) for budget in (self.level.low, self.level.high))
        return Interval(found.estimate, found.low - below, found.high + above)

    def effects(self, metric: str) -> tuple[float, float]:
        """Design effects on shares; 1 where keys are not told or not looked at."""
        ours, theirs = self.ours.keys.get(metric), self.theirs.keys.get(metric)
        if self.footing is not Footing.KEYS or ours is None or theirs is None:
            return 1.0, 1.0
        return keys.design_effect(ours), keys.design_effect(theirs)


def compare(gate: Gate, sides: Sides) -> Comparison | None:
    """The gate's metric; None when there is no such metric."""
    metric = _SAME.get(gate.metric, gate.metric)
    if metric.startswith("score:"):
        return _of_score(gate, sides)
    if metric == "error_rate":
        return _of_failures(gate.tolerance, sides, broken=False)
    if metric == "stream_completion":
        found = _of_failures(gate.tolerance, sides, broken=True)
        return replace(found, shown=found.worse.negated, ours=1.0 - found.ours, theirs=1.0 - found.theirs)
    if metric in ("cost_per_1k_tokens", "cost_per_request"):
        return _of_cost(gate.tolerance, sides, metric == "cost_per_1k_tokens")
    name, _, tail = metric.partition("_")
    if name not in ("ttft", "itl") or (tail and tail not in TAILS):
        return None
    return _of_times(gate.tolerance, sides, name, TAILS.get(tail, 0.0))


def of_objective(objective: str, sides: Sides) -> Comparison:
    """Shares of bad events."""
    told = sides.ours.cohorts is not None and sides.theirs.cohorts is not None
    if told and objective in ("availability", "stream_completion"):
        return _of_failures(0.0, sides, broken=objective == "stream_completion")
    nothing = GoodBad()
    mine, base = (side.objectives.get(objective, nothing) for side in (sides.ours, sides.theirs))
    ours, theirs = Share.of(mine.bad, mine.good + mine.bad), Share.of(base.bad, base.good + base.bad)
    return _of_shares(0.0, ours, theirs, sides, f"objective:{objective}")


def _of_shares(tolerated: float, ours: Share, theirs: Share, sides: Sides, metric: str) -> Comparison:
    own, base = sides.effects(metric)
    found = proportions.difference(ours.thinned(own), theirs.thinned(base), sides.level)
    return _points(tolerated, sides.with_room(found, keys.SHARE_SPREAD), ours, theirs)


def _points(tolerated: float, found: Interval, ours: Share, theirs: Share) -> Comparison:
    counts = round(ours.count), round(theirs.count)
    return Comparison(found, tolerated, found, *counts, ours.estimate, theirs.estimate, "points")


def _of_failures(tolerated: float, sides: Sides, *, broken: bool) -> Comparison:
    """Failures, or streams that broke off, of the requests that began; of those that ended where that is not told."""
    ours, theirs = sides.ours, sides.theirs
    metric = "broken" if broken else "errors"
    if ours.cohorts is None or theirs.cohorts is None:
        mine, base = (_of_ended(side, broken=broken) for side in (ours, theirs))
        return _of_shares(tolerated, mine, base, sides, metric)
    every = ours.cohorts.every, theirs.cohorts.every
    mine, base = (Share.of(cell.broken if broken else cell.errors, cell.started) for cell in every)
    found = _of_cohorts(ours.cohorts, theirs.cohorts, sides.level, sides.effects(metric), broken=broken)
    return _points(tolerated, sides.with_room(found, keys.SHARE_SPREAD), mine, base)


def _of_ended(side: ArmEvidence, *, broken: bool) -> Share:
    if broken:
        return Share.of(side.streams - side.completed, side.streams)
    return Share.of(side.errors, side.requests)


@lru_cache(maxsize=16)
def _of_cohorts(
    ours: Cohorts, theirs: Cohorts, level: Level, effects: tuple[float, float], *, broken: bool
) -> Interval:
    """See `cohorts`. Errors have two chances to show, each with half of the error: within two seconds, and at all."""
    low, high = -math.inf, math.inf
    budget = level.low if broken else level.low + math.log(2.0)

    def thinned(failed: int, begun: int, which: int) -> Share:
        return Share.of(failed, begun).thinned(effects[which])

    for mine, base in prefixes(ours, theirs):
        failed, there = (cell.broken if broken else cell.errors for cell in (mine, base))
        suspected, other = thinned(failed, mine.started, 0), thinned(there + base.open, base.started, 1)
        low = max(low, proportions.at_least(suspected, other, budget))
        suspected, other = thinned(failed + mine.open, mine.started, 0), thinned(there, base.started, 1)
        high = min(high, proportions.at_most(suspected, other, level.high))
    if not broken:
        soon, usual = ours.prompt, theirs.prompt
        pair = thinned(soon.errors, soon.started, 0), thinned(usual.errors, usual.started, 1)
        low = max(low, proportions.at_least(*pair, budget))
    shares = (
        Share.of(cell.broken if broken else cell.errors, cell.started).estimate for cell in (ours.every, theirs.every)
    )
    estimate = next(shares) - next(shares)
    return Interval(min(max(estimate, low), high), low, high)


def _of_times(tolerated: float, sides: Sides, name: str, tail: float) -> Comparison:
    ours, theirs = (side.ttft if name == "ttft" else side.itl for side in (sides.ours, sides.theirs))
    level = sides.level
    found = mean = means.difference(_logs(ours), _logs(theirs), level, least_spread=SPREAD_OF_LOGS)

    def by_key(mine: KeySums, base: KeySums) -> Interval:
        return keys.numbers(mine, base, level, least_spread=SPREAD_OF_LOGS)

    firm = sides.firm(mean, name, by_key, keys.SPREAD)
    if tail:
        found = quantiles.log_ratio(ours, theirs, tail, level)
        mine, base = ours.quantile(1.0 - tail), theirs.quantile(1.0 - tail)
        # What keys add to the doubt about the mean they add to that about a quantile.
        firm = Interval(
            found.estimate, found.low - _apart(mean.low, firm.low), found.high + _apart(firm.high, mean.high)
        )
    else:
        mine, base = _typical(ours), _typical(theirs)
    ratio = firm.exponential
    return Comparison(ratio, tolerated, ratio, ours.count, theirs.count, mine, base, "times")


def _apart(one: float, other: float) -> float:
    """`one` − `other`, at least 0; 0 where nothing is known of either."""
    return max(one - other, 0.0) if one != other else 0.0


@lru_cache(maxsize=8)
def _cost_ratio(ours: CostMoments, theirs: CostMoments, per_token: bool, level: Level) -> Interval:
    return ratios.log_ratio(ours, theirs, level, per_token=per_token)


def _of_cost(tolerated: float, sides: Sides, per_token: bool) -> Comparison:
    ours, theirs, level = sides.ours.cost, sides.theirs.cost, sides.level
    found = _cost_ratio(ours, theirs, per_token, level)
    mine, base = (side.per_1k_tokens if per_token else side.per_request for side in (ours, theirs))
    same_tokens = per_token and ratios.priced_alike(ours, theirs)
    if ours.cost > 0.0 or theirs.cost > 0.0:
        below = "reference" if same_tokens else "tokens" if per_token else "requests"
        found = sides.firm(found, "cost", lambda *_: _cost_by_key(sides, below), keys.SPREAD)
    ratio = found.exponential
    if same_tokens:
        # Beside the baseline's own cost per token, of another mix, the ratio could look wrong.
        base = mine / (1.0 + ratio.estimate) if ours.cost else base
    return Comparison(ratio, tolerated, ratio, ours.count, theirs.count, mine, base, "times", same_tokens=same_tokens)


def _cost_by_key(sides: Sides, below: str) -> Interval:
    """`below`: the metric that the cost is divided by, or "requests"."""
    ours, theirs = (_divided(side, below) for side in (sides.ours, sides.theirs))
    return keys.log_ratios(ours, theirs, sides.level, least_spread=ratios.LEAST_SPREAD)


def _divided(side: ArmEvidence, below: str) -> tuple[KeySums, KeySums]:
    cost = side.keys["cost"]
    return cost, KeySums(cost.counts, tuple(map(float, cost.counts))) if below == "requests" else side.keys[below]


def _of_score(gate: Gate, sides: Sides) -> Comparison:
    metric = gate.metric.removeprefix("score:")
    nothing = Moments()
    mine, base = (side.scores.get(metric, nothing) for side in (sides.ours, sides.theirs))
    wanted = bar(gate)
    flip = not lower_is_better(gate)
    at = sides.level.flipped if flip else sides.level
    shares = score_bounds(metric) == (0.0, 1.0)
    if wanted is not None:
        shown = _mean(mine, at, shares)
        worse = Interval(shown.estimate - wanted, shown.low - wanted, shown.high - wanted)
        tolerated = 0.0
    else:
        spread = keys.SHARE_SPREAD if shares else max(keys.SPREAD, math.sqrt(_sample(base).variance))

        def by_key(ours: KeySums, theirs: KeySums) -> Interval:
            return keys.numbers(ours, theirs, at, least_spread=_least_spread(base))

        found = _difference(mine, base, at, shares)
        shown = worse = replace(sides, level=at).firm(found, gate.metric, by_key, spread)
        tolerated = gate.tolerance
    return Comparison(
        worse.negated if flip else worse,
        tolerated,
        shown,
        mine.count,
        base.count,
        mine.mean,
        base.mean,
        "plain",
        bar=wanted,
    )


def _mean(sample: Moments, level: Level, shares: bool) -> Interval:
    if shares:
        return proportions.mean(Share.of(sample.sum, sample.count), level)
    return means.mean(_sample(sample), level, least_spread=_least_spread(sample))


def _difference(ours: Moments, theirs: Moments, level: Level, shares: bool) -> Interval:
    if shares:
        return proportions.difference(
            Share.of(ours.sum, ours.count), Share.of(theirs.sum, theirs.count), level, scores=True
        )
    return means.difference(_sample(ours), _sample(theirs), level, least_spread=_least_spread(theirs))


def _least_spread(sample: Moments) -> float:
    return _LEAST_SCORE_SPREAD * max(abs(sample.mean), _LEAST_SCORE_SPREAD)


def _sample(moments: Moments) -> Estimate:
    return Estimate.of(moments.count, moments.sum, moments.sum2) if moments.count > 1 else _NOTHING


def _typical(values: Distribution) -> float:
    return math.exp(min(values.mean_log, _LARGEST_LOG))


def _logs(values: Distribution) -> Estimate:
    return Estimate.of(values.count, values.sum_log, values.sum_log2) if values.count > 1 else _NOTHING


_NOTHING = Estimate(0, 0.0, 0.0)
