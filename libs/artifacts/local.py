"""Blobs in a directory, which may be a network file system that several machines share.

    sha256/<2>/<digest>    blobs, mode 0444
    aside/<digest>         blobs on their way out
    tmp/                   uploads under way: of files DIGEST.part, with which the next attempt goes on
    kept/<name>            small things with names of their own: anchors of the audit log

A blob is written under tmp/, flushed to the disk and renamed into place, so it is there whole or not at all, after a
power cut too.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from libs.artifacts.blobs import (
    CHUNK,
    BlobCorrupt,
    BlobInfo,
    BlobNotFound,
    BlobStoreUnavailable,
    Told,
    check_digest,
    untold,
)


class LocalBlobStore:
    """Blobs under a directory, which is created when it is first written to."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __repr__(self) -> str:
        return f"LocalBlobStore({str(self._root)!r})"

    async def put(self, digest: str, source: Path | BinaryIO, told: Told = untold) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._put, check_digest(digest), source, told)

    async def get(self, digest: str, sink: BinaryIO) -> int:
        """As in the port."""
        return await asyncio.to_thread(self._get, check_digest(digest), sink)

    async def stat(self, digest: str) -> BlobInfo | None:
        """As in the port."""
        with self._available():
            return await asyncio.to_thread(_info, self._path(digest))

    async def blobs(self) -> AsyncIterator[BlobInfo]:
        """As in the port."""
        for shard in await asyncio.to_thread(self._entries, self._root / "sha256"):
            for info in await asyncio.to_thread(self._infos, shard):
                yield info

    async def set_aside(self, digest: str) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._move, self._path(digest), self._aside(digest))

    async def aside(self) -> AsyncIterator[BlobInfo]:
        """As in the port."""
        for info in await asyncio.to_thread(self._infos, self._root / "aside"):
            yield info

    async def restore(self, digest: str) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._restore, digest)

    async def discard(self, digest: str) -> None:
        """As in the port."""
        with self._available():
            await asyncio.to_thread(self._aside(digest).unlink, missing_ok=True)

    async def clean(self, before: float) -> int:
        """As in the port."""
        return await asyncio.to_thread(self._clean, before)

    async def keep(self, name: str, content: bytes) -> bool:
        """As in the port."""
        return await asyncio.to_thread(self._keep, self._root / "kept" / name, content)

    async def first_kept(self, under: str) -> tuple[str, bytes] | None:
        """As in the port."""
        return await asyncio.to_thread(self._first_kept, under)

    async def close(self) -> None:
        """As in the port."""

    def _keep(self, path: Path, content: bytes) -> bool:
        with self._available():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            except FileExistsError:
                return False
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        return True

    def _first_kept(self, under: str) -> tuple[str, bytes] | None:
        root = self._root / "kept"
        with self._available():
            found = sorted(path for path in (root / under).glob("*") if path.is_file())
            return (str(found[0].relative_to(root)), found[0].read_bytes()) if found else None

    def _path(self, digest: str) -> Path:
        return self._root / "sha256" / check_digest(digest)[:2] / digest

    def _aside(self, digest: str) -> Path:
        return self._root / "aside" / check_digest(digest)

    def _put(self, digest: str, source: Path | BinaryIO, told: Told) -> bool:
        path = self._path(digest)
        with self._available():
            found = _info(path)
            cut = found is not None and isinstance(source, Path) and source.stat().st_size != found.size
            if not cut and _touch(path):
                return False
            for folder in (self._root / "tmp", path.parent):
                folder.mkdir(parents=True, exist_ok=True)
        if isinstance(source, Path):
            with source.open("rb") as file:
                self._write(digest, path, file, told, self._begun(digest))
        else:
            self._write(digest, path, source, told)
        return True

    def _begun(self, digest: str) -> tuple[int, str] | None:
        """A file, open, with what an earlier attempt left of a blob; None: it is somebody else's, or they are at it."""
        part = self._root / "tmp" / f"{digest}.part"
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None  # what is wrong with the store itself is found by whoever writes
        if _claimed(descriptor, part):
            return descriptor, str(part)
        os.close(descriptor)
        return None

    def _write(
        self, digest: str, path: Path, source: BinaryIO, told: Told, begun: tuple[int, str] | None = None
    ) -> None:
        """:param begun: what to go on with, and to leave behind when it is interrupted."""
        with self._available():
            descriptor, temporary = begun or tempfile.mkstemp(dir=self._root / "tmp")
        try:
            with os.fdopen(descriptor, "r+b", buffering=0) as target:
                found = self._fill(target, os.fstat(descriptor).st_size, source, told)
                if found != digest and begun:
                    # The machine may have stopped before all that it left was on the disk.
                    source.seek(0)
                    target.truncate(0)
                    found = self._fill(target, 0, source, untold)
                if found != digest:
                    raise BlobCorrupt(f"what was put as {digest[:12]}… has digest {found[:12]}…")
                with self._available():
                    os.fchmod(descriptor, 0o444)
                    os.fsync(descriptor)
                    os.replace(temporary, path)
                    _sync_folder(path.parent)
        except BaseException as error:
            if not begun or isinstance(error, BlobCorrupt):
                Path(temporary).unlink(missing_ok=True)
            raise

    def _fill(self, target: BinaryIO, begun: int, source: BinaryIO, told: Told) -> str:
        """Writes what a file lacks behind its first bytes, and digests all of it: the bytes that are stored."""
        hasher = hashlib.sha256()
        target.seek(0)
        while chunk := target.read(CHUNK):
            hasher.update(chunk)
            told(len(chunk))
        if begun:
            source.seek(begun)
        while chunk := source.read(CHUNK):
            hasher.update(chunk)
            with self._available():
                _write_all(target, chunk)
            told(len(chunk))
        return hasher.hexdigest()

    def _get(self, digest: str, sink: BinaryIO) -> int:
        hasher = hashlib.sha256()
        size = 0
        try:
            file = self._path(digest).open("rb", buffering=0)
        except FileNotFoundError:
            raise BlobNotFound(f"{self!r} has no blob {digest[:12]}…") from None
        except OSError as error:
            raise self._unavailable(error) from error
        with file:
            while True:
                with self._available():
                    chunk = file.read(CHUNK)
                if not chunk:
                    break
                hasher.update(chunk)
                sink.write(chunk)
                size += len(chunk)
        if hasher.hexdigest() != digest:
            raise BlobCorrupt(f"{self!r}: blob {digest[:12]}… has digest {hasher.hexdigest()[:12]}…")
        return size

    def _move(self, source: Path, target: Path) -> bool:
        with self._available():
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(source, target)
            except FileNotFoundError:
                return False
            _sync_folder(target.parent)
            return True

    def _restore(self, digest: str) -> bool:
        with self._available():
            return _touch(self._aside(digest)) and self._move(self._aside(digest), self._path(digest))

    def _clean(self, before: float) -> int:
        removed = 0
        with self._available():
            for path in self._entries(self._root / "tmp"):
                try:
                    if path.stat().st_mtime < before:
                        path.unlink()
                        removed += 1
                except FileNotFoundError:
                    continue
        return removed

    def _entries(self, folder: Path) -> list[Path]:
        with self._available():
            try:
                return sorted(folder.iterdir())
            except FileNotFoundError:
                return []

    def _infos(self, folder: Path) -> list[BlobInfo]:
        with self._available():
            return [info for path in self._entries(folder) if _is_digest(path.name) and (info := _info(path))]

    @contextmanager
    def _available(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> BlobStoreUnavailable:
        return BlobStoreUnavailable(f"{self!r}: {error.strerror or error}")


def _info(path: Path) -> BlobInfo | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return BlobInfo(path.name, found.st_size, found.st_mtime)


def _touch(path: Path) -> bool:
    """Makes a file's age new; False when there is none."""
    try:
        # By number and not "now" of the file's server: a mode of 0444 does not keep its owner from setting times.
        os.utime(path, (now := time.time(), now))
    except FileNotFoundError:
        return False
    return True


def _write_all(target: BinaryIO, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[target.write(view) :]


def _claimed(descriptor: int, path: Path) -> bool:
    """Whether a file is this process's alone until it closes the descriptor, or dies."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        # Who had it has not moved it into its place; and nobody else owns what is to be a blob.
        return found.st_uid == os.geteuid() and os.path.samestat(found, path.stat())
    except OSError:
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_digest(name: str) -> bool:
    try:
        return bool(check_digest(name))
    except ValueError:
        return False
