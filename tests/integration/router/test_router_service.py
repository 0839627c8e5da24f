"""The router on a real gRPC server over an in-memory registry."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from weir.mux.v1 import mux_pb2
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2 as pb
from weir.router.v1 import router_pb2_grpc

from libs.clock import ManualClock, SystemClock
from libs.config import TlsFiles
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError, from_rpc_error
from libs.mux import Codec, MuxClient, Semantics
from libs.registry import MemoryStore, Put
from libs.registry import keys as registry_keys
from libs.resources.codec import key_of
from libs.rpc import make_channel
from libs.service import serve
from libs.service.process import Running
from services.router.app import build
from services.router.config import Settings
from tests.support.certificates import tls_of
from tests.support.registry_service import grant, tenant

CLOCK = SystemClock()
CODEC = Codec.of(pb.SessionRequest, pb.SessionResponse)


def put(key: str, message: Message) -> Put:
    return Put(key, registry_keys.encode(message))


def alias(canary: int) -> Put:
    targets = [
        registry_pb2.AliasTarget(model_version="weir-fast@1", weight=100 - canary),
        registry_pb2.AliasTarget(model_version="weir-fast@2", weight=canary, arm="canary"),
    ]
    return put(registry_keys.key("aliases", "weir-fast"), registry_pb2.Alias(name="weir-fast", targets=targets))


def worker(instance: str, zone: str) -> Put:
    endpoint = registry_pb2.Endpoint(
        service="worker", instance=instance, zone=zone, pool="fast", model_versions=["weir-fast@1", "weir-fast@2"]
    )
    return put(registry_keys.key("endpoints", f"worker/{instance}"), endpoint)


async def fill(store: MemoryStore) -> None:
    versions = [
        put(
            registry_keys.key("models", f"weir-fast@{version}"),
            registry_pb2.ModelVersion(name="weir-fast", version=version, pool="fast", tier="fast"),
        )
        for version in ("1", "2")
    ]
    allowed = [Put(key_of(each), registry_keys.encode(each)) for each in (tenant(), grant())]
    await store.txn(puts=[*versions, *allowed, alias(0), worker("w0", "zone-a"), worker("w1", "zone-b")])


class Bench:
    """A running router, its registry and its breakers' clock."""

    def __init__(self, running: Running, store: MemoryStore, clock: ManualClock) -> None:
        self.running = running
        self.store = store
        self.clock = clock

    @contextlib.asynccontextmanager
    async def gateway(self, tls: TlsFiles | None = None) -> AsyncIterator[MuxClient]:
        target = f"127.0.0.1:{self.running.port}"
        async with make_channel(target, tls=tls, server_name="router.weir.internal") as channel:
            stub = router_pb2_grpc.RouterServiceStub(channel)
            client = MuxClient(
                open_stream=lambda: stub.Session(wait_for_ready=True),
                codec=CODEC,
                hello=mux_pb2.Hello(service="gateway", instance="gateway-0", zone="zone-a"),
                clock=CLOCK,
                rng=random.Random(1),
            )
            running = asyncio.create_task(client.run())
            try:
                yield client
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def router(settings: Settings, *, filled: bool = True) -> AsyncIterator[Bench]:
    store, clock = MemoryStore(), ManualClock(1000.0)
    if filled:
        await fill(store)
    service = await build(settings, clock=clock, store=store)
    async with serve(service, settings) as running:
        await running.ready.wait()
        yield Bench(running, store, clock)


async def call(client: MuxClient, item: pb.RouterCall) -> pb.RouterReply:
    reply = await client.call(item, deadline=Deadline.after(10, CLOCK), semantics=Semantics.RETRY)
    assert isinstance(reply, pb.RouterReply)
    return reply


def resolve(model: str = "weir-fast", *, sticky: str = "", tenant: str = "acme") -> pb.RouterCall:
    return pb.RouterCall(resolve=pb.Resolve(tenant=tenant, model=model, sticky_key=sticky, zone="zone-a"))


def report(zone: str, successes: int, failures: int, *, pool: str = "fast") -> pb.RouterCall:
    count = pb.OutcomeCount(pool=pool, model_version="weir-fast@1", zone=zone, successes=successes, failures=failures)
    return pb.RouterCall(report=pb.ReportOutcomes(counts=[count]))


async def test_a_model_is_resolved_to_version_pool_and_zones() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:
        route = (await call(client, resolve())).route
        assert (route.model_version, route.pool, route.tier) == ("weir-fast@1", "fast", "fast")
        assert list(route.zones) == ["zone-a", "zone-b"]
        assert route.revision == bench.store.revision
        assert (await call(client, resolve("weir-fast@2"))).route.model_version == "weir-fast@2"


