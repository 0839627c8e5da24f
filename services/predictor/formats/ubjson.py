"""Reads UBJSON as XGBoost writes it: keys without a marker, arrays of one type with their length (https://ubjson.org)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_TYPES = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
_CONSTANTS = {b"T": True, b"F": False, b"Z": None}


def read(data: bytes) -> Any:
    """The document: typed arrays are NumPy's, over the bytes.

    :raises ValueError: it is none, or ends early.
    """
    try:
        value, _ = _value(data, 0)
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError(f"no UBJSON: {type(error).__name__}") from None
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    marker, at = data[at : at + 1], at + 1
    if marker == b"{":
        return _object(data, at)
    if marker == b"[":
        return _array(data, at)
    if marker == b"S":
        return _text(data, at)
    if marker in _CONSTANTS:
        return _CONSTANTS[marker], at
    return _number(marker, data, at)


def _object(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    while data[at : at + 1] != b"}":
        name, at = _text(data, at)
        found[name], at = _value(data, at)
    return found, at + 1


def _array(data: bytes, at: int) -> tuple[Any, int]:
    if data[at : at + 1] == b"$":
        dtype = np.dtype(_TYPES[data[at + 1 : at + 2]])
        count, at = _value(data, at + 3)
        end = at + count * dtype.itemsize
        return np.frombuffer(data[at:end], dtype, count), end
    left = -1
    if data[at : at + 1] == b"#":
        left, at = _value(data, at + 1)
    found: list[Any] = []
    while left != 0 and not (left < 0 and data[at : at + 1] == b"]"):
        value, at = _value(data, at)
        found.append(value)
        left -= 1
    return found, at if left == 0 else at + 1


def _text(data: bytes, at: int) -> tuple[str, int]:
    size, at = _value(data, at)
    return data[at : at + size].decode(), at + size


def _number(marker: bytes, data: bytes, at: int) -> tuple[Any, int]:
    dtype = np.dtype(_TYPES[marker])
    return np.frombuffer(data, dtype, 1, at)[0].item(), at + dtype.itemsize
