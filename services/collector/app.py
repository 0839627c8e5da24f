"""The collector's composition root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from libs.clock import Clock, SystemClock
from services.collector.config import Settings
from services.collector.forward import Forwarder
from services.collector.policy.tail import TailSampler
from services.collector.server import TraceServicer
from services.collector.store import TraceStore

_SWEEP_SECONDS = 1.0


class Collector:
    """The service object; see `libs.service.Service`."""

    def __init__(self, servicer: TraceServicer, forwarder: Forwarder | None = None) -> None:
        self._servicer, self._forwarder = servicer, forwarder

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Adds the OTLP trace service."""
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self._servicer, server)
        return [trace_service_pb2.DESCRIPTOR.services_by_name["TraceService"].full_name]

    async def run(self, ready: Callable[[], None]) -> None:
        """Needs nothing, so it is ready at once."""
        ready()
        async with asyncio.TaskGroup() as group:
            if self._forwarder is not None:
                group.create_task(self._forwarder.run())
            while True:
                await asyncio.sleep(_SWEEP_SECONDS)
                self._servicer.sweep()

    async def drain(self) -> None:
        """Every answer is given after its spans are written, but for those that wait for their trace's end."""
        self._servicer.finish()

    def endpoint_extra(self) -> Mapping[str, Any]:
        """Nothing beside the common fields."""
        return {}


async def build(settings: Settings, *, clock: Clock | None = None) -> Collector:
    """Wires the collector. Raises OSError when the directory cannot be used."""
    store = TraceStore(
        Path(settings.directory),
        max_traces=settings.max_traces,
        max_bytes=settings.max_bytes,
        max_spans_per_trace=settings.max_spans_per_trace,
    )
    sampler = TailSampler(settings.tail) if settings.keep_share < 1 else None
    backend = settings.backend
    forwarder = Forwarder(backend, most=settings.max_forwarded_spans) if backend else None
    servicer = TraceServicer(
        store,
        max_value_chars=settings.max_value_chars,
        clock=clock or SystemClock(),
        sampler=sampler,
        forward=forwarder.put if forwarder else None,
    )
    return Collector(servicer, forwarder)
