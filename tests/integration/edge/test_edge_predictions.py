"""Unary predictions through Envoy: the assignment is that of libs.routing, for every user, whatever changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from envoy.service.discovery.v3 import discovery_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot, snapshot_of
from libs.registry.keys import ROOT
from libs.routing import RouteRequest, RoutingTable
from services.controlplane.policy.names import ENDPOINTS
from services.controlplane.server import AdsServicer
from tests.support.predictions import MODEL, PredictionEdge, prediction_edge, rollout

USERS = [f"user-{number}" for number in range(2000)]
FEW = USERS[:200]
ONE, TWO = f"{MODEL}@1", f"{MODEL}@2"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PredictionEdge]:
    """A running edge with predictors of two versions."""
    async with prediction_edge(tmp_path_factory.mktemp("predictions")) as found:
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def expected(edge: PredictionEdge, users: list[str], tenant: str = "acme") -> list[str]:
    """What router and gateways would choose."""
    listing = await edge.store.get_prefix(ROOT)
    snapshot: RegistrySnapshot = snapshot_of(listing.kvs, listing.revision)
    table = RoutingTable.of(snapshot)
    return [table.resolve(RouteRequest(tenant, MODEL, user=user)).model_version for user in users]


async def at(edge: PredictionEdge, weight: int, users: list[str] = FEW, **radius: Any) -> list[str]:
    """The version that answers each user at this weight of the canary, once Envoy's workers follow it."""
    before = await expected(edge, users)
    await edge.known(await edge.put(rollout(weight, **radius)))
    wanted = await expected(edge, users)
    for user, old, new in zip(users, before, wanted, strict=True):
        if old != new:
            await edge.reaches(MODEL, user, new)
            break
    return await edge.versions(MODEL, users)


async def test_2000_users_get_what_routing_says_and_only_those_move_who_must(edge: PredictionEdge) -> None:
    small = await at(edge, 1000, USERS)
    assert small == await expected(edge, USERS)
    assert await edge.versions(MODEL, USERS[:300]) == small[:300]
    large = await at(edge, 2000, USERS)
    assert large == await expected(edge, USERS)
    moved = [(old, new) for old, new in zip(small, large, strict=True) if old != new]
    assert set(moved) == {(ONE, TWO)}
    assert abs(len(moved) - 200) < 81  # six standard deviations of 2,000 users at 10%


async def test_a_rollback_takes_everybody_off_and_the_kill_switch_does(edge: PredictionEdge) -> None:
    await at(edge, 10_000)
    await edge.known(await edge.put(rollout(0, phase=pb.ROLLOUT_PHASE_ROLLED_BACK)))
    await edge.reaches(MODEL, USERS[0], ONE)
    assert set(await edge.versions(MODEL, FEW)) == {ONE}
    await at(edge, 10_000)
    await edge.known(await edge.put(pb.RolloutSwitch(kill=True, reason="a drill")))
    await edge.reaches(MODEL, USERS[0], ONE)
    assert set(await edge.versions(MODEL, FEW)) == {ONE}
    await edge.known(await edge.put(pb.RolloutSwitch()))
    await edge.reaches(MODEL, USERS[0], TWO)


async def test_a_tenant_outside_the_blast_radius_meets_no_arm_even_at_full_weight(edge: PredictionEdge) -> None:
    assert set(await at(edge, 10_000, except_tenants=["other"])) == {TWO}
    assert set(await edge.versions(MODEL, USERS[:100], tenant="other")) == {ONE}
    assert await expected(edge, USERS[:100], "other") == [ONE] * 100


async def test_pinned_versions_are_untouched_by_rollouts(edge: PredictionEdge) -> None:
    await at(edge, 10_000)
    assert await edge.infer(ONE, "u") == ("predictor-1", ONE)
    await edge.known(await edge.put(rollout(0, phase=pb.ROLLOUT_PHASE_ABORTED)))
    await edge.reaches(MODEL, "u", ONE)
    assert await edge.infer(TWO, "u") == ("predictor-2", TWO)


