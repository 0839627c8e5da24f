"""What plans and objectives of the registry become on the way to admission and the worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf import duration_pb2
from prometheus_client import REGISTRY
from weir.admission.v1 import admission_pb2
from weir.inference.v1 import inference_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2
from weir.worker.v1 import worker_pb2

from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from services.gateway.policy.prefix import BLOCK
from services.gateway.request import queue_class_of
from tests.support.leaves import Rig, Running
from tests.support.native_stream import Stream, ids, taken
from tests.support.openai_call import chat

PAID, FREE = registry_pb2.PLAN_PAID, registry_pb2.PLAN_FREE
OVER, BATCH = admission_pb2.QUEUE_CLASS_OVER_QUOTA, admission_pb2.QUEUE_CLASS_BATCH


async def known(mesh: Rig, revision_of: Any) -> None:
    """Until the gateway has what was written last."""
    async with asyncio.timeout(10):
        while not revision_of(mesh.gateway._catalog.snapshot):  # noqa: ASYNC110 - a watch of the store
            await asyncio.sleep(0.01)


async def one(mesh: Rig, **parameters: Any) -> tuple[Running, inference_pb2.Accepted]:
    """A request that ends at once."""
    async with Stream(mesh, **parameters) as stream:
        running = await taken(mesh.workers[0])
        accepted = (await stream.read()).accepted
        await running.last(ids("x"))
        await stream.rest()
    return running, accepted


@pytest.mark.parametrize(
    ("plan", "batch", "over", "expected"),
    [
        (PAID, False, False, admission_pb2.QUEUE_CLASS_PAID),
        (FREE, False, False, admission_pb2.QUEUE_CLASS_FREE),
        (PAID, False, True, OVER),
        (FREE, False, True, OVER),
        (PAID, True, False, BATCH),
        (FREE, True, True, BATCH),
    ],
)
def test_a_hint_lowers_the_class_and_never_raises_it(
    plan: registry_pb2.Plan, batch: bool, over: bool, expected: admission_pb2.QueueClass
) -> None:
    assert queue_class_of(registry_pb2.Tenant(plan=plan), batch=batch, over_quota=over) == expected


async def test_the_tenants_own_plan_weighs_in(mesh: Rig) -> None:
    await mesh.put(registry_pb2.PlanPolicy(id="gold", weight=3.0, kv_share=0.25))
    await mesh.put(registry_pb2.Tenant(id="closed", plan=PAID, weight=2.0, plan_policy="gold"))
    await known(mesh, lambda snapshot: snapshot.tenants["closed"].plan_policy)
    await one(mesh)
    admit = mesh.admitted[0]
    assert (admit.weight, admit.kv_share, admit.queue_class) == (6.0, 0.25, admission_pb2.QUEUE_CLASS_PAID)


async def test_without_a_policy_a_plan_is_plain(mesh: Rig) -> None:
    running, _ = await one(mesh)
    admit = mesh.admitted[0]
    assert (admit.weight, admit.kv_share, admit.HasField("ttft_target")) == (1.0, 0.0, False)
    assert running.submit.priority == 0
    assert not mesh.reserved[0].over_quota_allowed


async def test_what_the_quota_is_told(mesh: Rig) -> None:
    await one(mesh, max_tokens=5, n=1)
    reserve = mesh.reserved[0]
    assert (reserve.tokens, reserve.prompt_tokens, reserve.max_output_tokens, reserve.choices) == (7, 2, 5, 1)
    assert (reserve.model, reserve.model_version) == ("tiny", "tiny@1")
    settle = await asyncio.wait_for(mesh.settled.get(), 10)
    assert (settle.tokens, settle.prompt_tokens, settle.model_version) == (3, 2, "tiny@1")


async def test_beyond_its_quota_a_request_waits_behind_the_others(mesh: Rig) -> None:
    await mesh.put(registry_pb2.PlanPolicy(id="paid", over_quota=registry_pb2.OVER_QUOTA_SERVE_IDLE))
    await known(mesh, lambda snapshot: snapshot.plans)
    normal = mesh.quota.handler

    def over(call: Any, context: Any) -> Any:
        reply = normal(call, context)
        if call.HasField("reserve") and call.reserve.over_quota_allowed:
            reply.reserved.over_quota = True
        return reply

    mesh.quota.handler = over
    running, accepted = await one(mesh)
    assert list(accepted.degraded) == ["over_quota"]
    assert (mesh.admitted[0].queue_class, running.submit.priority) == (OVER, 5)
    assert list((await asyncio.wait_for(mesh.records.get(), 10)).request.degraded) == ["over_quota"]


# ---- objectives -------------------------------------------------------------------------------


def met(objective: str, value: str) -> float:
    labels = {"route": "generate", "tier": "fast", "objective": objective, "outcome": value}
    return REGISTRY.get_sample_value("weir_slo_events_total", labels) or 0.0


async def declare(mesh: Rig, tier: str, **seconds: float) -> None:
    durations = {name: duration_pb2.Duration(nanos=int(value * 1e9) % 10**9, seconds=int(value))
                 for name, value in seconds.items()}  # fmt: skip
    await mesh.put(registry_pb2.Slo(route="generate", tier=tier, **durations))  # type: ignore[arg-type]
    await known(mesh, lambda snapshot: ("generate", tier) in snapshot.slos)


async def test_admission_hears_what_is_left_of_the_first_tokens_time(mesh: Rig) -> None:
    await declare(mesh, "*", ttft_p95=60, e2e_p99=90)
    before = met("ttft_p95", "good"), met("e2e_p99", "good")
    await one(mesh)
    assert 0 < to_seconds(mesh.admitted[0].ttft_target) < 60
    assert (await asyncio.wait_for(mesh.records.get(), 10)).request.outcome == "stop"
    assert (met("ttft_p95", "good"), met("e2e_p99", "good")) == (before[0] + 1, before[1] + 1)


async def test_what_is_not_streamed_is_judged_by_the_workers_first_token(mesh: Rig) -> None:
    """Its text leaves in groups, or at the end: nobody reads the first one sooner."""
    await declare(mesh, "*", ttft_p95=60)
    before = met("ttft_p95", "good"), met("ttft_p95", "bad")
    for after in (0, 61):
        asking = asyncio.ensure_future(chat(mesh))
        running = await taken(mesh.workers[0])
        frame = worker_pb2.StepFrame()
        frame.first.add(handle=running.submit.handle, after=duration_pb2.Duration(seconds=after))
        await running.stream.send(worker_pb2.SessionResponse(step=frame))
        await running.last(ids("x"))
        await asking
    assert (met("ttft_p95", "good"), met("ttft_p95", "bad")) == (before[0] + 1, before[1] + 1)


async def test_the_tiers_own_objectives_come_before_those_for_all(mesh: Rig) -> None:
    await declare(mesh, "*", ttft_p95=60)
    await declare(mesh, "fast", ttft_p95=0.000001)
    before = met("ttft_p95", "bad")
    await one(mesh)
    assert to_seconds(mesh.admitted[0].ttft_target) == 0.001  # late already
    assert (await asyncio.wait_for(mesh.records.get(), 10)).request.outcome == "stop"
    assert met("ttft_p95", "bad") == before + 1


async def test_a_default_answer_meets_no_objective(mesh: Rig) -> None:
    await declare(mesh, "*", ttft_p95=60, e2e_p95=60)
    step = registry_pb2.DegradationStep(default_answer=registry_pb2.DefaultAnswer(text="busy"))
    await mesh.put(registry_pb2.PlanPolicy(id="paid", ladder=[step]))
    await known(mesh, lambda snapshot: snapshot.plans)
    full = WeirError(Reason.REJECTED_QUEUE_FULL, "full")
    mesh.admission.handler = lambda call, context: admission_pb2.AdmissionReply(rejected=full.to_rejection())
    before = met("ttft_p95", "good"), met("e2e_p95", "good")
    assert (await chat(mesh)).text == "busy"
    assert (met("ttft_p95", "good"), met("e2e_p95", "good")) == before


async def test_nobody_waits_for_batch(mesh: Rig) -> None:
    await declare(mesh, "*", ttft_p95=60)
    stream = Stream(mesh)
    stream._spec.priority = inference_pb2.PRIORITY_BATCH
    async with stream:
        running = await taken(mesh.workers[0])
        await running.last(ids("x"))
        await stream.rest()
    assert mesh.admitted[0].queue_class == BATCH
    assert not mesh.admitted[0].HasField("ttft_target")
    assert running.submit.priority == 10


@pytest.mark.parametrize(("tier", "expected"), [("flex", BATCH), ("priority", 1), (None, 1)])
async def test_openais_flexible_tier_is_batch(mesh: Rig, tier: str | None, expected: int) -> None:
    asking = asyncio.ensure_future(chat(mesh, service_tier=tier))
    await (await taken(mesh.workers[0])).last(ids("x"))
    assert (await asking).text == "x"
    assert mesh.admitted[0].queue_class == expected


# ---- prefixes ---------------------------------------------------------------------------------


async def test_admission_gets_names_of_the_prompts_beginnings(mesh: Rig) -> None:
    version = registry_pb2.ModelVersion()
    version.CopyFrom(mesh.gateway._catalog.version("tiny@1"))
    version.context_length = 8 * BLOCK
    await mesh.put(version)
    await known(mesh, lambda snapshot: snapshot.model_versions["tiny@1"].context_length > 64)
    for tail in ("a", "b"):
        await one(mesh, token_ids=[1] * BLOCK * 2 + ids(tail))
    first, second = mesh.admitted
    assert (len(first.prefix_hashes), first.prefix_block) == (2, BLOCK)
    assert first.prefix_hashes == second.prefix_hashes


# ---- interruptions ----------------------------------------------------------------------------


async def test_an_interrupted_stream_goes_on_token_by_token_as_often_as_it_must(mesh: Rig) -> None:
    """Three times, one more than migrations after faults are allowed."""
    reports: list[Any] = []
    normal = mesh.router.handler

    def watch(call: Any, context: Any) -> Any:
        if call.HasField("report"):
            reports.extend(call.report.counts)
        return normal(call, context)

    mesh.router.handler = watch
    said = "abcdefgh"
    async with Stream(mesh, max_tokens=8, temperature=0.7) as stream:
        running = await taken(mesh.workers[0])
        seed = running.submit.sampling.seed
        for at in range(0, 6, 2):
            await running.tokens(ids(said[at : at + 2]))
            await stream.text(2)
            await running.refuse(Reason.PREEMPTED)
            running = await taken(mesh.workers[0])
            assert running.submit.prompt == ids("hi" + said[: at + 2])
            assert running.submit.resumed_tokens == at + 2
            assert running.submit.sampling.max_tokens == 8 - at - 2
            assert running.submit.sampling.seed == seed
        await running.last(ids(said[6:]), worker_pb2.FINISH_REASON_LENGTH)
        _, end = await stream.rest()
    assert stream.of(0) == said
    assert end.usage.completion_tokens == 8
    assert [admit.resumed_tokens for admit in mesh.admitted] == [0, 2, 4, 6]
    assert [admit.prompt_tokens for admit in mesh.admitted] == [2, 4, 6, 8]
    assert [admit.max_output_tokens for admit in mesh.admitted] == [8, 6, 4, 2]
    assert all(not admit.exclude_workers for admit in mesh.admitted)
    released = [await asyncio.wait_for(mesh.released.get(), 10) for _ in range(4)]
    assert [(one.output_tokens, one.failed) for one in released] == [(2, False)] * 4
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 10
    async with asyncio.timeout(10):
        while not reports:  # noqa: ASYNC110 - outcomes are reported twice a second
            await asyncio.sleep(0.01)
    assert [(one.successes, one.failures) for one in reports] == [(1, 0)]


@pytest.mark.parametrize(
    ("told", "finish", "reason"),
    [
        (Reason.EVICTED_SHED, inference_pb2.FINISH_REASON_ERROR, "PREEMPTED"),
        (Reason.EVICTED_DEADLINE, inference_pb2.FINISH_REASON_DEADLINE, "DEADLINE_EXCEEDED"),
    ],
)
async def test_an_interrupted_stream_that_finds_no_place_ends_and_pays_for_what_it_got(
    mesh: Rig, told: Reason, finish: int, reason: str
) -> None:
    normal = mesh.admission.handler

    def refuse(call: Any, context: Any) -> Any:
        if call.HasField("admit") and call.admit.resumed_tokens:
            return admission_pb2.AdmissionReply(rejected=WeirError(told, "no place").to_rejection())
        return normal(call, context)

    mesh.admission.handler = refuse
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
        await running.refuse(Reason.PREEMPTED)
        _, end = await stream.rest()
    assert (end.finish_reason, end.error_reason) == (finish, reason)
    settle: quota_pb2.Settle = await asyncio.wait_for(mesh.settled.get(), 10)
    assert settle.tokens == 4


async def test_a_release_tells_what_came_of_the_grant(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[1], tokens=ids("a"))
        frame.first.add(
            handle=running.submit.handle, cached_prompt_tokens=1, after=duration_pb2.Duration(nanos=5 * 10**8)
        )
        await running.stream.send(worker_pb2.SessionResponse(step=frame))
        await stream.text(1)
        await mesh.workers[0].stop()
        await (await taken(mesh.workers[1])).last(ids("b"))
        await stream.rest()
    lost, last = [await asyncio.wait_for(mesh.released.get(), 10) for _ in range(2)]
    assert (lost.failed, lost.output_tokens, lost.cached_prompt_tokens) == (True, 1, 1)
    assert to_seconds(lost.first_token) == 0.5
    assert (last.failed, last.output_tokens, last.HasField("first_token")) == (False, 1, False)
