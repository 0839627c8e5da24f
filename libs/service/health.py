"""What a process says of itself: one state, told over gRPC (grpc.health.v1) and over HTTP (libs.service.pages)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _nothing() -> Sequence[str]:
    return ()


class Health:
    """Not serving until told otherwise. For the event loop's thread."""

    def __init__(self) -> None:
        self._servicer = health_aio.HealthServicer()
        self._names: tuple[str, ...] = ("",)
        self._fault = "starting"
        self._lacks: Callable[[], Sequence[str]] = _nothing

    async def cover(self, server: grpc.aio.Server, names: Iterable[str], lacks: Callable[[], Sequence[str]]) -> None:
        """Speak for these services of a server. `lacks` names what is missing while they do not serve."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self._names, self._lacks = ("", *names), lacks
        await self._tell(_NOT_SERVING)  # grpc's aio servicer starts as SERVING

    async def serving(self) -> None:
        """They serve."""
        self._fault = ""
        await self._tell(_SERVING)

    async def not_serving(self, fault: str) -> None:
        """They do not; `fault` says why in a word or two."""
        self._fault = fault
        await self._tell(_NOT_SERVING)

    @property
    def ready(self) -> bool:
        """Whether they serve."""
        return not self._fault

    @property
    def fault(self) -> str:
        """Why they do not serve, and what is missing; empty: they do."""
        missing = self._lacks() if self._fault else ()
        return f"{self._fault}: no {', no '.join(missing)}" if missing else self._fault

    async def _tell(self, status: int) -> None:
        for name in self._names:
            await self._servicer.set(name, status)
