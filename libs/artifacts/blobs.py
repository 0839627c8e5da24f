"""The port of blob stores: files by the SHA-256 of their content, kept once, never changed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

CHUNK = 1 << 20
"""Bytes read at once: stays in the processor's cache."""
Told = Callable[[int], None]
"""Told of so many more bytes that are dealt with, from any thread. What it raises ends what it is told of."""
PART_PREFIX = ".part-"
"""Begins the names of files that are being written."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def untold(count: int) -> None:
    """Nobody is told."""


class BlobError(Exception):
    """A blob store could not do what it was asked; the message says why and names the store, never a credential."""


class BlobNotFound(BlobError):
    """There is no such blob."""


class BlobCorrupt(BlobError):
    """The bytes are not those of the digest."""


class BlobStoreUnavailable(BlobError):
    """The store does not answer, refuses, or is full; trying again may help."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A blob in a store."""

    digest: str
    """SHA-256, 64 hex digits."""
    size: int
    """Bytes."""
    touched_at: float
    """Unix seconds, by the store's clock, when it was last put, whether or not it was there already."""


class BlobStore(Protocol):
    """Files by digest under `sha256/<first two digits>/<digest>`. Every method may raise BlobStoreUnavailable.

    A blob is there whole or not at all. Blobs that are set aside are out of sight of all but `aside`, `restore` and
    `discard`: garbage collection removes in two steps, between which a mistake can be undone.
    """

    async def put(self, digest: str, source: Path | BinaryIO, told: Told = untold) -> bool:
        """Stores the bytes of a file, or of a stream from where it stands. Of a blob that is there only the age is
        made new, and `source` is not read.

        A file whose storing was interrupted, by whatever it was, goes on where it stopped.

        :returns: whether bytes were written.
        :raises BlobCorrupt: the bytes have another digest; nothing is stored.
        :raises OSError: the source cannot be read.
        """

    async def get(self, digest: str, sink: BinaryIO) -> int:
        """Writes a blob's bytes to a stream and says how many there were.

        :raises BlobNotFound: there is none.
        :raises BlobCorrupt: the bytes have another digest; the sink has got some of them and must be thrown away.
        :raises OSError: the sink cannot be written.
        """

    async def stat(self, digest: str) -> BlobInfo | None:
        """What is known of a blob without reading it; None when there is none."""

    def blobs(self) -> AsyncIterator[BlobInfo]:
        """All blobs, in no order. One that comes or goes meanwhile may be missed."""

    async def set_aside(self, digest: str) -> bool:
        """Takes a blob out of sight; False when there was none."""

    def aside(self) -> AsyncIterator[BlobInfo]:
        """All blobs that are set aside."""

    async def restore(self, digest: str) -> bool:
        """Puts a blob that was set aside back in its place, with its age made new; False when it was not set aside."""

    async def discard(self, digest: str) -> None:
        """Deletes a blob that was set aside; fine when there is none."""

    async def clean(self, before: float) -> int:
        """Removes what interrupted uploads left that began before this time (Unix seconds); says how many."""

    async def keep(self, name: str, content: bytes) -> bool:
        """Write something small under a name of its own, apart from the blobs, once; False when the name is taken.

        What keeps it from being overwritten or deleted afterwards is the store's: a bucket's Object Lock.

        :raises BlobStoreUnavailable: the store does not answer.
        """

    async def first_kept(self, under: str) -> tuple[str, bytes] | None:
        """The first by name of what is kept under a prefix, and its content.

        :raises BlobStoreUnavailable: the store does not answer.
        """

    async def close(self) -> None:
        """Lets go of connections."""


def check_digest(digest: str) -> str:
    """The digest, if it is one: it becomes part of paths and of addresses.

    :raises ValueError: it is not 64 lower-case hex digits.
    """
    if not _DIGEST.fullmatch(digest):
        raise ValueError("a blob's digest must be 64 lower-case hex digits")
    return digest


def sha256_of(source: BinaryIO, told: Told = untold) -> tuple[str, int]:
    """SHA-256 and length in bytes of what is left of a stream."""
    hasher = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    size = 0
    while count := source.readinto(buffer):  # type: ignore[attr-defined]
        hasher.update(buffer[:count])
        size += count
        told(count)
    return hasher.hexdigest(), size


async def get_file(store: BlobStore, digest: str, path: Path, *, size: int, mode: int = 0o444) -> None:
    """Writes a blob to a file, whole or not at all.

    :param size: what it must have, bytes; a longer blob is given up at this length, so that it cannot fill the disk.
    :raises BlobNotFound, BlobCorrupt, BlobStoreUnavailable, OSError: as `BlobStore.get`; the file is as it was.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=PART_PREFIX, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            found = await store.get(digest, cast(BinaryIO, _Bounded(file, size)))
            if found != size:
                raise BlobCorrupt(f"blob {digest[:12]}… has {found} bytes and should have {size}")
            file.flush()
            os.fchmod(file.fileno(), mode)
            await asyncio.to_thread(os.fsync, file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


class Nowhere:
    """A sink for those who only want to know whether a blob is right."""

    def write(self, chunk: bytes) -> int:
        """Takes everything."""
        return len(chunk)


class _Bounded:
    def __init__(self, sink: BinaryIO, size: int) -> None:
        self._sink = sink
        self._size = size
        self._left = size

    def write(self, chunk: bytes) -> int:
        self._left -= len(chunk)
        if self._left < 0:
            raise BlobCorrupt(f"a blob has more than the {self._size} bytes that it should have")
        return self._sink.write(chunk)
