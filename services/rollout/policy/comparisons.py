"""An arm beside the baseline, by each kind of metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from services.rollout.policy import means, proportions, quantiles, ratios
from services.rollout.policy.evidence import ArmEvidence, CostMoments, Distribution, GoodBad, Moments, score_bounds
from services.rollout.policy.intervals import Interval, Level
from services.rollout.policy.means import Estimate
from services.rollout.policy.plan import Gate
from services.rollout.policy.proportions import Share

TAILS = {"p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}
"""Shares of values above the quantiles that gates may name."""
SPREAD_OF_LOGS = 0.05
"""Least standard deviation that logarithms of times are taken to have: nothing is timed better than to 5 percent."""
_LEAST_SCORE_SPREAD = 0.01
_LARGEST_LOG = 700.0


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
    if gate.metric == "score:shadow_logprob":
        return gate.tolerance
    return 1.0 - gate.tolerance if gate.metric.startswith("score:shadow_") else None


def lower_is_better(gate: Gate) -> bool:
    """More of this score is worse."""
    return gate.lower_is_better or gate.metric == "score:shadow_logprob"


def compare(gate: Gate, ours: ArmEvidence, theirs: ArmEvidence, level: Level) -> Comparison | None:
    """The gate's metric; None when there is no such metric."""
    metric = gate.metric
    if metric.startswith("score:"):
        return _of_score(gate, ours, theirs, level)
    if metric == "error_rate":
        return _of_shares(
            gate.tolerance, Share.of(ours.errors, ours.requests), Share.of(theirs.errors, theirs.requests), level
        )
    if metric == "stream_completion":
        return _of_completion(gate.tolerance, ours, theirs, level)
    if metric in ("cost_per_1k_tokens", "cost_per_request"):
        return _of_cost(gate.tolerance, ours.cost, theirs.cost, metric == "cost_per_1k_tokens", level)
    name, _, tail = metric.partition("_")
    if name not in ("ttft", "itl") or (tail and tail not in TAILS):
        return None
    mine, base = (ours.ttft, theirs.ttft) if name == "ttft" else (ours.itl, theirs.itl)
    return _of_times(gate.tolerance, mine, base, TAILS.get(tail, 0.0), level)


def of_objective(objective: str, ours: ArmEvidence, theirs: ArmEvidence, level: Level) -> Comparison:
    """Shares of bad events."""
    nothing = GoodBad()
    mine, base = (side.objectives.get(objective, nothing) for side in (ours, theirs))
    return _of_shares(0.0, Share.of(mine.bad, mine.good + mine.bad), Share.of(base.bad, base.good + base.bad), level)


def _of_shares(tolerated: float, ours: Share, theirs: Share, level: Level) -> Comparison:
    found = proportions.difference(ours, theirs, level)
    return Comparison(found, tolerated, found, ours.count, theirs.count, ours.estimate, theirs.estimate, "points")


def _of_completion(tolerated: float, ours: ArmEvidence, theirs: ArmEvidence, level: Level) -> Comparison:
    mine = Share.of(ours.streams - ours.completed, ours.streams)
    base = Share.of(theirs.streams - theirs.completed, theirs.streams)
    found = proportions.difference(mine, base, level)
    return Comparison(
        found, tolerated, found.negated, mine.count, base.count, 1.0 - mine.estimate, 1.0 - base.estimate, "points"
    )


def _of_times(tolerated: float, ours: Distribution, theirs: Distribution, tail: float, level: Level) -> Comparison:
    if tail:
        found = quantiles.log_ratio(ours, theirs, tail, level)
        mine, base = ours.quantile(1.0 - tail), theirs.quantile(1.0 - tail)
    else:
        found = means.difference(_logs(ours), _logs(theirs), level, least_spread=SPREAD_OF_LOGS)
        mine, base = _typical(ours), _typical(theirs)
    ratio = found.exponential
    return Comparison(ratio, tolerated, ratio, ours.count, theirs.count, mine, base, "times")


@lru_cache(maxsize=8)
def _cost_ratio(ours: CostMoments, theirs: CostMoments, per_token: bool, level: Level) -> Interval:
    return ratios.log_ratio(ours, theirs, level, per_token=per_token).exponential


def _of_cost(tolerated: float, ours: CostMoments, theirs: CostMoments, per_token: bool, level: Level) -> Comparison:
    ratio = _cost_ratio(ours, theirs, per_token, level)
    mine, base = (side.per_1k_tokens if per_token else side.per_request for side in (ours, theirs))
    same_tokens = per_token and ratios.priced_alike(ours, theirs)
    if same_tokens:
        # Beside the baseline's own cost per token, of another mix, the ratio could look wrong.
        base = mine / (1.0 + ratio.estimate) if ours.cost else base
    return Comparison(ratio, tolerated, ratio, ours.count, theirs.count, mine, base, "times", same_tokens=same_tokens)


def _of_score(gate: Gate, ours: ArmEvidence, theirs: ArmEvidence, level: Level) -> Comparison:
    metric = gate.metric.removeprefix("score:")
    nothing = Moments()
    mine, base = ours.scores.get(metric, nothing), theirs.scores.get(metric, nothing)
    wanted = bar(gate)
    flip = not lower_is_better(gate)
    at = level.flipped if flip else level
    shares = score_bounds(metric) == (0.0, 1.0)
    if wanted is not None:
        shown = _mean(mine, at, shares)
        worse = Interval(shown.estimate - wanted, shown.low - wanted, shown.high - wanted)
        tolerated = 0.0
    else:
        shown = worse = _difference(mine, base, at, shares)
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
