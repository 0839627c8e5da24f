"""The same request twice under one key: answered once, billed once, and read by whoever asks."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.registry.v1 import registry_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError, from_rpc_error
from tests.integration.gateway.test_gateway_resume import back, code, two, until
from tests.support.leaves import Rig
from tests.support.native_stream import FLAGGED, HEADERS, Stream, ids, refusal, taken
from tests.support.openai_call import Streaming, chat, completion, embedding

__all__ = ["two"]
BODY: dict[str, Any] = {"max_tokens": 40, "stream_options": {"include_usage": True}}


def keyed(key: str = "order 7", headers: list[tuple[str, str]] = HEADERS) -> list[tuple[str, str]]:
    return [*headers, ("idempotency-key", key)]


async def only(mesh: Rig) -> int:
    """Tokens that one request, and no other, was settled with."""
    settled = await asyncio.wait_for(mesh.settled.get(), 10)
    assert mesh.settled.empty()
    assert len(mesh.reserved) == 1
    return settled.tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_two_at_once_are_answered_once(mesh: Rig, stream: bool) -> None:
    both = [asyncio.ensure_future(chat(mesh, keyed(), stream=stream, **BODY)) for _ in range(2)]
    running = await taken(mesh.workers[0])
    await running.tokens(ids("The weir"))
    await running.last(ids(" holds."))
    first, second = await asyncio.gather(*both)
    assert first.text == second.text == "The weir holds."
    assert sorted(one.headers.get("idempotent-replayed", "") for one in (first, second)) == ["", "true"]
    name = first.events[0]["id"] if stream else first.body["id"]
    assert (second.events[0]["id"] if stream else second.body["id"]) == name
    assert mesh.workers[0].submitted.empty()
    assert await only(mesh) == 9 + len("The weir holds.")


async def test_who_joins_a_running_stream_reads_it_from_its_beginning(mesh: Rig) -> None:
    async with Streaming(mesh, keyed(), **BODY) as first, Streaming(mesh, keyed(), **BODY) as second:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("The"))
        await first.until("The")
        await second.until("The")
        await running.tokens(ids(" weir"))
        await first.until("The weir")
        async with Streaming(mesh, back(first.last_id, keyed()), **BODY) as third:
            await running.last(ids(" holds."))
            for stream in (first, second, third):
                await stream.rest()
                assert stream.done
        assert third.texts == {0: " holds."}
        assert first.texts == second.texts == {0: "The weir holds."}
        assert first.events[-1]["usage"] == second.events[-1]["usage"] == third.events[-1]["usage"]
    assert await only(mesh) == 9 + len("The weir holds.")


async def test_it_is_given_to_the_end_when_its_caller_has_left_and_again_afterwards(mesh: Rig) -> None:
    async with Streaming(mesh, keyed(), **BODY) as first:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("The weir"))
        await first.until("The weir")
    await running.last(ids(" holds."))
    assert await only(mesh) == 9 + len("The weir holds.")
    for last, rest in ((first.last_id, " holds."), (None, "The weir holds.")):
        async with Streaming(mesh, back(last, keyed()) if last else keyed(), **BODY) as again:
            await again.rest()
        assert again.texts == {0: rest}
        assert [choice["finish_reason"] for event in again.events for choice in event["choices"]][-1] == "stop"
    assert mesh.workers[0].submitted.empty()
    assert mesh.settled.empty()


async def test_another_request_under_the_key_is_a_conflict_while_it_runs_and_afterwards(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, keyed(), **BODY))
    running = await taken(mesh.workers[0])
    assert code(await chat(mesh, keyed(), **{**BODY, "max_tokens": 41})) == ("409", "idempotency_conflict")
    await running.last(ids("The weir"))
    assert (await answering).text == "The weir"
    assert code(await completion(mesh, keyed(), max_tokens=40)) == ("409", "idempotency_conflict")
    other = asyncio.ensure_future(chat(mesh, keyed(headers=FLAGGED), **{**BODY, "max_tokens": 41}))
    await (await taken(mesh.workers[0])).last(ids("of another tenant"))
    assert (await other).text == "of another tenant"


async def test_what_was_refused_or_failed_is_begun_anew(mesh: Rig) -> None:
    normal = mesh.quota.handler
    mesh.deny(WeirError(Reason.QUOTA_REQUESTS, "none left", limit="requests_per_minute"))
    both = await asyncio.gather(*[chat(mesh, keyed(), **BODY) for _ in range(2)])
    assert [code(one) for one in both] == [("429", "quota_requests")] * 2
    mesh.quota.handler = normal
    answering = asyncio.ensure_future(chat(mesh, keyed(), **BODY))
    await (await taken(mesh.workers[0])).finish(worker_pb2.FINISH_REASON_ERROR, "out of memory")
    assert code(await answering) == ("500", "engine_error")
    answering = asyncio.ensure_future(chat(mesh, keyed(), **BODY))
    await (await taken(mesh.workers[0])).last(ids("The weir"))
    answer = await answering
    assert (answer.text, answer.headers.get("idempotent-replayed")) == ("The weir", None)


async def test_an_answer_that_was_given_under_other_policies_is_not_given_again(mesh: Rig) -> None:
    answering = asyncio.ensure_future(chat(mesh, keyed(), **BODY))
    await (await taken(mesh.workers[0])).last(ids("The weir"))
    await answering
    await mesh.put(registry_pb2.Tenant(id="closed", plan=registry_pb2.PLAN_PAID, safety_policies=["strict@1"]))
    await until(lambda: "strict@1" in mesh.gateway._catalog.tenant("closed").safety_policies)
    answer = await chat(mesh, keyed(), **BODY)
    assert code(answer) == ("409", "idempotency_conflict")
    assert "policies" in answer.body["error"]["message"]


@pytest.mark.parametrize("key", ["x" * 256, "x" * 5000])
async def test_keys_are_bounded(mesh: Rig, key: str) -> None:
    answer = await chat(mesh, keyed(key), **BODY)
    assert code(answer) == ("400", "invalid_request")
    assert answer.body["error"]["param"] == "idempotency_key"
    assert code(await completion(mesh, keyed(), prompt=["a", "b"])) == ("400", "invalid_request")


async def test_native_calls_join_too(mesh: Rig) -> None:
    async with Stream(mesh, max_tokens=40, idempotency_key="k") as first:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("The"))
        await first.text(3)
        async with Stream(mesh, max_tokens=40, idempotency_key="k") as second:
            await second.text(3)
            await running.last(ids(" weir"))
            assert (await first.rest())[0] == (await second.rest())[0] == " weir"
    assert [stream.frames[0].accepted.replayed for stream in (first, second)] == [False, True]
    assert first.frames[0].accepted.request_id == second.frames[0].accepted.request_id
    async with Stream(mesh, max_tokens=41, idempotency_key="k") as other:
        assert (await refusal(other)).reason is Reason.IDEMPOTENCY_CONFLICT
    assert await only(mesh) == len("hi") + 8


async def test_an_embedding_is_made_once_joined_and_given_again(mesh: Rig) -> None:
    worker = mesh.workers[0]
    worker.may_embed.clear()
    both = [asyncio.ensure_future(embedding(mesh, keyed())) for _ in range(2)]
    await asyncio.wait_for(worker.embeds.get(), 10)
    worker.may_embed.set()
    answers = [*await asyncio.gather(*both), await embedding(mesh, keyed())]
    assert sorted(one.headers.get("idempotent-replayed", "") for one in answers) == ["", "true", "true"]
    assert [one.body for one in answers] == [answers[0].body] * 3
    [began] = {one.headers["x-request-id"] for one in answers}
    assert [one.headers.get("x-weir-original-request-id", began) for one in answers] == [began] * 3
    assert worker.embeds.empty()
    assert await only(mesh) == len("hi")
    for other in (embedding(mesh, keyed(), input="ho"), chat(mesh, keyed(), **BODY)):
        assert code(await other) == ("409", "idempotency_conflict")
    assert "idempotent-replayed" not in (await embedding(mesh, keyed("another"))).headers


async def test_a_native_embedding_has_the_field(mesh: Rig) -> None:
    request = inference_pb2.EmbedRequest(model="tiny", inputs=["hi"], idempotency_key="k")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        first, again = [await stub.Embed(request, timeout=30, metadata=HEADERS) for _ in range(2)]
        assert (first.replayed, again.replayed) == (False, True)
        assert first.embeddings == again.embeddings
        request.inputs.append("more")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Embed(request, timeout=30, metadata=HEADERS)
    assert from_rpc_error(caught.value).reason is Reason.IDEMPOTENCY_CONFLICT
    assert await only(mesh) == len("hi")


async def test_an_embedding_that_was_refused_is_made_anew_and_one_under_other_policies_is_not_given_again(
    mesh: Rig,
) -> None:
    mesh.workers[0].embeds_not = Reason.INTERNAL
    assert code(await embedding(mesh, keyed()))[0] == "500"
    mesh.workers[0].embeds_not = None
    assert "idempotent-replayed" not in (await embedding(mesh, keyed())).headers
    await mesh.put(registry_pb2.Tenant(id="closed", plan=registry_pb2.PLAN_PAID, safety_policies=["strict@1"]))
    await until(lambda: "strict@1" in mesh.gateway._catalog.tenant("closed").safety_policies)
    assert code(await embedding(mesh, keyed())) == ("409", "idempotency_conflict")


async def test_an_answer_has_so_many_readers_at_once(mesh: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.idempotency.READERS", 2)
    async with (
        Stream(mesh, max_tokens=40, idempotency_key="k") as first,
        Stream(mesh, max_tokens=40, idempotency_key="k") as second,
    ):
        running = await taken(mesh.workers[0])
        await running.tokens(ids("The"))
        await asyncio.gather(first.text(3), second.text(3))
        async with Stream(mesh, max_tokens=40, idempotency_key="k") as third:
            error = await refusal(third)
        assert (error.reason, error.limit) == (Reason.REJECTED_QUEUE_FULL, "idempotency_readers")
        await running.last(ids(" weir"))
        await asyncio.gather(first.rest(), second.rest())
    async with Stream(mesh, max_tokens=40, idempotency_key="k") as again:
        assert (await again.rest())[0] == "The weir"


async def test_after_a_loss_a_keyed_stream_goes_on_by_its_id(mesh: Rig) -> None:
    """Its gateway knows the key no more, as one that was started anew: the id suffices, and the key holds again."""
    async with Streaming(mesh, **BODY) as first:
        await (await taken(mesh.workers[0])).tokens(ids("The weir"))
        await first.until("The weir")
    await asyncio.wait_for(mesh.settled.get(), 10)
    async with (
        Streaming(mesh, back(first.last_id, keyed()), **BODY) as second,
        Streaming(mesh, back(first.last_id, keyed()), **BODY) as third,
    ):
        running = await taken(mesh.workers[0])
        await running.last(ids("The weir holds."))
        await second.rest()
        await third.rest()
    assert second.texts == third.texts == {0: " holds."}
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == len(" holds.")
    async with Streaming(mesh, keyed(), **BODY) as whole:
        await whole.rest()
    assert whole.texts == {0: "The weir holds."}
    assert mesh.workers[0].submitted.empty()


async def test_two_gateways_give_a_key_the_same_answer(two: tuple[Rig, Rig]) -> None:
    """One of them died: the other one has the same seed, and so has nobody else."""
    seeds = []
    for mesh, key in zip((*two, two[0]), ("k", "k", "other"), strict=True):
        answering = asyncio.ensure_future(chat(mesh, keyed(key), temperature=0.9, **BODY))
        running = await taken(mesh.workers[0])
        seeds.append(running.submit.sampling.seed)
        await running.last(ids("The weir"))
        await answering
    assert seeds[0] == seeds[1] != seeds[2]
