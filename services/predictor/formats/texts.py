"""BYTES for runtimes that want text."""

from __future__ import annotations

import numpy as np

from services.predictor.port import ModelError


def to_text(array: np.ndarray, name: str) -> np.ndarray:
    """BYTES as an array of `str`, for what takes UTF-8 only.

    :raises ModelError: an element is not UTF-8.
    """
    text = np.empty(array.size, object)
    try:
        text[:] = [element.decode() for element in array.flat]
    except UnicodeDecodeError:
        raise ModelError(f"input {name!r}: an element is not UTF-8", name) from None
    return text.reshape(array.shape)


def to_bytes(array: np.ndarray) -> np.ndarray:
    """An array of `str` (or of things with a name, such as labels) as BYTES."""
    encoded = np.empty(array.size, object)
    encoded[:] = [each if isinstance(each, bytes) else str(each).encode() for each in array.flat]
    return encoded.reshape(array.shape)
