"""A collector that takes spans and never answers, one that is full, and one that keeps only what is worth it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from libs.clock import ManualClock
from libs.service import serve
from libs.telemetry.tracing import SERVER, configure_tracing, shutdown_tracing, span
from libs.traces import read_trace
from services.collector.app import build
from services.collector.config import Settings

QUEUE = 2_048
"""Spans that OpenTelemetry's BatchSpanProcessor keeps."""
BATCH = 512


def parent(trace: int) -> str:
    return f"00-{trace:032x}-00f067aa0ba902b7-01"


class Troubled(trace_service_pb2_grpc.TraceServiceServicer):
    """Hangs, or is full, until it is let."""

    def __init__(self, *, full: bool) -> None:
        self.asked, self.let, self.spans, self.full = asyncio.Event(), asyncio.Event(), 0, full

    async def Export(  # noqa: N802 - the name in OTLP
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.asked.set()
        if self.full and not self.let.is_set():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        self.spans += sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans)
        await self.let.wait()
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.mark.parametrize("full", [False, True], ids=["hangs", "full"])
async def test_requests_do_not_notice_a_collector_in_trouble_and_what_waits_for_it_is_bounded(full: bool) -> None:
    server, collector = grpc.aio.server(), Troubled(full=full)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        configure_tracing(service="gateway", instance="g", zone="z", endpoint=f"127.0.0.1:{port}")
        span("first", parent(1), kind=SERVER).end()
        await asyncio.wait_for(collector.asked.wait(), 30)
        # It takes nothing from here on. Spans begin and end on this very loop, as those of requests do: were one of
        # them to wait for the collector, which lives on the same loop, nothing would go on at all.
        for number in range(4 * QUEUE):
            span("request", parent(2 + number), kind=SERVER).end()
        assert collector.spans == int(not full)
        collector.let.set()
        await asyncio.to_thread(shutdown_tracing)
    finally:
        shutdown_tracing()
        await server.stop(None)
    assert 1 < collector.spans <= 1 + QUEUE + BATCH


async def test_a_collector_that_samples_keeps_the_failed_and_is_done_when_it_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = Settings(service="collector", instance="collector-0", directory=str(tmp_path / "traces"), keep_share=0.0)
    collector = await build(settings, clock=clock)
    async with serve(collector, settings, deadline_optional=("/opentelemetry.",)) as running:
        await running.ready.wait()
        configure_tracing(service="gateway", instance="g", zone="z", endpoint=f"127.0.0.1:{running.port}")
        for trace, error in ((1, ""), (2, "ENGINE_ERROR")):
            outer = span("chat", parent(trace), kind=SERVER)
            span("decode", outer.traceparent).end(error)
            outer.end()
        await asyncio.to_thread(shutdown_tracing)
        # Their caller's span is in nobody's record, so they wait for a while.
        assert not read_trace(settings.directory, f"{2:032x}")
        clock.advance(settings.keep_after)
        collector._servicer.sweep()
        assert not read_trace(settings.directory, f"{1:032x}")
        assert len(read_trace(settings.directory, f"{2:032x}")) == 2


async def test_what_is_kept_goes_on_to_another_backend_with_its_token(tmp_path: Path) -> None:
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    class Tempo(trace_service_pb2_grpc.TraceServiceServicer):
        async def Export(  # noqa: N802 - the name in OTLP
            self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
        ) -> trace_service_pb2.ExportTraceServiceResponse:
            told = dict(context.invocation_metadata() or ())
            for each in request.resource_spans:
                for scope in each.scope_spans:
                    for kept in scope.spans:
                        seen.put_nowait((kept.name, str(told.get("authorization", ""))))
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Tempo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    (tmp_path / "token").write_text("Bearer t\n")
    settings = Settings(
        service="collector",
        instance="collector-0",
        directory=str(tmp_path / "traces"),
        forward=f"http://127.0.0.1:{port}",
        forward_header_files={"authorization": str(tmp_path / "token")},
    )
    try:
        async with serve(await build(settings), settings, deadline_optional=("/opentelemetry.",)) as running:
            await running.ready.wait()
            configure_tracing(service="gateway", instance="g", zone="z", endpoint=f"127.0.0.1:{running.port}")
            span("chat", parent(1), kind=SERVER).end()
            await asyncio.to_thread(shutdown_tracing)
            assert await asyncio.wait_for(seen.get(), 30) == ("chat", "Bearer t")
            assert len(read_trace(settings.directory, f"{1:032x}")) == 1
    finally:
        await server.stop(None)
