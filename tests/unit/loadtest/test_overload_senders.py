"""What the load generator makes of answers: reasons, tokens, times; and that it goes away when it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from loadtest.http_client import Reply
from loadtest.overload.senders import HttpSender, Route, answer_of
from simulation.workload import Arrival

ARRIVAL = Arrival(
    at=0.0,
    request_id="a-1",
    tenant="a",
    queue_class="paid",
    weight=1.0,
    prompt_tokens=3,
    output_tokens=2,
    max_tokens=2,
    timeout=30.0,
)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-weir-zone: zone-b\r\ntransfer-encoding: chunked\r\n\r\n"
)
TOKEN = b'data: {"choices":[{"text":"x"}],"usage":null}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},'
    b'"weir":{"degraded":["output_capped"],"breakdown_ms":{"queue":12.5}}}\n\ndata: [DONE]\n\n'
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def reply(status: int, body: bytes, head: bytes = b"", *, streamed: bool = False) -> Reply:
    return Reply(
        status=status,
        ended=2.0,
        head=b"HTTP/1.1\r\n" + head,
        body=body,
        streamed=streamed,
        events=[1.0, 1.5, 1.75] if streamed else [],
    )


def refusal(code: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": "no", "type": "rate_limit_error", "code": code, **more}}).encode()


def test_a_whole_stream_tells_its_tokens_times_and_flags() -> None:
    head = b"x-weir-zone: zone-a\r\nx-weir-model-version: m@2\r\n"
    found = answer_of(reply(200, TOKEN + TOKEN + USAGE, head, streamed=True), 0.5)
    assert (found.outcome, found.tokens, found.prompt_tokens, found.zone) == ("ok", 2, 3, "zone-a")
    assert found.version == "m@2"
    assert found.events == (0.5, 1.0), "the usage event is no token"
    assert found.ended == 1.5
    assert found.degraded == ("output_capped",)
    assert found.queued == 0.0125


@pytest.mark.parametrize(
    ("body", "head", "outcome"),
    [
        (refusal("rejected_deadline"), b"", "REJECTED_DEADLINE"),
        (refusal("error"), b"x-weir-reason: QUOTA_TOKENS\r\n", "QUOTA_TOKENS"),
        (refusal("something_new"), b"", "HTTP_429"),
        (b"upstream said no", b"", "HTTP_429"),
    ],
)
def test_a_refusal_is_known_by_its_reason(body: bytes, head: bytes, outcome: str) -> None:
    found = answer_of(reply(429, body, head), 0.0)
    assert (found.outcome, found.status, found.tokens) == (outcome, 429, 0)


def test_when_to_come_back_is_taken_from_the_finer_header() -> None:
    head = b"retry-after: 2\r\nretry-after-ms: 1250\r\n"
    assert answer_of(reply(429, refusal("rejected_deadline"), head), 0.0).retry_after == 1.25
    assert answer_of(reply(429, refusal("rejected_deadline"), b"retry-after: 2\r\n"), 0.0).retry_after == 2.0
    assert answer_of(reply(429, refusal("rejected_deadline")), 0.0).retry_after is None


def test_an_error_within_a_stream_is_its_end() -> None:
    body = TOKEN + b"data: " + refusal("worker_lost") + b"\n\ndata: [DONE]\n\n"
    found = answer_of(reply(200, body, streamed=True), 0.0)
    assert (found.outcome, found.tokens) == ("WORKER_LOST", 2)
    assert answer_of(reply(200, TOKEN, streamed=True), 0.0).outcome == "CONNECTION_LOST"


@asynccontextmanager
async def edge(*pieces: bytes, hang: bool = False) -> AsyncIterator[tuple[str, list[dict[str, object]]]]:
    """An edge that answers every request with these pieces, or says nothing after them."""
    bodies: list[dict[str, object]] = []
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                bodies.append(json.loads(await reader.readexactly(length)))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if hang:
                    await reader.read()
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies
    finally:
        server.close()
        await gone.wait()


async def send(address: str, **options: object) -> tuple[object, ...]:
    timeout = float(str(options.pop("timeout", 10.0)))
    sender = HttpSender(Route(address=address, key="wk", **options), "m", _Chance())  # type: ignore[arg-type]
    answer = await sender.send(ARRIVAL, timeout=timeout)
    await sender.close()
    return answer.outcome, answer.tokens, answer.zone


class _Chance:
    """Draws the first of everything."""

    def random(self) -> float:
        return 0.0

    def uniform(self, low: float, high: float) -> float:
        return high

    def choices(self, population: Sequence[int], k: int) -> list[int]:
        return list(population[:k])


async def test_a_request_asks_for_the_lengths_of_its_arrival() -> None:
    async with edge(HEAD, chunk(TOKEN), chunk(TOKEN + USAGE) + b"0\r\n\r\n") as (address, bodies):
        assert await send(address) == ("ok", 2, "zone-b")
    body = bodies[0]
    assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) == (3, 2, True)  # type: ignore[arg-type]


async def test_a_client_that_goes_away_keeps_what_it_had() -> None:
    async with edge(HEAD, chunk(TOKEN), hang=True) as (address, _):
        assert await send(address, abandon=1.0, abandon_within=0.2) == ("CANCELLED", 1, "zone-b")


async def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sender = HttpSender(Route(address=address, key="wk"), "m", _Chance())  # type: ignore[arg-type]
    async with server, asyncio.timeout(10):
        sending = asyncio.create_task(sender.send(ARRIVAL, timeout=30.0))
        await asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await gone.wait()


async def test_a_client_that_waited_too_long_says_so() -> None:
    async with edge(HEAD, hang=True) as (address, _):
        assert await send(address, timeout=1.0) == ("CLIENT_TIMEOUT", 0, "zone-b")


async def test_a_connection_that_breaks_is_told_apart() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        outcome, *_ = await send(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert outcome == "CONNECTION_LOST"
