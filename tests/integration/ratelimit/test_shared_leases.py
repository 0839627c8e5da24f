"""Leases that many calls share, over real streams: what they hold is held at the owner, what they used is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from weir.registry.v1 import registry_pb2

from libs.clock import ManualClock, SystemClock
from libs.errors import Reason, WeirError
from libs.limiter import Key, Reservation, SharedLease, SharedLeases
from libs.limiter.shared import SPAN
from libs.quota import ROWS
from libs.registry import RegistrySnapshot
from tests.integration.ratelimit.test_gateway_share import Asking, gateway
from tests.support.limiter import Cluster, Node, cluster
from tests.support.quota import leases_of

ROWS_PER_MINUTE = 8000
LIMITS = registry_pb2.Limits(
    tenant="acme", model="*", tokens_per_minute=10, rows_per_minute=ROWS_PER_MINUTE, requests_per_minute=4000
)
FRAUD = Key("acme", "fraud", "fraud@1", counted=True)


class Pages:
    """A journal in memory."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.written = 0

    def opened(self, lease: SharedLease) -> int:
        """See `Diary`."""
        self.written += 1
        self.open[self.written] = 0
        return self.written

    def used(self, place: int, rows: int) -> None:
        """See `Diary`."""
        self.open[place] = rows

    def closed(self, place: int) -> None:
        """See `Diary`."""
        del self.open[place]


class Caller:
    """Draws rows, on a clock that stands still unless it is moved."""

    def __init__(self, one: Asking, *, most: int = 64) -> None:
        self.clock = ManualClock(SystemClock().monotonic())
        self.pages = Pages()
        self.leases = SharedLeases(one.client, clock=self.clock, prefix="p0", diary=self.pages, most=most)

    async def draw(self, rows: int = 1, key: Key = FRAUD, *, given: float = 20.0) -> SharedLease:
        """As a call does."""
        now = self.clock.monotonic()
        return self.leases.draw(key, rows) or await self.leases.wait(key, rows, deadline=now + given)

    async def calls(self, count: int, rows: int = 1, *, each: float = 0.0) -> Counter[str]:
        """So many, one after the other; by their leases."""
        seen: Counter[str] = Counter()
        for _ in range(count):
            lease = await self.draw(rows)
            lease.end(rows, rows)
            seen[lease.id] += 1
            self.clock.advance(each)
        return seen

    def over(self) -> None:
        """The time of its leases has passed."""
        self.clock.advance(SPAN)
        self.leases.sweep()


@pytest.fixture
async def replicas() -> AsyncIterator[Cluster]:
    async with cluster() as made, asyncio.timeout(30):
        yield made


def left(node: Node) -> int:
    return node.service._ledger.report("acme", ROWS + "fraud", node.service._now()).tokens.remaining


async def settled(node: Node, rows: int) -> None:
    """All leases are over, and so many rows were used."""
    await node.agrees(lambda: not leases_of(node.service._ledger) and left(node) == ROWS_PER_MINUTE - rows)


def knows(one: Asking) -> Asking:
    one.client.update(RegistrySnapshot(limits={("acme", "*"): LIMITS}))
    return one


