"""Ratios of sums: cost per token, cost per request.

If R is the ratio of mean cost to mean tokens, the residuals z = cost − R·tokens have the mean 0, whatever cost and
tokens have to do with each other, and log R̂ moves with each request by z over the mean cost (the delta method, or
linearisation: Deng, Knoblich, Lu, "Applying the delta method in metric analytics", 2018, arXiv 1803.06336). So the
logarithm of a ratio of sums behaves like a mean with the variance of those contributions, which follows from moments:

    Σz² = C2 − 2R̂·CT + R̂²·T2

and two of them are compared by the t-test of `means`.

Cost per token hangs on the mix of prompt and output tokens, whose prices differ, and that mix varies more from request
to request than prices do from version to version. Where it is known what each request's tokens would have cost on the
baseline, that takes the place of the tokens (a price index at the requests' own weights: Laspeyres): the mix cancels,
and a difference of three percent shows in tens of requests instead of thousands. An arm that is dearer because it says
more is a matter of cost per request.

Where each token costs the same all residuals are 0; then a
spread of 1 percent of the mean cost is assumed, and the gate still waits for its least number of samples.
"""

from __future__ import annotations

import math

from services.rollout.policy import means
from services.rollout.policy.evidence import CostMoments
from services.rollout.policy.intervals import NOTHING, Interval, Level
from services.rollout.policy.means import Estimate

LEAST_SPREAD = 0.01
"""Least standard deviation of what a request contributes."""

_LEAST_COST = 1e-9  # micro-dollars in all: less is nothing


def log_ratio(arm: CostMoments, baseline: CostMoments, level: Level, *, per_token: bool = True) -> Interval:
    """Logarithm of the arm's cost per token (or per request) over the baseline's. What is free on both sides is equally
    dear: without this, a mesh without prices could not show that a candidate costs no more."""
    if arm.count and baseline.count and arm.cost < _LEAST_COST and baseline.cost < _LEAST_COST:
        return Interval(0.0, 0.0, 0.0)
    if per_token and priced_alike(arm, baseline):
        ours, theirs = _at_reference(arm), _at_reference(baseline)
    else:
        ours, theirs = _estimate(arm, per_token), _estimate(baseline, per_token)
    if ours is None or theirs is None:
        return NOTHING
    return means.difference(ours, theirs, level, least_spread=LEAST_SPREAD)


def priced_alike(arm: CostMoments, baseline: CostMoments) -> bool:
    """Both are compared with what their own tokens would have cost on the baseline."""
    return arm.reference > _LEAST_COST and baseline.reference > _LEAST_COST


def _estimate(moments: CostMoments, per_token: bool) -> Estimate | None:
    tokens = moments.tokens if per_token else float(moments.count)
    if moments.count < 2 or moments.cost < _LEAST_COST or tokens < 1.0:
        return None
    ratio = moments.cost / tokens
    if per_token:
        return _linearised(moments, ratio, moments.cost_tokens, moments.tokens2)
    return _linearised(moments, ratio, moments.cost, float(moments.count))


def _at_reference(moments: CostMoments) -> Estimate | None:
    if moments.count < 2 or moments.cost < _LEAST_COST:
        return None
    return _linearised(moments, moments.cost / moments.reference, moments.cost_reference, moments.reference2)


def _linearised(moments: CostMoments, ratio: float, products: float, squares_below: float) -> Estimate:
    """Of a ratio of the sum of costs to another sum, with the sums of products and of squares of what is below."""
    squares = moments.cost2 - 2.0 * ratio * products + ratio * ratio * squares_below
    mean_cost = moments.cost / moments.count
    variance = max(squares, 0.0) / (moments.count - 1) / (mean_cost * mean_cost)
    return Estimate(moments.count, math.log(ratio), variance)
