"""One execution: inputs put together, the model run, outputs taken apart. Runs wherever its executor does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from libs.clock import Clock
from services.predictor.port import Model, Tensors


class Crashed(Exception):
    """The model broke on this request alone: the process that ran it died, or it raised what no model should. The text
    names kinds of errors only, nothing of anybody's data."""


class Died(Crashed):
    """The process that ran a batch died: of which member, it does not say."""


class Barred(Exception):
    """The caller's tenant alone has ended the version's processes lately, too often for more of its rows to run.

    :ivar retry_after: seconds for which that is so.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__("this tenant's requests ended the model's process too often: none of them runs for now")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Work:
    """What is to run together.

    :ivar inputs: of each member; dtypes and all dimensions but the first are equal.
    :ivar rows: of each member.
    :ivar outputs: that all of them want; None: all but those on request.
    :ivar whole: the tensors have no dimension of rows; there is one member.
    """

    inputs: Sequence[Tensors]
    rows: Sequence[int]
    outputs: frozenset[str] | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What came out, by member, and the seconds that putting together, running and taking apart took."""

    outputs: Sequence[Tensors]
    input: float
    compute: float
    output: float


def execute(model: Model, work: Work, clock: Clock) -> Done:
    """Run it.

    :raises ModelError: one member's inputs, or everybody's, are at fault.
    :raises Crashed: the outputs are not what the signature says.
    """
    began = clock.monotonic()
    inputs = gather(work.inputs)
    ready = clock.monotonic()
    outputs = model.run(inputs, work.outputs)
    ran = clock.monotonic()
    parts = [outputs] if work.whole else split(outputs, work.rows)
    return Done(parts, ready - began, ran - ready, clock.monotonic() - ran)


def gather(inputs: Sequence[Tensors]) -> Tensors:
    """One set of tensors with everybody's rows. Copied once; not at all for one member."""
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}


def split(outputs: Tensors, rows: Sequence[int]) -> list[Tensors]:
    """Views of each member's rows, in order.

    :raises Crashed: an output has not as many rows as there were.
    """
    total = sum(rows)
    for name, array in outputs.items():
        if not array.shape or len(array) != total:
            raise Crashed(f"the model gave output {name!r} the shape {list(array.shape)} for {total} rows")
    if len(rows) == 1:
        return [outputs]
    parts: list[Tensors] = []
    start = 0
    for count in rows:
        end = start + count
        parts.append({name: array[start:end] for name, array in outputs.items()})
        start = end
    return parts
