"""The store in memory: for unit tests and single-process use; the same contract as etcd."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace

from libs.clock import Clock, SystemClock
from libs.errors import Reason, WeirError
from libs.registry.diff import listing_diff, remember
from libs.registry.ports import Compare, KeyValue, Listing, Put, TxnResult, WatchBatch, WatchEvent


@dataclass(slots=True)
class _Lease:
    ttl: float
    expires: float


class MemoryStore:
    """A `Store` in one process. Tests reach in with `compact`, `set_available` and `expire_leases`."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._kvs: dict[str, KeyValue] = {}
        self._revision = 1
        self._compacted = 0
        self._history: list[WatchBatch] = []
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._available = True
        self._closed = False

    @property
    def available(self) -> bool:
        """See `Store.available`."""
        return self._available

    @property
    def revision(self) -> int:
        """The present revision."""
        return self._revision

    async def get(self, key: str) -> KeyValue | None:
        """See `Store.get`."""
        self._enter()
        return self._kvs.get(key)

    async def get_prefix(self, prefix: str, *, since: int = 0) -> Listing:
        """See `Store.get_prefix`."""
        self._enter()
        return self._list(prefix)

    async def get_by_revision(
        self,
        prefix: str,
        *,
        limit: int,
        newest_first: bool = True,
        after: int = 0,
        before: int = 0,
        keys_only: bool = False,
    ) -> Listing:
        """See `Store.get_by_revision`."""
        self._enter()
        kvs, revision = self._list(prefix)
        found = sorted(
            (kv for kv in kvs if after < kv.mod_revision and (not before or kv.mod_revision < before)),
            key=lambda kv: kv.mod_revision,
            reverse=newest_first,
        )
        return Listing(tuple(replace(kv, value=b"") if keys_only else kv for kv in found[:limit]), revision)

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        """See `Store.txn`."""
        self._enter()
        written = [put.key for put in puts] + list(deletes)
        if len(set(written)) != len(written):
            raise WeirError(Reason.INVALID_REQUEST, "a transaction writes a key twice")
        for compare in compares:
            kv = self._kvs.get(compare.key)
            if (kv.mod_revision if kv else 0) != compare.mod_revision:
                return TxnResult(False, self._revision)
        for put in puts:
            if put.lease and put.lease not in self._leases:
                raise WeirError(Reason.NOT_FOUND, "the lease is gone")
        self._write(puts, deletes)
        return TxnResult(True, self._revision)

    async def watch(
        self, prefix: str, start_revision: int, *, known: Mapping[str, int] | None = None
    ) -> AsyncGenerator[WatchBatch, None]:
        """See `Store.watch`."""
        state = dict(known or {})
        following = start_revision
        while not self._closed:
            changed = self._changed
            if self._available and following <= self._compacted:
                batches = self._caught_up(prefix, state)
                following = self._revision + 1
            else:
                batches = self._due(prefix, following)
            for batch in batches:
                remember(state, batch)
                following = max(following, batch.revision + 1)
                yield batch
            if changed is self._changed:
                await changed.wait()

    async def lease_grant(self, ttl: float) -> int:
        """See `Store.lease_grant`."""
        self._enter()
        self._last_lease += 1
        whole = float(max(1, math.ceil(ttl)))
        self._leases[self._last_lease] = _Lease(whole, self._clock.monotonic() + whole)
        self._arm(whole)
        return self._last_lease

    async def lease_keepalive(self, lease: int) -> float:
        """See `Store.lease_keepalive`."""
        self._enter()
        held = self._leases.get(lease)
        if held is None:
            raise WeirError(Reason.NOT_FOUND, "the lease is gone")
        held.expires = self._clock.monotonic() + held.ttl
        return held.ttl

    async def lease_revoke(self, lease: int) -> None:
        """See `Store.lease_revoke`."""
        self._enter()
        self._drop([lease])

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def compact(self, revision: int | None = None) -> None:
        """Forgets history up to a revision (default: the present one), as etcd's compaction does."""
        self._compacted = self._revision if revision is None else revision
        self._history = [batch for batch in self._history if batch.revision > self._compacted]
        self._wake()

    def set_available(self, available: bool) -> None:
        """Plays an outage: while it lasts, calls raise DEPENDENCY_UNAVAILABLE and watches are silent."""
        self._available = available
        self._wake()

    def expire_leases(self) -> None:
        """Ends every lease whose time has passed by the clock; also happens by itself with a system clock."""
        now = self._clock.monotonic()
        self._drop([lease for lease, held in self._leases.items() if held.expires <= now])

    def _enter(self) -> None:
        if not self._available or self._closed:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the registry's store does not answer")
        self.expire_leases()

    def _list(self, prefix: str) -> Listing:
        kvs = tuple(self._kvs[key] for key in sorted(self._kvs) if key.startswith(prefix))
        return Listing(kvs, self._revision)

    def _caught_up(self, prefix: str, state: Mapping[str, int]) -> list[WatchBatch]:
        batch = listing_diff(self._list(prefix), state)
        return [batch] if batch else []

    def _due(self, prefix: str, following: int) -> list[WatchBatch]:
        if not self._available:
            return []
        due = []
        for batch in self._history:
            events = tuple(event for event in batch.events if event.key.startswith(prefix))
            if batch.revision >= following and events:
                due.append(WatchBatch(batch.revision, events))
        return due

    def _write(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        gone = [key for key in deletes if key in self._kvs]
        if not puts and not gone:
            return
        self._revision += 1
        events = [WatchEvent(key, None, self._revision) for key in gone]
        for key in gone:
            del self._kvs[key]
        for put in puts:
            self._kvs[put.key] = KeyValue(put.key, put.value, self._revision, put.lease)
            events.append(WatchEvent(put.key, put.value, self._revision, put.lease))
        self._history.append(WatchBatch(self._revision, tuple(events)))
        self._wake()

    def _drop(self, leases: Sequence[int]) -> None:
        for lease in leases:
            if self._leases.pop(lease, None) is not None:
                self._write((), [key for key, kv in self._kvs.items() if kv.lease == lease])

    def _arm(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.expire_leases()
        if self._leases and not self._closed:
            soonest = min(held.expires for held in self._leases.values()) - self._clock.monotonic()
            self._arm(max(0.05, soonest))

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
