"""What a batch is expected to cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.batching import CostModel


def test_a_line_is_found_and_followed() -> None:
    chance = random.Random(1)
    cost = CostModel.fitted([(rows, 0.002 + 0.001 * rows) for rows in (1, 2, 4, 8, 16)])
    assert cost.mean(10) == pytest.approx(0.012, rel=1e-6)
    for _ in range(500):  # the machine is twice as slow now
        rows = chance.randint(1, 16)
        cost.observe(rows, (0.004 + 0.002 * rows) * chance.uniform(0.95, 1.05))
    assert cost.mean(1) == pytest.approx(0.006, rel=0.1)
    assert cost.mean(16) == pytest.approx(0.036, rel=0.1)
    assert 1.05 <= cost.tail_ratio < 2.2


def test_the_tail_is_the_p99_of_what_was_seen() -> None:
    cost = CostModel.fitted([(1, 0.01)] * 10)
    for n in range(512):
        cost.observe(1, 0.03 if n % 50 == 0 else 0.01)
    assert cost.tail(1) == pytest.approx(0.03, rel=0.15)


def test_one_size_for_hours_leaves_the_slope_as_it_was() -> None:
    chance = random.Random(2)
    cost = CostModel.fitted([(rows, 0.002 + 0.001 * rows) for rows in (1, 8, 64)])
    for _ in range(5000):
        cost.observe(4, 0.006 * chance.uniform(0.8, 1.2))
    assert cost.mean(64) == pytest.approx(0.066, rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(1e-6, 100)), min_size=1, max_size=100))
def test_a_larger_batch_is_never_thought_cheaper_and_nothing_free(samples: list[tuple[int, float]]) -> None:
    cost = CostModel(0.001, 0.0)
    for rows, seconds in samples:
        cost.observe(rows, seconds)
        assert 0 < cost.mean(1) <= cost.mean(2) <= cost.mean(1000)
        assert cost.tail(7) >= cost.mean(7)
