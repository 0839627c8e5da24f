"""Finds the costs that explain measured steps best: least squares with costs of at least zero. Pure.

Errors count relative to the step (a millisecond matters in a step of two, not in one of two hundred), and those beyond
`_OUTLIER` count less (Huber): on a shared machine some steps are late for reasons of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from services.worker.calibration.measure import Step
from services.worker.engines.step_costs import StepCosts

Array = NDArray[np.float64]

TERMS = (
    "step_base",
    "step_per_sequence",
    "step_per_context_token",
    "step_per_padded_token",
    "step_per_prompt",
    "prefill",
    "attended",
)
"""The columns of the fit: 1 and the fields of `StepWork`."""

_LEAST_PER_TERM = 3  # different steps
_OUTLIER = 0.15
_ROUNDS = 8  # of reweighting; it settles in a few


class FitError(ValueError):
    """The steps do not determine the costs; the message says what is missing."""


def medians(runs: Iterable[Sequence[Step]]) -> list[Step]:
    """One step for each kind of work, with the median of its times."""
    times: dict[tuple[int, ...], list[float]] = {}
    steps: dict[tuple[int, ...], Step] = {}
    for run in runs:
        for step in run:
            times.setdefault(tuple(step.work), []).append(step.seconds)
            steps[tuple(step.work)] = step
    return [Step(steps[key].work, float(np.median(found))) for key, found in times.items()]


def fit(steps: Sequence[Step]) -> StepCosts:
    """The costs under which the steps' times are least wrong.

    :raises FitError: too few different steps, a time that is not above zero, or a cost that no step shows apart.
    """
    if len({step.work for step in steps}) < _LEAST_PER_TERM * len(TERMS):
        raise FitError(f"{_LEAST_PER_TERM * len(TERMS)} different steps are needed, there are {len(steps)}")
    seconds = np.array([step.seconds for step in steps])
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise FitError("every step must take time")
    rows = np.array([(1, *step.work) for step in steps], dtype=float) / seconds[:, None]
    scale = np.sqrt((rows**2).sum(axis=0))
    missing = [term for term, size in zip(TERMS, scale, strict=True) if size == 0]
    if missing:
        raise FitError(f"no step shows {', '.join(missing)}")
    rows /= scale
    if np.linalg.matrix_rank(rows, tol=1e-6 * len(rows) ** 0.5) < len(TERMS):
        raise FitError("the steps do not tell the costs apart")
    found = _robust(rows) / scale
    base, sequence, context, padded, prompt, prefill, attended = (float(value) for value in found)
    return StepCosts(
        step_base=base,
        step_per_sequence=sequence,
        step_per_context_token=context,
        step_per_padded_token=padded,
        step_per_prompt=prompt,
        prefill_tokens_per_second=1 / prefill if prefill else math.inf,
        prefill_per_attended_token=attended,
    )


def relative_errors(costs: StepCosts, steps: Iterable[Step]) -> Array:
    """|predicted - measured| / measured, per step."""
    return np.array([abs(costs.seconds(step.work) - step.seconds) / step.seconds for step in steps])


def nonnegative_least_squares(rows: Array, target: Array) -> Array:
    """The x of (n,) from 0 up that minimises |rows·x - target|, for rows of (m, n) with few columns.

    The minimum is the ordinary one over some subset of the columns, so all subsets are tried: 2ⁿ small problems are
    simpler to trust than an active-set method, and n is seven.
    """
    width = rows.shape[1]
    best, least = np.zeros(width), float(target @ target)
    for size in range(1, width + 1):
        for chosen in itertools.combinations(range(width), size):
            part = rows[:, chosen]
            solution, _, rank, _ = np.linalg.lstsq(part, target)
            if rank < size or (solution < 0).any():
                continue
            residual = part @ solution - target
            error = float(residual @ residual)
            if error < least:
                least = error
                best = np.zeros(width)
                best[list(chosen)] = solution
    return best


def _robust(rows: Array) -> Array:
    """Iteratively reweighted; each row's target is 1 because rows were divided by their times."""
    weights = np.ones(len(rows))
    found = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = nonnegative_least_squares(rows * root[:, None], root)
        errors = np.abs(rows @ found - 1.0)
        weights = np.minimum(1.0, _OUTLIER / np.maximum(errors, 1e-12))
    return found
