"""Controllable leaf services around a real gateway: real gRPC servers, decisions scripted by tests.

The fake worker obeys the test token by token, which no real engine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2, admission_pb2_grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.quota.v1 import quota_pb2, quota_pb2_grpc
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2, router_pb2_grpc
from weir.safety.v1 import safety_pb2, safety_pb2_grpc
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from libs.mux import CallContext, Codec, MuxServer
from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_server
from libs.rpc.server import bind
from libs.service import serve
from services.gateway.app import Gateway, build
from services.gateway.config import Settings, Targets
from tests.support.tokenizer import artifacts_in

Handler = Callable[[Any, CallContext], Any]
MODEL = "tiny@1"


class Frozen:
    """A call's context as a process has it that stands still: its connections stay open, and nothing moves on them."""

    def __init__(self, context: Any, moves: asyncio.Event) -> None:
        self._context = context
        self._moves = moves

    async def read(self) -> Any:
        frame = await self._context.read()
        await self._moves.wait()
        return frame

    async def write(self, message: Any) -> None:
        await self._moves.wait()
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Leaf:
    """One multiplexed leaf service that can be stopped and started again on the same port."""

    def __init__(self, pb: Any, servicer: type, add: Callable[[Any, grpc.aio.Server], None], handler: Handler) -> None:
        self._pb = pb
        self._servicer = servicer
        self._add = add
        self.handler = handler
        self.port = 0
        self.moves = asyncio.Event()
        """Cleared: it stands still."""
        self.moves.set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        moves = self.moves
        mux = MuxServer(
            codec=Codec.of(self._pb.SessionRequest, self._pb.SessionResponse),
            handler=lambda call, context: self.handler(call, context),
            instance="leaf-0",
            clock=SystemClock(),
        )

        class Servicer(self._servicer):  # type: ignore[misc]
            async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
                await mux.serve(request_iterator, Frozen(context, moves))

        self._server = make_server()
        self._add(Servicer(), self._server)
        self.port = bind(self._server, f"127.0.0.1:{self.port}", tls=None)
        await self._server.start()

    async def stop(self) -> None:
        """As if killed: streams break at once."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None


class Held:
    """Makes a leaf keep its answers to some calls until it is let go."""

    def __init__(self, leaf: Leaf, which: Callable[[Any], bool] = lambda call: True) -> None:
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = asyncio.Event()
        self.go = asyncio.Event()
        self._normal = leaf.handler
        self._which = which
        leaf.handler = self._handle

    def _handle(self, call: Any, context: Any) -> Any:
        return self._later(call, context) if self._which(call) else self._normal(call, context)

    async def _later(self, call: Any, context: Any) -> Any:
        self.asked.put_nowait(call)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._normal(call, context)

    async def question(self) -> Any:
        return await asyncio.wait_for(self.asked.get(), 10)


@dataclass
class Running:
    """A sequence that the test drives."""

    stream: FakeWorkerStream
    submit: worker_pb2.Submit

    async def tokens(self, ids: list[int], *, numerics: str | None = None) -> None:
        """One step frame with these tokens; its first where `numerics` are told."""
        frame = worker_pb2.StepFrame(handles=[self.submit.handle], counts=[len(ids)], tokens=ids)
        if numerics is not None:
            frame.first.add(handle=self.submit.handle, numerics=numerics)
        await self.stream.send(worker_pb2.SessionResponse(step=frame))

    async def finish(self, reason: int = worker_pb2.FINISH_REASON_STOP, message: str = "") -> None:
        """The terminal step frame."""
        frame = worker_pb2.StepFrame()
        frame.finished.add(handle=self.submit.handle, reason=reason, message=message)  # type: ignore[arg-type]
        await self.stream.send(worker_pb2.SessionResponse(step=frame))

    async def last(self, ids: list[int], reason: int = worker_pb2.FINISH_REASON_STOP) -> None:
        """Its last tokens and its end in one frame, as engines send them."""
        frame = worker_pb2.StepFrame(handles=[self.submit.handle], counts=[len(ids)], tokens=ids)
        frame.finished.add(handle=self.submit.handle, reason=reason)  # type: ignore[arg-type]
        await self.stream.send(worker_pb2.SessionResponse(step=frame))

    async def refuse(self, reason: Reason) -> None:
        """Answer the submission with a refusal."""
        refusals = worker_pb2.Refusals()
        refusals.items.add(handle=self.submit.handle, rejection=WeirError(reason, "refused by the test").to_rejection())
        await self.stream.send(worker_pb2.SessionResponse(refusals=refusals))


class FakeWorkerStream:
    """One gateway's stream."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context

    async def send(self, response: worker_pb2.SessionResponse) -> None:
        await self._context.write(response)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Records what it is asked; produces what the test says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.submitted: asyncio.Queue[Running] = asyncio.Queue()
        self.cancelled: asyncio.Queue[int] = asyncio.Queue()
        self.embeds: asyncio.Queue[worker_pb2.EmbedRequest] = asyncio.Queue()
        self.may_embed = asyncio.Event()
        self.may_embed.set()
        self.embeds_not: Reason | None = None
        self.wants_proof = False
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = make_server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        self.port = bind(self._server, "127.0.0.1:0", tls=None)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def Embed(self, request: worker_pb2.EmbedRequest, context: Any) -> worker_pb2.EmbedResponse:  # noqa: N802
        self.embeds.put_nowait(request)
        if self.embeds_not is not None:
            raise WeirError(self.embeds_not, "refused by the test")
        if self.wants_proof and not request.grant.mac:
            raise WeirError(Reason.GRANT_INVALID, "an admission process is here")
        await self.may_embed.wait()
        return worker_pb2.EmbedResponse(vectors=[worker_pb2.Vector(values=[1.0, 0.0]) for _ in request.inputs])

    async def Session(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        stream = FakeWorkerStream(context)
        async for request in request_iterator:
            for item in request.submissions.items:
                self.submitted.put_nowait(Running(stream, item))
            for handle in request.cancel.handles:
                self.cancelled.put_nowait(handle)


@dataclass
class Rig:
    """A gateway and its leaves. The default decisions say yes; tests replace the handlers."""

    gateway: Gateway
    port: int
    store: MemoryStore
    quota: Leaf
    router: Leaf
    admission: Leaf
    safety: Leaf
    audit: Leaf
    workers: list[FakeWorker]
    reserved: list[quota_pb2.Reserve] = field(default_factory=list)
    settled: asyncio.Queue[quota_pb2.Settle] = field(default_factory=asyncio.Queue)
    admitted: list[admission_pb2.Admit] = field(default_factory=list)
    released: asyncio.Queue[admission_pb2.Release] = field(default_factory=asyncio.Queue)
    records: asyncio.Queue[audit_pb2.Record] = field(default_factory=asyncio.Queue)

    async def put(self, message: Any) -> None:
        """Write a registry object."""
        await self.store.txn(puts=[Put(keys.key_of(message), keys.encode(message))])

    def deny(self, error: WeirError) -> None:
        """Have the quota refuse whatever asks."""
        normal = self.quota.handler

        def handle(call: Any, context: CallContext) -> Any:
            if call.HasField("reserve"):
                return quota_pb2.QuotaReply(rejected=error.to_rejection())
            return normal(call, context)

        self.quota.handler = handle

    def leftovers(self) -> dict[str, int]:
        """What the gateway still holds for requests, by kind; empty when every one of them has ended cleanly."""
        gateway = self.gateway
        held = {
            "generations": len(gateway._pipeline.parts.active),
            "requests": len(gateway._pipeline._tasks),
            "entered": gateway._pipeline.parts.occupancy.entered,
            "readers": gateway._pipeline.parts.readers.readers,
            "unread": gateway._pipeline.parts.readers.unread,
            "filters": len(gateway._safety._texts),
            "waiting": len(gateway._safety._waiting),
            "sequences": sum(len(link._sequences) for link in gateway._workers._links.values()),
            "leases": gateway._quota._bridge._ledger.live_leases,
            "charged": len(gateway._quota._bridge._running),
            "local_grants": len(gateway._admission._local._running),
        }
        return {kind: count for kind, count in held.items() if count}


def registry(directory: Path) -> list[Any]:
    """A model with its alias, and two tenants: one fail closed, one served and flagged."""
    return [
        registry_pb2.ModelVersion(
            name="tiny",
            version="1",
            digest="d" * 64,
            source=str(directory),
            artifacts=artifacts_in(directory),
            context_length=64,
            pool="pool",
            tier="fast",
            sampling_defaults=registry_pb2.SamplingDefaults(temperature=0, top_p=1, max_tokens=16),
        ),
        registry_pb2.Alias(name="tiny", targets=[registry_pb2.AliasTarget(model_version=MODEL, weight=100)]),
        registry_pb2.Tenant(id="closed", plan=registry_pb2.PLAN_PAID),
        registry_pb2.Tenant(
            id="flagged", plan=registry_pb2.PLAN_PAID, safety_fail_mode=registry_pb2.FAIL_MODE_FLAG, audit_required=True
        ),
        registry_pb2.ModelGrant(subject="all", namespaces=["default"], pinned_namespaces=["default"]),
        registry_pb2.Limits(tenant="closed", model="*", concurrency=2, tokens_per_minute=1000),
    ]


@contextlib.asynccontextmanager
async def rig(
    directory: Path,
    state: Path,
    *,
    drain: float = 1.0,
    without: Collection[str] = (),
    store_of_records: int = 0,
    rollout: str = "127.0.0.1:9",
    seed: Collection[Any] = (),
    **settings: Any,
) -> AsyncIterator[Rig]:
    """Everything up, until the block ends. `directory` holds the tokenizer, `settings` are the gateway's; the leaves
    `without` which it starts have an address where nobody listens. `rollout`: where it asks for objectives; `seed`:
    what is in the registry beside `registry`."""
    store = MemoryStore()
    workers = [FakeWorker("worker-a"), FakeWorker("worker-b")]
    for worker in workers:
        await worker.start()
    made: list[Rig] = []
    turn = itertools.count()

    # A gateway that starts has something to say of its former life before it is ready.
    records: asyncio.Queue[audit_pb2.Record] = asyncio.Queue()
    settled: asyncio.Queue[quota_pb2.Settle] = asyncio.Queue()

    def on_quota(call: Any, context: CallContext) -> Any:
        if call.HasField("reserve"):
            made[0].reserved.append(call.reserve)
            return quota_pb2.QuotaReply(reserved=quota_pb2.Reserved())
        settled.put_nowait(call.settle)
        return quota_pb2.QuotaReply(settled=quota_pb2.Settled(known=True))

    def on_router(call: Any, context: CallContext) -> Any:
        if call.HasField("report"):
            return router_pb2.RouterReply(noted=router_pb2.OutcomesNoted())
        if call.resolve.model not in ("tiny", MODEL):
            return router_pb2.RouterReply(rejected=WeirError(Reason.MODEL_NOT_FOUND, "no model").to_rejection())
        route = router_pb2.Route(model_version=MODEL, pool="pool", tier="fast", zones=["zone-a"])
        return router_pb2.RouterReply(route=route)

    def on_admission(call: Any, context: CallContext) -> Any:
        if call.HasField("release"):
            made[0].released.put_nowait(call.release)
            return admission_pb2.AdmissionReply(released=admission_pb2.Released(known=True))
        made[0].admitted.append(call.admit)
        able = [w for w in workers if w.name not in call.admit.exclude_workers]
        if not able:
            gone = WeirError(Reason.NO_WORKERS, "no worker")
            return admission_pb2.AdmissionReply(rejected=gone.to_rejection())
        worker = able[next(turn) % len(able)] if len(able) == 1 else able[0]
        granted = admission_pb2.Granted(
            worker=worker.name,
            address=f"127.0.0.1:{worker.port}",
            zone="zone-a",
            grant=admission_pb2.SignedGrant(grant=b"grant", mac=b"proof", key_id="key"),
        )
        return admission_pb2.AdmissionReply(granted=granted)

    def on_safety(call: Any, context: CallContext) -> Any:
        if call.HasField("check_input"):
            return safety_pb2.SafetyReply(input=safety_pb2.InputVerdict(policies=call.check_input.policies))
        feed = call.filter_output
        released = safety_pb2.OutputReleased(released=feed.deltas, held=[0] * len(feed.filters))
        return safety_pb2.SafetyReply(output=released)

    def on_audit(call: Any, context: CallContext) -> Any:
        for payload in call.append_batch.records:
            records.put_nowait(audit_pb2.Record.FromString(payload))
        return audit_pb2.AuditReply(appended=audit_pb2.Appended(sequence=1))

    quota = Leaf(
        quota_pb2, quota_pb2_grpc.QuotaServiceServicer, quota_pb2_grpc.add_QuotaServiceServicer_to_server, on_quota
    )
    router = Leaf(
        router_pb2,
        router_pb2_grpc.RouterServiceServicer,
        router_pb2_grpc.add_RouterServiceServicer_to_server,
        on_router,
    )
    admission = Leaf(
        admission_pb2,
        admission_pb2_grpc.AdmissionServiceServicer,
        admission_pb2_grpc.add_AdmissionServiceServicer_to_server,
        on_admission,
    )
    safety = Leaf(
        safety_pb2,
        safety_pb2_grpc.SafetyServiceServicer,
        safety_pb2_grpc.add_SafetyServiceServicer_to_server,
        on_safety,
    )
    audit = Leaf(
        audit_pb2, audit_pb2_grpc.AuditServiceServicer, audit_pb2_grpc.add_AuditServiceServicer_to_server, on_audit
    )
    leaves = {"ratelimit": quota, "router": router, "admission": admission, "safety": safety, "audit": audit}
    for leaf in leaves.values():
        await leaf.start()
    for name in without:
        await leaves[name].stop()
    configured = Settings(
        service="gateway",
        state_dir=str(state),
        targets=Targets(
            rollout=rollout,
            records=f"127.0.0.1:{store_of_records or audit.port}",
            **{name: f"127.0.0.1:{leaf.port}" for name, leaf in leaves.items()},
        ),
        drain_seconds=drain,
        **{"instance": "gateway-0", "lame_duck_seconds": 0.0, **settings},
    )
    for message in (*registry(directory), *seed):
        await store.txn(puts=[Put(keys.key_of(message), keys.encode(message))])
    gateway = await build(configured, store=store)
    try:
        async with serve(gateway, configured, deadline_optional=("/weir.",)) as running:
            await asyncio.wait_for(running.ready.wait(), 30)
            leaves_of = (quota, router, admission, safety, audit, workers)
            made.append(Rig(gateway, running.port, store, *leaves_of, records=records, settled=settled))
            yield made[0]
    finally:
        for part in [*leaves.values(), *workers]:
            await part.stop()
        await store.close()
