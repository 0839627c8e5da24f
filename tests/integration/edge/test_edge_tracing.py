"""Trace context through Envoy: it begins there, at the configured ratio, and spans reach the collector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from libs.registry import MemoryStore
from tests.support.edge import EnvoyProcess, control_plane
from tests.support.spans import Collector
from tests.support.upstreams import Upstreams

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@asynccontextmanager
async def edge(directory: Path, collector: Collector | None, ratio: float) -> AsyncIterator[tuple[str, Upstreams]]:
    """An edge in plaintext that traces to the collector; gives its URL and upstreams."""
    store = MemoryStore()
    server, endpoint = await (collector or Collector()).serve()
    endpoint = endpoint if collector is not None else ""
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


async def test_envoys_calls_are_spans_of_the_tree_that_the_gateway_continues(tmp_path: Path) -> None:
    collector = Collector()
    async with edge(tmp_path, collector, 1.0) as (url, upstreams):
        inside = await seen(url, upstreams, {})
        await collector.has(inside.split("-")[1])
    assert inside.endswith("-01")
    assert inside.split("-")[2] in {span.span_id.hex() for span in collector.spans}
    assert len(collector.spans) > 1, "edge-auth and ratelimit were asked in the same trace"
    assert len(collector.traces) == 1


async def test_at_ratio_zero_the_gateway_is_told_not_to_trace(tmp_path: Path) -> None:
    async with edge(tmp_path, Collector(), 0.0) as (url, upstreams):
        assert (await seen(url, upstreams, {"traceparent": PARENT})).endswith("-00")


async def test_b5_envoys_own_spans_hold_nothing_that_a_caller_wrote(tmp_path: Path) -> None:
    """Before any collector has filtered them."""
    collector = Collector()
    async with edge(tmp_path, collector, 1.0) as (url, _):
        words = {"user-agent": "cnry-agent", "host": "cnry-host", "x-request-id": "cnry-id", "baggage": "cnry=1"}
        headers = {"authorization": "Bearer good", "traceparent": PARENT, **words}
        async with httpx2.AsyncClient(headers=headers, trust_env=False) as client:
            await client.post(f"{url}/v1/chat/completions?cnry-query=cnry", json={})
            await client.get(f"{url}/v1/models/cnry-model")
            await client.get(f"{url}/cnry-path")
        async with asyncio.timeout(20):
            while sum(span.name == "ingress" for span in collector.spans) < 3:
                collector.arrived.clear()
                await collector.arrived.wait()
    assert "cnry" not in str(collector.spans)


async def test_without_a_collector_the_gateway_decides(tmp_path: Path) -> None:
    async with edge(tmp_path, None, 1.0) as (url, upstreams):
        assert await seen(url, upstreams, {"traceparent": PARENT}) == ""
