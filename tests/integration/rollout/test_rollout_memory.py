"""What outlives a replica: error budgets in the registry, scores with the other replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb
from weir.rollout.v1 import rollout_pb2_grpc

from libs.registry import RegistrySnapshot, RegistryView
from libs.rpc import make_channel
from libs.service.process import serve
from services.rollout.app import RolloutService, build
from tests.integration.rollout.rollout_mesh import (
    ALIAS,
    BOUND,
    WATCH,
    controller,
    following,
    populate,
    rollout,
    settings,
    store_of,
    write,
)
from tests.support.etcd import EtcdServer


@contextlib.asynccontextmanager
async def replica(etcd: EtcdServer, instance: str) -> AsyncIterator[tuple[RolloutService, Any]]:
    """One that registers, and its stub."""
    config = settings(instance, etcd=(etcd.endpoint,))
    service = await build(config)
    async with serve(service, config, deadline_optional=(WATCH,)) as running:
        await running.ready.wait()
        async with stub_of(running.port) as stub:
            yield service, stub


@contextlib.asynccontextmanager
async def stub_of(port: int) -> AsyncIterator[Any]:
    async with make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        yield rollout_pb2_grpc.RolloutServiceStub(channel)


async def until(view: RegistryView, condition: Any) -> RegistrySnapshot:
    async with asyncio.timeout(BOUND):
        return await view.wait_until(condition)


async def told(stub: Any, score: pb.Score) -> None:
    """Sends a score as clients do: again, while the leader did not get it (a replica may not know all others yet)."""
    async with asyncio.timeout(BOUND):
        while True:
            try:
                await stub.ReportScores(pb.ReportScoresRequest(scores=[score]), timeout=10)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise


async def status_of(stub: Any) -> pb.RolloutStatus:
    """The rollout as this replica knows it, once it does: it follows the registry for itself."""
    while True:
        try:
            return (await stub.GetRollout(pb.GetRolloutRequest(alias=ALIAS), timeout=10)).status
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise


async def test_scores_reach_every_replica_whoever_is_told(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    async with (
        following(store) as view,
        replica(etcd, "rollout-0") as (first, one),
        replica(etcd, "rollout-1") as (second, two),
    ):
        await write(store, rollout())
        await until(view, lambda s: {("rollout", "rollout-0"), ("rollout", "rollout-1")} <= s.endpoints.keys())
        both = {first: one, second: two}
        await until(view, lambda s: ALIAS in s.rollouts and s.rollouts[ALIAS].state.HasField("entered_at"))
        follower = next(service for service in both if service.election.leadership is None)
        score = pb.Score(id="1", alias=ALIAS, rollout_id="r1", arm="canary", metric="helpful", value=0.5)
        for service in (follower, follower, *both):
            await told(both[service], score)
        for stub in both.values():
            status = await status_of(stub)
            assert status.arms[1].scores["helpful"] == 0.5
            assert status.leader_instance in ("rollout-0", "rollout-1")
    await store.close()


async def test_budgets_outlive_every_replica(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    await write(store, registry_pb2.Slo(route="generate", tier="fast", availability=0.9))
    async with following(store) as view:
        async with controller(store, settings(budget_seconds=0.1)) as (_, running), stub_of(running.port) as stub:
            stream = stub.ReportOutcomes()
            for good, bad in ((0, 0), (60, 40)):
                frame = pb.ReportOutcomesRequest(source="gateway-0", incarnation="1")
                counted = frame.objectives.add(route="generate", tier="fast").objectives["availability"]
                counted.good, counted.bad = good, bad
                await stream.write(frame)
                await stream.read()
            key = ("generate", "fast")
            found = (
                await until(view, lambda s: key in s.error_budgets and s.error_budgets[key].objectives)
            ).error_budgets[key]
            stream.cancel()
        assert [(each.good, each.bad) for each in found.objectives] == [(60, 40)]
        async with controller(store) as (_, running), stub_of(running.port) as stub:
            status = await stub.GetSloStatus(pb.GetSloStatusRequest(), timeout=10)
        (budget,) = status.budgets
        assert [(each.good, each.bad) for each in budget.objectives] == [(60, 40)]
        assert not budget.windows
    await store.close()


async def test_a_used_up_budget_holds_what_has_no_override(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    await write(store, registry_pb2.Slo(route="generate", tier="fast", availability=0.999))
    # Thirty days are 260 s: a second of nothing but errors is four times the budget.
    config = settings(burn_scale=1e-4, stale_seconds=60.0)
    async with following(store) as view, controller(store, config) as (_, running), stub_of(running.port) as stub:
        stream = stub.ReportOutcomes()
        for bad in (0, 1000):
            frame = pb.ReportOutcomesRequest(source="gateway-0", incarnation="1")
            frame.objectives.add(route="generate", tier="fast").objectives["availability"].bad = bad
            await stream.write(frame)
            await stream.read()
        await until(view, lambda s: any(o.consumed >= 1 for b in s.error_budgets.values() for o in b.objectives))
        assert (await stub.GetSloStatus(pb.GetSloStatusRequest(), timeout=10)).frozen
        await write(store, rollout())
        found = await until(view, lambda s: ALIAS in s.rollouts and s.rollouts[ALIAS].state.held)
        held = found.rollouts[ALIAS].state
        assert held.phase == registry_pb2.ROLLOUT_PHASE_PREPARING
        assert "error budget used up: generate/fast availability" in held.reason
        await write(store, rollout("r2", override_reason="it is the fix"))
        canary = registry_pb2.ROLLOUT_PHASE_CANARY
        await until(view, lambda s: s.rollouts[ALIAS].id == "r2" and s.rollouts[ALIAS].state.phase == canary)
        stream.cancel()
    await store.close()
