"""Gateways that give out of their shares without asking, over real streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.limiter import Reservation
from libs.registry import RegistrySnapshot
from tests.integration.ratelimit.test_gateway_share import GATEWAYS, Asking, gateway
from tests.support.limiter import Cluster, Node, cluster
from tests.support.quota import leases_of

LIMIT = 16_000
LIMITS = registry_pb2.Limits(tenant="acme", model="*", tokens_per_minute=LIMIT, requests_per_minute=9_000)


@pytest.fixture
async def replicas() -> AsyncIterator[Cluster]:
    async with cluster() as made, asyncio.timeout(30):
        yield made


def knows(one: Asking, *limits: registry_pb2.Limits) -> Asking:
    """The gateway has these limits from its registry."""
    one.client.update(
        RegistrySnapshot(
            limits={(each.tenant, each.model): each for each in limits},
            endpoints={("gateway", endpoint.instance): endpoint for endpoint in GATEWAYS},
        )
    )
    return one


def start(one: Asking, name: str, tokens: int, **more: Any) -> asyncio.Future[Reservation]:
    """A reservation that was decided already if it is done."""
    reserve = quota_pb2.Reserve(tenant="acme", model="fast", request_id=name, tokens=tokens, **more)
    return one.client.start_reserve(reserve, deadline=Deadline.after(20, SystemClock()), traceparent="")


async def left(node: Node, tokens: int) -> None:
    """The owner knows that so much is left."""
    await node.agrees(lambda: node.left() == tokens)


async def test_far_from_its_limits_a_tenants_requests_wait_for_nobody(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address) as one:
        knows(one, LIMITS)
        asked = start(one, "first", 100)
        assert not asked.done()
        first = await asked
        given = start(one, "second", 50)
        assert given.done()
        assert not given.result().local
        assert given.result().tokens == first.tokens._replace(limit=LIMIT, remaining=LIMIT - 150)
        assert given.result().requests[:2] == (9000, 8998)
        await left(node, LIMIT - 150)  # by itself, after a while
        one.settle("second", 20)
        await left(node, LIMIT - 120)
        # It grows without asking, too.
        grown = one.client.start_grow(
            tenant="acme", request_id="first", tokens=300, deadline=Deadline.after(20, SystemClock()), traceparent=""
        )
        assert grown.done()
        await left(node, LIMIT - 320)
        assert leases_of(node.service._ledger)["first"].tokens == 300


async def test_switched_off_the_owner_is_asked_of_each_request(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address, allowances=False) as one:
        knows(one, LIMITS)
        for name in ("first", "second", "third"):
            asked = start(one, name, 1)
            assert not asked.done()
            await asked


async def test_another_model_and_changed_limits_are_asked_for(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address) as one:
        knows(one, LIMITS)
        await start(one, "first", 1)
        assert start(one, "second", 1).done()
        other = start(one, "third", 1, model_version="fast@2")
        assert not other.done()
        await other
        assert start(one, "fourth", 1, model_version="fast@2").done()
        fewer = registry_pb2.Limits(tenant="acme", model="*", tokens_per_minute=8)
        await node.put(fewer)
        knows(one, fewer)
        with pytest.raises(WeirError) as refused:
            await start(one, "fifth", 5)
        assert refused.value.reason is Reason.QUOTA_TOKENS


async def test_g10_after_new_prices_the_owner_is_asked(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address) as one:
        snapshot = RegistrySnapshot(limits={("acme", "*"): LIMITS})
        one.client.update(snapshot)
        await start(one, "first", 1)
        assert start(one, "second", 1).done()
        price = registry_pb2.Price(model="*", input_microusd_per_million=1, output_microusd_per_million=1)
        one.client.update(replace(snapshot, revision=2, prices={"*": price}))
        asked = start(one, "third", 1)
        assert not asked.done()
        await asked
        assert start(one, "fourth", 1).done()


async def test_g4_what_the_edge_did_not_count_waits_for_a_share_that_is_held_against_the_edge(
    replicas: Cluster,
) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address) as one:
        knows(one, LIMITS)
        await start(one, "first", 1, request_counted=True)
        assert start(one, "second", 1, request_counted=True).done()
        asked = start(one, "third", 1)
        assert not asked.done()
        await asked
        assert start(one, "fourth", 1).done()
        assert start(one, "fifth", 1, request_counted=True).done()


@pytest.mark.parametrize("tokens", [7, 90])
async def test_gateways_together_give_out_the_limit_and_no_more(replicas: Cluster, tokens: int) -> None:
    """Both ask as fast as they can, until they are refused for good."""
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    without_asking = 0

    async def take(one: Asking) -> int:
        nonlocal without_asking
        total, refused = 0, 0
        while refused < 2:
            asking = [start(one, f"{id(one)}-{total}-{refused}-{each}", tokens) for each in range(16)]
            without_asking += sum(each.done() for each in asking)
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
            total += tokens * sum(isinstance(each, Reservation) for each in outcomes)
            refused += any(isinstance(each, WeirError) for each in outcomes)
            assert not any(isinstance(each, Reservation) and each.local for each in outcomes)
        return total

    async with gateway(0, node.address) as first, gateway(1, node.address) as second:
        taken = sum(await asyncio.gather(*(take(knows(one, LIMITS)) for one in (first, second))))
        assert taken <= LIMIT
        assert taken > LIMIT * 3 // 4  # but for what either holds for itself
        assert without_asking > 50
        await left(node, LIMIT - taken)


async def test_slots_of_an_allowance_come_back_with_their_streams(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(tenant="acme", model="*", concurrency=32)
    node = await replicas.start("ratelimit-0", seed=(limits, *GATEWAYS))
    async with gateway(0, node.address) as one:
        knows(one, limits)
        await start(one, "first", 1)  # of 31 slots a sixteenth of 32 are held: two
        for turn in range(20):
            given = [start(one, f"{turn}-{number}", 1) for number in range(2)]
            assert all(each.done() for each in given)
            for number in range(2):
                one.settle(f"{turn}-{number}", 1)
        given = [start(one, f"last-{number}", 1) for number in range(3)]
        assert [each.done() for each in given] == [True, True, False]
        await asyncio.gather(*given)
        await left_slots(node, 28)


async def left_slots(node: Node, slots: int) -> None:
    """The owner knows that so many are left."""
    service = node.service
    await node.agrees(lambda: service._ledger.report("acme", "*", service._now()).concurrency.remaining == slots)


async def test_what_was_given_out_comes_to_the_next_owner(replicas: Cluster) -> None:
    first = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, first.address, lazy_seconds=3600.0) as one:
        knows(one, LIMITS)
        await start(one, "first", 100)
        assert start(one, "second", 50).done()
        await first.kill()
        second = await replicas.start("ratelimit-1", seed=(LIMITS, *GATEWAYS), address=first.address)
        await left(second, LIMIT - 150)


async def test_a_share_that_could_not_even_be_asked_for_is_asked_for_again(
    replicas: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address) as one:
        knows(one, LIMITS)
        await start(one, "first", 1)

        def full(*args: Any, **options: Any) -> None:
            raise WeirError(Reason.REJECTED_QUEUE_FULL, "full")

        with monkeypatch.context() as patched:
            patched.setattr(one.client._streams.to("acme"), "call_nowait", full)
            assert start(one, "second", 600).done()  # leaves less than half
        assert start(one, "third", 300).done()
        await left(node, LIMIT - 301)
        await node.agrees(lambda: not one.client.pending)  # the owner's answer tells of the next share
        assert start(one, "fourth", 350).done()  # of a thousand, less what the owner does not know
