"""Reads logs that are being written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a file; at most its last 256 KiB are read."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 256 * 1024))
        return file.read().decode("utf-8", "replace").splitlines()[-count:]


def follow(path: Path, *, interval: float = 0.2) -> Iterator[str]:
    """Lines that are appended from now on, for ever; survives rotation."""
    file = open(path, "rb")  # noqa: SIM115 - replaced on rotation
    try:
        file.seek(0, os.SEEK_END)
        rest = b""
        while True:
            data = file.read()
            if not data:
                if not _rotated(file.fileno(), path):
                    time.sleep(interval)
                    continue
                data = file.read()  # what came between the two looks
                file.close()
                file = open(path, "rb")  # noqa: SIM115 - replaced on rotation
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
    finally:
        file.close()


def _rotated(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
