"""Real routers, and a gateway's client of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from weir.mux.v1 import mux_pb2
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2 as pb
from weir.router.v1 import router_pb2_grpc

from libs.catalog import Catalog
from libs.clock import Clock, SystemClock
from libs.mux import Codec, MuxClient
from libs.registry import MemoryStore, Put, RegistrySnapshot, snapshot_of
from libs.registry import keys as registry_keys
from libs.routes import RouterClient
from libs.rpc import make_channel
from libs.texts import TextStore
from tests.support.registry_service import grant, tenant

CLOCK = SystemClock()
VERSIONS = ("weir-fast@1", "weir-fast@2", "weir-fast@3")
VERSION, WARM, AFTER = VERSIONS
BOTH = ["zone-a", "zone-b"]


def put(message: Any) -> Put:
    return Put(registry_keys.key_of(message), registry_keys.encode(message))


def endpoint(service: str, instance: str, **more: Any) -> Put:
    return put(registry_pb2.Endpoint(service=service, instance=instance, **more))


def mux(address: str) -> MuxClient:
    stub = router_pb2_grpc.RouterServiceStub(make_channel(address, tls=None))
    return MuxClient(
        open_stream=lambda: stub.Session(wait_for_ready=True),
        codec=Codec.of(pb.SessionRequest, pb.SessionResponse),
        hello=mux_pb2.Hello(service="gateway", instance="gateway-0", zone="zone-a"),
        clock=CLOCK,
        rng=random.Random(1),
    )


@contextlib.asynccontextmanager
async def running(*loops: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def store_with_workers() -> MemoryStore:
    store = MemoryStore()
    models = [registry_pb2.ModelVersion(name="weir-fast", version=v[-1], pool="fast", tier="fast") for v in VERSIONS]
    workers = [endpoint("worker", f"w-{zone}", zone=zone, pool="fast", model_versions=VERSIONS) for zone in BOTH]
    await store.txn(puts=[*map(put, (*models, tenant(), grant())), *workers])
    return store


async def catalog_of(store: MemoryStore) -> Catalog:
    texts = TextStore(blobs="", directory=None, max_bytes=0, clock=CLOCK, chance=lambda: 0.0)
    catalog = Catalog(zone="zone-a", texts=texts, clock=CLOCK)
    catalog.update(await updated(store))
    return catalog


async def updated(store: MemoryStore, revision: int = 0) -> RegistrySnapshot:
    """What the registry holds now, as if at a later revision where one is given."""
    return snapshot_of((await store.get_prefix(registry_keys.EVERYTHING)).kvs, revision or store.revision)


def client_of(link: MuxClient, catalog: Catalog, *, clock: Clock = CLOCK) -> RouterClient:
    return RouterClient(
        link,
        catalog.table,
        zone="zone-a",
        clock=clock,
        decide_timeout=5.0,
        open_replica=mux,
        report_seconds=0.01,
    )


def failures(client: RouterClient, count: int, version: str = VERSION, *, pool: str = "fast") -> None:
    for _ in range(count):
        client.outcome(pool=pool, model_version=version, zone="zone-a", ok=False)
