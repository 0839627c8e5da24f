"""Gateways while their tenant's owner is away: together within what was left when it was last asked."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.clock import Clock, ManualClock, SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.limiter import LimiterStreams, QuotaClient, Reservation
from libs.mux import Dialer
from libs.quota import DAY_NS, MINUTE_NS, Share
from libs.quota.amount import NO_LIMIT, Amount
from libs.quota.shares import part_of
from libs.registry import RegistrySnapshot, WatchEvent, apply_events, keys, snapshot_of
from services.gateway.config import Settings, Targets
from tests.support.limiter import Cluster, cluster
from tests.support.quota import leases_of

LIMIT = 1000
NOBODY = "127.0.0.1:1"
GATEWAYS = [registry_pb2.Endpoint(service="gateway", instance=f"gateway-{n}", address=f"10.0.0.{n}:1") for n in (0, 1)]
LIMITS = registry_pb2.Limits(tenant="acme", model="*", tokens_per_minute=LIMIT, requests_per_minute=100)
PRICE = registry_pb2.Price(model="*", input_microusd_per_million=1_000_000, output_microusd_per_million=2_000_000)


@pytest.fixture
async def replicas() -> AsyncIterator[Cluster]:
    async with cluster() as made, asyncio.timeout(30):
        yield made


class Asking:
    """A gateway's client and a count of what it was given."""

    def __init__(self, client: QuotaClient) -> None:
        self.client = client
        self.turn = 0

    async def reserve(self, tokens: int, *, name: str = "", **more: object) -> Reservation:
        """One reservation; raises what the limiter or the fallback says."""
        self.turn += 1
        asked: dict[str, Any] = {"tenant": "acme", "model": "fast", **more}
        reserve = quota_pb2.Reserve(request_id=name or f"{id(self)}-{self.turn}", tokens=tokens, **asked)
        deadline = Deadline.after(20, SystemClock())
        return await self.client.start_reserve(reserve, deadline=deadline, traceparent="")

    def settle(self, name: str, tokens: int, **more: int) -> None:
        """It is over."""
        used = quota_pb2.Settle(tenant="acme", model="fast", request_id=name, tokens=tokens, **more)
        self.client.settle(used)

    async def grow(self, name: str, tokens: int) -> None:
        """A request that runs is to have so many in all."""
        deadline = Deadline.after(20, SystemClock())
        await self.client.start_grow(tenant="acme", request_id=name, tokens=tokens, deadline=deadline, traceparent="")

    async def given(self, tokens: int) -> int:
        """All that it gets in such portions."""
        total = 0
        with contextlib.suppress(WeirError):
            while True:
                assert (await self.reserve(tokens)).local
                total += tokens
        return total


@contextlib.asynccontextmanager
async def gateway(
    number: int,
    address: str,
    *,
    clock: Clock | None = None,
    lease_seconds: float = 20.0,
    connected: bool = True,
    **more: Any,
) -> AsyncIterator[Asking]:
    clock = clock or SystemClock()
    settings = Settings(service="gateway", instance=f"gateway-{number}", targets=Targets(ratelimit=address), **more)
    client = QuotaClient(
        LimiterStreams(
            Dialer(settings, SystemClock(), random.Random(number), settings.lazy_seconds),
            settings.targets.ratelimit,
            joined=settings.stream_per_owner,
        ),
        clock=clock,
        decide_timeout=5.0,
        end_timeout=5.0,
        lease_seconds=lease_seconds,
        allowances=settings.allowances,
    )
    client.update(
        RegistrySnapshot(
            limits={("acme", "*"): LIMITS},
            endpoints={("gateway", endpoint.instance): endpoint for endpoint in GATEWAYS},
            prices={"*": PRICE},
        )
    )
    running = asyncio.create_task(client.run())
    try:
        if connected and address != NOBODY:
            await client.wait_connected(20)
        yield Asking(client)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_all_gateways_together_stay_within_what_was_left(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, PRICE, *GATEWAYS))
    async with gateway(0, node.address) as first, gateway(1, node.address) as second:
        assert not (await first.reserve(400)).local
        assert not (await second.reserve(100)).local
        assert not (await first.reserve(100)).local
        left = node.left()
        assert left == 400
        await node.kill()
        while any(mux.connected for one in (first, second) for mux in one.client._streams.muxes):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        given = [await first.given(10), await second.given(10)]
        assert all(given)
        assert sum(given) <= left


