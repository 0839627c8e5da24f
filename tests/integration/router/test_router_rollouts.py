"""Rollouts over the router's wire: what gateways are told, and how soon a rollout is off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2 as pb

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.mux import MuxClient, Semantics
from libs.registry import Put, keys
from services.router.config import Settings
from tests.integration.router.test_router_service import Bench, alias, router

CLOCK = SystemClock()


def rollout(phase: registry_pb2.RolloutPhase, weight: int, **fields: Any) -> Put:
    message = registry_pb2.Rollout(
        alias="weir-fast",
        id="r1",
        baseline="weir-fast@1",
        arms=[registry_pb2.RolloutArm(name="canary", model_version="weir-fast@2")],
        sticky=registry_pb2.STICKY_BY_SESSION,
        state=registry_pb2.RolloutState(phase=phase, step=2, weights=[weight]),
        **fields,
    )
    return Put(keys.key("rollouts", "weir-fast"), keys.encode(message))


def whole() -> Put:
    """The alias gives the baseline alone."""
    targets = [registry_pb2.AliasTarget(model_version="weir-fast@1", weight=100)]
    message = registry_pb2.Alias(name="weir-fast", targets=targets)
    return Put(keys.key("aliases", "weir-fast"), keys.encode(message))


def switch(*, kill: bool) -> Put:
    message = registry_pb2.RolloutSwitch(kill=kill, reason="a drill")
    return Put(keys.key("switches", "rollouts"), keys.encode(message))


async def ask(client: MuxClient, who: Mapping[str, str] = MappingProxyType({}), *, after: int = 0) -> pb.Route:
    """The route, as of that revision at the earliest."""
    call = pb.RouterCall(resolve=pb.Resolve(tenant="acme", model="weir-fast", zone="zone-a", **who))
    async with asyncio.timeout(10):
        while True:
            deadline = Deadline.after(10, CLOCK)
            route: pb.Route = (await client.call(call, deadline=deadline, semantics=Semantics.RETRY)).route
            if route.revision >= after:
                return route


async def write(bench: Bench, *puts: Put) -> int:
    return (await bench.store.txn(puts=list(puts))).revision


async def test_a_route_carries_the_rollout_its_step_and_arm_by_session_or_user() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:
        assert (await ask(client)).rollout_id == ""
        made = await write(bench, whole(), rollout(registry_pb2.ROLLOUT_PHASE_CANARY, 5000))
        await ask(client, after=made)
        for kind in ("session", "user", "sticky_key"):
            routes = [await ask(client, {kind: str(number)}) for number in range(40)]
            assert {(route.arm, route.model_version) for route in routes} == {
                ("baseline", "weir-fast@1"),
                ("canary", "weir-fast@2"),
            }
            assert {(route.rollout_id, route.step) for route in routes} == {("r1", 2)}
            assert not any(route.HasField("mirror") for route in routes)


async def test_a_shadow_is_told_beside_the_users_own_route() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:
        plan = registry_pb2.ShadowPlan(share=10_000)
        made = await write(bench, whole(), rollout(registry_pb2.ROLLOUT_PHASE_SHADOW, 0, shadow=plan))
        await ask(client, after=made)
        route = await ask(client, {"request_id": "q1"})
        assert (route.model_version, route.arm, route.rollout_id) == ("weir-fast@1", "baseline", "r1")
        mirror = route.mirror
        assert (mirror.model_version, mirror.arm, mirror.pool, mirror.tier) == ("weir-fast@2", "canary", "fast", "fast")
        assert list(mirror.zones) == ["zone-a", "zone-b"]
        assert not (await ask(client)).HasField("mirror")


async def test_the_kill_switch_takes_every_arm_out_and_gives_it_back() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:
        await write(bench, whole(), rollout(registry_pb2.ROLLOUT_PHASE_CANARY, 10_000))
        for kill, expected in ((True, "weir-fast@1"), (False, "weir-fast@2")):
            route = await ask(client, after=await write(bench, switch(kill=kill)))
            assert route.model_version == expected


async def test_an_alias_that_somebody_moved_overrules_its_rollout() -> None:
    async with router(Settings()) as bench, bench.gateway() as client:
        await write(bench, whole(), rollout(registry_pb2.ROLLOUT_PHASE_CANARY, 10_000))
        route = await ask(client, after=await write(bench, alias(40)))
        assert route.rollout_id == ""
