"""Admission on a real gRPC server, with gateways and workers on real streams."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace
from weir.admission.v1 import admission_pb2 as pb
from weir.admission.v1 import admission_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.registry.v1 import registry_pb2

from libs.authority.identity import Operator
from libs.clock import SystemClock
from libs.config import TlsFiles
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError, from_rpc_error
from libs.grants import GrantVerifier
from libs.mux import Codec, MuxClient, Semantics
from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_channel
from libs.service import serve
from libs.service.process import Running
from services.admission.app import AdmissionService, build
from services.admission.config import Settings
from services.admission.policy.limits import Limits
from tests.support.certificates import tls_of

CLOCK = SystemClock()
CODEC = Codec.of(pb.SessionRequest, pb.SessionResponse)
# These workers report only what a test says: their silence must not count against them on a slow machine.
PATIENT: dict[str, Any] = {"worker_heartbeat": 600.0, "limits": Limits(report_fresh=600.0, report_stale=1200.0)}


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop its turns until the condition holds (the test's timeout bounds it)."""
    while not condition():  # noqa: ASYNC110 - the condition lies inside the service, which has no event for it
        await asyncio.sleep(0.001)


class FakeWorker:
    """A worker's capacity stream."""

    def __init__(self, call: Any, name: str) -> None:
        self.call = call
        self.name = name
        self.welcome: pb.WorkerWelcome | None = None
        self.verifier = GrantVerifier(name, clock=CLOCK)

    @classmethod
    async def join(cls, channel: grpc.aio.Channel, name: str = "w0", slots: int = 4) -> FakeWorker:
        worker = cls(admission_pb2_grpc.AdmissionServiceStub(channel).ReportCapacity(wait_for_ready=True), name)
        hello = pb.WorkerHello(
            worker=name,
            address="127.0.0.1:7700",
            zone="zone-a",
            pool="fast",
            model_versions=["m@1"],
            block_size=16,
            total_blocks=100,
            max_running=slots,
            max_context=512,
            simulated=True,
            engine="sim",
        )
        await worker.call.write(pb.ReportCapacityRequest(hello=hello))
        worker.welcome = (await worker.call.read()).welcome
        worker.verifier.add_key(worker.welcome.key_id, worker.welcome.grant_key)
        await worker.report()
        return worker

    async def report(self, **load: Any) -> None:
        report = pb.CapacityReport(**{"free_blocks": 100, **load})
        await self.call.write(pb.ReportCapacityRequest(report=report))


class Bench:
    """A running admission service and what talks to it."""

    def __init__(self, running: Running, service: AdmissionService, stack: contextlib.AsyncExitStack) -> None:
        self.service = service
        self.target = f"127.0.0.1:{running.port}"
        self._stack = stack

    @property
    def pool(self) -> Any:
        return self.service.coordinator.pools["fast"]

    async def channel(self, tls: TlsFiles | None = None) -> grpc.aio.Channel:
        channel = make_channel(self.target, tls=tls, server_name="admission.weir.internal")
        return await self._stack.enter_async_context(channel)

    async def worker(self, name: str = "w0", slots: int = 4) -> FakeWorker:
        worker = await FakeWorker.join(await self.channel(), name, slots)
        await until(lambda: name in self.pool.fleet.workers and self.pool.fleet.workers[name].report is not None)
        return worker

    @contextlib.asynccontextmanager
    async def gateway(
        self, instance: str = "gateway-0", tls: TlsFiles | None = None, life: str = ""
    ) -> AsyncIterator[MuxClient]:
        stub = admission_pb2_grpc.AdmissionServiceStub(await self.channel(tls))
        client = MuxClient(
            open_stream=lambda: stub.Session(wait_for_ready=True),
            codec=CODEC,
            hello=mux_pb2.Hello(service="gateway", instance=instance, zone="zone-a", life=life),
            clock=CLOCK,
            rng=random.Random(1),
        )
        running = asyncio.create_task(client.run())
        try:
            yield client
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def running_bench(**limits: float) -> AsyncIterator[Bench]:
    settings = Settings(gateway_grace=0.05, **(PATIENT | {"limits": replace(PATIENT["limits"], **limits)}))
    service = await build(settings)
    async with serve(service, settings) as running, contextlib.AsyncExitStack() as stack:
        yield Bench(running, service, stack)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with running_bench() as found:
        yield found


