"""Confidence intervals: the sets that their e-processes leave over, and no division by what may be 0."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.policy import CostMoments, Distribution, means, proportions, quantiles, ratios
from services.rollout.policy.intervals import NOTHING, Interval, Level
from services.rollout.policy.means import Estimate
from services.rollout.policy.proportions import RARE, SUSPECT, Share

LEVEL = Level.of(1e-3, 1e-2)


@st.composite
def shares(draw: st.DrawFn) -> Share:
    count = draw(st.integers(1, 2000))
    return Share(draw(st.one_of(st.just(0), st.just(count), st.integers(0, count))), count)


def likelihood(share: Share, p: float) -> float:
    said = share.hits * math.log(p) if share.hits else 0.0
    left = share.count - share.hits
    return said + (left * math.log1p(-p) if left else 0.0)


@given(shares(), shares(), st.floats(1e-9, 1 - 1e-9), st.floats(1e-9, 1 - 1e-9))
def test_whatever_is_as_likely_as_allowed_lies_in_the_interval(arm: Share, base: Share, p: float, q: float) -> None:
    found = proportions.difference(arm, base, LEVEL)
    here = likelihood(arm, p) + likelihood(base, q)
    mixed = RARE.log_mixture(base.hits, base.count)
    if mixed + SUSPECT.log_mixture(arm.hits, arm.count) - here < LEVEL.low:
        assert found.low <= p - q + 1e-6
    if mixed + RARE.log_mixture(arm.hits, arm.count) - here < LEVEL.high:
        assert found.high >= p - q - 1e-6
    assert -1.0 <= found.low <= found.estimate + 1e-9
    assert found.estimate - 1e-9 <= found.high <= 1.0


@given(shares(), shares())
def test_the_ends_of_the_interval_are_as_likely_as_allowed(arm: Share, base: Share) -> None:
    # No pair with a difference below the lower end is likely enough: looked for on a grid.
    found = proportions.difference(arm, base, LEVEL)
    least = SUSPECT.log_mixture(arm.hits, arm.count) + RARE.log_mixture(base.hits, base.count) - LEVEL.low
    for q in np.linspace(0.001, 0.999, 60):
        p = q + found.low - 0.002
        if 0.0 < p < 1.0:
            assert likelihood(arm, p) + likelihood(base, float(q)) < least + 1e-6


@given(shares())
def test_more_confidence_makes_wider_intervals(arm: Share) -> None:
    base = Share(5, 500)
    narrow, wide = (proportions.difference(arm, base, Level.of(a, a)) for a in (0.05, 0.0005))
    assert wide.low <= narrow.low + 1e-6
    assert narrow.high <= wide.high + 1e-6


def test_errors_of_a_bad_canary_are_sure_after_some_twenty_requests() -> None:
    level = Level.of(1.25e-3, 1e-2)
    assert proportions.difference(Share(5, 15), Share(0, 135), level).low > 0.01
    assert proportions.difference(Share(10, 10), Share(1, 90), level).low > 0.3
    assert proportions.difference(Share(1, 10), Share(0, 90), level).low < 0.0


@pytest.mark.parametrize("count", [10, 10**6, 10**9])
def test_great_counts_lose_nothing_to_rounding(count: int) -> None:
    for hits in (0, 1, count - 1, count):
        found = proportions.difference(Share(hits, count), Share(2, 1_000_000_000), LEVEL)
        assert found.low <= found.estimate <= found.high
        assert found.high - found.low < 30.0 / count**0.5


def test_sums_that_no_counting_gives_are_brought_within_the_count() -> None:
    assert [Share.of(hits, 10).hits for hits in (-3.0, 1e-200, 4.5, 10.0 - 1e-12, 99.0)] == [0.0, 0.0, 4.5, 10.0, 10.0]


def test_a_share_lies_within_its_own_interval() -> None:
    found = proportions.mean(Share(95.0, 100), LEVEL)
    assert 0.75 < found.low < 0.95 < found.high < 1.0
    assert proportions.mean(Share(0.0, 100), LEVEL).low == 0.0
    assert proportions.mean(Share(100.0, 100), LEVEL).high == 1.0


def test_without_samples_nothing_is_known() -> None:
    nobody = Distribution()
    assert proportions.difference(Share(0, 0), Share(1, 9), LEVEL) == NOTHING
    assert proportions.mean(Share(0, 0), LEVEL) == NOTHING
    assert means.difference(Estimate(1, 1.0, 0.0), Estimate(50, 1.0, 1.0), LEVEL) == NOTHING
    assert means.mean(Estimate(1, 1.0, 0.0), LEVEL) == NOTHING
    assert quantiles.log_ratio(nobody, Distribution.of([1.0]), 0.05, LEVEL) == NOTHING
    assert ratios.log_ratio(CostMoments(), CostMoments.of([(1.0, 1.0)] * 9), LEVEL) == NOTHING
    assert ratios.log_ratio(CostMoments.of([(0.0, 1.0)] * 9), CostMoments.of([(1.0, 1.0)] * 9), LEVEL) == NOTHING


@given(st.floats(-5, 5), st.floats(0.01, 3), st.integers(2, 500), st.integers(2, 5000))
def test_means_move_with_their_samples(shift: float, scale: float, n: int, m: int) -> None:
    arm, base = Estimate(n, 0.3, 1.0), Estimate(m, 0.1, 1.2)
    plain = means.difference(arm, base, LEVEL)
    moved = means.difference(
        Estimate(n, scale * 0.3 + shift, scale * scale), Estimate(m, scale * 0.1 + shift, 1.2 * scale * scale), LEVEL
    )
    assert moved.low == pytest.approx(scale * plain.low, abs=1e-6)
    assert moved.high == pytest.approx(scale * plain.high, abs=1e-6)


def test_the_end_of_a_mean_is_where_its_e_process_reaches_the_level() -> None:
    n, m, spread = 30, 270, 0.7
    found = means.difference(Estimate(n, 0.0, spread**2), Estimate(m, 0.0, spread**2), LEVEL)
    effective, freedom = n * m / (n + m), n + m - 2
    t = found.high / (spread * math.sqrt(1 / n + 1 / m))
    bent = 1.0 - effective / (effective + means.C2) * t * t / (freedom + t * t)
    log_e = 0.5 * math.log(means.C2 / (effective + means.C2)) - (freedom + 1) / 2 * math.log(bent)
    assert log_e + math.log(2 * 0.998) == pytest.approx(LEVEL.high)
    assert t > 2.5  # further out than one look at 1 percent would need


def test_equal_values_are_taken_to_have_a_spread() -> None:
    arm, base = Estimate(10, 1.0, 0.0), Estimate(90, 1.0, 0.0)
    assert means.difference(arm, base, LEVEL).low == 1.0 - 1.0
    found = means.difference(arm, base, LEVEL, least_spread=0.05)
    assert -0.2 < found.low < -0.03
    # Ten equal values beside ninety that differ: their own variance of 0 is not believed.
    assert means.difference(arm, Estimate(90, 1.0, 1.0), LEVEL).low < -0.8


def test_cost_with_the_same_price_for_every_token_is_known_at_once() -> None:
    rng = np.random.default_rng(4)
    tokens = rng.integers(10, 3000, 100).astype(float)
    arm = CostMoments.of((1.03 * count, count) for count in tokens[:20])
    base = CostMoments.of((count, count) for count in tokens)
    found = ratios.log_ratio(arm, base, LEVEL)
    assert found.estimate == pytest.approx(math.log(1.03))
    assert 0.01 < found.low < found.high < 0.05
    # Per request the spread of the lengths counts.
    assert ratios.log_ratio(arm, base, LEVEL, per_token=False).low < -0.2


@given(st.integers(1, 400), st.integers(1, 400), st.sampled_from([0.5, 0.1, 0.05, 0.01]), st.integers(0, 10_000))
def test_intervals_of_quantiles_hold_their_estimate(n: int, m: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arm, base = (Distribution.of(np.exp(rng.normal(0.0, 0.6, count)).tolist()) for count in (n, m))
    found = quantiles.log_ratio(arm, base, share, LEVEL)
    assert found.low <= found.estimate <= found.high
    opposite = quantiles.log_ratio(base, arm, share, LEVEL.flipped)
    assert found.low == pytest.approx(-opposite.high)


def test_upper_quantiles_need_their_samples_and_then_are_sure() -> None:
    rng = np.random.default_rng(4)
    values = np.exp(rng.normal(0.0, 0.5, 30_000))
    base, few = Distribution.of(values.tolist()), Distribution.of(values[:100].tolist())
    slow = Distribution.of((3.0 * values[:40]).tolist())
    assert quantiles.log_ratio(slow, base, 0.05, LEVEL).low > math.log(1.25)
    assert quantiles.log_ratio(slow, few, 0.01, LEVEL).low == -math.inf
    same = quantiles.log_ratio(Distribution.of(values[:3000].tolist()), base, 0.01, LEVEL)
    assert -0.3 < same.low < 0.0 < same.high < 0.3


def test_a_reference_cost_takes_the_mix_of_tokens_out_of_a_price() -> None:
    rng = np.random.default_rng(3)

    def arm(factor: float, count: int) -> CostMoments:
        tokens = rng.integers(10, 2000, (count, 2))
        references = [float(prompt + 4 * output) for prompt, output in tokens]
        return CostMoments.of(
            ((factor * reference, float(sum(pair))) for reference, pair in zip(references, tokens, strict=True)),
            references,
        )

    same, dearer = arm(1.0, 200), arm(1.03, 20)
    found = ratios.log_ratio(dearer, same, LEVEL)
    assert found.estimate == pytest.approx(math.log(1.03))
    assert found.low > math.log(1.01)
    # Without it, twenty requests of such different mixes say nothing.
    unknown = replace(dearer, reference=0.0)
    assert ratios.log_ratio(unknown, same, LEVEL).low < 0.0


def test_what_is_free_on_both_sides_costs_the_same() -> None:
    free, dear = CostMoments.of([(0.0, 50.0)] * 30), CostMoments.of([(2.0, 50.0)] * 30)
    assert ratios.log_ratio(free, free, LEVEL) == Interval(0.0, 0.0, 0.0)
    # A price on one side alone is no ratio: nothing is shown, and what must be shown holds the rollout.
    assert ratios.log_ratio(dear, free, LEVEL) == NOTHING
