"""Two admission processes, a worker and gateways, with a proxy on each way between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
from weir.admission.v1 import admission_pb2 as pb
from weir.admission.v1 import admission_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.registry.v1 import registry_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import Deadline, to_duration
from libs.errors import WeirError
from libs.mux import ClientOptions, Codec, MuxClient, Semantics
from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_channel
from libs.service import serve
from services.admission import app as admission_app
from services.admission.config import Settings
from services.admission.policy.ownership import home
from services.gateway.clients.owner import OwnerStreams
from services.worker import app as worker_app
from services.worker.config import Settings as WorkerSettings
from services.worker.config import SimulatedOptions
from tests.support.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
CLOCK = SystemClock()
POOL, MODEL = "fast", "m@1"
NAMES = ("admission-0", "admission-1")
FIRST = home(POOL, NAMES)
(SECOND,) = set(NAMES) - {FIRST}
QUICK: dict[str, Any] = {
    "worker_heartbeat": 0.5,
    "settle_seconds": 0.1,
    "tenure_seconds": 1.0,
    "limits": {"absence_grace": 0.5, "output_reserve": 1.0, "report_fresh": 600.0, "report_stale": 1200.0},
}
# What a silent peer costs here; otherwise as in libs.rpc.channel.
PINGS = [("grpc.keepalive_time_ms", 5_500), ("grpc.keepalive_timeout_ms", 1_000)]


async def until(condition: Callable[[], Any]) -> None:
    """Give the loop its turns until the condition holds (the test's timeout bounds it)."""
    while not condition():  # noqa: ASYNC110 - the condition lies inside the services, which have no event for it
        await asyncio.sleep(0.005)


async def ended(task: asyncio.Task[Any]) -> None:
    """End it, however far it is."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Gateway:
    """A gateway's way to the pool's owner, through proxies of its own."""

    def __init__(self, proxies: dict[str, Proxy], first: str, addresses: dict[str, str], instance: str) -> None:
        """`first` is where the ring leads; `addresses` are those that the registry names, by instance."""
        self.proxies = proxies
        self._names = {address: name for name, address in addresses.items()}
        self.streams = OwnerStreams(
            POOL, ring=self._session(first), direct=self._direct, replicas=lambda: list(addresses.values())
        )
        self.mux = MuxClient(
            open_stream=self.streams.open,
            codec=Codec.of(pb.SessionRequest, pb.SessionResponse),
            hello=mux_pb2.Hello(service="gateway", instance=instance, zone="z"),
            clock=CLOCK,
            rng=random.Random(1),
            options=ClientOptions(connect_timeout=0.5),
            on_stream=self.streams.opened,
            on_refused=self.streams.refused,
        )
        self.number = 0
        self.instance = instance

    def _session(self, name: str) -> Callable[..., Any]:
        channel = make_channel(self.proxies[name].address, tls=None, options=PINGS)
        start: Callable[..., Any] = admission_pb2_grpc.AdmissionServiceStub(channel).Session
        return start

    def _direct(self, address: str) -> Callable[..., Any]:
        return self._session(self._names[address])

    async def admit(self, *, seconds: float = 100.0, **more: Any) -> pb.AdmissionReply:
        self.number += 1
        call = pb.AdmissionCall(admit=self.question(f"{self.instance}/{self.number}", **more))
        deadline = Deadline.after(seconds, CLOCK)
        reply: pb.AdmissionReply = await self.mux.call(call, deadline=deadline, semantics=Semantics.RETRY)
        return reply

    def question(self, request_id: str, **more: Any) -> pb.Admit:
        fields = {
            "request_id": request_id,
            "tenant": "acme",
            "pool": POOL,
            "model_version": MODEL,
            "prompt_tokens": 3,
            "max_output_tokens": 4,
            "choices": 1,
            **more,
        }
        return pb.Admit(**fields)

    async def release(self, request_id: str) -> None:
        call = pb.AdmissionCall(release=pb.Release(request_id=request_id, output_tokens=4))
        await self.mux.call(call, deadline=Deadline.after(100.0, CLOCK), semantics=Semantics.RETRY)


class Mesh:
    """Who there is, and the sockets between them."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self.stack = stack
        self.store = MemoryStore()
        self.services: dict[str, Any] = {}
        self.addresses: dict[str, str] = {}
        self.reaching: dict[str, Proxy] = {}
        """The worker's way to each admission process."""

    async def start(self) -> None:
        for name in NAMES:
            settings = msgspec.convert(QUICK | {"instance": name}, Settings)
            self.services[name] = await admission_app.build(settings, store=Shared(self.store))
            running = await self.stack.enter_async_context(serve(self.services[name], settings))
            self.addresses[name] = f"127.0.0.1:{running.port}"
        for name in NAMES:
            await self.register(registry_pb2.Endpoint(service="admission", instance=name, address=self.addresses[name]))
        await self.register(registry_pb2.Endpoint(service="worker", instance="w0", pool=POOL, address="127.0.0.1:1"))
        await until(lambda: all(len(each._members.current) == 2 for each in self.services.values()))
        await self.serve_worker()
        await until(lambda: self.epoch(FIRST) and self.verifier.epoch == self.epoch(FIRST))
        # A process to which no worker has named the owner yet would own the pool as soon as it is asked.
        await until(lambda: self.services[SECOND]._owners._ownership.newest(POOL) == self.epoch(FIRST))

    async def serve_worker(self) -> None:
        self.reaching = {name: await self.proxy(name) for name in NAMES}
        settings = WorkerSettings(
            service="worker",
            instance="w0",
            pool=POOL,
            engine="simulated",
            models={MODEL: ""},
            simulated=SimulatedOptions(
                vocabulary=600, max_context=1600, total_blocks=100, preemptive=True, step_interval=0.05
            ),
            admission=tuple(proxy.address for proxy in self.reaching.values()),
        )
        self.worker = await worker_app.build(settings)
        running = await self.stack.enter_async_context(serve(self.worker, settings))
        self.worker_address = f"127.0.0.1:{running.port}"

    async def register(self, endpoint: registry_pb2.Endpoint) -> None:
        await self.store.txn(puts=[Put(keys.key_of(endpoint), keys.encode(endpoint))])

    async def proxy(self, name: str) -> Proxy:
        return await self.stack.enter_async_context(Proxy(self.addresses[name]))

    async def gateway(self, *, first: str = FIRST, instance: str = "gateway-0") -> Gateway:
        proxies = {name: await self.proxy(name) for name in NAMES}
        gateway = Gateway(proxies, first, self.addresses, instance)
        self.stack.push_async_callback(ended, asyncio.create_task(gateway.mux.run()))
        return gateway

    @property
    def verifier(self) -> Any:
        return self.worker._verifier

    def epoch(self, name: str) -> int:
        found: int = self.services[name].coordinator.epoch(POOL)
        return found

    async def owned_by(self, name: str) -> None:
        """Until it is the owner for everybody."""
        (other,) = set(NAMES) - {name}
        await until(lambda: self.epoch(name) and not self.epoch(other) and self.verifier.epoch == self.epoch(name))

    async def run(self, granted: pb.Granted, request_id: str, max_tokens: int = 4) -> str:
        """Submits it to the worker; empty when it has run, else what the worker names as its reason."""
        return await submit(self.worker_address, granted.grant, request_id, max_tokens)


class Shared(MemoryStore):
    """One process's view of the store that all share: it can be cut off, and closed, by itself."""

    def __init__(self, store: MemoryStore) -> None:
        self.__dict__ = store.__dict__

    async def close(self) -> None:
        """The others go on."""


async def submit(address: str, grant: pb.SignedGrant, request_id: str, max_tokens: int = 4) -> str:
    async with make_channel(address, tls=None) as channel:
        stream = worker_pb2_grpc.WorkerServiceStub(channel).Session()
        hello = mux_pb2.Hello(service="gateway", instance="gateway-0")
        await stream.write(worker_pb2.SessionRequest(hello=hello))
        await stream.read()
        item = worker_pb2.Submit(
            handle=1,
            grant=grant,
            request_id=request_id,
            model_version=MODEL,
            prompt=[7, 8, 9],
            remaining=to_duration(60),
            sampling=worker_pb2.Sampling(max_tokens=max_tokens),
        )
        await stream.write(worker_pb2.SessionRequest(submissions=worker_pb2.Submissions(items=[item])))
        while (frame := await stream.read()) is not grpc.aio.EOF:
            if frame.HasField("refusals"):
                refusal = WeirError.from_rejection(frame.refusals.items[0].rejection)
                return f"{refusal.reason.name} {refusal.limit}"
            if frame.step.finished:
                return ""
    raise AssertionError("the worker hung up")


PROCESS = """
import asyncio, sys, msgspec
from libs.service import serve
from services.admission.app import build
from services.admission.config import Settings

async def main():
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    async with serve(await build(settings), settings) as running:
        print(running.port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def process(name: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """An admission process of its own, which knows no registry."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos" / "gen")])}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROCESS,
        json.dumps(QUICK | {"instance": name}),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        yield child, f"127.0.0.1:{int(await child.stdout.readline())}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
