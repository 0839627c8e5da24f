"""Answers under idempotency keys outlive their gateway: another one gives them again out of the store of records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from weir.records.v1 import answers_pb2
from weir.worker.v1 import worker_pb2

from libs.cursor import new_key
from libs.idempotency import kept
from tests.integration.gateway.test_gateway_idempotency import BODY, keyed
from tests.integration.gateway.test_gateway_resume import back, code
from tests.support.leaves import Rig, rig
from tests.support.native_stream import HEADERS, ids, taken
from tests.support.openai_call import Streaming, chat, embedding
from tests.support.records import Store, records_service
from tests.support.tokenizer import write_byte_tokenizer

NOBODY = 1
"""The port of an audit service that is away: answers do not need it."""


class Gateways:
    """Gateways that share their keys and a store of records."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder = folder
        self._model = folder / "model"
        self._model.mkdir()
        write_byte_tokenizer(self._model)
        for name in ("cursors", "answers"):
            (folder / name).write_text(f"{new_key().hex()}\n")
        self._store = store

    def another(self, name: str, **more: Any) -> contextlib.AbstractAsyncContextManager[Rig]:
        return rig(
            self._model,
            self._folder / name,
            store_of_records=self._store.port,
            instance=name,
            cursor_keys=str(self._folder / "cursors"),
            idempotency_keys=str(self._folder / "answers"),
            **more,
        )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with records_service(tmp_path / "records", NOBODY) as running:
        yield running


@pytest.fixture
def gateways(tmp_path: Path, store: Store) -> Gateways:
    return Gateways(tmp_path, store)


async def answered(mesh: Rig, text: str, *, stream: bool = True, **body: Any) -> Any:
    asking = asyncio.ensure_future(chat(mesh, keyed(), stream=stream, **BODY, **body))
    running = await taken(mesh.workers[0])
    await running.last(ids(text))
    return await asking


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_outlives_its_gateway_and_is_billed_once(
    gateways: Gateways, stream: bool, tmp_path: Path
) -> None:
    more = {"temperature": 0.9}
    async with gateways.another("gateway-0") as mesh:
        first = await answered(mesh, "The weir holds.", stream=stream, **more)
    async with gateways.another("gateway-1") as mesh:
        again = await chat(mesh, keyed(), stream=stream, **BODY, **more)
        assert again.text == first.text == "The weir holds."
        assert again.headers["idempotent-replayed"] == "true"
        if stream:
            assert again.events[0]["id"] == first.events[0]["id"]
        else:
            assert {**again.body, "weir": 0} == {**first.body, "weir": 0}
        assert mesh.workers[0].submitted.empty()
        assert not mesh.reserved
        other = await chat(mesh, keyed(), **BODY, max_completion_tokens=3)
        assert code(other) == ("409", "idempotency_conflict")
    for path in (tmp_path / "records").rglob("*"):
        assert not path.is_file() or b"weir holds" not in path.read_bytes()


async def test_an_embedding_outlives_its_gateway_and_is_billed_once(gateways: Gateways) -> None:
    async with gateways.another("gateway-0") as mesh:
        first = await embedding(mesh, keyed(), input=["a", "b"])
        assert "idempotent-replayed" not in first.headers
    async with gateways.another("gateway-1") as mesh:
        again = await embedding(mesh, keyed(), input=["a", "b"])
        assert again.body == first.body
        assert again.headers["idempotent-replayed"] == "true"
        assert mesh.workers[0].embeds.empty()
        assert not mesh.reserved
        assert code(await embedding(mesh, keyed(), input="a")) == ("409", "idempotency_conflict")
        assert code(await chat(mesh, keyed(), **BODY)) == ("409", "idempotency_conflict")


async def test_who_had_a_part_of_it_gets_the_rest(gateways: Gateways) -> None:
    async with gateways.another("gateway-0") as mesh, Streaming(mesh, keyed(), **BODY) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("The weir"))
        await stream.until("The weir")
        last = stream.last_id
        await running.last(ids(" holds."))
        await stream.rest()
    async with gateways.another("gateway-1") as mesh, Streaming(mesh, back(last, keyed()), **BODY) as rest:
        await rest.rest()
        assert rest.texts == {0: " holds."}
        assert mesh.workers[0].submitted.empty()


async def test_two_gateways_at_once_answer_a_key_once(gateways: Gateways) -> None:
    async with gateways.another("gateway-0") as one, gateways.another("gateway-1") as other:
        first = asyncio.ensure_future(chat(one, keyed(), **BODY))
        running = await taken(one.workers[0])
        second = asyncio.ensure_future(chat(other, keyed(), **BODY))
        await running.tokens(ids("The"))
        await running.last(ids(" weir"))
        assert (await first).text == (await second).text == "The weir"
        assert other.workers[0].submitted.empty()


async def test_what_failed_stands_for_nothing_elsewhere(gateways: Gateways) -> None:
    async with gateways.another("gateway-0") as one, gateways.another("gateway-1") as other:
        failing = asyncio.ensure_future(chat(one, keyed(), **BODY))
        running = await taken(one.workers[0])
        await running.finish(worker_pb2.FINISH_REASON_ERROR, "broken")
        assert (await failing).headers["x-weir-http-status"].startswith("5")
        assert (await answered(other, "The weir")).text == "The weir"


async def test_the_claim_of_a_gateway_that_died_ends(
    gateways: Gateways, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[answers_pb2.BeginRequest] = []
    real = kept.KeptAnswers._ask

    async def ask(self: kept.KeptAnswers, method: Any, request: Any) -> Any:
        if isinstance(request, answers_pb2.BeginRequest):
            asked.append(request)
            if len(asked) == 1:  # another gateway was quicker, and dies
                quicker = answers_pb2.BeginRequest()
                quicker.CopyFrom(request)
                quicker.holder, quicker.lease.seconds = "gateway-9", 1
                await store.answers.Begin(quicker, timeout=10)
        return await real(self, method, request)

    monkeypatch.setattr(kept.KeptAnswers, "_ask", ask)
    async with gateways.another("gateway-0") as mesh:
        assert (await answered(mesh, "The weir")).text == "The weir"
    assert len(asked) > 1


async def test_while_nobody_knows_what_a_key_stands_for_it_is_refused_and_others_are_served(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as records:
        gateways = Gateways(tmp_path, await records.enter_async_context(records_service(tmp_path / "records", NOBODY)))
        async with gateways.another("gateway-0", decide_timeout=0.5) as mesh:
            assert (await answered(mesh, "The weir")).text == "The weir"
            await records.aclose()
            refused = await chat(mesh, keyed("another"), **BODY)
            assert code(refused) == ("503", "dependency_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            assert mesh.workers[0].submitted.empty()
            assert code(await embedding(mesh, keyed("a third"))) == ("503", "dependency_unavailable")
            assert mesh.workers[0].embeds.empty()
            assert (await embedding(mesh)).body["data"]
            assert (await chat(mesh, keyed(), stream=True, **BODY)).text == "The weir"  # this gateway knows it
            plain = asyncio.ensure_future(chat(mesh, HEADERS, **BODY))
            await (await taken(mesh.workers[0])).last(ids("on"))
            assert (await plain).text == "on"
