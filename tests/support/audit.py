"""The audit service on a free port, and what speaks to it."""

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.clock import Clock, SystemClock
from libs.config import TlsFiles
from libs.deadlines import Deadline
from libs.mux import Codec, MuxClient, Semantics
from libs.registry import MemoryStore
from libs.rpc import make_channel
from libs.service import serve
from services.audit.app import AuditService, build
from services.audit.config import Settings


def record(number: int, *, tenant: str = "acme", source: str = "gateway/gateway-0") -> audit_pb2.Record:
    event = audit_pb2.RequestEvent(request_id=f"r{number}", tenant=tenant, prompt_tokens=3, outcome="stop")
    made = audit_pb2.Record(id=f"r{number}", source=source, request=event)
    made.time.seconds = 1_800_000_000
    return made


@dataclass
class Link:
    """A writer's stream."""

    client: MuxClient

    async def append(self, item: audit_pb2.Record, *, seconds: float = 20) -> audit_pb2.Appended:
        call = audit_pb2.AuditCall(append=audit_pb2.Append(record=item))
        deadline = Deadline.after(seconds, SystemClock())
        return (await self.client.call(call, deadline=deadline, semantics=Semantics.ONCE)).appended

    async def batch(self, batch: audit_pb2.AppendBatch, *, seconds: float = 20) -> audit_pb2.Appended:
        call = audit_pb2.AuditCall(append_batch=batch)
        deadline = Deadline.after(seconds, SystemClock())
        return (await self.client.call(call, deadline=deadline, semantics=Semantics.ONCE)).appended


@contextlib.asynccontextmanager
async def connect(port: int, *, service: str = "gateway", tls: TlsFiles | None = None) -> AsyncIterator[Link]:
    async with make_channel(f"127.0.0.1:{port}", tls=tls, server_name="audit.weir.internal") as channel:
        stub = audit_pb2_grpc.AuditServiceStub(channel)
        client = MuxClient(
            open_stream=lambda: stub.Session(wait_for_ready=True),
            codec=Codec.of(audit_pb2.SessionRequest, audit_pb2.SessionResponse),
            hello=mux_pb2.Hello(service=service, instance=f"{service}-0"),
            clock=SystemClock(),
            rng=random.Random(1),
        )
        running = asyncio.create_task(client.run())
        try:
            yield Link(client)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class KeptStore(MemoryStore):
    """Outlives the services that use it, as etcd does."""

    async def close(self) -> None:
        """Stays open."""


@functools.cache
def store_of(root: Path) -> KeptStore:
    """The store of all services that run on the files under `root`, one after the other."""
    return KeptStore()


@dataclass
class Audit:
    """A running audit service."""

    service: AuditService
    store: MemoryStore
    port: int
    ready: asyncio.Event
    stub: Any


@contextlib.asynccontextmanager
async def audit_service(
    root: Path, *, store: MemoryStore | None = None, wait: bool = True, clock: Clock | None = None, **more: Any
) -> AsyncIterator[Audit]:
    """Runs the service on the files under `root`; again and again if need be."""
    options = {"state_dir": str(root / "state"), "drain_seconds": 2, "probe_seconds": 0.05, **more}
    settings = Settings(service="audit", instance="audit-0", **options)
    memory = store or store_of(root)
    service = await build(settings, store=memory, clock=clock)
    async with serve(service, settings) as running:
        if wait:
            await asyncio.wait_for(running.ready.wait(), 20)
        async with make_channel(f"127.0.0.1:{running.port}", tls=None, translate_errors=True) as channel:
            stub = audit_pb2_grpc.AuditServiceStub(channel)
            yield Audit(service, memory, running.port, running.ready, stub)
