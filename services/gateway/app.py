"""The gateway's composition root."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.inference.v1 import inference_pb2_grpc
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2, router_pb2_grpc
from weir.safety.v1 import safety_pb2, safety_pb2_grpc

from libs.auditlog import AuditWriter, Spool
from libs.clock import Clock, SystemClock
from libs.errors import WeirError
from libs.mux import Codec, MuxClient
from libs.registry import RegistrySnapshot, RegistryView, Source, follow
from libs.rpc import make_channel
from libs.telemetry import get_logger
from services.gateway.account import intervention
from services.gateway.catalog import Catalog
from services.gateway.clients.admission import AdmissionClient, LocalGrants
from services.gateway.clients.link import open_link, open_pool
from services.gateway.clients.quota import QuotaClient
from services.gateway.clients.rollout import RolloutReporter
from services.gateway.clients.router import RouterClient
from services.gateway.clients.safety import SafetyClient
from services.gateway.clients.shards import LimiterStreams
from services.gateway.clients.workers import WorkerStreams
from services.gateway.config import Settings
from services.gateway.identity import Identifier
from services.gateway.native import InferenceServicer
from services.gateway.openai import wire
from services.gateway.openai.servicer import OpenAIServicer
from services.gateway.outcomes import Outcomes
from services.gateway.serve import SWEEP_SECONDS, Pipeline
from services.gateway.shadow.mirrors import Mirrors
from services.gateway.text_store import TextStore

log = get_logger(__name__)
_LOOK_SECONDS = 0.005
_FILES_SECONDS = 60.0
"""For tokenizers, before it is ready without some of them: their requests wait for them."""
_LAST_SECONDS = 1.0
"""Of a drain's time, for what the last requests leave behind."""


