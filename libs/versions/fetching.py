"""From the blob store into the local weight cache."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future
from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import BlobCorrupt, BlobError, BlobStore, folder_manifest, full_name, get_file
from libs.versions.errors import LoadError, RefusedError
from libs.versions.manifest import MANIFEST, ManifestFile, parse_manifest
from libs.versions.plan import Fault
from libs.versions.weight_cache import CacheUnavailableError, WeightCache


async def fetch_version(version: pb.ModelVersion, store: BlobStore, cache: WeightCache) -> Path:
    """A folder of the cache with the version's files, each checked; files that any version brought here before are not
    fetched again. Give it back with `cache.release`.

    :raises RefusedError: a file is not what the record says, or cannot be had.
    """
    name = full_name(version)
    loop = asyncio.get_running_loop()
    ending = threading.Event()
    under_way: set[Future[None]] = set()

    def bring(file: ManifestFile, target: Path) -> None:
        """In a thread of the cache."""
        coming = asyncio.run_coroutine_threadsafe(get_file(store, file.sha256, target, size=file.size), loop)
        under_way.add(coming)
        if ending.is_set():
            coming.cancel()
        try:
            coming.result()
        except BlobError as error:
            fault = Fault.BLOB if isinstance(error, BlobCorrupt) else Fault.FETCH
            raise RefusedError(fault, f"{name}: {file.path}: {error}") from error
        except CancelledError:
            raise RefusedError(Fault.FETCH, f"{name}: {file.path}: given up") from None

    fetching = asyncio.ensure_future(asyncio.to_thread(_fetch, version, cache, bring))
    try:
        return await asyncio.shield(fetching)
    except asyncio.CancelledError:
        # The thread must let go of the cache soon: another fetch of the version, or the process's end, waits for it.
        fetching.add_done_callback(lambda done: _give_back(done, cache))
        ending.set()
        for coming in list(under_way):
            coming.cancel()
        raise
    except CacheUnavailableError as error:
        raise RefusedError(Fault.DISK, f"{name}: {error}") from error
    except LoadError as error:
        raise RefusedError(Fault.DIGEST, f"{name}: {error}") from error


def _fetch(version: pb.ModelVersion, cache: WeightCache, bring: object) -> Path:
    manifest = parse_manifest(folder_manifest(version), Path(full_name(version)) / MANIFEST)
    return cache.fetch(bring, manifest)  # type: ignore[arg-type]


def _give_back(done: asyncio.Future[Path], cache: WeightCache) -> None:
    if not done.cancelled() and done.exception() is None:
        cache.release(done.result())
