"""Log-probabilities tell nothing that the safety filter keeps back (finding B1)."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2
from hypothesis import given
from hypothesis import strategies as st
from weir.openai.v1 import openai_pb2_grpc
from weir.worker.v1 import worker_pb2

from libs.errors import Reason
from libs.texts import ByteDetokenizer
from services.gateway.policy.events import Finish, Logprob
from services.gateway.ports import InputCheck
from services.gateway.sequence import OutputSequence
from tests.support.filtering import CARD, filtering, policy, rule, say
from tests.support.leaves import Rig
from tests.support.native_stream import HEADERS, Stream, refusal, taken
from tests.support.openai_call import chat

REDACTING = policy("cards@1", rule(CARD, "redact", replacement="[card]"))
BLOCKING = policy("words@1", rule("wombat", "block"))
FLAGGING = policy("flags@1", rule("wombat", "flag"))
SAID = ("My card is 12", "34-56", "78, says Zoë", ".")
SHOWN = "My card is [card], says Zoë."
TOLD = "My card is , says Zoë."


async def said(mesh: Rig, *texts: str, choices: int = 1) -> None:
    for running in [await taken(mesh.workers[0]) for _ in range(choices)]:
        for text in texts:
            await say(running, text)
        await running.finish()


def spelt(entries: Any) -> str:
    return b"".join(bytes(entry["bytes"]) for entry in entries).decode()


async def test_b1_no_logprob_spells_what_was_redacted(mesh: Rig) -> None:
    async with filtering(mesh, REDACTING, floor=["cards@1"]), Stream(mesh, logprobs=0, max_tokens=60, n=2) as stream:
        await said(mesh, *SAID, choices=2)
        await stream.rest()
        choices = [choice for frame in stream.frames for choice in frame.delta.choices]
    for index in (0, 1):
        assert stream.of(index) == SHOWN
        raw = b"".join(one.token_bytes for each in choices if each.index == index for one in each.logprobs)
        assert raw.decode() == TOLD


@pytest.mark.parametrize("streamed", [False, True])
async def test_b1_nor_does_the_openai_form(mesh: Rig, streamed: bool) -> None:
    async with filtering(mesh, REDACTING, floor=["cards@1"]):
        asked = asyncio.create_task(chat(mesh, logprobs=True, stream=streamed, max_tokens=60))
        await said(mesh, *SAID)
        answered = await asked
    assert answered.text == SHOWN
    if streamed:
        parts = [one["logprobs"] for event in answered.events for one in event["choices"] if one["logprobs"]]
        assert spelt(entry for part in parts for entry in part["content"]) == TOLD
    else:
        assert spelt(answered.body["choices"][0]["logprobs"]["content"]) == TOLD


async def test_b1_nor_does_the_legacy_form(mesh: Rig) -> None:
    body = {"model": "tiny", "prompt": "hi", "logprobs": 0, "max_tokens": 60}
    under = filtering(mesh, REDACTING, floor=["cards@1"])
    async with under, grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        call = openai_pb2_grpc.OpenAIServiceStub(channel).CreateCompletion(
            httpbody_pb2.HttpBody(data=json.dumps(body).encode()), metadata=HEADERS, timeout=30
        )
        reading = asyncio.ensure_future(_joined(call))
        await said(mesh, "a 1234-5678 b")
        answer = json.loads(await reading)
    (choice,) = answer["choices"]
    assert choice["text"] == "a [card] b"
    assert "".join(choice["logprobs"]["tokens"]) == "a  b"


async def _joined(call: Any) -> bytes:
    return b"".join([chunk.data async for chunk in call])


@pytest.mark.parametrize("one", [REDACTING, BLOCKING], ids=["redacts", "blocks"])
async def test_b1_alternatives_are_refused_where_words_may_not_leave(mesh: Rig, one: Any) -> None:
    pin = f"{one.id}@{one.version}"
    async with filtering(mesh, one, FLAGGING, floor=["flags@1"], tenant=[pin]):
        async with Stream(mesh, logprobs=2) as stream:
            error = await refusal(stream)
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "logprobs")
        answered = await chat(mesh, logprobs=True, top_logprobs=3)
        assert answered.headers["x-weir-http-status"] == "400"
        assert answered.body["error"]["param"] == "top_logprobs"
    assert mesh.workers[0].submitted.empty()


async def test_b1_alternatives_are_shown_where_nothing_is_altered(mesh: Rig) -> None:
    async with filtering(mesh, FLAGGING, floor=["flags@1"]), Stream(mesh, logprobs=2) as stream:
        await say(await taken(mesh.workers[0]), "wombat", top=True, last=True)
        assert (await stream.rest())[0] == stream.logprobs() == "wombat"


pieces = st.lists(st.text("ab1é😀-", min_size=1, max_size=4), min_size=1, max_size=8)


class _Filter:
    def open(self, choice: Any, **given: Any) -> int:
        return 1

    def feed(self, number: int, text: str, *, last: bool) -> None: ...

    def close(self, number: int) -> None: ...


class _Generation:
    """What a choice needs of one whose tokens are single bytes."""

    tenant = request_id = traceparent = ""
    grows = False

    def __init__(self) -> None:
        table = [bytes([byte]) for byte in range(256)]
        self.parameters = SimpleNamespace(stop=(), logprobs=0, structure=None, min_tokens=0, max_tokens=999)
        self.observed = False
        text = SimpleNamespace(detokenizer=lambda: ByteDetokenizer(table), token=lambda number: ("?", bytes([number])))
        self.candidate = SimpleNamespace(check=InputCheck(None), text=text)
        self.told: list[Logprob] = []

    def may_take(self, count: int) -> bool:
        return True

    def push(self, choice: OutputSequence, text: str, logprobs: list[Logprob] | None) -> None:
        self.told += logprobs or []


@given(st.data())
def test_b1_whatever_is_replaced_wherever_tokens_are_cut(data: st.DataObject) -> None:
    """Tokens of single bytes: those of a character that comes in four of them are hidden and shown together."""
    text = "".join(data.draw(pieces))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b]
    steps = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=4)))
    generation = _Generation()
    choice = OutputSequence(generation, 0, _Filter())  # type: ignore[arg-type]
    raw = text.encode()
    at = 0
    for size in (*data.draw(st.lists(st.integers(1, 5), max_size=6)), len(raw)):
        part, at = raw[at : at + size], at + size
        choice.on_tokens(part, worker_pb2.SequenceLogprobs(tokens=[worker_pb2.TokenLogprob() for _ in part]))
    choice.ending = Finish.STOP
    for step in (*steps, len(text)):
        new = [span for span in spans if span[1] <= step]
        spans = [span for span in spans if span not in new]
        # The filter never settles the middle of what it replaces.
        consumed = min([step, *(a for a, b in spans if a < step)])
        choice.on_released("x", consumed=consumed, blocked="", last=step == len(text), replaced=new)
        if choice.finish is not None:
            break
    hidden = {at for a, b in zip(cuts[::2], cuts[1::2], strict=False) for at in range(a, b)}
    wanted = "".join(char for at, char in enumerate(text) if at not in hidden)
    assert b"".join(one.raw for one in generation.told).decode() == wanted
