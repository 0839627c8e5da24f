"""A gateway's router client beside real routers: all of them learn, and the fallback honours what is known."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from weir.mux.v1 import mux_pb2
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2 as pb
from weir.router.v1 import router_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.mux import Codec, MuxClient, Semantics
from libs.registry import MemoryStore, Put, snapshot_of
from libs.registry import keys as registry_keys
from libs.routing import RouteRequest
from libs.rpc import make_channel
from libs.service import serve
from services.gateway.catalog import Catalog
from services.gateway.clients.router import RouterClient
from services.gateway.text_store import TextStore
from services.router.app import build
from services.router.config import Settings
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
    catalog.update(snapshot_of((await store.get_prefix(registry_keys.EVERYTHING)).kvs, store.revision))
    return catalog


def client_of(link: MuxClient, catalog: Catalog) -> RouterClient:
    return RouterClient(
        link, catalog, zone="zone-a", clock=CLOCK, decide_timeout=5.0, open_replica=mux, report_seconds=0.01
    )


def failures(client: RouterClient, count: int, version: str = VERSION, *, pool: str = "fast") -> None:
    for _ in range(count):
        client.outcome(pool=pool, model_version=version, zone="zone-a", ok=False)


async def zones(client: RouterClient) -> tuple[list[str], bool]:
    asked = RouteRequest("acme", VERSION)
    route, local = await client.start_resolve(asked, deadline=Deadline.after(5, CLOCK), traceparent="")
    return list(route.zones), local


async def test_every_router_learns_of_a_gateways_outcomes_and_is_told_once() -> None:
    store = await store_with_workers()
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for number in range(3):
            settings = Settings(instance=f"router-{number}", report_seconds=0.01)
            service = await build(settings, store=store)
            router = await stack.enter_async_context(serve(service, settings))
            await router.ready.wait()
            ports.append(router.port)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        await store.txn(puts=[endpoint("router", f"router-{n}", address=a) for n, a in enumerate(addresses)])
        catalog = await catalog_of(store)
        links = [mux(address) for address in addresses]
        client = client_of(links[0], catalog)
        await stack.enter_async_context(running(*links, client))
        for link in links:
            await link.wait_connected(10)

        async def seen_by(link: MuxClient, version: str) -> list[str]:
            resolve = pb.Resolve(tenant="acme", model=version, zone="zone-a")
            deadline = Deadline.after(5, CLOCK)
            reply = await link.call(pb.RouterCall(resolve=resolve), deadline=deadline, semantics=Semantics.RETRY)
            return list(reply.route.zones)

        async def all_see(version: str, wanted: list[str]) -> bool:
            return [await seen_by(link, version) for link in links] == [wanted] * 3

        async with asyncio.timeout(20):
            # Reports to a replica whose stream is not open yet are dropped: repeated until all have heard one.
            while not await all_see(WARM, ["zone-b"]):
                failures(client, 20, WARM)
            # A breaker opens at twenty: reported twice, these would open it; reports arrive in their order.
            failures(client, 19)
            failures(client, 20, AFTER)
            while not await all_see(AFTER, ["zone-b"]):
                pass
            assert await all_see(VERSION, BOTH)
            failures(client, 1)
            while not await all_see(VERSION, ["zone-b"]):
                pass
        assert await zones(client) == (["zone-b"], False)


@pytest.mark.parametrize(("pool", "left"), [("fast", ["zone-b"]), ("cpu", BOTH)])
async def test_the_fallback_honours_the_breakers_that_the_gateway_knows(pool: str, left: list[str]) -> None:
    client = client_of(mux("127.0.0.1:9"), await catalog_of(await store_with_workers()))
    assert await zones(client) == (BOTH, True)
    failures(client, 20, pool=pool)
    assert await zones(client) == (left, True)
