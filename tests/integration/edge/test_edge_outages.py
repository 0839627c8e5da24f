"""What Envoy loses or refuses by itself counts against availability, and nothing else that ends badly does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx2
import pytest
import pytest_asyncio
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.errors import Reason, from_rpc_error
from tests.integration.edge.test_edge_losses import second
from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.upstreams import FakeGateway, event

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


@pytest_asyncio.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running_edge(tmp_path) as found:
        yield found


@pytest_asyncio.fixture
async def http(edge: Edge) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": "Bearer good"}
    async with httpx2.AsyncClient(base_url=edge.url, headers=headers, trust_env=False, timeout=10) as client:
        yield client


def lost(edge: Edge, route: str = "generate") -> dict[str, int]:
    """Events that count against the route, by objective."""
    found = edge.plane.control.losses.table.objectives(route, "*")
    return {} if found is None else {name: events.bad for name, events in found.objectives.items()}


async def told(edge: Edge, expected: dict[str, int], route: str = "generate") -> None:
    async with asyncio.timeout(10):
        while lost(edge, route) != expected:  # noqa: ASYNC110 - Envoy tells it
            await asyncio.sleep(0.02)


async def test_a_dead_gateway_counts_against_availability(edge: Edge, http: httpx2.AsyncClient) -> None:
    await edge.upstreams.stop_one("gateway")
    for _ in range(3):
        assert (await http.post(CHAT, json={})).status_code == 503
    assert (await http.post(EMBED, json={})).status_code == 503
    async with edge.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.CountTokens(
                inference_pb2.CountTokensRequest(), timeout=10, metadata=[("authorization", "Bearer good")]
            )
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    error = from_rpc_error(refused.value)
    assert (error.reason, error.retry_after) == (Reason.DEPENDENCY_UNAVAILABLE, 1.0)
    await told(edge, {"availability": 4})
    await told(edge, {"availability": 1}, "embed")


async def test_a_gateway_that_nobody_registers_any_more_counts_too(edge: Edge, http: httpx2.AsyncClient) -> None:
    async with edge.upstreams.without("gateway", lambda present: edge.known("gateway", present=present)):
        assert (await http.post(CHAT, json={})).status_code == 503
        await told(edge, {"availability": 1})


async def test_a_stream_that_breaks_with_its_gateway_counts_as_not_completed_too(
    edge: Edge, http: httpx2.AsyncClient
) -> None:
    never = asyncio.Event()

    async def begins(request, context):
        yield event("begun")
        await never.wait()

    dying = FakeGateway()
    dying.chat = begins
    async with contextlib.AsyncExitStack() as streams, contextlib.AsyncExitStack() as second_gateway:
        await second_gateway.enter_async_context(second(edge, "gateway", dying))
        while not dying.seen:
            stream = await streams.enter_async_context(http.stream("POST", CHAT, json={}))
        lines = stream.aiter_lines()
        assert await anext(lines) == "data: begun"
        await second_gateway.aclose()
        with contextlib.suppress(httpx2.HTTPError):
            async for _ in lines:
                pass
    await told(edge, {"availability": 1, "stream_completion": 1})


async def test_an_edge_auth_that_is_away_counts(edge: Edge, http: httpx2.AsyncClient) -> None:
    await edge.upstreams.stop_one("edge-auth")
    assert (await http.post(CHAT, json={})).status_code == 503
    await told(edge, {"availability": 1})


async def test_what_a_caller_did_and_what_a_gateway_answered_counts_nowhere(
    edge: Edge, http: httpx2.AsyncClient
) -> None:
    """The one is nobody's loss, the other is the gateway's to count."""

    async def refuses(request, context):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no worker")
        yield event("never")

    assert (await http.post(CHAT, json={}, headers={"authorization": "Bearer bad"})).status_code in (401, 403)
    edge.upstreams.gateway.chat = refuses
    assert (await http.post(CHAT, json={})).status_code == 503
    begun = asyncio.Event()

    async def hangs(request, context):
        begun.set()
        await asyncio.Event().wait()
        yield event("never")

    edge.upstreams.gateway.chat = hangs
    leaving = asyncio.create_task(http.post(CHAT, json={}))
    await begun.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    # What Envoy tells comes in order: once this one is told, all before it would be.
    await edge.upstreams.stop_one("gateway")
    assert (await http.post(CHAT, json={})).status_code == 503
    await told(edge, {"availability": 1})
