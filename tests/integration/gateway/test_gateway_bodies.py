"""Bodies as the edge hands them on: in a content coding, of another type, marked; and what an idempotency key calls
the same."""

from __future__ import annotations

import asyncio
import gzip
import json

import brotli
import grpc
import pytest
from google.api import httpbody_pb2
from weir.openai.v1 import openai_pb2_grpc

from tests.support.leaves import Rig
from tests.support.native_stream import HEADERS, ids, taken
from tests.support.openai_call import Answered

ASKED = {
    "CreateChatCompletion": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    "CreateCompletion": {"model": "tiny", "prompt": "hi"},
    "CreateEmbedding": {"model": "tiny", "input": "hi"},
}


async def sent(rig: Rig, method: str, data: bytes, content_type: str = "application/json", **headers: str) -> Answered:
    """The answer to a body."""
    metadata = [*HEADERS, *((name.replace("_", "-"), value) for name, value in headers.items())]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel:
        call = getattr(openai_pb2_grpc.OpenAIServiceStub(channel), method)(
            httpbody_pb2.HttpBody(content_type=content_type, data=data), metadata=metadata, timeout=30
        )
        found = b"".join([chunk.data async for chunk in call])
        told = {key: str(value) for key, value in await call.initial_metadata() or ()}
    return Answered(told, found)


@pytest.mark.parametrize("method", ["CreateChatCompletion", "CreateCompletion"])
async def test_a_compressed_body_is_answered(mesh: Rig, method: str) -> None:
    body = b"\xef\xbb\xbf" + json.dumps(ASKED[method]).encode()
    asking = asyncio.create_task(sent(mesh, method, gzip.compress(body), content_encoding="gzip"))
    await (await taken(mesh.workers[0])).last(ids("yes"))
    answer = await asking
    assert "x-weir-http-status" not in answer.headers
    [choice] = answer.body["choices"]
    assert (choice["text"] if "text" in choice else choice["message"]["content"]) == "yes"


@pytest.mark.parametrize("method", ASKED)
async def test_what_is_not_read_here_is_refused_before_anything_is_reserved(mesh: Rig, method: str) -> None:
    text = json.dumps(ASKED[method]).encode()
    bomb = gzip.compress(b" " * 50_000_000)
    for data, kind, headers, status, code in (
        (text, "text/plain", {}, "415", "unsupported_media_type"),
        (text, "application/json", {"content_encoding": "gzip, br"}, "415", "unsupported_media_type"),
        (text, "application/json", {"content_encoding": "gzip"}, "400", "invalid_request"),
        (brotli.compress(text)[:-1], "application/json", {"content_encoding": "br"}, "400", "invalid_request"),
        (bomb, "application/json", {"content_encoding": "gzip"}, "413", "payload_too_large"),
    ):
        answer = await sent(mesh, method, data, kind, **headers)
        assert (answer.headers["x-weir-http-status"], answer.body["error"]["code"]) == (status, code)
        assert answer.body["error"]["message"]
    assert not mesh.reserved
