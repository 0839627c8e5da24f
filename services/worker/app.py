"""The worker's composition root and its life."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2_grpc

from libs.artifacts import BlobStore, open_store
from libs.clock import Clock, SystemClock
from libs.errors import Reason, WeirError
from libs.grants import GrantVerifier
from libs.registry import RegistrySnapshot, RegistryView, Source, follow
from libs.rollouts import desired_versions
from libs.service import Ready
from libs.telemetry import get_logger
from libs.versions.desired import DesiredState
from libs.versions.weight_cache import WeightCache
from services.worker import metrics
from services.worker.capacity import CapacityReporter
from services.worker.config import Settings
from services.worker.engines.catalogue import OnFailure, create
from services.worker.engines.port import Engine, EngineInfo, EngineLoadError
from services.worker.engines.supervised import SupervisedEngine
from services.worker.hub import Hub
from services.worker.intake import Intake
from services.worker.models import check_models, digests_of
from services.worker.policy.restarts import Restarts
from services.worker.server import SERVICE, WorkerServicer

log = get_logger(__name__)

_FLUSH_SECONDS = 2.0  # for the last frames of streams whose sequences have all ended
_MAX_RESTART_DELAY = 10.0  # seconds


class EngineFailedError(Exception):
    """The engine broke too often; the process must leave so that a fresh one takes over."""


class WorkerService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        engine: SupervisedEngine,
        failed: asyncio.Future[None],
        hub: Hub,
        intake: Intake,
        servicer: WorkerServicer,
        verifier: GrantVerifier,
        view: RegistryView | None,
        blobs: BlobStore | None,
        cache: WeightCache | None,
    ) -> None:
        self._blobs = blobs
        self._cache = cache
        self._desired: DesiredState | None = None
        if view is not None and blobs is not None and cache is not None:
            self._desired = DesiredState(
                wanted=lambda snapshot, now: desired_versions(snapshot, settings.pool, now),
                view=view,
                loader=engine,
                busy=lambda: hub.busy_models,
                blobs=blobs,
                cache=cache,
                clock=clock,
                require_signatures=settings.require_signatures,
                min_residency=settings.min_residency,
                watcher=metrics.MODELS,
                on_change=self._models_changed,
            )
        self._settings = settings
        self._clock = clock
        self._engine = engine
        self._failed = failed
        self._hub = hub
        self._intake = intake
        self._servicer = servicer
        self._verifier = verifier
        self._view = view
        self._address = f"{settings.host}:{settings.port}"
        self._reporter: CapacityReporter | None = None
        self._ready: Ready | None = None
        self._said_ready = False

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    def listening(self, address: str) -> None:
        """See `libs.service.Listening`: gateways are sent to this address."""
        self._address = address

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._desired is None or self._desired.settled.is_set() else ("model loaded",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        if self._ready is None:  # the engine has not started
            return {"pool": self._settings.pool}
        info = self._engine.info
        return {
            "pool": self._settings.pool,
            "model_versions": list(info.models),
            "engine": info.engine,
            "simulated": info.simulated,
            "numerics": info.numerics,
            "model_states": self._desired.states if self._desired is not None else [],
        }

    async def run(self, ready: Ready) -> None:
        """Start the engine, then serve. Ready once it serves something, or nothing is wanted of it, or all that is
        wanted has failed (which the registry tells then); whether or not admission is up yet.

        :raises EngineLoadError: a model cannot be loaded, or is another than the registry says.
        :raises EngineFailedError: the engine broke more often than the settings allow.
        """
        try:
            async with asyncio.TaskGroup() as group:
                starting = group.create_task(self._engine.start(self._hub.on_step))  # whose imports take seconds
                if self._view is not None:
                    group.create_task(self._view.run(), name="registry.view")
                    await self._check_models(self._view)
                await asyncio.wait((starting,))
                self._hub.attach(self._engine)
                metrics.watch(self._engine)
                reporter = self._reporter = self._make_reporter()
                self._hub.on_change(reporter.changed)
                group.create_task(self._engine.supervise(), name="engine")
                group.create_task(reporter.run(), name="capacity")
                self._find_admission(reporter)
                if not self._settings.require_grants:
                    log.warning("grants_not_required")
                self._ready = ready
                if self._desired is not None:
                    self._desired.has(digests_of(self._fixed_models(), self._snapshot))
                    group.create_task(self._desired.run(), name="desired")
                    await self._desired.settled.wait()
                ready()
                self._said_ready = True
                await self._wait_for_failure()
        finally:
            await self._engine.stop()
            if self._blobs is not None:
                await self._blobs.close()
            if self._cache is not None:
                self._cache.close()
            if self._view is not None:
                await self._view.close()

    def model_lost(self, model: str, error: EngineLoadError) -> None:
        """A fresh engine could not load what the one before had."""
        if self._desired is not None:
            self._desired.lost(model, error)

    def _models_changed(self) -> None:
        """Versions came, went or failed: the registry and admission are to know."""
        if self._said_ready and self._ready is not None:
            self._ready.changed()
        if self._reporter is not None:
            self._reporter.changed()

    def _fixed_models(self) -> Mapping[str, str]:
        """Those of the settings that the engine serves."""
        served = self._engine.info.models
        return {model: folder for model, folder in self._settings.models.items() if model in served}

    @property
    def _snapshot(self) -> RegistrySnapshot:
        return self._view.snapshot if self._view is not None else RegistrySnapshot()

    async def drain(self) -> None:
        """Take nothing new, let running sequences finish within the grace, then end the streams: gateways continue
        what is left on other workers."""
        self._stop_intake("draining")
        try:
            async with asyncio.timeout(self._settings.drain_grace):
                await self._hub.wait_idle()
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._servicer.finish()
        except TimeoutError:
            log.warning("drain_cut", sequences=self._hub.live)
            await self._servicer.cut(WeirError(Reason.DRAINING, "the worker is shutting down"))

    def _stop_intake(self, reason: str) -> None:
        self._servicer.go_away(reason)
        if self._reporter is not None:
            self._reporter.changed()

    def _on_drain(self, reason: str) -> None:
        log.info("drain_ordered", why=reason)
        self._stop_intake(reason or "drained by admission")

    async def _check_models(self, view: RegistryView) -> None:
        """Compare the folders with the registry, now if it can be reached in time, and again on every change."""
        try:
            async with asyncio.timeout(self._settings.registry_wait):
                await view.wait_ready()
        except TimeoutError:
            log.warning("registry_unreachable", models=list(self._settings.models))
        check_models(self._settings.models, view.snapshot)
        view.on_change(self._recheck)

    def _recheck(self, snapshot: RegistrySnapshot) -> None:
        try:
            check_models(self._settings.models, snapshot)
        except EngineLoadError as error:
            if not self._failed.done():
                self._failed.set_exception(error)

    def _find_admission(self, reporter: CapacityReporter) -> None:
        if self._settings.admission:
            reporter.connect(self._settings.admission)
        elif self._view is not None:
            self._view.on_change(lambda snapshot: reporter.connect(_admission_addresses(snapshot)))
            reporter.connect(_admission_addresses(self._view.snapshot))

    def _make_reporter(self) -> CapacityReporter:
        settings = self._settings
        return CapacityReporter(
            hello=self._hello,
            info=lambda: self._engine.info,
            capacity=self._engine.capacity,
            progress=lambda: self._hub.progress,
            draining=lambda: bool(self._intake.draining) or not self._engine.up,
            verifier=self._verifier,
            earlier=self._hub.earlier,
            on_preempt=self._hub.interrupt,
            on_drain=self._on_drain,
            clock=self._clock,
            rng=random.Random(),  # noqa: S311 - jitter, not a secret
            tls=settings.tls,
            report_interval=settings.report_interval,
            key_grace=settings.key_grace,
        )

    def _hello(self, info: EngineInfo) -> admission_pb2.WorkerHello:
        settings = self._settings
        return admission_pb2.WorkerHello(
            worker=settings.instance,
            address=self._address,
            zone=settings.zone,
            pool=settings.pool,
            model_versions=info.models,
            block_size=info.block_size,
            total_blocks=info.total_blocks,
            max_running=info.max_running,
            max_context=info.max_context,
            simulated=info.simulated,
            engine=info.engine,
            preemptive=info.preemptive,
            holds_shares=info.holds_shares,
            takes_credits=True,
        )

    @property
    def admission_live(self) -> bool:
        """Whether any admission process knows this worker at present."""
        return self._reporter is not None and self._reporter.live > 0

    async def engine_down(self) -> None:
        """Send the engine's sequences on to other workers.

        Admission must hear first that this one takes nothing, or it would send them here again: reports of a change
        leave within `report_interval`. What is submitted meanwhile is handed back with the rest.
        """
        if self._reporter is not None:
            self._reporter.changed()
            await asyncio.sleep(2 * self._settings.report_interval)
        self._hub.hand_back(WeirError(Reason.DRAINING, "the engine is restarting", retry_after=1.0))

    def engine_up(self) -> None:
        """Take work again. The fresh engine may lack a model: what was told while there was none is told anew."""
        self._hub.attach(self._engine)
        self._models_changed()

    async def _wait_for_failure(self) -> None:
        """Return never. When the engine is given up, what is still to be said is written out first."""
        try:
            await asyncio.shield(self._failed)
        except Exception as error:  # whatever broke the engine ends this process
            self._stop_intake("the engine failed")
            log.error("engine_given_up", error=type(error).__name__)
            try:
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._hub.wait_idle()
                    await self._servicer.finish()
            except TimeoutError:
                await self._servicer.cut(WeirError(Reason.ENGINE_ERROR, "the engine failed"))
            if isinstance(error, EngineLoadError):
                raise
            raise EngineFailedError("the engine failed") from error


async def build(
    settings: Settings,
    *,
    clock: Clock | None = None,
    make_engine: Callable[[OnFailure], Engine] | None = None,
    store: Source | None = None,
) -> WorkerService:
    """The service. `make_engine` and `store` replace the configured engine and the registry in tests.

    :raises EngineLoadError: the settings name no engine or make no sense.
    :raises BlobUriError: `blobs` is no address of a blob store.
    :raises CacheUnavailableError: the folder of the weight cache cannot be used.
    """
    clock = clock or SystemClock()
    settings = with_cache(settings)
    blobs = open_store(settings.blobs) if settings.blobs else None
    weights = WeightCache(Path(settings.weight_cache), settings.weight_cache_bytes, clock=clock) if blobs else None
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_failure(error: BaseException) -> None:
        if not failed.done():
            failed.set_exception(error)

    make = make_engine or functools.partial(_create, settings, clock)
    engine = SupervisedEngine(
        make,
        restarts=Restarts(
            limit=settings.engine_restart_limit,
            window=settings.engine_restart_window,
            first_delay=settings.engine_restart_delay,
            max_delay=_MAX_RESTART_DELAY,
        ),
        silence=settings.engine_silence,
        most_faults=settings.engine_fault_limit,
        clock=clock,
        on_down=lambda: service.engine_down(),
        on_up=lambda: service.engine_up(),
        on_given_up=on_failure,
        on_lost=lambda model, error: service.model_lost(model, error),
    )
    view = None
    if store is not None or settings.etcd or settings.registry:
        view = follow("worker", settings, source=store, clock=clock)
    hub = Hub(clock=clock, max_unread_tokens=settings.max_unread_tokens)
    verifier = GrantVerifier(settings.instance, clock=clock)
    service: WorkerService
    intake = Intake(
        hub=hub,
        verifier=verifier,
        require_grants=settings.require_grants,
        max_waiting=settings.max_waiting,
        max_ungranted=settings.max_ungranted,
        admission_live=lambda: service.admission_live,
    )
    service = WorkerService(
        settings=settings,
        clock=clock,
        engine=engine,
        failed=failed,
        hub=hub,
        intake=intake,
        servicer=WorkerServicer(
            hub=hub,
            intake=intake,
            worker=settings.instance,
            max_embed_inputs=settings.max_embed_inputs,
        ),
        verifier=verifier,
        view=view,
        blobs=blobs,
        cache=weights,
    )
    return service


def with_cache(settings: Settings) -> Settings:
    """The settings with one weight cache for what is fetched and for the engine, if anything is fetched.

    :raises EngineLoadError: there is no folder for it.
    """
    if not settings.blobs:
        return settings
    folder = settings.weight_cache or settings.torch.weight_cache
    if not folder and settings.state_dir:
        folder = str(Path(settings.state_dir) / "weights")
    if not folder:
        raise EngineLoadError("blobs is set: weight_cache or state_dir must name a folder for the files")
    size = settings.weight_cache_bytes
    torch = msgspec.structs.replace(settings.torch, weight_cache=folder, weight_cache_bytes=size)
    return msgspec.structs.replace(settings, weight_cache=folder, torch=torch)


def _create(settings: Settings, clock: Clock, on_failure: OnFailure) -> Engine:
    return create(settings, clock=clock, on_failure=on_failure)


def _admission_addresses(snapshot: RegistrySnapshot) -> frozenset[str]:
    return frozenset(each.address for each in snapshot.endpoints_of("admission"))
