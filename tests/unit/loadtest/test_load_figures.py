"""Quantiles, medians, tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.figures import in_calls, medians, percentile, spread, table


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


def test_times_are_told_in_calls_and_nothing_else() -> None:
    figures = {"cpu_ms_per_request": 4.0, "edge_us_known": 250.0, "calls_per_request": 8.0, "mesh_users": 3.0}
    assert in_calls(figures, 500.0) == {"cpu_ms_per_request": 8.0, "edge_us_known": 0.5}
