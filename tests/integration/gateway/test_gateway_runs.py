"""Generations that no user asked for: the same way to a worker, and nothing of a user's in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.texts import ChatMessage
from services.gateway.internal import Run
from services.gateway.policy.events import Finish
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.spec import BoundParameters, Spec
from tests.support.leaves import MODEL, Held, Rig, Running
from tests.support.native_stream import ids, taken

SHADOW = admission_pb2.QUEUE_CLASS_SHADOW
PARAMETERS = BoundParameters(
    max_tokens=8, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
    frequency_penalty=0.0, stop=(), seed=None, n=1, logprobs=None, logit_bias={}, ignore_eos=False,
)  # fmt: skip


def run_of(**fields: Any) -> Run:
    given: dict[str, Any] = {
        "request_id": "copy-1",
        "tenant": "shadow",
        "model_version": MODEL,
        "pool": "pool",
        "queue_class": SHADOW,
        "prompt": ids("hi"),
        "parameters": PARAMETERS,
        "version_share": 0.25,
        "deadline": Deadline.after(20, SystemClock()),
        **fields,
    }
    return Run(**given)


def start(mesh: Rig, run: Run) -> asyncio.Task[FinalAnswer]:
    return asyncio.ensure_future(mesh.gateway._pipeline.run(run))


async def scored(running: Running, text: str) -> None:
    frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[len(text)], tokens=ids(text))
    entry = frame.logprobs.add(handle=running.submit.handle)
    for place in range(len(text)):
        entry.tokens.add(logprob=-1.0 - place)
    await running.stream.send(worker_pb2.SessionResponse(step=frame))


async def test_tokens_log_probabilities_and_the_end_come_back(mesh: Rig) -> None:
    task = start(mesh, run_of())
    running = await taken(mesh.workers[0])
    assert (running.submit.model_version, running.submit.prompt) == (MODEL, ids("hi"))
    assert (running.submit.sampling.HasField("logprobs"), running.submit.priority) == (True, 20)
    await scored(running, "ab")
    await running.finish()
    answer = await asyncio.wait_for(task, 10)
    assert answer.choices[0].tokens == tuple(ids("ab"))
    assert answer.choices[0].logprobs == (-1.0, -2.0)
    assert (answer.choices[0].finish, answer.end.usage.completion_tokens) == (Finish.STOP, 2)
    asked = mesh.admitted[0]
    assert (asked.queue_class, asked.tenant, asked.version_share) == (SHADOW, "shadow", 0.25)
    assert (await asyncio.wait_for(mesh.released.get(), 10)).output_tokens == 2
    assert (mesh.reserved, mesh.settled.empty(), mesh.records.empty()) == ([], True, True)


async def test_it_moves_to_another_worker_as_a_users_request_does(mesh: Rig) -> None:
    task = start(mesh, run_of())
    running = await taken(mesh.workers[0])
    await scored(running, "abc")
    await running.refuse(Reason.PREEMPTED)
    again = await taken(mesh.workers[0])
    assert again.submit.prompt == ids("hiabc")
    await again.last(ids("d"))
    answer = await asyncio.wait_for(task, 10)
    assert answer.choices[0].tokens == tuple(ids("abcd"))
    assert answer.choices[0].logprobs == ()  # not of all tokens


async def test_cancelling_it_gives_everything_back(mesh: Rig) -> None:
    task = start(mesh, run_of())
    running = await taken(mesh.workers[0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == running.submit.handle
    assert (await asyncio.wait_for(mesh.released.get(), 10)).cut_short


async def test_cancelling_it_in_the_queue_takes_the_question_back(mesh: Rig) -> None:
    held = Held(mesh.admission, lambda call: call.HasField("admit"))
    task = start(mesh, run_of())
    await held.question()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(held.cancelled.wait(), 10)
    assert (await asyncio.wait_for(mesh.released.get(), 10)).unused


async def test_failures_are_raised(mesh: Rig) -> None:
    task = start(mesh, run_of())
    await (await taken(mesh.workers[0])).finish(worker_pb2.FINISH_REASON_ERROR, "broken")
    with pytest.raises(WeirError) as failed:
        await asyncio.wait_for(task, 10)
    assert failed.value.reason is Reason.ENGINE_ERROR
    full = WeirError(Reason.REJECTED_QUEUE_FULL, "full")
    normal = mesh.admission.handler
    mesh.admission.handler = lambda call, context: admission_pb2.AdmissionReply(rejected=full.to_rejection())
    with pytest.raises(WeirError) as refused:
        await start(mesh, run_of())
    assert refused.value.reason is Reason.REJECTED_QUEUE_FULL
    mesh.admission.handler = normal
    task = start(mesh, run_of())
    await (await taken(mesh.workers[0])).finish(worker_pb2.FINISH_REASON_DEADLINE)
    with pytest.raises(WeirError) as late:
        await asyncio.wait_for(task, 10)
    assert late.value.reason is Reason.DEADLINE_EXCEEDED


async def test_stops_and_choices_work_without_a_filter(mesh: Rig) -> None:
    task = start(mesh, run_of(parameters=replace(PARAMETERS, n=2, stop=("END",), logprobs=3)))
    one, two = [await taken(mesh.workers[0]) for _ in range(2)]
    await one.tokens(ids("xEND"))
    await two.tokens(ids("y"))
    await two.finish(worker_pb2.FINISH_REASON_LENGTH)
    answer = await asyncio.wait_for(task, 10)
    assert [choice.finish for choice in answer.choices] == [Finish.STOP, Finish.LENGTH]
    assert [bytes(choice.tokens) for choice in answer.choices] == [b"xEND", b"y"]


async def test_prompts_are_tokenised_for_a_version(mesh: Rig) -> None:
    spec = Spec(model="tiny", operation="chat", messages=(ChatMessage("user", "hi"),))
    assert bytes(await mesh.gateway._pipeline.encode(MODEL, spec)) == b"user: hi\n"
