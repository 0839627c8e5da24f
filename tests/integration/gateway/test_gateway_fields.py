"""Fields that bar tokens, and structures of the facade, on their way through a real gateway to a scripted worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from weir.worker.v1 import worker_pb2

from tests.support.leaves import Rig
from tests.support.native_stream import ids, taken
from tests.support.openai_call import Streaming, chat

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
GRAMMAR = 'start: "a" | "b"'


def words(submit: worker_pb2.Submit) -> list[list[int]]:
    return [list(word.ids) for word in submit.sampling.bad_words]


async def test_what_bars_tokens_reaches_the_worker_for_every_choice(mesh: Rig) -> None:
    answering = asyncio.ensure_future(
        chat(mesh, n=2, max_tokens=9, min_tokens=4, stop_token_ids=[5, 6], bad_words=["no", " no", "x"], seed=-1)
    )
    running = [await taken(mesh.workers[0]) for _ in range(2)]
    for each in running:
        sampling = each.submit.sampling
        assert (sampling.min_tokens, list(sampling.stop_token_ids)) == (4, [5, 6])
        assert words(each.submit) == [ids("no"), ids(" no"), ids("x"), ids(" x")]
        assert sampling.seed == (2**64 - 1 + each.submit.choice) % 2**64
        await each.last(ids("abcd"))
    await answering


async def test_who_asks_for_none_of_it_sends_none(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, top_k=-1))
    running = await taken(mesh.workers[0])
    sampling = running.submit.sampling
    assert (sampling.min_tokens, len(sampling.stop_token_ids), len(sampling.bad_words)) == (0, 0, 0)
    assert sampling.top_k == 0
    await running.last(ids("a"))
    await answering


async def test_the_output_of_a_moved_stream_counts(mesh: Rig) -> None:
    async with Streaming(mesh, max_tokens=9, min_tokens=5, bad_words=["no"], stop_token_ids=[7]) as stream:
        first = await taken(mesh.workers[0])
        await first.tokens(ids("abc"))
        await stream.until("abc")
        await mesh.workers[0].stop()
        moved = await taken(mesh.workers[1])
        sampling = moved.submit.sampling
        assert (moved.submit.resumed_tokens, sampling.max_tokens, sampling.min_tokens) == (3, 6, 2)
        assert (list(sampling.stop_token_ids), words(moved.submit)) == ([7], [ids("no"), ids(" no")])
        await moved.last(ids("defghi"))
        await stream.until("abcdefghi")


async def test_no_stop_string_ends_an_answer_before_its_least_tokens(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, min_tokens=4, stop=["b", "ef"]))
    running = await taken(mesh.workers[0])
    await running.tokens(ids("abbb"))
    await running.tokens(ids("ceefg"))
    assert (await answering).text == "abbbce"


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"guided_choice": ["yes", "no?"]}, worker_pb2.Structure(regex=r"yes|no\?")),
        ({"guided_regex": "[ab]"}, worker_pb2.Structure(regex="[ab]")),
        ({"guided_json": {"type": "object"}}, worker_pb2.Structure(json_schema='{"type": "object"}')),
        ({"guided_grammar": GRAMMAR}, worker_pb2.Structure(grammar=GRAMMAR)),
        ({"structured_outputs": {"grammar": GRAMMAR}}, worker_pb2.Structure(grammar=GRAMMAR)),
        ({"structured_outputs": {"choice": ["a"]}}, worker_pb2.Structure(regex="a")),
    ],
)
async def test_h1_a_guided_output_is_asked_of_the_worker(
    mesh: Rig, fields: dict[str, object], sent: worker_pb2.Structure
) -> None:
    answering = asyncio.ensure_future(chat(mesh, **fields))
    running = await taken(mesh.workers[0])
    assert running.submit.sampling.structure == sent
    await running.last(ids("a"))
    await answering


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"guided_grammar": "start: start"}, "guided_grammar", "nothing can match it"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar", "Expected token"),
        ({"guided_choice": ["x" * 40_000]}, "guided_choice", "at most 32768 bytes"),
        ({"stop_token_ids": [5000]}, "stop_token_ids", "outside the vocabulary"),
        ({"stop_token_ids": list(range(129))}, "stop_token_ids", "at most 128"),
        ({"bad_words": ["x" * 65]}, "bad_words", "1 to 64 characters"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most 8 tokens"),
        ({"min_tokens": 100_000}, "min_tokens", "the output has at most"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed when 'tools' are specified"),
        ({"logits_processors": ["x"]}, "logits_processors", "not offered"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
            "this model's chat template has no such variable",
        ),
        ({"reasoning_effort": "high"}, "reasoning_effort", "has no such variable"),
        ({"documents": [{"text": "x"}]}, "documents", "knows no documents"),
        ({"messages": [{"role": "user", "content": "x", "name": "ann"}]}, "messages[0].name", "shows no names"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "messages[0].tool_calls", "shows no calls"),
    ],
)
async def test_h1_what_cannot_be_done_is_refused_by_name_before_it_costs_anything(
    mesh: Rig, fields: dict[str, object], param: str, message: str
) -> None:
    answer = await chat(mesh, **fields)
    assert answer.headers["x-weir-http-status"] == "400"
    assert (answer.headers["x-weir-reason"], answer.body["error"]["param"]) == ("INVALID_REQUEST", param)
    assert message in answer.body["error"]["message"]
    assert mesh.admitted == []


async def test_a_simulated_worker_is_not_asked_for_bad_words(mesh: Rig) -> None:
    honest: Any = mesh.admission.handler

    def simulated(call: Any, context: Any) -> Any:
        reply = honest(call, context)
        if reply.HasField("granted"):
            reply.granted.simulated = True
        return reply

    mesh.admission.handler = simulated
    answer = await chat(mesh, bad_words=["x"])
    assert (answer.headers["x-weir-reason"], answer.body["error"]["param"]) == ("INVALID_REQUEST", "bad_words")
    assert (await asyncio.wait_for(mesh.released.get(), 10)).unused
