"""What a gateway counts of requests under a rollout, and how every controller learns of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import duration_pb2
from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError
from libs.outcomes import ArmKey
from libs.rpc import make_server
from libs.rpc.server import bind
from tests.support.canary import CANARY, CANDIDATE, begin, end, rollout, seen
from tests.support.leaves import MODEL, Rig
from tests.support.native_stream import Stream, ids, refusal, taken

KEY = ArmKey("tiny", "r1", int(CANARY), 0, "canary")
Streams = asyncio.Queue[asyncio.Queue[rollout_pb2.ReportOutcomesRequest]]


class Controller(rollout_pb2_grpc.RolloutServiceServicer):
    """Hears reports; one queue per stream."""

    def __init__(self) -> None:
        self.streams: Streams = asyncio.Queue()

    async def ReportOutcomes(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        frames: asyncio.Queue[rollout_pb2.ReportOutcomesRequest] = asyncio.Queue()
        self.streams.put_nowait(frames)
        answer = rollout_pb2.ReportOutcomesResponse(next=duration_pb2.Duration(nanos=20_000_000))
        async for frame in request_iterator:
            frames.put_nowait(frame)
            await context.write(answer)


@contextlib.asynccontextmanager
async def controller(mesh: Rig, instance: str = "rollout-0", port: int = 0) -> AsyncIterator[tuple[Controller, int]]:
    """One that is registered; it leaves as if killed."""
    servicer, server = Controller(), make_server()
    rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server)
    port = bind(server, f"127.0.0.1:{port}", tls=None)
    await server.start()
    await mesh.put(registry_pb2.Endpoint(service="rollout", instance=instance, address=f"127.0.0.1:{port}"))
    try:
        yield servicer, port
    finally:
        await server.stop(grace=None)


async def heard(queue: asyncio.Queue[Any]) -> Any:
    return await asyncio.wait_for(queue.get(), 10)


async def until(frames: asyncio.Queue[rollout_pb2.ReportOutcomesRequest], requests: int) -> rollout_pb2.ArmOutcomes:
    """The canary's entry, once it has so many requests."""
    while True:
        frame = await heard(frames)
        for arm in frame.arms:
            if arm.arm == "canary" and arm.requests == requests:
                return arm


async def one(mesh: Rig, *, version: str = CANDIDATE) -> None:
    """A request of two tokens that ends well."""
    async with Stream(mesh, max_tokens=8) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == version
        await running.tokens(ids("a"))
        await stream.text(1)
        await running.last(ids("b"))
        await stream.rest()


def counts(mesh: Rig, key: ArmKey = KEY) -> rollout_pb2.ArmOutcomes:
    found = mesh.gateway._outcomes.table.arm(key)
    assert found is not None
    return found


def began(mesh: Rig, key: ArmKey = KEY) -> tuple[int, int, int]:
    """Began, ended, failed."""
    found = counts(mesh, key).cohorts
    return sum(found.started), sum(found.ended), sum(found.errors)


def judged(mesh: Rig) -> dict[str, tuple[int, int]]:
    """Good and bad events, by objective."""
    found = mesh.gateway._outcomes.table.objectives("generate", "fast")
    assert found is not None
    return {name: (event.good, event.bad) for name, event in found.objectives.items()}


async def test_f4_a_request_that_hangs_is_told_from_its_beginning(mesh: Rig) -> None:
    await begin(mesh)
    async with controller(mesh) as (found, _):
        stream = await heard(found.streams)
        await heard(stream)
        async with Stream(mesh):
            await taken(mesh.workers[0])
            told = await until(stream, 0)
            assert (list(told.cohorts.started), list(told.cohorts.ended)) == ([0, 1], [0, 0])
            assert told.cohorts.longest > 0.0
            assert {metric: sum(sums.counts) for metric, sums in told.keys.items()} == {"errors": 1, "broken": 1}
    assert counts(mesh).requests == 0


