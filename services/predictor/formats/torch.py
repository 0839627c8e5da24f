"""PyTorch: programs of `torch.export` (`.pt2`); see pt2.py for what they may hold.

The version's inputs have the names of the program's arguments; outputs those of the dict that it returns, or, of a
tensor or tuple, the order in which they are declared. Where there is a GPU, it runs there.

Options: `threads` (of one execution, 1), `device` ("auto" or "cpu").
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from services.predictor.formats import pt2
from services.predictor.formats.step import THREADS, LoadError, Wiring, check_fits
from services.predictor.port import ModelError, Tensor, Tensors

_DATATYPES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}


class Program:
    """The `Step` of a program."""

    native = False

    def __init__(
        self,
        call: Callable[[list[torch.Tensor]], Any],
        inputs: Sequence[Tensor],
        outputs: tuple[Tensor, ...],
        device: str,
    ) -> None:
        self.inputs = tuple(tensor.name for tensor in inputs)
        self.outputs = outputs
        self._call, self._device = call, device
        self._halves = frozenset(tensor.name for tensor in inputs if tensor.datatype == "BF16")

    def run(self, tensors: Tensors, wanted: frozenset[str]) -> dict[str, np.ndarray]:
        """See `Step`."""
        try:
            with torch.inference_mode():
                results = self._call([self._tensor(tensors[name], name) for name in self.inputs])
                return {
                    tensor.name: _array(result)
                    for tensor, result in zip(self.outputs, pytree.tree_leaves(results), strict=True)
                    if tensor.name in wanted
                }
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, AssertionError) as error:
            raise ModelError(f"the program refuses the inputs{_reason(error)}") from None

    def _tensor(self, array: np.ndarray, name: str) -> torch.Tensor:
        # torch has no tensors that are not to be written.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        return (tensor.view(torch.bfloat16) if name in self._halves else tensor).to(self._device)

    def close(self) -> None:
        """See `Step`."""
        del self._call


def load(content: bytes, wiring: Wiring) -> Program:
    """Load a step. The number of threads is the whole process's.

    :raises LoadError: the content is no program, holds more than that, or does not fit its declaration.
    """
    torch.set_num_threads(wiring.options.count("threads", 1, THREADS))
    device = wiring.options.choice("device", ("auto", "cpu"))
    device = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu"
    program = _read(content, device)
    given = {tensor.name: tensor for tensor in wiring.inputs}
    inputs = [_declared(program, str(name), given) for name in program.graph_signature.user_inputs]
    # Guards are Python from the file; ranges of sizes are checked without them, by a hook of torch's own.
    module = program.module(check_guards=False)
    form = program.call_spec.in_spec
    if form is None:
        raise LoadError("the program does not say how it is called")

    def call(tensors: list[torch.Tensor]) -> Any:
        arguments, named = pytree.tree_unflatten(tensors, form)
        return module(*arguments, **named)

    return Program(call, inputs, _outputs(program, wiring), device)


def _read(content: bytes, device: str) -> torch.export.ExportedProgram:
    document = pt2.check(content)
    if "torch.ops.quantized_decomposed." in json.dumps(document):
        import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
    try:
        program = torch.export.load(io.BytesIO(content))
        if device != "cpu":
            program = move_to_device_pass(program, device)
    except Exception as error:  # whatever the reading of a damaged program ends in
        raise LoadError(f"no program of torch.export: {type(error).__name__}: {str(error)[:200]}") from None
    return program


def _declared(program: torch.export.ExportedProgram, name: str, given: Mapping[str, Tensor]) -> Tensor:
    if name not in given:
        raise LoadError(f"the program takes an input {name!r}, which is not there")
    node = next(node for node in program.graph.nodes if node.op == "placeholder" and node.name == name)
    value = node.meta["val"]
    shape = [size if isinstance(size, int) else -1 for size in value.shape]
    check_fits("input", given[name], _DATATYPES.get(value.dtype), shape)
    return given[name]


def _outputs(program: torch.export.ExportedProgram, wiring: Wiring) -> tuple[Tensor, ...]:
    """In the order in which the program gives them."""
    names = [str(name) for name in program.graph_signature.user_outputs]
    form = program.call_spec.out_spec
    if form is not None and form.type is dict and len(form.context) == len(names):
        names = list(form.context)
    elif wiring.outputs:
        if len(wiring.outputs) != len(names):
            raise LoadError(f"the program gives {len(names)} outputs; {len(wiring.outputs)} are declared")
        return wiring.outputs
    for tensor in wiring.outputs:
        if tensor.name not in names:
            raise LoadError(f"the program has no output {tensor.name!r}; it gives {', '.join(map(repr, names))}")
    return tuple(wiring.named(name) for name in names)


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.contiguous().cpu()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _reason(error: Exception) -> str:
    """torch's words about sizes; others may repeat values."""
    first = str(error).partition("\n")[0]
    return f": {first[:150]}" if first.startswith("Expected input at ") else f" ({type(error).__name__})"
