"""Composition root: registry view → snapshots → publisher → ADS."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
from envoy.service.accesslog.v3 import als_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.status.v3 import csds_pb2_grpc
from google.protobuf import json_format
from weir.registry.v1 import registry_pb2

from libs.clock import Clock, SystemClock
from libs.registry import EtcdStore, RegistrySnapshot, RegistryView, Store, WatchBatch, followed_by, keys
from libs.routing import RoutingTable, rules_of
from libs.service.pages import Pages
from libs.telemetry import get_logger
from services.controlplane import losses, metrics, versions
from services.controlplane.config import Settings
from services.controlplane.convert import encode, endpoints_of
from services.controlplane.descriptors import transcoder_descriptors
from services.controlplane.policy.consistency import consistent
from services.controlplane.policy.endpoints import Endpoint, predictors_of
from services.controlplane.policy.predictions import Prediction, predictions_of
from services.controlplane.policy.snapshot import Snapshot, build_snapshot, with_epoch
from services.controlplane.publisher import Publisher
from services.controlplane.server import ADS_SERVICE, STATUS_SERVICE, AdsServicer, OnAck
from services.controlplane.targets import targets_of

log = get_logger(__name__)
_VERSIONS = "versions.json"
_CACHE = "registry.cache"


@dataclass(frozen=True, slots=True)
class _Live:
    """The registered endpoints, read."""

    source: Mapping[Any, Any]
    endpoints: Sequence[Endpoint]
    bad: Sequence[str]
    predictors: Mapping[str, tuple[Endpoint, ...]]
    """By the version that they answer for."""

    @classmethod
    def of(cls, source: Mapping[Any, registry_pb2.Endpoint]) -> _Live:
        """Reads the registry's collection."""
        endpoints, bad = endpoints_of(source.values())
        return cls(source, endpoints, bad, predictors_of(endpoints))


