"""What admission's decisions cost at scale, and what an answer costs over real gRPC; the last line is JSON.

    python -m loadtest.admission_bench [--quick]

The first five are CPU of the policy alone, in this process (admission_decisions.py):

    grant_us_300_workers     a grant and its release from 300 workers of two zones, nobody waiting, every tenth with a
                             report
    grant_us_2000_tenants    a release and the grant that follows it while 2,000 tenants wait
    two_versions_us          the dearest of a report, an admission, a release and a tick while a thousand tenants wait
                             for one version, whose worker is full, and the other has room: every canary under load
    levels_ms_10k_tenants    the longest piece of a look at 10,000 tenants for whom the edge should shed
    grants_per_s             grants per second of one core from 300 full workers to 2,000 waiting tenants, each with its
                             release, the next request that queues and a report

For the others admission runs as it does in the mesh (`python -m services.admission`, without TLS and etcd); this
process plays two workers, all of whose sequences are taken, and a gateway with 1,000 requests of 100 tenants waiting.
CPU is the admission process's user + system time, its ticks and the workers' reports included.

    refusal_cpu_us_admission   CPU per Admit that is refused at once for its TTFT target
    admit_cpu_us_admission     CPU per request that is granted, from a pool with room, and released
    credit_cpu_us_admission    likewise that runs on a credit, brings the next one, and is released
    grpc_call_us               an empty mTLS call, both ends, before and after: the unit of this hour
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import uvloop
from google.protobuf.duration_pb2 import Duration
from weir.admission.v1 import admission_pb2 as pb
from weir.admission.v1 import admission_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.mux import Codec, MuxClient, Semantics
from libs.rpc import make_channel
from loadtest import grpc_call
from loadtest.accounting import cpu_seconds
from loadtest.admission_decisions import decisions
from loadtest.helper import helper
from loadtest.overload import output

CLOCK = SystemClock()
IN_FLIGHT = 64
TENANTS = 100
WAITING = 1_000
_SEQUENCES = 64
TARGETS = {
    "grant_us_300_workers": "≤ 60",
    "grant_us_2000_tenants": "≤ 60",
    "two_versions_us": "≤ 100",
    "levels_ms_10k_tenants": "≤ 2",
}
_LIMITS = {"max_per_tenant": 1000, "credits": {"room": 1.0, "share": 0.5}}  # half of what there is runs all the time
_REPORT_SECONDS = 0.1
_PATIENCE = Duration(nanos=50_000_000)  # TTFT target of the requests to be refused


async def measure(calls: int = 20_000, warm_up: int = 2_000) -> dict[str, float]:
    """The figures over gRPC. Takes about twenty seconds.

    :raises RuntimeError: something was answered otherwise than it should have been.
    """
    async with contextlib.AsyncExitStack() as stack:
        channel, pid = await stack.enter_async_context(_admission())
        await stack.enter_async_context(_workers(channel))
        client = await stack.enter_async_context(_gateway(channel))
        served = await _per_call(pid, client, calls // 2, _served, warm_up)
        on_credit = await _per_call(pid, client, calls // 2, _OnCredit(), warm_up)
        holding = [_admit(f"hold-{n}", f"tenant-{n % TENANTS}") for n in range(2 * _SEQUENCES)]
        for call in holding:
            _check(await _ask(client, call), "granted")
        waiting = [
            asyncio.create_task(_ask(client, _admit(f"wait-{n}", f"tenant-{n % TENANTS}"))) for n in range(WAITING)
        ]
        await asyncio.sleep(1.0)  # they are queued, and the queue is known to be slow
        refused = await _per_call(pid, client, calls, _refused, warm_up)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return {"refusal_cpu_us_admission": refused, "admit_cpu_us_admission": served, "credit_cpu_us_admission": on_credit}


async def _per_call(
    pid: int, client: MuxClient, calls: int, one: Callable[[MuxClient, str, str], Awaitable[None]], warm_up: int
) -> float:
    """Microseconds of the process's CPU per call of `one`, `IN_FLIGHT` at a time."""

    async def caller(lane: int, count: int, run: str) -> None:
        for turn in range(count):
            await one(client, f"{run}-{lane}-{turn}", f"tenant-{(lane + turn) % TENANTS}")

    async def run(count: int, name: str) -> int:
        each = max(1, count // IN_FLIGHT)
        await asyncio.gather(*(caller(lane, each, name) for lane in range(IN_FLIGHT)))
        return each * IN_FLIGHT

    await run(warm_up, f"warm-{one.__name__}")
    before = cpu_seconds(pid)
    done = await run(calls, f"run-{one.__name__}")
    return 1e6 * (cpu_seconds(pid) - before) / done


async def _served(client: MuxClient, request_id: str, tenant: str) -> None:
    _check(await _ask(client, _admit(request_id, tenant)), "granted")
    _check(await _ask(client, _release(request_id)), "released")


class _OnCredit:
    """Requests that run on credits, as far as there are any."""

    __name__ = "on_credit"

    def __init__(self) -> None:
        self._credits: list[str] = []

    async def __call__(self, client: MuxClient, request_id: str, tenant: str) -> None:
        credit = self._credits.pop() if self._credits else ""
        reply = await _ask(client, _admit(request_id, tenant, credit=credit, credits=1 if credit else 2))
        _check(reply, "granted")
        self._credits += [each.id for each in reply.granted.credits]
        _check(await _ask(client, _release(request_id)), "released")


async def _refused(client: MuxClient, request_id: str, tenant: str) -> None:
    _check(await _ask(client, _admit(request_id, tenant, ttft_target=_PATIENCE)), "rejected")


def _admit(request_id: str, tenant: str, **more: Any) -> pb.AdmissionCall:
    return pb.AdmissionCall(
        admit=pb.Admit(
            request_id=request_id,
            tenant=tenant,
            weight=1.0,
            queue_class=pb.QUEUE_CLASS_PAID,
            pool="bench",
            model_version="weir-fast@1",
            zones=["zone-a", "zone-b"],
            prompt_tokens=200,
            max_output_tokens=200,
            choices=1,
            **more,
        )
    )


def _release(request_id: str) -> pb.AdmissionCall:
    return pb.AdmissionCall(
        release=pb.Release(request_id=request_id, output_tokens=40, first_token=Duration(nanos=30_000_000))
    )


async def _ask(client: MuxClient, call: pb.AdmissionCall) -> pb.AdmissionReply:
    reply: pb.AdmissionReply = await client.call(call, deadline=Deadline.after(120, CLOCK), semantics=Semantics.RETRY)
    return reply


def _check(reply: pb.AdmissionReply, result: str) -> None:
    if reply.WhichOneof("result") != result:
        raise RuntimeError(f"{result} was expected, not {reply}")


@contextlib.asynccontextmanager
async def _admission() -> AsyncIterator[tuple[grpc.aio.Channel, int]]:
    """A channel to the process, and its id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"service": "admission", "port": port, "log_level": "error", "limits": _LIMITS}
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "admission.json")
        config.write_text(json.dumps(settings))  # noqa: ASYNC240 - a few bytes, before anything is measured
        async with (
            helper("-m", "services.admission", "--config", str(config)) as child,
            make_channel(f"127.0.0.1:{port}", tls=None) as channel,
        ):
            yield channel, child.pid


@contextlib.asynccontextmanager
async def _workers(channel: grpc.aio.Channel) -> AsyncIterator[None]:
    """Two workers that report a steady load."""
    stub = admission_pb2_grpc.AdmissionServiceStub(channel)
    ready = [asyncio.Event() for _ in range(2)]

    async def work(number: int) -> None:
        stream = stub.ReportCapacity(wait_for_ready=True)
        hello = pb.WorkerHello(
            worker=f"worker-{number}",
            address=f"127.0.0.1:{number + 1}",
            zone=f"zone-{'ab'[number]}",
            pool="bench",
            model_versions=["weir-fast@1"],
            block_size=16,
            total_blocks=16_384,
            max_running=_SEQUENCES,
            max_context=4096,
            simulated=True,
            preemptive=True,
            takes_credits=True,
        )
        report = pb.CapacityReport(
            free_blocks=16_384, decode_step=Duration(nanos=20_000_000), prefill_tokens_per_second=20_000.0
        )
        await stream.write(pb.ReportCapacityRequest(hello=hello))
        await stream.read()
        while True:
            await stream.write(pb.ReportCapacityRequest(report=report))
            ready[number].set()
            await asyncio.sleep(_REPORT_SECONDS)

    tasks = [asyncio.create_task(work(number)) for number in range(2)]
    try:
        for event in ready:
            await event.wait()
        await asyncio.sleep(_REPORT_SECONDS)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _gateway(channel: grpc.aio.Channel) -> AsyncIterator[MuxClient]:
    stub = admission_pb2_grpc.AdmissionServiceStub(channel)
    client = MuxClient(
        open_stream=lambda: stub.Session(wait_for_ready=True),
        codec=Codec.of(pb.SessionRequest, pb.SessionResponse),
        hello=mux_pb2.Hello(service="gateway", instance="gateway-0", zone="zone-a"),
        clock=CLOCK,
        rng=random.Random(1),
    )
    running = asyncio.create_task(client.run())
    try:
        await client.wait_connected(20)
        yield client
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few decisions of each kind: figures of little weight")
    quick = parser.parse_args(argv).quick
    output.begin()
    parts = output.Parts()
    with parts.part("decisions"):
        parts.figures |= decisions(rounds=400, repeats=3) if quick else decisions()
    with parts.part("calls"), tempfile.TemporaryDirectory() as directory:
        sizes = {"calls": 1_000, "warm_up": 200} if quick else {"calls": 20_000, "warm_up": 2_000}
        window = grpc_call.between(Path(directory), lambda _: measure(**sizes), windows=1, calls=40 if quick else 400)
        [found], [parts.figures["grpc_call_us"]] = uvloop.run(window)
        parts.figures |= found
    output.finish("admission", parts, TARGETS)


if __name__ == "__main__":
    main()
