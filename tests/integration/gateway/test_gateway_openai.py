"""The OpenAI facade's smaller promises: lists of prompts, token ids, offsets, and what it refuses by name."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from weir.inference.v1 import inference_pb2_grpc
from weir.quota.v1 import quota_pb2
from weir.safety.v1 import safety_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError, from_rpc_error
from services.gateway import serve as serve_module
from tests.support.leaves import Rig, Running
from tests.support.native_stream import HEADERS, ids, taken
from tests.support.openai_call import chat, completion, embedding

CONCURRENT = WeirError(Reason.QUOTA_CONCURRENCY, "all slots are taken", limit="concurrency", retry_after=0.25)


def asked(running: Running) -> str:
    return bytes(running.submit.prompt).decode()


async def serve(mesh: Rig, count: int) -> list[str]:
    """Answer so many prompts, the last one of those that wait first, each with itself in capitals."""
    order: list[str] = []
    while len(order) < count:
        waiting = [await taken(mesh.workers[0])]
        await asyncio.sleep(0)
        while not mesh.workers[0].submitted.empty():
            waiting.append(mesh.workers[0].submitted.get_nowait())
        for running in reversed(waiting):
            order.append(asked(running))
            await running.last(ids(asked(running).upper()))
    return order


def slots(mesh: Rig, most: int) -> list[int]:
    """Have the quota give so many slots at a time; returns the list in which it keeps how many are taken."""
    normal, held = mesh.quota.handler, [0]

    def handle(call: Any, context: Any) -> Any:
        if call.HasField("reserve"):
            if held[0] >= most:
                return quota_pb2.QuotaReply(rejected=CONCURRENT.to_rejection())
            held[0] += 1
        elif call.settle.request_id in {reserve.request_id for reserve in mesh.reserved}:
            held[0] -= 1
        return normal(call, context)

    mesh.quota.handler = handle
    return held


@pytest.mark.parametrize("stream", [False, True])
async def test_e9_a_list_of_prompts_is_answered_by_as_many_choices(mesh: Rig, stream: bool) -> None:
    prompts = ["a", [98, 99], "d"]
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answering = asyncio.ensure_future(completion(mesh, prompt=prompts, **more))
    await serve(mesh, 3)
    answer = await answering
    if stream:
        texts = ["", "", ""]
        for event in answer.events:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        usage = answer.events[-1]["usage"]
    else:
        texts = [choice["text"] for choice in answer.body["choices"]]
        assert [choice["index"] for choice in answer.body["choices"]] == [0, 1, 2]
        usage = answer.body["usage"]
    assert texts == ["A", "BC", "D"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 4)
    counted = [reserve.request_counted for reserve in mesh.reserved]
    assert counted == [False, True, True]  # one call is one request


async def test_e9_several_choices_of_several_prompts_keep_their_order(mesh: Rig) -> None:
    answering = asyncio.ensure_future(completion(mesh, prompt=["a", "b"], n=2))
    await serve(mesh, 4)
    choices = (await answering).body["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "A"), (1, "A"), (2, "B"), (3, "B")]


@pytest.mark.parametrize("most", [1, 2])
async def test_e9_a_list_does_not_refuse_itself_for_want_of_slots(mesh: Rig, most: int) -> None:
    held = slots(mesh, most)
    answering = asyncio.ensure_future(completion(mesh, prompt=["a", "b", "c", "d"]))
    await serve(mesh, 4)
    answer = await answering
    assert [choice["text"] for choice in answer.body["choices"]] == ["A", "B", "C", "D"]
    async with asyncio.timeout(10):
        while held != [0]:  # noqa: ASYNC110 - the last settlement is under way
            await asyncio.sleep(0.01)
        records = [(await mesh.records.get()).request for _ in range(4)]
    assert [each.outcome for each in records] == ["stop"] * 4  # and none of those that had to wait


async def test_e9_a_prompt_that_fails_does_not_take_the_others_along(mesh: Rig) -> None:
    """They are billed, so they are given; what failed is not."""
    answering = asyncio.ensure_future(completion(mesh, prompt=["a", "b"]))
    first, second = await taken(mesh.workers[0]), await taken(mesh.workers[0])
    await first.tokens(ids("AA"))
    await first.finish(worker_pb2.FINISH_REASON_ERROR, "out of memory")
    await second.last(ids("B"))
    body = (await answering).body
    told = [(choice["index"], choice["text"], choice["finish_reason"]) for choice in body["choices"]]
    assert told == [(0, "", "error"), (1, "B", "stop")]
    assert body["weir"]["error"]["code"] == "engine_error"
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (1, 1)
    assert sorted([(await asyncio.wait_for(mesh.settled.get(), 10)).tokens for _ in range(2)]) == [0, 2]


async def test_e9_a_list_of_which_all_fail_is_refused(mesh: Rig) -> None:
    answering = asyncio.ensure_future(completion(mesh, prompt=["a", "b"]))
    for _ in range(2):
        await (await taken(mesh.workers[0])).finish(worker_pb2.FINISH_REASON_ERROR)
    answer = await answering
    assert answer.headers["x-weir-reason"] == "ENGINE_ERROR"


async def test_e9_a_refused_prompt_says_so_beside_the_others(mesh: Rig) -> None:
    normal = mesh.safety.handler

    def handle(call: Any, context: Any) -> Any:
        if call.HasField("check_input") and "bad" in call.check_input.texts:
            no = WeirError(Reason.CONTENT_FILTER, "not that").to_rejection()
            return safety_pb2.SafetyReply(input=safety_pb2.InputVerdict(action=safety_pb2.ACTION_BLOCK, rejection=no))
        return normal(call, context)

    mesh.safety.handler = handle
    answering = asyncio.ensure_future(completion(mesh, prompt=["a", "bad", "c"]))
    await serve(mesh, 2)
    told = [(choice["text"], choice["finish_reason"]) for choice in (await answering).body["choices"]]
    assert told == [("A", "stop"), ("", "error"), ("C", "stop")]


async def test_e9_a_fault_of_ours_ends_that_prompt_alone(mesh: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    normal = serve_module.prepare

    async def broken(parts: Any, request: Any, *rest: Any) -> Any:
        if request.spec.prompt == "b":
            raise ZeroDivisionError
        return await normal(parts, request, *rest)

    monkeypatch.setattr(serve_module, "prepare", broken)
    answering = asyncio.ensure_future(completion(mesh, prompt=["a", "b", "c"]))
    await serve(mesh, 2)
    body = (await answering).body
    assert [choice["text"] for choice in body["choices"]] == ["A", "", "C"]
    assert body["weir"]["error"]["code"] == "internal"


async def test_e9_who_leaves_leaves_nothing_of_a_list_behind(mesh: Rig) -> None:
    answering = asyncio.ensure_future(completion(mesh, prompt=["a", "b", "c"]))
    handles = {(await taken(mesh.workers[0])).submit.handle for _ in range(3)}
    answering.cancel()
    assert {await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) for _ in range(3)} == handles


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [["a"]], [1, "a"], ["a"] * 129])
async def test_a_list_that_is_none_is_refused_by_name(mesh: Rig, prompt: Any) -> None:
    assert (await completion(mesh, prompt=prompt)).body["error"]["param"] == "prompt"


# ---- log-probabilities ------------------------------------------------------------------------


async def said(running: Running, text: str, *, last: bool) -> None:
    frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[len(text)], tokens=ids(text))
    told = frame.logprobs.add(handle=running.submit.handle)
    for _ in text:
        told.tokens.add(logprob=-0.5)
    if last:
        frame.finished.add(handle=running.submit.handle, reason=worker_pb2.FINISH_REASON_STOP)
    await running.stream.send(worker_pb2.SessionResponse(step=frame))


async def test_e9_offsets_say_where_each_token_begins(mesh: Rig) -> None:
    answering = asyncio.ensure_future(completion(mesh, logprobs=0))
    running = await taken(mesh.workers[0])
    await said(running, "ab", last=False)
    await said(running, "cd", last=True)
    choice = (await answering).body["choices"][0]
    assert choice["text"] == "abcd"
    assert choice["logprobs"]["tokens"] == list("abcd")
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


async def test_e9_offsets_hold_behind_replaced_words(mesh: Rig) -> None:
    """The filter replaces "bc" by "[gone]", and what comes behind that moves."""
    normal = mesh.safety.handler

    def handle(call: Any, context: Any) -> Any:
        feed = call.filter_output
        if "abcd" not in feed.deltas:
            return normal(call, context)
        reply = safety_pb2.SafetyReply()
        reply.output.released.append("a[gone]d")
        reply.output.held.append(0)
        reply.output.replaced.add(position=0, begin=1, end=3)
        return reply

    mesh.safety.handler = handle
    answering = asyncio.ensure_future(completion(mesh, logprobs=0))
    running = await taken(mesh.workers[0])
    await said(running, "abcd", last=False)
    await said(running, "e", last=True)
    choice = (await answering).body["choices"][0]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert choice["text"] == "a[gone]de"
    assert tokens == ["a", "d", "e"]
    assert all(choice["text"][at:].startswith(token) for token, at in zip(tokens, offsets, strict=True))


# ---- embeddings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [([104, 105], [[104, 105]]), ([[104], [105, 33]], [[104], [105, 33]]), (["h", [105]], [[104], [105]])],
)
async def test_e9_token_ids_are_embedded_as_they_are(mesh: Rig, given: Any, expected: list[list[int]]) -> None:
    texts: list[str] = []
    normal = mesh.safety.handler

    def handle(call: Any, context: Any) -> Any:
        texts.extend(call.check_input.texts)
        return normal(call, context)

    mesh.safety.handler = handle
    answer = await embedding(mesh, input=given)
    assert len(answer.body["data"]) == len(expected)
    sent = await asyncio.wait_for(mesh.workers[0].embeds.get(), 10)
    assert [list(tokens.ids) for tokens in sent.inputs] == expected
    assert texts == [bytes(tokens).decode() for tokens in expected]  # checked as the words that they spell


@pytest.mark.parametrize("given", [[], [[]], [-1], [True], ["a", 5], [1_000_000]])
async def test_e9_token_ids_that_are_none_are_refused_by_name(mesh: Rig, given: Any) -> None:
    assert (await embedding(mesh, input=given)).body["error"]["param"] == "input"


async def test_e9_the_user_of_an_embedding_is_who_the_router_hears_of(mesh: Rig) -> None:
    users: list[str] = []
    normal = mesh.router.handler

    def handle(call: Any, context: Any) -> Any:
        if call.HasField("resolve"):
            users.append(call.resolve.user)
        return normal(call, context)

    mesh.router.handler = handle
    await embedding(mesh, user="u1")
    assert users == ["u1"]


# ---- the rest ---------------------------------------------------------------------------------


async def test_e9_events_say_in_which_characters_they_are(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, stream=True))
    await (await taken(mesh.workers[0])).last("é".encode())  # type: ignore[arg-type]
    answer = await answering
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text == "é"


async def test_e9_no_probability_at_all_leaves_the_most_likely_token(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, top_p=0, temperature=1))
    running = await taken(mesh.workers[0])
    assert (running.submit.sampling.top_p, running.submit.sampling.top_k) == (1.0, 1)
    await running.last(ids("a"))
    await answering


@pytest.mark.parametrize(
    "biases",
    [{str(token): 1 for token in range(1025)}, {str(token): 1 for token in range(60_000)}, {"1": 101}, {"5000": 1}],
)
async def test_e9_biases_are_bounded_in_number_and_range(mesh: Rig, biases: dict[str, float]) -> None:
    answer = await chat(mesh, logit_bias=biases)
    assert (answer.headers["x-weir-reason"], answer.body["error"]["param"]) == ("INVALID_REQUEST", "logit_bias")


async def test_as_many_biases_as_may_be(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, logit_bias={str(token): -100 for token in range(256)}))
    running = await taken(mesh.workers[0])
    assert len(running.submit.sampling.logit_bias) == 256
    await running.last(ids("a"))
    await answering


async def test_e9_a_stream_that_never_says_what_it_wants_is_ended(mesh: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr("services.gateway.native._FIRST_FRAME_SECONDS", 0.1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(metadata=HEADERS)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), 10)
    error = from_rpc_error(caught.value)
    assert (error.reason, error.limit) == (Reason.DEADLINE_EXCEEDED, "start")
