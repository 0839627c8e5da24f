"""Upper quantiles of times: the arm's against the baseline's own.

If y is the true quantile of an arm, a request exceeds y with the known probability s (0.05 for the 95th percentile), so
how many did is a binomial number: the e-process of the guess y is that of `proportions` for the guess s about the share
over y, as in Howard and Ramdas, "Sequential estimation of quantiles with applications to A/B testing and best-arm
identification" (2022, arXiv 1906.09712). Nothing is assumed about the distribution. Over all y it costs nothing extra:
only the true one has to survive. Between the edges of the distribution's bins log E is taken as linear in log y.

A quantile s from the top can be bounded from above only by about log(1/alpha)/s samples: some 200 for the 95th
percentile, 1,000 for the 99th.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from services.rollout.policy.evidence import Distribution
from services.rollout.policy.intervals import NOTHING, Interval, Level
from services.rollout.policy.proportions import Prior

_Rim = list[tuple[float, float]]
"""(log E, log y), from the estimate outwards, log E growing; the last one's y is infinite where it ends."""


def log_ratio(arm: Distribution, baseline: Distribution, share: float, level: Level) -> Interval:
    """Logarithm of the arm's quantile over the baseline's; `share` of values lie above it."""
    if not arm.count or not baseline.count:
        return NOTHING
    ours, theirs = _Quantile(arm, share), _Quantile(baseline, share)
    apart = ours.log_estimate - theirs.log_estimate
    return Interval(
        apart,
        apart - _apart(ours, theirs, level.low),
        apart + _apart(theirs, ours, level.high),
    )


def _apart(lower: _Quantile, upper: _Quantile, budget: float) -> float:
    """How far, together, one quantile may lie under its estimate and the other above its own."""
    down = lower.below(budget - upper.least)
    up = upper.above(budget - lower.least)
    widest = 0.0
    for spent, off in down:
        widest = max(widest, off + _at(up, budget - spent))
    for spent, off in up:
        widest = max(widest, off + _at(down, budget - spent))
    return widest


def _at(rim: _Rim, budget: float) -> float:
    """How far off the estimate may be for this much; −inf where that does not reach even the estimate."""
    before, place = rim[0]
    if budget < before:
        return -math.inf
    for spent, off in rim:
        if spent > budget:
            return place if off == math.inf else place + (off - place) * (budget - before) / (spent - before)
        before, place = spent, off
    return place


class _Quantile:
    """One arm's quantile."""

    def __init__(self, values: Distribution, share: float) -> None:
        self._edges, self._above = values.edges()
        self._count = values.count
        self._share = share
        self._hit, self._miss = math.log(share), math.log1p(-share)
        self._prior = Prior((0.5, 0.5 * (1.0 - share) / share))
        self.log_estimate = math.log(values.quantile(1.0 - share))
        self.least = self._log_e(share * self._count)
        """log E at the estimate."""

    def _log_e(self, hits: float) -> float:
        spread = hits * self._hit + (self._count - hits) * self._miss
        return self._prior.log_mixture(hits, self._count) - spread

    def below(self, budget: float) -> _Rim:
        """How far below the estimate the quantile may lie, against log E, until that exceeds `budget`."""
        pairs = zip(reversed(self._edges), reversed(self._above), strict=True)
        return self._rim(((self.log_estimate - edge, above) for edge, above in pairs), budget)

    def above(self, budget: float) -> _Rim:
        """How far above."""
        pairs = zip(self._edges, self._above, strict=True)
        return self._rim(((edge - self.log_estimate, above) for edge, above in pairs), budget)

    def _rim(self, places: Iterable[tuple[float, int]], budget: float) -> _Rim:
        rim = [(self.least, 0.0)]
        for off, above in places:
            if off <= 0.0:
                continue
            spent = max(self._log_e(float(above)), rim[-1][0])
            rim.append((spent, off))
            if spent > budget:
                return rim
        rim.append((rim[-1][0], math.inf))
        return rim
