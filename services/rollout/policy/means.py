"""Means of numbers whose spread is not known: logarithms of times, costs per token, scores without bounds.

The e-process of the guess "the arm's mean exceeds the baseline's by μ" is the anytime-valid t-test: a Bayes factor that
takes level and scale as unknown (right Haar prior) and the effect as normal, N(0, 1/c²) standard deviations (Lai, "On
confidence sequences", 1976; Pérez-Ortiz, Lardy, de Heide, Grünwald, "E-statistics, group invariance and anytime-valid
testing", 2022, arXiv 2208.07610; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means
with unknown variance", 2023, arXiv 2310.03722). With t the two-sample statistic of that guess on ν = n + m − 2 degrees
of freedom, and e = nm/(n+m):

    log E = ½ log(c²/(e+c²)) − (ν+1)/2 · log(1 − e/(e+c²) · t²/(ν+t²))

Each end of the interval looks in one direction only: all of the prior lies there, so E counts twice.

It is exact for normal numbers while the arm is like the baseline, which is what a false alarm is about. Like any t-test
it is nearly so for others, the better the more there are (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, "Time-uniform
central limit theory and asymptotic confidence sequences", 2021, arXiv 2103.06476). To be safe with few samples, the
standard error takes for each arm the greater of its own variance and that of both together: few samples that happen to
be alike do not look certain, and one wild value widens the interval that it moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.rollout.policy.intervals import NOTHING, Interval, Level

C2 = 1.0
"""c²: effects of about one standard deviation, found soonest within some tens of samples."""
_ONE_SIDED = math.log(2.0 * 0.998)
"""What a half-normal prior wins over a normal one, where t is 3 or more."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, or what behaves like one."""

    count: int
    value: float
    variance: float
    """Of what one sample contributes."""

    @classmethod
    def of(cls, count: int, total: float, squares: float) -> Estimate:
        """From count, sum and sum of squares; of at least two."""
        around = max(squares - total * total / count, 0.0)
        return cls(count, total / count, around / (count - 1))


def difference(arm: Estimate, baseline: Estimate, level: Level, *, least_spread: float = 0.0) -> Interval:
    """By how much the arm's exceeds the baseline's. `least_spread`: no standard deviation is taken as smaller."""
    n, m = float(arm.count), float(baseline.count)
    if min(n, m) < 2.0:
        return NOTHING
    freedom = n + m - 2.0
    together = ((n - 1.0) * arm.variance + (m - 1.0) * baseline.variance) / freedom
    least = max(together, least_spread * least_spread)
    error = math.sqrt(max(arm.variance, least) / n + max(baseline.variance, least) / m)
    return _around(arm.value - baseline.value, error, n * m / (n + m), freedom, level)


def mean(sample: Estimate, level: Level, *, least_spread: float = 0.0) -> Interval:
    """Of the mean itself."""
    n = float(sample.count)
    if n < 2.0:
        return NOTHING
    error = math.sqrt(max(sample.variance, least_spread * least_spread) / n)
    return _around(sample.value, error, n, n - 1.0, level)


def _around(value: float, error: float, effective: float, freedom: float, level: Level) -> Interval:
    below = error * _standard_errors(effective, freedom, level.low)
    return Interval(value, value - below, value + error * _standard_errors(effective, freedom, level.high))


def _standard_errors(effective: float, freedom: float, budget: float) -> float:
    """The t at which log E reaches the budget; infinite while no t can."""
    wider = effective + C2
    paid = max(budget - _ONE_SIDED, 0.0) + 0.5 * math.log(wider / C2)
    used = -math.expm1(-2.0 * paid / (freedom + 1.0)) * wider
    return math.sqrt(freedom * used / (effective - used)) if used < effective else math.inf
