"""The rollout controller as a real server over a real etcd: what it does to good and bad versions, and what is left of
that when it dies, or etcd does."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb
from weir.rollout.v1 import rollout_pb2_grpc

from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, keys
from libs.rpc import make_channel
from tests.integration.rollout.rollout_mesh import (
    ALIAS,
    BOUND,
    NEW,
    OLD,
    Gateway,
    MortalStore,
    Quality,
    alias,
    controller,
    ended,
    following,
    history,
    populate,
    read,
    reporting,
    rollout,
    seconds,
    settings,
    store_of,
    until,
    worker,
    write,
)
from tests.support.etcd import EtcdServer

GOOD = {OLD: Quality(), NEW: Quality()}
STEPS = ["rollout.Prepare", "rollout.Advance", "rollout.Advance", "rollout.Advance", "rollout.Promote"]


def with_shadow() -> registry_pb2.Rollout:
    return rollout(shadow=registry_pb2.ShadowPlan(share=1000, min_duration=seconds(0.05), min_samples=50))


def points_to(snapshot: RegistrySnapshot) -> list[str]:
    return [target.model_version for target in snapshot.aliases[ALIAS].targets]


async def test_a_healthy_version_goes_through_shadow_and_steps_to_everything(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    async with following(store) as view, controller(store) as (_, running):
        await write(store, with_shadow())
        async with reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)):
            done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_PROMOTED
        assert points_to(view.snapshot) == [NEW]
        entries = await history(store)
        assert [entry.action for entry in entries] == STEPS
        assert {entry.actor for entry in entries} == {"controller/rollout-0"}
        assert all(entry.reason for entry in entries)
        # The alias and the end of the rollout are one transaction, with an audit record of its own.
        assert {change.resource for change in entries[-1].changes} == {f"aliases/{ALIAS}", f"rollouts/{ALIAS}"}
        assert len((await store.get_prefix(keys.AUDIT_OUTBOX)).kvs) == len(entries)
    await store.close()


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (Quality(errors=0.2), "error"),
        (Quality(ttft=0.3), "TTFT"),
        (Quality(logprob=-3.0), "logprob"),
        (Quality(cost=20.0), "token"),
    ],
    ids=["errors", "slow", "damaged", "costly"],
)
async def test_a_bad_version_is_taken_back(etcd: EtcdServer, bad: Quality, word: str) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    async with following(store) as view, controller(store) as (_, running):
        await write(store, rollout(steps=(1000, 5000)))
        async with reporting(Gateway(view, f"127.0.0.1:{running.port}", {OLD: Quality(), NEW: bad})):
            done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_ROLLED_BACK
        assert points_to(view.snapshot) == [OLD]
        assert word in done.state.reason
        last = (await history(store))[-1]
        assert (last.action, last.reason) == ("rollout.RollBack", done.state.reason)
    await store.close()


async def test_a_version_that_does_not_load_ends_the_rollout_before_anybody_meets_it(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    await write(store, worker("worker-a", OLD), worker("worker-b", OLD, failed={NEW: "signature of nobody known"}))
    async with following(store) as view, controller(store):
        await write(store, rollout())
        done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_ROLLED_BACK
        assert "signature of nobody known" in done.state.reason
        assert [entry.action for entry in await history(store)] == ["rollout.Prepare", "rollout.RollBack"]
    await store.close()


DEATHS = [("rollout.Prepare", 1), *(("rollout.Advance", n) for n in (1, 2, 3)), ("rollout.Promote", 1)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("action", "times"), DEATHS, ids=[f"{a.partition('.')[2]}{n}" for a, n in DEATHS])
async def test_a_controller_killed_at_any_transition_changes_nothing(
    etcd: EtcdServer, action: str, times: int, after: bool
) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    mortal = MortalStore(store, action=action, times=times, after=after)
    address = ""
    async with following(store) as view:
        gateway = Gateway(view, lambda: address, GOOD)
        async with controller(mortal, settings("rollout-0")) as (_, first):  # type: ignore[arg-type]
            address = f"127.0.0.1:{first.port}"
            await write(store, with_shadow())
            async with reporting(gateway):
                async with asyncio.timeout(BOUND):
                    await mortal.dead.wait()
                async with controller(store, settings("rollout-1")) as (heir, second):
                    address = f"127.0.0.1:{second.port}"
                    assert heir.election.leadership is None
                    # As etcd does when the dead leader's lease has run out.
                    await store.lease_revoke(mortal.leases[-1])
                    await first.service.drain()
                    done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_PROMOTED
        assert points_to(view.snapshot) == [NEW]
        assert [entry.action for entry in await history(store)] == STEPS
    await store.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_controller_killed_while_it_rolls_back_rolls_back(etcd: EtcdServer, after: bool) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    mortal = MortalStore(store, action="rollout.RollBack", times=1, after=after)
    address = ""
    async with following(store) as view:
        gateway = Gateway(view, lambda: address, {OLD: Quality(), NEW: Quality(errors=0.3)})
        async with controller(mortal, settings("rollout-0")) as (_, first):  # type: ignore[arg-type]
            address = f"127.0.0.1:{first.port}"
            await write(store, rollout())
            async with reporting(gateway):
                async with asyncio.timeout(BOUND):
                    await mortal.dead.wait()
                async with controller(store, settings("rollout-1")) as (_, second):
                    address = f"127.0.0.1:{second.port}"
                    await store.lease_revoke(mortal.leases[-1])
                    await first.service.drain()
                    done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_ROLLED_BACK
        assert points_to(view.snapshot) == [OLD]
        actions = [entry.action for entry in await history(store)]
        assert actions == ["rollout.Prepare", "rollout.Advance", "rollout.RollBack"]
    await store.close()


async def test_etcd_restarting_stops_decisions_and_loses_none(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    async with following(store) as view, controller(store) as (_, running):
        await write(store, with_shadow())
        async with reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)):
            await until(view, lambda found: found.state.phase == registry_pb2.ROLLOUT_PHASE_CANARY)
            etcd.restart()
            done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_PROMOTED
        assert [entry.action for entry in await history(store)] == STEPS
        assert (await read(store)).state == done.state
    await store.close()


async def test_without_gateways_a_rollout_is_held_and_goes_on_with_them(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    config = settings(stale_seconds=0.3)
    async with following(store) as view, controller(store, config) as (_, running):
        await write(store, rollout())
        held = await until(view, lambda found: found.state.held)
        assert "no gateway has reported" in held.state.reason
        assert held.state.phase == registry_pb2.ROLLOUT_PHASE_CANARY
        async with reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)):
            done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_PROMOTED
    await store.close()


async def test_an_alias_that_somebody_moved_is_not_promoted_over(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    other = registry_pb2.ModelVersion(name="weir-fast", version="3", tier="fast", pool="demo", context_length=1024)
    async with following(store) as view, controller(store) as (_, running):
        await write(store, other, rollout(steps=(5000,)))
        await until(view, lambda found: found.state.phase == registry_pb2.ROLLOUT_PHASE_CANARY)
        await write(store, alias("weir-fast@3"))
        async with reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)):
            held = await until(view, lambda found: found.state.held)
        assert "alias" in held.state.reason
        assert points_to(view.snapshot) == ["weir-fast@3"]
    await store.close()


async def test_status_tells_arms_gates_decisions_and_who_leads(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    async with following(store) as view, controller(store) as (_, running):
        address = f"127.0.0.1:{running.port}"
        async with make_channel(address, tls=None, translate_errors=True) as channel:
            stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
            with pytest.raises(WeirError) as caught:
                await stub.GetRollout(pb.GetRolloutRequest(alias=ALIAS), timeout=5)
            assert caught.value.reason is Reason.NOT_FOUND
            await write(store, rollout(steps=(5000, 6000)))
            async with reporting(Gateway(view, address, GOOD)):
                last = None
                watch = stub.WatchRollout(pb.WatchRolloutRequest(alias=ALIAS, interval=seconds(0.1)), timeout=BOUND)
                async for answer in watch:
                    last = answer.status
                    if last.rollout.state.HasField("ended_at") and len(last.decisions) == 4:
                        break
                watch.cancel()
    assert last is not None
    assert [decision.kind for decision in last.decisions] == ["promote", "advance", "advance", "prepare"]
    assert [decision.revision for decision in last.decisions] == sorted(
        (decision.revision for decision in last.decisions), reverse=True
    )
    assert last.leader
    assert last.leader_instance == "rollout-0"
    assert last.sources == 1
    baseline, canary = last.arms
    assert (baseline.arm, canary.arm) == ("baseline", "canary")
    assert canary.requests > 100
    assert 5_900 < canary.measured_share < 6_100
    assert 0.05 < canary.ttft_p50 < canary.ttft_p95 < canary.ttft_p99 < 0.5
    assert 95 < canary.cost_per_1k_tokens < 105
    assert last.gates
    assert {state.worker for state in last.workers} == {"worker-a", "worker-b"}
    await store.close()


async def test_scores_count_once_and_decide(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    gate = registry_pb2.Gate(metric="score:helpful", tolerance=0.1)
    async with following(store) as view, controller(store) as (_, running):
        address = f"127.0.0.1:{running.port}"
        planned = rollout(steps=(5000,), gates=[gate])
        planned.steps[0].min_duration.CopyFrom(seconds(600))
        await write(store, planned)
        await until(view, lambda found: found.state.phase == registry_pb2.ROLLOUT_PHASE_CANARY)
        async with reporting(Gateway(view, address, GOOD)), make_channel(address, tls=None) as channel:
            stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)

            def score(n: int, arm: str, value: float, **more: Any) -> pb.Score:
                fields = {"id": f"{arm}{n}", "alias": ALIAS, "rollout_id": "r1", "metric": "helpful"} | more
                return pb.Score(arm=arm, value=value, **fields)

            async def report(*scores: pb.Score) -> pb.ReportScoresResponse:
                return await stub.ReportScores(pb.ReportScoresRequest(scores=scores), timeout=5)

            one = score(0, "canary", 0.5)
            strange = [score(1, "nobody", 1.0), score(1, "canary", 1.0, rollout_id="another")]
            answer = await report(one, one, *strange)
            assert (answer.accepted, answer.repeated_scores, answer.unknown) == (1, 1, 2)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await report(score(2, "canary", float("nan")))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            status = (await stub.GetRollout(pb.GetRolloutRequest(alias=ALIAS), timeout=5)).status
            assert status.arms[1].scores["helpful"] == 0.5
    await store.close()
