"""What a format gives the chain: one step of it, loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from services.predictor.port import LoadError, Tensor, Tensors

UNKNOWN = ""
"""The datatype of a tensor between two steps of which only what runs can say what it is."""


class Options:
    """The options of a step. What nobody asked for by the end is unknown."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._left = dict(given)

    def text(self, name: str, default: str = "") -> str:
        """The option's text."""
        return self._left.pop(name, default)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of several words; the first by default.

        :raises LoadError: it is another one.
        """
        value = self.text(name, choices[0])
        if value not in choices:
            raise LoadError(f"option {name!r} must be one of {', '.join(choices)}")
        return value

    def count(self, name: str, default: int, most: int) -> int:
        """A whole number from 1, or the default.

        :raises LoadError: it is none, or more than `most`.
        """
        value = self.text(name)
        if not value:
            return default
        if not value.isascii() or not value.isdecimal() or not 1 <= int(value[:9]) <= most:
            raise LoadError(f"option {name!r} must be a whole number from 1 to {most}")
        return int(value)

    def number(self, name: str, default: float) -> float:
        """A number; "nan" and "inf" are some.

        :raises LoadError: it is none.
        """
        value = self.text(name)
        try:
            return float(value) if value else default
        except ValueError:
            raise LoadError(f"option {name!r} must be a number") from None

    def done(self) -> None:
        """Call when all that is known was asked for.

        :raises LoadError: there are others.
        """
        if self._left:
            raise LoadError(f"unknown option {min(self._left)!r}")


def _nothing(path: str) -> bytes:
    raise LoadError(f"there is no artifact {path!r} beside it")


@dataclass(frozen=True, slots=True)
class Wiring:
    """Where a step stands in its chain."""

    inputs: tuple[Tensor, ...]
    """The tensors that are there before it: the version's inputs and what earlier steps give, later ones last."""
    outputs: tuple[Tensor, ...]
    """Of the last step: the version's outputs that no earlier step gives. Empty for others."""
    options: Options
    declared: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, the version's outputs that no earlier step gives, for any step."""
    beside: Callable[[str], bytes] = _nothing
    """Another file of the version, by its path from where the step's lies. Raises `LoadError`."""

    def named(self, name: str) -> Tensor:
        """An output of the step by its name: as declared, or unknown between two steps."""
        return self.declared.get(name, Tensor(name, UNKNOWN, ()))

    def source(self) -> Tensor:
        """The one tensor that a step reads: by option `input`, or the only one that there is.

        :raises LoadError: it is not there, or which one is meant is not said.
        """
        name = self.options.text("input")
        if not name and len(self.inputs) != 1:
            raise LoadError("there are several tensors: name one by option 'input'")
        for tensor in self.inputs:
            if not name or tensor.name == name:
                return tensor
        raise LoadError(f"option 'input': there is no tensor {name!r}")


def check_fits(what: str, tensor: Tensor, datatype: str | None, shape: Sequence[int]) -> None:
    """Whether a model's own tensor, -1 where it takes any size, is as declared.

    :param what: "input" or "output".
    :param datatype: None: one that the protocol does not have.
    :raises LoadError: it is not.
    """
    if tensor.datatype == UNKNOWN:
        return
    if tensor.datatype != datatype:
        raise LoadError(
            f"{what} {tensor.name!r} is declared {tensor.datatype}; the model has {datatype or 'another type'}"
        )
    fits = len(shape) == len(tensor.shape) and all(
        own in (-1, declared) for own, declared in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise LoadError(f"{what} {tensor.name!r} is declared {list(tensor.shape)}; the model has {list(shape)}")


class Step(Protocol):
    """A loaded step. `run` is called by one thread at a time."""

    outputs: tuple[Tensor, ...]
    """What it gives."""
    inputs: tuple[str, ...]
    """The tensors that it reads."""
    native: bool
    """As `port.Model.native`."""

    def run(self, tensors: Tensors, wanted: frozenset[str]) -> dict[str, np.ndarray]:
        """Compute the wanted ones of its outputs for all rows.

        :raises port.ModelError: the tensors are at fault. Its message repeats no value: rows of several callers may
            have run together.
        """

    def close(self) -> None:
        """Free its memory."""


THREADS = 64
"""Most threads that an option may ask for."""
