"""What a user wrote and only they may read again: tokens on the way to the model, values in nobody's memory but the
request's (R-SAF-3)."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import pytest
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.registry.v1 import registry_pb2

from tests.integration.gateway.test_gateway_ladder import CACHED, plan, refuse
from tests.support.filtering import filtering, policy, rule
from tests.support.leaves import MODEL, Rig
from tests.support.native_stream import HEADERS, ids, taken
from tests.support.openai_call import chat

MAIL = r"[a-z]{1,9}@b\.de"
TOKENS = policy("tokens@1", rule(MAIL, "tokenise", stage="input", replacement="EMAIL"))
CARDS = policy("cards@1", rule("[0-9]{4}-[0-9]{4}", "redact", replacement="[card]"))
FLOOR = ["tokens@1", "cards@1"]
ASKED = [{"role": "user", "content": "I am ann@b.de, write to joe@b.de"}]
SEEN = "I am ⟦EMAIL_1⟧, write to ⟦EMAIL_2⟧"


async def test_saf3_the_model_sees_tokens_and_the_caller_their_words(mesh: Rig) -> None:
    async with filtering(mesh, TOKENS, CARDS, floor=FLOOR):
        asked = asyncio.create_task(chat(mesh, messages=ASKED, max_tokens=40))
        running = await taken(mesh.workers[0])
        prompt = bytes(running.submit.prompt).decode()
        assert SEEN in prompt
        assert "@b.de" not in prompt
        for piece in ("Dear ⟦EM", "AIL_2", "⟧, ⟦EMAIL_9⟧ 1234-5678 ", "⟦"):
            await running.tokens(ids(piece))
        await running.finish()
        answered = await asked
    assert answered.text == "Dear joe@b.de, ⟦EMAIL_9⟧ [card] ⟦"
    # The quota pays for what the model read.
    while not (settled := await asyncio.wait_for(mesh.settled.get(), 10)).prompt_tokens:
        pass  # a lease for the shorter text that the caller wrote
    assert settled.prompt_tokens == len(running.submit.prompt)
    # Nothing of it is in any record.
    records = [mesh.records.get_nowait() for _ in range(mesh.records.qsize())]
    assert not any("@b.de" in str(record) for record in records)


@pytest.fixture
def young() -> None:
    """What is there already is not looked at by `_maps`: a million objects of other tests take it seconds."""
    gc.freeze()


@pytest.mark.usefixtures("young")
async def test_saf3_a_cancelled_request_leaves_no_values(mesh: Rig) -> None:
    async with filtering(mesh, TOKENS, CARDS, floor=FLOOR):
        asked = asyncio.create_task(chat(mesh, messages=ASKED))
        await taken(mesh.workers[0])
        assert _maps()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        async with asyncio.timeout(10):
            while mesh.leftovers():  # noqa: ASYNC110 - several services' work, with no one event
                await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            gc.collect()
            while _maps():
                await asyncio.sleep(0.01)
                gc.collect()


def _maps() -> list[Any]:
    """Dictionaries from tokens to values; those of texts alone are found by what holds them only."""
    held = (each for holder in gc.get_objects() for each in gc.get_referents(holder))
    return [each for each in held if type(each) is dict and each.get("⟦EMAIL_1⟧") == "ann@b.de"]


async def test_saf3_a_kept_answer_holds_no_values_and_gives_each_caller_their_own(mesh: Rig) -> None:
    await plan(mesh, CACHED)
    async with filtering(mesh, TOKENS, CARDS, floor=FLOOR):
        first = asyncio.create_task(chat(mesh, messages=ASKED, temperature=0, max_tokens=40))
        await (await taken(mesh.workers[0])).last(ids("Dear ⟦EMAIL_2⟧"))
        assert (await first).text == "Dear joe@b.de"
        kept = [answer.choices for answer, _ in mesh.gateway._pipeline.parts.answers._entries.values()]
        assert [text for choices in kept for text, _ in choices] == ["Dear ⟦EMAIL_2⟧"]
        refuse(mesh, lambda admit: True)
        others = [{"role": "user", "content": "I am eve@b.de, write to bob@b.de"}]
        assert (await chat(mesh, messages=others, temperature=0, max_tokens=40)).text == "Dear bob@b.de"


async def test_saf3_embeddings_see_tokens_too(mesh: Rig) -> None:
    worker = mesh.workers[0]
    address = f"127.0.0.1:{worker.port}"
    await mesh.put(
        registry_pb2.Endpoint(
            service="worker", instance=worker.name, address=address, zone="zone-a", pool="pool", model_versions=[MODEL]
        )
    )
    async with filtering(mesh, TOKENS, CARDS, floor=FLOOR):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
            request = inference_pb2.EmbedRequest(model="tiny", inputs=["ann@b.de", "x"])
            await stub.Embed(request, metadata=HEADERS, timeout=30)
        embed = worker.embeds.get_nowait()
    assert [bytes(one.ids).decode() for one in embed.inputs] == ["⟦EMAIL_1⟧", "x"]
