"""Python: pre- and post-processing, one file of a signed version, in a sandbox of its own (`libs/sandbox`).

The file defines `run(inputs)`, from a dict of arrays by tensor name to such a dict, for all rows at once; it may import
NumPy and a closed list of the standard library. Each row's outputs must come from that row alone. What it raises
refuses the rows that ran together (they are then tried apart); its message is told to nobody.

Options: `inputs` ("a,b": the tensors that it is given, all by default), `outputs` ("features:FP32:-1x2048
mask:BOOL:-1": what it gives, where it is not the last step), `seconds` (of one call, 1 to 60, by default 1),
`memory_mib` (beyond an empty child's, 1 to 4096, by default 256).
"""

from __future__ import annotations

import numpy as np

from libs.sandbox import Box, RunError, SourceError, UnsafeError
from services.predictor.formats.step import LoadError, Options, Wiring
from services.predictor.port import ModelError, Tensor, Tensors
from services.predictor.tensors import DTYPES

_MAX_SOURCE = 1 << 20
_MOST_SECONDS, _MOST_MEMORY = 60, 4096


class Source:
    """The `Step` of a source."""

    native = False

    def __init__(self, box: Box, inputs: tuple[str, ...], outputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._box = box

    def run(self, tensors: Tensors, wanted: frozenset[str]) -> dict[str, np.ndarray]:
        """See `Step`."""
        given = {name: tensors[name] for name in self.inputs}
        try:
            made = self._box.run(given)
        except (RunError, SourceError) as error:
            raise ModelError(f"the Python step {error}") from None
        rows = max(len(array) for array in given.values())
        return {tensor.name: _checked(made, tensor, rows) for tensor in self.outputs if tensor.name in wanted}

    def close(self) -> None:
        """See `Step`."""
        self._box.close()


def load(content: bytes, wiring: Wiring, *, trusted: bool = False) -> Source:
    """Load a step.

    :param trusted: it may run where the kernel cannot enclose it.
    :raises LoadError: the source cannot run, does not fit its declaration, or may not run on this kernel.
    """
    options = wiring.options
    given = {tensor.name for tensor in wiring.inputs}
    named = options.text("inputs")
    inputs = tuple(named.split(",")) if named else tuple(sorted(given))
    if unknown := set(inputs) - given:
        raise LoadError(f"option 'inputs': there is no tensor {min(unknown)!r}")
    outputs = wiring.outputs or _declared(options)
    seconds = options.count("seconds", 1, _MOST_SECONDS)
    memory = options.count("memory_mib", 256, _MOST_MEMORY) << 20
    if len(content) > _MAX_SOURCE:
        raise LoadError(f"its source has more than {_MAX_SOURCE} bytes")
    try:
        return Source(Box(content.decode(), seconds=seconds, memory=memory, trusted=trusted), inputs, outputs)
    except (SourceError, UnsafeError, UnicodeDecodeError) as error:
        raise LoadError(str(error)) from None


def _declared(options: Options) -> tuple[Tensor, ...]:
    """Of option `outputs`."""
    found = []
    for said in options.text("outputs").split():
        name, _, rest = said.partition(":")
        datatype, _, shape = rest.partition(":")
        sizes = shape.split("x")
        if not name or datatype not in DTYPES or not all(size == "-1" or size.isdecimal() for size in sizes):
            raise LoadError(f"option 'outputs': {said[:64]!r} is not as in 'features:FP32:-1x30'")
        found.append(Tensor(name, datatype, tuple(map(int, sizes))))
    if not found:
        raise LoadError("option 'outputs' must say what a step gives that is not the last")
    return tuple(found)


def _checked(made: dict[str, np.ndarray], tensor: Tensor, rows: int) -> np.ndarray:
    """The output, if it is one as declared, and of as many rows as the inputs have."""
    array = made.get(tensor.name)
    if array is None:
        raise ModelError(f"the Python step does not give {tensor.name!r}")
    shape = (rows, *tensor.shape[1:]) if tensor.shape[0] == -1 else tensor.shape
    fits = len(array.shape) == len(shape) and all(
        size in (-1, own) for size, own in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != DTYPES[tensor.datatype]:
        raise ModelError(
            f"the Python step gives {tensor.name!r} as {array.dtype} {list(array.shape)}; "
            f"it is declared {tensor.datatype} {list(shape)}"
        )
    return array
