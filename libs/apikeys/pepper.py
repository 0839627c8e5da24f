"""The pepper file: the one secret that registry and edge-auth share."""

from __future__ import annotations

from pathlib import Path

from libs.apikeys import decode_pepper


def read_pepper(path: Path) -> bytes:
    """The pepper.

    :raises OSError: the file cannot be read.
    :raises ValueError: it holds fewer than 16 bytes.
    """
    return decode_pepper(path.read_bytes())
