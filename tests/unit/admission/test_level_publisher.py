"""Levels in the registry: written on change, under a lease, and never in the way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2

from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.registry import MemoryStore, Put, keys
from libs.resources.codec import decode, unpack
from services.admission.level_publisher import LevelPublisher
from services.admission.policy.model import (
    QueueClass,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from tests.support.admission_limits import steady

SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 10_000, 1, 4096)


class Flaky(MemoryStore):
    """A store that can be away."""

    away = False
    writes = 0

    async def txn(self, **writes: object) -> object:  # type: ignore[override]
        self._check()
        self.writes += 1
        return await super().txn(**writes)  # type: ignore[arg-type]

    async def lease_keepalive(self, lease: int) -> float:
        self._check()
        return await super().lease_keepalive(lease)

    async def lease_grant(self, ttl: float) -> int:
        self._check()
        return await super().lease_grant(ttl)

    def _check(self) -> None:
        if self.away:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "etcd is away")


class Desk:
    """A pool whose tenant floods it, and who publishes that."""

    def __init__(self, **limits: object) -> None:
        self.clock = ManualClock(100.0)
        self.store = Flaky()
        self.pool = Pool("fast", steady(**limits), now=100.0)  # type: ignore[arg-type]
        self.pool.worker_joined(SPEC, 100.0)
        self.report()
        self.epoch = 7
        self.publisher = LevelPublisher(
            self.store,
            {"fast": self.pool},
            epoch=lambda _: self.epoch,
            instance="admission-0",
            ttl=3.0,
            clock=self.clock,
        )
        self.number = 0

    def report(self) -> None:
        load = Report(10_000, decode_step=0.02, prefill_tokens_per_second=5000.0)
        self.pool.worker_reported("w0", load, self.clock.monotonic())

    def flood(self, seconds: int, per_second: int = 40) -> None:
        """One request in ten can be served."""
        for _ in range(seconds * per_second):
            self.clock.advance(1 / per_second)
            now = self.clock.monotonic()
            self.number += 1
            request = Request(f"r{self.number}", "flood", "m@1", 10, 10, 1, now + 60, QueueClass.PAID)
            answer, _ = self.pool.admit(replace(request, ttft_by=now + 0.2), now)
            assert answer is not None
            self.pool.tick(now)
            if self.number % 10 == 0:
                for name in list(self.pool.fleet.reservations):
                    self.pool.release(name, now, output_tokens=10)

    async def level(self) -> Any:
        found = await self.store.get(keys.key("levels", "fast"))
        return None if found is None else unpack(decode(found.value, found.mod_revision))


async def test_a_flooded_pool_is_told_under_a_lease_and_withdrawn_when_it_is_over() -> None:
    desk = Desk()
    await desk.publisher.step()
    assert await desk.level() is None
    assert desk.store.writes == 0
    desk.flood(20)
    await desk.publisher.step()
    level = await desk.level()
    assert level is not None
    assert (level.pool, level.admission, level.at.ToSeconds()) == ("fast", "admission-0", int(desk.clock.time()))
    (tenant,) = level.tenants
    assert tenant.tenant == "flood"
    assert 0.6 <= tenant.shed <= 0.95
    assert tenant.HasField("retry_after")
    assert [each.queue_class for each in level.classes] == ["paid", "free", "over_quota", "batch"]
    kept = await desk.store.get(keys.key("levels", "fast"))
    assert kept is not None
    assert kept.lease
    desk.clock.advance(60.0)
    desk.report()
    await desk.publisher.step()
    assert await desk.level() is None


async def test_another_owners_level_is_left_alone() -> None:
    desk = Desk()
    desk.flood(20)
    await desk.publisher.step()
    other = registry_pb2.PoolLevel(pool="fast", admission="admission-1")
    await desk.store.txn(puts=[Put(keys.key("levels", "fast"), keys.encode(other))])
    desk.clock.advance(60.0)
    await desk.publisher.step()
    level = await desk.level()
    assert level is not None
    assert level.admission == "admission-1"


@pytest.mark.parametrize(("theirs", "stands"), [(8, "admission-1"), (6, "admission-0")])
async def test_d4_a_level_is_written_over_older_owners_only(theirs: int, stands: str) -> None:
    """Of two that believe to own the pool, the newer one's level stands, in whichever order they write."""
    desk = Desk()
    desk.flood(20)
    other = registry_pb2.PoolLevel(pool="fast", admission="admission-1", epoch=theirs)
    for before in (True, False):
        if before:
            await desk.store.txn(puts=[Put(keys.key("levels", "fast"), keys.encode(other))])
        await desk.publisher.step()
        level = await desk.level()
        assert level is not None
        assert (level.admission, level.epoch) == (stands, max(theirs, desk.epoch))
        assert bool(desk.pool.edge_shedding._told) == (stands == "admission-0")
        desk.flood(5)
    desk.clock.advance(60.0)
    desk.report()
    await desk.publisher.step()  # withdraws what it told, and nothing else
    assert (await desk.level() is not None) == (stands == "admission-1")


async def test_the_plain_discipline_sheds_nobody_at_the_edge() -> None:
    desk = Desk(discipline="fifo", max_queued=5)
    desk.flood(20)
    await desk.publisher.step()
    assert await desk.level() is None


async def test_nothing_is_written_while_nothing_changes() -> None:
    desk = Desk()
    desk.flood(20)
    await desk.publisher.step()
    for _ in range(5):
        await desk.publisher.step()
    assert desk.store.writes == 1


async def test_a_store_that_is_away_costs_the_level_and_nothing_else() -> None:
    desk = Desk()
    desk.flood(20)
    desk.store.away = True
    await desk.publisher.step()
    assert await desk.level() is None
    desk.store.away = False
    await desk.publisher.step()
    told = await desk.level()
    assert told is not None
    desk.store.away = True
    for _ in range(5):
        desk.clock.advance(1.0)
        await desk.publisher.step()
    # What comes now is taken for all there is: nobody is reckoned to be shed at the edge.
    assert desk.pool.edge_shedding._told == {}
    desk.store.away = False
    desk.flood(5)
    await desk.publisher.step()
    assert await desk.level() is not None


async def test_a_lease_that_ran_out_is_replaced() -> None:
    desk = Desk()
    desk.flood(20)
    await desk.publisher.step()
    first = await desk.store.get(keys.key("levels", "fast"))
    assert first is not None
    await desk.store.lease_revoke(first.lease)
    assert await desk.level() is None
    await desk.publisher.step()  # finds the lease gone
    await desk.publisher.step()
    second = await desk.store.get(keys.key("levels", "fast"))
    assert second is not None
    assert second.lease != first.lease


async def test_the_level_ends_with_the_process() -> None:
    desk = Desk()
    desk.flood(20)
    running = asyncio.create_task(desk.publisher.run())
    while await desk.level() is None:  # noqa: ASYNC110 - the store has no event for it
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await desk.level() is None
