"""From a model version to a folder that holds its files, each byte checked."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.blobs import PART_PREFIX, BlobCorrupt, BlobNotFound, BlobStore, Nowhere, get_file, sha256_of
from libs.artifacts.manifest import FOLDER_MANIFEST, folder_manifest, full_name, inside
from libs.artifacts.roles import role_of

CONCURRENCY = 4
"""Files under way at once: with more, hashing waits for the processor."""
_LOCK_POLL = 0.05


class FetchError(Exception):
    """The files of a model version could not be had; the message names the version and the file."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A folder that is whole."""

    folder: Path
    fetched: int
    """Files that came from the store."""
    kept: int
    """Files that were there already, and right."""
    fetched_bytes: int
    """Bytes that came from the store."""


def artifacts_of(version: pb.ModelVersion, roles: Collection[str] | None = None) -> list[pb.Artifact]:
    """The files of a version that have one of the roles; all with None. A file whose record tells no role (versions of
    before there were roles) has the one that its name tells.

    :raises FetchError: a path would lie outside the folder, or is reserved.
    """
    for each in version.artifacts:
        if not inside(each.path) or each.path == FOLDER_MANIFEST or each.path.startswith(PART_PREFIX):
            raise FetchError(f"{full_name(version)}: {each.path!r} must not be the path of a file")
    if roles is None:
        return list(version.artifacts)
    return [each for each in version.artifacts if (each.role or role_of(each.path)) in roles]


