"""The journal: what was decided, appended to one file, now and then rewritten as a snapshot of the state.

A snapshot is written piece by piece into a new file, which takes the place of the old one when it is whole; what is
decided meanwhile goes into both. Form: an 8-byte magic, then frames of a 4-byte little-endian length, a 4-byte CRC-32
and a MessagePack body. A torn or
damaged frame ends the reading: what comes after it is unknown, what came before is good. All methods block; callers
keep them off the event loop.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from services.ratelimit.policy.recovery import Frame

_MAGIC = b"WEIRQ\x00\x00\x03"
_HEAD = struct.Struct("<II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class Journal:
    """One process's journal; not for use by two at once."""

    def __init__(self, path: Path, *, rewrite_bytes: int) -> None:
        self._path = path
        self._rewrite_bytes = rewrite_bytes
        self._fresh = path.with_suffix(".new")
        self._size = 0
        self._fresh_size = 0
        self._snapshot_size = 0

    @property
    def wants_snapshot(self) -> bool:
        """There should be a snapshot: nothing was written yet, a write failed, or the file has grown long."""
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

    def write(self, frames: Iterable[Frame]) -> None:
        """Appends what was decided; durable on return where there is a whole file.

        :raises OSError: it could not be written; a snapshot must follow (`wants_snapshot`).
        """
        try:
            for frame in frames:
                block = _block(frame)
                if self._size:
                    _append(self._path, block)
                    self._size += len(block)
                if self._fresh_size:
                    self._add(block)
            if self._size:
                _sync(self._path)
        except OSError:
            self._size = self._fresh_size = 0
            raise

    def begin(self) -> None:
        """A snapshot begins.

        :raises OSError: as `write`.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fresh.write_bytes(_MAGIC)
        self._fresh_size = len(_MAGIC)

    def add(self, frame: Frame) -> None:
        """A piece of the snapshot.

        :raises OSError: as `write`.
        """
        try:
            self._add(_block(frame))
        except OSError:
            self._size = self._fresh_size = 0
            raise

    def commit(self) -> None:
        """The snapshot is whole: it is the journal; durable on return.

        :raises OSError: as `write`.
        """
        try:
            _sync(self._fresh)
            self._fresh.replace(self._path)
        except OSError:
            self._size = self._fresh_size = 0
            raise
        self._size = self._snapshot_size = self._fresh_size
        self._fresh_size = 0

    def _add(self, block: bytes) -> None:
        _append(self._fresh, block)
        self._fresh_size += len(block)


def _block(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        view = memoryview(content)
        while view:
            view = view[os.write(file.fileno(), view) :]


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


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
