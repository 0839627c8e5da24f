"""A rollout's weight changes in a large registry: until Envoy's acknowledgement, every gateway, the last request.

Real etcd that syncs every write to disk, control plane, edge-auth, predictors and Envoy over mTLS; two processes that
hold a gateway's knowledge of the registry and one that holds a router's. The control plane runs in this process, so an
acknowledgement is seen as it arrives. Clocks are the machine's monotonic one, which all processes share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import uvloop
from google.protobuf.message import Message
from prometheus_client import REGISTRY
from weir.registry.v1 import registry_pb2 as pb

from libs.breaker import BreakerBoard, BreakerOptions
from libs.catalog import Catalog
from libs.clock import SystemClock
from libs.registry import EtcdStore, RegistrySnapshot, RegistryView
from libs.registry.view import Callback
from libs.texts import TextStore
from loadtest.figures import percentile
from loadtest.helper import helper
from services.controlplane.publisher import Publisher
from services.router.server import RouterServicer
from tests.support.predictions import MODEL, PredictionEdge, prediction_edge, rollout

WATCHERS = ("gateway", "gateway", "router")
"""The processes that follow the registry, beside edge and control plane."""
ROLLOUTS = 50
"""Aliases with a rollout under way; every second one is confined to fifty tenants."""
_WARM_UP = 10


def measure_large(
    *, models: int = 200, tenants: int = 2000, samples: int = 200, rollbacks: int = 20
) -> dict[str, float]:
    """The figures, by name; must not be called from a running event loop.

    `xds_ack_ms_*_large`: from before the write is sent to etcd until Envoy has acknowledged the routes.
    `gateway_seen_ms_*_large`: until the last of the watching processes decides by it.
    `edge_off_ms_*_large`: from the write that ends a rollout to the start of the last request that its arm answered.
    `snapshot_build_ms_large`: median over the changes; `snapshot_first_build_ms_large`: the first one, of everything.
    `snapshot_bytes_large`: all resources for all clients; `routes_bytes_large`: what one change sends to Envoy.
    """
    return uvloop.run(_measure(models, tenants, samples, rollbacks))


def large_registry(models: int, tenants: int) -> list[Message]:
    """Models of two versions with an alias each, tenants, rollouts, and predictors of every version in two zones."""
    names = [f"model-{number:04}" for number in range(models)]
    resources: list[Message] = [pb.Tenant(id=f"tenant-{number:05}", plan=pb.PLAN_FREE) for number in range(tenants)]
    versions = []
    for name in names:
        for version in ("1", "2"):
            resources.append(pb.ModelVersion(name=name, version=version, pool="predict", tier="fast"))
            versions.append(f"{name}@{version}")
        resources.append(pb.Alias(name=name, targets=[pb.AliasTarget(model_version=f"{name}@1", weight=100)]))
    resources += [weighted(name, 1000, confined=number % 2 == 1) for number, name in enumerate(names[:ROLLOUTS])]
    for start in range(0, len(versions), 10):
        for replica, zone in enumerate(("zone-a", "zone-b")):
            # Nobody listens there and nobody asks: what counts is that they are told of.
            address = f"127.0.{1 + replica}.1:{10_000 + start}"
            instance = f"predictor-{start}-{replica}"
            held = versions[start : start + 10]
            resources.append(
                pb.Endpoint(service="predictor", instance=instance, address=address, zone=zone, model_versions=held)
            )
    return resources


def weighted(alias: str, weight: int, *, confined: bool) -> pb.Rollout:
    """A canary of one of the models."""
    return pb.Rollout(
        alias=alias,
        id=f"rollout-of-{alias}",
        baseline=f"{alias}@1",
        arms=[pb.RolloutArm(name="canary", model_version=f"{alias}@2")],
        sticky=pb.STICKY_BY_USER,
        blast_radius=pb.BlastRadius(max_tenants=50 if confined else 0),
        state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_CANARY, step=1, weights=[weight]),
    )


class Watcher:
    """A process that follows the registry, as seen from here."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._newest = (0, 0.0)
        self._over = False
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Takes in what it prints until it ends."""
        if self._process.stdout is None:
            raise RuntimeError("its output is not a pipe")
        async for line in self._process.stdout:
            revision, moment = line.split()
            self._newest = (int(revision), float(moment))
            self._changed.set()
        self._over = True
        self._changed.set()

    async def wait(self, revision: int) -> float:
        """`time.monotonic()` when it decided by that revision.

        :raises RuntimeError: it has ended.
        """
        while self._newest[0] < revision:
            if self._over:
                raise RuntimeError("a process that follows the registry has ended")
            self._changed.clear()
            await self._changed.wait()
        return self._newest[1]


async def _measure(models: int, tenants: int, samples: int, rollbacks: int) -> dict[str, float]:
    rng = random.Random(7)
    resources = large_registry(models, tenants)
    names = [f"model-{number:04}" for number in range(min(models, ROLLOUTS))]
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        before = _build_seconds()[0]
        edge = await stack.enter_async_context(prediction_edge(directory, resources=resources, fsync=True))
        watchers = await stack.enter_async_context(_watching(edge))
        first_build = _build_seconds()[0] - before
        acked, seen, builds = [], [], []
        for number in range(_WARM_UP + samples):
            # Apart by more than the publishing interval, and not in step with any timer.
            await asyncio.sleep(rng.uniform(0.02, 0.06))
            place = number % len(names)
            change = weighted(names[place], 1001 + number, confined=place % 2 == 1)
            built, count = _build_seconds()
            started = time.monotonic()
            revision = await edge.put(change)
            async with asyncio.timeout(60):
                ack = await edge.acks.wait(revision) - started
                last = max([await watcher.wait(revision) for watcher in watchers]) - started
            after, now = _build_seconds()
            if number >= _WARM_UP:
                acked.append(ack * 1e3)
                seen.append(last * 1e3)
                builds.append((after - built) / max(1, now - count) * 1e3)
        off = [await _rollback(edge, number) * 1e3 for number in range(rollbacks)]
        figures = {
            **_quantiles("xds_ack_ms", acked),
            **_quantiles("gateway_seen_ms", seen),
            **_quantiles("edge_off_ms", off),
            "snapshot_build_ms_large": round(percentile(builds, 0.5), 3),
            "snapshot_build_ms_p99_large": round(percentile(builds, 0.99), 3),
            "snapshot_first_build_ms_large": round(first_build * 1e3, 1),
            **_sizes(edge.plane.control.publisher),
        }
    return {**figures, "models_large": models, "tenants_large": tenants, "samples_large": samples}


def _quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_p{q}_large": round(percentile(values, q / 100), 3) for q in (50, 99)} if values else {}


def _build_seconds() -> tuple[float, float]:
    """Seconds spent on snapshots in this process so far, and how many they were."""
    name = "weir_controlplane_build_seconds"
    return REGISTRY.get_sample_value(f"{name}_sum") or 0.0, REGISTRY.get_sample_value(f"{name}_count") or 0.0


def _sizes(publisher: Publisher) -> dict[str, float]:
    distinct = {
        id(resource): (kind, len(resource.value))
        for offers in publisher.current.offers.values()
        for kind, offer in offers.items()
        for resource in offer.resources.values()
    }
    routes = [size for kind, size in distinct.values() if kind.endswith("RouteConfiguration")]
    return {"snapshot_bytes_large": sum(size for _, size in distinct.values()), "routes_bytes_large": max(routes)}


async def _rollback(edge: PredictionEdge, number: int) -> float:
    """Seconds from the write that ends a rollout to the start of the last request that still met its arm."""
    users = [f"user-{number}-{each}" for each in range(4)]
    running = rollout(10_000)
    running.id = f"rollback-{number}"
    await edge.put(running)
    for user in users:
        await edge.reaches(MODEL, user, f"{MODEL}@2")
    ended = pb.Rollout()
    ended.CopyFrom(running)
    ended.state.phase = pb.ROLLOUT_PHASE_ROLLED_BACK
    last_met = 0.0
    written = asyncio.Event()

    async def ask(user: str) -> None:
        """Asks again and again, until it has met the baseline a few times after the write."""
        nonlocal last_met
        others = 0
        while others < 5:
            started = time.monotonic()
            version = (await edge.infer(MODEL, user))[1]
            if version == f"{MODEL}@2":
                last_met = max(last_met, started)
            elif written.is_set():
                others += 1

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for user in users:
            group.create_task(ask(user))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await edge.put(ended)
        written.set()
    return max(0.0, last_met - began)


@contextlib.asynccontextmanager
async def _watching(edge: PredictionEdge) -> AsyncIterator[list[Watcher]]:
    """The watching processes, once all of them have read the registry."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for kind in WATCHERS:
            words = ("-m", "loadtest.xds_large", "--watch", kind, "--etcd", edge.etcd)
            process = await stack.enter_async_context(helper(*words, stdout=asyncio.subprocess.PIPE))
            watcher = Watcher(process)
            reading = asyncio.create_task(watcher.read())
            stack.callback(reading.cancel)
            found.append(watcher)
        async with asyncio.timeout(60):
            for watcher in found:
                await watcher.wait(1)
        yield found


