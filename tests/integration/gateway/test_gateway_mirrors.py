"""Mirrored requests through a whole gateway: what they cost users, and what is learned from them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from weir.admission.v1 import admission_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2
from weir.router.v1 import router_pb2
from weir.worker.v1 import worker_pb2

from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from libs.mux import CallContext
from libs.outcomes import ArmKey
from services.admission.coordinator import Coordinator
from services.admission.worker_session import WorkerSession
from tests.support.admission_limits import steady
from tests.support.leaves import MODEL, FakeWorker, Held, Rig, Running
from tests.support.native_stream import Stream, ids, taken

SHADOW = admission_pb2.QUEUE_CLASS_SHADOW
CANDIDATE = "tiny@2"
COPY = ArmKey("tiny", "rollout-1", registry_pb2.ROLLOUT_PHASE_SHADOW, 0, "canary", mirrored=True)


async def eventually(condition: Callable[[], Any]) -> None:
    """Until it is true: what happens between a gateway and its leaves has no one event."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def phase_of(mesh: Rig, phase: int) -> registry_pb2.Rollout:
    rollout = registry_pb2.Rollout(alias="tiny", id="rollout-1", baseline=MODEL)
    rollout.arms.add(name="canary", model_version=CANDIDATE)
    rollout.shadow.share = 10_000
    rollout.state.phase = phase  # type: ignore[assignment]
    return rollout


@pytest.fixture
async def shadowed(mesh: Rig) -> Rig:
    """A gateway all of whose requests are mirrored; copies run on worker-b, users' requests on worker-a."""
    version = registry_pb2.ModelVersion()
    version.CopyFrom(mesh.gateway._catalog.snapshot.model_versions[MODEL])
    version.version, version.digest, version.pool = "2", "e" * 64, "shadow-pool"
    await mesh.put(version)
    await mesh.put(phase_of(mesh, registry_pb2.ROLLOUT_PHASE_SHADOW))
    await eventually(lambda: "tiny" in mesh.gateway._catalog.snapshot.rollouts)
    resolve, admit = mesh.router.handler, mesh.admission.handler

    def route(call: Any, context: CallContext) -> Any:
        reply = resolve(call, context)
        if reply.HasField("route"):
            reply.route.arm, reply.route.rollout_id = "baseline", "rollout-1"
            target = {"model_version": CANDIDATE, "arm": "canary", "pool": "shadow-pool", "tier": "fast"}
            reply.route.mirror.CopyFrom(router_pb2.Mirror(**target))  # type: ignore[arg-type]
        return reply

    def place(call: Any, context: CallContext) -> Any:
        reply = admit(call, context)
        if call.admit.queue_class == SHADOW:
            reply.granted.worker = "worker-b"
            reply.granted.address = f"127.0.0.1:{mesh.workers[1].port}"
        return reply

    mesh.router.handler, mesh.admission.handler = route, place
    return mesh


def copies(mesh: Rig) -> list[admission_pb2.Admit]:
    """Asked of admission."""
    return [asked for asked in mesh.admitted if asked.queue_class == SHADOW]


def counts(mesh: Rig) -> rollout_pb2.ArmOutcomes:
    """What is known of the copies' arm."""
    found = mesh.gateway._outcomes.table.arm(COPY)
    assert found is not None
    return found


def fate(name: str) -> float:
    return REGISTRY.get_sample_value("weir_gateway_shadow_total", {"outcome": name}) or 0.0


async def answered(mesh: Rig, *, copy: str, users: str = "abc", **parameters: Any) -> Running:
    """A user's request and its copy, both to their ends; returns the copy's sequence."""
    async with Stream(mesh, **parameters) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids(users[:1]))
        assert await stream.text(1) == users[:1]
        shadow = await taken(mesh.workers[1])
        await shadow.last(ids(copy))
        await running.last(ids(users[1:]))
        await stream.rest()
    await eventually(lambda: mesh.gateway._mirrors.active == 0)
    return shadow


async def test_nothing_is_mirrored_before_the_users_first_text(shadowed: Rig) -> None:
    async with Stream(shadowed) as stream:
        running = await taken(shadowed.workers[0])
        await stream.read()
        assert copies(shadowed) == []
        await running.last(ids("abc"))
        await stream.rest()
    copy = await taken(shadowed.workers[1])
    await copy.last(ids("abc"))


async def test_a_copy_asks_the_same_in_a_name_of_its_own(shadowed: Rig) -> None:
    copy = await answered(shadowed, copy="abc", temperature=0.5, max_tokens=5)
    (asked,) = copies(shadowed)
    users = shadowed.admitted[0]
    assert (asked.tenant, asked.model_version, asked.pool) == ("shadow/closed", CANDIDATE, "shadow-pool")
    assert (asked.version_share, asked.prompt_tokens) == (0.5, users.prompt_tokens)
    assert list(copy.submit.prompt) == ids("hi")
    assert (copy.submit.sampling.temperature, copy.submit.sampling.max_tokens) == (0.5, 5)
    assert copy.submit.sampling.HasField("seed")
    reserved = {each.tenant: each for each in shadowed.reserved}
    assert (reserved["shadow"].model, reserved["shadow"].model_version) == ("tiny", CANDIDATE)


