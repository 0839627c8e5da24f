"""The file operations of the weight cache: locks, atomic writes, links, and bringing a file in with its digest."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from libs.versions.errors import LoadError
from libs.versions.manifest import CHUNK, ManifestFile, check_size, sha256_file

_FICLONE = 0x40049409  # ioctl of Linux: share the blocks of another file until one of the two is written


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` alone, among threads and processes. Not reentrant."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def held_alive(path: Path) -> int:
    """Make the file `path` and lock it for as long as the returned descriptor is open."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def is_held(path: Path) -> bool:
    """Whether some process holds the lock file `path`, shared or alone. One that does not exist is not held."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def stamp_of(path: Path | int) -> bytes:
    """What changes when a file is written or replaced: its length, time and inode. Links to it do not change it.

    :raises OSError: it is not there.
    """
    found = os.stat(path)
    return json.dumps({"bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}).encode()


def write_atomically(path: Path, content: bytes, scratch: Path) -> None:
    """Replace the content of `path`; a reader or a crash sees the old or the new. `scratch` is a folder on the same
    file system."""
    descriptor, name = tempfile.mkstemp(dir=scratch)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    os.replace(name, path)


def link_over(target: Path, path: Path, scratch: Path) -> None:
    """Make `path` a hard link to `target`, whatever was there before."""
    with suppress(FileNotFoundError):
        # Renaming one link over another of the same file would do nothing and leave both.
        if path.samefile(target) and not path.is_symlink():
            return
    name = scratch / f"link-{secrets.token_hex(8)}"
    os.link(target, name)
    os.replace(name, path)


def fsync_folder(folder: Path) -> None:
    """Put the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bring(source: Path, target: Path, file: ManifestFile, *, hard_links: bool) -> bytes:
    """Make `target` a clone, link or copy of `source`, check that it is `file` and return its stamp.

    :raises LoadError: the source cannot be read or is another file; the message names it.
    :raises OSError: the target cannot be written.
    """
    check_size(source, file)
    # A hard link to a symbolic link would be a symbolic link.
    real = Path(os.path.realpath(source))
    if _clone(real, target) or (hard_links and _link(real, target)):
        stamp = stamp_of(target)
        digest = _digest(source, target)
        if stamp_of(target) != stamp:
            raise LoadError(f"{source}: changed while it was verified")
    else:
        digest = _copy(source, target)
        stamp = stamp_of(target)
    if digest != file.sha256:
        raise LoadError(f"{source}: its sha256 is not the manifest's")
    return stamp


def checked(target: Path, file: ManifestFile) -> bytes:
    """The stamp of a file that somebody has written for us, if it is `file`; on disk before this returns.

    :raises LoadError: it is another file; the message names it.
    :raises OSError: it cannot be read.
    """
    check_size(target, file)
    stamp = stamp_of(target)
    with target.open("rb") as written:
        os.fsync(written.fileno())
    if sha256_file(target) != file.sha256 or stamp_of(target) != stamp:
        raise LoadError(f"{file.path}: what came has another sha256 than the manifest says")
    return stamp


def _clone(source: Path, target: Path) -> bool:
    try:
        with source.open("rb") as reader, target.open("wb") as writer:
            fcntl.ioctl(writer, _FICLONE, reader.fileno())
            os.fsync(writer.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        return False
    return True


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # another file system, or a file of somebody else
        return False
    return True


def _digest(source: Path, target: Path) -> str:
    try:
        return sha256_file(target)
    except LoadError as error:
        raise LoadError(f"{source}: {error}") from error


def _copy(source: Path, target: Path) -> str:
    """Copy the file and return the digest of what was copied, on disk before this returns."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with target.open("wb") as writer:
        for count in _reads(source, buffer):
            digest.update(buffer[:count])
            writer.write(buffer[:count])
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def _reads(source: Path, buffer: memoryview) -> Iterator[int]:
    """Fill `buffer` again and again; an error is the source's, not that of whoever writes in between."""
    try:
        file = source.open("rb", buffering=0)
    except OSError as error:
        raise LoadError(f"{source}: {error.strerror}") from error
    with file:
        while True:
            try:
                count = file.readinto(buffer)
            except OSError as error:
                raise LoadError(f"{source}: {error.strerror}") from error
            if not count:
                return
            yield count
