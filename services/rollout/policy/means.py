"""Means of numbers whose spread is not known: logarithms of times, and scores without bounds.

The e-process of the guess "the mean is μ" is the anytime-valid t-test: a Bayes factor that takes the scale as unknown
(right Haar prior) and the effect size as N(0, 1/c²) (Lai, "On confidence sequences", 1976; Wang and Ramdas,
"Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", 2023, arXiv 2310.03722):

    log E(μ) = ½ log(c²/(n+c²)) − n/2 · log(1 − n²d²/((n+c²)(V+n·d²))),   d = mean − μ,  V = Σ(x − mean)²

It holds for few samples of normal numbers, however large their spread, and like any t-test nearly so for others, the
better the more there are (asymptotic confidence sequences: Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, 2021, arXiv
2103.06476). Times to the first token are near to lognormal, so it is their logarithms that are compared, which gives
the ratio of geometric means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from services.rollout.policy.intervals import NOTHING, Interval, Level, farthest

C2_ARM = 1.0
"""c² of the arm under test: narrowest for a few tens of samples."""
C2_BASELINE = 5.0
"""c² of the baseline, which has several times as many."""
SPREAD_OF_LOGS = 0.05
"""Least standard deviation that logarithms of times are taken to have: nothing is measured better than to 5 percent."""
_SHARED = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """Count, sum and sum of squares."""

    count: int
    sum: float
    sum2: float

    @property
    def mean(self) -> float:
        """Of at least one."""
        return self.sum / self.count

    @property
    def squares(self) -> float:
        """Σ(x − mean)²."""
        return max(self.sum2 - self.sum * self.sum / self.count, 0.0)


def difference(arm: Sample, baseline: Sample, level: Level, *, least_spread: float = 0.0) -> Interval:
    """By how much the arm's mean exceeds the baseline's.

    `least_spread`: no standard deviation is taken as smaller than this, nor as smaller than half of what both samples
    have together: ten equal values are no proof that the eleventh is equal.
    """
    if arm.count < 2 or baseline.count < 2:
        return NOTHING
    together = (arm.squares + baseline.squares) / (arm.count + baseline.count)
    variance = max(least_spread * least_spread, _SHARED * together)
    apart = arm.mean - baseline.mean
    if together == 0.0 and variance == 0.0:
        return Interval(apart, apart, apart)
    ours = _reach(arm, variance, C2_ARM)
    theirs = _reach(baseline, variance, C2_BASELINE)
    paid = _paid(arm.count, C2_ARM) + _paid(baseline.count, C2_BASELINE)
    return Interval(
        apart,
        apart - farthest(ours, theirs, level.low + paid),
        apart + farthest(ours, theirs, level.high + paid),
    )


def mean(sample: Sample, level: Level, *, least_spread: float = 0.0) -> Interval:
    """Of the mean itself."""
    if sample.count < 2:
        return NOTHING
    reach = _reach(sample, least_spread * least_spread, C2_ARM)
    paid = _paid(sample.count, C2_ARM)
    middle = sample.mean
    return Interval(middle, middle - reach(level.low + paid), middle + reach(level.high + paid))


def _paid(count: int, c2: float) -> float:
    """What mixing costs: −log E at the sample's own mean."""
    return 0.5 * math.log((count + c2) / c2)


def _reach(sample: Sample, variance: float, c2: float) -> Callable[[float], float]:
    """How far the mean may be off while log E grows by at most x over its least."""
    n = float(sample.count)
    wider = n + c2
    spread = wider * max(sample.squares, n * variance) / n

    def reach(excess: float) -> float:
        used = -math.expm1(-2.0 * excess / n)
        left = n - used * wider
        return math.sqrt(used * spread / left) if left > 0.0 else math.inf

    return reach
