"""The rate limiter's composition root."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from envoy.service.ratelimit.v3 import rls_pb2_grpc
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import Clock, SystemClock
from libs.gcra import Ledger, LimitSpec
from libs.mux import Codec, MuxServer
from libs.registry import EtcdStore, MemoryStore, RegistryView, Store
from services.ratelimit import edge, quota
from services.ratelimit.config import Settings
from services.ratelimit.journal import Journal
from services.ratelimit.keeper import LedgerKeeper
from services.ratelimit.ports import monotonic_ns, wall_ns

_SECOND = 1_000_000_000


class RateLimitService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        view: RegistryView,
        store: Store,
        keeper: LedgerKeeper,
        mux: MuxServer,
        edge_servicer: edge.EdgeServicer,
        quota_servicer: quota.QuotaServicer,
    ) -> None:
        self._view = view
        self._store = store
        self._keeper = keeper
        self._mux = mux
        self._edge = edge_servicer
        self._quota = quota_servicer

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        rls_pb2_grpc.add_RateLimitServiceServicer_to_server(self._edge, server)
        quota_pb2_grpc.add_QuotaServiceServicer_to_server(self._quota, server)
        return [edge.SERVICE, quota.SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready once there are limits, from the registry or from its cached snapshot."""
        stop = self._view.on_change(self._keeper.apply)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run(), name="registry.view")
                group.create_task(self._keeper.run(), name="ledger.keeper")
                await self._view.wait_ready()
                ready()
        finally:
            stop()
            await self._store.close()

    async def drain(self) -> None:
        """Sends the sessions away, lets running calls end and writes the whole state."""
        await self._mux.drain()
        await self._keeper.flush(snapshot=True)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(settings: Settings, *, clock: Clock | None = None, store: Store | None = None) -> RateLimitService:
    """The service, with the state of its last run. `store` replaces etcd in tests.

    :raises OSError: the journal exists and cannot be read.
    """
    clock = clock or SystemClock()
    if store is None:
        store = EtcdStore(settings.etcd, tls=settings.tls) if settings.etcd else MemoryStore()
    state_dir = Path(settings.state_dir) if settings.state_dir else None
    retention_ns = int(settings.settled_retention_seconds * _SECOND)
    ledger = Ledger(
        default=LimitSpec(
            settings.default_requests_per_minute, settings.default_tokens_per_minute, settings.default_concurrency
        ),
        burst_seconds=settings.burst_seconds,
        settled_retention_ns=retention_ns,
        max_settled=settings.max_settled,
        track_changes=state_dir is not None,
    )
    now = monotonic_ns(clock)
    keeper = LedgerKeeper(
        ledger=ledger,
        journal=Journal(state_dir / "quota.journal", rewrite_bytes=settings.journal_bytes) if state_dir else None,
        now=now,
        wall=wall_ns(clock),
        flush_seconds=settings.flush_seconds,
        settled_retention_ns=retention_ns,
    )
    await keeper.recover()
    handler = quota.QuotaHandler(
        ledger=ledger, now=now, lease_seconds=settings.lease_seconds, max_lease_seconds=settings.max_lease_seconds
    )
    mux = MuxServer(
        codec=Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse),
        handler=handler,
        instance=settings.instance,
        clock=clock,
        max_in_flight=settings.max_in_flight,
    )
    tls = settings.tls is not None
    return RateLimitService(
        view=RegistryView(store, cache_file=state_dir / "registry.json" if state_dir else None, clock=clock),
        store=store,
        keeper=keeper,
        mux=mux,
        edge_servicer=edge.EdgeServicer(
            ledger=ledger,
            now=now,
            domain=settings.domain,
            burst_seconds=settings.burst_seconds,
            peers=settings.edge_peers,
            tls=tls,
        ),
        quota_servicer=quota.QuotaServicer(mux=mux, peers=settings.session_peers, tls=tls),
    )
