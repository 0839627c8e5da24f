"""Whose time is over hears so from the gateway, before the call is broken off from the caller's side."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.errors import Reason, from_rpc_error
from tests.support.leaves import Held, Rig
from tests.support.native_stream import HEADERS, Stream, ids, refusal, taken

SECONDS = 1.5


async def outcome(mesh: Rig) -> tuple[str, str]:
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    return record.outcome, record.reason


@pytest.mark.parametrize("said", ["", "ab"])
async def test_e7_a_worker_that_hangs_ends_as_late_and_not_as_left(mesh: Rig, said: str) -> None:
    async with Stream(mesh, seconds=SECONDS) as stream:
        running = await taken(mesh.workers[0])
        if said:
            await running.tokens(ids(said))
        text, end = await stream.rest()
        assert await stream.call.code() is grpc.StatusCode.OK
    assert (text, end.finish_reason) == (said, inference_pb2.FINISH_REASON_DEADLINE)
    assert await outcome(mesh) == ("deadline", "")
    assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == running.submit.handle


async def test_e7_who_waits_for_a_worker_hears_that_the_time_is_over(mesh: Rig) -> None:
    held = Held(mesh.admission, lambda call: call.HasField("admit"))
    async with Stream(mesh, seconds=SECONDS) as stream:
        await held.question()
        error = await refusal(stream)
    assert (error.reason, error.limit) == (Reason.DEADLINE_EXCEEDED, "admission")  # its own words, not gRPC's
    assert await outcome(mesh) == ("rejected", "DEADLINE_EXCEEDED")
    held.go.set()


async def test_e7_an_embedding_that_hangs_is_late(mesh: Rig) -> None:
    mesh.workers[0].may_embed.clear()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Embed(inference_pb2.EmbedRequest(model="tiny", inputs=["ab"]), timeout=SECONDS, metadata=HEADERS)
    error = from_rpc_error(caught.value)
    assert (error.reason, error.limit) == (Reason.DEADLINE_EXCEEDED, "running")
    assert await outcome(mesh) == ("rejected", "DEADLINE_EXCEEDED")
    mesh.workers[0].may_embed.set()


async def test_who_leaves_in_time_has_left(mesh: Rig) -> None:
    async with Stream(mesh, seconds=20):
        await taken(mesh.workers[0])
    assert (await outcome(mesh))[0] == "cancelled"
