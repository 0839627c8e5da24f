"""Admission's composition root."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2_grpc

from libs.clock import Clock, SystemClock
from services.admission.config import Settings
from services.admission.coordinator import Coordinator
from services.admission.server import SERVICE, AdmissionServicer


class AdmissionService:
    """A `libs.service.Service`."""

    def __init__(self, *, coordinator: Coordinator, servicer: AdmissionServicer, tick_seconds: float) -> None:
        self.coordinator = coordinator
        self._servicer = servicer
        self._tick_seconds = tick_seconds

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        admission_pb2_grpc.add_AdmissionServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready at once: everything that admission knows comes to it over its streams."""
        ready()
        while True:
            self.coordinator.tick()
            await asyncio.sleep(self._tick_seconds)

    async def drain(self) -> None:
        """See `libs.service.Service`."""
        await self._servicer.drain()

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(
    settings: Settings, *, clock: Clock | None = None, random_bytes: Callable[[int], bytes] = os.urandom
) -> AdmissionService:
    """Wires the service."""
    clock = clock or SystemClock()
    coordinator = Coordinator(
        limits=settings.limits(),
        clock=clock,
        random_bytes=random_bytes,
        grant_lifetime=settings.grant_lifetime,
        worker_heartbeat=settings.worker_heartbeat,
        gateway_grace=settings.gateway_grace,
    )
    servicer = AdmissionServicer(
        coordinator,
        instance=settings.instance,
        clock=clock,
        max_in_flight=settings.max_in_flight,
        heartbeat=settings.worker_heartbeat,
        tls=settings.tls is not None,
    )
    return AdmissionService(coordinator=coordinator, servicer=servicer, tick_seconds=settings.tick_seconds)
