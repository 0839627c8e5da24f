"""ONNX, run by ONNX Runtime.

The version's tensors have the names of the graph's. Strings are BYTES of UTF-8. Options: `threads` (of one execution,
1). Where the installed ONNX Runtime has the CUDA execution provider and there is a GPU, it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from services.predictor.formats.external import files_of
from services.predictor.formats.step import THREADS, LoadError, Wiring, check_fits
from services.predictor.formats.texts import to_bytes, to_text
from services.predictor.port import ModelError, Tensor, Tensors

DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
"""By ONNX Runtime's names of types."""
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")
_FATAL = 4
_REFUSALS = (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.InvalidArgument)


class Graph:
    """The `Step` of a graph."""

    native = True

    def __init__(self, session: ort.InferenceSession, inputs: Sequence[Tensor], outputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(tensor.name for tensor in inputs)
        self.outputs = outputs
        self._session = session
        self._texts = frozenset(tensor.name for tensor in inputs if tensor.datatype == "BYTES")
        self._bytes = frozenset(tensor.name for tensor in outputs if tensor.datatype == "BYTES")

    def run(self, tensors: Tensors, wanted: frozenset[str]) -> dict[str, np.ndarray]:
        """See `Step`."""
        feed = {name: to_text(tensors[name], name) if name in self._texts else tensors[name] for name in self.inputs}
        names = list(wanted)
        try:
            results = self._session.run(names, feed)
        except _REFUSALS as error:
            raise ModelError(f"the graph refuses the inputs{_node(error)}") from None
        return {
            name: to_bytes(result) if name in self._bytes else result
            for name, result in zip(names, results, strict=True)
        }

    def close(self) -> None:
        """See `Step`."""
        del self._session


def load(content: bytes, wiring: Wiring) -> Graph:
    """Load a step.

    :raises LoadError: the content is no graph, or does not fit its declaration.
    """
    providers = [name for name in _PROVIDERS if name in ort.get_available_providers()]
    session = open_session(content, wiring.options.count("threads", 1, THREADS), providers, wiring.beside)
    given = {tensor.name: tensor for tensor in wiring.inputs}
    inputs = [_declared(node, given, "input") for node in session.get_inputs()]
    nodes = {node.name: node for node in session.get_outputs()}
    for tensor in wiring.outputs:
        if tensor.name not in nodes:
            raise LoadError(f"the graph has no output {tensor.name!r}; it gives {', '.join(map(repr, nodes))}")
    outputs = tuple(_declared(node, wiring.declared, "output") for node in nodes.values() if _used(node, wiring))
    return Graph(session, inputs, outputs)


def open_session(
    content: bytes, threads: int, providers: Sequence[str], beside: Callable[[str], bytes]
) -> ort.InferenceSession:
    """A session that keeps no thread busy while it waits, and logs no value.

    :param threads: of one execution.
    :param beside: see `Wiring.beside`.
    :raises LoadError: it is no graph that ONNX Runtime runs, or some of its tensors cannot be had.
    """
    others = {name: beside(name) for name in files_of(content)}
    settings = ort.SessionOptions()
    # Not its own format, which may lie elsewhere in part, too.
    settings.add_session_config_entry("session.load_model_format", "ONNX")
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    for pool in ("intra_op", "inter_op"):
        settings.add_session_config_entry(f"session.{pool}.allow_spinning", "0")
    # A plan of memory is kept for every shape that ever came: many rows, much memory.
    settings.enable_mem_pattern = False
    # What it logs of a failing node repeats callers' values; the error says enough.
    settings.log_severity_level = _FATAL
    if others:
        lengths = [len(each) for each in others.values()]
        settings.add_external_initializers_from_files_in_memory(list(others), list(others.values()), lengths)
    try:
        session = ort.InferenceSession(content, settings, providers=providers)
    except Exception as error:  # its own types, and RuntimeError, by what is wrong
        raise LoadError(f"no graph that ONNX Runtime runs: {str(error)[:200]}") from None
    session._model_bytes = None  # it would keep them for as long as it lives, to begin anew with other providers
    return session


def _used(node: Any, wiring: Wiring) -> bool:
    """Outputs that the protocol has no type for matter only to who declares them."""
    return node.name in wiring.declared or node.type in DATATYPES


def _declared(node: Any, tensors: Mapping[str, Tensor], what: str) -> Tensor:
    """The tensor of a node, if it is as declared; as the graph has it where nothing is declared."""
    datatype = DATATYPES.get(node.type)
    if datatype is None:
        raise LoadError(f"{what} {node.name!r} is {node.type}, which no tensor of the protocol is")
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
    tensor = tensors.get(node.name)
    if tensor is None:
        if what == "input":
            raise LoadError(f"the graph takes an input {node.name!r}, which is not there")
        return Tensor(node.name, datatype, shape)
    # What the graph cannot say of an output, its shape at run time will.
    check_fits(what, tensor, datatype, shape if what == "input" or shape else tensor.shape)
    return tensor


def _node(error: Exception) -> str:
    """ " at a Gather node", of a message that goes on with values."""
    _, found, rest = str(error).partition("while running ")
    return f" at a {rest.split(' ', 1)[0][:64]} node" if found else ""
