"""What the edge does when one of several processes of a service dies or hangs: it asks another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx2
import pytest_asyncio
from envoy.service.auth.v3 import external_auth_pb2_grpc
from weir.openai.v1 import openai_pb2_grpc

from libs.rpc.server import bind
from tests.support.certificates import tls_of
from tests.support.edge import put_endpoint
from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.proxy import Proxy
from tests.support.upstreams import FakeAuth, FakeGateway, event

CHAT = "/v1/chat/completions"
AT_ONCE = 16


@pytest_asyncio.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running_edge(tmp_path) as found:
        yield found


@contextlib.asynccontextmanager
async def second(edge: Edge, service: str, servicer: FakeAuth | FakeGateway) -> AsyncIterator[Proxy]:
    """Another process of the service behind what can block or end its connections; Envoy knows it."""
    server = grpc.aio.server()
    if isinstance(servicer, FakeAuth):
        external_auth_pb2_grpc.add_AuthorizationServicer_to_server(servicer, server)
    else:
        openai_pb2_grpc.add_OpenAIServiceServicer_to_server(servicer, server)
    port = bind(server, "127.0.0.1:0", tls=tls_of(edge.ca.parent, service))
    await server.start()
    try:
        async with Proxy(f"127.0.0.1:{port}") as proxy:
            await put_endpoint(edge.plane.store, service, f"{service}-1", int(proxy.address.rpartition(":")[2]))
            await edge.envoy.wait_counter(f"cluster.{service}.membership_total", lambda value: value == 2)
            yield proxy
    finally:
        await server.stop(grace=None)


async def ask(edge: Edge) -> list[tuple[int, str]]:
    """Many requests at once: status and text of each."""
    headers = {"authorization": "Bearer good"}
    async with httpx2.AsyncClient(base_url=edge.url, headers=headers, trust_env=False, timeout=10) as client:
        answers = await asyncio.gather(*(client.post(CHAT, json={}) for _ in range(AT_ONCE)))
    return [(answer.status_code, answer.text) for answer in answers]


async def until(seen: list[object]) -> None:
    async with asyncio.timeout(10):
        while not seen:  # noqa: ASYNC110 - a list of another task
            await asyncio.sleep(0.01)


async def test_an_edge_auth_that_dies_refuses_nobody(edge: Edge) -> None:
    """It takes questions with it that it was asked and has not answered."""
    dying = FakeAuth()
    dying.hold = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(second(edge, "edge-auth", dying))
        asking = asyncio.create_task(ask(edge))
        await until(dying.seen)
    assert {status for status, _ in await asking} == {200}


async def test_an_edge_auth_that_hangs_refuses_nobody(edge: Edge) -> None:
    hanging = FakeAuth()
    hanging.hold = asyncio.Event()  # never set: it takes questions and answers none
    async with second(edge, "edge-auth", hanging):
        answers = await ask(edge)
        assert hanging.seen, "nothing was asked of the one that hangs"
    assert {status for status, _ in answers} == {200}


async def test_a_request_of_which_nothing_was_answered_survives_its_gateway(edge: Edge) -> None:
    dying = FakeGateway()
    never = asyncio.Event()

    async def begins_nothing(request, context):
        await never.wait()
        yield event("too late")

    dying.chat = begins_nothing
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(second(edge, "gateway", dying))
        asking = asyncio.create_task(ask(edge))
        await until(dying.seen)
    assert {status for status, _ in await asking} == {200}


async def test_an_answer_that_has_begun_is_not_begun_again(edge: Edge) -> None:
    dying = FakeGateway()
    never = asyncio.Event()

    async def begins(request, context):
        yield event("begun")
        await never.wait()

    dying.chat = begins
    served = len(edge.upstreams.gateway.seen)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(second(edge, "gateway", dying))
        headers = {"authorization": "Bearer good"}
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=edge.url, headers=headers, trust_env=False, timeout=10)
        )
        lines: list[str] = []
        async with contextlib.AsyncExitStack() as streams:
            while not dying.seen:
                answer = await streams.enter_async_context(client.stream("POST", CHAT, json={}))
            served = len(edge.upstreams.gateway.seen)
            parts = answer.aiter_lines()
            lines.append(await anext(parts))
            await stack.aclose()
            with contextlib.suppress(httpx2.HTTPError):
                lines += [line async for line in parts]
    assert lines.count("data: begun") == 1
    assert len(edge.upstreams.gateway.seen) == served