def admit(request_id: str = "r0", **more: Any) -> pb.AdmissionCall:
    fields = {
        "request_id": request_id,
        "tenant": "acme",
        "pool": "fast",
        "model_version": "m@1",
        "prompt_tokens": 10,
        "max_output_tokens": 10,
        "choices": 1,
        "queue_class": pb.QUEUE_CLASS_PAID,
        **more,
    }
    return pb.AdmissionCall(admit=pb.Admit(**fields))


async def call(client: MuxClient, item: pb.AdmissionCall, seconds: float = 10.0) -> pb.AdmissionReply:
    reply = await client.call(item, deadline=Deadline.after(seconds, CLOCK), semantics=Semantics.RETRY)
    assert isinstance(reply, pb.AdmissionReply)
    return reply


async def test_a_grant_reaches_the_gateway_and_holds_at_the_worker(bench: Bench) -> None:
    worker = await bench.worker()
    async with bench.gateway() as client:
        granted = (await call(client, admit())).granted
        assert (granted.worker, granted.address, granted.zone, granted.simulated) == (
            "w0",
            "127.0.0.1:7700",
            "zone-a",
            True,
        )
        asked = {"request_id": "r0", "model_version": "m@1", "prompt_tokens": 10, "max_output_tokens": 10}
        assert worker.verifier.verify(granted.grant, choices=1, **asked).tenant == "acme"  # type: ignore[arg-type]
        with pytest.raises(WeirError) as caught:
            worker.verifier.verify(granted.grant, choices=1, **asked)  # type: ignore[arg-type]
        assert caught.value.reason is Reason.GRANT_REPLAYED
        assert (await call(client, release("r0"))).released.known
        assert not (await call(client, release("r0"))).released.known


def release(request_id: str) -> pb.AdmissionCall:
    return pb.AdmissionCall(release=pb.Release(request_id=request_id, output_tokens=3))


async def test_a_request_waits_for_room_and_learns_how_long_it_did(bench: Bench) -> None:
    await bench.worker(slots=1)
    async with bench.gateway() as client:
        await call(client, admit("r0"))
        waiting = asyncio.create_task(call(client, admit("r1")))
        await until(lambda: len(bench.pool.backlog) == 1)
        await call(client, release("r0"))
        granted = (await waiting).granted
        assert granted.worker == "w0"
        assert granted.queue_wait.ToNanoseconds() > 0


async def test_cancelling_a_waiting_request_takes_it_out_of_the_queue(bench: Bench) -> None:
    await bench.worker(slots=1)
    async with bench.gateway() as client:
        await call(client, admit("r0"))
        waiting = asyncio.create_task(call(client, admit("r1")))
        await until(lambda: len(bench.pool.backlog) == 1)
        waiting.cancel()
        await until(lambda: len(bench.pool.backlog) == 0)
        await call(client, release("r0"))
        assert not bench.pool.fleet.reservations


SOON: dict[str, float] = {"return_margin": 5.0}
"""Seconds that an eviction has to come home in: more than it takes on a busy machine."""


async def test_a_deadline_shorter_than_the_queue_is_an_eviction_told_in_time() -> None:
    async with running_bench(**SOON) as bench, bench.gateway() as client:
        await bench.worker(slots=1)
        await call(client, admit("r0"))
        reply = await call(client, admit("r1"), seconds=5.3)
        assert reply.rejected.reason == Reason.EVICTED_DEADLINE
        assert reply.rejected.HasField("retry_after")
        assert len(bench.pool.backlog) == 0


async def test_a_process_without_work_looks_at_deadlines_once_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.admission.app._IDLE_SECONDS", 1000.0)
    async with running_bench(**SOON) as bench, bench.gateway() as client:
        await bench.worker(slots=1)
        await call(client, admit("r0"))
        reply = await call(client, admit("r1"), seconds=5.3)
        assert reply.rejected.reason == Reason.EVICTED_DEADLINE


