"""How a candidate's predictions differ from the user's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from services.predictor.compare import MOST_ROWS, WINDOW, Window, compare, variation


def floats(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def texts(*values: bytes) -> np.ndarray:
    made = np.empty(len(values), object)
    made[:] = values
    return made


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(1, 4))))
def test_the_same_answer_differs_in_nothing(array: np.ndarray) -> None:
    found = compare({"score": array}, {"score": array.copy()})
    assert found.same
    assert not found.distance
    assert found.flips == 0.0


@pytest.mark.parametrize(
    ("users", "copies", "distance", "flips"),
    [
        (floats(0.4, 0.6), floats(0.6, 0.7), 0.15, 0.5),  # a probability of at least one half is the label
        (floats(3.0, 9.0), floats(4.0, 9.0), 0.5, 0.0),  # a regression has no labels
        (floats([0.9, 0.1], [0.2, 0.8]), floats([0.8, 0.2], [0.6, 0.4]), 0.25, 0.5),
        (floats(0.5, np.nan), floats(0.5, np.nan), 0.0, 0.0),
        (floats(0.5, 0.5), floats(0.5, np.nan), 0.0, 0.5),
        (floats(np.inf), floats(np.inf), None, 0.0),
        (floats(np.inf), floats(-np.inf), None, 1.0),
        (floats(0.5, 0.5), floats([0.5], [0.5]), 0.0, 0.0),
        (floats(0.5, 0.5), floats(0.5, 0.5, 0.5), None, 1.0),
        (floats(0.5, 0.5), np.array([0, 1]), None, 1.0),
        (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), None, 0.25),
        (texts(b"a", b"b"), texts(b"a", b"c"), None, 0.5),
    ],
)
def test_numbers_by_distance_and_labels_by_flips(
    users: np.ndarray, copies: np.ndarray, distance: float | None, flips: float
) -> None:
    found = compare({"y": users}, {"y": copies})
    assert found.distance == (None if distance is None else pytest.approx(distance, abs=1e-6))
    assert found.flips == flips
    assert found.same is (not distance and not flips)


def test_an_output_that_is_not_there_differs_in_every_row() -> None:
    assert compare({"y": floats(1, 2), "label": np.array([1, 2])}, {"y": floats(1, 2)}).flips == 1.0


def test_one_enormous_number_does_not_become_infinite() -> None:
    found = compare({"y": floats(3e38)}, {"y": floats(-3e38)})
    assert found.distance == 1e6


def test_no_more_than_so_many_rows_are_looked_at() -> None:
    users, copies = np.zeros(MOST_ROWS + 1, np.float32), np.zeros(MOST_ROWS + 1, np.float32)
    copies[-1] = 1.0
    found = compare({"y": users}, {"y": copies})
    assert found.same
    assert len(found.users) == MOST_ROWS


def test_distributions_are_compared_window_by_window() -> None:
    window, rng = Window(), np.random.default_rng(1)
    scores = rng.random(WINDOW)
    assert window.add(scores[:100], scores[:100]) is None
    assert window.add(scores[100:], scores[100:]) == 0.0
    assert window.add(scores[:10], scores[:10]) is None  # another one has begun
    assert variation(scores, np.clip(scores + 0.3, 0, 1)) == pytest.approx(0.3, abs=0.08)
    assert variation(scores, scores + 9) == pytest.approx(0.9, abs=0.02)
    assert variation(np.zeros(9), np.zeros(9)) == 0.0
    assert variation(np.zeros(9), np.ones(9)) == 1.0


def test_a_shift_that_no_label_shows_is_seen_in_the_scores() -> None:
    rng = np.random.default_rng(2)
    users = rng.random((WINDOW, 2)).astype(np.float32) * [1, 0.4]
    copies = users * [1, 0.5]
    found = compare({"y": users.astype(np.float32)}, {"y": copies.astype(np.float32)})
    assert found.flips < 0.2
    assert variation(found.users, found.copies) > 0.3
