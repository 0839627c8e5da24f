"""Shares of requests, and means of scores between 0 and 1.

The e-process of the guess p is a mixture of likelihood ratios (Robbins, "Statistical methods related to the law of the
iterated logarithm", 1970; Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence
sequences", 2021, arXiv 1810.08240):

    E(p) = ∫ q^k (1−q)^(n−k) dπ(q) / p^k (1−p)^(n−k)

with π a mixture of Beta distributions. It needs no independence of the order, no normality and no least count, and it
holds for any numbers in [0, 1] with mean p, k being their sum: by convexity (q/p)^x ((1−q)/(1−p))^(1−x) is at most
x·q/p + (1−x)(1−q)/(1−p), whose mean is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.rollout.policy.intervals import NOTHING, Interval, Level


@dataclass(frozen=True, slots=True)
class Prior:
    """An even mixture of Beta(½, b)."""

    parts: tuple[float, ...]
    """Each part's b."""

    def log_mixture(self, hits: float, count: float) -> float:
        """log ∫ q^hits (1−q)^(count−hits) dπ(q)."""
        left = math.lgamma(hits + 0.5) - _LGAMMA_HALF
        misses = count - hits
        terms = [
            left + math.lgamma(misses + b) - math.lgamma(count + b + 0.5) + math.lgamma(b + 0.5) - math.lgamma(b)
            for b in self.parts
        ]
        top = max(terms)
        return top + math.log(sum(math.exp(term - top) for term in terms) / len(terms))


_LGAMMA_HALF = math.lgamma(0.5)
RARE = Prior((0.5, 5.0, 50.0, 500.0))
"""For failures: any share may be, small ones are likely."""
SUSPECT = Prior((0.5, 5.0))
"""For failures of an arm that is worse: then it has many."""
EVEN = Prior((0.5,))
"""For scores: Jeffreys' prior."""
_NEXT, _NEXT_SHARE = 1e-6, 1e-12
_STEPS = 60
_CLOSE = 1e-6
_STRIDE = 8.0


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many; or a sum of numbers in [0, 1]."""

    hits: float
    count: float

    @property
    def estimate(self) -> float:
        """The share; 0 of nothing."""
        return self.hits / self.count if self.count else 0.0

    @classmethod
    def of(cls, hits: float, count: float) -> Share:
        """With hits that are within the count, whatever a report says, and none or all where they are next to it."""
        close = max(_NEXT, _NEXT_SHARE * count)
        return cls(0.0 if hits < close else count if hits > count - close else hits, count)

    def thinned(self, effect: float) -> Share:
        """As if only one of so many requests were known."""
        return Share(self.hits / effect, self.count / effect)

    def flipped(self) -> Share:
        """Of what did not hit."""
        return Share(self.count - self.hits, self.count)


def difference(arm: Share, baseline: Share, level: Level, *, scores: bool = False) -> Interval:
    """By how much the arm's share exceeds the baseline's. `scores`: sums of numbers in [0, 1], not failures."""
    if not arm.count or not baseline.count:
        return NOTHING
    often, usual = (EVEN, EVEN) if scores else (SUSPECT, RARE)
    theirs = usual.log_mixture(baseline.hits, baseline.count)
    return Interval(
        arm.estimate - baseline.estimate,
        _least(arm, baseline, often.log_mixture(arm.hits, arm.count) + theirs - level.low),
        -_least(baseline, arm, usual.log_mixture(arm.hits, arm.count) + theirs - level.high),
    )


def at_least(arm: Share, baseline: Share, budget: float) -> float:
    """The lower end of `difference` of failures, alone; −inf when nothing is known."""
    if not arm.count or not baseline.count:
        return -math.inf
    mixed = SUSPECT.log_mixture(arm.hits, arm.count) + RARE.log_mixture(baseline.hits, baseline.count)
    return _least(arm, baseline, mixed - budget)


def at_most(arm: Share, baseline: Share, budget: float) -> float:
    """The upper end."""
    if not arm.count or not baseline.count:
        return math.inf
    mixed = RARE.log_mixture(arm.hits, arm.count) + RARE.log_mixture(baseline.hits, baseline.count)
    return -_least(baseline, arm, mixed - budget)


def mean(sample: Share, level: Level) -> Interval:
    """Of the share itself."""
    if not sample.count:
        return NOTHING
    mixed = EVEN.log_mixture(sample.hits, sample.count)
    nothing = Share(0.0, 0)
    return Interval(
        sample.estimate,
        1.0 + _least(sample, nothing, mixed - level.low),
        -_least(sample.flipped(), nothing, mixed - level.high),
    )


def _least(one: Share, other: Share, least_likelihood: float) -> float:
    """The least p − q of which log L_one(p) + log L_other(q) is at least `least_likelihood`.

    The pairs form a convex set, since both are concave, so on its rim the slopes are s and −s, which gives p and q in
    closed form for each s > 0; s is found by Newton's steps on its logarithm, kept between bounds.
    """
    k, n = one.hits, float(one.count)
    j, m = other.count - other.hits, float(other.count)
    misses, hits = n - k, m - j
    if k == 0.0 and j == 0.0:
        return -1.0  # p = 0 and q = 1 are as likely as can be
    log, sqrt, low, high = math.log, math.sqrt, 0.0, math.inf
    s = sqrt(n + m)
    for _ in range(_STEPS):
        p = 2.0 * k / (n + s + sqrt((n - s) ** 2 + 4.0 * s * misses))
        r = 2.0 * j / (m + s + sqrt((m - s) ** 2 + 4.0 * s * hits))  # 1 − q
        gap, bend = -least_likelihood, 0.0  # bend: how fast p − q falls as s grows
        if k > 0.0:
            gap += k * log(p)
        if j > 0.0:
            gap += j * log(r)
        if misses > 0.0:
            gap += misses * log(1.0 - p)
        if hits > 0.0:
            gap += hits * log(1.0 - r)
        if 0.0 < p < 1.0:
            bend += 1.0 / (k / (p * p) + misses / ((1.0 - p) ** 2))
        if 0.0 < r < 1.0:
            bend += 1.0 / (j / (r * r) + hits / ((1.0 - r) ** 2))
        if abs(gap) < _CLOSE:
            break
        low, high = (s, high) if gap > 0.0 else (low, s)
        s *= math.exp(min(max(gap / (s * s * bend), -2.0), 2.0)) if bend else _STRIDE
        if not low < s < high:
            s = sqrt(low * high) if low > 0.0 else 0.5 * high
    return p + r - 1.0
