"""What models of trees have in common: one matrix in, predictions and contributions out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.predictor.formats.step import UNKNOWN, LoadError, Wiring
from services.predictor.port import Tensor


@dataclass(frozen=True, slots=True)
class Ports:
    """The tensors of a step of trees, by the options `input`, `output` and `contributions`."""

    matrix: Tensor
    prediction: Tensor
    contributions: Tensor | None
    """Per row and feature, what it adds to the margin (SHAP values of the trees); the last column is the bias."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What the step gives."""
        return (self.prediction, *([self.contributions] if self.contributions else ()))


def ports(wiring: Wiring, columns: int, datatype: str) -> Ports:
    """Check that the declaration fits a model with so many columns, whose predictions are of a datatype.

    :raises LoadError: naming the tensor and what it must be.
    """
    matrix = wiring.source()
    if matrix.datatype != UNKNOWN:
        _check_matrix(matrix, columns)
    explained = wiring.options.text("contributions")
    if explained and explained not in wiring.declared:
        raise LoadError(f"option 'contributions': {explained!r} is no output of the version")
    own = [tensor.name for tensor in wiring.outputs if tensor.name != explained]
    name = wiring.options.text("output") or (own[0] if len(own) == 1 else "")
    if not name or (own and name not in own):
        raise LoadError(f"option 'output': name {'one of ' + ', '.join(map(repr, own)) if own else 'what it gives'}")
    found = Ports(matrix, wiring.named(name), wiring.named(explained) if explained else None)
    for tensor in found.outputs:
        if tensor.datatype not in (datatype, UNKNOWN):
            raise LoadError(f"output {tensor.name!r} is declared {tensor.datatype}; the model gives {datatype}")
    return found


def _check_matrix(matrix: Tensor, columns: int) -> None:
    if len(matrix.shape) != 2:
        raise LoadError(f"input {matrix.name!r} must have two dimensions, rows and columns")
    if matrix.datatype not in ("FP32", "FP64"):
        raise LoadError(f"input {matrix.name!r} is {matrix.datatype}; trees take FP32 or FP64")
    if matrix.shape[1] != columns:
        raise LoadError(f"input {matrix.name!r}: dimension 1 is {matrix.shape[1]}; the model has {columns} features")


def shaped(result: np.ndarray, tensor: Tensor, rows: int) -> np.ndarray:
    """A result as declared: [rows] and [rows, 1] are the same numbers.

    :raises LoadError: the declared shape does not hold them; a version that was warmed up never does.
    """
    if tensor.datatype == UNKNOWN:
        return result
    try:
        return result.reshape(rows, *tensor.shape[1:])
    except ValueError:
        raise LoadError(
            f"output {tensor.name!r} is declared {list(tensor.shape)}; "
            f"of {rows} rows the model gives {list(result.shape)}"
        ) from None
