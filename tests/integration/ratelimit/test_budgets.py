"""Budgets over real gRPC: until midnight, through the end of every limiter, and told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from envoy.service.ratelimit.v3 import rls_pb2
from weir.errors.v1 import errors_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.clock import ManualClock
from libs.mux import MuxClient
from libs.registry import EtcdStore, MemoryStore, Put, RegistrySnapshot, Store, TxnResult, keys
from services.ratelimit import metrics
from services.ratelimit.convert import stored_record
from tests.support.etcd import EtcdServer
from tests.support.fixtures.etcd_fixtures import etcd
from tests.support.limiter import Cluster, Node, cluster, reserve, settle

__all__ = ["etcd"]

NOON = 1_795_435_200.0
"""2026-11-23T12:00:00Z."""
HOUR = 3600.0
# A token costs a micro-dollar.
PRICE = pb.Price(model="*", input_microusd_per_million=10**6, output_microusd_per_million=10**6)
TOKYO = pb.Tenant(id="acme", plan=pb.PLAN_PAID, time_zone="Asia/Tokyo")
UNLIMITED = pb.Limits(tenant="acme", model="*")
QUIET = {"replicate_seconds": 3600.0, "flush_seconds": 3600.0, "spend_seconds": 3600.0}
"""Nothing is told or written by itself."""


def budget(**values: Any) -> pb.Budget:
    return pb.Budget(tenant="acme", **values)


class Shared(MemoryStore):
    """A store that outlasts those who use it."""

    before: Callable[[], Awaitable[None]] | None = None
    """Comes between the next transaction and what it was made of."""

    async def txn(self, **writes: Any) -> TxnResult:  # type: ignore[override]
        """See `Store.txn`."""
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().txn(**writes)

    async def close(self) -> None:
        """Nothing: others go on."""


@pytest.fixture
async def limiters() -> AsyncIterator[Cluster]:
    """Replicas that end with the test."""
    async with cluster() as made, asyncio.timeout(60):
        yield made


async def start(limiters: Cluster, name: str, *seen: Node, seed: tuple[Any, ...] = (), **options: Any) -> Node:
    options = {"clock": ManualClock(start=100.0, epoch=NOON)} | QUIET | options
    return await limiters.start(name, *seen, seed=(UNLIMITED, PRICE, *seed), **options)


async def spend(mux: MuxClient, name: str, amount: int) -> bool:
    """Whether it was let through, and then settled at what was reserved."""
    reply = await reserve(mux, name, amount)
    if reply.HasField("rejected"):
        assert reply.rejected.reason == errors_pb2.REASON_QUOTA_SPEND
        return False
    return await settle(mux, name, amount)


async def record(node: Node) -> pb.Spend:
    """What its store holds of acme, once the node has written and seen it."""
    await node.service._spend.write()
    view = node.service._view
    await view.wait_until(lambda snapshot: snapshot.revision >= node.store.revision)
    return view.snapshot.spend.get("acme", pb.Spend())


def spent(node: Node) -> int:
    """This month, as the node knows it."""
    known = node.service._ledger.budgets.of("acme")
    assert known is not None
    return known.record(node.service._now()).month.microusd


async def test_a_day_is_refused_when_it_is_spent_and_served_after_its_own_midnight(limiters: Cluster) -> None:
    clock = ManualClock(start=100.0, epoch=NOON)
    node = await start(limiters, "ratelimit-0", seed=(TOKYO, budget(daily_microusd=100)), clock=clock)
    mux = await node.client()
    assert await spend(mux, "r1", 100)
    refused = (await reserve(mux, "r2", 1)).rejected
    assert (refused.reason, refused.limit) == (errors_pb2.REASON_QUOTA_SPEND, "budget:day")
    # It is 21:00 in Tokyo.
    assert refused.retry_after.ToSeconds() == 3 * HOUR
    edge = await node.ask_edge()
    assert edge.overall_code == rls_pb2.RateLimitResponse.OVER_LIMIT
    told = {header.key: header.value for header in edge.response_headers_to_add}
    assert (told["x-weir-reason"], told["retry-after"]) == ("QUOTA_SPEND", "10800")
    assert '"spend";q=100;w=86400' in told["ratelimit-policy"]
    clock.advance(3 * HOUR - 1)
    assert not await spend(mux, "r3", 1)
    clock.advance(1)
    assert await spend(mux, "r4", 100)
    assert not await spend(mux, "r5", 1)
    written = await record(node)
    assert (written.day, written.day_microusd) == ("2026-11-24", 100)
    assert (written.month, written.month_microusd) == ("2026-11", 200)


async def test_what_is_reserved_counts_and_what_was_not_used_comes_back(limiters: Cluster) -> None:
    node = await start(limiters, "ratelimit-0", seed=(budget(monthly_microusd=100),))
    mux = await node.client()
    assert (await reserve(mux, "r1", 80)).reserved.spend.remaining == 20
    assert (await reserve(mux, "r2", 21)).rejected.limit == "budget:month"
    await settle(mux, "r1", 30)
    assert (await reserve(mux, "r3", 70)).reserved.spend.remaining == 0
    await settle(mux, "r3", 0)
    assert (await reserve(mux, "r4", 70)).HasField("reserved")


async def test_soft_is_served_and_each_threshold_is_told_once(
    limiters: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    soft = budget(monthly_microusd=100, enforcement=pb.BUDGET_ENFORCEMENT_SOFT)
    store = Shared()
    node = await start(limiters, "ratelimit-0", seed=(soft,), store=store)
    mux = await node.client()

    def alerts() -> list[dict[str, object]]:
        return [entry.fields for entry in caplog.records if entry.message == "budget_alert"]  # type: ignore[attr-defined]

    assert await spend(mux, "r1", 79)
    assert (await record(node)).month_alert_percent == 0
    assert await spend(mux, "r2", 1)
    assert (await record(node)).month_alert_percent == 80
    eighty = {"tenant": "acme", "period": "2026-11", "percent": 80}
    assert alerts() == [eighty]
    assert await spend(mux, "r3", 1000)
    for _ in range(3):
        assert (await record(node)).month_alert_percent == 100
    assert alerts() == [eighty, eighty | {"percent": 100}]
    # The next limiter knows what was told.
    await node.kill()
    again = await start(limiters, "ratelimit-0", seed=(soft,), store=store)
    assert (await record(again)).month_microusd == 1080
    assert len(alerts()) == 2


async def test_the_end_of_all_limiters_forgets_what_came_since_the_last_write_and_nothing_else(
    limiters: Cluster,
) -> None:
    store, seed = Shared(), (budget(monthly_microusd=100),)
    node = await start(limiters, "ratelimit-0", seed=seed, store=store)
    mux = await node.client()
    assert await spend(mux, "r1", 60)
    assert (await record(node)).month_microusd == 60
    assert await spend(mux, "lost", 15)
    await node.kill()
    again = await start(limiters, "ratelimit-0", seed=seed, store=store)
    assert spent(again) == 60
    mux = await again.client()
    assert not await spend(mux, "r2", 41)
    assert await spend(mux, "r3", 40)
    # A good end writes the last of it.
    await again.service.drain()
    await again.kill()
    assert spent(await start(limiters, "ratelimit-0", seed=seed, store=store)) == 100


async def test_the_journal_knows_more_than_the_record(limiters: Cluster, tmp_path: Path) -> None:
    clock, seed = ManualClock(start=100.0, epoch=NOON), (TOKYO, budget(monthly_microusd=100))
    node = await start(limiters, "ratelimit-0", seed=seed, clock=clock, state_dir=str(tmp_path))
    mux = await node.client()
    assert await spend(mux, "r1", 60)
    await node.service.keeper.flush()
    assert await spend(mux, "r2", 15)
    await node.service.keeper.flush()
    await node.kill()
    clock.advance(60)
    again = await start(limiters, "ratelimit-0", seed=seed, clock=clock, state_dir=str(tmp_path))
    assert spent(again) == 75
    assert not await spend(await again.client(), "r3", 26)


async def test_it_is_written_by_itself(limiters: Cluster) -> None:
    node = await start(limiters, "ratelimit-0", seed=(budget(monthly_microusd=100),), spend_seconds=0.005)
    assert await spend(await node.client(), "r1", 60)
    view = node.service._view

    def written(snapshot: RegistrySnapshot) -> bool:
        return "acme" in snapshot.spend and snapshot.spend["acme"].month_microusd == 60

    assert (await view.wait_until(written)).spend["acme"].at.seconds == NOON


async def test_what_was_written_just_now_is_written_upon(limiters: Cluster) -> None:
    """As when a limiter is told to end: what it wrote last has not come back to it by then."""
    node = await start(limiters, "ratelimit-0", seed=(budget(monthly_microusd=100),))
    known = node.service._ledger.budgets.of("acme")
    assert known is not None
    records = node.service._spend
    for _ in range(3):
        known.charge(1, node.service._now())
        assert await records._save(["acme"])
    assert (await record(node)).month_microusd == 3


async def test_a_clock_that_is_set_is_noticed(limiters: Cluster) -> None:
    class Set(ManualClock):
        by = 0.0

        def time(self) -> float:
            """Of the wall alone."""
            return super().time() + self.by

    clock = Set(start=100.0, epoch=NOON)
    node = await start(limiters, "ratelimit-0", seed=(budget(daily_microusd=9),), clock=clock, flush_seconds=0.005)
    mux = await node.client()
    assert await spend(mux, "r1", 9)
    clock.by = 24 * HOUR
    ledger = node.service._ledger
    await node.agrees(lambda: ledger.report("acme", "*", node.service._now()).spend.remaining == 9)
    assert await spend(mux, "r2", 9)
    clock.by = 0.0
    await node.agrees(lambda: ledger.report("acme", "*", node.service._now()).spend.reset_ns == 12 * HOUR * 1e9)
    assert not await spend(mux, "r3", 1)


async def test_a_budget_is_changed_and_deleted_while_it_is_in_use(limiters: Cluster) -> None:
    node = await start(limiters, "ratelimit-0", seed=(budget(monthly_microusd=100),))
    mux = await node.client()
    assert await spend(mux, "r1", 100)
    assert (await record(node)).month_microusd == 100
    assert not await spend(mux, "r2", 1)
    await node.put(budget(monthly_microusd=150))
    assert not await spend(mux, "r3", 51)
    assert await spend(mux, "r4", 50)
    await node.put(budget(monthly_microusd=150, daily_microusd=150, enforcement=pb.BUDGET_ENFORCEMENT_SOFT))
    assert await spend(mux, "r5", 10)
    await node._write(deletes=[keys.key("budgets", "acme")])
    assert await spend(mux, "r6", 1000)
    assert await record(node) == pb.Spend()
    assert await node.store.get(keys.key("spend", "acme")) is None
    await node.put(budget(monthly_microusd=5))
    assert not await spend(mux, "r7", 6)
    assert await spend(mux, "r8", 5)


async def test_a_tenant_that_moves_to_another_zone_keeps_what_it_spent(limiters: Cluster) -> None:
    node = await start(limiters, "ratelimit-0", seed=(TOKYO, budget(monthly_microusd=100, daily_microusd=60)))
    mux = await node.client()
    assert await spend(mux, "r1", 60)
    moved = pb.Tenant(id="acme", plan=pb.PLAN_PAID, time_zone="Pacific/Auckland")  # where it is the 24th already
    await node.put(moved)
    assert not await spend(mux, "r2", 41)
    assert await spend(mux, "r3", 40)
    await node.put(TOKYO)
    assert not await spend(mux, "r4", 1)
    written = await record(node)
    assert (written.day, written.day_microusd, written.month_microusd) == ("2026-11-24", 40, 100)


async def test_a_zone_that_nobody_knows_is_utc(limiters: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    lost = pb.Tenant(id="acme", plan=pb.PLAN_PAID, time_zone="Mars/Olympus")
    node = await start(limiters, "ratelimit-0", seed=(lost, budget(daily_microusd=10)))
    mux = await node.client()
    assert (await reserve(mux, "r1", 10)).HasField("reserved")
    assert "time_zones_unknown" in [entry.message for entry in caplog.records]


async def test_who_follows_goes_on_from_what_it_was_told_and_what_was_written(limiters: Cluster) -> None:
    store, seed = Shared(), (budget(monthly_microusd=100),)
    a = await start(limiters, "ratelimit-0", seed=seed, store=store)
    b = await start(limiters, "ratelimit-1", a, seed=seed, store=store, owners=a.address)
    await a.see(b)
    await a.service._peers._links[b.name][1].wait_connected(20)
    await b.agrees(lambda: b.service._owners.link("acme") is not None)
    at_a = await a.client()
    assert await spend(at_a, "told", 30)
    a.service.keeper.publish()
    await b.agrees(lambda: spent(b) == 30)
    # Not the owner: it neither writes nor takes.
    assert (await record(b)).month_microusd == 0
    assert await spend(at_a, "written", 25)
    assert (await record(a)).month_microusd == 55
    assert await spend(at_a, "neither", 20)
    assert spent(b) == 30
    await a.kill()
    await b.lose(a)
    assert (await record(b)).month_microusd == 55
    at_b = await b.client()
    assert not await spend(at_b, "r1", 46)
    assert await spend(at_b, "r2", 45)
    assert (await record(b)).month_microusd == 100


async def test_a_deposed_owner_takes_nothing_back(limiters: Cluster) -> None:
    """Two that believe to own the tenant, as in a split of the network that leaves both the store."""
    store, seed = Shared(), (budget(monthly_microusd=100),)
    a = await start(limiters, "ratelimit-0", seed=seed, store=store)
    b = await start(limiters, "ratelimit-1", seed=seed, store=store)
    assert await spend(await a.client(), "r1", 30)
    assert await spend(await b.client(), "r2", 50)
    store.before = b.service._spend.write
    await a.service._spend.write()
    for node in (b, a, b):
        assert (await record(node)).month_microusd == 50
    # Its own knowledge is another matter.
    assert spent(a) == 30
    assert await spend(await a.client(), "r3", 30)
    assert (await record(a)).month_microusd == 60


async def test_while_the_registry_is_away_records_are_read_where_they_lie(limiters: Cluster) -> None:
    """The view stands still, and the store goes on: another limiter has written 50 since, and this one comes to own."""
    node = await start(limiters, "ratelimit-0", seed=(budget(monthly_microusd=100),))
    store = node.service._spend._store = Shared()
    other = pb.Spend(tenant="acme", month="2026-11", month_microusd=50)
    node.store.set_available(False)
    await store.txn(puts=[Put(keys.key_of(other), keys.encode(other))])
    mux = await node.client()
    assert await spend(mux, "r1", 10)
    for written, known in ((50, 50), (60, 60)):
        await node.service._spend.write()
        found = await store.get(keys.key("spend", "acme"))
        assert found is not None
        assert stored_record(found.value).month.microusd == written
        assert spent(node) == known
        assert await spend(mux, f"r{written}", 10)
    await store.txn(puts=[Put(keys.key("spend", "acme"), b"no record")])
    await node.service._spend.write()
    found = await store.get(keys.key("spend", "acme"))
    assert found is not None
    assert stored_record(found.value).month.microusd == 70


async def test_while_the_store_is_away_requests_are_served_and_the_latest_is_written_after(limiters: Cluster) -> None:
    node = await start(limiters, "ratelimit-0", seed=(budget(monthly_microusd=1000),))
    mux = await node.client()
    node.store.set_available(False)
    for number in range(5):
        assert await spend(mux, f"r{number}", 100)
        await node.service._spend.write()
    node.store.set_available(True)
    before = node.store.revision
    assert (await record(node)).month_microusd == 500
    assert node.store.revision == before + 1


async def test_many_tenants_are_written_together_and_one_conflict_stops_none(limiters: Cluster) -> None:
    store = Shared()
    node = await start(limiters, "ratelimit-0", store=store)
    names = [f"t{number:03}" for number in range(120)]
    await node.put(*(pb.Budget(tenant=name, monthly_microusd=100) for name in names))
    for name in names:
        known = node.service._ledger.budgets.of(name)
        assert known is not None
        known.charge(7, node.service._now())
    other = pb.Spend(tenant="t000", day="2026-11-23", day_microusd=50, month="2026-11", month_microusd=50)

    async def overtake() -> None:
        await store.txn(puts=[Put(keys.key_of(other), keys.encode(other))])

    before, store.before = store.revision, overtake
    await record(node)
    found = node.service._view.snapshot.spend
    assert {name: found[name].month_microusd for name in found} == dict.fromkeys(names, 7) | {"t000": 50}
    # The other's, those beside it one by one, and two more transactions.
    assert store.revision - before == 1 + 49 + 2


async def test_a_restart_remembers_over_a_real_etcd(limiters: Cluster, etcd: EtcdServer) -> None:
    def store() -> Store:
        return EtcdStore([etcd.endpoint])

    seed = (budget(monthly_microusd=100),)
    node = await start(limiters, "ratelimit-0", seed=seed, store=store())
    assert await spend(await node.client(), "r1", 90)
    await node.service._spend.write()
    await node.kill()
    again = await start(limiters, "ratelimit-0", seed=seed, store=store())
    assert spent(again) == 90
    assert not await spend(await again.client(), "r2", 11)


async def test_what_is_spent_of_a_budget_is_shown_by_its_owner(limiters: Cluster) -> None:
    node = await start(limiters, "ratelimit-0", seed=(TOKYO, budget(daily_microusd=100, monthly_microusd=1000)))
    assert await spend(await node.client(), "r1", 90)
    await node.service._spend.write()
    [family] = metrics.BUDGETS.collect()
    shown = {(sample.labels["tenant"], sample.labels["period"]): sample.value for sample in family.samples}
    assert shown == {("acme", "day"): 0.9, ("acme", "month"): 0.09}


def test_of_many_budgets_those_nearest_their_end_are_shown() -> None:
    shares = {(f"t{number}", "day"): number / 1000 for number in range(1000)}
    metrics.BUDGETS.show(shares)
    [family] = metrics.BUDGETS.collect()
    assert [sample.labels["tenant"] for sample in family.samples] == [f"t{999 - number}" for number in range(64)]
    metrics.BUDGETS.show({})
