"""A worker served for real, with a scripted admission and a gateway's stub."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2, admission_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.clock import SystemClock
from libs.config import TlsFiles
from libs.deadlines import to_duration
from libs.grants import KEY_BYTES, GrantSigner
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind
from libs.service import serve
from services.worker.app import build
from services.worker.config import Settings, SimulatedOptions

CLOCK = SystemClock()
MODEL = "m@1"


async def until(condition: Callable[[], Any]) -> None:
    """Give the loop its turns until the condition holds (the test's timeout bounds it)."""
    while not condition():  # noqa: ASYNC110 - the condition lies inside the worker, which has no event for it
        await asyncio.sleep(0.001)


class Admission(admission_pb2_grpc.AdmissionServiceServicer):
    """Takes workers in, remembers their reports, signs grants."""

    def __init__(self) -> None:
        self.hellos: list[admission_pb2.WorkerHello] = []
        self.reports: list[admission_pb2.CapacityReport] = []
        self.signers: list[GrantSigner] = []
        self.contexts: list[Any] = []
        self.port = 0
        self._ids = itertools.count(1)
        self._server: grpc.aio.Server | None = None

    async def ReportCapacity(self, request_iterator, context):  # noqa: N802
        hello = (await context.read()).hello
        key, key_id = os.urandom(KEY_BYTES), f"key-{next(self._ids)}"
        welcome = admission_pb2.WorkerWelcome(grant_key=key, key_id=key_id, heartbeat=to_duration(0.6))
        await context.write(admission_pb2.ReportCapacityResponse(welcome=welcome))
        signer = GrantSigner(worker=hello.worker, key_id=key_id, key=key, clock=CLOCK, random_bytes=os.urandom)
        self.hellos.append(hello)
        self.signers.append(signer)
        self.contexts.append(context)
        while (frame := await context.read()) is not grpc.aio.EOF:
            self.reports.append(frame.report)

    async def say(self, **frame: Any) -> None:
        await self.contexts[-1].write(admission_pb2.ReportCapacityResponse(**frame))

    def grant(self, request_id: str, **changes: Any) -> admission_pb2.SignedGrant:
        caps = {"model_version": MODEL, "tenant": "acme", "prompt_tokens": 100, "max_output_tokens": 100, "choices": 4}
        return self.signers[-1].sign(request_id=request_id, **(caps | changes))

    async def start(self, tls: TlsFiles | None = None) -> None:
        self._server = make_server()
        admission_pb2_grpc.add_AdmissionServiceServicer_to_server(self, self._server)
        self.port = bind(self._server, f"127.0.0.1:{self.port}", tls=tls)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)


class Gateway:
    """One stream to the worker."""

    def __init__(self, stub: worker_pb2_grpc.WorkerServiceStub) -> None:
        self.stub = stub
        self.rpc = stub.Session()
        self.welcome: worker_pb2.WorkerWelcome | None = None
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, worker_pb2.Finished] = {}
        self.refused: dict[int, Any] = {}
        self.frames: list[worker_pb2.StepFrame] = []
        self.told_to_go = ""

    async def hello(self) -> Gateway:
        await self.rpc.write(worker_pb2.SessionRequest(hello=mux_pb2.Hello(service="gateway", instance="gateway-0")))
        self.welcome = (await self.rpc.read()).welcome
        return self

    async def submit(self, *items: worker_pb2.Submit) -> None:
        await self.rpc.write(worker_pb2.SessionRequest(submissions=worker_pb2.Submissions(items=items)))

    async def cancel(self, *handles: int) -> None:
        await self.rpc.write(worker_pb2.SessionRequest(cancel=worker_pb2.CancelSequences(handles=handles)))

    async def read_to_the_end(self) -> None:
        while await self.read():
            pass

    async def read(self) -> bool:
        """One frame; False at the end of the stream."""
        frame = await self.rpc.read()
        if frame is grpc.aio.EOF:
            return False
        kind = frame.WhichOneof("frame")
        if kind == "step":
            self.frames.append(frame.step)
            at = 0
            for handle, count in zip(frame.step.handles, frame.step.counts, strict=True):
                self.tokens.setdefault(handle, []).extend(frame.step.tokens[at : at + count])
                at += count
            self.finished |= {each.handle: each for each in frame.step.finished}
        elif kind == "refusals":
            self.refused |= {each.handle: each.rejection for each in frame.refusals.items}
        elif kind == "go_away":
            self.told_to_go = frame.go_away.reason
        return True

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            assert await self.read(), "the stream ended"


def submission(handle: int, grant: Any, request_id: str = "r1", **changes: Any) -> worker_pb2.Submit:
    """Four greedy tokens after a prompt of three, unless told otherwise."""
    sampling = {"max_tokens": 4} | changes.pop("sampling", {})
    fields = {"model_version": MODEL, "prompt": [7, 8, 9], "remaining": to_duration(30)} | changes
    return worker_pb2.Submit(
        handle=handle, grant=grant, request_id=request_id, sampling=worker_pb2.Sampling(**sampling), **fields
    )


class Rig:
    """A running worker and what is around it."""

    def __init__(self, running: Any, admission: Admission, channel: grpc.aio.Channel, address: str) -> None:
        self.service = running.service
        self.hub = running.service._hub
        self.supervised = running.service._engine
        self.admission = admission
        self.address = address
        self.stub = worker_pb2_grpc.WorkerServiceStub(channel)

    @property
    def engine(self) -> Any:
        """The engine of the moment."""
        return self.supervised.current

    async def gateway(self) -> Gateway:
        return await Gateway(self.stub).hello()

    def assert_idle(self) -> None:
        load, info = self.engine.capacity(), self.engine.info
        assert (load.free_blocks, load.running, load.waiting) == (info.total_blocks, 0, 0)


@contextlib.asynccontextmanager
async def rig(
    *,
    make_engine: Any = None,
    store: Any = None,
    fixed: bool = True,
    tls_of: Callable[[str], TlsFiles | None] = lambda service: None,
    **changes: Any,
) -> AsyncIterator[Rig]:
    """`fixed` gives the worker admission's address; otherwise it must find it in the registry (`store`). `tls_of`
    gives each service's certificate files."""
    admission = Admission()
    await admission.start(tls_of("admission"))
    options = SimulatedOptions(
        **({"vocabulary": 600, "max_context": 200, "total_blocks": 256} | changes.pop("simulated", {}))
    )
    settings = Settings(
        service="worker",
        instance="worker-a",
        engine=changes.pop("engine", "simulated"),
        simulated=options,
        tls=tls_of("worker"),
        admission=(f"127.0.0.1:{admission.port}",) if fixed else (),
        **({"models": {MODEL: ""}, "report_interval": 0.001, "drain_seconds": 5.0, "drain_grace": 3.0} | changes),
    )
    service = await build(settings, make_engine=make_engine, store=store)
    try:
        async with serve(service, settings) as running:
            await running.ready.wait()
            address = f"127.0.0.1:{running.port}"
            async with make_channel(address, tls=tls_of("gateway"), server_name="worker.weir.internal") as channel:
                if fixed:
                    await until(lambda: admission.signers)
                yield Rig(running, admission, channel, address)
    finally:
        await admission.stop()
