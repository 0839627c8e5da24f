"""Scores of unseen rows, with intervals that say how much so few rows can tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_Z = 1.959964
"""Standard normal quantile of a two-sided 95% interval."""
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of held-out rows and its 95% interval."""

    name: str
    value: float
    low: float
    high: float
    rows: int

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def accuracy(right: np.ndarray) -> Score:
    """The share of right answers; Wilson's interval, which stays inside 0 and 1 where nearly all are right.

    :param right: a bool per row.
    """
    n, share = len(right), float(np.mean(right))
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return Score("accuracy", share, middle - half, middle + half, n)


def resampled(
    name: str,
    metric: Callable[[np.ndarray, np.ndarray], float],
    truth: np.ndarray,
    said: np.ndarray,
    *,
    classes: bool = True,
) -> Score:
    """A metric of (truth, said) with the percentile bootstrap's interval (Efron 1979), the same at every run.

    :param classes: `truth` are classes: resamples in which one is missing, where a metric may not be defined, are drawn
        again.
    """
    random = np.random.default_rng(16)
    drawn: list[float] = []
    while len(drawn) < _RESAMPLES:
        rows = random.integers(0, len(truth), len(truth))
        if not classes or len(np.unique(truth[rows])) == len(np.unique(truth)):
            drawn.append(metric(truth[rows], said[rows]))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Score(name, metric(truth, said), float(low), float(high), len(truth))