async def test_a_move_to_another_owner_is_waited_for_and_nothing_is_given_out_meanwhile(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, PRICE, *GATEWAYS))
    async with gateway(0, node.address) as one:
        assert not (await one.reserve(100)).local
        shard = one.client._streams.home("acme")
        node.service._mux.rebalance()
        while shard.connected:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not (await one.reserve(100)).local
        assert shard.generation == 2
        assert node.left() == 800


@pytest.mark.parametrize("joined", [True, False])
async def test_what_goes_to_one_owner_travels_on_one_stream(replicas: Cluster, joined: bool) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address, stream_per_owner=joined) as one:
        streams = one.client._streams
        assert len({streams.to(f"tenant-{number}") for number in range(50)}) == (1 if joined else len(streams.muxes))


async def test_a_tenant_that_was_never_asked_about_has_an_equal_part() -> None:
    async with gateway(0, NOBODY) as one:
        assert await one.given(100) == LIMIT // 2
        with pytest.raises(WeirError) as refused:
            await one.reserve(100)
        assert refused.value.reason is Reason.QUOTA_TOKENS
        assert refused.value.retry_after


async def test_limits_are_made_anew_only_when_they_or_the_gateways_change() -> None:
    """Admission's levels change every second of an overload; the limits of all tenants are none of that."""
    async with gateway(0, NOBODY) as one:
        before = snapshot_of([], 1)
        for message in (LIMITS, PRICE, *GATEWAYS):
            before = apply_events(before, [WatchEvent(keys.key_of(message), keys.encode(message), 2)], 2)
        one.client.update(before)
        made = one.client._bridge._ledger._scopes._specs
        level = registry_pb2.PoolLevel(pool="fast-pool")
        after = apply_events(before, [WatchEvent(keys.key_of(level), keys.encode(level), 3)], 3)
        one.client.update(after)
        assert one.client._bridge._ledger._scopes._specs is made
        third = registry_pb2.Endpoint(service="gateway", instance="gateway-2", address="10.0.0.2:1")
        one.client.update(apply_events(after, [WatchEvent(keys.key_of(third), keys.encode(third), 4)], 4))
        assert one.client._bridge._ledger._scopes._specs["acme", "*"].tokens_per_minute == LIMIT // 3


async def test_a_share_is_given_out_while_it_lasts_and_after_it_no_more_than_the_part() -> None:
    clock = ManualClock(start=100.0)
    async with gateway(0, NOBODY, clock=clock) as one:
        now = int(clock.monotonic() * 1e9)
        one.client._bridge.told("acme", 1, [Share("*", Amount(120, 100, NO_LIMIT))], now + 10 * 10**9, now)
        assert await one.given(10) == 120
        clock.advance(11)
        # Nobody knows what the others used; its own open streams are part of what it may.
        assert await one.given(10) == LIMIT // 2 - 120


async def test_settling_a_local_lease_frees_what_was_not_used() -> None:
    async with gateway(0, NOBODY) as one:
        await one.reserve(500, name="r1")
        with pytest.raises(WeirError):
            await one.reserve(10)
        one.settle("r1", 100, prompt_tokens=50)
        # What it served when the owner could be asked is of its part, too.
        one.settle("not-local", 150)
        assert await one.given(10) == 250


async def test_c7_cached_prompt_tokens_are_spent_at_their_own_price(replicas: Cluster) -> None:
    price = registry_pb2.Price()
    price.CopyFrom(PRICE)
    price.cached_input_microusd_per_million = 100_000
    limits = registry_pb2.Limits(tenant="acme", model="*", spend_microusd=1000)
    node = await replicas.start("ratelimit-0", seed=(limits, price))
    async with gateway(0, node.address) as one:
        await one.reserve(60, name="r", prompt_tokens=50, max_output_tokens=10)
        one.settle("r", 60, prompt_tokens=50, cached_prompt_tokens=40)
        async with asyncio.timeout(10):
            await node.agrees(lambda: node.service._ledger.live_leases == 0)
        assert node.service._ledger.report("acme", "fast", node.service._now()).spend.remaining == 1000 - (4 + 10 + 20)


