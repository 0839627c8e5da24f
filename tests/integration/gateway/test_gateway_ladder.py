"""The degradation ladder through a real gateway: less instead of nothing, each step flagged, counted and paid for as
what it was. Admission, the worker and the quota are scripted."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from weir.admission.v1 import admission_pb2
from weir.inference.v1 import inference_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2

from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from tests.support.leaves import MODEL, Held, Rig, Running, rig
from tests.support.native_stream import FLAGGED, Stream, ids, refusal, taken
from tests.support.openai_call import Answered, chat
from tests.support.tokenizer import write_byte_tokenizer

Step = registry_pb2.DegradationStep
CAP = Step(cap_output=registry_pb2.CapOutput(max_tokens=4))
EARLY_CAP = Step(cap_output=registry_pb2.CapOutput(max_tokens=4, pressure=0.5))
SMALLER = Step(smaller_model=registry_pb2.SmallerModel(models={"tiny": "mini"}))
CACHED = Step(cached_answer=registry_pb2.CachedAnswer())
DEFAULT = Step(default_answer=registry_pb2.DefaultAnswer(text="too busy, sorry"))
CPU = Step(cpu_fallback=registry_pb2.CpuFallback(pools={"pool": "cpu"}))
FULL = WeirError(Reason.REJECTED_QUEUE_FULL, "the queue is full", retry_after=3.0)


async def plan(mesh: Rig, *ladder: Step, **more: Any) -> None:
    """Give the paid plan a ladder, and wait until the gateway has it."""
    await mesh.put(registry_pb2.PlanPolicy(id="paid", ladder=ladder, **more))
    tenant = registry_pb2.Tenant(plan=registry_pb2.PLAN_PAID)
    async with asyncio.timeout(10):
        while len(mesh.gateway._catalog.plan(tenant).ladder) != len(ladder):  # noqa: ASYNC110 - a watch of the store
            await asyncio.sleep(0.01)


def refuse(mesh: Rig, which: Callable[[admission_pb2.Admit], bool], error: WeirError = FULL) -> None:
    """Have admission refuse some questions."""
    normal = mesh.admission.handler

    def handle(call: Any, context: Any) -> Any:
        if call.HasField("admit") and which(call.admit):
            mesh.admitted.append(call.admit)
            return admission_pb2.AdmissionReply(rejected=error.to_rejection())
        return normal(call, context)

    mesh.admission.handler = handle


def count(step: str, outcome: str) -> float:
    return REGISTRY.get_sample_value("weir_gateway_ladder_total", {"step": step, "outcome": outcome}) or 0.0


async def record(mesh: Rig) -> Any:
    return (await asyncio.wait_for(mesh.records.get(), 10)).request


async def settled(mesh: Rig) -> quota_pb2.Settle:
    return await asyncio.wait_for(mesh.settled.get(), 10)


async def served(mesh: Rig, stream: bool, drive: Callable[[Running], Any], **body: Any) -> Answered:
    """A chat completion whose worker does what `drive` says."""
    asking = asyncio.ensure_future(chat(mesh, stream=stream, **body))
    await drive(await taken(mesh.workers[0]))
    return await asyncio.wait_for(asking, 10)


def flags(answer: Answered) -> str:
    return answer.headers.get("x-weir-degraded", "")


# ---- cap_output -------------------------------------------------------------------------------


async def test_a_capped_output_is_asked_for_after_a_refusal(mesh: Rig) -> None:
    await plan(mesh, CAP)
    refuse(mesh, lambda admit: admit.max_output_tokens > 4)
    before = count("output_capped", "served")
    async with Stream(mesh, max_tokens=9) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.sampling.max_tokens == 4
        assert list((await stream.read()).accepted.degraded) == ["output_capped"]
        await running.last(ids("abcd"))
        text, end = await stream.rest()
    assert (text, list(end.degraded)) == ("abcd", ["output_capped"])
    first, second = mesh.admitted
    assert (first.max_output_tokens, second.max_output_tokens) == (9, 4)
    assert first.request_id != second.request_id == running.submit.request_id
    assert list((await record(mesh)).degraded) == ["output_capped"]
    assert count("output_capped", "served") == before + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_openai_facade_tells_the_flag(mesh: Rig, stream: bool) -> None:
    await plan(mesh, CAP)
    refuse(mesh, lambda admit: admit.max_output_tokens > 4)
    answer = await served(mesh, stream, lambda run: run.last(ids("abcd")), max_tokens=9)
    assert (answer.text, flags(answer)) == ("abcd", "output_capped")


async def test_a_capped_output_need_not_be_longer_than_its_cap(mesh: Rig) -> None:
    await plan(mesh, CAP)
    refuse(mesh, lambda admit: admit.max_output_tokens > 4)

    async def drive(running: Running) -> None:
        assert (running.submit.sampling.max_tokens, running.submit.sampling.min_tokens) == (4, 4)
        await running.last(ids("abcd"))

    answer = await served(mesh, False, drive, max_tokens=9, min_tokens=8)
    assert flags(answer) == "output_capped"


async def test_under_pressure_the_cap_comes_before_any_refusal(mesh: Rig) -> None:
    await plan(mesh, EARLY_CAP)
    normal = mesh.admission.handler

    def pressed(call: Any, context: Any) -> Any:
        reply = normal(call, context)
        if reply.HasField("granted"):
            reply.granted.pressure = 0.6
        return reply

    mesh.admission.handler = pressed
    for _ in range(2):
        async with Stream(mesh, max_tokens=9) as stream:
            await (await taken(mesh.workers[0])).finish()
            await stream.rest()
    assert [admit.max_output_tokens for admit in mesh.admitted] == [9, 4]


async def test_who_floods_has_nobody_elses_output_capped(mesh: Rig) -> None:
    await plan(mesh, EARLY_CAP)
    refuse(mesh, lambda admit: admit.tenant == "closed")
    async with Stream(mesh, max_tokens=9) as flooding:
        await refusal(flooding)
    async with Stream(mesh, FLAGGED, max_tokens=9) as other:
        running = await taken(mesh.workers[0])
        assert running.submit.sampling.max_tokens == 9
        await running.finish()
        assert list((await other.rest())[1].degraded) == []


# ---- smaller_model ----------------------------------------------------------------------------


async def only_the_smaller(mesh: Rig) -> None:
    """There is another model, and room for that one alone."""
    version = registry_pb2.ModelVersion()
    version.CopyFrom(mesh.gateway._catalog.version(MODEL))
    version.name = "mini"
    await mesh.put(version)
    await plan(mesh, CAP, SMALLER)
    normal = mesh.router.handler

    def route(call: Any, context: Any) -> Any:
        if call.resolve.model == "mini":
            return router_pb2.RouterReply(route=router_pb2.Route(model_version="mini@1", pool="pool", tier="fast"))
        return normal(call, context)

    mesh.router.handler = route
    refuse(mesh, lambda admit: admit.model_version == MODEL)


async def test_a_smaller_model_is_what_a_killed_gateways_next_life_bills(tmp_path: Path) -> None:
    """As many requests run and settlements wait as there may be: there is still a slot for what it became."""
    (tmp_path / "model").mkdir()
    model, state, killed = write_byte_tokenizer(tmp_path / "model"), tmp_path / "state", tmp_path / "killed"
    dear = registry_pb2.Price(model="tiny", input_microusd_per_million=10**9, output_microusd_per_million=10**9)
    cheap = registry_pb2.Price(model="mini", input_microusd_per_million=10**6, output_microusd_per_million=2 * 10**6)
    async with rig(model, state, seed=(dear, cheap), max_active=1, max_active_share=1.0) as first:
        limiter = Held(first.quota, lambda call: call.HasField("settle"))
        async with Stream(first, max_tokens=9) as before:
            await (await taken(first.workers[0])).last(ids("ab"))
            await before.rest()
        earlier = (await limiter.question()).settle
        await record(first)
        await only_the_smaller(first)
        async with Stream(first, max_tokens=9) as stream:
            running = await taken(first.workers[0])
            await running.tokens(ids("ab"))
            assert await stream.text(2) == "ab"
            shutil.copytree(state, killed)
            await running.finish()
            await stream.rest()
        limiter.go.set()
        done = await record(first)
    async with rig(model, killed, seed=(dear, cheap), max_active=1) as second:
        lost, settles = await record(second), [await settled(second), await settled(second)]
        assert second.records.empty()
    assert (lost.request_id, lost.outcome, lost.completion_tokens) == (done.request_id, "gateway_lost", 2)
    assert (lost.model_version, lost.arm) == (done.model_version, done.arm) == ("mini@1", "")
    assert list(lost.degraded) == list(done.degraded) == ["output_capped", "smaller_model"]
    assert lost.spend_microusd == done.spend_microusd == 2 * 1 + 2 * 2
    assert {each.request_id: each.model_version for each in settles}.pop(earlier.request_id) == MODEL
    assert sorted(each.model_version for each in settles) == ["mini@1", MODEL]


async def test_a_smaller_model_answers_and_is_what_is_paid_for(mesh: Rig) -> None:
    await only_the_smaller(mesh)
    async with Stream(mesh, max_tokens=9) as stream:
        running = await taken(mesh.workers[0])
        assert (running.submit.model_version, running.submit.sampling.max_tokens) == ("mini@1", 4)
        accepted = (await stream.read()).accepted
        assert accepted.model_version == "mini@1"
        assert list(accepted.degraded) == ["output_capped", "smaller_model"]
        await running.last(ids("ok"))
        await stream.rest()
    settle = await settled(mesh)
    assert (settle.model, settle.model_version, settle.tokens, settle.prompt_tokens) == ("tiny", "mini@1", 4, 2)
    assert [admit.model_version for admit in mesh.admitted] == [MODEL, MODEL, "mini@1"]
    assert (await record(mesh)).model_version == "mini@1"


async def test_a_smaller_model_that_is_not_there_is_passed_over(mesh: Rig) -> None:
    await plan(mesh, SMALLER, DEFAULT)
    refuse(mesh, lambda admit: True)
    before = count("smaller_model", "unfit")
    assert (await chat(mesh)).text == "too busy, sorry"
    assert count("smaller_model", "unfit") == before + 1
    assert len(mesh.admitted) == 1


# ---- cached_answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cached_answer_is_replayed_and_paid_for(mesh: Rig, stream: bool) -> None:
    await plan(mesh, CAP, CACHED)
    first = await served(mesh, stream, lambda run: run.last(ids("abc")), temperature=0)
    paid = await settled(mesh)
    assert (first.text, flags(first)) == ("abc", "")
    refuse(mesh, lambda admit: True)
    again = await chat(mesh, stream=stream, temperature=0, stream_options={"include_usage": True})
    assert (again.text, flags(again)) == ("abc", "cached_answer")
    usage = (again.events[-1] if stream else again.body)["usage"]
    assert usage["completion_tokens"] == 3
    assert (await settled(mesh)).tokens == paid.tokens
    await record(mesh)
    replayed = await record(mesh)
    assert (replayed.outcome, replayed.completion_tokens, list(replayed.degraded)) == ("stop", 3, ["cached_answer"])
    assert mesh.workers[0].submitted.empty()


async def test_a_cached_answer_is_nobody_elses_and_nothing_elses(mesh: Rig) -> None:
    """Another tenant, another question, chance, a changed safety policy: each is refused as if nothing were cached."""
    await plan(mesh, CACHED)
    async with Stream(mesh, temperature=0.0) as stream:
        await (await taken(mesh.workers[0])).last(ids("abc"))
        await stream.rest()
    refuse(mesh, lambda admit: True)
    async with Stream(mesh, temperature=0.0) as same:
        assert (await same.rest())[0] == "abc"
    async with Stream(mesh, FLAGGED, temperature=0.0) as other:
        assert (await refusal(other)).reason is Reason.REJECTED_QUEUE_FULL
    for parameters in ({"temperature": 0.0, "max_tokens": 3}, {"temperature": 0.5}, {"temperature": 0.0, "n": 2}):
        async with Stream(mesh, **parameters) as different:  # type: ignore[arg-type]
            assert (await refusal(different)).reason is Reason.REJECTED_QUEUE_FULL
    await mesh.put(registry_pb2.SafetyFloor(policies=["default@2"]))
    async with asyncio.timeout(10):
        while not mesh.gateway._catalog.snapshot.safety_floors:  # noqa: ASYNC110 - a watch of the store
            await asyncio.sleep(0.01)
    async with Stream(mesh, temperature=0.0) as stale:
        assert (await refusal(stale)).reason is Reason.REJECTED_QUEUE_FULL


async def test_an_answer_that_was_cut_off_is_not_kept(mesh: Rig) -> None:
    await plan(mesh, CACHED)
    async with Stream(mesh, temperature=0.0) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
    assert (await record(mesh)).outcome == "cancelled"
    refuse(mesh, lambda admit: True)
    async with Stream(mesh, temperature=0.0) as again:
        assert (await refusal(again)).reason is Reason.REJECTED_QUEUE_FULL


async def test_an_altered_answer_is_not_kept(mesh: Rig) -> None:
    """It was capped: later, for the same question, it is not what was asked for."""
    await plan(mesh, CAP, CACHED)
    refuse(mesh, lambda admit: admit.max_output_tokens > 4)
    async with Stream(mesh, temperature=0.0, max_tokens=9) as stream:
        await (await taken(mesh.workers[0])).last(ids("abcd"))
        assert list((await stream.rest())[1].degraded) == ["output_capped"]
    refuse(mesh, lambda admit: True)
    async with Stream(mesh, temperature=0.0, max_tokens=9) as again:
        assert (await refusal(again)).reason is Reason.REJECTED_QUEUE_FULL


# ---- default_answer ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_default_answer_is_complete_and_free(mesh: Rig, stream: bool) -> None:
    await plan(mesh, DEFAULT)
    refuse(mesh, lambda admit: True)
    answer = await chat(mesh, stream=stream, stream_options={"include_usage": True}, n=2)
    assert (answer.text, flags(answer)) == ("too busy, sorry", "default_answer")
    assert (answer.events[-1] if stream else answer.body)["usage"]["total_tokens"] == 0
    finishes = [c["finish_reason"] for event in (answer.events if stream else [answer.body]) for c in event["choices"]]
    assert [finish for finish in finishes if finish] == ["stop", "stop"]
    assert (await settled(mesh)).tokens == 0
    ended = await record(mesh)
    assert (ended.outcome, list(ended.degraded)) == ("stop", ["default_answer"])


async def test_a_default_answer_over_the_native_stream(mesh: Rig) -> None:
    await plan(mesh, CAP, DEFAULT)
    refuse(mesh, lambda admit: True)
    async with Stream(mesh, max_tokens=9) as stream:
        accepted = (await stream.read()).accepted
        text, end = await stream.rest()
    assert (text, list(accepted.degraded), list(end.degraded)) == (
        "too busy, sorry",
        ["default_answer"],
        ["default_answer"],
    )
    assert [admit.max_output_tokens for admit in mesh.admitted] == [9, 4]
    told = end.breakdown
    stages = [to_seconds(each) for each in (told.preprocess, told.decide, told.queue)]
    assert sum(stages) == pytest.approx(to_seconds(told.time_to_first_token), abs=1e-6)


# ---- cpu_fallback -----------------------------------------------------------------------------


async def test_the_same_version_runs_in_another_pool(mesh: Rig) -> None:
    await plan(mesh, CPU)
    assert mesh.gateway._catalog.pools() == {"pool", "cpu"}  # admission's streams are open for both
    refuse(mesh, lambda admit: admit.pool == "pool")
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        assert list((await stream.read()).accepted.degraded) == ["cpu_fallback"]
        await running.last(ids("slow"))
        text, _ = await stream.rest()
    assert text == "slow"
    assert [(admit.pool, admit.model_version) for admit in mesh.admitted] == [("pool", MODEL), ("cpu", MODEL)]


async def test_a_step_that_cannot_serve_it_is_no_fault_of_the_caller(mesh: Rig) -> None:
    """The other pool's workers are simulated, so they offer no structure; the asked one's do."""
    await plan(mesh, CPU)
    refuse(mesh, lambda admit: admit.pool == "pool")
    refusing = mesh.admission.handler

    def simulated(call: Any, context: Any) -> Any:
        reply = refusing(call, context)
        if reply.HasField("granted"):
            reply.granted.simulated = True
        return reply

    mesh.admission.handler = simulated
    async with Stream(mesh, structured_output=inference_pb2.StructuredOutput(regex="[ab]+")) as stream:
        assert (await refusal(stream)).reason is Reason.REJECTED_QUEUE_FULL
    released = await asyncio.wait_for(mesh.released.get(), 10)
    assert (released.request_id, released.unused) == (mesh.admitted[1].request_id, True)
    assert mesh.released.empty()


# ---- admission is away ------------------------------------------------------------------------


async def test_with_a_ladder_nobody_waits_long_for_an_admission_that_is_away(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    settings = {"max_local_grants": 0, "decide_timeout": 0.2}
    async with rig(write_byte_tokenizer(model), tmp_path / "state", **settings) as mesh:
        await plan(mesh, DEFAULT)
        await mesh.admission.stop()
        async with Stream(mesh) as stream:
            text, end = await stream.rest()
        assert (text, list(end.degraded)) == ("too busy, sorry", ["default_answer"])


# ---- where the ladder is not taken ------------------------------------------------------------


async def test_when_no_step_helps_the_first_refusal_is_told(mesh: Rig) -> None:
    await plan(mesh, CAP, CPU)
    refuse(mesh, lambda admit: admit.max_output_tokens <= 4, WeirError(Reason.EVICTED_SHED, "shed"))
    refuse(mesh, lambda admit: admit.max_output_tokens > 4)
    async with Stream(mesh, max_tokens=9) as stream:
        error = await refusal(stream)
    assert (error.reason, error.retry_after) == (Reason.REJECTED_QUEUE_FULL, 3.0)
    assert len(mesh.admitted) == 3
    assert (await settled(mesh)).tokens == 0


@pytest.mark.parametrize("reason", [Reason.EVICTED_DEADLINE, Reason.INVALID_REQUEST, Reason.QUOTA_TOKENS])
async def test_other_refusals_of_admission_end_it(mesh: Rig, reason: Reason) -> None:
    await plan(mesh, CAP, DEFAULT)
    refuse(mesh, lambda admit: True, WeirError(reason, "no"))
    async with Stream(mesh, max_tokens=9) as stream:
        assert (await refusal(stream)).reason is reason
    assert len(mesh.admitted) == 1


async def test_a_quota_is_not_escaped_down_the_ladder(mesh: Rig) -> None:
    await plan(mesh, DEFAULT)
    mesh.deny(WeirError(Reason.QUOTA_TOKENS, "none left"))
    async with Stream(mesh) as stream:
        assert (await refusal(stream)).reason is Reason.QUOTA_TOKENS
    assert mesh.admitted == []
