"""Quantiles, medians, ratios, tables, and when a bench is believed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.figures import (
    NothingFoundError,
    around,
    faults,
    medians,
    needed,
    percentile,
    ratios,
    spread,
    table,
)


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 1.0, 100),
        (list(range(1, 11)), 0.99, 10),
        (list(range(1, 11)), 0.01, 1),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], q: float, expected: float) -> None:
    assert percentile(values, q) == expected


def test_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1.0))
def test_at_least_that_share_lies_at_or_below_the_percentile(values: list[float], q: float) -> None:
    found = percentile(values, q)
    assert found in values
    assert sum(value <= found for value in values) >= q * len(values) - 1e-6


def test_spread_shows_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.5], 1) == "2.5 (1.0–3.0)"


def test_medians_are_taken_name_by_name() -> None:
    assert medians([{"a": 1, "b": 9}, {"a": 3, "b": 7}, {"a": 2, "b": 8}]) == {"a": 2, "b": 8}


def test_table_aligns_text_left_and_numbers_right() -> None:
    assert table(("what", "n"), [("a", "1"), ("longer", "100")]).splitlines() == [
        "  what      n",
        "  a         1",
        "  longer  100",
    ]


def test_ratios_are_made_pair_by_pair() -> None:
    # The machine is half as fast in the second minute: what was measured in it is twice as dear, and so is its unit.
    costs, calls = [4000.0, 8000.0, 4100.0], [500.0, 1000.0, 500.0]
    assert ratios(costs, calls) == [8.0, 8.0, 8.2]
    with pytest.raises(ValueError, match="shorter"):
        ratios(costs, calls[:2])


def test_what_held_during_a_window_is_between_the_marks_around_it() -> None:
    assert around([1.0, 3.0, 5.0]) == [2.0, 4.0]
    assert around([1.0]) == []


def test_a_bench_is_red_by_what_failed_and_by_what_nobody_measured() -> None:
    targets = {"a": "≥ 1", "b": "≤ 2", "c": "≤ 3", "d": "≤ 4"}
    figures = {"a": 0.5, "b": math.nan, "d": math.nan}
    assert faults({"a": 0.5}, {"a": "≥ 1"}, {}) == {}, "a target that is missed is a figure"
    assert faults(figures, targets, {"part": "refused"}, left_out=("d",)) == {
        "b": "not measured",
        "c": "not measured",
        "part": "refused",
    }


@pytest.mark.parametrize("value", [0, 0.0, math.nan, -1])
def test_nothing_is_no_figure(value: float) -> None:
    with pytest.raises(NothingFoundError, match="no stream held"):
        needed(value, "stream held")
    assert needed(3, "stream held") == 3
