"""Runs before the first request: what a first run costs is paid, what rows cost is found, and so are outputs that are
not as declared."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from services.predictor.formats.step import LoadError
from services.predictor.port import Model, ModelError, Signature, Tensor, Tensors
from services.predictor.tensors import DTYPES

REPEATS = 5
"""Measured runs of each number of rows, after one that is not."""
BUDGET = 2.0
"""Seconds after which no larger number of rows is begun; what a larger one costs is seen when it comes."""


def samples(
    model: Model,
    like: Tensors | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    budget: float = BUDGET,
) -> list[tuple[int, float]]:
    """Run 1, 2, 4, … rows up to the most, several times each, and check that the outputs are as declared.

    :param like: golden rows to repeat; rows of zeros and empty texts without.
    :returns: rows and seconds of each measured run.
    :raises LoadError: the model refuses the rows, or gives other outputs than it declares.
    """
    measured: list[tuple[int, float]] = []
    end = clock() + budget
    everything = frozenset(tensor.name for tensor in model.signature.outputs)
    for rows in buckets(model.signature.max_rows):
        inputs = sample(model.signature, rows, like)
        try:
            _check(model.run(inputs, everything), model.signature, rows)
            for _ in range(REPEATS):
                start = clock()
                model.run(inputs)
                measured.append((rows, clock() - start))
        except ModelError as error:
            raise LoadError(f"the model refuses {rows} rows to warm up with: {error}") from None
        if clock() >= end:
            break
    return measured


def buckets(most: int) -> list[int]:
    """Powers of two up to the most rows, and these; one where there are no rows."""
    found = [1]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return found + ([most] if most > 1 else [])


def sample(signature: Signature, rows: int, like: Tensors | None = None) -> dict[str, np.ndarray]:
    """Inputs of so many rows; 1 stands for any other size that is not declared."""
    if like is not None:
        if not signature.max_rows:
            return dict(like)
        return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in like.items()}
    return {tensor.name: _zeros(tensor, rows if signature.max_rows else 1) for tensor in signature.inputs}


def _zeros(tensor: Tensor, rows: int) -> np.ndarray:
    first, *others = tensor.shape or (0,)
    shape = () if not tensor.shape else (rows if first == -1 else first, *(max(size, 1) for size in others))
    array = np.zeros(shape, DTYPES[tensor.datatype])
    if tensor.datatype == "BYTES":
        array[...] = b""
    return array


def _check(outputs: Tensors, signature: Signature, rows: int) -> None:
    for tensor in signature.outputs:
        array = outputs[tensor.name]
        declared = (rows, *tensor.shape[1:]) if signature.max_rows else tensor.shape
        fits = array.ndim == len(declared) and all(
            size in (-1, own) for size, own in zip(declared, array.shape, strict=True)
        )
        if not fits or array.dtype != DTYPES[tensor.datatype]:
            raise LoadError(
                f"output {tensor.name!r} is declared {tensor.datatype} {list(tensor.shape)}; of {rows} rows the model "
                f"gives {array.dtype} {list(array.shape)}"
            )
