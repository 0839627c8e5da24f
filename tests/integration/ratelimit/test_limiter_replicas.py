"""Two replicas of the rate limiter over real gRPC: one state, through a move, a split, a loss and a start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from envoy.service.ratelimit.v3 import rls_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import Semantics
from services.ratelimit import metrics
from tests.support.limiter import CLOCK, Cluster, cluster, reserve, settle

OK = rls_pb2.RateLimitResponse.OK
OVER = rls_pb2.RateLimitResponse.OVER_LIMIT
LIMIT = 1000
QUIET = {"replicate_seconds": 3600.0, "flush_seconds": 3600.0}
"""Nothing is told to others by itself."""


@pytest.fixture
async def replicas() -> AsyncIterator[Cluster]:
    """Replicas that end with the test."""
    async with cluster() as made, asyncio.timeout(30):
        yield made


async def test_a_lease_of_one_replica_is_settled_on_the_other_exactly_once(replicas: Cluster) -> None:
    a, b = await replicas.pair()
    at_a, at_b = await a.client(), await b.client()
    await reserve(at_a, "r1", 600)
    await b.agrees(lambda: b.left() == 400)
    refused = await reserve(at_b, "r2", 500)
    assert refused.rejected.limit == "tokens_per_minute"
    assert await settle(at_b, "r1", 100)
    assert b.left() == 900
    await a.agrees(lambda: a.left() == 900)
    assert not await settle(at_a, "r1", 100)
    assert (a.left(), b.left()) == (900, 900)


async def test_a_replica_that_joins_has_the_state_before_it_is_ready(replicas: Cluster) -> None:
    a = await replicas.start("ratelimit-0")
    at_a = await a.client()
    await reserve(at_a, "open", 300)
    await reserve(at_a, "done", 200)
    await settle(at_a, "done", 150)
    b = await replicas.start("ratelimit-1", a)
    assert b.left() == 550
    at_b = await b.client()
    assert not await settle(at_b, "done", 150)
    assert await settle(at_b, "open", 300)


async def test_alone_a_replica_is_ready_without_the_dead_ones_of_the_registry(replicas: Cluster) -> None:
    a = await replicas.start("ratelimit-0")
    await a.kill()
    b = await replicas.start("ratelimit-1", a, join_seconds=0.05)
    assert b.left() == LIMIT


async def test_the_loss_of_the_owner_neither_doubles_nor_loses_quota(replicas: Cluster) -> None:
    a, b = await replicas.pair()
    at_a = await a.client()
    for number in range(6):
        await reserve(at_a, f"r{number}", 100)
    await settle(at_a, "r0", 40)
    await b.agrees(lambda: b.left() == 460)
    await a.kill()
    await b.lose(a)
    at_b = await b.client()
    admitted = [await reserve(at_b, f"n{number}", 100) for number in range(10)]
    assert sum(reply.HasField("reserved") for reply in admitted) == 4
    assert not await settle(at_b, "r0", 40)
    assert all([await settle(at_b, f"r{number}", 100) for number in range(1, 6)])
    assert b.left() == LIMIT - 40 - 500 - 400


async def test_what_the_lost_owner_had_not_told_is_the_whole_error(replicas: Cluster) -> None:
    """The bound: what the owner admitted within its last replication interval."""
    a, b = await replicas.pair(**QUIET)
    at_a = await a.client()
    await reserve(at_a, "told", 300)
    a.service.keeper.publish()
    await b.agrees(lambda: b.left() == 700)
    await reserve(at_a, "untold", 250)
    await a.kill()
    await b.lose(a)
    at_b = await b.client()
    admitted = 0
    while (await reserve(at_b, f"n{admitted}", 50)).HasField("reserved"):
        admitted += 1
    assert 300 + 250 + 50 * admitted - LIMIT <= 250
    # The settle of what was lost with the owner is charged all the same.
    assert not await settle(at_b, "untold", 250)
    assert b.left() == 0


async def test_a_split_overshoots_by_what_the_other_side_admitted_and_heals(replicas: Cluster) -> None:
    a, b = await replicas.pair()
    at_a, at_b = await a.client(), await b.client()
    await reserve(at_a, "before", 200)
    await b.agrees(lambda: b.left() == 800)
    await a.lose(b)
    await b.lose(a)
    admitted = {"a": 0, "b": 0}
    for number in range(20):
        for name, mux in (("a", at_a), ("b", at_b)):
            reply = await reserve(mux, f"{name}{number}", 100)
            admitted[name] += 100 * reply.HasField("reserved")
    assert admitted == {"a": 800, "b": 800}
    assert 200 + sum(admitted.values()) - LIMIT <= min(admitted.values())
    await a.see(b)
    await b.see(a)
    # Whoever hears of a batch whose predecessors he missed fetches the state.
    assert await settle(at_a, "a0", 0)
    assert await settle(at_b, "b0", 0)
    for one in (a, b):
        ledger = one.service._ledger
        await one.agrees(lambda ledger=ledger: ledger.live_leases == 15)
        assert one.left() == 0
    assert await settle(at_b, "a1", 100)


async def test_the_largest_numbers_of_the_wire_break_neither_journal_nor_replication(
    replicas: Cluster, tmp_path: Path
) -> None:
    most = 2**64 - 1
    price = registry_pb2.Price(model="*", input_microusd_per_million=most, output_microusd_per_million=most)
    unlimited = registry_pb2.Limits(tenant="acme", model="*")
    a = await replicas.start("ratelimit-0", seed=(unlimited, price), state_dir=str(tmp_path), **QUIET)
    b = await replicas.start("ratelimit-1", a, owners=a.address, **QUIET)
    await a.see(b)
    await a.service._peers._links[b.name][1].wait_connected(20)
    at_a = await a.client()
    for more in ({"tokens": most}, {"prompt_tokens": most, "max_output_tokens": most, "choices": 2**32 - 1}):
        with pytest.raises(WeirError) as refused:
            await reserve(at_a, "r0", **more)
        assert (refused.value.reason, refused.value.limit) == (Reason.INVALID_REQUEST, "tokens")
    assert (await reserve(at_a, "r1", 2**32)).HasField("reserved")
    for number in range(3):
        await settle(at_a, f"r{number}", most, prompt_tokens=most)
    await a.service.keeper.flush()
    await a.service.keeper.flush(snapshot=True)
    await b.agrees(lambda: b.service._ledger.remembered_settled == 3)
    await a.ask_edge(tokens=most)


async def test_any_replica_answers_the_edge_by_the_owners_word(replicas: Cluster) -> None:
    a, b = await replicas.pair(a_owns=True, forward_seconds=20.0, **QUIET)
    await b.agrees(lambda: b.service._owners.link("acme") is not None)
    assert a.service._owners.link("acme") is None
    await reserve(await a.client(), "r1", 900)
    assert b.left() == LIMIT  # it has not been told
    refused = await b.ask_edge(tokens=200)
    assert refused.overall_code == OVER
    told = {header.key: header.value for header in refused.response_headers_to_add}
    assert told["x-weir-reason"] == "QUOTA_TOKENS"
    assert int(told["retry-after-ms"]) > 0
    passed = await b.ask_edge(tokens=100)
    assert passed.overall_code == OK
    told = {header.key: header.value for header in passed.response_headers_to_add}
    assert told["x-ratelimit-remaining-tokens"] == "100"


async def test_without_the_owner_the_replica_that_is_asked_decides(replicas: Cluster) -> None:
    a, b = await replicas.pair(a_owns=True, forward_seconds=0.2)
    await b.agrees(lambda: b.service._owners.link("acme") is not None)
    await reserve(await a.client(), "r1", 900)
    await b.agrees(lambda: b.left() == 100)
    await a.kill()
    assert (await b.ask_edge(tokens=200)).overall_code == OVER
    assert (await b.ask_edge(tokens=100)).overall_code == OK


async def test_sessions_are_sent_to_their_owners_when_the_replicas_change(replicas: Cluster) -> None:
    a = await replicas.start("ratelimit-0")
    mux = await a.client()
    await reserve(mux, "r1", 100)
    b = await replicas.start("ratelimit-1", a)
    assert mux.generation == 1
    await a.see(b)
    await a.agrees(lambda: mux.generation == 2 and mux.connected)
    assert await settle(mux, "r1", 50)


@pytest.mark.parametrize("operation", ["check_edge", "replicate", "fetch_state"])
async def test_only_replicas_may_ask_what_replicas_ask(replicas: Cluster, operation: str) -> None:
    a = await replicas.start("ratelimit-0")
    call = quota_pb2.QuotaCall()
    getattr(call, operation).SetInParent()
    mux = await a.client(service="gateway")
    with pytest.raises(WeirError) as refused:
        await mux.call(call, deadline=Deadline.after(20, CLOCK), semantics=Semantics.ONCE)
    assert refused.value.reason is Reason.PERMISSION_DENIED


async def test_what_cannot_be_read_is_refused(replicas: Cluster) -> None:
    a = await replicas.start("ratelimit-0")
    mux = await a.client(service="ratelimit", instance="ratelimit-9")
    replicate = quota_pb2.Replicate(origin="ratelimit-9", life="1", sequence=1, operations=b"of the future")
    with pytest.raises(WeirError) as refused:
        await mux.call(
            quota_pb2.QuotaCall(replicate=replicate), deadline=Deadline.after(20, CLOCK), semantics=Semantics.ONCE
        )
    assert (refused.value.reason, refused.value.limit) == (Reason.INVALID_REQUEST, "operations")


async def test_a_replica_tells_of_its_own_decisions_only(replicas: Cluster) -> None:
    a = await replicas.start("ratelimit-0")
    mux = await a.client(service="ratelimit", instance="ratelimit-9")
    replicate = quota_pb2.Replicate(origin="ratelimit-1", life="1", sequence=1, operations=b"x")
    with pytest.raises(WeirError) as refused:
        await mux.call(
            quota_pb2.QuotaCall(replicate=replicate), deadline=Deadline.after(20, CLOCK), semantics=Semantics.ONCE
        )
    assert (refused.value.reason, refused.value.limit) == (Reason.PERMISSION_DENIED, "origin")


async def test_c6_what_a_former_life_of_a_gateway_left_ends_when_the_next_one_asks(replicas: Cluster) -> None:
    a = await replicas.start("ratelimit-0", flush_seconds=0.005)
    mux = await a.client(instance="gateway-0", life="one")
    stays = await a.client(instance="gateway-1", life="one")
    await reserve(mux, "gone", 100)
    await reserve(stays, "stays", 10)
    again = await a.client(instance="gateway-0", life="two")
    await reserve(again, "next", 20)
    await a.agrees(lambda: a.service._ledger.live_leases == 2)
    # What it may have delivered stays counted.
    assert a.left() == LIMIT - 130
    # A stream of the former life that comes late ends nothing of the next.
    late = await a.client(instance="gateway-0", life="one")
    await reserve(late, "late", 5)
    await reserve(again, "more", 5)
    assert await settle(again, "next", 20)
    assert await settle(stays, "stays", 10)


async def test_d4_only_the_owner_grants_and_everyone_takes_what_was_used(replicas: Cluster) -> None:
    a, b = await replicas.pair(a_owns=True, settle_seconds=3600.0)
    await b.agrees(lambda: b.service._owners.link("acme") is not None)
    at_a, at_b = await a.client(), await b.client()
    granted = dict(metrics.GRANTED.of)
    await reserve(at_a, "r1", 100)
    with pytest.raises(WeirError) as refused:
        await reserve(at_b, "r2", 100)
    # Its stream was sent home once; the next one leads here again, and that is all the caller can be told.
    assert refused.value.reason is Reason.NOT_OWNER
    assert at_b.generation == 2
    assert not b.service._ledger.holds("acme", "r2")
    assert (await reserve(at_b, "served", 50, granted=True)).HasField("reserved")
    assert {by: count - granted[by] for by, count in metrics.GRANTED.of.items()} == {"limiter": 1, "gateway": 1}
    for one in (a, b):
        await one.agrees(lambda one=one: one.left() == LIMIT - 150)
    assert await settle(at_b, "r1", 10)


async def test_d4_who_hears_no_majority_grants_its_part_only(replicas: Cluster) -> None:
    """Two replicas that the registry knows and that do not hear each other: together no more than one limit."""
    a, b = await replicas.pair(hear_seconds=0.0, flush_seconds=0.005)
    at_a, at_b = await a.client(), await b.client()
    await reserve(at_a, "before", 200)
    await b.agrees(lambda: b.left() == 800)
    for one, other in ((a, b), (b, a)):
        _, mux, task = one.service._peers._links[other.name]
        task.cancel()
        await one.agrees(lambda mux=mux: not mux.connected)
        await one.agrees(lambda one=one: one.service._ledger.terms.sides == 2)
    admitted = 0
    for number in range(40):
        for name, mux in (("a", at_a), ("b", at_b)):
            reply = await reserve(mux, f"{name}{number}", 50)
            admitted += 50 * reply.HasField("reserved")
    assert 600 < admitted <= 800


async def test_c5_a_settle_that_is_repeated_at_another_replica_is_charged_once(replicas: Cluster) -> None:
    a, b = await replicas.pair(**QUIET)
    at_a, at_b = await a.client(), await b.client()
    await reserve(at_a, "r1", 300)
    a.service.keeper.publish()
    await b.agrees(lambda: b.left() == 700)
    assert await settle(at_a, "r1", 300)
    assert await settle(at_b, "r1", 300)
    # What comes after it says that both heard of both.
    assert not await settle(at_a, "after-a", 10)
    assert not await settle(at_b, "after-b", 10)
    for one in (a, b):
        one.service.keeper.publish()
    for one in (a, b):
        await one.agrees(lambda one=one: one.service._ledger.remembered_settled == 3)
        assert one.left() == 680


async def test_c8_a_state_of_many_messages_is_joined_whole(replicas: Cluster) -> None:
    a = await replicas.start("ratelimit-0")
    ledger, now = a.service._ledger, a.service._now()
    for number in range(3000):
        ledger.settle(f"t{number}", "fast", "r", 10, now)
        ledger.settle("acme", "fast", f"r{number}", 0, now)
    mux = await a.client()
    await reserve(mux, "open", 300)
    b = await replicas.start("ratelimit-1", a)
    assert b.service._ledger.remembered_settled == 6000
    assert (b.left(), b.left("t17"), b.left("t2999")) == (a.left(), a.left("t17"), a.left("t2999"))
