"""The journal: what was decided, appended to one file, now and then rewritten as one snapshot of the state.

Form: an 8-byte magic, then frames of a 4-byte little-endian length, a 4-byte CRC-32 and a MessagePack body. A torn or
damaged frame ends the reading: what comes after it is unknown, what came before is good. All methods block; callers
keep them off the event loop.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from services.ratelimit.policy.recovery import Frame

_MAGIC = b"WEIRQ\x00\x00\x02"
_HEAD = struct.Struct("<II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class Journal:
    """One process's journal; not for use by two at once."""

    def __init__(self, path: Path, *, rewrite_bytes: int) -> None:
        self._path = path
        self._rewrite_bytes = rewrite_bytes
        self._size = 0
        self._snapshot_size = 0

    @property
    def wants_snapshot(self) -> bool:
        """The next write should be a full frame: nothing was written yet, or the file has grown long."""
        return self._size == 0 or self._size > max(self._rewrite_bytes, 2 * self._snapshot_size)

    def load(self) -> list[Frame]:
        """The good frames, oldest first; none when there is no file. The next write starts a new file.

        :raises OSError: the file exists and cannot be read.
        """
        self._size = 0
        try:
            return list(_frames(self._path.read_bytes()))
        except FileNotFoundError:
            return []

    def write(self, frame: Frame) -> None:
        """Appends a frame, or with a full one replaces the file; durable on return.

        :raises OSError: it could not be written; the next frame must be a full one (`wants_snapshot`).
        """
        body = _encoder.encode(frame)
        block = _HEAD.pack(len(body), zlib.crc32(body)) + body
        try:
            if frame.state is not None:
                self._replace(_MAGIC + block)
            else:
                with self._path.open("ab") as file:
                    _write(file.fileno(), block)
                self._size += len(block)
        except OSError:
            self._size = 0
            raise

    def _replace(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            _write(file.fileno(), content)
        fresh.replace(self._path)
        self._size = self._snapshot_size = len(content)


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)


def _frames(content: bytes) -> Iterator[Frame]:
    if not content.startswith(_MAGIC):
        return
    offset = len(_MAGIC)
    while offset + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, offset)
        body = content[offset + _HEAD.size : offset + _HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            return
        try:
            yield _decoder.decode(body)
        except msgspec.DecodeError:
            return
        offset += _HEAD.size + length