async def test_what_cannot_fit_is_refused_at_once(bench: Bench) -> None:
    await bench.worker(slots=1)
    async with bench.gateway() as client:
        reply = await call(client, admit(prompt_tokens=600))
        assert reply.rejected.reason == Reason.CONTEXT_LENGTH_EXCEEDED
        reply = await call(client, admit(choices=2))
        assert reply.rejected.reason == Reason.REJECTED_NO_CAPACITY
        with pytest.raises(WeirError) as caught:
            await call(client, admit(tenant=""))
        assert caught.value.limit == "tenant"
        with pytest.raises(WeirError) as caught:
            await call(client, pb.AdmissionCall())
        assert caught.value.limit == "op"


async def test_a_worker_whose_stream_breaks_gets_no_more_work_long_before_a_heartbeat_is_missed(bench: Bench) -> None:
    first, _ = await bench.worker("w0"), await bench.worker("w1")
    async with bench.gateway() as client:
        assert (await call(client, admit("r0"))).granted.worker == "w0"
        first.call.cancel()
        await until(lambda: "w0" not in {w.spec.worker for w in bench.pool.fleet.serving("m@1")})
        moved = await call(client, admit("r0", exclude_workers=["w0"]))
        assert moved.granted.worker == "w1"


async def test_a_gateway_in_its_next_life_does_not_inherit_what_it_held_in_the_last(bench: Bench) -> None:
    await bench.worker()
    async with bench.gateway(life="1") as client:
        assert (await call(client, admit("r0"))).HasField("granted")
    async with bench.gateway(life="2") as client:
        assert (await call(client, admit("r1"))).HasField("granted")
        await until(lambda: set(bench.pool.fleet.reservations) == {"r1"})


async def test_shares_of_a_lost_gateway_come_back_when_the_worker_reports_them_gone(bench: Bench) -> None:
    worker = await bench.worker(slots=1)
    async with bench.gateway("gateway-0") as client:
        await call(client, admit("r0"))
    async with bench.gateway("gateway-1") as client:
        waiting = asyncio.create_task(call(client, admit("r1")))
        await until(lambda: "r0" not in bench.pool.fleet.reservations)
        await worker.report(free_blocks=98, running=1)
        await worker.report(free_blocks=100)
        assert (await waiting).granted.worker == "w0"


async def test_drain_and_preempt_travel_to_the_worker(bench: Bench) -> None:
    worker = await bench.worker()
    assert bench.service.coordinator.preempt("w0", ["r1"])
    assert bench.service.coordinator.drain_worker("w0", "scale-in")
    assert list((await worker.call.read()).preempt.request_ids) == ["r1"]
    assert (await worker.call.read()).drain.reason == "scale-in"


async def test_a_worker_that_joins_anew_ends_its_old_stream(bench: Bench) -> None:
    old = await bench.worker()
    await bench.worker()
    assert await old.call.read() is grpc.aio.EOF
    assert bench.pool.fleet.serving("m@1")


@pytest.mark.parametrize("frames", [[pb.ReportCapacityRequest(report=pb.CapacityReport())], []])
async def test_a_worker_must_introduce_itself(bench: Bench, frames: list[pb.ReportCapacityRequest]) -> None:
    stream = admission_pb2_grpc.AdmissionServiceStub(await bench.channel()).ReportCapacity(wait_for_ready=True)
    for frame in frames:
        await stream.write(frame)
    await stream.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert from_rpc_error(caught.value).limit == "hello"


async def test_a_second_hello_ends_the_workers_stream(bench: Bench) -> None:
    worker = await bench.worker()
    await worker.call.write(pb.ReportCapacityRequest(hello=pb.WorkerHello()))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.call.read()
    assert from_rpc_error(caught.value).limit == "frame"
    await until(lambda: not bench.pool.fleet.serving("m@1"))


async def test_draining_sends_waiting_requests_elsewhere() -> None:
    settings = Settings(**PATIENT)
    service = await build(settings)
    async with contextlib.AsyncExitStack() as stack:
        async with serve(service, settings) as running:
            bench = Bench(running, service, stack)
            await bench.worker(slots=1)
            client = await stack.enter_async_context(bench.gateway())
            await call(client, admit("r0"))
            waiting = asyncio.create_task(call(client, admit("r1")))
            await until(lambda: len(bench.pool.backlog) == 1)
        assert (await waiting).rejected.reason == Reason.DRAINING


