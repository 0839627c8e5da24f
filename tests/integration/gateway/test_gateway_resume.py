"""Streams that are gone on with: nothing is said twice, nothing is billed twice, and whoever may not, may not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from weir.inference.v1 import inference_pb2
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2
from weir.worker.v1 import worker_pb2

from libs.cursor import new_key
from libs.errors import Reason
from libs.registry import keys
from tests.support.leaves import MODEL, Rig, Running, rig
from tests.support.native_stream import FLAGGED, HEADERS, Stream, ids, refusal, taken
from tests.support.openai_call import Answered, Streaming, chat, completion
from tests.support.tokenizer import write_byte_tokenizer

BODY: dict[str, Any] = {"max_tokens": 40, "stream_options": {"include_usage": True}}
PROMPT = 9
"""Tokens of "hi" within the template of a chat."""


def back(event_id: str | None, headers: list[tuple[str, str]] = HEADERS) -> list[tuple[str, str]]:
    assert event_id is not None
    return [*headers, ("last-event-id", event_id)]


async def begun(mesh: Rig, text: str, **body: Any) -> tuple[str, Running, Streaming]:
    """A stream that was left when its reader had this text: its last id, its sequence, what it was."""
    async with Streaming(mesh, **{**BODY, **body}) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids(text))
        await stream.until(text)
    await asyncio.wait_for(mesh.settled.get(), 10)
    assert stream.last_id is not None
    return stream.last_id, running, stream


async def record_of(mesh: Rig, outcome: str) -> Any:
    while True:
        record = await asyncio.wait_for(mesh.records.get(), 10)
        if record.request.outcome == outcome:
            return record.request


def code(answer: Answered) -> tuple[str, str]:
    return answer.headers["x-weir-http-status"], answer.body["error"]["code"]


async def test_a_stream_goes_on_where_its_reader_was(mesh: Rig) -> None:
    last, before, first = await begun(mesh, "The weir", temperature=0.9)
    async with Streaming(mesh, back(last), **BODY, temperature=0.9) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.sampling.seed == before.submit.sampling.seed
        assert list(running.submit.prompt) == list(before.submit.prompt)
        assert not running.submit.resumed_tokens
        for piece in ("The", " wei", "r hol"):
            await running.tokens(ids(piece))
        await stream.until(" hol")
        await running.last(ids("ds."))
        await stream.rest()
    assert stream.done
    assert stream.texts == {0: " holds."}
    assert {event["id"] for event in stream.events} == {first.events[0]["id"]}
    assert {event["created"] for event in stream.events} == {first.events[0]["created"]}
    assert not any("role" in choice["delta"] for event in stream.events for choice in event["choices"])
    usage = stream.events[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT, len("The weir holds."))
    assert stream.events[-1]["weir"]["billed"]["total_tokens"] == len(" holds.")
    settled = await asyncio.wait_for(mesh.settled.get(), 10)
    assert (settled.tokens, settled.prompt_tokens) == (len(" holds."), 0)
    record = await record_of(mesh, "stop")
    assert (record.prompt_tokens, record.completion_tokens) == (0, len(" holds."))
    assert first.events[0]["id"].endswith(record.resumes)
    assert record.resumed_tokens == len("The weir")
    assert record.request_id != record.resumes


@pytest.mark.parametrize("at", range(1, 12))
async def test_wherever_it_was_cut_and_however_it_comes_again(mesh: Rig, at: int) -> None:
    whole = "Flüsse ⟶ 水."
    last, _, first = await begun(mesh, whole[:at])
    async with Streaming(mesh, back(last), **BODY) as stream:
        running = await taken(mesh.workers[0])
        raw = ids(whole)
        for begin in range(0, len(raw), 3):
            await running.tokens(raw[begin : begin + 3])
        await running.finish()
        await stream.rest()
    assert first.texts[0] + stream.texts.get(0, "") == whole
    ends = [choice["finish_reason"] for event in stream.events for choice in event["choices"]]
    assert [end for end in ends if end] == ["stop"]


async def test_cut_again_and_again_it_still_says_everything_once(mesh: Rig) -> None:
    whole, told = "one two three", ""
    last: str | None = None
    for until in ("one", "one two", whole):
        async with Streaming(mesh, back(last) if last else HEADERS, **BODY) as stream:
            running = await taken(mesh.workers[0])
            await running.tokens(ids(until))
            await stream.until(until[len(told) :])
            told, last = until, stream.last_id
    billed = [(await asyncio.wait_for(mesh.settled.get(), 10)).tokens for _ in range(3)]
    assert billed == [PROMPT + 3, 4, 6]


async def test_several_choices_with_log_probabilities(mesh: Rig) -> None:
    body = {**BODY, "n": 2, "logprobs": True}

    async def tell(running: Running, text: str) -> None:
        frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[len(text)], tokens=ids(text))
        told = worker_pb2.SequenceLogprobs(
            handle=running.submit.handle, tokens=[worker_pb2.TokenLogprob(logprob=-0.5) for _ in text]
        )
        frame.logprobs.append(told)
        await running.stream.send(worker_pb2.SessionResponse(step=frame))

    async with Streaming(mesh, **body) as stream:
        first, second = await taken(mesh.workers[0]), await taken(mesh.workers[0])
        await tell(first, "abc")
        await stream.until("abc", 0)
        await tell(second, "x")
        await stream.until("x", 1)
        await first.finish()
        while not any(choice["finish_reason"] for event in stream.events for choice in event["choices"]):
            await stream.event()
        last = stream.last_id
    async with Streaming(mesh, back(last), **body) as stream:
        first, second = await taken(mesh.workers[0]), await taken(mesh.workers[0])
        await tell(first, "abc")
        await first.finish()
        await tell(second, "xyz")
        await second.finish()
        await stream.rest()
    assert stream.texts == {1: "yz"}
    told = [(c["index"], c["logprobs"], c["finish_reason"]) for event in stream.events for c in event["choices"]]
    assert [index for index, _, _ in told] == [1] * len(told)
    assert [one["token"] for _, logprobs, _ in told if logprobs for one in logprobs["content"]] == ["y", "z"]
    assert [end for _, _, end in told if end] == ["stop"]


async def test_an_answer_that_comes_out_differently_is_refused_before_a_wrong_word(mesh: Rig) -> None:
    last, _, _ = await begun(mesh, "The weir")
    async with Streaming(mesh, back(last), **BODY) as stream:
        await (await taken(mesh.workers[0])).tokens(ids("The wear holds."))
        await stream.rest()
    assert "error" in stream.events[-1]
    assert stream.events[-1]["error"]["code"] == "cursor_gone"
    assert stream.texts.get(0, "") == ""
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 0
    assert (await record_of(mesh, "error")).completion_tokens == 0


@pytest.mark.parametrize("shorter", ["The", ""])
async def test_an_answer_that_ends_sooner_is_refused(mesh: Rig, shorter: str) -> None:
    last, _, _ = await begun(mesh, "The weir")
    async with Streaming(mesh, back(last), **BODY) as stream:
        await (await taken(mesh.workers[0])).last(ids(shorter))
        await stream.rest()
    assert stream.events[-1]["error"]["code"] == "cursor_gone"
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 0


async def test_what_was_made_before_the_reader_was_gone_is_billed_once(mesh: Rig) -> None:
    """More left the gateway than the reader says it has: what is billed already is not billed again."""
    async with Streaming(mesh, **BODY) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("The"))
        await stream.until("The")
        last = stream.last_id
        await running.tokens(ids(" weir"))
        await stream.until("The weir")
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == PROMPT + len("The weir")
    async with Streaming(mesh, back(last), **BODY) as stream:
        await (await taken(mesh.workers[0])).last(ids("The weir holds."))
        await stream.rest()
    assert stream.texts[0] == " weir holds."
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == len(" holds.")


async def test_whoever_goes_on_too_often_pays_for_what_is_computed_anew(mesh: Rig) -> None:
    last, _, _ = await begun(mesh, "The weir")
    billed = []
    for _ in range(4):
        async with Streaming(mesh, back(last), **BODY) as stream:
            await (await taken(mesh.workers[0])).last(ids("The weir holds."))
            await stream.rest()
        assert stream.texts[0] == " holds."
        billed.append((await asyncio.wait_for(mesh.settled.get(), 10)).tokens)
    assert billed == [7, 7, 7, PROMPT + 15]


async def test_cursors_of_others_and_of_other_requests_are_refused_unasked(mesh: Rig) -> None:
    last, _, _ = await begun(mesh, "The weir")
    asked = len(mesh.admitted)
    own = asyncio.ensure_future(chat(mesh, back(last), stream=True, **BODY))  # the same bytes are taken
    await (await taken(mesh.workers[0])).last(ids("The weir holds."))
    assert (await own).text == " holds."
    asked += 1
    other = await chat(mesh, back(last, FLAGGED), stream=True, **BODY)
    assert code(other) == ("400", "cursor_invalid")
    for more in ({"max_tokens": 41}, {"temperature": 0.5}, {"messages": [{"role": "user", "content": "ho"}]}):
        answer = await chat(mesh, back(last), stream=True, **{**BODY, **more})
        assert code(answer) == ("400", "cursor_invalid")
    for rubbish in ("A" * 6000, "not base64", last[:-4], "12"):
        answer = await chat(mesh, back(rubbish), stream=True, **BODY)
        assert code(answer) == ("400", "cursor_invalid")
        assert answer.body["error"]["param"] == "last_event_id"
    assert len(mesh.admitted) == asked


async def test_only_one_prompt_that_is_streamed_goes_on(mesh: Rig) -> None:
    last, _, _ = await begun(mesh, "The weir")
    assert code(await chat(mesh, back(last), **BODY)) == ("400", "invalid_request")
    assert code(await completion(mesh, back(last), prompt=["a", "b"], stream=True)) == ("400", "invalid_request")


async def until(condition: Callable[[], bool]) -> None:
    """For what a watch of the registry brings."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def test_policies_that_have_changed_are_told(mesh: Rig) -> None:
    last, _, _ = await begun(mesh, "The weir")
    await mesh.put(registry_pb2.Tenant(id="closed", plan=registry_pb2.PLAN_PAID, safety_policies=["strict@1"]))
    await until(lambda: "strict@1" in mesh.gateway._catalog.tenant("closed").safety_policies)
    answer = await chat(mesh, back(last), stream=True, **BODY)
    assert code(answer) == ("410", "cursor_gone")
    assert "policies" in answer.body["error"]["message"]


