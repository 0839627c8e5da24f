"""Ratios of sums: cost per token, cost per request.

If R is the true ratio of mean cost to mean tokens, the residuals z = cost − R·tokens have the mean 0, whatever cost and
tokens have to do with each other. So the guess R is tested by the t-test of `means` on its own residuals, whose sums
follow from the moments of cost and tokens:

    Σz = C − R·T,   Σz² = C2 − 2R·CT + R²·T2,   log E(R) = ½ log(c²/(n+c²)) − n/2 · log(1 − (Σz)²/((n+c²)·Σz²))

The R that are not ruled out lie between the roots of a quadratic (Fieller, "Some problems in interval estimation",
1954); to first order that is the delta method. Where each token costs the same, all residuals are 0 and the ratio is
known as soon as there are enough requests; a spread of 1 percent of the mean cost is assumed even then.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from services.rollout.policy.evidence import CostMoments
from services.rollout.policy.intervals import NOTHING, Interval, Level, farthest
from services.rollout.policy.means import C2_ARM, C2_BASELINE

LEAST_SPREAD = 0.01
"""Least standard deviation of the residuals, as a share of the mean cost."""


def log_ratio(arm: CostMoments, baseline: CostMoments, level: Level, *, per_token: bool = True) -> Interval:
    """Logarithm of the arm's cost per token (or per request) over the baseline's."""
    if min(arm.count, baseline.count) < 2 or min(arm.cost, baseline.cost) <= 0.0:
        return NOTHING
    if per_token and min(arm.tokens, baseline.tokens) <= 0.0:
        return NOTHING
    ours, theirs = _Ratio(arm, C2_ARM, per_token), _Ratio(baseline, C2_BASELINE, per_token)
    apart = ours.log_estimate - theirs.log_estimate
    paid = ours.paid + theirs.paid
    return Interval(
        apart,
        apart - farthest(ours.below, theirs.above, level.low + paid),
        apart + farthest(ours.above, theirs.below, level.high + paid),
    )


class _Ratio:
    """One arm's ratio."""

    def __init__(self, moments: CostMoments, c2: float, per_token: bool) -> None:
        n = float(moments.count)
        self._n, self._wider = n, n + c2
        self._cost = moments.cost
        self._tokens, self._tokens2, self._both = n, n, moments.cost
        if per_token:
            self._tokens, self._tokens2, self._both = moments.tokens, moments.tokens2, moments.cost_tokens
        self._cost2 = moments.cost2 + n * (LEAST_SPREAD * moments.cost / n) ** 2
        self.log_estimate = math.log(moments.cost / self._tokens)
        self.paid = 0.5 * math.log(self._wider / c2)
        self.below: Callable[[float], float] = self._below
        self.above: Callable[[float], float] = self._above

    def _below(self, excess: float) -> float:
        """How far under the estimate, in logarithms, the ratio may lie while log E grows by at most `excess`."""
        root = self._root(excess, -1.0)
        return self.log_estimate - math.log(root) if root > 0.0 else math.inf

    def _above(self, excess: float) -> float:
        root = self._root(excess, 1.0)
        return math.log(root) - self.log_estimate if root < math.inf else math.inf

    def _root(self, excess: float, side: float) -> float:
        # (C − R·T)² = w·(C2 − 2R·CT + R²·T2)
        w = -math.expm1(-2.0 * excess / self._n) * self._wider
        square = self._tokens * self._tokens - w * self._tokens2
        half = self._cost * self._tokens - w * self._both
        constant = self._cost * self._cost - w * self._cost2
        if square <= 0.0 or half <= 0.0:
            return math.inf if side > 0.0 else 0.0
        inner = math.sqrt(max(half * half - square * constant, 0.0))
        return (half + side * inner) / square
