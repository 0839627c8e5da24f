"""Tensors of the Open Inference Protocol v2 over gRPC: messages to arrays and back.

A tensor travels *raw* (`raw_input_contents`: little-endian, row-major, BYTES with the length of each element in four
bytes before it; Triton's form, and the only one for FP16 and BF16) or *typed* (`contents`); one message does not mix
the two. A raw tensor becomes an array over the message's own bytes, without a copy, which nobody may write to. Answers
are always raw, as Triton's are.

What a caller got wrong is told by tensor and dimension; values are never repeated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from inference import open_inference_pb2 as pb

from libs.errors import Reason, WeirError
from services.predictor.port import Signature, Tensor, Tensors

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    # numpy has no BF16: the upper half of a float32's bits.
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
"""How arrays hold the protocol's datatypes."""
_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of typed contents that a datatype travels in."""
MAX_ELEMENTS = 65_536
"""Elements of a BYTES tensor, each of which costs 100 ns or more wherever it is touched: a message of a few MiB could
hold a million empty ones and hold up everybody behind it."""
_LENGTH = struct.Struct("<I")


def decode(request: pb.ModelInferRequest, signature: Signature) -> dict[str, np.ndarray]:
    """The inputs of a request, by name; arrays may be read-only.

    :raises WeirError: INVALID_REQUEST with the input and its dimension: an input that is missing, unknown or there
        twice, of another datatype or shape than declared, whose data do not fill its shape, or with other rows than
        the first. Parameters of tensors, shared memory among them, are refused elsewhere (parameters.py).
    """
    declared = {tensor.name: tensor for tensor in signature.inputs}
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        _one_form_only(request)
        raise _refused("raw_input_contents", f"there are {len(request.inputs)} inputs, but {len(raw)} raw contents")
    arrays: dict[str, np.ndarray] = {}
    for number, message in enumerate(request.inputs):
        name = message.name
        tensor = declared.get(name)
        if tensor is None:
            raise _refused("inputs", f"the model has no input {_shown(name)}; it takes {_names(signature.inputs)}")
        if name in arrays:
            raise _refused("inputs", f"input {_shown(name)} is there twice")
        shape = _shape(message, tensor)
        if raw:
            if message.HasField("contents") and message.contents.ByteSize():
                _one_form_only(request)
            arrays[name] = _from_raw(raw[number], tensor, shape)
        else:
            arrays[name] = _from_contents(message.contents, tensor, shape)
    if len(arrays) < len(declared):
        raise _refused("inputs", f"missing input {_names([t for t in signature.inputs if t.name not in arrays])}")
    if signature.max_rows:
        check_rows(arrays, signature)
    return arrays


def check_rows(arrays: Tensors, signature: Signature) -> int:
    """The rows of the inputs; 1 where the model takes them whole.

    :raises WeirError: INVALID_REQUEST: inputs differ in their rows, or there are more than run together.
    """
    if not signature.max_rows or not signature.inputs:
        return 1
    first, *others = signature.inputs
    rows = len(arrays[first.name])
    for other in others:
        if len(arrays[other.name]) != rows:
            raise _refused(
                f"{other.name}.shape[0]",
                f"input {_shown(other.name)}: dimension 0 is {len(arrays[other.name])}, but input {_shown(first.name)} "
                f"has {rows} rows",
            )
    if rows > signature.max_rows:
        raise _refused(
            f"{first.name}.shape[0]",
            f"input {_shown(first.name)}: dimension 0 is {rows}; the model takes at most {signature.max_rows} rows",
        )
    return rows


def requested(request: pb.ModelInferRequest, signature: Signature) -> tuple[Tensor, ...]:
    """The outputs that a request asks for, in its order; all but those on request when it names none.

    :raises WeirError: INVALID_REQUEST for an output that is unknown or there twice.
    """
    if not request.outputs:
        return tuple(tensor for tensor in signature.outputs if not tensor.on_request)
    declared = {tensor.name: tensor for tensor in signature.outputs}
    asked: dict[str, Tensor] = {}
    for message in request.outputs:
        name = message.name
        if name not in declared:
            raise _refused("outputs", f"the model has no output {_shown(name)}; it gives {_names(signature.outputs)}")
        if name in asked:
            raise _refused("outputs", f"output {_shown(name)} is asked for twice")
        asked[name] = declared[name]
    return tuple(asked.values())


def encode(outputs: Tensors, wanted: Sequence[Tensor], response: pb.ModelInferResponse) -> None:
    """Write the wanted outputs to a response, raw, in their order.

    :raises KeyError: the outputs lack one.
    """
    for tensor in wanted:
        array = outputs[tensor.name]
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
        response.raw_output_contents.append(to_raw(array))


def to_raw(array: np.ndarray) -> bytes:
    """The bytes of a tensor on the wire."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(part for element in array.flat for part in (_LENGTH.pack(len(element)), element))


def from_raw(raw: bytes, tensor: Tensor, shape: Sequence[int]) -> np.ndarray:
    """An array over the bytes of a tensor on the wire, for other faces of the protocol.

    :param shape: as the caller states it.
    :raises WeirError: INVALID_REQUEST, as `decode`.
    """
    return _from_raw(raw, tensor, check_shape(shape, tensor))


