"""Readers that do not read, over real connections with small windows: they lose their stream, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.openai.v1 import openai_pb2_grpc

from libs.errors import Reason, from_rpc_error
from tests.support.leaves import Rig, Running, rig
from tests.support.native_stream import HEADERS, Stream, ids, taken
from tests.support.tokenizer import write_byte_tokenizer

MUCH = 1_000_000
"""Characters: more than the windows and buffers between the two ends hold."""
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]


@contextlib.asynccontextmanager
async def gateway(directory: Path, **settings: Any) -> AsyncIterator[Rig]:
    model = directory / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), directory / "state", **settings) as mesh:
        yield mesh
        async with asyncio.timeout(10):
            while mesh.leftovers():  # noqa: ASYNC110 - several services' work, with no one event
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def unread(mesh: Rig, face: str) -> AsyncIterator[Any]:
    """A streamed call through a small window; nothing is read unless the test does."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}", options=SMALL_WINDOW) as channel:
        if face == "native":
            spec = inference_pb2.GenerationSpec(model="tiny", prompt="hi")
            call: Any = inference_pb2_grpc.InferenceServiceStub(channel).Generate(metadata=HEADERS, timeout=60)
            await call.write(inference_pb2.GenerateRequest(start=spec))
        else:
            body = {"model": "tiny", "prompt": "hi", "stream": face == "streamed"}
            data = httpbody_pb2.HttpBody(data=json.dumps(body).encode())
            call = openai_pb2_grpc.OpenAIServiceStub(channel).CreateCompletion(data, metadata=HEADERS, timeout=60)
        try:
            yield call
        finally:
            call.cancel()


async def flood(running: Running, characters: int = MUCH) -> None:
    for _ in range(characters // 100_000):
        await running.tokens(ids("x" * 100_000))


async def ending(call: Any) -> Reason:
    """Read on to the status, which must be a failure."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason
    raise AssertionError(f"the call ended with {await call.code()}")


async def test_who_reads_nothing_loses_the_generation_and_may_come_back_for_its_end(tmp_path: Path) -> None:
    async with gateway(tmp_path, reader_stall_seconds=1.5) as mesh, unread(mesh, "native") as call:
        running = await taken(mesh.workers[0])
        await flood(running)
        assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 30) == running.submit.handle
        settled = await asyncio.wait_for(mesh.settled.get(), 10)
        assert settled.tokens == 2 + MUCH  # what was produced for it until then
        assert not (await asyncio.wait_for(mesh.released.get(), 10)).failed
        record = (await asyncio.wait_for(mesh.records.get(), 10)).request
        assert (record.outcome, record.reason) == ("error", "SLOW_READER")
        said = 0
        async for frame in call:
            said += sum(len(choice.text) for choice in frame.delta.choices)
            if frame.HasField("end"):
                assert frame.end.error_reason == "SLOW_READER"
        assert said == MUCH


@pytest.mark.parametrize("face", ["native", "streamed", "whole"])
async def test_who_never_comes_back_is_broken_off_and_holds_nothing(tmp_path: Path, face: str) -> None:
    async with gateway(tmp_path, reader_stall_seconds=0.3) as mesh, unread(mesh, face) as call:
        running = await taken(mesh.workers[0])
        await flood(running)
        if face == "whole":
            await running.finish()
        async with asyncio.timeout(30):
            while mesh.leftovers():  # noqa: ASYNC110 - the sweep's work
                await asyncio.sleep(0.01)
        assert await ending(call) is Reason.SLOW_READER


@pytest.mark.parametrize("face", ["native", "streamed"])
async def test_who_goes_away_after_that_is_no_fault(
    tmp_path: Path, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The status of a call that was broken off is still on its way when its caller vanishes."""
    async with gateway(tmp_path, reader_stall_seconds=0.3) as mesh:
        async with unread(mesh, face):
            await flood(await taken(mesh.workers[0]))
            async with asyncio.timeout(30):
                while mesh.leftovers():  # noqa: ASYNC110 - the sweep's work
                    await asyncio.sleep(0.01)
        async with Stream(mesh) as after:
            await (await taken(mesh.workers[0])).finish()
            await after.rest()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_stuck_stream_holds_up_nobody(tmp_path: Path) -> None:
    async with gateway(tmp_path, reader_stall_seconds=60) as mesh, unread(mesh, "native"):
        stuck = await taken(mesh.workers[0])
        await flood(stuck)
        async with Stream(mesh) as well:
            running = await taken(mesh.workers[0])
            for text in ("a", "b", "c"):
                await running.tokens(ids(text))
                await flood(stuck, 100_000)
                assert await well.text(1) == text
            await running.finish()
            await well.rest()


async def test_one_stream_may_leave_only_so_much(tmp_path: Path) -> None:
    bounds = {"reader_stall_seconds": 60, "max_unread_stream": 300_000}
    async with gateway(tmp_path, **bounds) as mesh, unread(mesh, "native"):
        running = await taken(mesh.workers[0])
        await flood(running)
        assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 30) == running.submit.handle


async def test_all_together_may_leave_only_so_much_and_the_largest_goes_first(tmp_path: Path) -> None:
    bounds = {"reader_stall_seconds": 60, "max_unread": 700_000}
    async with gateway(tmp_path, **bounds) as mesh, unread(mesh, "native") as modest:
        small = await taken(mesh.workers[0])
        await flood(small, 500_000)
        async with unread(mesh, "native") as greedy:
            # In one frame: half of it would be less than what the modest one left.
            await (await taken(mesh.workers[0])).tokens(ids("x" * MUCH))
            assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 30) != small.submit.handle
            assert await ending(greedy) is Reason.SLOW_READER
        await small.finish()
        frames = [frame async for frame in modest]
        assert frames[-1].end.finish_reason == inference_pb2.FINISH_REASON_STOP
        assert sum(len(choice.text) for frame in frames for choice in frame.delta.choices) == 500_000
