"""Requests by sticky key, so that a difference between keys is not taken for one between versions.

A key keeps its arm, so its requests are no independent witnesses: a tenant of long prompts is in one arm with all of
them. Keys are hashed to 64 buckets. The means of the buckets are the sample, each as heavy as any other, so one large
tenant is one voice; their own spread says how sure the mean of them is, whatever ties requests of a key together
(cluster-robust: Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986; for experiments
Deng, Lu, Qin, "The equivalence of the delta method and the cluster-robust variance estimator", 2021, arXiv
2105.14705). The intervals are those of `means` and `proportions`, with buckets in place of requests. A gate's interval
spans this one and the one over requests.

With fewer than `LEAST_KEYS` buckets the spread between them cannot be told well enough for alpha. Then an arm is judged
with `room` for what keys may differ by on their own, and does not go on unless an operator says that it may.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from services.rollout.policy import means
from services.rollout.policy.intervals import Interval, Level
from services.rollout.policy.means import Estimate

BUCKETS = 64
LEAST_KEYS = 20
"""Buckets of an arm's keys, for `alpha` to hold."""
_OWN = 1.5
"""While there are fewer than so many requests to a bucket, they are mostly one key's each: then few buckets are no sign
of few keys."""
_FEW = 8.0
"""At 10 equal buckets nearly twice as much, at 60 a seventh more: about (t/z)² at 0.001."""
_SURE = 3 * LEAST_KEYS
"""Requests after which there would be enough buckets if there were enough keys."""
SPREAD = 0.3
"""Standard deviation between keys that is allowed for: of logarithms of times and costs, and of scores."""
SHARE_SPREAD = 0.1
"""The same of shares."""


@dataclass(frozen=True, slots=True)
class KeySums:
    """Counts and sums of one metric by bucket."""

    counts: tuple[int, ...] = ()
    sums: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """Requests."""
        return sum(self.counts)

    @property
    def occupied(self) -> int:
        """Buckets with any."""
        return sum(1 for count in self.counts if count)

    @property
    def weight(self) -> float:
        """Σ(share of a bucket)²: one over the number of equal buckets that are worth as much; 0 without requests."""
        count = self.count
        return sum(each * each for each in self.counts) / (count * count) if count else 0.0

    def __add__(self, other: KeySums) -> KeySums:
        return KeySums(
            tuple(map(sum, zip(self.counts, other.counts, strict=True))),
            tuple(map(sum, zip(self.sums, other.sums, strict=True))),
        )

    def means(self) -> list[float]:
        """Of the occupied buckets."""
        return [total / count for count, total in zip(self.counts, self.sums, strict=True) if count]


ByKey = Mapping[str, KeySums]
"""Metric → sums, as in `weir.rollout.v1.ArmOutcomes.keys`."""


def few(started: KeySums) -> bool:
    """Fewer keys than a spread between them can be told from."""
    return started.occupied < LEAST_KEYS and started.count > _OWN * started.occupied


def surely_few(started: KeySums) -> bool:
    """There are few because there are no more, not because the step is young."""
    return few(started) and started.count >= _SURE


def room(spread: float, arm: KeySums, baseline: KeySums, budget: float) -> float:
    """By how much arms of so many keys may differ for no other reason than who is in them, but for a probability of at
    most exp(−budget), if keys spread no wider (Chernoff's bound of a normal tail)."""
    ways = 1.0 / max(arm.occupied, 1) + 1.0 / max(baseline.occupied, 1)
    return spread * math.sqrt(2.0 * budget * ways)


def design_effect(sums: KeySums) -> float:
    """How many requests say of a share what one would that is tied to no other (Kish, "Survey Sampling", 1965): the
    variance of the share by the jackknife over buckets, over that of as many independent requests; at least 1.

    What it exceeds 1 by is taken greater the fewer buckets it rests on: a variance from few of them is itself in doubt.
    """
    every, hits = sums.count, sum(sums.sums)
    if not 0.0 < hits < every or sums.occupied < 2:
        return 1.0
    share = hits / every
    squares = 0.0
    for count, total in zip(sums.counts, sums.sums, strict=True):
        if count:
            squares += ((total - share * count) / (1.0 - count / every)) ** 2
    ratio = (sums.occupied - 1) / sums.occupied * squares / (every * share * (1.0 - share))
    return 1.0 + max(ratio - 1.0, 0.0) * (1.0 + _FEW * sums.weight)


def numbers(arm: KeySums, baseline: KeySums, level: Level, *, least_spread: float) -> Interval:
    """By how much the arm's mean exceeds the baseline's; `least_spread`: no request's standard deviation is less."""
    return means.difference(_of_means(arm, least_spread), _of_means(baseline, least_spread), level)


def log_ratios(
    arm: tuple[KeySums, KeySums], baseline: tuple[KeySums, KeySums], level: Level, *, least_spread: float
) -> Interval:
    """Logarithm of the arm's ratio of sums over the baseline's; see `ratios`."""
    return means.difference(_of_ratio(*arm, least_spread), _of_ratio(*baseline, least_spread), level)


def _of_means(sums: KeySums, least_spread: float) -> Estimate:
    return _estimate(sums.means(), least_spread, sums.count)


def _of_ratio(above: KeySums, below: KeySums, least_spread: float) -> Estimate:
    """Its residuals by bucket, over the mean of what is above, around the logarithm of the ratio."""
    every, total, base = above.count, sum(above.sums), sum(below.sums)
    if not every or total <= 0.0 or base <= 0.0:
        return _NOTHING
    ratio, scale = total / base, total / every
    residuals = [
        (a - ratio * b) / (count * scale)
        for a, b, count in zip(above.sums, below.sums, above.counts, strict=True)
        if count
    ]
    found = _estimate(residuals, least_spread, every)
    return Estimate(found.count, found.value + math.log(ratio), found.variance)


def _estimate(values: list[float], least_spread: float, requests: int) -> Estimate:
    """`least_spread`: of a single request; the mean of a bucket's is narrower."""
    if len(values) < 2:
        return _NOTHING
    found = Estimate.of(len(values), sum(values), sum(value * value for value in values))
    least = least_spread * least_spread * len(values) / requests
    return Estimate(found.count, found.value, max(found.variance, least))


_NOTHING = Estimate(0, 0.0, 0.0)
