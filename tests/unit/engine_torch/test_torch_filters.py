"""Top-k, top-p and min-p against their definitions, word by word; draws never pick what was cut."""

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.worker.engines.torch_engine import filters

# Few different weights, so that many are equal; the least ones below float32's normal range.
WEIGHTS = st.lists(
    st.sampled_from([0.0, 1e-40, 1e-9, 0.001, 0.01, 0.25, 0.5, 0.999, 1.0]) | st.floats(0, 1, width=32),
    min_size=1,
    max_size=40,
).filter(any)


def kept_by_definition(weights, k, p, min_p):
    """Indices that stay. A comparison too close for floats to decide makes the example useless."""
    exact = [Fraction(each) for each in weights]
    ranked = {i for i, each in enumerate(exact) if not k or sum(other > each for other in exact) < k}
    mass = sum(exact[i] for i in ranked)
    stay = set()
    for i in ranked:
        above = sum(exact[j] for j in ranked if exact[j] > exact[i])
        bound = Fraction(p) * mass
        assume(abs(above - bound) > bound * Fraction(1, 10**6) or above == 0)
        least = Fraction(min_p) * max(exact)
        assume(abs(exact[i] - least) > least * Fraction(1, 10**6) or least == 0 or min_p == 1)
        if (p >= 1 or above < bound) and exact[i] >= least:
            stay.add(i)
    return stay


def as_rows(weights, count=2):
    return torch.tensor([weights] * count, dtype=torch.float32)


@pytest.mark.parametrize("way", ["topk", "counting", "sorting"])
@settings(deadline=None, max_examples=150)
@given(
    weights=WEIGHTS,
    k=st.integers(0, 45),
    p=st.sampled_from([1e-6, 0.3, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_the_filters_keep_exactly_what_their_definitions_say(way, weights, k, p, min_p):
    weights = as_rows(weights)[0].tolist()
    expected = kept_by_definition(weights, k, p, min_p)
    with pytest.MonkeyPatch.context() as patch:
        if way == "counting":
            patch.setattr(filters, "_FEW", 0)
        elif way == "sorting":  # as on a GPU
            patch.setattr(filters, "_reach", filters._reach_by_sorting)
        # The second row has no filter: each row has its own floor.
        least = filters.floors(as_rows(weights), [k, 0], [p, 1.0], [min_p, 0.0])
    kept = filters.cut(as_rows(weights), least)
    # What weighs nothing may stay in name: it is never drawn.
    assert {i for i in expected if weights[i]} == set(kept[0].nonzero().flatten().tolist())
    assert kept[1].tolist() == weights


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_counting_and_sorting_agree_on_a_large_vocabulary(spread):
    weights = torch.softmax(torch.randn(4, 3001, generator=torch.Generator().manual_seed(1)) * spread, dim=-1)
    for need, counted in ((700.0, True), (3001.0, True), (0.37, False), (0.9999, False)):
        needs = torch.full((4, 1), need, dtype=torch.float64)
        counting = filters._reach_by_counting(weights.numpy(), needs.numpy(), counted=counted)
        assert counting.tolist() == filters._reach_by_sorting(weights, needs, counted=counted).tolist()


@settings(deadline=None, max_examples=100)
@given(weights=WEIGHTS, repeats=st.integers(1, 12), number=st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_first_whose_running_sum_passes_the_number(weights, repeats, number):
    row = as_rows(weights * repeats, 1)
    picked = filters.pick(row, torch.tensor([number], dtype=torch.float64)).item()
    exact = [Fraction(each) for each in row[0].tolist()]
    assert exact[picked] > 0
    target, slack = Fraction(number) * sum(exact), sum(exact) * Fraction(1, 10**5)
    assert sum(exact[:picked]) <= target + slack
    assert sum(exact[: picked + 1]) >= target - slack


def test_rows_without_usable_weights_harm_nobody():
    rows = torch.zeros(3, 300)
    rows[0] = float("nan")
    rows[2, 217] = 1e-30
    picked = filters.pick(rows, torch.tensor([0.5, 0.5, 0.999], dtype=torch.float64)).tolist()
    assert picked[2] == 217
    assert all(0 <= each < 300 for each in picked)