def read_checked(folder: Path, version: pb.ModelVersion, roles: Collection[str]) -> dict[str, bytes]:
    """The files of a version with these roles by path, read from a folder; the bytes returned are those checked.

    :raises FetchError: a file is missing, is not what the record says, or its path is not allowed.
    """
    found: dict[str, bytes] = {}
    for each in artifacts_of(version, roles):
        try:
            content = (folder / each.path).read_bytes()
        except OSError as error:
            raise FetchError(f"{full_name(version)}: {each.path}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != each.sha256:
            raise FetchError(f"{full_name(version)}: {each.path} in {folder} is not what its record says")
        found[each.path] = content
    return found


async def fetch(
    version: pb.ModelVersion,
    store: BlobStore,
    into: Path,
    *,
    roles: Collection[str] | None = None,
    concurrency: int = CONCURRENCY,
) -> Fetched:
    """Makes `into` a folder with the version's files, mode 0444, and with `manifest.json` if all roles are wanted.

    Files are gathered in a hidden folder beside `into` and checked there; only when all are right is it renamed to
    `into`, in one step. What was gathered before a failure or a crash is used by the next attempt, and files of an
    existing `into` that are right are taken over; other files do not survive. Several processes may fetch to the same
    place: one does it, the others wait and then check what it did. Of a version that is to be trusted, call
    `signing.verify` first: here files are only compared with the record.

    :param roles: only files with these roles (see `artifacts_of`). Use one folder per choice of roles.
    :param concurrency: files under way at once.
    :raises FetchError: a blob is missing or has other bytes, or a path is not allowed.
    :raises BlobStoreUnavailable: the store does not answer; what was gathered is kept.
    :raises OSError: the disk is full, or the like.
    """
    wanted = artifacts_of(version, roles)
    extra = {FOLDER_MANIFEST: folder_manifest(version)} if roles is None else {}
    await asyncio.to_thread(into.parent.mkdir, parents=True, exist_ok=True)
    async with _locked(into.parent / f".{into.name}.lock"):
        gate = asyncio.Semaphore(concurrency)
        partial = into.parent / f".{into.name}.partial"
        others = {each.path for each in version.artifacts}
        if await asyncio.to_thread(_is_tidy, into, [each.path for each in wanted], extra, others):
            right = await _each(wanted, gate, lambda each: asyncio.to_thread(_is_right, into / each.path, each))
            if all(right):
                return Fetched(into, 0, len(wanted), 0)
        await asyncio.to_thread(_prepare, partial, [each.path for each in wanted])
        fetched = await _each(wanted, gate, lambda each: _gather(version, each, store, into, partial))
        await asyncio.to_thread(_publish, partial, into, extra)
    count = sum(1 for size in fetched if size is not None)
    return Fetched(into, count, len(wanted) - count, sum(size for size in fetched if size is not None))


async def check_blobs(version: pb.ModelVersion, store: BlobStore, *, concurrency: int = CONCURRENCY) -> None:
    """Reads every file of a version in the store.

    :raises FetchError: a blob is missing or has other bytes.
    :raises BlobStoreUnavailable: the store does not answer.
    """

    async def check(each: pb.Artifact) -> None:
        try:
            size = await store.get(each.sha256, cast(BinaryIO, Nowhere()))
        except (BlobNotFound, BlobCorrupt) as error:
            raise FetchError(f"{full_name(version)}: {each.path}: {error}") from error
        if size != each.bytes:
            raise FetchError(f"{full_name(version)}: {each.path} has {size} bytes and should have {each.bytes}")

    await _each(version.artifacts, asyncio.Semaphore(concurrency), check)


async def _gather(
    version: pb.ModelVersion, artifact: pb.Artifact, store: BlobStore, into: Path, partial: Path
) -> int | None:
    """Brings a file into `partial`; its size when it came from the store, None when it was here."""
    target = partial / artifact.path
    if await asyncio.to_thread(_is_right, target, artifact):
        return None
    if await asyncio.to_thread(_take_over, into / artifact.path, target, artifact):
        return None
    try:
        await get_file(store, artifact.sha256, target, size=artifact.bytes)
    except (BlobNotFound, BlobCorrupt, ValueError) as error:
        raise FetchError(f"{full_name(version)}: {artifact.path}: {error}") from error
    return artifact.bytes


def _is_right(path: Path, artifact: pb.Artifact) -> bool:
    try:
        if path.is_symlink() or path.stat().st_size != artifact.bytes:
            return False
        with path.open("rb", buffering=0) as file:
            return sha256_of(cast(BinaryIO, file))[0] == artifact.sha256
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _take_over(source: Path, target: Path, artifact: pb.Artifact) -> bool:
    """Copies a file of an older folder that is right; a copy, because a link would share what somebody changed."""
    if not _is_right(source, artifact):
        return False
    temporary = target.parent / f"{PART_PREFIX}{target.name[:100]}"
    shutil.copyfile(source, temporary)
    _sync(temporary)
    if not _is_right(temporary, artifact):
        temporary.unlink()
        return False
    temporary.chmod(0o444)
    temporary.replace(target)
    return True


def _is_tidy(folder: Path, wanted: Collection[str], extra: dict[str, bytes], others: Collection[str]) -> bool:
    """The folder has all files that it shall have and none of unknown origin. Their content is checked elsewhere."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    whole = found >= {*wanted, *extra} and found <= {*others, *extra}
    return whole and all((folder / name).read_bytes() == content for name, content in extra.items())


def _prepare(partial: Path, wanted: Collection[str]) -> None:
    """The folder to gather files in, without anything that does not belong there."""
    partial.mkdir(mode=0o755, exist_ok=True)
    keep = {partial / path for path in wanted}
    folders = {parent for path in keep for parent in path.parents}
    for path in sorted(partial.rglob("*"), reverse=True):
        if path.is_symlink() or (path not in keep and not path.is_dir()):
            path.unlink()
        elif path.is_dir() and path not in folders:
            shutil.rmtree(path)
    for path in keep:
        path.parent.mkdir(parents=True, exist_ok=True)


def _publish(partial: Path, into: Path, extra: dict[str, bytes]) -> None:
    for name, content in extra.items():
        _write(partial / name, content)
    for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
        _sync(folder)
    old = into.parent / f".{into.name}.old"
    _remove(old)
    if into.exists() or into.is_symlink():
        into.rename(old)
    partial.rename(into)
    _sync(into.parent)
    _remove(old)


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _each(
    artifacts: Collection[pb.Artifact],
    gate: asyncio.Semaphore,
    work: Callable[[pb.Artifact], Coroutine[Any, Any, Any]],
) -> list[Any]:
    """Results in order; with the first failure the others are given up."""

    async def one(artifact: pb.Artifact) -> Any:
        async with gate:
            return await work(artifact)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(each)) for each in artifacts]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Only one process at a time; the lock goes with the process that held it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL)
        yield
    finally:
        os.close(descriptor)
