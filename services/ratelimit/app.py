"""The rate limiter's composition root."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from envoy.service.ratelimit.v3 import rls_pb2_grpc
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.auditlog.link import JournaledLink, open_journaled
from libs.auditlog.watch import SecurityWatch
from libs.clock import Clock, SystemClock
from libs.mux import Codec, MuxServer
from libs.quota import Ledger, LimitSpec, Replica
from libs.registry import EtcdStore, MemoryStore, RegistrySnapshot, RegistryView, Store, follow
from libs.sharding import Members
from libs.telemetry import get_logger
from services.ratelimit import edge, metrics, quota
from services.ratelimit.config import Settings
from services.ratelimit.gate import Gate
from services.ratelimit.holders import Holders
from services.ratelimit.journal import Journal
from services.ratelimit.keeper import LedgerKeeper
from services.ratelimit.lapsed import Lapsed
from services.ratelimit.links import open_link, open_shards
from services.ratelimit.owners import Owners
from services.ratelimit.peers import Peers
from services.ratelimit.ports import monotonic_ns, wall_ns
from services.ratelimit.rules import Rules, limits_of
from services.ratelimit.spend import SpendRecords

log = get_logger(__name__)
_SECOND = 1_000_000_000
_DRAIN_SECONDS = 1.0
"""For the last security events."""


class RateLimitService:
    """A `libs.service.Service`."""

    def __init__(
        self, settings: Settings, *, view: RegistryView, store: Store, clock: Clock, rng: random.Random
    ) -> None:
        self._settings = settings
        self._store = store
        state_dir = Path(settings.state_dir) if settings.state_dir else None
        self._view = view
        self._now = now = monotonic_ns(clock)
        self._wall = wall = wall_ns(clock)
        # A life of its own for each start: what others have of the last one stays apart from what is decided now.
        life = f"{wall()}-{uuid.UUID(int=rng.getrandbits(128)).hex[:8]}"
        self._ledger = ledger = Ledger(
            default=LimitSpec(
                settings.default_requests_per_minute, settings.default_tokens_per_minute, settings.default_concurrency
            ),
            part=(settings.instance, life),
            settled_retention_ns=int(settings.settled_retention_seconds * _SECOND),
            share_ns=int(settings.share_seconds * _SECOND),
            track_changes=True,
        )
        ledger.budgets.set_wall(wall(), now())
        metrics.UNTOLD.set_function(lambda: ledger.untold)
        replica = Replica(ledger, keep_log=state_dir is not None)
        self._rules = rules = Rules(level_ns=int(settings.level_seconds * _SECOND))
        self._limits: object = None
        self._sent_home = -int(
            settings.settle_seconds * _SECOND
        )  # the first is sent home at once, however young the clock

        self._peers = peers = Peers(
            instance=settings.instance,
            replica=replica,
            open_link=lambda address: open_link(settings, address, clock=clock, rng=rng),
            now=now,
            clock=clock,
            peer_seconds=settings.peer_seconds,
            join_seconds=settings.join_seconds,
            hear_seconds=settings.hear_seconds,
        )
        self._owners = owners = Owners(
            instance=settings.instance,
            open_shards=lambda: open_shards(settings, clock=clock, rng=rng),
        )
        self._spend = SpendRecords(
            ledger=ledger,
            view=self._view,
            store=store,
            owns=lambda tenant: owners.link(tenant) is None,
            now=now,
            clock=clock,
            seconds=settings.spend_seconds,
        )
        self._members = Members(
            self._view,
            settings.service,
            settle_seconds=settings.settle_seconds,
            on_change=self._rebalance,
            again_seconds=settings.rebalance_seconds,
        )
        self._holders = Holders(ledger=ledger, now=now)
        self._audit = open_journaled(settings.audit_target, settings, clock=clock, rng=rng)
        self._watch = SecurityWatch(
            self._audit,
            source=f"{settings.service}/{settings.instance}",
            clock=clock,
            rng=rng,
            interval=settings.security_seconds,
        )
        self.keeper = LedgerKeeper(
            replica=replica,
            peers=peers,
            journal=Journal(state_dir / "quota.journal", rewrite_bytes=settings.journal_bytes) if state_dir else None,
            sweep=self._sweep,
            now=now,
            wall=wall,
            flush_seconds=settings.flush_seconds,
            replicate_seconds=settings.replicate_seconds,
            lapsed=Lapsed(
                # Its ledger has forgotten them by then: what only memory had would go with it.
                self._audit.write if isinstance(self._audit, JournaledLink) else self._watch.put,
                full=lambda: isinstance(self._audit, JournaledLink) and self._audit.full,
                owns=owners.owns,
                source=f"{settings.service}/{settings.instance}",
                clock=clock,
            ),
        )
        handler = quota.QuotaHandler(
            replica=replica,
            rules=rules,
            holders=self._holders,
            keeper=self.keeper,
            peers=peers,
            owners=owners,
            strayed=self._strayed,
            now=now,
            rng=rng,
            lease_seconds=settings.lease_seconds,
        )
        self._mux = MuxServer(
            codec=Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse),
            handler=handler,
            instance=settings.instance,
            clock=clock,
            max_in_flight=settings.max_in_flight,
        )
        gate = Gate(
            ledger=ledger,
            rules=rules,
            owners=owners,
            keeper=self.keeper,
            now=now,
            clock=clock,
            rng=rng,
            forward_seconds=settings.forward_seconds,
        )
        self._edge = edge.EdgeServicer(gate=gate, watch=self._watch, domain=settings.domain)
        self._quota = quota.QuotaServicer(mux=self._mux)

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        rls_pb2_grpc.add_RateLimitServiceServicer_to_server(self._edge, server)
        quota_pb2_grpc.add_QuotaServiceServicer_to_server(self._quota, server)
        return [edge.SERVICE, quota.SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready once there are limits, from the registry or from its cached snapshot, and the state of another
        replica, if there is one that gives it in time."""
        stop: Callable[[], None] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for background in (
                    self._view,
                    self.keeper,
                    self._peers,
                    self._owners,
                    self._spend,
                    self._audit,
                    self._watch,
                ):
                    group.create_task(background.run(), name=type(background).__name__)
                await self._view.wait_ready()
                stop = self._view.on_change(self._apply)
                group.create_task(self._members.run(), name="Members")
                await self._peers.join()
                self.keeper.joined = True
                ready()
        finally:
            if stop is not None:
                stop()
            await self._view.close()
            await self._store.close()

    async def drain(self) -> None:
        """Sends the sessions away, lets running calls end, tells the others the last and writes the whole state."""
        self.keeper.publish()
        await self._mux.drain()
        await self.keeper.flush(snapshot=True)
        await self._spend.write()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._watch.flush()

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._view.revision else ("registry",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}

    def _apply(self, snapshot: RegistrySnapshot) -> None:
        """Makes the snapshot's rules those in force; at once, what was used stays used."""
        self._rules.update(snapshot)
        self._look_at_registry()
        if snapshot.limits is not self._limits:
            self._limits = snapshot.limits
            self._ledger.apply_limits(limits_of(snapshot), self._now())
            metrics.LIMITS_REVISION.set(snapshot.revision)
        # Before the state of others is asked for: it holds what the records say then, and more.
        self._spend.apply(snapshot)
        self._peers.update(self._members.current)
        self._owners.update(len(self._peers.others))
        self._ledger.terms.holders = self._rules.gateways

    def _rebalance(self, _: Mapping[str, Any]) -> None:
        metrics.REBALANCES.inc()
        self.keeper.publish()
        self._sent_home = self._now()  # what comes to the wrong one while all move is no reason to move them again
        self._mux.rebalance()

    def _strayed(self) -> None:
        """A session asks for what another replica owns: once in a while all are sent to where they belong."""
        now = self._now()
        if now >= self._sent_home + int(self._settings.settle_seconds * _SECOND):
            self._sent_home = now
            self._mux.rebalance()

    def _look_at_registry(self) -> None:
        if self._view.live:
            self._rules.registry_seen(self._now())

    def _sweep(self) -> int:
        self._look_at_registry()
        self._ledger.budgets.set_wall(self._wall(), self._now())
        sides = self._peers.sides
        if sides != self._ledger.terms.sides:
            log.warning("replicas_heard", majority=sides == 1, replicas=len(self._peers.others) + 1)
            self._ledger.terms.sides = sides
        return self._holders.sweep()


async def build(
    settings: Settings, *, clock: Clock | None = None, store: Store | None = None, rng: random.Random | None = None
) -> RateLimitService:
    """The service, with the state of its last run. `store` replaces etcd in tests.

    :raises OSError: the journal exists and cannot be read.
    """
    clock = clock or SystemClock()
    view = follow("ratelimit", settings, source=store, clock=clock)
    if store is None:
        # What was spent is written by whoever owns the tenant; the registry has nothing to do with it.
        store = EtcdStore(settings.etcd, tls=settings.tls) if settings.etcd else MemoryStore()
    service = RateLimitService(settings, view=view, store=store, clock=clock, rng=rng or random.SystemRandom())
    await service.keeper.recover()
    return service
