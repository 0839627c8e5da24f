"""What Envoy answers by itself, asked for byte by byte: every reply has words and a code, and HTTP/1.0 is spoken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.upstreams import event

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer good\r\n"
MODEL = b"GET /v1/models/m HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer good\r\n"
OLD = b" HTTP/1.0\r\nhost: edge\r\nauthorization: Bearer good\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """An edge that does not wait for long."""
    limits = {"header_seconds": 3, "request_seconds": 4, "max_stream_seconds": 4, "max_body_bytes": 64 * 1024}
    async with running_edge(tmp_path_factory.mktemp("impatient"), **limits) as found:
        yield found


async def asked(edge: Edge, *parts: bytes) -> tuple[str, dict[str, str], bytes]:
    """Sends the bytes as they are; the answer's first line, headers and body, until the connection ends or the body is
    whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.http_port)
    async with asyncio.timeout(20):
        for part in parts:
            writer.write(part)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = headers.get("content-length")
        body = await (reader.read() if length is None else reader.readexactly(int(length)))
    writer.close()
    return first, headers, body


REFUSED = [
    (MODEL.replace(b"/m ", b"/maker%2Fname ") + b"\r\n", 404, "not_found", "escaped slash"),
    (MODEL.replace(b"/m ", b"/m#part ") + b"\r\n", 404, "not_found", "fragment"),
    (MODEL.replace(b"/v1/models/m", b"/nothing") + b"\r\n", 404, "not_found", "no such path"),
    (MODEL.replace(b"host: edge\r\n", b"") + b"\r\n", 400, "invalid_request", "host"),
    (b"garbage\r\n\r\n", 400, "invalid_request", "well-formed"),
    (CHAT + b"x_y: 1\r\n\r\n", 400, "invalid_request", "underscores"),
    (CHAT + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}", 400, "invalid_request", "well-formed"),
    (CHAT + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_request", "well-formed"),
    (MODEL + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n", 403, "invalid_request", "upgrades"),
    (CHAT + b"content-length: 70000\r\n\r\n" + b"x" * 70_000, 413, "payload_too_large", "body"),
    (CHAT + b"x: " + b"x" * 40_000 + b"\r\n\r\n", 431, "payload_too_large", "headers"),
    (CHAT + b"transfer-encoding: gzip\r\n\r\n", 501, "unimplemented", "transfer-encoding"),
    (CHAT, 408, "deadline_exceeded", "in time"),
    (CHAT + b"content-length: 10\r\n\r\n{", 408, "deadline_exceeded", "in time"),
]


@pytest.mark.parametrize(("request_bytes", "status", "code", "word"), REFUSED, ids=[str(each[1]) for each in REFUSED])
async def test_refusals_of_envoy_have_words_and_a_code(
    impatient: Edge, request_bytes: bytes, status: int, code: str, word: str
) -> None:
    first, headers, body = await asked(impatient, request_bytes)
    assert first.split(" ")[1] == str(status)
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    error = json.loads(body)["error"]
    assert (error["code"], word in error["message"]) == (code, True), error


async def test_a_prediction_is_refused_in_its_own_words(impatient: Edge) -> None:
    first, _, body = await asked(impatient, MODEL.replace(b"/v1/models/m", b"/v2/models/a%2Fb") + b"\r\n")
    assert (first.split(" ")[1], "escaped slash" in json.loads(body)["error"]) == ("404", True)


async def test_an_answer_that_never_begins_is_a_timeout(impatient: Edge) -> None:
    async def chat(request, context):
        await asyncio.Event().wait()
        yield event("never")

    impatient.upstreams.gateway.chat = chat
    first, headers, body = await asked(impatient, CHAT + b"content-length: 2\r\n\r\n{}")
    assert (first.split(" ")[1], json.loads(body)["error"]["code"]) == ("504", "deadline_exceeded")
    assert headers["retry-after"] == "1"


async def test_http_1_0_is_answered_and_the_end_of_the_answer_is_the_connections(impatient: Edge) -> None:
    first, headers, body = await asked(impatient, b"GET /v1/models/m" + OLD + b"\r\n")
    assert first == "HTTP/1.0 200 OK"
    assert (headers["connection"], json.loads(body)) == ("close", {"id": "m"})
    assert "transfer-encoding" not in headers


async def test_http_1_0_streams_and_needs_no_host(impatient: Edge) -> None:
    async def chat(request, context):
        for part in ("1", "[DONE]"):
            yield event(part)

    impatient.upstreams.gateway.chat = chat
    sent = b"POST /v1/chat/completions" + OLD.replace(b"host: edge\r\n", b"") + b"content-length: 2\r\n\r\n{}"
    first, headers, body = await asked(impatient, sent)
    assert (first, headers["content-type"]) == ("HTTP/1.0 200 OK", "text/event-stream")
    assert body == b"data: 1\n\ndata: [DONE]\n\n"


async def test_http_1_0_is_refused_in_words_too(impatient: Edge) -> None:
    first, headers, body = await asked(impatient, b"GET /nothing" + OLD + b"\r\n")
    assert (first, headers["connection"]) == ("HTTP/1.0 404 Not Found", "close")
    assert json.loads(body)["error"]["code"] == "not_found"