async def test_f5_a_callers_requests_are_of_one_bucket(mesh: Rig) -> None:
    await begin(mesh)
    for _ in range(3):
        await one(mesh)
    keys = counts(mesh).keys
    assert sorted(keys["errors"].counts)[-2:] == [0, 3]
    assert sorted(keys["ttft"].counts)[-2:] == [0, 3]


async def test_a_request_counts_once_with_its_times_tokens_and_cost(mesh: Rig) -> None:
    await begin(mesh)
    await mesh.put(registry_pb2.Slo(route="generate", tier="*", availability=0.99, stream_completion=0.99))
    await mesh.put(
        registry_pb2.Price(
            model=CANDIDATE,
            input_microusd_per_million=9_000_000,
            input_cost_microusd_per_million=100_000,
            output_cost_microusd_per_million=500_000,
        )
    )
    await seen(mesh, lambda snapshot: snapshot.prices)
    await one(mesh)
    found = counts(mesh)
    assert (found.requests, found.errors, found.streams, found.completed) == (1, 0, 1, 1)
    assert (sum(found.ttft.counts), found.cost.tokens) == (1, 4)
    assert found.cost.cost == pytest.approx(2 * 0.1 + 2 * 0.5)
    assert judged(mesh) == {"availability": (1, 0), "stream_completion": (1, 0)}
    assert (found.model_version, found.route, found.tier) == (CANDIDATE, "generate", "fast")
    assert {name: (event.good, event.bad) for name, event in found.objectives.items()} == judged(mesh)


async def test_what_is_under_no_rollout_counts_for_objectives_alone(mesh: Rig) -> None:
    await mesh.put(registry_pb2.Slo(route="generate", tier="*", availability=0.99))
    await seen(mesh, lambda snapshot: snapshot.slos)
    await one(mesh, version=MODEL)
    assert (len(mesh.gateway._outcomes.table), judged(mesh)) == (0, {"availability": (1, 0)})


async def test_faults_count_and_callers_who_leave_do_not(mesh: Rig) -> None:
    await begin(mesh)
    async with Stream(mesh):
        await taken(mesh.workers[0])
    await asyncio.wait_for(mesh.records.get(), 10)
    assert began(mesh) == (1, 1, 0)
    assert not counts(mesh).requests
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.finish(worker_pb2.FINISH_REASON_ERROR)
        await stream.rest()
    assert (counts(mesh).requests, counts(mesh).errors, counts(mesh).streams) == (1, 1, 0)


async def test_a_stream_that_moved_counts_once_on_the_arm_that_it_was_routed_to(mesh: Rig) -> None:
    await begin(mesh, on_rollback=registry_pb2.IN_FLIGHT_MIGRATE)
    async with Stream(mesh, max_tokens=8) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("a"))
        await stream.text(1)
        await running.refuse(Reason.PREEMPTED)
        again = await taken(mesh.workers[0])
        await end(mesh, registry_pb2.ROLLOUT_PHASE_ROLLED_BACK, on_rollback=registry_pb2.IN_FLIGHT_MIGRATE)
        rest = await taken(mesh.workers[0])
        assert (again.submit.model_version, rest.submit.model_version) == (CANDIDATE, MODEL)
        await rest.last(ids("b"))
        await stream.rest()
    table = mesh.gateway._outcomes.table
    assert (counts(mesh).requests, counts(mesh).completed, len(table)) == (1, 1, 1)


@pytest.mark.parametrize(("limit", "blamed"), [("queue", False), ("version_share", True)])
async def test_a_full_pool_is_blamed_on_an_arm_only_by_its_own_share(mesh: Rig, limit: str, blamed: bool) -> None:
    await begin(mesh)
    await mesh.put(registry_pb2.Slo(route="generate", tier="*", availability=0.99))
    await seen(mesh, lambda snapshot: snapshot.slos)
    full = WeirError(Reason.REJECTED_QUEUE_FULL, "full", limit=limit)
    mesh.admission.handler = lambda call, context: admission_pb2.AdmissionReply(rejected=full.to_rejection())
    async with Stream(mesh) as stream:
        assert (await refusal(stream)).reason is Reason.REJECTED_QUEUE_FULL
    assert judged(mesh) == {"availability": (0, 1)}
    assert (began(mesh), counts(mesh).requests) == ((1, 1, int(blamed)), int(blamed))


