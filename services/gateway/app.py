"""The gateway's composition root."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.inference.v1 import inference_pb2_grpc
from weir.records.v1 import answers_pb2_grpc, records_pb2, records_pb2_grpc
from weir.router.v1 import router_pb2, router_pb2_grpc
from weir.safety.v1 import safety_pb2, safety_pb2_grpc

from libs.auditlog import AuditWriter
from libs.auditlog.security import to_timestamp
from libs.callers import Identifier
from libs.catalog import Catalog
from libs.clock import Clock, SystemClock
from libs.cursor import KeyringFile
from libs.errors import WeirError, from_rpc_error
from libs.idempotency import KeptAnswers
from libs.journal import Journal
from libs.limiter import LimiterStreams, QuotaClient, Settlements
from libs.mux import Dialer
from libs.outcomes import OutcomeReporter, Recorder
from libs.registry import RegistrySnapshot, RegistryView, Source, follow
from libs.routes import RouterClient
from libs.telemetry import get_logger
from libs.texts import TextStore
from services.gateway import account
from services.gateway.clients.admission import AdmissionClient, LocalGrants
from services.gateway.clients.owner import open_pool
from services.gateway.clients.safety import SafetyClient
from services.gateway.clients.standing import Standing
from services.gateway.clients.workers import WorkerStreams
from services.gateway.config import Settings
from services.gateway.cursors import Cursors
from services.gateway.idempotency import Idempotency
from services.gateway.native import InferenceServicer
from services.gateway.openai import servicer as openai
from services.gateway.openai.desk import Desk
from services.gateway.parts import SWEEP_SECONDS, Parts
from services.gateway.serve import Pipeline
from services.gateway.shadow.mirrors import Mirrors

log = get_logger(__name__)
_LOOK_SECONDS = 0.005
_FILES_SECONDS = 60.0
"""For tokenizers, before it is ready without some of them: their requests wait for them."""
_USAGE_SECONDS = 15.0
"""Of a question about usage: more than its database gives it."""
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

        dialer, targets = Dialer(settings, clock, rng, settings.lazy_seconds), settings.targets
        self._safety: SafetyClient
        router_stub, safety_stub = router_pb2_grpc.RouterServiceStub, safety_pb2_grpc.SafetyServiceStub
        router_link = dialer.link(targets.router, "router", router_stub, router_pb2)
        self._standing = Standing(dialer, rollout=targets.rollout, registry=settings.registry)
        self._books = dialer.channel(targets.records, "records")  # for questions about usage
        audit_link = dialer.link(targets.audit, "audit", audit_pb2_grpc.AuditServiceStub, audit_pb2)
        safety_link = dialer.link(
            targets.safety, "safety", safety_stub, safety_pb2, on_stream=lambda stream: self._safety.on_stream(stream)
        )
        self._links = [router_link, safety_link, audit_link]
        journal = Journal(
            Path(settings.state_dir or mkdtemp(prefix="weir-gateway-")) / "audit-journal",
            rng=rng,
            max_bytes=settings.journal_bytes,
            # One for each request that may run and for each settlement that is kept; and one more, for a request that
            # moves stands in two for a moment.
            slots=2 * settings.max_active + 1,
        )
        source = f"{settings.service}/{settings.instance}"
        self._audit = AuditWriter(audit_link, journal, source=source, clock=clock, hold=settings.lazy_seconds)
        self._quota = QuotaClient(
            LimiterStreams(dialer, targets.ratelimit, joined=settings.stream_per_owner),
            clock=clock,
            decide_timeout=settings.decide_timeout,
            end_timeout=settings.end_timeout,
            lease_seconds=settings.lease_seconds,
            settlements=Settlements(self._audit, most=settings.max_active),
            allowances=settings.allowances,
        )
        self._router = RouterClient(
            router_link,
            catalog.table,
            zone=settings.zone,
            clock=clock,
            decide_timeout=settings.decide_timeout,
            open_replica=lambda address: dialer.link(address, "router", router_stub, router_pb2),
        )
        self._admission = AdmissionClient(
            lambda pool: open_pool(
                dialer,
                targets.admission,
                pool,
                replicas=lambda: [each.address for each in catalog.snapshot.endpoints_of("admission")],
            ),
            LocalGrants(catalog, limit=settings.max_local_grants),
            clock=clock,
            end_timeout=settings.end_timeout,
        )
        self._safety = SafetyClient(
            mux=safety_link,
            clock=clock,
            decide_timeout=settings.decide_timeout,
            end_timeout=settings.end_timeout,
            grace=settings.filter_grace,
            on_found=self._on_found,
            chance=rng.random,
            fail_closed=catalog.fails_closed,
        )
        self._workers = WorkerStreams(settings, flush=self._safety.flush)
        self._outcomes = Recorder(catalog, clock=clock)
        self._pipeline = Pipeline(
            Parts(
                settings=settings,
                catalog=catalog,
                quota=self._quota,
                router=self._router,
                admission=self._admission,
                safety=self._safety,
                workers=self._workers,
                channel=self._workers.channel,
                audit=self._audit,
                outcomes=self._outcomes,
                mirror=lambda asked: self._mirrors.mirror(asked),
                clock=clock,
                chance=rng.random,
            )
        )
        self._cursors = Cursors(settings.cursor_keys, life=settings.cursor_life, clock=clock)
        self._kept = KeptAnswers(
            answers_pb2_grpc.AnswersServiceStub(self._books) if settings.idempotency_keys else None,
            holder=settings.instance,
            keys=KeyringFile(settings.idempotency_keys),
            life=settings.idempotency_life,
            timeout=settings.decide_timeout,
            clock=clock,
        )
        self._idempotency = Idempotency(self._pipeline, self._cursors, self._kept)
        self._mirrors = Mirrors(
            self._pipeline,
            quota=self._quota,
            evidence=self._outcomes,
            snapshot=lambda: catalog.snapshot,
            settings=settings.shadow,
            clock=clock,
        )
        self._reporter = OutcomeReporter(
            self._outcomes.table,
            lambda: catalog.snapshot,
            lambda address: dialer.channel(address, "rollout"),
            source=settings.instance,
            incarnation=str(uuid.UUID(int=rng.getrandbits(128))),
            clock=clock,
            rng=rng,
        )
        self._identifier = Identifier(
            catalog.tenant_of_workload, tls=settings.tls is not None, sample_ratio=settings.trace_sample_ratio, rng=rng
        )

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `Service`."""
        native = InferenceServicer(
            self._pipeline,
            self._identifier,
            self._catalog,
            self._cursors,
            self._idempotency,
            heartbeat=self._settings.heartbeat_seconds,
        )
        facade = openai.OpenAIServicer(
            self._pipeline,
            self._identifier,
            self._catalog,
            self._cursors,
            self._idempotency,
            usage=self._ask_usage,
            desk=Desk(
                self._catalog,
                budgets=self._standing.budgets,
                spend=self._standing.spend,
                broken=self._router.broken,
                clock=self._clock,
            ),
            max_body_bytes=self._settings.max_message_bytes,
            clock=self._clock,
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(native, server)
        openai.register(facade, server)
        return ["weir.inference.v1.InferenceService", "weir.openai.v1.OpenAIService"]

    async def run(self, ready: Callable[[], None]) -> None:
        """See `Service`. Ready means: a registry snapshot, its tokenizers, and a stream to every deciding service, or
        its fallback where there is none after a while."""
        closing = contextlib.aclosing
        async with closing(self._texts), closing(self._standing), self._books, asyncio.TaskGroup() as group:
            for link in self._links:
                group.create_task(link.run())
            own = (self._view, self._quota, self._router, self._admission, self._workers, self._audit, self._reporter)
            for background in (*own, self._kept):
                group.create_task(background.run())
            await self._view.wait_ready()
            self._view.on_change(self._on_snapshot)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FILES_SECONDS):
                    await self._catalog.preload()
            await self._wait_leaves()
            self._recover()
            ready()
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                self._pipeline.sweep()
                self._cursors.sweep()
                self._idempotency.sweep()
                self._safety.sweep()
                self._texts.sweep()

    async def _ask_usage(self, request: records_pb2.UsageRequest) -> records_pb2.UsageResponse:
        try:
            answer: records_pb2.UsageResponse = await records_pb2_grpc.RecordsServiceStub(self._books).Usage(
                request, timeout=_USAGE_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return answer

    def _recover(self) -> None:
        """Account for what ran when a former life of this gateway was killed, and settle what that had not."""
        lost = self._audit.recover(partial(account.lost, self._pipeline.parts), self._quota.settle_again)
        if lost:
            log.warning("requests_lost", requests=len(lost))

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
        occupancy = self._pipeline.parts.occupancy
        try:
            async with asyncio.timeout(max(0.0, self._settings.drain_seconds - _LAST_SECONDS)):
                await asyncio.sleep(self._settings.lame_duck_seconds)
                await occupancy.drain()
        except TimeoutError:
            occupancy.cut()
        async with asyncio.timeout(_LAST_SECONDS):
            await occupancy.drain()
            if self._audit.connected:  # else what waits goes on from the disk, in the next life
                await self._audit.drained()
            while self._quota.pending or self._admission.pending:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
            await self._kept.drain()

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
        """Record a finding of safety's; the record names the pattern and never the text."""
        event = audit_pb2.SafetyEvent(
            request_id=request_id,
            tenant=tenant,
            stage=stage,
            category=found.category,
            pattern=found.pattern,
            action=safety_pb2.Action.Name(found.action).removeprefix("ACTION_").lower(),
            pack=found.pack,
        )
        self._audit.write(
            audit_pb2.Record(
                id=str(uuid.UUID(int=self._rng.getrandbits(128))),
                time=to_timestamp(self._clock.time()),
                source=f"{self._settings.service}/{self._settings.instance}",
                safety=event,
            )
        )

    def _on_snapshot(self, snapshot: RegistrySnapshot) -> None:
        self._catalog.update(snapshot)
        self._pipeline.parts.membership.changed()
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
