"""The store behind the registry: a small, revisioned key-value port with watches and leases.

`EtcdStore` and `MemoryStore` implement it and pass the same contract suite (`tests/contract/registry`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as stored."""

    key: str
    """Such as "/weir/v2/tenants/acme"."""
    value: bytes
    """Opaque to the store."""
    mod_revision: int
    """Store revision of the last write to this key; positive."""
    lease: int = 0
    """The lease that keeps it alive; 0 when it stays until deleted."""


class Listing(NamedTuple):
    """Everything under a prefix, at one revision."""

    kvs: tuple[KeyValue, ...]
    """Sorted by key."""
    revision: int
    """The store's revision at which this was true; a watch that must miss nothing starts at `revision + 1`."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the key's last write is the one that was read."""

    key: str
    """The fenced key."""
    mod_revision: int
    """The revision that was read; 0 means that the key must not exist."""


@dataclass(frozen=True, slots=True)
class Put:
    """A write of a transaction."""

    key: str
    """Where."""
    value: bytes
    """What."""
    lease: int = 0
    """A lease from `Store.lease_grant`, or 0."""


@dataclass(frozen=True, slots=True)
class TxnResult:
    """What came of a transaction."""

    succeeded: bool
    """Every condition held and every write was made; otherwise nothing was written."""
    revision: int
    """The store's revision afterwards: the revision of the writes when it succeeded and wrote something."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change of one key."""

    key: str
    """Which."""
    value: bytes | None
    """The new value, or None: it was deleted (by a transaction or with its lease)."""
    mod_revision: int
    """The revision of the change."""
    lease: int = 0
    """As in `KeyValue`."""


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Changes in order; what one transaction changed is never split over two batches."""

    revision: int
    """State after these events is the prefix's state at this revision."""
    events: tuple[WatchEvent, ...]
    """Oldest first; never empty."""
    merged: bool = False
    """The difference between two states, in no order: what came and went in between is not told."""


class Source(Protocol):
    """What a view follows: keys under one global, growing revision."""

    @property
    def available(self) -> bool:
        """Whether the last contact succeeded; True before the first."""

    async def get_prefix(self, prefix: str, *, since: int = 0) -> Listing:
        """Every key under the prefix, as of one revision.

        :param since: a revision that the caller has seen: nothing older is told, unless the store was restored.
        :raises WeirError: DEPENDENCY_UNAVAILABLE when no endpoint answers in time.
        """

    def watch(
        self, prefix: str, start_revision: int, *, known: Mapping[str, int] | None = None
    ) -> AsyncGenerator[WatchBatch, None]:
        """Every change under the prefix from `start_revision` on: none lost, none twice, in order, over reconnects.

        It goes on until closed (`contextlib.aclosing`) and rides out every outage. Where the history it needs was
        compacted away, or the store was restored to an earlier state, it lists the prefix and yields the difference
        to what it knew as one batch: changes in between are merged, the state is right. For that it must know what
        was there at the start.

        :param known: key → mod_revision of the keys that existed at `start_revision - 1`, as listed.
        """

    async def close(self) -> None:
        """Frees connections and ends watches; the store is of no use afterwards."""


class Store(Source, Protocol):
    """A linearizable key-value store.

    Every method but `watch` is bounded in time: it answers or raises within a few seconds. A write whose connection
    broke after it was sent may or may not have happened; fence it with `Compare` and read before trying again.
    """

    async def get(self, key: str) -> KeyValue | None:
        """The key as of now, or None when it does not exist.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when no endpoint answers in time.
        """

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
        """At most `limit` keys under the prefix in the order of their last writes, as of one revision.

        Page on by the last one's `mod_revision`; keys that one transaction wrote have the same one, so this is for
        prefixes under which a transaction writes one key.

        :param after: only keys written after this revision.
        :param before: only keys written before this revision; 0 means all.
        :param keys_only: values are left empty.
        :raises WeirError: DEPENDENCY_UNAVAILABLE when no endpoint answers in time.
        """

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        """All of the writes if all of the conditions hold, else none; a deleted key need not exist.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when no endpoint answers in time (the outcome is then unknown);
            NOT_FOUND when a put names a lease that is gone; INVALID_REQUEST when a key is written twice.
        """

    async def lease_grant(self, ttl: float) -> int:
        """A new lease that dies `ttl` seconds after the last sign of life; stores may round up to whole seconds.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when no endpoint answers in time.
        """

    async def lease_keepalive(self, lease: int) -> float:
        """One sign of life; the seconds that the lease has from now.

        :raises WeirError: NOT_FOUND when the lease is gone; DEPENDENCY_UNAVAILABLE when no endpoint answers in time.
        """

    async def lease_revoke(self, lease: int) -> None:
        """Ends the lease and deletes its keys; fine when it is gone already.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when no endpoint answers in time.
        """
