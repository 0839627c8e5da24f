"""How a candidate's answer differs from the user's, row by row. Pure.

    shadow_distance   mean |Δ| of the numbers that both gave
    shadow_flips      share of rows whose label is another one, or that one of the two has no number for
    shadow_scores     total variation of the two distributions of scores, 0 to 1, over windows of 256 rows

A row's label is its integers and bytes as they are, the largest of several numbers, or whether a probability is at
least one half. Its score is that probability: of two columns the second, of more the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

DISTANCE, FLIPS, SCORES = "shadow_distance", "shadow_flips", "shadow_scores"
MOST_ROWS = 4096
"""Of one answer that are looked at."""
WINDOW = 256
_BINS = 10
_FAR = 1e6

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two answers have in common."""

    distance: float | None
    """None where they have no number in common."""
    flips: float
    users: np.ndarray
    """The users' scores."""
    copies: np.ndarray
    """The candidate's, of the same rows."""

    @property
    def same(self) -> bool:
        """Nothing differs at all."""
        return not self.distance and not self.flips


def compare(users: Arrays, copy: Arrays) -> Comparison:
    """The outputs of the same inputs. An output of the user's that the copy lacks, or has of another shape or kind,
    differs in every row."""
    far, count, scores = 0.0, 0, (np.empty(0), np.empty(0))
    rows = max((len(array) for array in users.values() if array.ndim), default=1)
    flipped = np.zeros(min(rows, MOST_ROWS), bool)
    for name, whole in users.items():
        mine, theirs = _rows(whole), _rows(copy[name]) if name in copy else None
        if theirs is None or theirs.shape != mine.shape or theirs.dtype.kind != mine.dtype.kind:
            flipped[:] = True
            continue
        if mine.dtype.kind != "f":
            flipped[: len(mine)] |= (mine != theirs).any(axis=1)
            continue
        known = np.isfinite(mine) & np.isfinite(theirs)
        alike = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
        flipped[: len(mine)] |= ~(known | alike).all(axis=1)
        far += float(np.minimum(np.abs(mine[known] - theirs[known]), _FAR).sum())
        count += int(known.sum())
        if _probabilities(mine) and known.all():
            flipped[: len(mine)] |= _labels(mine) != _labels(theirs)
            if not len(scores[0]):
                scores = _scores(mine), _scores(theirs)
    return Comparison(far / count if count else None, float(flipped.mean()), *scores)


class Window:
    """Scores of one arm's answers and of the users', until there are enough to compare their distributions."""

    __slots__ = ("_copies", "_count", "_users")

    def __init__(self) -> None:
        self._users: list[np.ndarray] = []
        self._copies: list[np.ndarray] = []
        self._count = 0

    def add(self, users: np.ndarray, copies: np.ndarray) -> float | None:
        """More rows; the distance of the distributions when a window is full."""
        self._users.append(users)
        self._copies.append(copies)
        self._count += len(users)
        if self._count < WINDOW:
            return None
        found = variation(np.concatenate(self._users), np.concatenate(self._copies))
        self._users, self._copies, self._count = [], [], 0
        return found


def variation(users: np.ndarray, copies: np.ndarray) -> float:
    """Half the sum of the differences of shares, over the deciles of the users' scores."""
    edges = np.unique(np.quantile(users, np.linspace(0, 1, _BINS + 1)[1:-1]))

    def shares(scores: np.ndarray) -> np.ndarray:
        # What is equal to an edge has a bin of its own: many scores may be one number.
        bins = np.searchsorted(edges, scores, "left") + np.searchsorted(edges, scores, "right")
        return np.bincount(bins, minlength=2 * len(edges) + 1) / len(scores)

    return float(np.abs(shares(users) - shares(copies)).sum() / 2)


def told(found: Comparison) -> Iterator[tuple[str, float]]:
    """What is known of one answer, by name."""
    if found.distance is not None:
        yield DISTANCE, found.distance
    yield FLIPS, found.flips


def _rows(array: np.ndarray) -> np.ndarray:
    """As rows and columns, in numbers that can be subtracted."""
    table = array.reshape(len(array), -1) if array.ndim > 1 else array.reshape(-1, 1)
    table = table[:MOST_ROWS]
    return table.astype(np.float64) if table.dtype.kind == "f" else table


def _probabilities(table: np.ndarray) -> bool:
    return bool(table.shape[1] > 1 or ((table >= 0) & (table <= 1)).all())


def _labels(table: np.ndarray) -> np.ndarray:
    return table.argmax(axis=1) if table.shape[1] > 1 else table[:, 0] >= 0.5


def _scores(table: np.ndarray) -> np.ndarray:
    columns = table.shape[1]
    return table[:, 0] if columns == 1 else table[:, 1] if columns == 2 else table.max(axis=1)
