"""Structured output and pinned seeds on their way through a real gateway to a scripted worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from weir.admission.v1 import admission_pb2
from weir.inference.v1 import inference_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason
from tests.support.leaves import Rig
from tests.support.native_stream import Stream, ids, refusal, taken

Form = inference_pb2.StructuredOutput
SCHEMA = '{"type": "object", "properties": {"b": {}, "a": {}}}'


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (Form(json_schema=SCHEMA), worker_pb2.Structure(json_schema=SCHEMA)),
        (Form(regex="[ab]+"), worker_pb2.Structure(regex="[ab]+")),
        (None, worker_pb2.Structure()),
    ],
)
async def test_a_structure_reaches_the_worker_as_it_was_given(
    mesh: Rig, given: Form | None, sent: worker_pb2.Structure
) -> None:
    async with Stream(mesh, structured_output=given) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.sampling.structure == sent
        await running.finish()
        await stream.rest()


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        (Form(json_schema='{"type": "objekt"}'), "structured_output.json_schema", "Invalid type: objekt"),
        (Form(json_schema="[]"), "structured_output.json_schema", "JSON object"),
        (Form(regex="("), "structured_output.regex", "unclosed group"),
        (Form(regex="x" * 40_000), "structured_output.regex", "at most 32768 bytes"),
        (Form(), "structured_output", "has no form"),
    ],
)
async def test_a_bad_structure_is_refused_before_it_costs_anything(
    mesh: Rig, given: Form, field: str, message: str
) -> None:
    for _ in range(2):  # the second time from memory
        async with Stream(mesh, structured_output=given) as stream:
            error = await refusal(stream)
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, field)
        assert message in error.message
    assert mesh.reserved == []
    assert mesh.admitted == []


async def test_a_simulated_worker_is_not_asked_for_structure(mesh: Rig) -> None:
    honest: Any = mesh.admission.handler

    def simulated(call: Any, context: Any) -> Any:
        reply = honest(call, context)
        if reply.HasField("granted"):
            reply.granted.simulated = True
        return reply

    mesh.admission.handler = simulated
    async with Stream(mesh, structured_output=Form(regex="[ab]+")) as stream:
        error = await refusal(stream)
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "structured_output.regex")
    assert "simulated" in error.message
    released: admission_pb2.Release = await asyncio.wait_for(mesh.released.get(), 10)
    assert released.unused


async def test_a_moved_stream_goes_on_with_its_seed_and_says_what_is_output(mesh: Rig) -> None:
    async with Stream(mesh, max_tokens=10, temperature=0.8, n=2, structured_output=Form(regex="[a-z]+")) as stream:
        running = [await taken(mesh.workers[0]) for _ in range(2)]
        first = {each.submit.choice: each.submit for each in running}
        assert [first[choice].resumed_tokens for choice in (0, 1)] == [0, 0]
        assert all(submit.sampling.HasField("seed") for submit in first.values())
        assert first[0].sampling.seed != first[1].sampling.seed
        await next(each for each in running if each.submit.choice == 0).tokens(ids("abc"))
        assert await stream.text(3) == "abc"
        await mesh.workers[0].stop()
        again = [await taken(mesh.workers[1]) for _ in range(2)]
        moved = {each.submit.choice: each.submit for each in again}
        assert [moved[choice].resumed_tokens for choice in (0, 1)] == [3, 0]
        for choice in (0, 1):
            assert moved[choice].sampling.seed == first[choice].sampling.seed
            assert moved[choice].sampling.structure.regex == "[a-z]+"
        for each in again:
            await each.finish()
        await stream.rest()


async def test_seeds_differ_between_requests_and_greedy_ones_have_none(mesh: Rig) -> None:
    seeds = []
    for temperature in (1.0, 1.0, 0.0):
        async with Stream(mesh, temperature=temperature) as stream:
            running = await taken(mesh.workers[0])
            sampling = running.submit.sampling
            seeds.append(sampling.seed if sampling.HasField("seed") else None)
            await running.finish()
            await stream.rest()
    assert None not in seeds[:2]
    assert seeds[0] != seeds[1]
    assert seeds[2] is None
