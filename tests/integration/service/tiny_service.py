"""The smallest service, run as a child process: `python -m tests.integration.service.tiny_service --config FILE`."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping
from typing import Any

import grpc

from libs.config import ServiceSettings
from libs.errors import Reason, WeirError
from libs.service import main, process
from libs.service.process import Ready
from libs.telemetry import get_logger
from libs.telemetry.tracing import root, span

log = get_logger(__name__)
NAME = "weir.test.Tiny"


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it behaves."""

    fail: bool = False
    """Its background work breaks as soon as it is ready."""
    hang: bool = False
    """Its drain never ends."""
    missing: bool = False
    """Something that it needs does not answer when it is built."""
    slow: bool = False
    """It is never built."""
    stuck: bool = False
    """Its drain blocks the event loop for ever."""


class Tiny:
    """Implements `libs.service.Service`: one method, `Hold`, that returns once the service drains."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._draining = asyncio.Event()
        self._held = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def register(self, server: grpc.aio.Server) -> list[str]:
        handlers = {"Hold": grpc.unary_unary_rpc_method_handler(self._hold)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
        return [NAME]

    async def run(self, ready: Ready) -> None:
        span("tiny.run", root(1.0, random.Random(1))).end()
        ready()
        if self._settings.fail:
            raise RuntimeError("the background broke")
        await asyncio.Event().wait()

    async def drain(self) -> None:
        self._draining.set()
        if self._settings.stuck:
            threading.Event().wait()
        if self._settings.hang:
            await asyncio.Event().wait()
        await self._idle.wait()

    def endpoint_extra(self) -> Mapping[str, Any]:
        return {}

    async def _hold(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self._held += 1
        self._idle.clear()
        log.info("held")
        try:
            await self._draining.wait()
            return b"finished"
        finally:
            self._held -= 1
            if not self._held:
                self._idle.set()


async def build(settings: Settings) -> Tiny:
    if settings.missing:
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "nobody answers")
    if settings.slow:
        log.info("building")
        await asyncio.Event().wait()
    if settings.stuck:
        process.ENDING_SECONDS = 0.2
    return Tiny(settings)


if __name__ == "__main__":
    main(Settings, build)
