"""A caller of the OpenAI facade as the edge is one: bodies in, bodies and server-sent events out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import grpc
from google.api import httpbody_pb2
from weir.openai.v1 import openai_pb2_grpc

from tests.support.leaves import Rig
from tests.support.native_stream import HEADERS


@dataclass(frozen=True)
class Answered:
    """An answer: initial metadata as headers, and the bodies joined."""

    headers: dict[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        """The JSON of an answer that was not streamed."""
        return json.loads(self.data)

    @property
    def events(self) -> list[Any]:
        """The JSON of each server-sent event; that the last one is [DONE] is checked."""
        lines = [line for line in self.data.decode().split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    @property
    def text(self) -> str:
        """What choice 0 said, streamed or not."""
        if self.headers.get("x-weir-http-status", "200") != "200":
            raise AssertionError(self.data)
        if not self.data.startswith(b"data: "):
            return str(self.body["choices"][0]["message"]["content"])
        deltas = [choice for event in self.events for choice in event["choices"] if choice["index"] == 0]
        return "".join(delta["delta"].get("content", "") for delta in deltas)


async def chat(rig: Rig, headers: list[tuple[str, str]] = HEADERS, **body: Any) -> Answered:
    """A chat completion of "hi" by the model "tiny", unless `body` says otherwise."""
    given = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **body}
    return await call(rig, "CreateChatCompletion", given, headers)


async def completion(rig: Rig, headers: list[tuple[str, str]] = HEADERS, **body: Any) -> Answered:
    """A legacy completion of "hi" by the model "tiny", unless `body` says otherwise."""
    return await call(rig, "CreateCompletion", {"model": "tiny", "prompt": "hi", **body}, headers)


async def embedding(rig: Rig, headers: list[tuple[str, str]] = HEADERS, **body: Any) -> Answered:
    """Embeddings of "hi" by the model "tiny", unless `body` says otherwise."""
    return await call(rig, "CreateEmbedding", {"model": "tiny", "input": "hi", **body}, headers)


async def call(rig: Rig, method: str, given: Any, headers: list[tuple[str, str]]) -> Answered:
    """Any of the facade's methods that take a body."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel:
        running = getattr(openai_pb2_grpc.OpenAIServiceStub(channel), method)(
            httpbody_pb2.HttpBody(data=json.dumps(given).encode()), metadata=headers, timeout=30
        )
        data, types = b"", set()
        async for chunk in running:
            data += chunk.data
            types.add(chunk.content_type)
        metadata = {key: str(value) for key, value in await running.initial_metadata() or ()}
    return Answered(metadata | {"content-type": "; ".join(sorted(types))}, data)