async def _bind(store: MemoryStore, binding: registry_pb2.RoleBinding) -> None:
    await store.txn(puts=[Put(keys.key_of(binding), keys.encode(binding))])


async def test_certificates_decide_who_may_call_what(tmp_path: Path) -> None:
    files = {
        "admission": tls_of(tmp_path, "admission"),
        "gateway": tls_of(tmp_path, "gateway", "gateway-0", zone="zone-a"),
        "worker": tls_of(tmp_path, "worker", "w0", pool="fast", zone="zone-a"),
        "probe": tls_of(tmp_path, "probe"),
    }
    settings = Settings(tls=files["admission"], **PATIENT)
    store = MemoryStore()
    await _bind(store, registry_pb2.RoleBinding(principal="operator:jane", roles=["viewer"]))
    service = await build(settings, store=store)
    async with serve(service, settings) as running, contextlib.AsyncExitStack() as stack:
        bench = Bench(running, service, stack)
        worker = await FakeWorker.join(await bench.channel(files["worker"]))
        assert worker.welcome is not None
        assert len(worker.welcome.grant_key) == 32
        async with bench.gateway(tls=files["gateway"]) as client:
            assert (await call(client, admit())).granted.worker == "w0"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await FakeWorker.join(await bench.channel(files["gateway"]), "w1")
        assert from_rpc_error(caught.value).reason is Reason.PERMISSION_DENIED
        jane = tls_of(tmp_path, Operator("jane"))
        operator = admission_pb2_grpc.AdmissionServiceStub(await bench.channel(jane))
        listed = await operator.ListWorkers(pb.ListWorkersRequest(), timeout=10)
        assert [(each.hello.worker, each.report.free_blocks) for each in listed.workers] == [("w0", 100)]
        assert not (await operator.ListWorkers(pb.ListWorkersRequest(pool="other"), timeout=10)).workers
        for peer in ("gateway", "probe"):
            stranger = admission_pb2_grpc.AdmissionServiceStub(await bench.channel(files[peer]))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stranger.ListWorkers(pb.ListWorkersRequest(), timeout=10)
            assert from_rpc_error(caught.value).reason is Reason.PERMISSION_DENIED
        session = admission_pb2_grpc.AdmissionServiceStub(await bench.channel(files["worker"])).Session()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await session.read()
        assert from_rpc_error(caught.value).reason is Reason.PERMISSION_DENIED


async def test_an_urgent_request_has_batch_work_interrupted_over_the_streams(bench: Bench) -> None:
    worker = await bench.worker(slots=1)
    async with bench.gateway() as client:
        await call(client, admit("batch", queue_class=pb.QUEUE_CLASS_BATCH))
        # The grant is old enough to be interrupted after Limits.prefill_settle; the request is urgent after half of
        # its target.
        target = Duration(nanos=400_000_000)
        waiting = asyncio.create_task(call(client, admit("urgent", ttft_target=target)))
        assert list((await worker.call.read()).preempt.request_ids) == ["batch"]
        await call(client, release("batch"))
        assert (await waiting).granted.worker == "w0"


async def test_the_level_of_a_flooded_pool_reaches_the_registry_and_ends_with_the_service() -> None:
    store = Kept()
    settings = Settings(**PATIENT)
    service = await build(settings, store=store)
    async with contextlib.AsyncExitStack() as stack:
        async with serve(service, settings) as running:
            bench = Bench(running, service, stack)
            worker = await bench.worker(slots=1)
            await worker.report(decode_step=Duration(nanos=20_000_000), prefill_tokens_per_second=1000.0)
            client = await stack.enter_async_context(bench.gateway())
            await call(client, admit("r0"))
            hopeless = {"ttft_target": Duration(nanos=1_000_000), "tenant": "flood"}
            number = 0
            while await store.get(keys.key("levels", "fast")) is None:
                number += 1
                assert (await call(client, admit(f"f{number}", **hopeless))).rejected.limit == "ttft_target"
            level = registry_pb2.Resource.FromString((await store.get(keys.key("levels", "fast"))).value).level  # type: ignore[union-attr]
            assert [each.tenant for each in level.tenants] == ["flood"]
        assert store.closed
        assert await store.get(keys.key("levels", "fast")) is None


class Kept(MemoryStore):
    """Can be read after it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True
