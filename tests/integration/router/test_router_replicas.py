"""A gateway's router client beside real routers: all of them learn, and the fallback honours what is known."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from weir.router.v1 import router_pb2 as pb

from libs.deadlines import Deadline
from libs.mux import MuxClient, Semantics
from libs.routes import RouterClient
from libs.routing import RouteRequest
from libs.service import serve
from services.router.app import build
from services.router.config import Settings
from tests.support.routers import (
    AFTER,
    BOTH,
    CLOCK,
    VERSION,
    WARM,
    catalog_of,
    client_of,
    endpoint,
    failures,
    mux,
    running,
    store_with_workers,
)


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
            while await zones(client) != (["zone-b"], False):
                pass


@pytest.mark.parametrize(("pool", "left"), [("fast", ["zone-b"]), ("cpu", BOTH)])
async def test_the_fallback_honours_the_breakers_that_the_gateway_knows(pool: str, left: list[str]) -> None:
    client = client_of(mux("127.0.0.1:9"), await catalog_of(await store_with_workers()))
    assert await zones(client) == (BOTH, True)
    failures(client, 20, pool=pool)
    assert await zones(client) == (left, True)
