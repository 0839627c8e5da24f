"""What is billed is what was given: nothing behind a stop string, nothing of an answer that nobody got."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.worker.v1 import worker_pb2

from libs.errors import Reason
from tests.support.leaves import Rig, Running
from tests.support.native_stream import HEADERS, Stream, ids, taken
from tests.support.openai_call import chat

OUT = worker_pb2.FINISH_REASON_ERROR


async def billed(mesh: Rig) -> tuple[int, int, int]:
    """Tokens that the quota was settled with, and prompt and output of the record."""
    settled = await asyncio.wait_for(mesh.settled.get(), 10)
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    return settled.tokens, record.prompt_tokens, record.completion_tokens


async def merged(running: Running, text: str, *, logprobs: bool) -> None:
    """One frame with all these tokens: the gateway was behind when the worker's steps came."""
    frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[len(text)], tokens=ids(text))
    if logprobs:
        told = frame.logprobs.add(handle=running.submit.handle)
        for _ in text:
            told.tokens.add(logprob=-0.5)
    await running.stream.send(worker_pb2.SessionResponse(step=frame))


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_c9_what_comes_behind_a_stop_string_is_nobodys(mesh: Rig, at_once: bool, logprobs: bool) -> None:
    """However the steps were merged on their way, the bill is the same."""
    more: dict[str, Any] = {"logprobs": 0} if logprobs else {}
    async with Stream(mesh, stop=["END"], max_tokens=40, **more) as stream:
        running = await taken(mesh.workers[0])
        said = "aEND" + "and so on and so forth.."
        for piece in [said] if at_once else said[:4]:
            await merged(running, piece, logprobs=logprobs)
        text, end = await stream.rest()
    assert (text, end.finish_reason) == ("a", inference_pb2.FINISH_REASON_STOP)
    assert end.usage.completion_tokens == 4
    assert await billed(mesh) == (6, 2, 4)
    assert (await asyncio.wait_for(mesh.released.get(), 10)).output_tokens == 4


async def test_c9_a_whole_answer_that_fails_costs_nothing(mesh: Rig) -> None:
    answer = asyncio.ensure_future(chat(mesh))
    running = await taken(mesh.workers[0])
    await running.tokens(ids("ab"))
    await running.finish(OUT, "out of memory")
    assert (await answer).body["error"]["code"] == "engine_error"
    assert await billed(mesh) == (0, 0, 0)
    released = await asyncio.wait_for(mesh.released.get(), 10)
    assert (released.failed, released.output_tokens) == (True, 2)  # what it cost is admission's to know


@pytest.mark.parametrize("reason", [OUT, worker_pb2.FINISH_REASON_DEADLINE])
async def test_c9_a_stream_that_ends_before_its_first_word_costs_nothing(mesh: Rig, reason: int) -> None:
    async with Stream(mesh) as stream:
        await (await taken(mesh.workers[0])).finish(reason)
        _, end = await stream.rest()
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (0, 0)
    assert await billed(mesh) == (0, 0, 0)


async def test_what_a_stream_gave_before_it_failed_is_billed(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
        await running.finish(OUT)
        await stream.rest()
    assert await billed(mesh) == (4, 2, 2)


async def test_c7_what_the_worker_had_cached_is_told_to_whoever_bills(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[1], tokens=ids("a"))
        frame.first.add(handle=running.submit.handle, cached_prompt_tokens=1)
        await running.stream.send(worker_pb2.SessionResponse(step=frame))
        await running.finish()
        await stream.rest()
    settled = await asyncio.wait_for(mesh.settled.get(), 10)
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    assert (settled.prompt_tokens, settled.cached_prompt_tokens) == (2, 1)
    assert (record.prompt_tokens, record.cached_prompt_tokens) == (2, 1)


async def test_a_native_answer_that_is_given_in_part_is_billed_so(mesh: Rig) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        spec = inference_pb2.GenerationSpec(model="tiny", prompt="hi")
        call = inference_pb2_grpc.InferenceServiceStub(channel).Complete(
            inference_pb2.CompleteRequest(spec=spec), metadata=HEADERS, timeout=20
        )
        answer = asyncio.ensure_future(call)  # type: ignore[arg-type]
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await running.finish(OUT)
        given = await answer
    assert (given.choices[0].text, given.end.error_reason) == ("ab", Reason.ENGINE_ERROR.name)
    assert await billed(mesh) == (4, 2, 2)


async def test_who_leaves_pays_for_what_was_made_until_then(mesh: Rig) -> None:
    """Else leaving at the last moment would make capacity free."""
    answer = asyncio.ensure_future(chat(mesh))
    running = await taken(mesh.workers[0])
    await running.tokens(ids("ab"))
    async with asyncio.timeout(10):
        while not any(generation.delivered for generation in mesh.gateway._pipeline.parts.active):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    answer.cancel()
    assert await billed(mesh) == (11, 9, 2)
