"""A worker process that is killed gets no new work, at once: its sockets close with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from libs.service import serve
from services.admission.app import build
from services.admission.config import Settings

ROOT = Path(__file__).resolve().parents[3]
WORKER = """
import asyncio, sys, grpc
from weir.admission.v1 import admission_pb2 as pb, admission_pb2_grpc

async def main():
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        call = admission_pb2_grpc.AdmissionServiceStub(channel).ReportCapacity(wait_for_ready=True)
        hello = pb.WorkerHello(worker="w0", address="a:1", zone="z", pool="fast", model_versions=["m@1"],
                               block_size=16, total_blocks=10, max_running=1, max_context=64)
        await call.write(pb.ReportCapacityRequest(hello=hello))
        await call.read()
        await call.write(pb.ReportCapacityRequest(report=pb.CapacityReport(free_blocks=10)))
        await call.read()

asyncio.run(main())
"""


async def test_a_killed_worker_is_out_before_its_heartbeat_is_missed() -> None:
    settings = Settings(worker_heartbeat=600.0)
    service = await build(settings)
    async with serve(service, settings) as running:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos" / "gen")])}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, f"127.0.0.1:{running.port}", env=environment
        )
        try:
            pools = service.coordinator.pools
            while "fast" not in pools or not any(w.open() for w in pools["fast"].fleet.serving("m@1")):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            process.kill()
            # About 4 ms on an idle machine; its heartbeat is missed after the time that this test has.
            while pools["fast"].fleet.serving("m@1"):  # noqa: ASYNC110 - the fleet has no event for it
                await asyncio.sleep(0.001)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
