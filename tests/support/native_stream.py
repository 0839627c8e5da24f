"""A caller of a gateway under test: the native stream, read frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.errors import WeirError, from_rpc_error
from tests.support.leaves import FakeWorker, Rig, Running

HEADERS = [("x-weir-tenant", "closed"), ("x-weir-scopes", "inference embeddings models.read"), ("x-weir-key-id", "k1")]
FLAGGED = [("x-weir-tenant", "flagged"), *HEADERS[1:]]


class Stream:
    """A Generate call; the prompt is "hi" unless `token_ids` are given."""

    def __init__(
        self,
        rig: Rig,
        headers: list[tuple[str, str]] = HEADERS,
        *,
        token_ids: list[int] | None = None,
        seconds: float = 30,
        cursor: bytes = b"",
        idempotency_key: str = "",
        **parameters: Any,
    ) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}")
        stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self.call = stub.Generate(metadata=headers, timeout=seconds)
        self._spec = inference_pb2.GenerationSpec(
            model="tiny",
            prompt="hi",
            parameters=inference_pb2.GenerationParameters(**parameters),
            cursor=cursor,
            idempotency_key=idempotency_key,
        )
        if token_ids is not None:
            self._spec.token_ids.ids.extend(token_ids)
        self.frames: list[inference_pb2.GenerateResponse] = []

    async def __aenter__(self) -> Stream:
        # A call that was refused already tells why when it is read.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.write(inference_pb2.GenerateRequest(start=self._spec))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.call.cancel()
        await self._channel.close()

    async def read(self) -> inference_pb2.GenerateResponse:
        frame = await self.call.read()
        assert frame is not grpc.aio.EOF
        self.frames.append(frame)
        return frame

    async def text(self, length: int) -> str:
        """Read deltas until so many characters came."""
        found = ""
        while len(found) < length:
            frame = await self.read()
            found += "".join(choice.text for choice in frame.delta.choices)
        return found

    def of(self, index: int) -> str:
        """What one choice has said so far."""
        return "".join(c.text for frame in self.frames for c in frame.delta.choices if c.index == index)

    def logprobs(self) -> str:
        """The tokens whose log-probabilities came so far, joined."""
        return "".join(p.token for frame in self.frames for c in frame.delta.choices for p in c.logprobs)

    async def rest(self) -> tuple[str, inference_pb2.End]:
        """Everything up to the end, and that nothing comes after it."""
        found = ""
        while True:
            frame = await self.read()
            found += "".join(choice.text for choice in frame.delta.choices)
            if frame.HasField("end"):
                assert await self.call.read() is grpc.aio.EOF
                return found, frame.end


async def taken(worker: FakeWorker) -> Running:
    """The next sequence that this worker gets."""
    return await asyncio.wait_for(worker.submitted.get(), 10)


def ids(text: str) -> list[int]:
    """The byte tokenizer's tokens."""
    return list(text.encode())


async def refusal(stream: Stream) -> WeirError:
    """The error that the call ended with, before any frame."""
    call = stream.call
    status = await call.code()
    assert status is not grpc.StatusCode.OK
    return from_rpc_error(
        grpc.aio.AioRpcError(
            status, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
    )