class ControlPlane:
    """Keeps the publisher at the registry's newest consistent state."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        owns_store: bool,
        clock: Clock,
        rng: random.Random,
        acknowledged: OnAck | None = None,
    ) -> None:
        """:param owns_store: closes it at the end.
        :param acknowledged: told of every acknowledgement.
        """
        state = Path(settings.state_dir) if settings.state_dir else None
        self._settings = settings
        self._store = store
        self._owns_store = owns_store
        self._clock = clock
        self._edge = msgspec.structs.replace(
            settings.edge,
            trace_endpoint=settings.trace_endpoint,
            trace_sample_ratio=settings.trace_sample_ratio,
        )
        self._versions_file = state / _VERSIONS if state else None
        self._view = RegistryView(
            store,
            kinds=followed_by("controlplane"),
            root=keys.ROOT,
            cache_file=state / _CACHE if state else None,
            clock=clock,
        )
        self._descriptors = transcoder_descriptors()
        self._saved = versions.load(self._versions_file) if self._versions_file else {}
        self._changed = asyncio.Event()
        self._live = self._published = _Live.of({})
        self._table = RoutingTable.of(RegistrySnapshot())
        self._predictions: tuple[Prediction, ...] = ()
        self._predictors: Mapping[str, tuple[Endpoint, ...]] = {}
        self._snapshot: Snapshot | None = None  # that is served
        self._epoch = (0, "")  # what it says: the revision of the last revocation, and the rules of rollouts
        self.publisher = Publisher()
        """What is served."""
        self.losses = losses.Losses(lambda: self._view.snapshot)
        """What Envoys lost."""
        self._reporter = self.losses.reporter(settings, clock=clock, rng=rng)
        self._servicer = AdsServicer(
            self.publisher,
            roles=self._view,
            clock=clock,
            tls=settings.tls is not None,
            acknowledged=acknowledged,
        )

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self._servicer, server)
        csds_pb2_grpc.add_ClientStatusDiscoveryServiceServicer_to_server(self._servicer, server)
        als_pb2_grpc.add_AccessLogServiceServicer_to_server(self.losses, server)
        return [ADS_SERVICE, STATUS_SERVICE, losses.SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Follows the registry; ready with the first published snapshot."""
        self._view.on_batch(self._look_for_revocation)
        stop = self._view.on_change(lambda _: self._changed.set())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run())
                group.create_task(self._reporter.run())
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    if self._publish(self._view.snapshot):
                        ready()
                        await self._save_versions()
                    # The first change of a burst went out at once; the rest of it goes together.
                    await asyncio.sleep(self._settings.publish_interval_ms / 1000)
        finally:
            stop()
            if self._owns_store:
                await self._store.close()

    async def drain(self) -> None:
        """Nothing to finish: clients keep their state and reconnect elsewhere."""

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._view.revision else ("etcd",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}

    def pages(self) -> Pages:
        """See `libs.service.Paged`: who is to be scraped, as of the newest registry, for Prometheus."""
        return {"/targets": lambda: targets_of(self._view.snapshot)}

    def _look_for_revocation(self, batch: WatchBatch) -> None:
        """No kind that is followed here need have changed."""
        if any(event.key == keys.EPOCH for event in batch.events):
            self._changed.set()

    def _publish(self, registry: RegistrySnapshot) -> bool:
        """Build, check, encode, serve; a faulty state is refused and the last one stays, but for revocations. Whether
        anything was published."""
        started = self._clock.monotonic()
        self._table = table = RoutingTable.of(registry, self._table)
        if registry.endpoints is not self._live.source:
            self._live = _Live.of(registry.endpoints)
            metrics.BAD_ENDPOINTS.set(len(self._live.bad))
            if self._live.bad:
                log.warning("endpoints_unreadable", endpoints=self._live.bad)
        live = self._live
        predictions = predictions_of(table, live.predictors.keys())
        told = self._view.stored(keys.EPOCH)
        epoch = (told.mod_revision if told else 0, rules_of(table.splits))
        same = live is self._published and predictions == self._predictions
        if self.publisher.current.revision and same and epoch == self._epoch:
            # Tenants, keys and limits changed, and collections that did not are the same objects.
            self.publisher.revise(registry.revision)
            metrics.REVISION.set(registry.revision)
            return True
        # A cluster outlives its routes, with the endpoints that it had last: Envoy hears of clusters and endpoints
        # first, and must not send requests to one that is gone or empty until it has the new routes.
        self._predictors = {
            version: members
            for version, members in {**self._predictors, **live.predictors}.items()
            if version in registry.model_versions
        }
        snapshot = build_snapshot(
            registry.revision,
            live.endpoints,
            self._edge,
            services=self._settings.services,
            descriptors=self._descriptors,
            predictions=predictions,
            predictors=self._predictors,
            revoked_at=epoch[0],
            rules=epoch[1],
        )
        faults = consistent(snapshot)
        if faults:
            return self._refuse(registry.revision, faults, epoch)
        try:
            self._serve(snapshot, epoch)
        except json_format.ParseError as error:
            return self._refuse(registry.revision, [str(error)], epoch)
        self._published, self._predictions = live, predictions
        metrics.BUILD.observe(self._clock.monotonic() - started)
        metrics.SNAPSHOTS.labels("published").inc()
        metrics.REVISION.set(registry.revision)
        log.debug("snapshot_published", revision=registry.revision)
        return True

    def _serve(self, snapshot: Snapshot, epoch: tuple[int, str]) -> None:
        """:raises json_format.ParseError: a resource does not fit its message; nothing has changed."""
        self.publisher.publish(encode(snapshot, self.publisher.current, self._saved))
        self._snapshot, self._epoch = snapshot, epoch

    def _refuse(self, revision: int, faults: list[str], epoch: tuple[int, str]) -> bool:
        """What was taken from credentials holds whatever else is wrong: the last snapshot says that."""
        told = self._snapshot is not None and epoch != self._epoch
        if self._snapshot is not None and told:
            last = replace(self._snapshot, version=self.publisher.current.revision)  # it held until then
            self._serve(with_epoch(last, *epoch), epoch)
        self.publisher.refused = f"revision {revision}: {'; '.join(faults)[:1000]}"
        metrics.SNAPSHOTS.labels("refused").inc()
        log.error("snapshot_refused", revision=revision, faults=faults[:20])
        return told

    async def _save_versions(self) -> None:
        current = self.publisher.current.versions
        if self._versions_file is None or current == self._saved:
            return
        self._saved = current
        writing = asyncio.ensure_future(asyncio.to_thread(versions.save, self._versions_file, current))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # Clients may have these versions already, so the next start shall know them: the stop waits for the disk.
            await asyncio.wait([writing])
            raise
        except OSError as error:
            log.warning("versions_not_saved", error=str(error))


async def build(
    settings: Settings, *, clock: Clock | None = None, store: Store | None = None, acknowledged: OnAck | None = None
) -> ControlPlane:
    """The control plane over etcd, or over a store of the caller's (tests); `acknowledged` as in `AdsServicer`."""
    return ControlPlane(
        settings=settings,
        store=store or EtcdStore(settings.etcd, tls=settings.tls, guarded=True),
        owns_store=store is None,
        clock=clock or SystemClock(),
        rng=random.Random(),  # noqa: S311 - jitter
        acknowledged=acknowledged,
    )