async def test_users_alone_are_metered_and_recorded(shadowed: Rig) -> None:
    await answered(shadowed, copy="abcdef")
    settled = [await asyncio.wait_for(shadowed.settled.get(), 10) for _ in range(2)]
    assert {each.tenant: each.tokens for each in settled} == {"closed": 2 + 3, "shadow": 2 + 6}
    record = (await asyncio.wait_for(shadowed.records.get(), 10)).request
    assert (record.tenant, record.completion_tokens) == ("closed", 3)
    assert shadowed.records.empty()


@pytest.mark.parametrize(("copy", "exact", "length"), [("abc", 1.0, 1.0), ("abX", 0.0, 1.0), ("ab", 0.0, 2 / 3)])
async def test_what_the_candidate_answers_is_compared(shadowed: Rig, copy: str, exact: float, length: float) -> None:
    await answered(shadowed, copy=copy)
    await eventually(lambda: "shadow_exact" in counts(shadowed).scores)
    found = counts(shadowed)
    assert (found.model_version, found.requests, found.errors) == (CANDIDATE, 1, 0)
    assert (found.scores["shadow_exact"].sum, found.scores["shadow_exact"].count) == (exact, 1)
    assert found.scores["shadow_length"].sum == pytest.approx(length)


async def test_a_copy_that_fails_counts_against_its_arm(shadowed: Rig) -> None:
    async with Stream(shadowed) as stream:
        running = await taken(shadowed.workers[0])
        await running.tokens(ids("a"))
        copy = await taken(shadowed.workers[1])
        await copy.finish(worker_pb2.FINISH_REASON_ERROR, "it broke")
        await running.last(ids("bc"))
        assert (await stream.rest())[0] == "abc"
    await eventually(lambda: shadowed.gateway._outcomes.table.arm(COPY) is not None)
    assert (counts(shadowed).requests, counts(shadowed).errors) == (1, 1)


def quota_used_up(mesh: Rig) -> None:
    normal = mesh.quota.handler

    def handle(call: Any, context: CallContext) -> Any:
        if call.reserve.tenant == "shadow":
            return quota_pb2.QuotaReply(rejected=WeirError(Reason.QUOTA_TOKENS, "used up").to_rejection())
        return normal(call, context)

    mesh.quota.handler = handle


def pool_full(mesh: Rig) -> None:
    normal = mesh.admission.handler

    def handle(call: Any, context: CallContext) -> Any:
        if call.admit.queue_class == SHADOW:
            full = WeirError(Reason.REJECTED_QUEUE_FULL, "no room to spare", limit="shadow")
            return admission_pb2.AdmissionReply(rejected=full.to_rejection())
        return normal(call, context)

    mesh.admission.handler = handle


def pool_dead(mesh: Rig) -> None:
    mesh.workers[1].port = 1  # where nothing listens


@pytest.mark.parametrize(
    ("trouble", "outcome"), [(quota_used_up, "quota"), (pool_full, "refused"), (pool_dead, "error")]
)
async def test_trouble_with_copies_is_nothing_to_users(
    shadowed: Rig, trouble: Callable[[Rig], None], outcome: str
) -> None:
    trouble(shadowed)
    before = fate(outcome)
    async with Stream(shadowed) as stream:
        running = await taken(shadowed.workers[0])
        await running.tokens(ids("a"))
        await eventually(lambda: fate(outcome) == before + 1)
        await running.last(ids("bc"))
        text, end = await stream.rest()
    assert (text, end.usage.completion_tokens) == ("abc", 3)
    assert shadowed.workers[1].submitted.empty()


async def test_slow_copies_hold_up_no_user(shadowed: Rig) -> None:
    """Copies that wait for ever: for the limiter, for admission, for their worker."""
    held = [
        Held(shadowed.quota, lambda call: call.reserve.tenant == "shadow"),
        Held(shadowed.admission, lambda call: call.admit.queue_class == SHADOW),
    ]
    for waiting in (*held, None):
        async with Stream(shadowed) as stream:
            running = await taken(shadowed.workers[0])
            await running.tokens(ids("a"))
            if waiting is not None:
                await waiting.question()
            else:
                await taken(shadowed.workers[1])
            await running.last(ids("bc"))
            assert (await stream.rest())[0] == "abc"
        if waiting is not None:
            waiting.go.set()
    for _ in range(2):
        await taken(shadowed.workers[1])
    assert shadowed.gateway._mirrors.active == 3
    await shadowed.gateway._mirrors.drain()


