"""Races and faults inside a request's life: what ends at the wrong moment must neither leak, double nor take others
along. The `mesh` fixture checks after every test that nothing was left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from weir.admission.v1 import admission_pb2
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.registry.v1 import registry_pb2
from weir.safety.v1 import safety_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError, from_rpc_error
from services.gateway import account
from tests.support.leaves import Held, Rig, Running, rig
from tests.support.native_stream import HEADERS, Stream, ids, refusal, taken
from tests.support.tokenizer import write_byte_tokenizer

BLOCK = safety_pb2.Intervention(category="test", action=safety_pb2.ACTION_BLOCK)


async def quiet(queue: asyncio.Queue[Any]) -> bool:
    """Nothing is in the queue, also after everything that is under way has had its turns."""
    for _ in range(50):
        await asyncio.sleep(0)
    return queue.empty()


# ---- leaving while a decision is under way ----------------------------------------------------


@pytest.mark.parametrize("leaf", ["safety", "router", "ratelimit", "admission"])
async def test_a_caller_who_leaves_early_leaves_nothing_behind(mesh: Rig, leaf: str) -> None:
    held = Held(
        {"safety": mesh.safety, "router": mesh.router, "ratelimit": mesh.quota, "admission": mesh.admission}[leaf],
        lambda call: call.WhichOneof("op") in ("check_input", "resolve", "reserve", "admit"),
    )
    async with Stream(mesh):
        await held.question()
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    assert (record.outcome, record.reason) == ("rejected", "CANCELLED")
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 0
    if leaf == "admission":
        assert (await asyncio.wait_for(mesh.released.get(), 10)).unused
        await asyncio.wait_for(held.cancelled.wait(), 10)
    held.go.set()


async def test_a_fault_of_ours_is_recorded_and_gives_everything_back(mesh: Rig) -> None:
    """Safety answers with more texts than it was asked about."""
    normal = mesh.safety.handler

    def confused(call: Any, context: Any) -> Any:
        if not call.HasField("check_input"):
            return normal(call, context)
        verdict = safety_pb2.InputVerdict(action=safety_pb2.ACTION_REDACT, texts=[])
        return safety_pb2.SafetyReply(input=verdict)

    mesh.safety.handler = confused
    async with Stream(mesh) as stream:
        assert (await refusal(stream)).reason is Reason.INTERNAL
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 0
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    assert (record.outcome, record.reason) == ("rejected", "INTERNAL")


# ---- several choices --------------------------------------------------------------------------


async def test_one_refused_choice_takes_the_others_along(mesh: Rig) -> None:
    """The choice that runs is ended where it is before both start again: nothing is produced twice."""
    async with Stream(mesh, n=2, max_tokens=6) as stream:
        first, second = await taken(mesh.workers[0]), await taken(mesh.workers[0])
        await first.tokens(ids("ab"))
        await stream.text(2)
        await second.refuse(Reason.DRAINING)
        assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == first.submit.handle
        again = {run.submit.choice: run for run in [await taken(mesh.workers[0]), await taken(mesh.workers[0])]}
        assert again[0].submit.prompt == ids("hiab")
        asked = mesh.admitted[1]  # room for the longer prompt, and for what the other choice still needs
        assert (asked.prompt_tokens, asked.max_output_tokens, asked.choices) == (4, 6, 2)
        await first.tokens(ids("XX"))  # the old sequence does not know yet
        await again[0].last(ids("cd"))
        await again[1].last(ids("z"))
        _, end = await stream.rest()
    assert (stream.of(0), stream.of(1)) == ("abcd", "z")
    assert end.usage.completion_tokens == 5


async def test_a_choice_that_ended_during_a_migration_is_not_started_again(mesh: Rig) -> None:
    admission = Held(mesh.admission, lambda call: call.HasField("admit") and bool(call.admit.exclude_workers))
    verdicts = Held(mesh.safety, lambda call: any("bad" in delta for delta in call.filter_output.deltas))
    normal = verdicts._normal

    def block(call: Any, context: Any) -> Any:
        if not any("bad" in delta for delta in call.filter_output.deltas):
            return normal(call, context)
        reply = safety_pb2.SafetyReply()
        reply.output.released.append("")
        reply.output.held.append(0)
        reply.output.findings.add(position=0, intervention=BLOCK)
        return reply

    verdicts._normal = block
    async with Stream(mesh, n=2) as stream:
        bad, good = await taken(mesh.workers[0]), await taken(mesh.workers[0])
        await bad.tokens(ids("bad"))
        await verdicts.question()
        await mesh.workers[0].stop()
        await admission.question()
        verdicts.go.set()  # choice 0 is stopped while the other place is being looked for
        while not any(c.finish_reason for frame in stream.frames for c in frame.delta.choices):
            await stream.read()
        admission.go.set()
        moved = await taken(mesh.workers[1])
        assert moved.submit.choice == good.submit.choice
        assert await quiet(mesh.workers[1].submitted)
        await moved.last(ids("ok"))
        _, end = await stream.rest()
    assert stream.of(good.submit.choice) == "ok"
    assert end.finish_reason == inference_pb2.FINISH_REASON_CONTENT_FILTER


async def test_a_stopped_choice_does_not_mind_its_workers_death(mesh: Rig) -> None:
    """It has its stop string; its last text is with the filter when the worker dies."""
    verdicts = Held(mesh.safety, lambda call: any(call.filter_output.last))
    async with Stream(mesh, stop=["END"]) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("all END"))
        await verdicts.question()
        await mesh.workers[0].stop()
        verdicts.go.set()
        text, end = await stream.rest()
    assert (text, end.finish_reason) == ("all ", inference_pb2.FINISH_REASON_STOP)
    assert len(mesh.admitted) == 1


# ---- migration --------------------------------------------------------------------------------


async def test_leaving_during_a_migration_ends_the_search(mesh: Rig) -> None:
    admission = Held(mesh.admission, lambda call: call.HasField("admit") and bool(call.admit.exclude_workers))
    async with Stream(mesh) as stream:
        await taken(mesh.workers[0])
        await stream.read()
        await mesh.workers[0].stop()
        await admission.question()
    await asyncio.wait_for(admission.cancelled.wait(), 10)
    assert (await asyncio.wait_for(mesh.records.get(), 10)).request.outcome == "cancelled"


async def test_a_whole_output_needs_no_other_worker(mesh: Rig) -> None:
    """Every token that was asked for has come; only the terminal frame is lost with the worker."""
    async with Stream(mesh, max_tokens=3) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        await stream.text(3)
        await mesh.workers[0].stop()
        _, end = await stream.rest()
    assert (stream.of(0), end.finish_reason) == ("abc", inference_pb2.FINISH_REASON_LENGTH)
    assert len(mesh.admitted) == 1


async def test_sequences_of_different_streams_have_different_handles(mesh: Rig) -> None:
    """A late cancel of a sequence on a stream that is gone must not hit a stranger on the next one."""
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await mesh.workers[0].stop()
        moved = await taken(mesh.workers[1])
        assert moved.submit.handle != running.submit.handle
        await moved.finish()
        await stream.rest()


# ---- one request's fault is nobody else's -----------------------------------------------------


async def test_a_fault_in_one_sequence_ends_that_one_alone(mesh: Rig) -> None:
    async with Stream(mesh, logprobs=1) as sick, Stream(mesh) as well:
        broken, fine = await taken(mesh.workers[0]), await taken(mesh.workers[0])
        if broken.submit.sampling.logprobs != 1:
            broken, fine = fine, broken
        frame = worker_pb2.StepFrame(
            handles=[broken.submit.handle, fine.submit.handle], counts=[1, 2], tokens=ids("xok")
        )
        entry = frame.logprobs.add(handle=broken.submit.handle).tokens.add(logprob=-1.0, top_ids=[1, 2])
        assert not entry.top_logprobs  # two ids without their values
        await broken.stream.send(worker_pb2.SessionResponse(step=frame))
        assert await well.text(2) == "ok"
        _, end = await sick.rest()
        assert end.error_reason == "INTERNAL"
        assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == broken.submit.handle
        await fine.finish()
        _, end = await well.rest()
        assert end.finish_reason == inference_pb2.FINISH_REASON_STOP


async def test_a_worker_that_talks_nonsense_is_left(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[])
        await running.stream.send(worker_pb2.SessionResponse(step=frame))
        moved = await taken(mesh.workers[1])
        await moved.last(ids("ok"))
        text, _ = await stream.rest()
    assert text == "ok"


# ---- text -------------------------------------------------------------------------------------


async def test_the_tail_in_the_last_frame_is_not_lost(mesh: Rig) -> None:
    """Tokens and end come together, and the text ends in what might have become a stop string."""
    async with Stream(mesh, stop=["END"]) as stream:
        await (await taken(mesh.workers[0])).last(ids("xEN"), worker_pb2.FINISH_REASON_LENGTH)
        text, end = await stream.rest()
    assert (text, end.finish_reason) == ("xEN", inference_pb2.FINISH_REASON_LENGTH)


async def test_logprobs_do_not_run_ahead_of_held_text(mesh: Rig) -> None:
    """A log-probability spells its token; what a stop string may still swallow must not get out that way."""

    async def say(running: Running, text: str) -> None:
        frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[len(text)], tokens=ids(text))
        entry = frame.logprobs.add(handle=running.submit.handle)
        for _ in text:
            entry.tokens.add(logprob=-1.0)
        await running.stream.send(worker_pb2.SessionResponse(step=frame))

    async with Stream(mesh, stop=["END"], logprobs=0) as stream:
        running = await taken(mesh.workers[0])
        await say(running, "aE")
        await stream.text(1)
        assert stream.logprobs() == "a"
        await say(running, "x")
        await stream.text(2)
        assert stream.logprobs() == "aEx"
        await say(running, "END")
        await stream.rest()
    assert (stream.of(0), stream.logprobs()) == ("aEx", "aEx")


async def test_token_ids_are_checked_as_the_text_they_spell(mesh: Rig) -> None:
    normal = mesh.safety.handler
    seen: list[str] = []

    def check(call: Any, context: Any) -> Any:
        if not call.HasField("check_input"):
            return normal(call, context)
        seen.extend(call.check_input.texts)
        texts = [text.replace("card", "----") for text in call.check_input.texts]
        return safety_pb2.SafetyReply(input=safety_pb2.InputVerdict(action=safety_pb2.ACTION_REDACT, texts=texts))

    mesh.safety.handler = check
    async with Stream(mesh, token_ids=ids("my card")) as stream:
        running = await taken(mesh.workers[0])
        await running.finish()
        await stream.rest()
    assert seen == ["my card"]
    assert running.submit.prompt == ids("my ----")


# ---- the safety filter ------------------------------------------------------------------------


async def test_text_that_breaks_the_filter_holds_up_its_own_stream_alone(mesh: Rig) -> None:
    normal = mesh.safety.handler

    def fragile(call: Any, context: Any) -> Any:
        if any("poison" in delta for delta in call.filter_output.deltas):
            raise WeirError(Reason.INTERNAL, "broken")
        return normal(call, context)

    mesh.safety.handler = fragile
    async with Stream(mesh) as sick, Stream(mesh, max_tokens=9) as well:
        first, second = await taken(mesh.workers[0]), await taken(mesh.workers[0])
        broken, fine = (second, first) if first.submit.sampling.max_tokens == 9 else (first, second)
        frame = worker_pb2.StepFrame(
            handles=[broken.submit.handle, fine.submit.handle], counts=[6, 2], tokens=ids("poisonok")
        )
        await broken.stream.send(worker_pb2.SessionResponse(step=frame))
        assert await well.text(2) == "ok"
        _, end = await sick.rest()
        assert end.error_reason == "DEPENDENCY_UNAVAILABLE"
        await fine.finish()
        await well.rest()


# ---- embeddings -------------------------------------------------------------------------------


async def _embed(mesh: Rig, inputs: list[str], seconds: float = 20) -> inference_pb2.EmbedResponse:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.EmbedRequest(model="tiny", inputs=inputs)
        return await stub.Embed(request, timeout=seconds, metadata=HEADERS)


async def test_embeddings_are_paid_for(mesh: Rig) -> None:
    response = await _embed(mesh, ["ab", "c"])
    assert [list(e.values) for e in response.embeddings] == [[1.0, 0.0], [1.0, 0.0]]
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 3


async def test_an_embedding_that_nobody_waits_for_gives_its_quota_back(mesh: Rig) -> None:
    mesh.workers[0].may_embed.clear()
    running = asyncio.ensure_future(_embed(mesh, ["ab"]))
    await asyncio.wait_for(mesh.workers[0].embeds.get(), 10)
    running.cancel()
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 0
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    assert (record.outcome, record.reason) == ("rejected", "CANCELLED")
    mesh.workers[0].may_embed.set()


@pytest.mark.parametrize("both", [False, True])
async def test_an_embedding_whose_worker_is_lost_goes_to_another(mesh: Rig, both: bool) -> None:
    """And says so when there is none."""
    for worker in mesh.workers[: 1 + both]:
        worker.may_embed.clear()
    running = asyncio.ensure_future(_embed(mesh, ["ab"]))
    for worker in mesh.workers[: 1 + both]:
        await asyncio.wait_for(worker.embeds.get(), 10)
        await worker.stop()
    if both:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running
        assert from_rpc_error(caught.value).reason is Reason.NO_WORKERS
    else:
        assert len((await running).embeddings) == 1
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == (0 if both else 2)
    first = await asyncio.wait_for(mesh.released.get(), 10)
    assert (first.failed, list(mesh.admitted[1].exclude_workers)[:1]) == (True, ["worker-a"])


async def test_an_embedding_takes_a_place_in_the_gateway_like_any_request(mesh: Rig) -> None:
    """So it is refused while the gateway drains, and one that runs is waited for and cut."""
    mesh.workers[0].may_embed.clear()
    running = asyncio.ensure_future(_embed(mesh, ["ab"]))
    await asyncio.wait_for(mesh.workers[0].embeds.get(), 10)
    occupancy = mesh.gateway._pipeline.parts.occupancy
    drained = asyncio.ensure_future(occupancy.drain())
    await asyncio.sleep(0)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _embed(mesh, ["c"])
    assert not drained.done()
    occupancy.cut()
    with pytest.raises(grpc.aio.AioRpcError) as cut:
        await running
    await asyncio.wait_for(drained, 10)
    assert [from_rpc_error(one.value).reason for one in (refused, cut)] == [Reason.DRAINING] * 2
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 0
    assert (await asyncio.wait_for(mesh.released.get(), 10)).cut_short


@pytest.mark.parametrize("reason", [Reason.MODEL_NOT_FOUND, Reason.DRAINING])
async def test_a_worker_that_does_not_have_the_version_any_more_passes_an_embedding_on(
    mesh: Rig, reason: Reason
) -> None:
    mesh.workers[0].embeds_not = reason
    assert len((await _embed(mesh, ["ab"])).embeddings) == 1
    assert (mesh.workers[0].embeds.qsize(), mesh.workers[1].embeds.qsize()) == (1, 1)
    mesh.workers[1].embeds_not = reason
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _embed(mesh, ["ab"])
    assert from_rpc_error(caught.value).reason is Reason.NO_WORKERS


@pytest.mark.parametrize("reason", [Reason.GRANT_INVALID, Reason.GRANT_EXPIRED, Reason.REJECTED_NO_CAPACITY])
async def test_an_embedding_whose_grant_is_stale_gets_another_one(mesh: Rig, reason: Reason) -> None:
    """As after a restart of admission, of which its worker has not heard yet; so many times. As a generation does."""
    mesh.workers[0].embeds_not = reason
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _embed(mesh, ["ab"])
    assert from_rpc_error(caught.value).reason is reason
    assert mesh.workers[0].embeds.qsize() == 1 + mesh.gateway._settings.max_migrations
    assert not any(asked.exclude_workers for asked in mesh.admitted)


async def test_an_empty_text_has_no_embedding(mesh: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _embed(mesh, ["ab", ""])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_admission_message_is_what_these_tests_hold() -> None:
    """`Held` chooses calls by their oneof; a renamed one would let them pass unheld."""
    assert "op" in admission_pb2.AdmissionCall.DESCRIPTOR.oneofs_by_name


async def test_e8_a_reader_gets_its_end_though_closing_fails(mesh: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    normal = account.served

    def broken(*told: Any) -> None:
        normal(*told)
        raise OSError("the disk is full")

    monkeypatch.setattr(account, "served", broken)
    async with Stream(mesh) as stream:
        await (await taken(mesh.workers[0])).last(ids("ab"))
        text, end = await asyncio.wait_for(stream.rest(), 10)
    assert (text, end.finish_reason) == ("ab", inference_pb2.FINISH_REASON_STOP)


async def test_an_embedding_that_workers_take_from_an_owner_alone_waits_for_one(tmp_path: Path) -> None:
    """The owner of the pool is gone, and workers hear of another one already: no grant of our own helps."""
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", max_local_grants=1) as mesh:
        await _embed(mesh, ["a"])  # admission has been reached once
        for worker in mesh.workers:
            worker.wants_proof = True
            address, versions = f"127.0.0.1:{worker.port}", ["tiny@1"]
            endpoint = registry_pb2.Endpoint(service="worker", instance=worker.name, address=address, zone="zone-a")
            endpoint.model_versions.extend(versions)
            await mesh.put(endpoint)
            while not worker.embeds.empty():
                worker.embeds.get_nowait()
        await mesh.admission.stop()
        running = asyncio.ensure_future(_embed(mesh, ["ab"]))
        asked = [asyncio.ensure_future(worker.embeds.get()) for worker in mesh.workers]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        await mesh.admission.start()
        assert len((await running).embeddings) == 1
        for task in asked:
            task.cancel()
