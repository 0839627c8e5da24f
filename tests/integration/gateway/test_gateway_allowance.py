"""A request that names no longest answer: reserved what answers have been, grown before more is used, ended where the
quota ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from weir.inference.v1 import inference_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.errors import Reason, WeirError
from libs.limiter import AHEAD
from services.gateway.messages import LEAST, UNKNOWN
from tests.support.leaves import MODEL, Held, Rig, Running
from tests.support.native_stream import Stream, taken

CONTEXT = 4096
FIRST = 2 + UNKNOWN + AHEAD
"""Reserved of a prompt of two tokens."""
A = ord("a")


@pytest.fixture
async def mesh(mesh: Rig) -> Rig:
    """Its model has a long context, and no default of its own."""
    version = registry_pb2.ModelVersion()
    version.CopyFrom(mesh.gateway._catalog.snapshot.model_versions[MODEL])
    version.context_length, version.sampling_defaults.max_tokens = CONTEXT, 0
    await mesh.put(version)
    await mesh.gateway._view.wait_until(lambda seen: seen.model_versions[MODEL].context_length == CONTEXT)
    return mesh


async def gives(running: Running, stream: Stream, count: int) -> None:
    await running.tokens([A] * count)
    await stream.text(count)


async def settled(mesh: Rig) -> quota_pb2.Settle:
    return await asyncio.wait_for(mesh.settled.get(), 10)


def deny_growth(mesh: Rig, beyond: int) -> list[int]:
    """The quota has so many tokens for the request; what was asked for is listed."""
    normal, asked = mesh.quota.handler, list[int]()

    def handle(call: Any, context: Any) -> Any:
        if call.reserve.tokens > beyond:
            asked.append(call.reserve.tokens)
            error = WeirError(Reason.QUOTA_TOKENS, "nothing is left", retry_after=7)
            return quota_pb2.QuotaReply(rejected=error.to_rejection())
        return normal(call, context)

    mesh.quota.handler = handle
    return asked


async def test_c7_what_is_reserved_is_what_answers_have_been_and_not_the_context(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        (reserve,) = mesh.reserved
        assert (reserve.tokens, reserve.grows, reserve.max_output_tokens) == (FIRST, True, CONTEXT - 2)
        assert running.submit.sampling.max_tokens == CONTEXT - 2
        await running.last([A] * 9)
        await stream.rest()
    assert (await settled(mesh)).tokens == 11
    for _ in range(7):
        async with Stream(mesh) as stream:
            await (await taken(mesh.workers[0])).last([A] * 9)
            await stream.rest()
    async with Stream(mesh) as stream:
        await (await taken(mesh.workers[0])).last([A] * 9)
        await stream.rest()
    assert mesh.reserved[-1].tokens == 2 + LEAST + AHEAD
    async with Stream(mesh, max_tokens=3000) as stream:
        await (await taken(mesh.workers[0])).last([A] * 9)
        await stream.rest()
    assert (mesh.reserved[-1].tokens, mesh.reserved[-1].grows) == (3002, False)


async def test_c7_more_is_reserved_before_it_is_given(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await gives(running, stream, UNKNOWN)
        assert len(mesh.reserved) == 1
        await gives(running, stream, 1)
        async with asyncio.timeout(10):
            while len(mesh.reserved) < 2:  # noqa: ASYNC110 - the leaf has no event for it
                await asyncio.sleep(0.002)
        more = mesh.reserved[1]
        assert more.request_id == mesh.reserved[0].request_id
        assert (more.tokens, more.grows, more.request_counted) == (FIRST + UNKNOWN + AHEAD, True, True)
        await gives(running, stream, 400)
        await running.finish()
        await stream.rest()
    assert (await settled(mesh)).tokens == 2 + UNKNOWN + 401


async def test_c7_a_stream_ends_with_the_quotas_reason_where_nothing_is_left(mesh: Rig) -> None:
    asked = deny_growth(mesh, beyond=FIRST + 100)
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await gives(running, stream, UNKNOWN + 1)
        async with asyncio.timeout(10):
            while len(mesh.reserved) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        # Less than was asked for at first is left, and given.
        assert asked == [FIRST + UNKNOWN + AHEAD, FIRST + (UNKNOWN + AHEAD) // 4]
        await gives(running, stream, AHEAD - 1)
        for _ in range(AHEAD):
            await running.tokens([A] * 2)
        text, end = await stream.rest()
    assert (end.error_reason, end.finish_reason) == (Reason.QUOTA_TOKENS.name, inference_pb2.FINISH_REASON_ERROR)
    used = await settled(mesh)
    assert used.tokens == 2 + end.usage.completion_tokens <= mesh.reserved[1].tokens <= FIRST + 100
    # What the filter still had is lost with the stream, and was made.
    assert UNKNOWN + AHEAD + len(text) <= end.usage.completion_tokens
    assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == running.submit.handle


async def test_c7_what_comes_before_the_limiters_answer_is_given_out_of_the_share(mesh: Rig) -> None:
    """Nothing of it is beyond the reservation, however slow the limiter is."""
    held = Held(mesh.quota, lambda call: call.reserve.tokens > FIRST)
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await gives(running, stream, UNKNOWN + 1)
        await held.question()
        bridge = mesh.gateway._quota._bridge
        await gives(running, stream, AHEAD)
        assert list(bridge.grown(0)) == [("closed", mesh.reserved[0].request_id)]
        await running.finish()
        _, end = await stream.rest()
        assert end.usage.completion_tokens == UNKNOWN + AHEAD + 1
        held.go.set()
    assert (await settled(mesh)).tokens == 2 + UNKNOWN + AHEAD + 1