async def test_a_version_that_is_gone_is_told(mesh: Rig) -> None:
    last, _, _ = await begun(mesh, "The weir")
    second = registry_pb2.ModelVersion()
    second.CopyFrom(mesh.gateway._catalog.version(MODEL))
    second.version = "2"
    await mesh.put(second)
    await mesh.put(
        registry_pb2.Alias(name="tiny", targets=[registry_pb2.AliasTarget(model_version="tiny@2", weight=100)])
    )
    mesh.router.handler = lambda call, context: router_pb2.RouterReply(
        route=router_pb2.Route(model_version="tiny@2", pool="pool", tier="fast", zones=["zone-a"])
    )
    await until(lambda: "tiny@2" in mesh.gateway._catalog.snapshot.model_versions)
    async with Streaming(
        mesh, back(last), **BODY
    ) as stream:  # the alias names another one, and this one is still there
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == MODEL
        await running.last(ids("The weir holds."))
        await stream.rest()
    assert stream.texts == {0: " holds."}
    await mesh.store.txn(deletes=[keys.key("models", MODEL)])
    await until(lambda: MODEL not in mesh.gateway._catalog.snapshot.model_versions)
    answer = await chat(mesh, back(last), stream=True, **BODY)
    assert code(answer) == ("410", "cursor_gone")
    assert "version" in answer.body["error"]["message"]


