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
        lines = [line for line in self.data.decode().split("\n") if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    @property
    def text(self) -> str:
        """What choice 0 said, streamed or not."""
        if self.headers.get("x-weir-http-status", "200") != "200":
            raise AssertionError(self.data)
        if not self.data.startswith((b"data: ", b"id:")):
            return str(self.body["choices"][0]["message"]["content"])
        deltas = [choice for event in self.events for choice in event["choices"] if choice["index"] == 0]
        return "".join(delta["delta"].get("content", "") for delta in deltas)


class Streaming:
    """A chat that is streamed, read event by event and left at any time."""

    def __init__(self, rig: Rig, headers: list[tuple[str, str]] = HEADERS, **body: Any) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}")
        given = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, **body}
        self._call = openai_pb2_grpc.OpenAIServiceStub(self._channel).CreateChatCompletion(
            httpbody_pb2.HttpBody(data=json.dumps(given).encode()), metadata=headers, timeout=30
        )
        self._lines: list[str] = []
        self.last_id: str | None = None
        """As a browser keeps it: of the last event that had one; an empty one clears it."""
        self.texts: dict[int, str] = {}
        self.events: list[Any] = []
        self.done = False

    async def __aenter__(self) -> Streaming:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._call.cancel()
        await self._channel.close()

    async def event(self) -> Any:
        """The next event's JSON; None at the end."""
        while True:
            while self._lines:
                line = self._lines.pop(0)
                if line.startswith("id:"):
                    self.last_id = line.removeprefix("id:").strip() or None
                elif line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    found = json.loads(line.removeprefix("data: "))
                    self.events.append(found)
                    for choice in found.get("choices", ()):
                        told = choice["delta"].get("content", "")
                        self.texts[choice["index"]] = self.texts.get(choice["index"], "") + told
                    return found
            chunk = await self._call.read()
            if chunk is grpc.aio.EOF:
                return None
            self._lines += chunk.data.decode().split("\n")

    async def until(self, text: str, index: int = 0) -> None:
        """Read until a choice has said this."""
        while self.texts.get(index, "") != text:
            assert await self.event() is not None, self.texts

    async def rest(self) -> None:
        """Read to the end."""
        while await self.event() is not None:
            pass


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
