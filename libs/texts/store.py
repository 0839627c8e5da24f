"""Tokenizers and templates of model versions: loaded once, off the event loop, from a folder or from the blob store.

Of a version in the blob store only what words need is fetched: tokenizer, configuration and chat template, each byte
checked against the version's record, into a folder of its own under the gateway's state, the least recently used out
first. That happens when the registry shows that somebody may soon ask for the version, not when the first one does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from weir.registry.v1 import registry_pb2

from libs.artifacts import BLOBS, BlobStore, BlobStoreUnavailable, FetchError, fetch, open_store, read_checked
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.occupancy import jittered
from libs.outcomes.standing import FILES
from libs.telemetry import get_logger
from libs.texts.model import TextModel, TextModelError

log = get_logger(__name__)
_ROLES = frozenset({"tokenizer", "config", "chat_template"})
_PAUSE, _LONGEST = 0.5, 30.0
"""Seconds until the next attempt after a failure: doubled each time, up to the longest."""


@dataclass(slots=True)
class _Failure:
    """Why a version's files are not here."""

    error: WeirError
    until: float  # monotonic seconds of the next attempt
    pause: float


class TextStore:
    """One per process. Look-ups of what is loaded are one dictionary read."""

    def __init__(
        self, *, blobs: str, directory: Path | None, max_bytes: int, clock: Clock, chance: Callable[[], float]
    ) -> None:
        """`blobs` is the mesh's blob store (see `libs.artifacts.open_store`; empty: none), `directory` where fetched
        folders go and `max_bytes` what they may take; `chance` gives numbers in [0, 1), for jitter."""
        self._uri = blobs
        self._directory = directory
        self._max_bytes = max_bytes
        self._clock = clock
        self._chance = chance
        self._store: BlobStore | None = None
        self._loaded: dict[str, TextModel] = {}  # by digest, as everything here
        self._attempts: dict[str, asyncio.Task[TextModel]] = {}
        self._failures: dict[str, _Failure] = {}
        self._wanted: dict[str, registry_pb2.ModelVersion] = {}

    async def load(self, version: registry_pb2.ModelVersion, timeout: float | None = None) -> TextModel:  # noqa: ASYNC109
        """The version's tokenizer and template; waits for its files for `timeout` seconds at most (None: as long as it
        takes). After a failure whoever asks is told so until the next attempt.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when its files cannot be had now, INTERNAL when they cannot be read,
            DEADLINE_EXCEEDED.
        """
        loaded = self._loaded.get(version.digest)
        if loaded is not None:
            return loaded
        attempt = self._attempts.get(version.digest)
        if attempt is None:
            failure = self._failures.get(version.digest)
            left = failure.until - self._clock.monotonic() if failure is not None else 0.0
            if failure is not None and left > 0:
                known = failure.error
                raise WeirError(known.reason, known.message, limit=known.limit, retry_after=left)
            attempt = self._begin(version)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(attempt)
        except TimeoutError:
            message = f"the deadline passed before the files of {_name(version)} were here"
            raise WeirError(Reason.DEADLINE_EXCEEDED, message, limit=FILES) from None

    def want(self, versions: Iterable[registry_pb2.ModelVersion], registered: Collection[str]) -> None:
        """These will be asked for: have them ready from now on. What is not among the `registered` digests is
        forgotten."""
        self._wanted = {version.digest: version for version in versions}
        for known in (self._loaded, self._failures):
            for digest in known.keys() - set(registered):
                del known[digest]
        self.sweep()

    def sweep(self) -> None:
        """Begin the attempts that are due; called about twice a second, from the event loop."""
        now = self._clock.monotonic()
        for digest, version in self._wanted.items():
            if digest in self._loaded or digest in self._attempts:
                continue
            failure = self._failures.get(digest)
            if failure is None or failure.until <= now:
                self._begin(version)

    async def aclose(self) -> None:
        """Give up what is under way."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        if attempts:
            await asyncio.wait(attempts)
        if self._store is not None:
            await self._store.close()

    def _begin(self, version: registry_pb2.ModelVersion) -> asyncio.Task[TextModel]:
        attempt = asyncio.get_running_loop().create_task(self._attempt(version), name=f"files.{_name(version)}")
        self._attempts[version.digest] = attempt
        # Perhaps nobody waits for it; it has logged its failure itself.
        attempt.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return attempt

    async def _attempt(self, version: registry_pb2.ModelVersion) -> TextModel:
        digest, name = version.digest, _name(version)
        try:
            folder = await self._fetched(version) if version.source == BLOBS else Path(version.source)
            loaded = await asyncio.to_thread(lambda: TextModel(read_checked(folder, version, _ROLES)))
        except TextModelError as error:
            log.error("tokenizer_not_loaded", model_version=name, error=str(error))
            told = WeirError(Reason.INTERNAL, f"{name} cannot be tokenised here", limit=FILES)
        except (FetchError, BlobStoreUnavailable, OSError, ValueError) as error:
            log.error("tokenizer_not_fetched", model_version=name, error=str(error))
            told = WeirError(Reason.DEPENDENCY_UNAVAILABLE, f"the files of {name} are not here yet", limit=FILES)
        else:
            self._loaded[digest] = loaded
            self._failures.pop(digest, None)
            if version.source == BLOBS:
                await asyncio.to_thread(self._trim, folder)
            return loaded
        finally:
            self._attempts.pop(digest, None)
        before = self._failures.get(digest)
        pause = _PAUSE if before is None else min(_LONGEST, 2 * before.pause)
        until = self._clock.monotonic() + jittered(pause, self._chance)
        self._failures[digest] = _Failure(told, until, pause)
        raise told

    async def _fetched(self, version: registry_pb2.ModelVersion) -> Path:
        if self._directory is None or not self._uri:
            raise ValueError("no blob store, or no state directory, is set")
        if self._store is None:
            self._store = await asyncio.to_thread(open_store, self._uri)
        folder = self._directory / version.digest
        await fetch(version, self._store, folder, roles=_ROLES)
        return folder

    def _trim(self, newest: Path) -> None:
        """Remove the folders that were used longest ago, until the rest takes what it may. What was loaded from them is
        in memory; whoever needs one again fetches it again."""
        os.utime(newest)
        folders = sorted(
            (path for path in newest.parent.iterdir() if path.is_dir() and not path.name.startswith(".")),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )
        taken = 0
        for folder in folders:
            taken += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            if taken > self._max_bytes and folder != newest:
                shutil.rmtree(folder, ignore_errors=True)


def _name(version: registry_pb2.ModelVersion) -> str:
    return f"{version.name}@{version.version}"
