"""The predictor's composition root and its life."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from weir.records.v1 import answers_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.artifacts import BlobStore, open_store
from libs.callers import Identifier
from libs.catalog import Catalog
from libs.clock import Clock, SystemClock
from libs.cursor import KeyringFile
from libs.idempotency import KeptAnswers, Keyed, KeyedCalls
from libs.mux import Dialer
from libs.occupancy import Occupancy
from libs.registry import RegistrySnapshot, RegistryView, Source, follow
from libs.service import Ready
from libs.telemetry import get_logger
from libs.texts import TextStore
from libs.versions.desired import DesiredState
from libs.versions.memory import Memory
from libs.versions.weight_cache import WeightCache
from services.predictor import executors, keyed, metrics, rest, servicer
from services.predictor.books import Books
from services.predictor.cache import Cache
from services.predictor.config import Settings
from services.predictor.desired import VersionLoader, wanted_versions
from services.predictor.forward import FRONTS, Peers
from services.predictor.serve import Predictions
from services.predictor.statistics import Statistics

log = get_logger(__name__)
_SWEEP_SECONDS = 0.5
_KEEP_SECONDS = 1.0
"""Of a question to the store of records."""
_KEY_BYTES = 1024
"""That an idempotency key weighs beside its answer."""
MakeBooks = Callable[..., Books]


class Predictor:
    """Implements `libs.service.Service`."""

    def __init__(
        self,
        settings: Settings,
        view: RegistryView,
        blobs: BlobStore,
        weights: WeightCache,
        *,
        books: MakeBooks | None,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._view = view
        self._blobs = blobs
        self._weights = weights
        self._clock = clock
        self._ready: Ready | None = None
        texts = TextStore(blobs="", directory=None, max_bytes=0, clock=clock, chance=rng.random)  # nobody tokenises
        self._catalog = Catalog(zone=settings.zone, texts=texts, clock=clock)
        self._executors = executors.Executors(
            clock, executors.Settings(), absent=lambda version: self._desired.asked(version)
        )
        self._loader = VersionLoader(self._executors, self._version_of, clock)
        self._occupancy = Occupancy(
            most=settings.max_active,
            share=settings.max_active_share,
            clock=clock,
            chance=rng.random,
            service="predictor",
        )
        self._books = (
            books(settings, self._catalog, self._executors, clock=clock, rng=rng) if books is not None else None
        )
        self._cache = Cache(settings.cache_bytes, stale=settings.stale_seconds, clock=clock)
        self.statistics = Statistics()
        self._predictions = Predictions(
            executors=self._executors,
            catalog=self._catalog,
            account=self._books.account if self._books is not None else None,
            cache=self._cache,
            priors=self._loader.priors,
            statistics=self.statistics,
            occupancy=self._occupancy,
            clock=clock,
        )
        self._desired = DesiredState(
            wanted=lambda snapshot, now: wanted_versions(snapshot, settings.pool, now),
            view=view,
            loader=self._loader,
            busy=self._predictions.busy,
            blobs=blobs,
            cache=weights,
            clock=clock,
            require_signatures=settings.require_signatures,
            min_residency=settings.min_residency,
            watcher=metrics.MODELS,
            on_change=self._changed,
            memory=Memory(
                settings.memory_bytes,
                cost=self._executors.memory,
                asked=lambda: self._executors.asked,
                clock=clock,
            ),
        )
        self._identifier = Identifier(
            self._catalog.tenant_of_workload,
            tls=settings.tls is not None,
            sample_ratio=settings.trace_sample_ratio,
            rng=rng,
            fronts=FRONTS,
        )
        self._peers = Peers(
            instance=settings.instance, zone=settings.zone, tls=settings.tls, chance=rng.random, clock=clock
        )
        self._records = Dialer(settings, clock, rng).channel(settings.targets.records, "records")
        self._kept = KeptAnswers(
            answers_pb2_grpc.AnswersServiceStub(self._records) if settings.idempotency_keys else None,
            holder=settings.instance,
            keys=KeyringFile(settings.idempotency_keys),
            life=(life := settings.idempotency_life),
            timeout=_KEEP_SECONDS,
            clock=clock,
        )
        self._keys: Keyed[Any] = Keyed(most_size=settings.idempotency_bytes, life=life, weight=_KEY_BYTES)
        outcomes = metrics.IDEMPOTENCY
        self._keyed = KeyedCalls(self._keys, self._kept, keyed.pack, keyed.unpack, outcomes=outcomes, clock=clock)
        metrics.VERSIONS.watch(self.statistics)

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `Service`."""
        inference = servicer.InferenceServicer(
            self._predictions,
            self._peers,
            self._identifier,
            self._catalog,
            states=lambda: self._desired.states,
            ready=lambda: self._desired.settled.is_set() and not self._occupancy.draining,
            default_deadline=self._settings.default_deadline,
            keyed=self._keyed if self._settings.idempotency_life else None,
            clock=self._clock,
        )
        rest.register(inference, server, max_bytes=self._settings.max_message_bytes)
        return [*servicer.add(inference, server), rest.SERVICE]

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `Service`: Envoy sends a version's requests to those that have it."""
        return {
            "pool": self._settings.pool,
            "model_versions": sorted(self._loader.ready),
            "model_states": self._desired.states,
        }

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        if not self._view.revision:
            return ("registry",)
        return () if self._desired.settled.is_set() else ("model loaded",)

    async def run(self, ready: Ready) -> None:
        """See `Service`. Ready once it serves something, or nothing is wanted of it, or all that is wanted has failed
        (which the registry tells then)."""
        self._ready = ready
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run(), name="registry.view")
                if self._books is not None:
                    group.create_task(self._books.run(), name="books")
                group.create_task(self._kept.run(), name="kept")
                await self._view.wait_ready()
                self._view.on_change(self._on_snapshot)
                group.create_task(self._desired.run(), name="desired")
                await self._desired.settled.wait()
                if self._books is not None:
                    await self._books.begin()
                ready()
                while True:
                    await asyncio.sleep(_SWEEP_SECONDS)
                    self._sweep()
        finally:
            await self._records.close()
            await self._peers.close()
            await self._executors.close()
            await self._blobs.close()
            self._weights.close()
            await self._view.close()

    async def drain(self) -> None:
        """See `Service`. At first it serves on: whoever sends requests here learns meanwhile that its endpoint is
        gone."""
        try:
            async with asyncio.timeout(self._settings.drain_grace):
                await asyncio.sleep(self._settings.lame_duck_seconds)
                await self._occupancy.drain()
        except TimeoutError:
            log.warning("drain_cut", requests=self._occupancy.entered)
            self._occupancy.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._occupancy.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                if self._books is not None:
                    await self._books.drain()
                await self._kept.drain()

    def _version_of(self, version: str) -> registry_pb2.ModelVersion | None:
        found = self._catalog.snapshot.model_versions.get(version)
        return found if found is not None and found.HasField("prediction") else None

    def _on_snapshot(self, snapshot: RegistrySnapshot) -> None:
        self._catalog.update(snapshot)
        self._peers.update(snapshot)
        self._loader.forget(snapshot.model_versions)
        if self._books is not None:
            self._books.update(snapshot)

    def _changed(self) -> None:
        """Versions came, went or failed: the registry is to know."""
        if self._ready is not None:
            self._ready.changed()

    def _sweep(self) -> None:
        self._occupancy.sweep(self._clock.monotonic())
        if self._books is not None:
            self._books.sweep()
        self._keys.expire(self._clock.monotonic())
        self.statistics.keep(frozenset(self._catalog.snapshot.model_versions))
        metrics.ACTIVE.set(self._occupancy.entered)
        metrics.CACHE_BYTES.set(self._cache.used_bytes)


async def build(
    settings: Settings,
    *,
    clock: Clock | None = None,
    store: Source | None = None,
    books: MakeBooks | None = Books,
) -> Predictor:
    """The service. `store` replaces the registry in tests; without `books` nothing is accounted for.

    :raises BlobUriError: `blobs` is no address of a blob store.
    :raises CacheUnavailableError: the folder of the weight cache cannot be used.
    """
    clock = clock or SystemClock()
    blobs = open_store(settings.blobs)
    folder = Path(settings.weight_cache or Path(settings.state_dir) / "weights")
    weights = WeightCache(folder, settings.weight_cache_bytes, clock=clock)
    view = follow("predictor", settings, source=store, clock=clock)
    return Predictor(
        settings,
        view,
        blobs,
        weights,
        books=books,
        clock=clock,
        rng=random.Random(),  # noqa: S311 - ids and jitter, of which nothing is secret: a system call each is too dear
    )