async def test_every_event_but_the_last_has_an_id(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, **BODY, stream=True))
    running = await taken(mesh.workers[0])
    await running.tokens(ids("The"))
    await running.last(ids(" weir"))
    blocks = (await answering).data.decode().strip().split("\n\n")
    told = [block for block in blocks if '"choices":[{' in block]
    assert len(told) >= 1
    assert all(re.match(r"id: \S{90,120}\ndata: ", block) for block in told)


async def test_native_frames_carry_cursors_and_go_on(mesh: Rig) -> None:
    async with Stream(mesh, max_tokens=40) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("The weir"))
        await stream.text(8)
        cursor = stream.frames[-1].delta.cursor
    assert cursor
    async with Stream(mesh, max_tokens=40) as stream:
        pass
    async with Stream(mesh, max_tokens=40, cursor=cursor) as stream:
        running = await running_of(mesh)
        await running.last(ids("The weir holds."))
        text, end = await stream.rest()
    assert text == " holds."
    assert end.usage.completion_tokens == len("The weir holds.")
    assert stream.frames[0].accepted.resumes
    async with Stream(mesh, max_tokens=41, cursor=cursor) as stream:
        assert (await refusal(stream)).reason is Reason.CURSOR_INVALID
    async with Stream(mesh, max_tokens=40, cursor=b"x" * 70_000) as stream:
        assert (await refusal(stream)).reason is Reason.CURSOR_INVALID


async def running_of(mesh: Rig) -> Running:
    """The newest sequence: those of streams that were left may be submitted too."""
    found = await taken(mesh.workers[0])
    while not mesh.workers[0].submitted.empty():
        found = mesh.workers[0].submitted.get_nowait()
    return found


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """Two gateways of one mesh: they share the keys, and nothing else."""
    model = tmp_path / "model"
    model.mkdir()
    directory = write_byte_tokenizer(model)
    shared = tmp_path / "cursors"
    shared.write_text(new_key().hex() + "\n")
    settings = {"cursor_keys": str(shared)}
    async with (
        rig(directory, tmp_path / "a", **settings) as first,
        rig(directory, tmp_path / "b", **settings) as second,
    ):
        yield first, second


async def test_another_gateway_goes_on(two: tuple[Rig, Rig]) -> None:
    here, there = two
    last, before, first = await begun(here, "The weir", temperature=0.9)
    async with Streaming(there, back(last), **BODY, temperature=0.9) as stream:
        running = await taken(there.workers[0])
        assert running.submit.sampling.seed == before.submit.sampling.seed
        await running.last(ids("The weir holds."))
        await stream.rest()
    assert first.texts[0] + stream.texts[0] == "The weir holds."
    assert (await asyncio.wait_for(there.settled.get(), 10)).tokens == len(" holds.")


async def test_switched_off_there_are_no_ids_and_none_is_taken(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", cursor_life=0.0) as mesh:
        async with Streaming(mesh, **BODY) as stream:
            await (await taken(mesh.workers[0])).last(ids("The weir"))
            await stream.rest()
        assert stream.last_id is None
        async with Stream(mesh) as native:
            await (await taken(mesh.workers[0])).last(ids("The weir"))
            await native.rest()
        assert not any(frame.delta.cursor for frame in native.frames)
        assert isinstance(native.frames[0], inference_pb2.GenerateResponse)
        assert code(await chat(mesh, back("AAAA"), **BODY, stream=True)) == ("400", "cursor_invalid")
