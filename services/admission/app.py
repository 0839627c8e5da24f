"""Admission's composition root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2_grpc

from libs.clock import Clock, SystemClock
from libs.registry import EtcdStore, MemoryStore, RegistryView, Store, follow
from libs.sharding import Members
from services.admission.config import Settings
from services.admission.coordinator import Coordinator
from services.admission.level_publisher import LevelPublisher
from services.admission.owners import Owners
from services.admission.policy.ownership import Ownership
from services.admission.server import SERVICE, AdmissionServicer

_IDLE_SECONDS = 0.5
"""Between two looks while nothing waits and no share is held: only the silence of a worker or a gateway, which is of
seconds, is then seen later."""


class AdmissionService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        servicer: AdmissionServicer,
        store: Store,
        view: RegistryView,
        members: Members,
        publisher: LevelPublisher,
        owners: Owners,
        tick_seconds: float,
    ) -> None:
        self.coordinator = coordinator
        self._owners = owners
        self._servicer = servicer
        self._store = store
        self._view = view
        self._members = members
        self._publisher = publisher
        self._tick_seconds = tick_seconds

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        admission_pb2_grpc.add_AdmissionServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready at once: everything that admission decides by comes to it over its streams. The registry only tells
        it who else there is, and is told what to shed."""
        ready()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run(), name="registry.view")
                group.create_task(self._members.run(), name="members")
                group.create_task(self._publisher.run(), name="levels")
                while True:
                    self.coordinator.tick()
                    self._owners.tick()
                    if all(pool.idle for pool in self.coordinator.pools.values()):
                        self.coordinator.asked.clear()
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_IDLE_SECONDS):
                                await self.coordinator.asked.wait()
                    await asyncio.sleep(self._tick_seconds)
        finally:
            await self._view.close()
            await self._store.close()

    async def drain(self) -> None:
        """See `libs.service.Service`."""
        await self._servicer.drain()

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(
    settings: Settings,
    *,
    clock: Clock | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
    chance: Callable[[], float] = random.random,
    store: Store | None = None,
) -> AdmissionService:
    """Wires the service. `store` replaces etcd in tests."""
    clock = clock or SystemClock()
    source = store
    if store is None:
        # Levels are written under a lease, which the registry has nothing to do with.
        store = EtcdStore(settings.etcd, tls=settings.tls) if settings.etcd else MemoryStore()
    coordinator = Coordinator(
        limits=settings.limits,
        clock=clock,
        random_bytes=random_bytes,
        grant_lifetime=settings.grant_lifetime,
        worker_heartbeat=settings.worker_heartbeat,
        gateway_grace=settings.gateway_grace,
        chance=chance,
    )
    view = follow("admission", settings, source=source, clock=clock)
    owners = Owners(
        Ownership(
            settings.instance,
            tenure=settings.tenure_seconds,
            patience=settings.limits.absence_grace,
            draw=lambda bits: int.from_bytes(random_bytes(bits // 8)),
        ),
        coordinator,
        view=view,
        members=lambda: members,
        clock=clock,
    )
    members = Members(
        view, settings.service, settle_seconds=settings.settle_seconds, on_change=lambda _: owners.settled()
    )
    servicer = AdmissionServicer(
        coordinator,
        owners,
        roles=view,
        instance=settings.instance,
        clock=clock,
        max_in_flight=settings.max_in_flight,
        heartbeat=settings.worker_heartbeat,
        tls=settings.tls is not None,
    )
    return AdmissionService(
        coordinator=coordinator,
        servicer=servicer,
        store=store,
        view=view,
        members=members,
        publisher=LevelPublisher(
            store,
            coordinator.pools,
            epoch=coordinator.epoch,
            instance=settings.instance,
            ttl=settings.level_ttl,
            clock=clock,
        ),
        owners=owners,
        tick_seconds=settings.tick_seconds,
    )
