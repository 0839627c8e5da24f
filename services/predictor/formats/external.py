"""Which other files an ONNX model keeps tensors in (`external_data`). ONNX Runtime opens them by path, wherever that
leads: so they are found out first, read as every file is, and given to it from memory. Standard library alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from services.predictor.formats.step import LoadError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_INITIALIZER, _TENSOR = "initializer", "tensor"
_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "main graph", 20: "training", 25: "function"},
    "main graph": {1: "node", 5: _INITIALIZER, 15: "sparse"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
}
"""Where messages of onnx.proto hold others that lead to tensors, by number of the field."""
_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14
"""Fields of `TensorProto`."""
_KEY, _VALUE = 1, 2


def files_of(content: bytes) -> list[str]:
    """The locations of what the graph's initializers keep elsewhere, as the model has them.

    :raises LoadError: another tensor lies elsewhere, which only paths lead to; or the content is no message of ONNX.
    """
    data = memoryview(content)
    found: dict[str, None] = {}
    due = [("model", 0, len(data))]
    try:
        while due:
            kind, start, end = due.pop()
            if kind in (_INITIALIZER, _TENSOR):
                name, locations = _tensor(data, start, end)
                if locations and kind == _TENSOR:
                    raise LoadError(f"tensor {name[:80]!r} lies in another file, and is no initializer of the graph")
                found |= dict.fromkeys(locations)
                continue
            inside = _INSIDE[kind]
            for field, wire, begin, stop in _fields(data, start, end):
                if wire == _BYTES and field in inside:
                    due.append((inside[field], begin, stop))
    except (IndexError, ValueError):
        raise LoadError("no graph that ONNX Runtime runs: no message of ONNX") from None
    return list(found)


def _tensor(data: memoryview, start: int, end: int) -> tuple[str, list[str]]:
    """Its name, and where it lies if that is elsewhere."""
    name, locations, outside = "", [""], False
    for field, wire, begin, stop in _fields(data, start, end):
        if field == _DATA_LOCATION:
            outside |= any(data[begin:stop])
        elif wire == _BYTES and field == _NAME:
            name = _text(data, begin, stop)
        elif wire == _BYTES and field == _EXTERNAL_DATA:
            entry = {part: _text(data, *place) for part, kind, *place in _fields(data, begin, stop) if kind == _BYTES}
            if entry.get(_KEY) == "location":
                locations = [*filter(None, locations), entry.get(_VALUE, "")]
    return name, locations if outside else []


def _text(data: memoryview, start: int, end: int) -> str:
    return bytes(data[start:end]).decode()


def _fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Of the message between two places: number, wire type, and where the value lies.

    :raises ValueError: it is no message.
    """
    at = start
    while at < end:
        tag, at = _varint(data, at)
        wire, begin = tag & 7, at
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _BYTES:
            size, begin = _varint(data, at)
            at = begin + size
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:  # groups, which ONNX has none of
            raise ValueError(wire)
        if at > end:
            raise ValueError(at)
        yield tag >> 3, wire, begin, at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """It and the place behind it.

    :raises ValueError: it has more than ten bytes.
    :raises IndexError: the data end within it.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(at)
