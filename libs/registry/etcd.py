"""The store in etcd v3, over the generated stubs of `aetcd` (its client knows one endpoint and no TLS)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Any, NamedTuple

import grpc
from aetcd import rpc

from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.registry.diff import listing_diff, remember
from libs.registry.endpoints import HAS_LEADER, Endpoints, KeepAlive, Stubs
from libs.registry.ports import (
    Compare,
    KeyValue,
    Listing,
    Put,
    TxnResult,
    WatchBatch,
    WatchEvent,
)

_log = logging.getLogger(__name__)
_RETRY = (0.05, 1.0)
"""First and longest pause in seconds between two attempts to open a watch."""
_WATCH_OPEN_SECONDS = 2.0
"""For etcd's confirmation that a watch exists."""


class EtcdStore:
    """A `Store` over one or more etcd endpoints."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: TlsFiles | None = None,
        guarded: bool = False,
        rng: Random | None = None,
    ) -> None:
        """:param endpoints: "host:port" each; connections are opened at first use.

        :param tls: PEM files for mutual TLS; None connects in plaintext.
        :param guarded: see `Endpoints`; for those that speak with etcd itself.
        :raises ValueError: no endpoint.
        :raises OSError: a TLS file cannot be read.
        """
        self._endpoints = Endpoints(endpoints, tls, guarded=guarded)
        self._rng = rng or Random()  # noqa: S311 - jitter, not a secret
        self._closed = False
        self._history: dict[str, _History] = {}
        """By prefix: which one its last listing is of."""
        self._kept: dict[int, KeepAlive] = {}
        """By lease."""

    @property
    def available(self) -> bool:
        """See `Store.available`."""
        return self._endpoints.available

    async def get(self, key: str) -> KeyValue | None:
        """See `Store.get`."""
        request = rpc.RangeRequest(key=key.encode())
        response = await self._endpoints.call(lambda stubs: stubs.kv.Range(request), repeatable=True)
        return _key_value(response.kvs[0]) if response.kvs else None

    async def get_prefix(self, prefix: str, *, since: int = 0) -> Listing:
        """See `Store.get_prefix`."""
        request = rpc.RangeRequest(key=prefix.encode(), range_end=_prefix_end(prefix))
        response = await self._endpoints.call(lambda stubs: stubs.kv.Range(request), repeatable=True)
        self._history[prefix] = _History().after(response)
        return Listing(tuple(_key_value(kv) for kv in response.kvs), response.header.revision)

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
        request = rpc.RangeRequest(
            key=prefix.encode(),
            range_end=_prefix_end(prefix),
            limit=limit,
            sort_order=rpc.RangeRequest.DESCEND if newest_first else rpc.RangeRequest.ASCEND,
            sort_target=rpc.RangeRequest.MOD,
            min_mod_revision=after + 1 if after else 0,
            max_mod_revision=before - 1 if before else 0,
            keys_only=keys_only,
        )
        response = await self._endpoints.call(lambda stubs: stubs.kv.Range(request), repeatable=True)
        return Listing(tuple(_key_value(kv) for kv in response.kvs), response.header.revision)

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        """See `Store.txn`."""
        request = rpc.TxnRequest(
            compare=[
                rpc.Compare(
                    key=compare.key.encode(),
                    target=rpc.Compare.MOD,
                    result=rpc.Compare.EQUAL,
                    mod_revision=compare.mod_revision,
                )
                for compare in compares
            ],
            success=[
                *(
                    rpc.RequestOp(request_put=rpc.PutRequest(key=p.key.encode(), value=p.value, lease=p.lease))
                    for p in puts
                ),
                *(rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key.encode())) for key in deletes),
            ],
        )
        response = await self._endpoints.call(
            lambda stubs: stubs.kv.Txn(request, metadata=HAS_LEADER), repeatable=False
        )
        return TxnResult(response.succeeded, response.header.revision)

    async def lease_grant(self, ttl: float) -> int:
        """See `Store.lease_grant`."""
        # A grant that is repeated after an unclear failure leaves an unused lease, which runs out.
        request = rpc.LeaseGrantRequest(TTL=max(1, math.ceil(ttl)))
        response = await self._endpoints.call(lambda stubs: stubs.lease.LeaseGrant(request), repeatable=True)
        return int(response.ID)

    async def lease_keepalive(self, lease: int) -> float:
        """See `Store.lease_keepalive`."""
        kept = self._kept.setdefault(lease, KeepAlive())
        answer = await self._endpoints.call(lambda stubs: kept.beat(stubs, lease), repeatable=True)
        if answer.TTL <= 0:
            self._let_go(lease)
            raise WeirError(Reason.NOT_FOUND, "the lease is gone")
        return float(answer.TTL)

    async def lease_revoke(self, lease: int) -> None:
        """See `Store.lease_revoke`."""
        self._let_go(lease)
        request = rpc.LeaseRevokeRequest(ID=lease)
        try:
            await self._endpoints.call(lambda stubs: stubs.lease.LeaseRevoke(request), repeatable=True)
        except WeirError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise

    def _let_go(self, lease: int) -> None:
        if lease in self._kept:
            self._kept.pop(lease).close()

    async def watch(
        self, prefix: str, start_revision: int, *, known: Mapping[str, int] | None = None
    ) -> AsyncGenerator[WatchBatch, None]:
        """See `Store.watch`."""
        state = dict(known or {})
        following, history = start_revision, self._history.get(prefix, _History())
        pause, longest = _RETRY
        while not self._closed:
            stubs = self._endpoints.stubs()
            try:
                async with aclosing(self._watch_once(stubs, prefix, following, history)) as batches:
                    async for batch, told in batches:
                        pause, history = _RETRY[0], told
                        fresh = _newer(batch, following)
                        following = max(following, batch.revision + 1)
                        if fresh.events:
                            remember(state, fresh)
                            yield fresh
            except _HistoryGoneError as gone:
                if gone.restored:
                    # Another history: equal revisions need not mean equal values.
                    state = dict.fromkeys(state, -1)
                listing = await self._list_again(prefix)
                if listing is not None:
                    following, history = listing.revision + 1, self._history[prefix]
                    if merged := listing_diff(listing, state):
                        remember(state, merged)
                        yield merged
                continue
            except asyncio.CancelledError:
                # grpc ends the reads of a closed channel so; only a cancellation of our task may go on.
                task = asyncio.current_task()
                if not self._closed or (task is not None and task.cancelling()):
                    raise
                return
            except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
                self._endpoints.available = False
                _log.info("etcd_watch_lost: %s", type(error).__name__)
            except WeirError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
            self._endpoints.rotate(stubs)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True
        for kept in self._kept.values():
            kept.close()
        await self._endpoints.close()

    async def _watch_once(
        self, stubs: Stubs, prefix: str, following: int, history: _History
    ) -> AsyncGenerator[tuple[WatchBatch, _History], None]:
        """Batches of one watch stream, each with the history that it is of; ends or raises when the stream does. An
        empty one says how far this prefix is known to have no change.

        :param history: which one `following` is of.
        :raises _HistoryGoneError: `following` is compacted, or belongs to a history that this cluster does not have.
        :raises WeirError: DEPENDENCY_UNAVAILABLE when that cannot be told.
        """
        if not await self._endpoints.connected(stubs, _WATCH_OPEN_SECONDS):
            raise TimeoutError
        stream = stubs.watch.Watch(metadata=HAS_LEADER)
        try:
            async with asyncio.timeout(_WATCH_OPEN_SECONDS):
                await stream.write(_create_request(prefix, following))
                first = await stream.read()
            if first is grpc.aio.EOF:
                return
            if first.header.revision < following - 1 or not history.continued_by(first):
                await self._check_restored(prefix, following, history)
            _check(first)
            self._endpoints.available = True
            history = history.after(first)
            yield WatchBatch(following - 1, ()), history
            while (response := await stream.read()) is not grpc.aio.EOF:
                _check(response)
                history = history.after(response)
                yield _batch(response), history
        finally:
            stream.cancel()

    async def _check_restored(self, prefix: str, following: int, history: _History) -> None:
        # The member is behind us. A lagging follower catches up; a store restored from a backup never will, and only
        # a linearizable read can tell the two apart: of a key that whoever watches the prefix may read.
        request = rpc.RangeRequest(key=prefix.encode(), keys_only=True)
        response = await self._endpoints.call(lambda stubs: stubs.kv.Range(request), repeatable=True)
        if response.header.revision < following - 1 or not history.continued_by(response):
            raise _HistoryGoneError(restored=True)

    async def _list_again(self, prefix: str) -> Listing | None:
        try:
            listing = await self.get_prefix(prefix)
        except WeirError as error:
            if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise
            await asyncio.sleep(_RETRY[0])
            return None
        _log.warning("etcd_history_gone")
        return listing


class _History(NamedTuple):
    """Which history of a store revisions are of. A cluster that is restored from a backup gets an id of its own if its
    token, names or addresses are others; its terms of leadership begin anew in any case."""

    cluster: int = 0
    """0: not known."""
    term: int = 0
    """The highest that was seen."""

    def after(self, response: Any) -> _History:
        """With an answer of this history."""
        return _History(response.header.cluster_id, max(self.term, response.header.raft_term))

    def continued_by(self, response: Any) -> bool:
        """Whether the answer may be of this history; a member that lags behind answers from an earlier term."""
        header = response.header
        return not self.cluster or (self.cluster == header.cluster_id and self.term <= header.raft_term)


class _HistoryGoneError(Exception):
    """The revisions that the watch needs are not to be had: compacted, or of a history before a restore."""

    def __init__(self, *, restored: bool) -> None:
        super().__init__()
        self.restored = restored


def _create_request(prefix: str, following: int) -> Any:
    return rpc.WatchRequest(
        create_request=rpc.WatchCreateRequest(
            key=prefix.encode(),
            range_end=_prefix_end(prefix),
            start_revision=following,
            # Where nothing changes the watch gets on as well: what it needs of the history is not compacted then.
            progress_notify=True,
        )
    )


def _check(response: Any) -> None:
    if not response.canceled:
        return
    if response.compact_revision:
        raise _HistoryGoneError(restored=False)
    raise asyncio.InvalidStateError(response.cancel_reason)


def _batch(response: Any) -> WatchBatch:
    events = tuple(
        WatchEvent(
            event.kv.key.decode(),
            None if event.type == rpc.Event.DELETE else event.kv.value,
            event.kv.mod_revision,
            event.kv.lease,
        )
        for event in response.events
    )
    # Without events it is a sign of progress: everything up to the store's revision has been told.
    return WatchBatch(events[-1].mod_revision if events else response.header.revision, events)


def _newer(batch: WatchBatch, following: int) -> WatchBatch:
    return WatchBatch(batch.revision, tuple(event for event in batch.events if event.mod_revision >= following))


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(), kv.value, kv.mod_revision, kv.lease)


def _prefix_end(prefix: str) -> bytes:
    """The first key after every key with this prefix; keys of the registry are ASCII, so the last byte can grow."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])
