"""The door's composition root."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from libs.registry.endpoints import Endpoints
from services.door.config import Settings
from services.door.server import Door, handlers


class DoorService:
    """Implements `libs.service.Service`."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._door = Door(endpoints, new_id=lambda: secrets.randbits(62) + 1)

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        found = handlers(self._door)
        server.add_generic_rpc_handlers(tuple(found.values()))
        return list(found)

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready at once: whether etcd answers is told by each call."""
        ready()
        try:
            await asyncio.Event().wait()
        finally:
            await self._endpoints.close()

    async def drain(self) -> None:
        """Nothing to finish: every call is short."""

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(settings: Settings) -> DoorService:
    """The service.

    :raises ValueError: there is no etcd endpoint, or no certificate, without which nobody can be told apart.
    :raises OSError: a TLS file cannot be read.
    """
    if settings.tls is None:
        raise ValueError("the door needs TLS: it decides by certificates")
    return DoorService(Endpoints(settings.etcd, settings.tls, guarded=True))
