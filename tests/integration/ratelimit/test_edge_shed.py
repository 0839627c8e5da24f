"""Shedding in the header phase: admission's levels, from the registry to the edge's answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import duration_pb2
from prometheus_client import REGISTRY
from weir.registry.v1 import registry_pb2

from libs.clock import ManualClock
from libs.registry import keys
from tests.support.limiter import Cluster, cluster, settle

OK = rls_pb2.RateLimitResponse.OK
OVER = rls_pb2.RateLimitResponse.OVER_LIMIT
WORKER = registry_pb2.Endpoint(service="worker", instance="w0", address="10.0.0.1:1", pool="fast-pool")
OTHER = registry_pb2.Endpoint(service="worker", instance="w1", address="10.0.0.1:2", pool="big-pool")


@pytest.fixture
async def replicas() -> AsyncIterator[Cluster]:
    async with cluster() as made, asyncio.timeout(30):
        yield made


def level(pool: str, **shed: float) -> registry_pb2.PoolLevel:
    told = registry_pb2.PoolLevel(pool=pool, admission="admission-0")
    for tenant, share in shed.items():
        told.tenants.add(tenant=tenant, shed=share, retry_after=duration_pb2.Duration(seconds=3))
    return told


def counted() -> float:
    return REGISTRY.get_sample_value("weir_ratelimit_edge_total", {"outcome": "REJECTED_OVERLOAD"}) or 0.0


async def test_a_shed_tenant_is_refused_with_the_reason_and_the_time_and_loses_no_quota(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(tenant="acme", model="*", requests_per_minute=5)
    node = await replicas.start("ratelimit-0", seed=(limits, WORKER, level("fast-pool", acme=1.0)))
    before = counted()
    refused = await node.ask_edge()
    assert refused.overall_code == OVER
    told = {header.key: header.value for header in refused.response_headers_to_add}
    assert (told["x-weir-reason"], told["x-weir-code"]) == ("REJECTED_OVERLOAD", "rejected_overload")
    assert (told["retry-after"], told["retry-after-ms"]) == ("3", "3000")
    assert told["x-ratelimit-remaining-requests"] == "5"
    assert b"overloaded" in refused.raw_body
    assert [status.code for status in refused.statuses] == [OK, OK]
    assert counted() == before + 1
    assert (await node.ask_edge("globex")).overall_code == OK


async def test_a_pool_that_could_still_serve_lets_everybody_pass(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(WORKER, OTHER, level("fast-pool", acme=1.0)))
    assert (await node.ask_edge()).overall_code == OK
    await node.put(level("big-pool", acme=1.0))
    assert (await node.ask_edge()).overall_code == OVER


async def test_a_level_ends_with_its_admission(replicas: Cluster) -> None:
    node = await replicas.start("ratelimit-0", seed=(WORKER, level("fast-pool", acme=1.0)))
    assert (await node.ask_edge()).overall_code == OVER
    await node._write(deletes=[keys.key("levels", "fast-pool")])
    assert (await node.ask_edge()).overall_code == OK


async def test_a_level_whose_end_cannot_be_seen_ends_by_itself(replicas: Cluster) -> None:
    clock = ManualClock(start=1000.0)
    node = await replicas.start("ratelimit-0", seed=(WORKER, level("fast-pool", acme=1.0)), clock=clock)
    sweep = node.service._sweep
    for _ in range(5):  # while the registry is seen, an unchanged level is as good as a new one
        clock.advance(9.0)
        sweep()
        assert (await node.ask_edge()).overall_code == OVER
    node.store.set_available(False)
    clock.advance(9.0)
    sweep()
    assert (await node.ask_edge()).overall_code == OVER
    clock.advance(1.5)
    assert (await node.ask_edge()).overall_code == OK
    node.store.set_available(True)
    sweep()
    assert (await node.ask_edge()).overall_code == OVER


async def test_a_share_of_the_requests_is_refused(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(tenant="acme", model="*")
    seed = (limits, WORKER, level("fast-pool", acme=0.3))
    node = await replicas.start("ratelimit-0", seed=seed, rng=random.Random(7))
    codes = [(await node.ask_edge()).overall_code for _ in range(200)]
    # Drawn with a known seed: the same every time.
    assert 40 <= codes.count(OVER) <= 80


async def test_plans_that_serve_beyond_the_quota_pass_the_edge_uncounted(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(tenant="acme", model="*", requests_per_minute=1, tokens_per_minute=100)
    tenant = registry_pb2.Tenant(id="acme", plan=registry_pb2.PLAN_PAID)
    node = await replicas.start("ratelimit-0", seed=(limits, tenant))
    counted_header = [header.key for header in (await node.ask_edge()).request_headers_to_add]
    assert counted_header == ["x-weir-request-counted"]
    assert (await node.ask_edge()).overall_code == OVER
    await node.put(registry_pb2.PlanPolicy(id="paid", over_quota=registry_pb2.OVER_QUOTA_SERVE_IDLE))
    for tokens in (1, 1000):
        passed = await node.ask_edge(tokens=tokens)
        assert (passed.overall_code, list(passed.request_headers_to_add)) == (OK, [])


async def test_a_spent_cap_refuses_at_the_edge_when_nothing_is_free(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(tenant="acme", model="*", spend_microusd=100)
    price = registry_pb2.Price(model="*", input_microusd_per_million=10**6, output_microusd_per_million=10**6)
    node = await replicas.start("ratelimit-0", seed=(limits, price))
    assert (await node.ask_edge()).overall_code == OK
    await settle(await node.client(), "r1", 100)
    refused = await node.ask_edge()
    assert refused.overall_code == OVER
    told = {header.key: header.value for header in refused.response_headers_to_add}
    assert told["x-weir-reason"] == "QUOTA_SPEND"
    assert told["ratelimit"] == '"spend";r=0;t=' + told["ratelimit"].rpartition("=")[2]
    assert int(told["retry-after"]) > 86_000
    await node.put(registry_pb2.Price(model="free"))
    assert (await node.ask_edge()).overall_code == OK


def passing(response: rls_pb2.RateLimitResponse) -> tuple[float, float]:
    """How many requests the edge may let pass, and for how many milliseconds."""
    told = response.dynamic_metadata.fields
    return told["free"].number_value, told["ms"].number_value


async def test_the_edge_need_not_ask_about_whom_nothing_stops(replicas: Cluster) -> None:
    limits = registry_pb2.Limits(tenant="acme", model="*", requests_per_minute=160)
    seed = (limits, registry_pb2.Limits(tenant="globex", model="*"), WORKER)
    node = await replicas.start("ratelimit-0", seed=seed, rng=random.Random(7))
    assert passing(await node.ask_edge("globex")) == (1000, 2000)
    answers = [passing(await node.ask_edge()) for _ in range(160)]
    # A sixteenth of what is left, until a fifth of the limit is.
    assert [free for free, _ in answers] == [left // 16 if left > 32 else 0 for left in range(159, -1, -1)]
    refused = await node.ask_edge()
    assert (refused.overall_code, passing(refused)) == (OVER, (0, 2000))
    # Whom a level sheds in part is asked about, also when this one passes.
    await node.put(level("fast-pool", globex=0.5))
    shed = [await node.ask_edge("globex") for _ in range(20)]
    assert {response.overall_code for response in shed} == {OK, OVER}
    assert {passing(response) for response in shed} == {(0, 2000)}
    # Nor may anybody pass for whom beyond the quota nothing is counted.
    await node.put(registry_pb2.Tenant(id="acme", plan=registry_pb2.PLAN_PAID))
    await node.put(registry_pb2.PlanPolicy(id="paid", over_quota=registry_pb2.OVER_QUOTA_SERVE_IDLE))
    beyond = await node.ask_edge()
    assert (beyond.overall_code, passing(beyond)) == (OK, (0, 2000))
