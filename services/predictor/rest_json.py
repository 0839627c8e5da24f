"""Requests and answers of the Open Inference Protocol over HTTP ↔ its gRPC messages. Pure but for the messages.

A body is a JSON object and, behind it, the bytes of the tensors that name their `binary_data_size`, in order
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md). In the messages
all tensors are raw, wherever they came from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from google.protobuf.message import Message
from inference.open_inference_pb2 import InferParameter, ModelInferRequest, ModelInferResponse

from libs.errors import Reason, WeirError

HEADER_LENGTH = "inference-header-content-length"
"""How many of a body's bytes are JSON; all of them without this header."""
_NUMBERS = {
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (32, 64)},
}
_JSON_TYPES: Mapping[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""What values may be, by NumPy's word for the kind of a datatype."""
_RAW_ALONE = ("FP16", "BF16")
_DEEPEST = 32
"""Dimensions of a tensor."""
_Dimension = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Parameters = dict[str, bool | int | float | str]


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[_Dimension]
    parameters: _Parameters = {}
    data: list[Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: _Parameters = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: _Parameters = {}
    outputs: list[_Output] = []


_REQUEST = msgspec.json.Decoder(_Request)


class Wanted(NamedTuple):
    """Which outputs a caller takes in binary."""

    otherwise: bool = False
    """Those that it did not speak of."""
    by_output: Mapping[str, bool] = {}


def request_of(body: bytes, header_length: str, name: str, version: str) -> tuple[ModelInferRequest, Wanted]:
    """What a body asks of a model.

    :param header_length: the header `HEADER_LENGTH`; empty where there was none.
    :raises WeirError: INVALID_REQUEST, naming the field or the tensor; UNIMPLEMENTED for a body without JSON.
    """
    length = _header_length(header_length, len(body))
    asked = _parsed(body[:length])
    message = ModelInferRequest(model_name=name, model_version=version, id=asked.id)
    rest, at = memoryview(body), length
    for tensor in asked.inputs:
        size = _taken(tensor.parameters, "binary_data_size", None)
        made = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        _set(made.parameters, tensor.parameters)
        if size is not None:
            if tensor.data is not None:
                raise _bad(tensor.name, "it has data and binary_data_size: one of them")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(body) - at:
                raise _bad(tensor.name, f"binary_data_size: {len(body) - at} bytes are left of the body")
            message.raw_input_contents.append(bytes(rest[at : at + size]))
            at += size
        elif tensor.data is not None:
            message.raw_input_contents.append(_raw(tensor))
        elif "shared_memory_region" not in tensor.parameters:  # that is refused where all parameters are
            raise _bad(tensor.name, "it has neither data nor binary_data_size")
    if at != len(body):
        raise _invalid(f"{len(body) - at} bytes behind the last tensor are no tensor's", "inputs")
    binary = {}
    for output in asked.outputs:
        binary[output.name] = _taken(output.parameters, "binary_data", False) is True
        _set(message.outputs.add(name=output.name).parameters, output.parameters)
    wanted = Wanted(_taken(asked.parameters, "binary_data_output", False) is True, binary)
    _set(message.parameters, asked.parameters)
    return message, wanted


def body_of(response: ModelInferResponse, wanted: Wanted) -> tuple[bytes, int | None]:
    """The body of an answer, and how much of it is JSON; None: all.

    :raises WeirError: INVALID_REQUEST: an output that cannot be JSON was not asked for in binary.
    """
    outputs, binary, finite = [], [], True
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        told = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        parameters = dict(_told(tensor.parameters))
        if wanted.by_output.get(tensor.name, wanted.otherwise):
            parameters["binary_data_size"] = len(raw)
            binary.append(raw)
        else:
            told["data"], proper = _data(tensor.name, tensor.datatype, raw)
            finite = finite and proper
        outputs.append(told | ({"parameters": parameters} if parameters else {}))
    answer: dict[str, object] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        answer["id"] = response.id
    if response.parameters:
        answer["parameters"] = dict(_told(response.parameters))
    answer["outputs"] = outputs
    # NaN and infinities, which JSON has not, are written as Triton and its clients do.
    head = msgspec.json.encode(answer) if finite else json.dumps(answer, ensure_ascii=False).encode()
    return b"".join([head, *binary]), len(head) if binary else None


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON has it in this protocol: every field by its own name, and 64-bit numbers as numbers."""
    return {field.name: _plain(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {str(key): _one(of, each) for key, each in value.items()}
    return [_one(field, each) for each in value] if field.is_repeated else _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value


def _header_length(header: str, whole: int) -> int:
    if not header:
        return whole
    if not header.isdecimal() or len(header) > 15 or int(header) > whole:
        raise _invalid(
            f"Inference-Header-Content-Length must be a number of bytes, at most the body's {whole}", HEADER_LENGTH
        )
    if not int(header):
        raise WeirError(Reason.UNIMPLEMENTED, "bodies without JSON are not supported", limit=HEADER_LENGTH)
    return int(header)


def _parsed(text: bytes) -> _Request:
    try:
        try:
            return _REQUEST.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # Once more for the NaN, Infinity and -Infinity that clients of Triton write.
            return msgspec.convert(json.loads(text), _Request)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        said = str(error) if isinstance(error, msgspec.ValidationError) else "it is not JSON"
        raise _invalid(f"the body: {said[:200]}", "body") from None


def _raw(tensor: _Input) -> bytes:
    """The values as bytes, little-endian and row by row."""
    data, datatype = tensor.data or [], tensor.datatype
    if datatype in _RAW_ALONE:
        raise _bad(tensor.name, f"{datatype} travels in binary alone: give binary_data_size")
    if datatype == "BYTES":
        texts = list(_texts(tensor.name, data))
        count, raw = len(texts), b"".join(texts)
    else:
        values = _values(tensor.name, datatype, data)
        count, raw = values.size, values.tobytes()
    if min(tensor.shape, default=0) >= 0 and count != math.prod(tensor.shape):
        raise _bad(tensor.name, f"it has {count} values, its shape says {math.prod(tensor.shape)}")
    return raw


def _values(name: str, datatype: str, data: list[Any]) -> np.ndarray:
    wanted = _NUMBERS.get(datatype) if datatype != "BOOL" else np.dtype(np.bool_)
    if wanted is None:
        raise _bad(name, f"there is no datatype {datatype[:32]!r}")
    # Looked at beforehand: of one long text among many values NumPy would make as many long texts.
    if not _types(name, data) <= _JSON_TYPES[wanted.kind]:
        raise _bad(name, f"its data is not all {datatype}")
    try:
        with np.errstate(over="ignore"):  # beyond FP32 is infinite, as everywhere
            return np.array(data, np.float64 if wanted.kind == "f" else wanted).astype(wanted)
    except OverflowError:
        raise _bad(name, f"a value is beyond {datatype}") from None
    except ValueError:
        raise _bad(name, "its data is ragged") from None


def _types(name: str, data: list[Any], depth: int = 0) -> set[type]:
    """What its values are, whatever lists they are in."""
    if depth > _DEEPEST:
        raise _bad(name, f"its data has more than {_DEEPEST} dimensions")
    found: set[type] = set(map(type, data))
    if list in found:
        found.remove(list)
        found |= {kind for each in data if isinstance(each, list) for kind in _types(name, each, depth + 1)}
    return found


def _texts(name: str, data: Iterable[Any]) -> Iterator[bytes]:
    """Each with its length before it, as BYTES travel; lists in lists are read row by row."""
    waiting = [iter(data)]
    while waiting:
        for each in waiting[-1]:
            if isinstance(each, list):
                waiting.append(iter(each))
                break
            if not isinstance(each, str):
                raise _bad(name, "BYTES are texts, or travel in binary")
            try:
                text = each.encode()
            except UnicodeEncodeError:
                raise _bad(name, "a text has half a surrogate pair") from None
            yield len(text).to_bytes(4, "little") + text
        else:
            waiting.pop()


def _data(name: str, datatype: str, raw: bytes) -> tuple[list[Any], bool]:
    """The values of an output, and whether JSON has a word for each of them."""
    if datatype in _RAW_ALONE:
        raise _invalid(f"output {name[:64]!r} is {datatype}, which travels in binary alone: ask for binary_data", name)
    if datatype != "BYTES":
        values = np.frombuffer(raw, np.bool_ if datatype == "BOOL" else _NUMBERS[datatype])
        return values.tolist(), values.dtype.kind != "f" or bool(np.isfinite(values).all())
    texts, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        try:
            texts.append(raw[at + 4 : end].decode())
        except UnicodeDecodeError:
            raise _invalid(f"output {name[:64]!r} is not all UTF-8: ask for binary_data", name) from None
        at = end
    return texts, True


def _taken(parameters: _Parameters, name: str, otherwise: Any) -> Any:
    return parameters.pop(name, otherwise)


def _set(into: Any, parameters: _Parameters) -> None:
    for name, value in parameters.items():
        if isinstance(value, bool):
            into[name].bool_param = value
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**64:
                raise _invalid(f"parameter {name[:64]!r} is beyond 64 bits", name)
            setattr(into[name], "int64_param" if value < 2**63 else "uint64_param", value)
        elif isinstance(value, float):
            into[name].double_param = value
        else:
            into[name].string_param = value


def _told(parameters: Mapping[str, InferParameter]) -> Iterator[tuple[str, object]]:
    for name, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        yield name, getattr(value, kind) if kind else None


def _invalid(message: str, limit: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, message, limit=limit[:100])


def _bad(name: str, message: str) -> WeirError:
    return _invalid(f"input {name[:64]!r}: {message}", name)