@pytest.mark.parametrize("baseline", [True, False])
async def test_an_arm_that_no_worker_has_is_blamed_unless_its_baseline_has_none_either(
    mesh: Rig, baseline: bool
) -> None:
    await begin(mesh)
    served = [MODEL] if baseline else []
    await mesh.put(registry_pb2.Endpoint(service="worker", instance="w", zone="zone-a", model_versions=served))
    await seen(mesh, lambda snapshot: snapshot.endpoints_of("worker"))
    gone = WeirError(Reason.NO_WORKERS, "No worker serves tiny@2.", limit="workers")
    mesh.admission.handler = lambda call, context: admission_pb2.AdmissionReply(rejected=gone.to_rejection())
    async with Stream(mesh) as stream:
        assert (await refusal(stream)).reason is Reason.NO_WORKERS
    assert (began(mesh), counts(mesh).requests) == ((1, 1, int(baseline)), int(baseline))


async def test_log_probabilities_are_asked_for_and_shown_to_nobody(mesh: Rig) -> None:
    await begin(mesh)
    async with Stream(mesh, max_tokens=8) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.sampling.HasField("logprobs")
        assert running.submit.sampling.logprobs == 0
        frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[2], tokens=ids("ab"))
        entry = frame.logprobs.add(handle=running.submit.handle)
        entry.tokens.add(logprob=-1.0)
        entry.tokens.add(logprob=-2.0)
        await running.stream.send(worker_pb2.SessionResponse(step=frame))
        await running.finish()
        text, _ = await stream.rest()
    assert (text, stream.logprobs()) == ("ab", "")
    scores = counts(mesh).scores["mean_logprob"]
    assert (scores.count, scores.sum) == (1, -1.5)


async def test_every_controller_hears_all_first_and_then_what_changed(mesh: Rig) -> None:
    await begin(mesh)
    await one(mesh)
    async with controller(mesh) as (first, port), controller(mesh, "rollout-1") as (second, _):
        streams = [await heard(one_of.streams) for one_of in (first, second)]
        frames = [await heard(stream) for stream in streams]
        assert [[arm.requests for arm in frame.arms] for frame in frames] == [[1], [1]]
        assert {(frame.source, frame.incarnation) for frame in frames} == {("gateway-0", frames[0].incarnation)}
        await one(mesh)
        for stream in streams:
            assert (await until(stream, 2)).ttft.counts
    # One that comes back, at the same place, hears all again: from the same life of the gateway.
    async with controller(mesh, port=port) as (back, _):
        frame = await heard(await heard(back.streams))
        assert (frame.incarnation, [arm.requests for arm in frame.arms]) == (frames[0].incarnation, [2])


async def test_nothing_is_sent_while_nothing_changes(mesh: Rig) -> None:
    await begin(mesh)
    async with controller(mesh) as (found, _):
        stream = await heard(found.streams)
        opening = await heard(stream)
        assert (list(opening.arms), opening.source) == ([], "gateway-0")
        await one(mesh)
        told = await until(stream, 1)
        assert (told.alias, told.step, told.phase) == ("tiny", 0, CANARY)
        await mesh.put(rollout(step=1))
        await seen(mesh, lambda snapshot: snapshot.rollouts["tiny"].state.step == 1)
        await one(mesh)
        changed = await until(stream, 1)
        assert (changed.step, changed.requests, list(changed.cohorts.ended)) == (1, 1, [0, 1])
        assert stream.empty()


async def test_e7_a_candidate_that_hangs_is_blamed_by_name(mesh: Rig) -> None:
    """Callers give their own time; what hangs until it is over must not look like callers who left."""
    await begin(mesh)
    async with Stream(mesh, seconds=1.5) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.model_version == CANDIDATE
        await stream.rest()
    arm = mesh.gateway._outcomes.table.arm(KEY)
    assert arm is not None
    assert (arm.model_version, arm.requests, arm.errors) == (CANDIDATE, 1, 1)
