"""What parent and child say to each other: a header in JSON and arrays. Both treat the other's as anybody's.

A frame is `>IQ` (bytes of the header, bytes of the body), the header, the body: the arrays' elements in the header's
order; of arrays of `bytes`, each element behind its length, `<I`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_LENGTHS = struct.Struct(">IQ")
_ELEMENT = struct.Struct("<I")
_MAX_HEADER = 1 << 20
_MAX_BODY = 1 << 30
_KINDS = "biuf"  # of NumPy's dtypes: bools, integers, unsigned, floats

Read = Callable[[int], bytes]
"""So many bytes, all of them.

:raises EOFError: the other side is gone."""


class FrameError(Exception):
    """The other side does not speak as it should."""


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """A frame.

    :raises FrameError: an array holds what no tensor holds.
    """
    bodies = {name: _elements(array) for name, array in arrays.items()}
    listed = [
        {"name": name, "dtype": array.dtype.str, "shape": array.shape, "bytes": len(bodies[name])}
        for name, array in arrays.items()
    ]
    head = json.dumps({**header, "arrays": listed}).encode()
    body = b"".join(bodies.values())
    return _LENGTHS.pack(len(head), len(body)) + head + body


def unpack(read: Read, most: int = _MAX_BODY) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The next frame, with a body of `most` bytes; its arrays are of their own memory.

    :raises FrameError: it is malformed.
    :raises EOFError: the other side is gone.
    """
    head, body = _LENGTHS.unpack(read(_LENGTHS.size))
    if head > _MAX_HEADER or body > most:
        raise FrameError("too large")
    said, content = read(head), read(body)
    try:
        header = json.loads(said)
        arrays, at = {}, 0
        for each in header.pop("arrays"):
            arrays[str(each["name"])] = _array(each, memoryview(content)[at : at + int(each["bytes"])])
            at += int(each["bytes"])
    except FrameError:
        raise
    except Exception as error:  # whatever hostile JSON makes of these lines
        raise FrameError("malformed") from error
    if at != body:
        raise FrameError("malformed")
    return header, arrays


def _elements(array: np.ndarray) -> bytes:
    if array.dtype.kind in _KINDS:
        return np.ascontiguousarray(array).tobytes()
    if array.dtype.kind != "O" or not all(isinstance(each, bytes) for each in array.flat):
        raise FrameError("an array must hold numbers, or `bytes` as objects")
    return b"".join(_ELEMENT.pack(len(each)) + each for each in array.flat)


def _array(said: Mapping[str, Any], content: memoryview) -> np.ndarray:
    dtype, shape = np.dtype(str(said["dtype"])), tuple(map(int, said["shape"]))
    count = math.prod(shape)
    if min(shape, default=0) < 0:
        raise FrameError("malformed")
    if dtype.kind in _KINDS:
        if count * dtype.itemsize != len(content):
            raise FrameError("malformed")
        return np.frombuffer(bytearray(content), dtype).reshape(shape)
    if dtype.kind != "O" or count > len(content) // _ELEMENT.size:
        raise FrameError("malformed")
    made, at = np.empty(count, object), 0
    for number in range(count):
        start = at + _ELEMENT.size
        at = start + _ELEMENT.unpack_from(content, at)[0]
        if at > len(content):
            raise FrameError("malformed")
        made[number] = bytes(content[start:at])
    if at != len(content):
        raise FrameError("malformed")
    return made.reshape(shape)
