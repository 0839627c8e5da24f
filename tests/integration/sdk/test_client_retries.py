"""The typed client against a scripted server: when it tries again, how long it waits, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from weir.client import Client, GenerationStream, Reason, RetryPolicy, WeirError
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.rpc import make_server
from libs.rpc.server import bind

ACCEPTED = inference_pb2.GenerateResponse(accepted=inference_pb2.Accepted(model_version="tiny@1"))
STOP = inference_pb2.FINISH_REASON_STOP
AWAY = WeirError(Reason.DEPENDENCY_UNAVAILABLE, "away")
Script = Callable[[grpc.aio.ServicerContext], Awaitable[None]]


def delta(text: str, cursor: bytes = b"", finish: int = 0) -> inference_pb2.GenerateResponse:
    response = inference_pb2.GenerateResponse()
    response.delta.choices.add(index=0, text=text, finish_reason=finish)  # type: ignore[arg-type]
    response.delta.cursor = cursor
    return response


def end(reason: int = STOP, error: str = "") -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(end=inference_pb2.End(finish_reason=reason, error_reason=error))  # type: ignore[arg-type]


class Server(inference_pb2_grpc.InferenceServiceServicer):
    """Every call runs the next script; the last one again and again."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.calls: list[float] = []
        self.remaining: list[float] = []
        self.starts: list[inference_pb2.GenerationSpec] = []
        self.cancelled = asyncio.Event()
        self.frames: asyncio.Queue[str] = asyncio.Queue()

    async def _run(self, context: grpc.aio.ServicerContext) -> None:
        self.calls.append(time.monotonic())
        self.remaining.append(context.time_remaining() or -1.0)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            await script(context)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def Generate(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        first = await anext(request_iterator)
        assert first.start.model == "tiny"
        self.starts.append(first.start)

        async def watch() -> None:
            async for frame in request_iterator:
                self.frames.put_nowait(frame.WhichOneof("frame"))

        watcher = asyncio.ensure_future(watch())
        try:
            await self._run(context)
        finally:
            watcher.cancel()

    async def CountTokens(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        await self._run(context)
        return inference_pb2.CountTokensResponse(prompt_tokens=7)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with serving(made):
        yield made


@contextlib.asynccontextmanager
async def serving(made: Server) -> AsyncIterator[None]:
    listening = make_server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(made, listening)
    made.port = bind(listening, "127.0.0.1:0", tls=None)  # type: ignore[attr-defined]
    await listening.start()
    try:
        yield
    finally:
        await listening.stop(grace=None)


def client(server: Server, **policy: Any) -> Client:
    return Client(f"127.0.0.1:{server.port}", retries=RetryPolicy(**policy), rng=random.Random(1))  # type: ignore[attr-defined]


def fails(error: WeirError) -> Script:
    async def script(context: grpc.aio.ServicerContext) -> None:
        raise error

    return script


def says(*frames: inference_pb2.GenerateResponse, then: WeirError | None = None) -> Script:
    async def script(context: grpc.aio.ServicerContext) -> None:
        for frame in frames:
            await context.write(frame)
        if then is not None:
            raise then

    return script


def hangs_after(*frames: inference_pb2.GenerateResponse) -> Script:
    async def script(context: grpc.aio.ServicerContext) -> None:
        for frame in frames:
            await context.write(frame)
        await asyncio.Event().wait()

    return script


async def succeed(context: grpc.aio.ServicerContext) -> None:
    """A unary call's success."""


async def whole(calling: Client, seconds: float = 10) -> str:
    async with calling.generate("tiny", "hi", timeout=seconds) as stream:
        return "".join([piece.text async for piece in stream])


async def read(stream: GenerationStream, into: list[str]) -> None:
    """Read to the end; what came before a failure is kept."""
    async for piece in stream:
        into.append(piece.text)  # noqa: PERF401


WHOLE = says(ACCEPTED, delta("a"), delta("b"), end())


async def test_a_stream_is_tried_again_before_its_first_frame(server: Server) -> None:
    server.scripts = [fails(AWAY), fails(WeirError(Reason.REJECTED_NO_CAPACITY, "full")), WHOLE]
    async with client(server) as calling:
        assert await whole(calling) == "ab"
    assert len(server.calls) == 3


async def test_nothing_is_tried_again_once_something_has_come(server: Server) -> None:
    server.scripts = [says(ACCEPTED, delta("a"), then=AWAY), WHOLE]
    got: list[str] = []
    async with client(server) as calling, calling.generate("tiny", "hi", timeout=10) as stream:
        with pytest.raises(WeirError) as caught:
            await read(stream, got)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert (got, len(server.calls)) == (["a"], 1)


async def test_an_error_in_the_terminal_frame_is_raised_after_the_text(server: Server) -> None:
    server.scripts = [says(ACCEPTED, delta("a"), end(inference_pb2.FINISH_REASON_ERROR, "WORKER_LOST")), WHOLE]
    got: list[str] = []
    async with client(server) as calling, calling.generate("tiny", "hi", timeout=10) as stream:
        with pytest.raises(WeirError) as caught:
            await read(stream, got)
    assert (caught.value.reason, got, len(server.calls)) == (Reason.WORKER_LOST, ["a"], 1)


async def test_attempts_are_limited(server: Server) -> None:
    server.scripts = [fails(AWAY)]
    async with client(server, attempts=3) as calling:
        with pytest.raises(WeirError) as caught:
            await whole(calling)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert len(server.calls) == 3


@pytest.mark.parametrize(
    "reason", [Reason.INVALID_REQUEST, Reason.QUOTA_TOKENS, Reason.CONTENT_FILTER, Reason.INTERNAL]
)
async def test_what_would_fail_again_is_not_tried_again(server: Server, reason: Reason) -> None:
    server.scripts = [fails(WeirError(reason, "no", limit="x", retry_after=0.01))]
    async with client(server) as calling:
        with pytest.raises(WeirError) as caught:
            await whole(calling)
    assert (caught.value.reason, caught.value.limit, len(server.calls)) == (reason, "x", 1)


async def test_it_waits_as_long_as_the_server_asks(server: Server) -> None:
    server.scripts = [fails(WeirError(Reason.REJECTED_QUEUE_FULL, "full", retry_after=0.3)), WHOLE]
    async with client(server, base=0.001) as calling:
        await whole(calling)
    assert server.calls[1] - server.calls[0] >= 0.3


async def test_a_wait_beyond_the_timeout_is_not_begun(server: Server) -> None:
    server.scripts = [fails(WeirError(Reason.REJECTED_QUEUE_FULL, "full", retry_after=60))]
    async with client(server) as calling:
        started = time.monotonic()
        with pytest.raises(WeirError) as caught:
            await whole(calling, seconds=50)
    assert time.monotonic() - started < 40
    assert (caught.value.reason, caught.value.retry_after) == (Reason.REJECTED_QUEUE_FULL, 60)


async def test_every_try_gets_only_what_is_left_of_the_timeout(server: Server) -> None:
    server.scripts = [fails(WeirError(Reason.REJECTED_QUEUE_FULL, "full", retry_after=0.5)), WHOLE]
    async with client(server) as calling:
        await whole(calling, seconds=5)
    assert server.remaining[0] <= 5.01
    assert server.remaining[1] <= 4.51


async def test_the_timeout_covers_the_stream_itself(server: Server) -> None:
    server.scripts = [hangs_after(ACCEPTED, delta("a"))]
    async with client(server) as calling:
        with pytest.raises(WeirError) as caught:
            await whole(calling, seconds=0.4)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    await asyncio.wait_for(server.cancelled.wait(), 10)


async def test_pauses_are_jittered_and_grow_to_the_cap() -> None:
    pauses: list[tuple[float, float]] = []

    class Recording(random.Random):
        def uniform(self, a: float, b: float) -> float:
            pauses.append((a, b))
            return 0.0

    server = Server()
    server.scripts = [fails(AWAY)]
    async with serving(server):
        policy = RetryPolicy(attempts=6, base=0.1, cap=1.0)
        calling = Client(f"127.0.0.1:{server.port}", retries=policy, rng=Recording())  # type: ignore[attr-defined]
        async with calling:
            with pytest.raises(WeirError):
                await whole(calling)
    assert pauses == [(0, 0.2), (0, 0.4), (0, 0.8), (0, 1.0), (0, 1.0)]


async def test_leaving_early_cancels_the_generation(server: Server) -> None:
    server.scripts = [hangs_after(ACCEPTED, delta("a"))]
    async with client(server) as calling:
        async with calling.generate("tiny", "hi", timeout=30) as stream:
            async for _ in stream:
                break
        await asyncio.wait_for(server.cancelled.wait(), 10)


async def test_giving_up_while_it_opens_cancels_the_generation(server: Server) -> None:
    server.scripts = [hangs_after()]
    async with client(server) as calling:
        stream = calling.generate("tiny", "hi", timeout=30)
        opening = asyncio.ensure_future(stream.__aenter__())
        while not server.calls:  # noqa: ASYNC110 - the server's state
            await asyncio.sleep(0.001)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(server.cancelled.wait(), 10)


async def test_a_server_that_begins_wrongly_is_left(server: Server) -> None:
    server.scripts = [hangs_after(delta("a"))]
    async with client(server) as calling:
        with pytest.raises(WeirError) as caught:
            await whole(calling)
        assert caught.value.reason is Reason.INTERNAL
        await asyncio.wait_for(server.cancelled.wait(), 10)


async def test_a_cancel_frame_lets_the_terminal_frame_come(server: Server) -> None:
    async def obey(context: grpc.aio.ServicerContext) -> None:
        await context.write(ACCEPTED)
        assert await asyncio.wait_for(server.frames.get(), 10) == "cancel"
        await context.write(end(inference_pb2.FINISH_REASON_CANCELLED))

    server.scripts = [obey]
    async with client(server) as calling, calling.generate("tiny", "hi", timeout=30) as stream:
        await stream.cancel("enough")
        assert [piece async for piece in stream] == []
        assert stream.end is not None
        assert stream.end.finish_reason == inference_pb2.FINISH_REASON_CANCELLED
        await stream.cancel()  # after the end this does nothing


async def test_a_stream_without_a_terminal_frame_is_an_error(server: Server) -> None:
    server.scripts = [says(ACCEPTED, delta("a"))]
    async with client(server) as calling:
        with pytest.raises(WeirError) as caught:
            await whole(calling)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_unary_calls_are_tried_again_too(server: Server) -> None:
    server.scripts = [fails(AWAY), succeed]
    async with client(server) as calling:
        assert await calling.count_tokens("tiny", "hi", timeout=10) == 7
    assert len(server.calls) == 2


async def test_unary_calls_keep_to_their_timeout(server: Server) -> None:
    server.scripts = [succeed, hangs_after()]
    async with client(server) as calling:
        await calling.count_tokens("tiny", "hi", timeout=10)  # there is a connection
        with pytest.raises(WeirError) as caught:
            await calling.count_tokens("tiny", "hi", timeout=1.0)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert len(server.calls) == 2


async def test_an_unreachable_server_is_an_unavailable_dependency() -> None:
    server = Server()
    async with serving(server):
        pass
    async with client(server, attempts=2) as calling:
        with pytest.raises(WeirError) as caught:
            await whole(calling)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ("", None),
        ("ada@example.org", "ada@example.org"),
        ("Ada Lovelace", "Ada Lovelace"),
        ("Åda", "digest"),
        (" ada", "digest"),
        ("a" * 257, "digest"),
    ],
)
async def test_the_user_is_told_in_a_header_however_it_is_spelt(server: Server, user: str, told: str | None) -> None:
    heard: list[dict[str, Any]] = []

    async def note(context: grpc.aio.ServicerContext) -> None:
        heard.append(dict(context.invocation_metadata() or ()))
        await context.write(ACCEPTED)
        await context.write(delta("x"))
        await context.write(end())

    server.scripts = [note]
    async with client(server) as asking, asking.generate("tiny", "hi", timeout=10, user=user) as stream:
        assert [piece async for piece in stream]
    found = heard[0].get("x-weir-user")
    if told == "digest":
        assert re.fullmatch("[0-9a-f]{64}", found)
    else:
        assert found == told