async def test_an_unknown_model_is_a_rejection_and_a_missing_tenant_an_error() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:
        assert (await call(client, resolve("nothing"))).rejected.reason == Reason.MODEL_NOT_FOUND
        for wrong, limit in ((resolve(tenant=""), "tenant"), (pb.RouterCall(), "op")):
            with pytest.raises(WeirError) as caught:
                await call(client, wrong)
            assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, limit)


async def test_a_moved_alias_takes_effect_and_moves_only_the_canarys_callers() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:

        async def arms(canary: int) -> dict[str, str]:
            revision = (await bench.store.txn(puts=[alias(canary)])).revision
            while (await call(client, resolve())).route.revision < revision:
                pass
            return {key: (await call(client, resolve(sticky=key))).route.arm for key in map(str, range(100))}

        small, large = await arms(10), await arms(50)
        moved = {key for key in small if small[key] != large[key]}
        assert moved
        assert all(large[key] == "canary" for key in moved)


async def test_failures_take_a_zone_out_and_probes_bring_it_back() -> None:
    async with router(Settings(breaker_min_volume=10, breaker_probes=2)) as bench, bench.gateway() as client:

        async def zones() -> list[str]:
            return list((await call(client, resolve())).route.zones)

        noted = (await call(client, report("zone-a", 5, 5))).noted
        assert noted.next.ToSeconds() < 1
        assert await zones() == ["zone-b"]
        # The other version's breaker in that zone is another one.
        assert list((await call(client, resolve("weir-fast@2"))).route.zones) == ["zone-a", "zone-b"]
        bench.clock.advance(5.0)
        assert [await zones() for _ in range(3)] == [["zone-a", "zone-b"], ["zone-a", "zone-b"], ["zone-b"]]
        await call(client, report("zone-a", 2, 0))
        # Closed, and slow to start: the first turns after closing pass.
        assert [await zones() for _ in range(10)] == [["zone-b", "zone-a"]] * 9 + [["zone-a", "zone-b"]]
        bench.clock.advance(10.0)
        assert await zones() == ["zone-a", "zone-b"]


async def test_what_a_fallback_pool_does_says_nothing_about_the_version() -> None:
    async with router(Settings(breaker_min_volume=10)) as bench, bench.gateway() as client:
        await call(client, report("zone-a", 0, 100, pool="cpu"))
        assert list((await call(client, resolve())).route.zones) == ["zone-a", "zone-b"]


async def test_without_a_snapshot_the_router_is_not_ready_and_says_so() -> None:
    store = MemoryStore()
    store.set_available(False)
    settings = Settings()
    service = await build(settings, store=store)
    async with serve(service, settings) as running, Bench(running, store, ManualClock()).gateway() as client:
        with pytest.raises(WeirError) as caught:
            await call(client, resolve())
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert not running.ready.is_set()
        await_ready = asyncio.create_task(running.ready.wait())
        store.set_available(True)
        await fill(store)
        await await_ready
        while True:
            with contextlib.suppress(WeirError):
                if (await call(client, resolve())).HasField("route"):
                    break


async def test_the_last_snapshot_serves_while_the_registry_is_away() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:
        bench.store.set_available(False)
        assert (await call(client, resolve())).route.model_version == "weir-fast@1"


async def test_a_cached_snapshot_serves_from_the_start(tmp_path: Path) -> None:
    settings = Settings(state_dir=str(tmp_path))
    async with router(settings):
        while not (tmp_path / "registry.cache").exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    store = MemoryStore()
    store.set_available(False)
    service = await build(settings, store=store)
    async with serve(service, settings) as running:
        await running.ready.wait()
        async with Bench(running, store, ManualClock()).gateway() as client:
            assert (await call(client, resolve())).route.model_version == "weir-fast@1"


async def test_only_gateways_may_open_a_session(tmp_path: Path) -> None:
    async with router(Settings(tls=tls_of(tmp_path, "router"))) as bench:
        async with bench.gateway(tls_of(tmp_path, "gateway", "gateway-0", zone="zone-a")) as client:
            assert (await call(client, resolve())).HasField("route")
        target = f"127.0.0.1:{bench.running.port}"
        async with make_channel(
            target, tls=tls_of(tmp_path, "worker", "w0"), server_name="router.weir.internal"
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await router_pb2_grpc.RouterServiceStub(channel).Session(wait_for_ready=True).read()
            assert from_rpc_error(caught.value).reason is Reason.PERMISSION_DENIED
