"""What a loaded model version is to the rest of the predictor, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Tensors = Mapping[str, np.ndarray]
"""Arrays by tensor name, C-contiguous. BYTES are arrays of dtype object whose elements are `bytes`; BF16 are uint16,
the upper half of a float32's bits."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A declared input or output (Open Inference Protocol, `TensorMetadata`)."""

    name: str
    datatype: str
    """ "FP32", "INT64", "BYTES" and so on."""
    shape: tuple[int, ...]
    """-1: any size. The first is the rows' where the signature has rows."""
    on_request: bool = False
    """Of an output: computed only for who asks for it by name."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a version takes and gives."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_rows: int
    """Rows of one execution at most; 0: there is no dimension of rows, and every request runs by itself."""


class LoadError(Exception):
    """A version cannot be served as it is: its files, its declaration or its golden rows are at fault."""


class ModelError(Exception):
    """The model refuses these inputs: the caller's fault, of one of the rows that ran together or of all.

    :ivar tensor: the input that is at fault; empty when it cannot be said.
    """

    def __init__(self, message: str, tensor: str = "") -> None:
        super().__init__(message)
        self.tensor = tensor


class Model(Protocol):
    """A loaded version. `run` is called by one thread at a time."""

    signature: Signature
    native: bool
    """Its `run` releases the GIL and does not fail other than by raising: it may run in the server's process."""

    def run(self, inputs: Tensors, outputs: frozenset[str] | None = None) -> dict[str, np.ndarray]:
        """Compute the outputs (by default all but those on request) for all rows of the inputs.

        :raises ModelError: the inputs are at fault.
        """

    def close(self) -> None:
        """Free its memory; `run` is not called any more."""