async def watch(kind: str, etcd: str) -> None:
    """The child process: prints every revision when the service would decide by it, until it is killed."""
    async with _store(etcd) as store:
        view = RegistryView(store, clock=SystemClock())
        use = _deciding(kind)

        def changed(snapshot: RegistrySnapshot) -> None:
            use(snapshot)
            sys.stdout.write(f"{snapshot.revision} {time.monotonic()}\n")
            sys.stdout.flush()

        view.on_change(changed)
        await view.run()


@contextlib.asynccontextmanager
async def _store(etcd: str) -> AsyncIterator[EtcdStore]:
    store = EtcdStore((etcd,))
    try:
        yield store
    finally:
        await store.close()


def _deciding(kind: str) -> Callback:
    """What the service does with a new snapshot."""
    if kind == "gateway":
        clock = SystemClock()
        texts = TextStore(blobs="", directory=None, max_bytes=0, clock=clock, chance=random.random)
        return Catalog(zone="zone-a", texts=texts, clock=clock).update
    servicer = RouterServicer(
        BreakerBoard(BreakerOptions()),
        instance="router-0",
        clock=SystemClock(),
        max_in_flight=16,
        report_seconds=0.5,
    )
    return servicer.use


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch", choices=sorted(set(WATCHERS)), required=True)
    parser.add_argument("--etcd", required=True)
    options = parser.parse_args()
    uvloop.run(watch(options.watch, options.etcd))