def check_shape(shape: Sequence[int], tensor: Tensor) -> tuple[int, ...]:
    """A stated shape, if it is one and fits the declared one.

    :raises WeirError: INVALID_REQUEST naming the dimension.
    """
    shape = tuple(shape)
    if len(shape) != len(tensor.shape):
        raise _refused(
            f"{tensor.name}.shape",
            f"input {_shown(tensor.name)} has {len(shape)} dimensions; the model takes {len(tensor.shape)}, "
            f"{list(tensor.shape)}",
        )
    for number, (size, declared) in enumerate(zip(shape, tensor.shape, strict=True)):
        if size < 1 or declared not in (-1, size):
            least = "at least 1" if declared == -1 else str(declared)
            raise _refused(
                f"{tensor.name}.shape[{number}]",
                f"input {_shown(tensor.name)}: dimension {number} is {size}; it must be {least}",
            )
    return shape


def _shape(message: pb.ModelInferRequest.InferInputTensor, tensor: Tensor) -> tuple[int, ...]:
    if message.datatype != tensor.datatype:
        raise _refused(
            f"{tensor.name}.datatype",
            f"input {_shown(tensor.name)} is {_shown(message.datatype)}; the model takes {tensor.datatype}",
        )
    return check_shape(message.shape, tensor)


def _from_raw(raw: bytes, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    if tensor.datatype == "BYTES":
        return _from_lengths(raw, tensor, shape)
    dtype = DTYPES[tensor.datatype]
    # Python's integers: sizes that overflow 64 bits are only another number of bytes that are not there.
    size = math.prod(shape) * dtype.itemsize
    if len(raw) != size:
        raise _refused(
            tensor.name,
            f"input {_shown(tensor.name)}: {len(raw)} bytes of raw contents; "
            f"shape {_dims(shape)} of {tensor.datatype} is {size}",
        )
    array = np.frombuffer(raw, dtype).reshape(shape)
    if tensor.datatype == "BOOL" and array.view(np.uint8).max() > 1:
        raise _refused(tensor.name, f"input {_shown(tensor.name)}: a BOOL is a byte of 0 or 1")
    return array


def _from_lengths(raw: bytes, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    count, end, at = _count(tensor, shape), len(raw), 0
    elements: list[bytes] = []
    for number in range(count):
        start = at + 4
        if start > end:
            raise _refused(
                tensor.name,
                f"input {_shown(tensor.name)}: raw contents end after {number} elements; "
                f"shape {_dims(shape)} has {count}",
            )
        at = start + _LENGTH.unpack_from(raw, at)[0]
        if at > end:
            raise _refused(
                tensor.name,
                f"input {_shown(tensor.name)}: element {number} says that it has {at - start} bytes; "
                f"{end - start} are left",
            )
        elements.append(raw[start:at])
    if at != end:
        raise _refused(
            tensor.name,
            f"input {_shown(tensor.name)}: {end - at} bytes of raw contents behind the {count} elements "
            f"of shape {_dims(shape)}",
        )
    return _objects(elements, shape)


def _from_contents(contents: pb.InferTensorContents, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise _refused(
            tensor.name, f"input {_shown(tensor.name)}: {tensor.datatype} travels in raw_input_contents only"
        )
    for used, _ in contents.ListFields():
        if used.name != field:
            raise _refused(
                f"{tensor.name}.contents",
                f"input {_shown(tensor.name)}: {tensor.datatype} travels in {field}, not in {used.name}",
            )
    elements = getattr(contents, field)
    count = _count(tensor, shape)
    if len(elements) != count:
        raise _refused(
            f"{tensor.name}.contents",
            f"input {_shown(tensor.name)}: {len(elements)} elements; shape {_dims(shape)} has {count}",
        )
    if tensor.datatype == "BYTES":
        return _objects(list(elements), shape)
    # In one copy; element by element a million of them would take 50 ms.
    wide = np.array(elements)
    array = wide.astype(DTYPES[tensor.datatype], copy=False)
    if array.dtype.kind in "iu" and array.itemsize < wide.itemsize and (array != wide).any():
        raise _refused(
            f"{tensor.name}.contents", f"input {_shown(tensor.name)}: an element does not fit {tensor.datatype}"
        )
    return array.reshape(shape)


def _count(tensor: Tensor, shape: tuple[int, ...]) -> int:
    count = math.prod(shape)
    if tensor.datatype == "BYTES" and count > MAX_ELEMENTS:
        raise _refused(
            tensor.name, f"input {_shown(tensor.name)}: shape {_dims(shape)} has more than {MAX_ELEMENTS} elements"
        )
    return count


def _objects(elements: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def _one_form_only(request: pb.ModelInferRequest) -> None:
    for message in request.inputs:
        if message.contents.ByteSize():
            raise _refused(
                f"{message.name}.contents",
                f"input {_shown(message.name)} has typed contents, and the request raw ones: one form for all inputs",
            )


def _refused(field: str, message: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, message, limit=field)


def _shown(name: str) -> str:
    return repr(name[:64])


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(_shown(tensor.name) for tensor in tensors[:8]) + (" and others" if len(tensors) > 8 else "")
