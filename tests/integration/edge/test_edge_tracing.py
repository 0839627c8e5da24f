"""Trace context through Envoy: a sampled caller stays sampled at any ratio, and spans reach the collector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from libs.registry import MemoryStore
from tests.support.edge import EnvoyProcess, control_plane
from tests.support.upstreams import Upstreams

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[object] = []
        self.arrived = asyncio.Event()

    async def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        self.arrived.set()
        return trace_service_pb2.ExportTraceServiceResponse()


@asynccontextmanager
async def edge(directory: Path, collector: Collector | None, ratio: float) -> AsyncIterator[tuple[str, Upstreams]]:
    """An edge in plaintext that traces to the collector; gives its URL and upstreams."""
    store = MemoryStore()
    server = grpc.aio.server()
    if collector is not None:
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    endpoint = f"127.0.0.1:{port}" if collector is not None else ""
    async with control_plane(store=store, trace_endpoint=endpoint, trace_sample_ratio=ratio) as plane:
        upstreams = Upstreams(store, None)
        await upstreams.start()
        envoy = EnvoyProcess(directory / "envoy", xds=plane.address, tls=None)
        try:
            await envoy.start(("edge-http",))
            for service in upstreams.ports:
                await envoy.wait_counter(f"cluster.{service}.membership_total", lambda value: value == 1)
            yield f"http://127.0.0.1:{(await envoy.listeners())['edge-http']}", upstreams
        finally:
            await envoy.stop()
            await upstreams.stop()
            await server.stop(None)


async def seen(url: str, upstreams: Upstreams, headers: dict[str, str]) -> str:
    """The traceparent that the gateway got."""
    async with httpx2.AsyncClient(headers={"authorization": "Bearer good", **headers}, trust_env=False) as client:
        response = await client.post(f"{url}/v1/chat/completions", json={})
    assert response.status_code == 200
    return upstreams.gateway.seen[-1].get("traceparent", "")


async def test_a_sampled_caller_is_traced_though_the_ratio_is_zero(tmp_path: Path) -> None:
    collector = Collector()
    async with edge(tmp_path, collector, 0.0) as (url, upstreams):
        assert not (await seen(url, upstreams, {})).endswith("-01")
        inside = await seen(url, upstreams, {"traceparent": PARENT})
        assert inside.startswith(f"00-{TRACE}-")
        assert inside.endswith("-01")
        await asyncio.wait_for(collector.arrived.wait(), 20)
    # Envoy's own calls to edge-auth and ratelimit are spans of the same tree; of the unsampled request there is none.
    by_id = {span.span_id.hex(): span for span in collector.spans}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert by_id[inside.split("-")[2]].parent_span_id.hex() == "b7ad6b7169203331"


async def test_all_are_traced_at_ratio_one(tmp_path: Path) -> None:
    async with edge(tmp_path, Collector(), 1.0) as (url, upstreams):
        assert (await seen(url, upstreams, {})).endswith("-01")


@pytest.mark.parametrize("given", [PARENT, PARENT[:-1] + "0"])
async def test_without_a_collector_the_context_passes_through(tmp_path: Path, given: str) -> None:
    async with edge(tmp_path, None, 1.0) as (url, upstreams):
        assert await seen(url, upstreams, {"traceparent": given}) == given
