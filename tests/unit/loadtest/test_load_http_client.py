"""The load generator's HTTP client against a server that answers in scripted pieces."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.pki import EDGE, issue_all
from loadtest.http_client import Connection, ProtocolError, Reply, post

REQUEST = post("127.0.0.1", "/v1/chat/completions", "wk_1", b'{"a":1}')
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Weir-Zone: zone-b\r\ntransfer-encoding: chunked\r\n\r\n"
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%s"}}],"usage":null}\n\n' % text.encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream(*chunks: bytes) -> bytes:
    return STREAM_HEAD + b"".join(map(chunk, chunks)) + b"0\r\n\r\n"


@asynccontextmanager
async def served(*answers: Sequence[bytes], close: bool = False) -> AsyncIterator[tuple[Connection, list[bytes]]]:
    """A server that sends one scripted answer per request, piece by piece; gives a connection and what it was sent."""
    requests: list[bytes] = []
    scripts = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                requests.append(head + await reader.readexactly(length))
                for piece in next(scripts):
                    writer.write(piece)
                    await writer.drain()
                if close:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = Connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield connection, requests
    finally:
        connection.close()
        server.close()
        await server.wait_closed()


async def test_sends_the_key_and_the_body() -> None:
    async with served([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]) as (connection, requests):
        reply = await connection.send(REQUEST)
    assert (reply.status, reply.body, reply.streamed) == (200, b"{}", False)
    assert b"authorization: Bearer wk_1\r\n" in requests[0]
    assert requests[0].endswith(b'\r\n\r\n{"a":1}')


async def test_speaks_tls_to_whom_its_authority_vouches_for(tmp_path: Path) -> None:
    files = issue_all(tmp_path, [EDGE])[EDGE]
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(files.cert, files.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'{"a":1}')
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "localhost", 0, ssl=theirs) as server:
        port = server.sockets[0].getsockname()[1]
        connection = Connection("localhost", port, ssl.create_default_context(cafile=files.ca))
        assert (await connection.send(REQUEST)).body == b"{}"
        connection.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await Connection("localhost", port, ssl.create_default_context()).send(REQUEST)


async def test_one_connection_serves_request_after_request() -> None:
    whole = stream(event("a"), event("b"), USAGE + DONE)
    async with served([whole], [whole], [b"HTTP/1.1 429 Too Many\r\ncontent-length: 3\r\n\r\nno!"]) as (
        connection,
        sent,
    ):
        replies = [await connection.send(REQUEST) for _ in range(3)]
    assert [len(reply.events) for reply in replies] == [3, 3, 0]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert replies[2].body == b"no!"
    assert len(sent) == 3


async def test_reads_headers_whatever_their_case() -> None:
    async with served([stream(USAGE + DONE)]) as (connection, _):
        reply = await connection.send(REQUEST)
    assert reply.header("x-weir-zone") == "zone-b"
    assert reply.header("x-weir") == ""
    assert reply.streamed


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
async def test_counts_events_however_the_bytes_are_cut(size: int) -> None:
    whole = stream(event("a"), event("b") + event("c"), b": heartbeat\n\n", USAGE + DONE)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    async with served(pieces) as (connection, _):
        reply = await connection.send(REQUEST)
    assert len(reply.events) == 4
    assert reply.fault(2) == ""


async def test_counts_an_event_that_is_cut_by_a_chunk_boundary_once() -> None:
    text = event("a") + event("b") + USAGE + DONE
    for at in range(1, len(text)):
        async with served([stream(text[:at], text[at:])]) as (connection, _):
            reply = await connection.send(REQUEST)
        assert len(reply.events) == 3, at


async def test_sets_the_event_at_the_first_token() -> None:
    first = asyncio.Event()
    async with served([stream(event("a"), USAGE + DONE)]) as (connection, _):
        reply = await connection.send(REQUEST, on_event=first)
    assert first.is_set()
    assert reply.started <= reply.events[0] <= reply.ended


async def test_a_connection_that_breaks_fails_its_request_and_is_opened_anew() -> None:
    whole = stream(event("a"), USAGE + DONE)
    async with served([whole[:-20]], [whole], close=True) as (connection, requests):
        with pytest.raises(ConnectionError, match="closed"):
            await connection.send(REQUEST)
        assert len((await connection.send(REQUEST)).events) == 2
    assert len(requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        STREAM_HEAD + b"zz\r\n",
        STREAM_HEAD + b"3\r\nabcdef\r\n",
    ],
)
async def test_refuses_what_is_not_http(answer: bytes) -> None:
    async with served([answer]) as (connection, _):
        with pytest.raises(ProtocolError):
            await connection.send(REQUEST)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (Reply(status=503, body=b"away"), "status 503: b'away'"),
        (Reply(status=200, streamed=True, body=USAGE), "the stream ended badly"),
        (Reply(status=200, streamed=True, body=b'data: {"error":{}}\n\n' + USAGE + DONE), "the stream ended badly"),
        (Reply(status=200, streamed=True, body=USAGE.replace(b'ns":2', b'ns":1') + DONE), "not 2 tokens"),
        (Reply(status=200, body=b'{"usage":{"completion_tokens":20,"total_tokens":1}}'), "not 2 tokens"),
        (Reply(status=200, body=b'{"usage":{"completion_tokens":2,"total_tokens":1}}'), ""),
    ],
)
def test_tells_a_whole_answer_from_others(reply: Reply, fault: str) -> None:
    assert reply.fault(2).startswith(fault)
    assert bool(reply.fault(2)) == bool(fault)
