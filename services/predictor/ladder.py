"""What is given instead of a refusal, in this order. Pure.

    cached prediction → smaller version in this process → the version's prior → the refusal

Each step is flagged in the answer. A request with `degradable: false` takes none, nor does a refusal that the caller
has to hear: what is wrong with it, or what it may not spend.
"""

from __future__ import annotations

import numpy as np

from libs.errors import Reason
from services.predictor.port import Signature, Tensor, Tensors

CACHED = "cached_prediction"
"""The same was answered earlier, longer ago than an answer is usually kept."""
SMALLER = "smaller_version"
PRIOR = "prior"
"""The answer of last resort that the version's manifest gives, whatever the inputs."""

WALKS = frozenset(
    (
        Reason.REJECTED_DEADLINE,
        Reason.REJECTED_QUEUE_FULL,
        Reason.NO_WORKERS,
        Reason.EVICTED_DEADLINE,
        Reason.EVICTED_SHED,
        Reason.DEADLINE_EXCEEDED,
        Reason.ENGINE_ERROR,
        Reason.WORKER_LOST,
        Reason.DEPENDENCY_UNAVAILABLE,
    )
)
"""Refusals that are nobody's fault who asked."""


def prior_of(row: Tensors, wanted: tuple[Tensor, ...], signature: Signature, rows: int) -> Tensors | None:
    """One row as the answer for so many; None where it does not give everything that is wanted."""
    if not all(tensor.name in row for tensor in wanted):
        return None
    if not signature.max_rows:
        return row
    return {tensor.name: np.repeat(row[tensor.name], rows, axis=0) for tensor in wanted}
