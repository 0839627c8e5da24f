"""An arm is taken out under its requests: who waits is routed anew, who runs goes on, token by token, or finishes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from weir.admission.v1 import admission_pb2
from weir.inference.v1 import inference_pb2
from weir.registry.v1 import registry_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError
from libs.registry import Put, keys
from tests.support.canary import CANARY, CANDIDATE, begin, end, rollout, seen
from tests.support.leaves import MODEL, Held, Rig, rig
from tests.support.native_stream import Stream, ids, refusal, taken
from tests.support.tokenizer import write_byte_tokenizer

MIGRATE, FINISH = registry_pb2.IN_FLIGHT_MIGRATE, registry_pb2.IN_FLIGHT_FINISH
ROLLED_BACK = registry_pb2.ROLLOUT_PHASE_ROLLED_BACK
PROMOTED = registry_pb2.ROLLOUT_PHASE_PROMOTED
Take = Callable[[Rig], Awaitable[None]]


async def roll_back(mesh: Rig) -> None:
    await end(mesh, ROLLED_BACK, on_rollback=MIGRATE)


async def abort(mesh: Rig) -> None:
    await end(mesh, registry_pb2.ROLLOUT_PHASE_ABORTED, on_rollback=MIGRATE)


async def kill(mesh: Rig) -> None:
    await mesh.put(registry_pb2.RolloutSwitch(kill=True, reason="test"))
    await seen(mesh, lambda snapshot: snapshot.switches)


async def weigh_nothing(mesh: Rig) -> None:
    await mesh.put(rollout(weights=[0], on_rollback=MIGRATE))
    await seen(mesh, lambda snapshot: list(snapshot.rollouts["tiny"].state.weights) == [0])


async def move_the_alias(mesh: Rig) -> None:
    """Somebody points the alias elsewhere: what they chose counts."""
    target = registry_pb2.AliasTarget(model_version=MODEL, weight=50)
    await mesh.put(registry_pb2.Alias(name="tiny", targets=[target, target]))
    await seen(mesh, lambda snapshot: len(snapshot.aliases["tiny"].targets) == 2)


async def replace(mesh: Rig) -> None:
    await mesh.put(rollout(id="r2", weights=[], phase=registry_pb2.ROLLOUT_PHASE_PREPARING))
    await seen(mesh, lambda snapshot: snapshot.rollouts["tiny"].id == "r2")


WAYS = (roll_back, abort, kill, weigh_nothing, move_the_alias, replace)


def moved(cause: str) -> float:
    return REGISTRY.get_sample_value("weir_gateway_moved_total", {"cause": cause}) or 0.0


@pytest.mark.parametrize("take_out", WAYS)
async def test_who_waits_is_routed_anew(mesh: Rig, take_out: Take) -> None:
    await begin(mesh, on_rollback=FINISH)
    held = Held(mesh.admission, lambda call: call.HasField("admit") and call.admit.model_version == CANDIDATE)
    before = moved("withdrawn")
    async with Stream(mesh) as stream:
        asked = (await held.question()).admit
        assert (asked.model_version, asked.version_share) == (CANDIDATE, 0.5)
        await take_out(mesh)
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == MODEL
        accepted = (await stream.read()).accepted
        assert accepted.model_version == MODEL
        await running.last(ids("ok"))
        text, over = await stream.rest()
    assert (text, list(over.degraded)) == ("ok", [])
    await asyncio.wait_for(held.cancelled.wait(), 10)
    assert (mesh.admitted[-1].model_version, mesh.admitted[-1].version_share) == (MODEL, 0.0)
    assert moved("withdrawn") == before + 1
    assert (await mesh.settled.get()).model_version == MODEL
    assert (await mesh.records.get()).request.model_version == MODEL


@pytest.mark.parametrize("take_out", WAYS)
async def test_running_streams_go_on_elsewhere_token_by_token(mesh: Rig, take_out: Take) -> None:
    await begin(mesh, on_rollback=MIGRATE)
    before = moved("taken_out")
    async with Stream(mesh, max_tokens=10, temperature=1.0) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == CANDIDATE
        await running.tokens(ids("abc"))
        assert await stream.text(3) == "abc"
        await take_out(mesh)
        assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == running.submit.handle
        rest = await taken(mesh.workers[0])
        assert (rest.submit.model_version, rest.submit.prompt) == (MODEL, ids("hiabc"))
        assert (rest.submit.resumed_tokens, rest.submit.sampling.max_tokens) == (3, 7)
        assert rest.submit.sampling.seed == running.submit.sampling.seed
        await running.tokens(ids("late"))  # from the version that was left: nobody may see it
        await rest.tokens(ids("de"))
        await rest.last(ids("f"))
        text, over = await stream.rest()
    assert text == "def"
    assert over.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert (over.usage.prompt_tokens, over.usage.completion_tokens) == (2, 6)
    assert list(over.degraded) == ["version_changed"]
    left, last = [await asyncio.wait_for(mesh.released.get(), 10) for _ in range(2)]
    assert (left.output_tokens, left.failed, last.output_tokens) == (3, False, 3)
    settled = await mesh.settled.get()
    assert (settled.tokens, settled.model_version) == (8, CANDIDATE)
    record = (await mesh.records.get()).request
    assert (record.model_version, record.arm, record.outcome) == (CANDIDATE, "canary", "stop")
    assert (record.completion_tokens, list(record.degraded)) == (6, ["version_changed"])
    assert moved("taken_out") == before + 1
    assert mesh.records.empty()
    assert mesh.settled.empty()


async def test_a_stream_of_two_versions_is_recorded_alike_by_a_killed_gateways_next_life(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model, state, killed = write_byte_tokenizer(tmp_path / "model"), tmp_path / "state", tmp_path / "killed"
    async with rig(model, state) as first:
        await begin(first, on_rollback=MIGRATE)
        async with Stream(first, max_tokens=10) as stream:
            await (await taken(first.workers[0])).tokens(ids("abc"))
            assert await stream.text(3) == "abc"
            await roll_back(first)
            rest = await taken(first.workers[0])
            await rest.tokens(ids("de"))
            assert await stream.text(2) == "de"
            shutil.copytree(state, killed)
            await rest.finish()
            await stream.rest()
        done = (await asyncio.wait_for(first.records.get(), 10)).request
    async with rig(model, killed) as second:
        lost = (await asyncio.wait_for(second.records.get(), 10)).request
        settle = await asyncio.wait_for(second.settled.get(), 10)
        assert second.records.empty()
        assert second.settled.empty()
    assert (lost.request_id, lost.outcome) == (done.request_id, "gateway_lost")
    assert (lost.model_version, lost.arm) == (done.model_version, done.arm) == (CANDIDATE, "canary")
    assert (lost.prompt_tokens, lost.completion_tokens, settle.tokens) == (2, 5, 7)
    assert list(lost.degraded) == list(done.degraded) == ["version_changed"]


async def test_an_answer_of_two_versions_is_not_kept_as_one_of_the_first(mesh: Rig) -> None:
    cached = registry_pb2.DegradationStep(cached_answer=registry_pb2.CachedAnswer())
    await mesh.put(registry_pb2.PlanPolicy(id="paid", ladder=[cached]))
    await seen(mesh, lambda snapshot: snapshot.plans)
    await begin(mesh, on_rollback=MIGRATE)
    async with Stream(mesh, temperature=0.0) as stream:
        await (await taken(mesh.workers[0])).tokens(ids("abc"))
        await stream.text(3)
        await roll_back(mesh)
        await (await taken(mesh.workers[0])).last(ids("d"))
        assert (await stream.rest())[0] == "d"
    await begin(mesh, id="r2")
    full = WeirError(Reason.REJECTED_QUEUE_FULL, "full").to_rejection()
    mesh.admission.handler = lambda call, context: admission_pb2.AdmissionReply(rejected=full)
    async with Stream(mesh, temperature=0.0) as again:
        assert (await refusal(again)).reason is Reason.REJECTED_QUEUE_FULL


async def test_state_of_stops_logprobs_and_every_choice_moves_along(mesh: Rig) -> None:
    await begin(mesh, on_rollback=MIGRATE)
    async with Stream(mesh, max_tokens=10, stop=["END"], logprobs=0, n=2) as stream:
        old = [await taken(mesh.workers[0]) for _ in range(2)]
        for running, text in zip(old, ("xE", "yy"), strict=True):
            await with_logprobs(running, text)
        while (stream.of(0), stream.of(1)) != ("x", "yy"):
            await stream.read()
        await roll_back(mesh)
        new = [await taken(mesh.workers[0]) for _ in range(2)]
        assert [bytes(one.submit.prompt) for one in new] == [b"hixE", b"hiyy"]
        assert [one.submit.choice for one in new] == [0, 1]
        await with_logprobs(new[0], "ND not this")
        await with_logprobs(new[1], "z")
        await new[1].finish()
        _, over = await stream.rest()
    assert (stream.of(0), stream.of(1)) == ("x", "yyz")
    assert sorted(stream.logprobs()) == sorted("xyyz")
    assert over.finish_reason == inference_pb2.FINISH_REASON_STOP


async def with_logprobs(running: Any, text: str) -> None:
    frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[len(text)], tokens=ids(text))
    entry = frame.logprobs.add(handle=running.submit.handle)
    for _ in text:
        entry.tokens.add(logprob=-1.0)
    await running.stream.send(worker_pb2.SessionResponse(step=frame))


@pytest.mark.parametrize("why", ["finish", "tokenizer", "no_tokenizer", "context", "safety"])
async def test_streams_that_may_or_can_not_move_finish(mesh: Rig, why: str) -> None:
    tokenizer = {"tokenizer": "8" * 64, "no_tokenizer": ""}.get(why, "7" * 64)
    candidate: dict[str, Any] = {"context_length": 4096} if why == "context" else {}
    if why == "no_tokenizer":
        candidate = {"tokenizer_sha256": ""}
    if why == "safety":  # what it has said so far, and will say, is filtered by the candidate's policies
        candidate = {"safety_policies": ["other@1"]}
    await begin(mesh, tokenizer=tokenizer, candidate=candidate, on_rollback=FINISH if why == "finish" else MIGRATE)
    async with Stream(mesh, max_tokens=1000 if why == "context" else 10) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        await stream.text(3)
        await end(mesh, ROLLED_BACK, on_rollback=FINISH if why == "finish" else MIGRATE)
        await running.last(ids("def"))
        text, over = await stream.rest()
    assert (text, list(over.degraded)) == ("def", [])
    assert mesh.workers[0].cancelled.empty()
    assert len(mesh.admitted) == 1


async def test_a_stream_that_cannot_move_and_loses_its_worker_goes_on_with_its_version(mesh: Rig) -> None:
    await begin(mesh, tokenizer="8" * 64, on_rollback=MIGRATE)
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        await stream.text(3)
        await end(mesh, ROLLED_BACK, on_rollback=MIGRATE)
        await mesh.workers[0].stop()
        rest = await taken(mesh.workers[1])
        assert (rest.submit.model_version, rest.submit.prompt) == (CANDIDATE, ids("hiabc"))
        await mesh.workers[1].stop()  # now there is nobody left
        error = await failed(stream)
    assert error == (Reason.WORKER_LOST.name, inference_pb2.FINISH_REASON_ERROR)


async def failed(stream: Stream) -> tuple[str, int]:
    _, over = await stream.rest()
    return over.error_reason, over.finish_reason


async def test_a_worker_that_has_unloaded_the_version_passes_requests_on(mesh: Rig) -> None:
    """To another worker of the version, though admission does not know yet."""
    async with Stream(mesh, max_tokens=10) as stream:
        await (await taken(mesh.workers[0])).refuse(Reason.MODEL_NOT_FOUND)
        running = await taken(mesh.workers[1])
        assert running.submit.model_version == MODEL
        await running.last(ids("ok"))
        text, over = await stream.rest()
    assert (text, list(over.degraded)) == ("ok", [])
    assert list(mesh.admitted[1].exclude_workers) == ["worker-a"]
    refused = await asyncio.wait_for(mesh.released.get(), 10)
    assert (refused.unused, refused.failed) == (True, False)


async def test_a_version_that_has_left_is_followed_by_what_its_name_means_now(mesh: Rig) -> None:
    await begin(mesh, on_rollback=FINISH)
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == CANDIDATE
        await end(mesh, ROLLED_BACK, on_rollback=FINISH)
        await running.refuse(Reason.MODEL_NOT_FOUND)
        rest = await taken(mesh.workers[0])
        assert rest.submit.model_version == MODEL
        await rest.last(ids("ok"))
        text, over = await stream.rest()
    assert (text, list(over.degraded)) == ("ok", ["version_changed"])
    assert not mesh.admitted[1].exclude_workers


async def test_a_baseline_that_has_left_after_the_promotion_is_followed_too(mesh: Rig) -> None:
    await begin(mesh, phase=registry_pb2.ROLLOUT_PHASE_PREPARING, weights=[])
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == MODEL
        target = registry_pb2.AliasTarget(model_version=CANDIDATE, weight=100)
        alias = registry_pb2.Alias(name="tiny", targets=[target])
        over = rollout(phase=PROMOTED, weights=[])
        await mesh.store.txn(puts=[Put(keys.key_of(each), keys.encode(each)) for each in (alias, over)])
        await seen(mesh, lambda snapshot: snapshot.rollouts["tiny"].state.phase == PROMOTED)
        await running.refuse(Reason.MODEL_NOT_FOUND)
        rest = await taken(mesh.workers[0])
        assert rest.submit.model_version == CANDIDATE
        await rest.last(ids("ok"))
        assert (await stream.rest())[0] == "ok"


async def test_a_version_that_nobody_has_any_more_ends_typed(mesh: Rig) -> None:
    async with Stream(mesh, max_tokens=10) as stream:
        for worker in mesh.workers:
            await (await taken(worker)).refuse(Reason.MODEL_NOT_FOUND)
        error = await failed(stream)
    assert error == (Reason.WORKER_LOST.name, inference_pb2.FINISH_REASON_ERROR)
    assert len(mesh.admitted) == 3


async def test_a_promotion_moves_nobody(mesh: Rig) -> None:
    await begin(mesh, on_rollback=MIGRATE)
    held = Held(mesh.admission, lambda call: call.HasField("admit") and len(mesh.admitted) == 1)
    async with Stream(mesh) as runs, Stream(mesh) as waits:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        await runs.text(3)
        await held.question()
        target = registry_pb2.AliasTarget(model_version=CANDIDATE, weight=100)
        alias = registry_pb2.Alias(name="tiny", targets=[target])
        over = rollout(phase=PROMOTED, weights=[], on_rollback=MIGRATE)
        await mesh.store.txn(puts=[Put(keys.key_of(each), keys.encode(each)) for each in (alias, over)])
        await seen(mesh, lambda snapshot: snapshot.rollouts["tiny"].state.phase == PROMOTED)
        held.go.set()
        other = await taken(mesh.workers[0])
        assert other.submit.model_version == CANDIDATE
        await other.last(ids("ok"))
        await running.last(ids("def"))
        assert (await waits.rest())[0] == "ok"
        text, last = await runs.rest()
    assert (text, list(last.degraded)) == ("def", [])
    assert mesh.workers[0].cancelled.empty()
    assert not len(mesh.gateway._pipeline.parts.membership)


async def test_who_looks_for_a_worker_looks_for_one_of_the_arm_in_force(mesh: Rig) -> None:
    """The worker of a stream that was to finish is lost after the rollback; another's while it happens."""
    await begin(mesh, on_rollback=FINISH)
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        await stream.text(3)
        await end(mesh, ROLLED_BACK, on_rollback=FINISH)
        await running.refuse(Reason.PREEMPTED)
        rest = await taken(mesh.workers[0])
        assert (rest.submit.model_version, rest.submit.prompt) == (MODEL, ids("hiabc"))
        await rest.last(ids("d"))
        text, over = await stream.rest()
    assert (text, list(over.degraded)) == ("d", ["version_changed"])


