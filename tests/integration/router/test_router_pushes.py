"""Gateways resolve by what a real router told them, and ask where that does not suffice."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from weir.registry.v1 import registry_pb2

from libs.catalog import Catalog
from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import MuxClient
from libs.registry import MemoryStore
from libs.routes import RouterClient
from libs.routing import Route, RouteRequest
from libs.service import serve
from services.router.app import build
from services.router.config import Settings
from tests.support.routers import (
    BOTH,
    CLOCK,
    VERSION,
    catalog_of,
    client_of,
    failures,
    mux,
    put,
    running,
    store_with_workers,
    updated,
)

LASTS, PROBES = 3.0, 4


class Ahead(SystemClock):
    """Real time, and what the test adds to it."""

    def __init__(self) -> None:
        self._by = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._by

    def advance(self, seconds: float) -> None:
        self._by += seconds


class Bench:
    """A router and gateways' clients of it, whose breakers and states follow one clock that the test moves."""

    def __init__(self, store: MemoryStore, clock: Ahead, stack: contextlib.AsyncExitStack) -> None:
        self.store = store
        self.clock = clock
        self._stack = stack
        self.port = 0

    async def start(self, *, lasts: float = LASTS) -> contextlib.AsyncExitStack:
        """A router; closing what is returned drains it."""
        settings = Settings(
            report_seconds=0.01, state_lasts=lasts, breaker_probes=PROBES, port=self.port, drain_seconds=60.0
        )
        life = contextlib.AsyncExitStack()
        service = await build(settings, store=self.store, clock=self.clock)
        router = await life.enter_async_context(serve(service, settings))
        await router.ready.wait()
        self.port = router.port
        return life

    async def gateway(self) -> tuple[RouterClient, Catalog, MuxClient]:
        catalog = await catalog_of(self.store)
        link = mux(f"127.0.0.1:{self.port}")
        client = client_of(link, catalog, clock=self.clock)
        await self._stack.enter_async_context(running(link, client))
        await link.wait_connected(10)
        return client, catalog, link


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """With a router that tells what changes, and nothing in between."""
    monkeypatch.setattr("services.router.app._PUBLISH_SECONDS", 1000.0)
    async with contextlib.AsyncExitStack() as stack:
        yield Bench(await store_with_workers(), Ahead(), stack)


def start(client: RouterClient, model: str = VERSION) -> Future[tuple[Route, bool]]:
    asked = RouteRequest("acme", model, zone="zone-a")
    return client.start_resolve(asked, deadline=Deadline.after(10, CLOCK), traceparent="")


def at_once(client: RouterClient) -> bool:
    """Whether it decides without asking."""
    future = start(client)
    future.cancel()
    return future.done() and not future.cancelled()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)


async def zones(client: RouterClient) -> list[str]:
    route, local = await start(client)
    assert not local
    return list(route.zones)


async def test_a_gateway_that_was_told_asks_nobody(bench: Bench) -> None:
    async with await bench.start():
        client, catalog, _ = await bench.gateway()
        await until(lambda: at_once(client))
        route, local = start(client).result()
        assert (route, local) == (catalog.resolve(RouteRequest("acme", VERSION, zone="zone-a")), False)
        with pytest.raises(WeirError) as raised:
            start(client, "nothing").result()
        assert raised.value.reason is Reason.MODEL_NOT_FOUND


async def test_a_breaker_that_opens_by_one_gateways_outcomes_is_told_to_the_others(bench: Bench) -> None:
    async with await bench.start():
        (one, *_), (other, *_) = await bench.gateway(), await bench.gateway()
        await until(lambda: at_once(one) and at_once(other))
        failures(one, 20)
        await until(lambda: start(other).result()[0].zones == ("zone-b",))
        assert at_once(other)


async def test_probes_are_the_routers_to_give_out_however_many_gateways_there_are(bench: Bench) -> None:
    async with await bench.start(lasts=60.0):
        gateways = [(await bench.gateway())[0] for _ in range(3)]
        await until(lambda: all(map(at_once, gateways)))
        failures(gateways[0], 20)
        await until(lambda: all(start(each).result()[0].zones == ("zone-b",) for each in gateways))
        bench.clock.advance(5.0)  # half-open
        for _ in range(2):
            asked = Counter([tuple(await zones(each)) for each in gateways for _ in range(2 * PROBES)])
            assert asked == {("zone-a", "zone-b"): PROBES, ("zone-b",): 5 * PROBES}
            bench.clock.advance(1.0)
        for _ in range(PROBES):
            gateways[1].outcome(pool="fast", model_version=VERSION, zone="zone-a", ok=True)
        await until(lambda: all(map(at_once, gateways)))
        # Closed, and slow to take all of its turns: each gateway counts the zone's turns by itself.
        found = Counter(start(each).result()[0].zones[0] for each in gateways for _ in range(20))
        assert found == {"zone-a": 3 * 2, "zone-b": 3 * 18}
        bench.clock.advance(10.0)
        assert [start(gateways[2]).result()[0].zones[0] for _ in range(20)] == ["zone-a"] * 20


async def test_who_has_seen_less_of_the_registry_than_the_router_asks_and_who_has_seen_more_does_not(
    bench: Bench,
) -> None:
    async with await bench.start():
        client, catalog, _ = await bench.gateway()
        await until(lambda: at_once(client))
        before = catalog.snapshot.revision
        worker = registry_pb2.Endpoint(service="worker", instance="w-zone-b", zone="zone-c", model_versions=[VERSION])
        await bench.store.txn(puts=[put(worker)])
        await until(lambda: not at_once(client))
        route, local = await start(client)
        assert (list(route.zones), local, route.revision > before) == (["zone-a", "zone-c"], False, True)
        catalog.update(await updated(bench.store))
        assert at_once(client)
        ahead = await updated(bench.store, catalog.snapshot.revision + 5)
        catalog.update(ahead)
        assert start(client).result()[0].revision == ahead.revision


async def test_what_was_told_lasts_for_a_while_and_then_the_gateway_is_on_its_own(bench: Bench) -> None:
    router = await bench.start()
    client, _, link = await bench.gateway()
    await until(lambda: at_once(client))
    failures(client, 20)
    await until(lambda: start(client).result()[0].zones == ("zone-b",))
    async with asyncio.timeout(10):  # it does not keep the router from leaving
        await router.aclose()
    await until(lambda: not link.connected)
    assert await zones(client) == ["zone-b"]
    bench.clock.advance(LASTS)
    assert (await start(client))[1]
    bench.store = await store_with_workers()
    async with await bench.start():  # which has heard of no failure yet
        await until(lambda: link.connected and at_once(client))
        assert await zones(client) == BOTH


async def test_what_does_not_change_is_told_again_before_it_is_too_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.router.app._PUBLISH_SECONDS", 0.01)
    async with await bench.start():
        client, *_ = await bench.gateway()
        for _ in range(3):
            await until(lambda: at_once(client))
            bench.clock.advance(LASTS)
            assert not at_once(client)


async def test_a_router_may_want_to_be_asked(bench: Bench) -> None:
    async with await bench.start(lasts=0.0):
        client, *_ = await bench.gateway()
        failures(client, 20)
        while await zones(client) != ["zone-b"]:
            assert not at_once(client)
        assert not at_once(client)
