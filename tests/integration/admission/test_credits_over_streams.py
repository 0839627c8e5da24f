"""Credits between the gateway's client, admission and a worker's verifier, on real streams."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from weir.admission.v1 import admission_pb2 as pb
from weir.admission.v1 import admission_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.grants import GrantVerifier
from libs.mux import Codec, MuxClient
from libs.rpc import make_channel
from libs.service import serve
from services.admission.app import build
from services.admission.config import Settings
from services.admission.policy.limits import Credits, Limits
from services.admission.policy.pool import Pool
from services.gateway.clients.admission import AdmissionClient, LocalGrants

CLOCK = SystemClock()
LIMITS = Limits(report_fresh=600.0, report_stale=1200.0, credits=Credits(seconds=10.0))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition lies inside the service, which has no event for it
        await asyncio.sleep(0.001)


class Stage:
    """One admission process, one worker of 32 sequences, one gateway."""

    def __init__(self, pool: Pool, client: AdmissionClient, verifier: GrantVerifier) -> None:
        self.pool = pool
        self.client = client
        self.verifier = verifier
        self.given_back: list[str] = []
        release = pool.release

        def noted(request_id: str, *args: Any, **more: Any) -> Any:
            if request_id in pool.fleet.reservations and pool.fleet.reservations[request_id].request.credit:
                self.given_back.append(request_id)
            return release(request_id, *args, **more)

        pool.release = noted  # type: ignore[method-assign]

    @property
    def worker(self) -> Any:
        return self.pool.fleet.workers["w0"]

    async def admit(self, request_id: str, **more: Any) -> pb.Granted:
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
        return await self.client.admit(pb.Admit(**fields), deadline=Deadline.after(20.0, CLOCK), traceparent="")

    def release(self, request_id: str, **more: Any) -> None:
        self.client.release(request_id, pool="fast", **{"output_tokens": 3, **more})

    def runs(self, granted: pb.Granted, request_id: str) -> str:
        """Whose it is at the worker.

        :raises WeirError: the worker does not take it.
        """
        return self.verifier.verify(
            granted.grant,
            request_id=request_id,
            model_version="m@1",
            prompt_tokens=10,
            max_output_tokens=10,
            choices=1,
        ).tenant

    async def until_credits(self, count: int) -> None:
        await until(lambda: self.worker.credits == count and not self.client.pending)


async def _worker(channel: grpc.aio.Channel) -> tuple[Any, GrantVerifier]:
    call = admission_pb2_grpc.AdmissionServiceStub(channel).ReportCapacity(wait_for_ready=True)
    hello = pb.WorkerHello(
        worker="w0",
        address="127.0.0.1:7700",
        pool="fast",
        model_versions=["m@1"],
        block_size=16,
        total_blocks=256,
        max_running=32,
        max_context=512,
        takes_credits=True,
    )
    await call.write(pb.ReportCapacityRequest(hello=hello))
    welcome = (await call.read()).welcome
    verifier = GrantVerifier("w0", clock=CLOCK)
    verifier.add_key(welcome.key_id, welcome.grant_key)
    await call.write(pb.ReportCapacityRequest(report=pb.CapacityReport(free_blocks=256)))
    return call, verifier


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    settings = Settings(worker_heartbeat=600.0, limits=LIMITS)
    service = await build(settings)
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(serve(service, settings))
        target = f"127.0.0.1:{running.port}"
        channels = [await stack.enter_async_context(make_channel(target, tls=None)) for _ in range(2)]
        capacity, verifier = await _worker(channels[0])
        pools = service.coordinator.pools
        await until(lambda: "fast" in pools and any(each.open() for each in pools["fast"].fleet.serving("m@1")))

        def open_pool(name: str) -> MuxClient:
            stub = admission_pb2_grpc.AdmissionServiceStub(channels[1])
            return MuxClient(
                open_stream=lambda: stub.Session(wait_for_ready=True, metadata=(("x-weir-pool", name),)),
                codec=Codec.of(pb.SessionRequest, pb.SessionResponse),
                hello=mux_pb2.Hello(service="gateway", instance="gateway-0", zone="zone-a"),
                clock=CLOCK,
                rng=random.Random(1),
            )

        client = AdmissionClient(open_pool, LocalGrants(None, limit=0), clock=CLOCK, end_timeout=10.0)  # type: ignore[arg-type]
        life = asyncio.create_task(client.run())
        stack.push_async_callback(asyncio.gather, life, return_exceptions=True)
        stack.callback(life.cancel)
        stack.callback(capacity.cancel)
        await client.pool("fast").wait_connected(10.0)
        yield Stage(pools["fast"], client, verifier)


async def test_the_fourth_request_runs_at_once_on_what_the_third_brought(stage: Stage) -> None:
    for name in ("r0", "r1", "r2"):
        stage.runs(await stage.admit(name), name)
    await stage.until_credits(1)
    admitting = stage.admit("r3", tenant="other")
    with pytest.raises(StopIteration) as answered:
        admitting.send(None)  # nothing is awaited
    granted: pb.Granted = answered.value.value
    assert stage.runs(granted, "r3") == "other"
    with pytest.raises(WeirError) as caught:
        stage.runs(granted, "r3")
    assert caught.value.reason is Reason.GRANT_REPLAYED
    await until(lambda: "r3" in stage.pool.fleet.reservations)
    await stage.until_credits(1)  # another came with the answer
    for name in ("r0", "r1", "r2", "r3"):
        stage.release(name)
    await until(lambda: stage.worker.held_sequences == stage.worker.credits)


async def test_who_waits_gets_the_credits_that_nobody_uses(stage: Stage) -> None:
    for name in ("r0", "r1", "r2"):
        await stage.admit(name)
    await stage.until_credits(1)
    others = [asyncio.create_task(stage.admit(f"many{number}", kv_share=1.0)) for number in range(30)]
    await until(lambda: len(stage.pool.backlog) == 2)
    stage.release("r0")  # one runs in its place; the answer says that another waits
    await asyncio.gather(*others)
    assert stage.worker.held_sequences == 32
    assert stage.worker.credits == 0
    assert len(stage.given_back) == 1


async def test_a_grant_that_was_not_used_takes_the_credits_back(stage: Stage) -> None:
    for name in ("r0", "r1", "r2"):
        await stage.admit(name)
    await stage.until_credits(1)
    stage.release("r2", unused=True)
    await stage.until_credits(0)
    await until(lambda: stage.worker.held_sequences == 2)
    assert len(stage.given_back) == 1


async def test_a_request_with_a_budget_or_a_second_choice_asks(stage: Stage) -> None:
    for name in ("r0", "r1", "r2"):
        await stage.admit(name)
    await stage.until_credits(1)
    for number, more in enumerate(({"kv_share": 0.5}, {"choices": 2}, {"queue_class": pb.QUEUE_CLASS_FREE})):
        granted = await stage.admit(f"x{number}", **more)
        assert not granted.grant.HasField("holder")
    assert stage.worker.credits == 1


async def test_credits_of_a_stream_that_was_lost_are_not_used(stage: Stage) -> None:
    for name in ("r0", "r1", "r2"):
        await stage.admit(name)
    await stage.until_credits(1)
    mux = stage.client.pool("fast")
    before = mux.generation
    for link in tuple(mux._links.values()):
        link.rpc.cancel()
    await until(lambda: mux.generation > before)
    granted = await stage.admit("r3")
    assert not granted.grant.HasField("holder")