async def test_calls_share_leases_and_together_are_charged_what_they_used(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller = Caller(knows(one))
        seen = await caller.calls(500, 2, each=0.001)
        assert seen.total() == 500
        assert len(seen) <= 8  # a lease is at most four times the one before
        caller.over()
        await settled(node, 1000)
        assert not caller.pages.open


async def test_what_a_call_did_not_use_goes_to_the_next_and_then_back(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller = Caller(knows(one))
        first = await caller.draw(100)
        assert [lease.tokens for lease in leases_of(node.service._ledger).values()] == [100]
        first.end(100, 0)
        caller.clock.advance(SPAN)
        again = await caller.draw(7)
        caller.over()
        assert not again.retired or again.open  # it is settled with its last call
        again.end(7, 7)
        await settled(node, 7)


async def test_a_lease_is_settled_once_however_late_its_last_call_ends(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller = Caller(knows(one))
        slow, quick = await caller.draw(5), await caller.draw(3)
        quick.end(3, 3)
        caller.over()
        caller.leases.drain()
        assert caller.pages.open
        slow.end(5, 5)
        await settled(node, 8)


async def test_near_its_limit_a_call_gets_what_is_left_and_larger_ones_are_refused(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller = Caller(knows(one))
        (await caller.draw(ROWS_PER_MINUTE - 10)).end(ROWS_PER_MINUTE - 10, ROWS_PER_MINUTE - 10)
        with pytest.raises(WeirError) as refused:
            await caller.draw(11)
        assert (refused.value.reason, refused.value.limit) == (Reason.QUOTA_ROWS, "rows_per_minute")
        assert refused.value.retry_after
        assert (await caller.draw(10)).rows == 10


async def test_a_flood_beyond_the_limit_does_not_reach_the_owner(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller = Caller(knows(one))
        await caller.draw(ROWS_PER_MINUTE)
        with pytest.raises(WeirError):
            await caller.draw(1)
        before = caller.leases._opened
        for _ in range(100):
            with pytest.raises(WeirError, match="rows per minute"):
                await caller.draw(1)
        assert caller.leases._opened == before
        caller.clock.advance(0.3)
        with pytest.raises(WeirError):
            await caller.draw(1)
        assert caller.leases._opened > before


async def test_who_leaves_while_quota_is_asked_for_holds_nothing_and_others_get_theirs(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller = Caller(knows(one))
        waiting = [asyncio.ensure_future(caller.draw(10)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        got = await asyncio.gather(*waiting, return_exceptions=True)
        kept = [each for each in got if isinstance(each, SharedLease)]
        assert len(kept) == 10
        for lease in kept:
            lease.end(10, 10)
        caller.over()
        await settled(node, 100)


class Silent:
    """A limiter that does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def start_reserve(self, *_: object, **__: object) -> asyncio.Future[Reservation]:
        """For ever."""
        self.asked += 1
        return asyncio.get_running_loop().create_future()


async def test_a_deadline_that_passes_while_nobody_answers_is_told() -> None:
    quota = Silent()
    leases = SharedLeases(quota, clock=SystemClock(), prefix="p0", diary=Pages(), most=9)  # type: ignore[arg-type]
    waits = [leases.wait(FRAUD, 1, deadline=SystemClock().monotonic() + 0.01) for _ in range(3)]
    for late in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(late, WeirError)
        assert late.reason is Reason.DEADLINE_EXCEEDED
    assert quota.asked == 1  # for all of them


async def test_beyond_the_limit_a_plan_that_allows_it_is_served_in_the_class_of_such_calls(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller, key = Caller(knows(one)), FRAUD._replace(beyond=True)
        (await caller.draw(ROWS_PER_MINUTE, key)).end(ROWS_PER_MINUTE, ROWS_PER_MINUTE)
        beyond = await caller.draw(5, key)
        assert beyond.reservation.over_quota
        beyond.end(5, 5)
        caller.over()
        await settled(node, ROWS_PER_MINUTE)


async def test_requests_that_the_edge_did_not_count_are_counted_with_their_leases(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller, key = Caller(knows(one)), FRAUD._replace(counted=False)
        for _ in range(64):
            (await caller.draw(1, key)).end(1, 1)
            caller.clock.advance(0.01)
        caller.over()
        await settled(node, 64)
        report = node.service._ledger.report("acme", ROWS + "fraud", node.service._now())
        assert 64 <= 4000 - report.requests.remaining <= 64 + 100


async def test_there_are_no_more_leases_than_calls_may_run_and_one(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS,))
    async with gateway(0, node.address) as one:
        caller = Caller(knows(one), most=2)
        running = await caller.draw(3)
        for number in range(6):
            (await caller.draw(1, FRAUD._replace(model=f"model-{number}"))).end(1, 1)
            assert len(caller.pages.open) <= 2
        assert running.place in caller.pages.open  # what is drawn from stays
        running.end(3, 3)