async def test_inputs_without_an_output_are_priced_as_inputs(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(tenant="acme", model="*", spend_microusd=1000, max_context=60)
    node = await replicas.start("ratelimit-0", seed=(limits, PRICE))
    async with gateway(0, node.address) as one:
        got = await one.reserve(150, prompt_tokens=60)
        assert got.spend.remaining == 850


async def test_c3_a_lease_lives_as_long_as_its_request_runs_and_no_settle_is_needed_for_its_end(
    replicas: Cluster,
) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS), flush_seconds=0.005)
    async with gateway(0, node.address, lease_seconds=0.4) as one:
        await one.reserve(100, name="runs")
        await one.reserve(10, name="lost")
        # Its settle never left this gateway.
        one.client._bridge.settle("acme", "fast", "lost", 10, one.client._now(), spend=0)
        ledger = node.service._ledger
        opened = leases_of(ledger)["runs"].opened
        await node.agrees(lambda: not ledger.holds("acme", "lost"))
        await node.agrees(lambda: leases_of(ledger)["runs"].expires > opened + 2 * 10**9)
        one.settle("runs", 40)
        await node.agrees(lambda: ledger.live_leases == 0)
        # What nobody settled counts as it was reserved.
        assert node.left() == LIMIT - 40 - 10


async def test_c3_what_an_owner_lost_is_taken_again_as_soon_as_the_gateway_finds_the_next(replicas: Cluster) -> None:
    first = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, first.address) as one:
        await one.reserve(300, name="granted")
        await first.kill()
        while any(mux.connected for mux in one.client._streams.muxes):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        assert (await one.reserve(50, name="local")).local
        second = await replicas.start("ratelimit-1", seed=(LIMITS, *GATEWAYS), address=first.address)
        await second.agrees(lambda: second.service._ledger.live_leases == 2)
        assert second.left() == LIMIT - 350
        one.settle("local", 20)
        await second.agrees(lambda: second.left() == LIMIT - 320)


async def test_c7_the_next_owner_hears_what_a_request_grew_to_and_it_goes_on_growing(replicas: Cluster) -> None:
    first = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, first.address) as one:
        await one.reserve(100, name="r", prompt_tokens=50, max_output_tokens=10_000, grows=True)
        await one.grow("r", 300)
        assert first.left() == LIMIT - 300
        with pytest.raises(WeirError) as refused:
            await one.grow("r", LIMIT + 1)
        assert refused.value.reason is Reason.QUOTA_TOKENS
        share = part_of(LIMIT, LIMIT - 100, len(GATEWAYS))
        await first.kill()
        while any(mux.connected for mux in one.client._streams.muxes):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        with pytest.raises(WeirError):
            await one.grow("r", 300 + share + 1)
        await one.grow("r", 300 + share)
        second = await replicas.start("ratelimit-1", seed=(LIMITS, *GATEWAYS), address=first.address)
        async with asyncio.timeout(10):
            await second.agrees(lambda: second.left() == LIMIT - 300 - share)
            await one.grow("r", 500)
            assert second.left() == LIMIT - 500
            one.settle("r", 420)
            await second.agrees(lambda: second.left() == LIMIT - 420)


async def test_c7_an_owner_who_followed_less_of_a_request_is_told_on_the_next_stream(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(LIMITS, *GATEWAYS))
    async with gateway(0, node.address) as one, asyncio.timeout(20):
        await one.reserve(100, name="r", prompt_tokens=50, max_output_tokens=10_000, grows=True)
        await one.grow("r", 300)
        lease = leases_of(node.service._ledger)["r"]
        for scope in lease.scopes:
            scope.held_tokens -= lease.tokens - 100
        lease.tokens = 100
        assert node.left() == LIMIT - 100
        node.service._mux.rebalance()
        await node.agrees(lambda: node.left() == LIMIT - 300)


