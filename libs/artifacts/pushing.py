"""From a model folder to a signed version whose files lie in a blob store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.blobs import BlobCorrupt, BlobStore
from libs.artifacts.folder import FolderError, Options, describe
from libs.artifacts.manifest import manifest_digest
from libs.artifacts.signing import SigningKey, sign

CONCURRENCY = 4
"""Files under way at once."""


class PushError(Exception):
    """A folder could not be pushed; the message names the file."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A version whose files are in the store, ready to be registered."""

    version: pb.ModelVersion
    """With `digest`, and `signature` when there were keys."""
    uploaded: int
    """Files that were not in the store yet."""
    uploaded_bytes: int
    """Their bytes."""
    kept: int
    """Files that were."""


async def push(folder: Path, store: BlobStore, options: Options, keys: Sequence[SigningKey] = ()) -> Pushed:
    """Describes a folder, uploads what the store lacks and signs the manifest. Again with the same folder it uploads
    nothing and makes the same version.

    Then register the version, and after that call `upload` once more: garbage collection that ran meanwhile and did
    not know of the version yet may have removed blobs, and cannot any longer.

    :raises PushError: the folder cannot be made a version, or a file changed while it was being pushed.
    :raises BlobStoreUnavailable: the store does not answer; what was uploaded stays for the next attempt.
    :raises OSError: a file cannot be read.
    """
    try:
        version = await asyncio.to_thread(describe, folder, options)
    except FolderError as error:
        raise PushError(str(error)) from error
    version.digest = manifest_digest(version)
    written = await upload(version, folder, store)
    if keys:
        version.signature = sign(version, *keys)
    count = len({each.sha256 for each in version.artifacts})
    return Pushed(version, len(written), sum(each.bytes for each in written), count - len(written))


async def upload(version: pb.ModelVersion, folder: Path, store: BlobStore) -> list[pb.Artifact]:
    """Puts the version's files into the store and says which were not there. Blobs that were there count as new for
    garbage collection.

    :raises PushError, BlobStoreUnavailable, OSError: as `push`.
    """
    gate = asyncio.Semaphore(CONCURRENCY)

    async def put(artifact: pb.Artifact) -> bool:
        async with gate:
            try:
                return await store.put(artifact.sha256, folder / artifact.path)
            except BlobCorrupt as error:
                raise PushError(f"{artifact.path} changed while it was being pushed; push again") from error

    different = list({each.sha256: each for each in version.artifacts}.values())
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(put(each)) for each in different]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [each for each, task in zip(different, tasks, strict=True) if task.result()]
