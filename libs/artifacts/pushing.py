"""From a model folder to a signed version whose files lie in a blob store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, cast

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.blobs import BlobCorrupt, BlobNotFound, BlobStore, Nowhere
from libs.artifacts.files import FolderError
from libs.artifacts.folder import Options, describe
from libs.artifacts.manifest import full_name, manifest_digest
from libs.artifacts.progress import Watch
from libs.artifacts.signing import SigningKey, sign

Register = Callable[[pb.ModelVersion, bool], Awaitable[pb.ModelVersion]]
"""Registers a version and gives it as stored; with True, only says whether it would be."""
CONCURRENCY = 4
"""Files under way at once."""


class PushError(Exception):
    """A folder could not be pushed; the message names the file."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A version whose files are in the store."""

    version: pb.ModelVersion
    """As registered; without a registry, with `digest`, and with `signature` when there were keys."""
    uploaded: int
    """Files that were not in the store yet."""
    uploaded_bytes: int
    """Their bytes."""
    kept: int
    """Files that were."""


async def push(
    folder: Path,
    store: BlobStore,
    options: Options,
    keys: Sequence[SigningKey] = (),
    *,
    register: Register | None = None,
    known: Iterable[pb.ModelVersion] = (),
    dry_run: bool = False,
    repair: bool = False,
    watch: Watch | None = None,
) -> Pushed:
    """Describes a folder, signs the manifest, uploads what the store lacks and registers the version. Again with the
    same folder it uploads nothing and makes the same version.

    The registry is asked first whether it would take the version, so that a refusal costs no upload. After the version
    is registered its blobs are put once more: garbage collection that ran meanwhile and did not know of the version may
    have removed some, and cannot any longer.

    :param register: registers the version, or, with True, only asks whether it would be; None registers nothing.
    :param known: versions that are registered; see `folder.describe`.
    :param dry_run: describe, sign and ask; upload and register nothing.
    :param repair: read what the store has already, and replace what is damaged. A known version of the name with the
        same files stays what it is in all else.
    :param watch: sees how far it is.
    :raises PushError: the folder cannot be made a version, or a file changed while it was being pushed.
    :raises BlobStoreUnavailable: the store does not answer; what was uploaded stays for the next attempt.
    :raises OSError: a file cannot be read.
    """
    try:
        version = await asyncio.to_thread(describe, folder, options, known, watch)
    except FolderError as error:
        raise PushError(str(error)) from error
    version.digest = manifest_digest(version)
    if repair and (same := _same_files(version, known)) is not None:
        version = same  # whatever was said of it when it was pushed need not be said again
    elif keys:
        version.signature = sign(version, *keys)
    asked = await register(version, True) if register else version
    if dry_run:
        return Pushed(asked, 0, 0, 0)
    written = await upload(version, folder, store, options.added, repair=repair, watch=watch)
    if register:
        version = await register(version, False)
        written += await upload(version, folder, store, options.added)
    count = len({each.sha256 for each in version.artifacts})
    return Pushed(version, len(written), sum(each.bytes for each in written), max(0, count - len(written)))


async def upload(
    version: pb.ModelVersion,
    folder: Path,
    store: BlobStore,
    added: Mapping[str, Path] = MappingProxyType({}),
    *,
    repair: bool = False,
    watch: Watch | None = None,
) -> list[pb.Artifact]:
    """Puts the version's files into the store and says which were not there. Blobs that were there count as new for
    garbage collection. Interrupted, it leaves what was sent for the next attempt.

    :param added: as `Options`.
    :param repair: as `push`.
    :param watch: as `push`.
    :raises PushError, BlobStoreUnavailable, OSError: as `push`.
    """
    gate, watch, ended = asyncio.Semaphore(CONCURRENCY), watch or Watch(), threading.Event()

    def told(count: int) -> None:
        # Of threads nobody can make an end but they themselves.
        if ended.is_set():
            raise _EndedError
        watch.add(count)

    async def put(artifact: pb.Artifact) -> bool:
        async with gate:
            if repair:
                await _remove_damaged(store, artifact.sha256)
            try:
                written = await store.put(artifact.sha256, added.get(artifact.path, folder / artifact.path), told)
            except BlobCorrupt as error:
                raise PushError(
                    f"{artifact.path} changed while it was being pushed, or is not what its digest says; push again"
                ) from error
            if not written:
                watch.skip(artifact.bytes)
            return written

    different = list({each.sha256: each for each in version.artifacts}.values())
    watch.begin("sending", sum(each.bytes for each in different))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(put(each)) for each in different]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        ended.set()
    return [each for each, task in zip(different, tasks, strict=True) if task.result()]


class _EndedError(Exception):
    """The push has ended: another file failed, or somebody interrupted it."""


def _same_files(version: pb.ModelVersion, known: Iterable[pb.ModelVersion]) -> pb.ModelVersion | None:
    files = {each.path: each.sha256 for each in version.artifacts}
    for each in known:
        if full_name(each) == full_name(version) and {one.path: one.sha256 for one in each.artifacts} == files:
            return each
    return None


async def _remove_damaged(store: BlobStore, digest: str) -> None:
    try:
        await store.get(digest, cast(BinaryIO, Nowhere()))
    except BlobCorrupt:
        await store.set_aside(digest)
        await store.discard(digest)
    except BlobNotFound:
        return