async def test_who_waits_for_another_worker_is_withdrawn_too(mesh: Rig) -> None:
    await begin(mesh, on_rollback=FINISH)
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        await stream.text(3)
        held = Held(mesh.admission, lambda call: call.HasField("admit") and call.admit.model_version == CANDIDATE)
        await running.refuse(Reason.PREEMPTED)
        again = (await held.question()).admit
        await end(mesh, ROLLED_BACK, on_rollback=FINISH)
        rest = await taken(mesh.workers[0])
        assert (rest.submit.model_version, rest.submit.prompt) == (MODEL, ids("hiabc"))
        assert rest.submit.request_id != again.request_id
        await rest.last(ids("d"))
        text, _ = await stream.rest()
    assert text == "d"
    await asyncio.wait_for(held.cancelled.wait(), 10)
    released = [await asyncio.wait_for(mesh.released.get(), 10) for _ in range(3)]
    assert sorted((one.request_id, one.unused) for one in released)[1] == (again.request_id, True)


async def test_a_caller_who_leaves_while_withdrawn_is_gone(mesh: Rig) -> None:
    await begin(mesh, on_rollback=FINISH)
    held = Held(mesh.admission, lambda call: call.HasField("admit"))
    async with Stream(mesh):
        await held.question()
        await end(mesh, ROLLED_BACK)
        await held.question()
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    assert record.reason == "CANCELLED"
    assert mesh.workers[0].submitted.empty()


