"""NumPy arrays and plain lists to tensors of the Open Inference Protocol, and back. Pure."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from inference import open_inference_pb2 as pb

from libs.errors import Reason, WeirError

Tensor = np.ndarray | Sequence[Any]
"""An array, whose type must be the declared one, or nested lists, which are converted where nothing is lost."""

_DTYPES: Mapping[str, np.dtype[Any]] = {
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
    "BF16": np.dtype("<f4"),  # numpy has none: float32 on this side
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
_TAKES = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
"""Kinds of lists' elements by the kind of the declared type: a float is no integer, a bool is no number."""
_LENGTH = struct.Struct("<I")


class Column(NamedTuple):
    """One of a matrix."""

    name: str
    """Empty: it has none."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor as a model declares it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """-1: any size."""
    columns: tuple[Column, ...] = ()
    """Of a matrix, in order, where more is known of them than their number."""


def inputs_of(given: Mapping[str, Tensor], declared: Sequence[Declared], request: pb.ModelInferRequest) -> None:
    """Add the inputs to a request, raw.

    :param given: by the names of the inputs, or of the columns of the one matrix that the model takes.
    :raises WeirError: INVALID_REQUEST, naming the tensor or column: one that the model does not have, one that is
        missing, a type or a shape that is not the declared one.
    """
    if (matrix := _by_columns(given, declared)) is not None:
        given = {declared[0].name: _side_by_side(given, matrix)}
    names = {tensor.name for tensor in declared}
    for name in given:
        if name not in names:
            raise _refused(name, f"the model has no input {name!r}; it takes {', '.join(sorted(names))}")
    for tensor in declared:
        if tensor.name not in given:
            raise _refused(tensor.name, f"input {tensor.name!r} is missing")
        array = _array(given[tensor.name], tensor)
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
        request.raw_input_contents.append(_raw(array, tensor.datatype))


def _by_columns(given: Mapping[str, Tensor], declared: Sequence[Declared]) -> Declared | None:
    """The matrix whose columns these are; None where they are inputs."""
    if len(declared) != 1 or declared[0].name in given:
        return None
    names = [column.name for column in declared[0].columns]
    named = all(names) and len(set(names)) == len(names)
    return declared[0] if named and not given.keys().isdisjoint(names) else None


def _side_by_side(given: Mapping[str, Tensor], matrix: Declared) -> np.ndarray:
    """Columns in the model's order."""
    names = [column.name for column in matrix.columns]
    if unknown := given.keys() - set(names):
        name = min(unknown)
        raise _refused(name, f"input {matrix.name!r} has no column {name!r}; it takes {', '.join(names)[:200]}")
    found: dict[str, np.ndarray] = {}
    for name in names:
        if name not in given:
            raise _refused(name, f"column {name!r} of input {matrix.name!r} is missing")
        found[name] = _array(given[name], Declared(name, matrix.datatype, (-1,)))
        if len(found[name]) != len(found[names[0]]):
            lengths = f"{len(found[name])} rows, and {names[0]!r} {len(found[names[0]])}"
            raise _refused(name, f"column {name!r} of input {matrix.name!r} has {lengths}")
    return np.stack(list(found.values()), axis=1)


def outputs_of(response: pb.ModelInferResponse) -> dict[str, np.ndarray]:
    """The outputs; BYTES as object arrays of `bytes`, BF16 as float32.

    :raises WeirError: INTERNAL, it is no answer of raw tensors.
    """
    try:
        pairs = zip(response.outputs, response.raw_output_contents, strict=True)
        return {told.name: _from_raw(raw, told.datatype, tuple(told.shape)) for told, raw in pairs}
    except (ValueError, KeyError, struct.error) as error:
        raise WeirError(Reason.INTERNAL, "the answer's tensors are not as it says") from error


def lists_of(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """As plain lists; BYTES as text where they are UTF-8."""
    return {name: _text(array.tolist()) if array.dtype == object else array.tolist() for name, array in arrays.items()}


def _array(value: Tensor, declared: Declared) -> np.ndarray:
    array = _checked(value, declared) if isinstance(value, np.ndarray) else _converted(value, declared)
    fits = len(array.shape) == len(declared.shape) and all(
        size in (-1, own) for size, own in zip(declared.shape, array.shape, strict=True)
    )
    if not fits:
        raise _refused(
            declared.name,
            f"input {declared.name!r}: shape {list(array.shape)} does not fit {list(declared.shape)} (-1: any size)",
        )
    return array


def _checked(array: np.ndarray, declared: Declared) -> np.ndarray:
    if declared.datatype == "BYTES":
        if array.dtype.kind not in "OSU":
            raise _mistyped(declared, str(array.dtype))
        return _elements(array, declared)
    dtype = _DTYPES.get(declared.datatype)
    if dtype is None or array.dtype != dtype:
        raise _mistyped(declared, str(array.dtype))
    return array.astype(dtype, copy=False)  # to little-endian


def _converted(value: Sequence[Any], declared: Declared) -> np.ndarray:
    dtype = _DTYPES.get(declared.datatype)
    try:
        found = np.array(value, object) if declared.datatype == "BYTES" else np.asarray(value)
    except ValueError:
        raise _refused(declared.name, f"input {declared.name!r}: rows of different lengths") from None
    if declared.datatype == "BYTES":
        return _elements(found, declared)
    if dtype is None or (found.dtype.kind not in _TAKES[dtype.kind] and found.size):
        kind = {"b": "bools", "O": "mixed types", "U": "text", "S": "bytes"}.get(found.dtype.kind, str(found.dtype))
        raise _mistyped(declared, kind)
    with np.errstate(over="ignore"):
        array = found.astype(dtype)
    if dtype.kind in "iu":
        lost = array != found
    else:
        lost = np.isinf(array) & np.isfinite(found) if dtype.kind == "f" else np.zeros(found.shape, bool)
    if lost.any():
        at = np.argwhere(lost)[0].tolist()
        raise _refused(declared.name, f"input {declared.name!r}: the element at {at} does not fit {declared.datatype}")
    return array


def _elements(array: np.ndarray, declared: Declared) -> np.ndarray:
    made = np.empty(array.size, object)
    for number, each in enumerate(array.flat):
        if not isinstance(each, (str, bytes)):
            raise _mistyped(declared, type(each).__name__)
        made[number] = each.encode() if isinstance(each, str) else bytes(each)
    return made.reshape(array.shape)


def _raw(array: np.ndarray, datatype: str) -> bytes:
    if datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(each)) + each for each in array.flat)
    if datatype == "BF16":
        bits = np.ascontiguousarray(array).view(np.uint32)
        # Half to even, as processors do; what is no number stays none.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype("<u2").tobytes()
    return np.ascontiguousarray(array).tobytes()


def _from_raw(raw: bytes, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    if datatype == "BF16":
        bits = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    if datatype != "BYTES":
        return np.frombuffer(raw, _DTYPES[datatype]).reshape(shape)
    made, at = np.empty(math.prod(shape), object), 0
    for number in range(len(made)):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(raw, at)[0]
        made[number] = raw[start:at]
    if at != len(raw):
        raise ValueError("elements of another length")
    return made.reshape(shape)


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(each) for each in value]
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _mistyped(declared: Declared, found: str) -> WeirError:
    return _refused(declared.name, f"input {declared.name!r} is {declared.datatype}; these are {found}")


def _refused(tensor: str, message: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, message, limit=tensor)