async def test_callers_cannot_choose_their_bucket_rollout_or_version(edge: PredictionEdge) -> None:
    served = await at(edge, 1000)
    by_baseline = USERS[served.index(ONE)]
    forged = {"x_weir_bucket": "0", "x_weir_rollout": "r-edge", "x_weir_model_version": TWO, "x_weir_arm": "canary"}
    assert await edge.infer(MODEL, by_baseline, **forged) == ("predictor-1", ONE)
    seen = edge.predictors["1"].seen
    assert (seen["x-weir-tenant"], seen["x-weir-user"], seen["x-weir-rollout"]) == ("acme", by_baseline, "r-edge")
    assert (seen["x-weir-model-version"], seen["x-weir-arm"]) == (ONE, "baseline")
    assert "authorization" not in seen


async def test_a_session_counts_only_where_the_rollout_says_so(edge: PredictionEdge) -> None:
    await at(edge, 5000)
    by_user = {(await edge.infer(MODEL, "u", x_weir_session=str(number)))[1] for number in range(20)}
    assert len(by_user) == 1
    by_session = rollout(5000)
    by_session.sticky = pb.STICKY_BY_SESSION
    await edge.known(await edge.put(by_session))
    assert {(await edge.infer(MODEL, "u", x_weir_session=str(number)))[1] for number in range(20)} == {ONE, TWO}


async def test_what_no_predictor_is_known_for_goes_to_any_unplaced(edge: PredictionEdge) -> None:
    for model in ("nothing", "nothing@1", ""):
        name, version = await edge.infer(model, "u")
        assert version == ""
        assert "x-weir-bucket" not in edge.predictors[name.removeprefix("predictor-")].seen


async def test_no_request_fails_while_predictors_of_an_arm_come_and_go(edge: PredictionEdge) -> None:
    """Envoy learns of clusters and endpoints before the routes that name them, and keeps them until routes do not."""
    versions = [str(number) for number in range(4, 7)]
    await edge.put(*(pb.ModelVersion(name=MODEL, version=v, pool="predict", tier="fast") for v in versions))
    answered: Counter[str] = Counter()
    over = asyncio.Event()

    async def ask(user: str) -> None:
        while not over.is_set():
            answered[(await edge.infer(MODEL, user))[1]] += 1

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for user in FEW[:8]:
            group.create_task(ask(user))
        for version in versions:
            under = rollout(10_000)
            under.arms[0].model_version = f"{MODEL}@{version}"
            await edge.known(await edge.put(under))
            for _ in range(2):
                async with edge.predictor(version):
                    await edge.reaches(MODEL, FEW[0], f"{MODEL}@{version}")
        over.set()
    assert answered.keys() >= {ONE, *(f"{MODEL}@{version}" for version in versions)}


class Late:
    """A client's stream on which the endpoints of version 3 come only after many more requests were answered."""

    def __init__(self, context: Any, answered: Counter[str], more: asyncio.Event) -> None:
        self._context = context
        self._answered = answered
        self._more = more

    async def write(self, message: discovery_pb2.DiscoveryResponse) -> None:
        if message.type_url == ENDPOINTS and any(b"predictor/churn@3" in each.value for each in message.resources):
            enough = self._answered.total() + 50
            while self._answered.total() < enough:
                self._more.clear()
                await self._more.wait()
        await self._context.write(message)


async def test_no_request_fails_while_envoy_cannot_use_a_new_cluster_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: Counter[str] = Counter()
    more, over = asyncio.Event(), asyncio.Event()
    write = AdsServicer._write

    async def written_late(self: AdsServicer, client: Any, context: Any, wake: asyncio.Event) -> None:
        await write(self, client, Late(context, answered, more), wake)

    monkeypatch.setattr(AdsServicer, "_write", written_late)
    async with prediction_edge(tmp_path) as edge:
        under = rollout(10_000)
        under.arms[0].model_version = f"{MODEL}@3"
        version = pb.ModelVersion(name=MODEL, version="3", pool="predict", tier="fast")
        await edge.known(await edge.put(version, under))

        async def ask(user: str) -> None:
            while not over.is_set():
                answered[(await edge.infer(MODEL, user))[1]] += 1
                more.set()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for user in FEW[:4]:
                group.create_task(ask(user))
            async with edge.predictor("3"):
                await edge.reaches(MODEL, FEW[0], f"{MODEL}@3")
            over.set()
    assert answered[ONE] >= 50
    assert answered[f"{MODEL}@3"] > 0