async def test_the_owner_prices_a_request_and_holds_it_to_the_tenants_lengths(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(
        tenant="acme", model="*", tokens_per_minute=100, spend_microusd=1000, max_context=300, max_output=200
    )
    node = await replicas.start("ratelimit-0", seed=(limits, PRICE))
    async with gateway(0, node.address) as one:
        # A client may say what it likes: the prompt and the outputs are what is reserved.
        with pytest.raises(WeirError) as refused:
            await one.reserve(1, prompt_tokens=50, max_output_tokens=26, choices=2)
        assert refused.value.limit == "tokens_per_minute"
        got = await one.reserve(1, prompt_tokens=50, max_output_tokens=25, choices=2)
        assert (got.tokens.remaining, got.tokens.period_ns) == (0, MINUTE_NS)
        assert (got.spend.limit, got.spend.remaining, got.spend.period_ns) == (1000, 1000 - 50 - 100, DAY_NS)
        over = await one.reserve(1, prompt_tokens=50, max_output_tokens=100, over_quota_allowed=True)
        assert over.over_quota
        assert over.spend.remaining == 850 - 50 - 200
        for ask, reason, limit in (
            ({"max_output_tokens": 201}, Reason.INVALID_REQUEST, "max_output"),
            ({"prompt_tokens": 200, "max_output_tokens": 101}, Reason.CONTEXT_LENGTH_EXCEEDED, "max_context"),
            ({"max_output_tokens": 200, "choices": 2}, Reason.QUOTA_SPEND, "spend"),
        ):
            with pytest.raises(WeirError) as refused:
                await one.reserve(1, over_quota_allowed=True, **ask)
            assert (refused.value.reason, refused.value.limit) == (reason, limit)


async def test_c2_of_money_a_gateway_gives_out_what_it_was_told_and_else_nothing() -> None:
    clock = ManualClock(start=100.0, epoch=1_795_435_200.0)
    budget = registry_pb2.Budget(tenant="acme", daily_microusd=200)
    soft = registry_pb2.Budget(tenant="acme", daily_microusd=1, enforcement=registry_pb2.BUDGET_ENFORCEMENT_SOFT)
    tenant = registry_pb2.Tenant(id="acme", plan=registry_pb2.PLAN_PAID, time_zone="Asia/Tokyo")
    async with gateway(0, NOBODY, clock=clock) as one:
        snapshot = snapshot_of([], 1)
        for message in (PRICE, tenant, budget, *GATEWAYS):
            snapshot = apply_events(snapshot, [WatchEvent(keys.key_of(message), keys.encode(message), 2)], 2)
        one.client.update(snapshot)

        async def refused() -> bool:
            with pytest.raises(WeirError) as caught:
                await one.reserve(10, prompt_tokens=10)
            return caught.value.reason is Reason.QUOTA_SPEND and bool(caught.value.retry_after)

        # Inputs without an output: a micro-dollar each. Nobody here knows that anything is left.
        assert await refused()
        now = int(clock.monotonic() * 1e9)
        one.client._bridge.told("acme", 1, [Share("*", Amount(NO_LIMIT, NO_LIMIT, 25))], now + 10 * 10**9, now)
        assert (await one.reserve(10, prompt_tokens=10)).local
        assert (await one.reserve(10, prompt_tokens=10)).local
        assert await refused()
        clock.advance(11)
        assert await refused()
        one.client.update(apply_events(snapshot, [WatchEvent(keys.key_of(soft), keys.encode(soft), 3)], 3))
        assert (await one.reserve(100, prompt_tokens=100)).local


async def test_who_is_told_of_no_money_yet_waits_for_the_owner_instead_of_refusing(replicas: Cluster) -> None:
    capped = registry_pb2.Limits(tenant="acme", model="*", spend_microusd=1000)
    node = await replicas.start("ratelimit-0", seed=(capped, PRICE, *GATEWAYS))
    async with gateway(0, node.address, connected=False) as one:
        one.client.update(RegistrySnapshot(limits={("acme", "*"): capped}, prices={"*": PRICE}))
        assert not any(mux.connected for mux in one.client._streams.muxes)
        assert not (await one.reserve(10, prompt_tokens=10)).local


async def test_c2_a_spent_cap_stays_spent_and_a_models_limits_hold_while_the_owner_is_away(replicas: Cluster) -> None:
    capped = registry_pb2.Limits(tenant="acme", model="*", spend_microusd=100)
    model = registry_pb2.Limits(tenant="rich", model="fast", tokens_per_minute=100)
    node = await replicas.start("ratelimit-0", seed=(capped, model, PRICE, *GATEWAYS))
    async with gateway(0, node.address) as one:
        one.client.update(
            RegistrySnapshot(
                limits={("acme", "*"): capped, ("rich", "fast"): model},
                endpoints={("gateway", endpoint.instance): endpoint for endpoint in GATEWAYS},
                prices={"*": PRICE},
            )
        )
        assert not (await one.reserve(100, prompt_tokens=100)).local
        assert not (await one.reserve(95, tenant="rich")).local
        await node.kill()
        while any(mux.connected for mux in one.client._streams.muxes):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        with pytest.raises(WeirError) as refused:
            await one.reserve(1, prompt_tokens=1)
        assert refused.value.reason is Reason.QUOTA_SPEND
        with pytest.raises(WeirError) as refused:
            await one.reserve(10, tenant="rich")
        assert (refused.value.reason, refused.value.limit) == (Reason.QUOTA_TOKENS, "tokens_per_minute")
