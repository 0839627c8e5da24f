"""The loads, against an edge that answers at once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from loadtest import edge_cost, scenarios
from loadtest.scenarios import Edge, EdgeSender, LoadError, open_loop, requests_closed_loop, tokens_closed_loop

METRICS = b"HTTP/1.0 200 OK\r\n\r\nweir_worker_generation_tokens_total %d.0\n"


class FakeEdge:
    """Answers completions and its workers' metrics; every `fail_every`th completion is a 503."""

    def __init__(self, fail_every: int = 0) -> None:
        self.fail_every = fail_every
        self.connections = 0
        self.requests = 0
        self.tokens = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    writer.write(METRICS % self.tokens)
                    break
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                writer.write(self.answer(json.loads(await reader.readexactly(length))))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def answer(self, body: dict) -> bytes:
        self.requests += 1
        if body.get("temperature") == -1:
            return b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\n{}"
        if self.fail_every and self.requests % self.fail_every == 0:
            return b"HTTP/1.1 503 Away\r\ncontent-length: 4\r\n\r\naway"
        count = body["max_tokens"]
        self.tokens += count
        usage = b'"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}}' % (count, count + 5)
        if not body.get("stream"):
            whole = b'{"choices":[],' + usage
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(whole), whole)
        events = b'data: {"choices":[{}]}\n\n' * count + b'data: {"choices":[],' + usage + b"\n\ndata: [DONE]\n\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events)


@asynccontextmanager
async def edge_of(fake: FakeEdge) -> AsyncIterator[Edge]:
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield Edge("127.0.0.1", port, ("wk_1",), {"self": os.getpid()}, (f"127.0.0.1:{port}",))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "WARM_UP", 0.05)
    monkeypatch.setattr(edge_cost, "WARM_UP", 0.05)
    monkeypatch.setattr(scenarios, "PAUSE", 0.0)


async def test_requests_are_counted_and_charged() -> None:
    fake = FakeEdge()
    async with edge_of(fake) as edge:
        cost = await requests_closed_loop(edge, connections=4, seconds=0.2, max_tokens=3)
    assert 0 < cost.units < fake.requests
    assert cost.rate == pytest.approx(cost.units / cost.wall)
    assert 0 < cost.cpu["self"] < 5
    assert cost.cpu_per_unit == pytest.approx(cost.cpu["self"] / cost.units)


async def test_tokens_are_counted_where_they_are_made() -> None:
    fake = FakeEdge()
    async with edge_of(fake) as edge:
        cost = await tokens_closed_loop(edge, streams=4, seconds=0.2, max_tokens=8)
    assert 0 < cost.units < fake.tokens
    # Eight tokens and the usage make nine events.
    assert cost.events == pytest.approx(cost.units * 9 / 8, rel=0.2)


@pytest.mark.parametrize("load", [requests_closed_loop, tokens_closed_loop])
async def test_one_bad_answer_spoils_the_run(load: object) -> None:
    kind = "connections" if load is requests_closed_loop else "streams"
    async with edge_of(FakeEdge(fail_every=50)) as edge:
        with pytest.raises(LoadError, match="status 503: b'away'"):
            await load(edge, **{kind: 2}, seconds=0.2, max_tokens=3)  # type: ignore[operator]


async def test_prompt_tokens_come_from_the_usage() -> None:
    async with edge_of(FakeEdge()) as edge:
        assert await edge.prompt_tokens() == 5


async def test_a_sender_reuses_its_connections_and_refuses_bad_answers() -> None:
    fake = FakeEdge(fail_every=3)
    async with edge_of(fake) as edge:
        sender = EdgeSender(edge, max_tokens=2)
        assert await sender() > 0
        assert await sender() > 0
        with pytest.raises(LoadError, match="503"):
            await sender()
        sender.close()


@pytest.mark.parametrize(("idle", "connections"), [(60.0, 1), (0.0, 3)])
async def test_a_connection_that_was_idle_for_long_is_not_used_again(
    idle: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenarios, "IDLE", idle)
    fake = FakeEdge()
    async with edge_of(fake) as edge:
        sender = EdgeSender(edge, max_tokens=2)
        for _ in range(3):
            await sender()
        sender.close()
    assert fake.connections == connections


async def test_open_loop_sends_the_same_arrivals_for_the_same_seed() -> None:
    async def one() -> float:
        return 1.0

    counts = [len(await open_loop(one, rate=500.0, seconds=0.2, seed=seed)) for seed in (1, 1, 2)]
    assert counts[0] == counts[1]
    assert 60 < counts[0] < 150
    assert 60 < counts[2] < 150


async def test_the_edge_alone_is_charged_for_what_the_gateway_refuses_at_once() -> None:
    async with edge_of(FakeEdge()) as edge:
        alone = replace(edge, pids=dict.fromkeys((*edge_cost.EDGE, "gateway"), os.getpid()))
        cost = await edge_cost.known(alone, seconds=0.2)
    assert cost.units > 0
    assert cost.cpu.keys() == set(edge_cost.EDGE)


async def test_a_bad_key_that_is_let_in_spoils_the_run() -> None:
    async with edge_of(FakeEdge(fail_every=1)) as edge:
        alone = replace(edge, pids=dict.fromkeys(edge_cost.EDGE, os.getpid()))
        with pytest.raises(ExceptionGroup) as raised:
            await edge_cost.bad_keys(alone, seconds=0.2)
    assert raised.group_contains(LoadError, match="status 503")