async def test_copies_end_when_the_shadow_phase_does(shadowed: Rig) -> None:
    before = fate("withdrawn")
    async with Stream(shadowed) as stream:
        running = await taken(shadowed.workers[0])
        await running.tokens(ids("a"))
        copy = await taken(shadowed.workers[1])
        await shadowed.put(phase_of(shadowed, registry_pb2.ROLLOUT_PHASE_CANARY))
        assert await asyncio.wait_for(shadowed.workers[1].cancelled.get(), 10) == copy.submit.handle
        await running.last(ids("bc"))
        assert (await stream.rest())[0] == "abc"
    assert (fate("withdrawn"), shadowed.gateway._mirrors.active) == (before + 1, 0)


class Shared:
    """One pool for users and copies, under admission's own policy: worker-a alone, with so many sequences."""

    def __init__(self, mesh: Rig, sequences: int) -> None:
        self.mesh = mesh
        self.coordinator = Coordinator(
            limits=steady(prefill_settle=0.0),
            clock=SystemClock(),
            random_bytes=random.Random(1).randbytes,
            grant_lifetime=5.0,
            worker_heartbeat=60.0,
            gateway_grace=5.0,
        )
        self.session = self._join(mesh.workers[0], sequences)
        normal = mesh.router.handler

        def route(call: Any, context: CallContext) -> Any:
            reply = normal(call, context)
            if reply.HasField("route"):
                reply.route.ClearField("zones")
                reply.route.mirror.pool = reply.route.pool
            return reply

        mesh.router.handler = route
        mesh.admission.handler = self._decide

    def _join(self, worker: FakeWorker, sequences: int) -> WorkerSession:
        hello = admission_pb2.WorkerHello(
            worker=worker.name,
            address=f"127.0.0.1:{worker.port}",
            pool="pool",
            model_versions=[MODEL, CANDIDATE],
            block_size=16,
            total_blocks=1000,
            max_running=sequences,
            max_context=64,
        )
        session = self.coordinator.worker_joined(hello)
        self.coordinator.worker_reported(session, admission_pb2.CapacityReport(free_blocks=1000))
        return session

    def _decide(self, call: Any, context: CallContext) -> Any:
        if call.HasField("release"):
            return self.coordinator.release(call.release)
        self.mesh.admitted.append(call.admit)
        return self.coordinator.admit(call.admit, deadline=context.deadline.at, owner="gateway-0")


async def test_while_users_wait_not_one_copy_runs(shadowed: Rig) -> None:
    Shared(shadowed, sequences=2)
    before = fate("refused")
    async with Stream(shadowed) as first, Stream(shadowed) as second:
        running = [await taken(shadowed.workers[0]) for _ in range(2)]
        assert [each.submit.model_version for each in running] == [MODEL, MODEL]
        shadowed.router.handler = _unmirrored(shadowed)
        async with Stream(shadowed) as third:
            await eventually(lambda: len(shadowed.admitted) == 3)
            for each in running:
                await each.tokens(ids("a"))
            await eventually(lambda: fate("refused") == before + 2)
            for each in running:
                await each.last(ids("bc"))
            for stream in (first, second):
                assert (await stream.rest())[0] == "abc"
            last = await taken(shadowed.workers[0])
            assert last.submit.model_version == MODEL
            await last.last(ids("abc"))
            await third.rest()
    assert shadowed.workers[0].submitted.empty()


async def test_a_copy_makes_way_for_a_user(shadowed: Rig) -> None:
    """The whole way of an interruption: admission → worker → gateway → release → the user's grant."""
    shared = Shared(shadowed, sequences=2)
    before = fate("interrupted")
    async with Stream(shadowed) as first:
        running = await taken(shadowed.workers[0])
        await running.last(ids("abc"))
        await first.rest()
        copy = await taken(shadowed.workers[0])
        assert copy.submit.model_version == CANDIDATE
        await copy.tokens(ids("a"))
        shadowed.router.handler = _unmirrored(shadowed)
        async with Stream(shadowed) as second, Stream(shadowed) as third:
            await eventually(lambda: len(shadowed.admitted) == 4)
            users = [await taken(shadowed.workers[0])]
            frame = await asyncio.wait_for(shared.session.next_frame(), 10)
            assert frame is not None
            assert list(frame.preempt.request_ids) == [copy.submit.request_id]
            await copy.refuse(Reason.PREEMPTED)
            users.append(await taken(shadowed.workers[0]))
            await eventually(lambda: fate("interrupted") == before + 1)
            for each in users:
                assert each.submit.model_version == MODEL
                await each.last(ids("abc"))
            for stream in (second, third):
                assert (await stream.rest())[0] == "abc"
    found = shadowed.gateway._outcomes.table.arm(COPY)
    assert found is not None
    # Having made way says nothing of the candidate.
    assert (found.requests, list(found.cohorts.started), found.keys) == (0, list(found.cohorts.ended), {})


def _unmirrored(mesh: Rig) -> Callable[[Any, CallContext], Any]:
    mirrored = mesh.router.handler

    def route(call: Any, context: CallContext) -> Any:
        reply = mirrored(call, context)
        reply.route.ClearField("mirror")
        return reply

    return route
