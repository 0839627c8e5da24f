"""The registry as a process sees it: snapshots that follow the store, and last through its absence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from pathlib import Path
from random import Random

from libs.clock import Clock, SystemClock
from libs.errors import Reason, WeirError
from libs.registry import cache, keys
from libs.registry.diff import listing_diff
from libs.registry.lingering import LINGER, Lingering
from libs.registry.ports import KeyValue, Listing, Source, WatchBatch
from libs.registry.snapshot import apply_events, following, snapshot_of
from libs.resources.codec import located
from libs.resources.snapshot import RegistrySnapshot

_log = logging.getLogger(__name__)
_CACHE_INTERVAL = 1.0
"""Seconds between two writes of the cache at least: endpoints may flap, the disk should not."""
_RETRY = (0.1, 2.0)
"""First and longest pause in seconds between two attempts to list."""

Callback = Callable[[RegistrySnapshot], None]
"""Called in the event loop with the new snapshot; must not block."""


class RegistryView:
    """Follows the store while `run` runs. Reading `snapshot` is free: one attribute, immutable."""

    def __init__(
        self,
        source: Source,
        *,
        kinds: Collection[str] | None = None,
        root: str = keys.EVERYTHING,
        cache_file: Path | None = None,
        linger: float = LINGER,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        """:param kinds: plural names of the kinds that are followed; reading another one from the snapshot is a fault
            of this process and raises. None follows all.
        :param root: what is read of a source that is the store itself; `keys.ROOT` for whoever may not see secrets.
        :param cache_file: keeps the last good state of the kinds that are followed for a start without the store; mode
            0600: a registry's and an edge-auth's holds key hashes.
        :param linger: seconds for which the snapshot keeps an endpoint whose key ended without a word, while the source
            answers; what is told of the store itself (`stored`, `under`, `listing`, batches) is as it is there."""
        self._source = source
        self._kinds = None if kinds is None else frozenset(kinds)
        self._root = root
        self._cache_file = cache_file
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or Random()  # noqa: S311 - jitter, not a secret
        self._kvs: dict[str, KeyValue] = {}
        self._snapshot = following(self._kinds)
        self._callbacks: list[Callback] = []
        self._batch_callbacks: list[Callable[[WatchBatch], None]] = []
        self._changed = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._live_since: float | None = None
        self._lingering = Lingering(linger)
        self._held_back = asyncio.Event()

    @property
    def snapshot(self) -> RegistrySnapshot:
        """The last good state; empty with revision 0 before the first."""
        return self._snapshot

    @property
    def revision(self) -> int:
        """The snapshot's revision."""
        return self._snapshot.revision

    @property
    def live(self) -> bool:
        """The state came from the store in this process's life, and the last contact with the store succeeded."""
        return self._live_since is not None and self._source.available

    def stored(self, key: str) -> KeyValue | None:
        """A key as it is stored, at the present snapshot's revision; None when there is none."""
        return self._kvs.get(key)

    def under(self, prefix: str) -> list[KeyValue]:
        """What is stored under a prefix, by key, at the present snapshot's revision."""
        return [self._kvs[key] for key in sorted(self._kvs) if key.startswith(prefix)]

    def listing(self) -> Listing:
        """Everything as it is stored, at the present snapshot's revision."""
        return Listing(tuple(self._kvs[key] for key in sorted(self._kvs)), self._snapshot.revision)

    async def wait_ready(self) -> None:
        """Returns once there is a snapshot, from the store or from the cache."""
        await self.wait_until(lambda snapshot: snapshot.revision > 0)

    async def wait_until(self, condition: Callable[[RegistrySnapshot], bool]) -> RegistrySnapshot:
        """The first snapshot, from the present one on, for which the condition holds; bound it with a timeout."""
        while not condition(self._snapshot):
            await self._changed.wait()
        return self._snapshot

    def on_change(self, callback: Callback) -> Callable[[], None]:
        """Calls back with every snapshot that differs from the last one in more than its revision, and at once when
        there is one already; returns how to stop that."""
        self._callbacks.append(callback)
        if self._snapshot.revision:
            callback(self._snapshot)

        def stop() -> None:
            with suppress(ValueError):
                self._callbacks.remove(callback)

        return stop

    def on_batch(self, callback: Callable[[WatchBatch], None]) -> None:
        """Calls back with every batch of changes behind the first listing, once the snapshot shows it; where that was
        the cache's, what the store has instead is one merged batch, perhaps an empty one."""
        self._batch_callbacks.append(callback)

    async def run(self) -> None:
        """Loads the cache, lists, then follows; goes on until cancelled, through every outage of the store."""
        if self._cache_file is not None:
            cached = await asyncio.to_thread(cache.load, self._cache_file)
            if cached is not None:
                self._publish_listing(cached)
        async with asyncio.TaskGroup() as tasks:
            if self._cache_file is not None:
                tasks.create_task(self._keep_cache(self._cache_file))
            tasks.create_task(self._let_go())
            tasks.create_task(self._follow())

    async def close(self) -> None:
        """Closes what it reads from."""
        await self._source.close()

    async def _follow(self) -> None:
        listing = await self._list()
        self._live_since = self._clock.monotonic()
        if at := self._snapshot.revision:
            # Whoever was told of the cache's state is told how it differs from the store's.
            self._apply(listing_diff(listing, self._known(), at=at) or WatchBatch(listing.revision, (), merged=True))
        else:
            self._publish_listing(listing)
        self._unsaved.set()
        batches: AsyncGenerator[WatchBatch, None] = self._source.watch(
            self._root, listing.revision + 1, known=self._known()
        )
        async with aclosing(batches):
            async for batch in batches:
                self._apply(batch)

    def _follows(self, key: str) -> bool:
        """Whether it is kept: what this process does not decide by has no business in its memory or cache."""
        return (
            self._kinds is None
            or key == keys.EPOCH
            or ((found := located(key)) is not None and found[0].plural in self._kinds)
        )

    def _known(self) -> dict[str, int]:
        return {key: kv.mod_revision for key, kv in self._kvs.items()}

    async def _list(self) -> Listing:
        pause, longest = _RETRY
        while True:
            try:
                return await self._source.get_prefix(self._root, since=self._snapshot.revision)
            except WeirError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)

    def _apply(self, batch: WatchBatch) -> None:
        events = [event for event in batch.events if self._follows(event.key)]
        for event in events:
            if event.value is None:
                self._kvs.pop(event.key, None)
            else:
                self._kvs[event.key] = KeyValue(event.key, event.value, event.mod_revision, event.lease)
        events = self._lingering.sift(self._snapshot, events, self._clock.monotonic())
        self._publish(apply_events(self._snapshot, events, batch.revision, kinds=self._kinds))
        if self._lingering.next is not None:
            self._held_back.set()
        self._unsaved.set()
        for callback in self._batch_callbacks:
            callback(batch)

    async def _let_go(self) -> None:
        """Carries out the deletions that were held back, when their time has come."""
        while True:
            await self._held_back.wait()
            while (until := self._lingering.next) is not None:
                now = self._clock.monotonic()
                if until > now:
                    await asyncio.sleep(until - now)
                elif not self._source.available:
                    self._lingering.again(now)
                elif gone := self._lingering.over(self.revision, now):
                    self._publish(apply_events(self._snapshot, gone, self.revision, kinds=self._kinds))
            self._held_back.clear()

    def _publish_listing(self, listing: Listing) -> None:
        self._kvs = {kv.key: kv for kv in listing.kvs if self._follows(kv.key)}
        self._publish(snapshot_of(listing.kvs, listing.revision, kinds=self._kinds))

    def _publish(self, snapshot: RegistrySnapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if before.revision and snapshot.same_contents(before):
            return
        for callback in tuple(self._callbacks):
            try:
                callback(snapshot)
            except Exception:
                # One subscriber's fault must not keep the others, or the next snapshot, from getting through.
                _log.exception("registry_callback_failed")

    async def _keep_cache(self, path: Path) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            try:
                await asyncio.to_thread(cache.save, path, self.listing())
            except OSError as error:
                _log.warning("registry_cache_not_saved: %s", error)
            await asyncio.sleep(_CACHE_INTERVAL)