class Gateway:
    """Implements `libs.service.Service`."""

    def __init__(self, settings: Settings, view: RegistryView, *, clock: Clock, rng: random.Random) -> None:
        self._settings = settings
        self._view = view
        self._clock = clock
        self._rng = rng
        self._texts = TextStore(
            blobs=settings.blobs,
            directory=Path(settings.state_dir) / "model-files" if settings.state_dir else None,
            max_bytes=settings.model_files_bytes,
            clock=clock,
            chance=rng.random,
        )
        self._catalog = catalog = Catalog(zone=settings.zone, texts=self._texts, clock=clock)

        def link(service: str, target: str, stub: Any, pb: Any, **more: Any) -> MuxClient:
            codec = Codec.of(pb.SessionRequest, pb.SessionResponse)
            return open_link(settings, target, service, stub=stub, codec=codec, clock=clock, rng=rng, **more)

        targets = settings.targets
        router_link = link("router", targets.router, router_pb2_grpc.RouterServiceStub, router_pb2)
        audit_link = link("audit", targets.audit, audit_pb2_grpc.AuditServiceStub, audit_pb2)
        safety_link = link(
            "safety",
            targets.safety,
            safety_pb2_grpc.SafetyServiceStub,
            safety_pb2,
            on_stream=self._on_safety_stream,
        )
        self._links = [router_link, safety_link, audit_link]
        self._quota = QuotaClient(
            LimiterStreams(settings, clock=clock, rng=rng),
            clock=clock,
            decide_timeout=settings.decide_timeout,
            end_timeout=settings.end_timeout,
            lease_seconds=settings.lease_seconds,
            allowances=settings.allowances,
        )
        self._router = RouterClient(
            router_link,
            catalog,
            zone=settings.zone,
            clock=clock,
            decide_timeout=settings.decide_timeout,
            open_replica=lambda address: link("router", address, router_pb2_grpc.RouterServiceStub, router_pb2),
        )
        self._admission = AdmissionClient(
            lambda pool: open_pool(
                settings,
                pool,
                replicas=lambda: [each.address for each in catalog.snapshot.endpoints_of("admission")],
                clock=clock,
                rng=rng,
            ),
            LocalGrants(catalog, limit=settings.max_local_grants),
            clock=clock,
            end_timeout=settings.end_timeout,
        )
        self._safety = SafetyClient(
            safety_link,
            clock=clock,
            decide_timeout=settings.decide_timeout,
            end_timeout=settings.end_timeout,
            grace=settings.filter_grace,
            on_found=self._on_found,
            chance=rng.random,
            fail_closed=lambda tenant: catalog.tenant(tenant).safety_fail_mode != registry_pb2.FAIL_MODE_FLAG,
        )
        self._workers = WorkerStreams(settings, flush=self._safety.flush)
        spool = Spool(Path(settings.state_dir or ".") / "audit-spool", max_bytes=settings.spool_bytes)
        self._audit = AuditWriter(audit_link, spool, clock=clock)
        self._outcomes = Outcomes(catalog, clock=clock)
        self._mirrors: Mirrors

        def mirrors(pipeline: Pipeline) -> Mirrors:
            self._mirrors = Mirrors(
                pipeline,
                quota=self._quota,
                evidence=self._outcomes,
                snapshot=lambda: catalog.snapshot,
                settings=settings.shadow,
                clock=clock,
            )
            return self._mirrors

        self._pipeline = Pipeline(
            settings,
            catalog=catalog,
            quota=self._quota,
            router=self._router,
            admission=self._admission,
            safety=self._safety,
            workers=self._workers,
            channel=self._workers.channel,
            audit=self._audit,
            outcomes=self._outcomes,
            clock=clock,
            chance=rng.random,
            mirror=mirrors,
        )
        self._reporter = RolloutReporter(
            self._outcomes.table,
            catalog,
            lambda address: make_channel(address, tls=settings.tls, server_name="rollout.weir.internal"),
            source=settings.instance,
            incarnation=str(uuid.UUID(int=rng.getrandbits(128))),
            clock=clock,
            rng=rng,
        )
        self._identifier = Identifier(
            catalog, tls=settings.tls is not None, sample_ratio=settings.trace_sample_ratio, rng=rng
        )

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `Service`."""
        native = InferenceServicer(
            self._pipeline,
            self._identifier,
            self._catalog,
            heartbeat=self._settings.heartbeat_seconds,
        )
        openai = OpenAIServicer(self._pipeline, self._identifier, self._catalog, clock=self._clock)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(native, server)
        wire.register(openai, server)
        return ["weir.inference.v1.InferenceService", "weir.openai.v1.OpenAIService"]

    async def run(self, ready: Callable[[], None]) -> None:
        """See `Service`. Ready means: a registry snapshot, its tokenizers, and a stream to every deciding service, or
        its fallback where there is none after a while."""
        async with contextlib.aclosing(self._texts), asyncio.TaskGroup() as group:
            for link in self._links:
                group.create_task(link.run())
            own = (self._view, self._quota, self._router, self._admission, self._workers, self._audit, self._reporter)
            for background in own:
                group.create_task(background.run())
            await self._view.wait_ready()
            self._view.on_change(self._on_snapshot)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FILES_SECONDS):
                    await self._catalog.preload()
            await self._wait_leaves()
            ready()
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                self._pipeline.sweep()
                self._safety.sweep()
                self._texts.sweep()

    async def _wait_leaves(self) -> None:
        """A mesh that starts is waited for; a gateway that starts without a leaf service must not be away as well."""
        patience = self._settings.leaf_patience
        waits = [self._quota.wait_connected(patience), *(link.wait_connected(patience) for link in self._links)]
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            if isinstance(outcome, WeirError):
                log.warning("started_without", domain=outcome.limit)
            elif outcome is not None:
                raise outcome

    async def drain(self) -> None:
        """See `Service`. At first it serves on: whoever sends requests here learns meanwhile that its endpoint is gone.
        What still runs near the end of the time for it is cut; then the last settlements, releases and records
        leave."""
        await self._mirrors.drain()
        try:
            async with asyncio.timeout(max(0.0, self._settings.drain_seconds - _LAST_SECONDS)):
                await asyncio.sleep(self._settings.lame_duck_seconds)
                await self._pipeline.occupancy.drain()
        except TimeoutError:
            self._pipeline.occupancy.cut()
        async with asyncio.timeout(_LAST_SECONDS):
            await self._pipeline.occupancy.drain()
            await self._audit.settled()
            while self._quota.pending or self._admission.pending:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        if not self._view.revision:
            return ("registry",)
        leaves = zip(("router", "safety", "audit"), self._links, strict=True)
        return [name for name, link in leaves if not link.connected]

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `Service`."""
        return {}

    def _on_found(self, tenant: str, request_id: str, stage: str, found: safety_pb2.Intervention) -> None:
        self._audit.write(
            intervention(
                now=self._clock.time(),
                source=f"{self._settings.service}/{self._settings.instance}",
                record_id=str(uuid.UUID(int=self._rng.getrandbits(128))),
                tenant=tenant,
                request_id=request_id,
                stage=stage,
                found=found,
            )
        )

    def _on_safety_stream(self, generation: int) -> None:
        self._safety.on_stream(generation)

    def _on_snapshot(self, snapshot: RegistrySnapshot) -> None:
        self._catalog.update(snapshot)
        self._pipeline.arms_changed()
        self._mirrors.update(snapshot)
        self._catalog.fetch_texts()
        self._quota.update(snapshot)
        self._workers.warm(
            [(e.instance, e.address) for (service, _), e in snapshot.endpoints.items() if service == "worker"]
        )
        for pool in self._catalog.pools():
            self._admission.pool(pool)


async def build(settings: Settings, *, clock: Clock | None = None, store: Source | None = None) -> Gateway:
    """Wire the gateway; `store` replaces the registry in tests."""
    clock = clock or SystemClock()
    view = follow("gateway", settings, source=store, clock=clock)
    return Gateway(settings, view, clock=clock, rng=random.SystemRandom())
