"""The router's composition root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
from weir.router.v1 import router_pb2_grpc

from libs.breaker import BreakerBoard
from libs.clock import Clock, SystemClock
from libs.registry import RegistryView, Source, follow
from services.router import metrics
from services.router.config import Settings
from services.router.server import SERVICE, RouterServicer

_PUBLISH_SECONDS = 2.0
"""How often metrics and the gateways that follow hear where the breakers stand, changed or not."""


class RouterService:
    """A `libs.service.Service`."""

    def __init__(self, *, view: RegistryView, board: BreakerBoard, servicer: RouterServicer, clock: Clock) -> None:
        self._view = view
        self._board = board
        self._servicer = servicer
        self._clock = clock

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        router_pb2_grpc.add_RouterServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready once there is a snapshot, from the registry or from the cache of the last run."""
        stop = self._view.on_change(self._servicer.use)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run(), name="registry.view")
                group.create_task(self._publish(), name="publish")
                await self._view.wait_ready()
                ready()
        finally:
            stop()
            await self._view.close()

    async def drain(self) -> None:
        """See `libs.service.Service`."""
        await self._servicer.drain()

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._view.revision else ("registry",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}

    async def _publish(self) -> None:
        while True:
            metrics.publish_breakers(self._board.states(self._clock.monotonic()))
            self._servicer.tell()
            await asyncio.sleep(_PUBLISH_SECONDS)


async def build(settings: Settings, *, clock: Clock | None = None, store: Source | None = None) -> RouterService:
    """Wires the service. `store` replaces the registry in tests.

    :raises ValueError: a setting is out of range.
    """
    clock = clock or SystemClock()
    board = BreakerBoard(settings.breaker_options())
    servicer = RouterServicer(
        board,
        instance=settings.instance,
        clock=clock,
        max_in_flight=settings.max_in_flight,
        report_seconds=settings.report_seconds,
        state_lasts=settings.state_lasts,
    )
    view = follow("router", settings, source=store, clock=clock)
    return RouterService(view=view, board=board, servicer=servicer, clock=clock)