async def test_a_router_that_is_behind_does_not_send_anybody_back(mesh: Rig) -> None:
    await begin(mesh)
    stale = mesh.router.handler
    old = mesh.gateway._catalog.snapshot
    await end(mesh, ROLLED_BACK)

    def behind(call: Any, context: Any) -> Any:
        reply = stale(call, context)
        if reply.HasField("route"):
            route = reply.route
            route.model_version, route.arm, route.rollout_id, route.revision = CANDIDATE, "canary", "r1", old.revision
        return reply

    mesh.router.handler = behind
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == MODEL
        await running.last(ids("ok"))
        assert (await stream.rest())[0] == "ok"


async def test_a_router_that_is_ahead_is_believed(mesh: Rig) -> None:
    await begin(mesh, phase=registry_pb2.ROLLOUT_PHASE_PREPARING, weights=[])
    normal = mesh.router.handler

    def ahead(call: Any, context: Any) -> Any:
        reply = normal(call, context)
        if reply.HasField("route"):
            route = reply.route
            route.model_version, route.arm, route.rollout_id = CANDIDATE, "canary", "r1"
            route.revision += 1000
        return reply

    mesh.router.handler = ahead
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == CANDIDATE
        await running.last(ids("ok"))
        assert (await stream.read()).accepted.arm == "canary"
        await stream.rest()
    assert mesh.admitted[0].version_share == 0.5


async def test_the_share_of_an_arm_is_the_rollouts(mesh: Rig) -> None:
    await begin(mesh, capacity_share=0.25, phase=CANARY)
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.last(ids("ok"))
        await stream.rest()
    assert mesh.admitted[0].version_share == 0.25
