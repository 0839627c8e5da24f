"""Rollouts through the registry: what begins, what is refused and why, steering, aborting, the kill switch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.registry import MemoryStore, Put, keys, snapshot_of
from libs.rollouts import SHADOW_TENANT, arms_of, in_force
from tests.support.registry_service import Client, model, refused, serving, settings, tenant


class Mesh:
    """A registry with two versions, an alias, objectives and one worker."""

    def __init__(self, client: Client, store: MemoryStore) -> None:
        self.client = client
        self.store = store

    async def prepare(self) -> None:
        for version in ("1", "2", "3"):
            await self.client.CreateModelVersion(model(version=version))
        await self.point("weir-fast@1")
        await self.client.SetTenant(tenant("acme"))
        slo = pb.Slo(route="generate", tier="*", availability=0.999)
        await self.client.SetSlo(pb.SetSloRequest(slo=slo))
        await self.workers(1)

    async def point(self, *versions: str) -> None:
        targets = [pb.AliasTarget(model_version=name, weight=100 // len(versions)) for name in versions]
        alias = pb.Alias(name="weir-fast", targets=targets, revision=-1)
        await self.client.SetAlias(pb.SetAliasRequest(alias=alias))

    async def workers(self, count: int, *ready: str, pool: str = "fast") -> None:
        for number in range(count):
            endpoint = pb.Endpoint(
                service="worker", instance=f"{pool}-{number}", address="127.0.0.1:1", pool=pool, model_versions=ready
            )
            await self.put(endpoint)

    async def put(self, message: Any) -> None:
        await self.store.txn(puts=[Put(keys.key_of(message), keys.encode(message))])
        # A change returns once the service has seen everything up to it.
        await self.client.SetTenant(tenant(f"t{self.store.revision}"))

    async def start(self, rollout: pb.Rollout | None = None, **change: Any) -> pb.Rollout:
        request = pb.StartRolloutRequest(rollout=rollout or canary(), change=pb.ChangeOptions(**change))
        return (await self.client.StartRollout(request)).rollout

    async def steer(self, steering: pb.Steering, reason: str = "because", arm: str = "", **change: Any) -> pb.Rollout:
        options = pb.ChangeOptions(reason=reason, **change)
        request = pb.SteerRolloutRequest(alias="weir-fast", steering=steering, arm=arm, change=options)
        return (await self.client.SteerRollout(request)).rollout

    async def abort(self, reason: str = "enough") -> pb.Rollout:
        request = pb.AbortRolloutRequest(alias="weir-fast", change=pb.ChangeOptions(reason=reason))
        return (await self.client.AbortRollout(request)).rollout

    async def switch(self, **fields: Any) -> pb.RolloutSwitch:
        request = pb.SetRolloutSwitchRequest(switch=pb.RolloutSwitch(revision=-1, **fields))
        return (await self.client.SetRolloutSwitch(request)).switch

    async def newest(self) -> pb.HistoryEntry:
        return (await self.client.ListHistory(pb.ListHistoryRequest(limit=1))).entries[0]

    async def snapshot(self) -> Any:
        listing = await self.store.get_prefix(keys.ROOT)
        return snapshot_of(listing.kvs, listing.revision)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        made = Mesh(client, store)
        await made.prepare()
        yield made


def canary(**more: Any) -> pb.Rollout:
    values: dict[str, Any] = {
        "alias": "weir-fast",
        "arms": [pb.RolloutArm(name="canary", model_version="weir-fast@2")],
        "steps": [pb.RolloutStep(weight=1000), pb.RolloutStep(weight=5000)],
        "reason": "better answers",
        "revision": -1,
    }
    return pb.Rollout(**(values | more))


def experiment(**more: Any) -> pb.Rollout:
    arms = [
        pb.RolloutArm(name="b", model_version="weir-fast@2", weight=3000),
        pb.RolloutArm(name="c", model_version="weir-fast@3", weight=2000),
    ]
    return canary(arms=arms, steps=[], **more)


async def test_a_rollout_begins_with_what_is_computed(mesh: Mesh) -> None:
    made = await mesh.start(canary(baseline="forged", id="forged", state=pb.RolloutState(phase=5)))
    assert made.baseline == "weir-fast@1"
    assert len(made.id) == 32
    assert made.state.phase == pb.ROLLOUT_PHASE_PREPARING
    assert made.state.HasField("started_at")
    assert (list(made.state.weights), made.state.reason) == ([], "better answers")
    assert made.revision > 0
    listed = (await mesh.client.ListRollouts(pb.ListRolloutsRequest(alias="weir-fast"))).rollouts
    assert list(listed) == [made]
    assert not (await mesh.client.ListRollouts(pb.ListRolloutsRequest(alias="other"))).rollouts
    entry = await mesh.newest()
    assert (entry.action, entry.reason, entry.revision) == ("registry.StartRollout", "better answers", made.revision)
    assert [change.resource for change in entry.changes] == ["rollouts/weir-fast"]


async def test_a_shadow_plan_brings_its_quota_in_the_same_transaction(mesh: Mesh) -> None:
    made = await mesh.start(canary(shadow=pb.ShadowPlan(share=500, requests_per_minute=60)))
    snapshot = await mesh.snapshot()
    quota = snapshot.limits[SHADOW_TENANT, "weir-fast"]
    assert (quota.requests_per_minute, quota.tokens_per_minute) == (60, 200_000)
    assert quota.revision == made.revision == snapshot.tenants[SHADOW_TENANT].revision
    await mesh.abort()
    again = await mesh.start(canary(shadow=pb.ShadowPlan(share=500, requests_per_minute=60)))
    snapshot = await mesh.snapshot()
    # What is as it shall be is not written again.
    assert snapshot.limits[SHADOW_TENANT, "weir-fast"].revision == made.revision < again.revision


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"alias": "gone"}, "rollout.alias"),
        ({"arms": []}, "rollout.arms"),
        ({"arms": [pb.RolloutArm(name="canary", model_version="gone@1")]}, "rollout.arms[0].model_version"),
        ({"arms": [pb.RolloutArm(name="canary", model_version="weir-fast@1")]}, "rollout.arms[0].model_version"),
        ({"reason": ""}, "rollout.reason"),
        ({"steps": [pb.RolloutStep(weight=10), pb.RolloutStep(weight=10)]}, "rollout.steps[1].weight"),
        ({"blast_radius": pb.BlastRadius(only_tenants=["gone"])}, "rollout.blast_radius.only_tenants[0]"),
        ({"gates": [pb.Gate(metric="beauty")]}, "rollout.gates[0].metric"),
        ({"alpha": float("nan")}, "rollout.alpha"),
        ({"keep_warm": duration_pb2.Duration(seconds=-1)}, "rollout.keep_warm"),
        ({"sticky": 77}, "rollout.sticky"),
        ({"on_rollback": 77}, "rollout.on_rollback"),
        ({"gates": [pb.Gate(metric="ttft", on_breach=77)]}, "rollout.gates[0].on_breach"),
    ],
)
async def test_a_bad_rollout_is_refused_with_its_field(mesh: Mesh, changes: dict[str, Any], field: str) -> None:
    before = mesh.store.revision
    error = await refused(mesh.start(canary(**changes)))
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, field)
    assert mesh.store.revision == before


async def test_an_alias_that_lists_more_than_the_baseline_is_no_place_for_a_rollout(mesh: Mesh) -> None:
    targets = [pb.AliasTarget(model_version=f"weir-fast@{n}", weight=weight) for n, weight in ((1, 100), (2, 0))]
    pointed = pb.Alias(name="weir-fast", targets=targets, revision=-1)
    await mesh.client.SetAlias(pb.SetAliasRequest(alias=pointed))
    error = await refused(mesh.start())
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "rollout.alias")
    assert "weir-fast lists 2 targets (weir-fast@1, weir-fast@2)" in error.message


async def test_what_the_mesh_cannot_carry_out_now(mesh: Mesh) -> None:
    async def conflict(rollout: pb.Rollout | None = None) -> str:
        error = await refused(mesh.start(rollout))
        assert error.reason is Reason.CONFLICT
        return error.limit

    await mesh.point("weir-fast@1", "weir-fast@3")
    assert (await refused(mesh.start())).limit == "rollout.alias"
    await mesh.point("weir-fast@1")

    await mesh.client.SetSlo(pb.SetSloRequest(slo=pb.Slo(route="generate", tier="*", revision=-1)))
    assert await conflict() == "slo"
    await mesh.client.SetSlo(pb.SetSloRequest(slo=pb.Slo(route="generate", tier="fast", availability=0.9)))

    await mesh.client.CreateModelVersion(model(version="9", pool="other"))
    other = canary(arms=[pb.RolloutArm(name="canary", model_version="weir-fast@9")])
    assert await conflict(other) == "rollout.arms[0].model_version"
    await mesh.workers(1, pool="other")
    await mesh.workers(3)
    # Half of what three workers serve is more than one can be asked to take.
    assert "needs 2" in (await refused(mesh.start(other))).message

    await mesh.switch(freeze=True, reason="holidays")
    assert await conflict() == "switch.freeze"
    await mesh.switch(kill=True, reason="fire")
    assert await conflict(canary(override_reason="anyway")) == "switch.kill"
    await mesh.switch()

    used = pb.ObjectiveBudget(objective="availability", consumed=1.25)
    await mesh.put(pb.ErrorBudget(route="generate", tier="fast", objectives=[used]))
    assert await conflict() == "budget"
    assert "125%" in (await refused(mesh.start())).message
    started = await mesh.start(canary(override_reason="the fix itself"))
    assert await conflict() == "rollout.alias"
    assert started.override_reason


async def test_an_alias_stays_while_its_rollout_is_live(mesh: Mesh) -> None:
    await mesh.start()
    moved = pb.Alias(name="weir-fast", targets=[pb.AliasTarget(model_version="weir-fast@2", weight=100)], revision=-1)
    error = await refused(mesh.client.SetAlias(pb.SetAliasRequest(alias=moved)))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "rollout")
    # What changes nothing is nothing to refuse.
    await mesh.point("weir-fast@1")
    ended = await mesh.abort()
    assert (ended.state.phase, ended.state.reason) == (pb.ROLLOUT_PHASE_ABORTED, "enough")
    assert ended.state.HasField("ended_at")
    assert await mesh.abort("again") == ended
    await mesh.client.SetAlias(pb.SetAliasRequest(alias=moved))


async def test_advancing_through_all_steps_promotes_in_one_transaction(mesh: Mesh) -> None:
    await mesh.start(canary(shadow=pb.ShadowPlan(share=500)))
    assert (await refused(mesh.steer(pb.STEERING_ADVANCE))).limit == "capacity"
    await mesh.workers(1, "weir-fast@1", "weir-fast@2")
    shadow = await mesh.steer(pb.STEERING_ADVANCE)
    assert (shadow.state.phase, list(shadow.state.weights)) == (pb.ROLLOUT_PHASE_SHADOW, [])
    first = await mesh.steer(pb.STEERING_ADVANCE)
    assert (first.state.phase, first.state.step, list(first.state.weights)) == (pb.ROLLOUT_PHASE_CANARY, 0, [1000])
    snapshot = await mesh.snapshot()
    force = in_force(snapshot, "weir-fast")
    assert force is not None
    assert [(arm.name, arm.weight) for arm in arms_of(force)] == [("baseline", 9000), ("canary", 1000)]
    second = await mesh.steer(pb.STEERING_ADVANCE)
    assert (second.state.step, list(second.state.weights)) == (1, [5000])
    promoted = await mesh.steer(pb.STEERING_ADVANCE, reason="all is well")
    assert (promoted.state.phase, list(promoted.state.weights)) == (pb.ROLLOUT_PHASE_PROMOTED, [])
    alias = (await mesh.client.ListModels(pb.ListModelsRequest())).aliases[0]
    assert [target.model_version for target in alias.targets] == ["weir-fast@2"]
    assert alias.revision == promoted.revision
    entry = await mesh.newest()
    assert {change.resource for change in entry.changes} == {"aliases/weir-fast", "rollouts/weir-fast"}
    assert (entry.reason, entry.action) == ("all is well", "registry.SteerRollout")
    assert (await refused(mesh.steer(pb.STEERING_PAUSE))).reason is Reason.CONFLICT
    error = await refused(mesh.abort())
    assert "PROMOTED" in error.message


async def test_pausing_and_resuming(mesh: Mesh) -> None:
    assert (await refused(mesh.steer(pb.STEERING_PAUSE))).reason is Reason.NOT_FOUND
    await mesh.start()
    assert (await refused(mesh.steer(pb.STEERING_PAUSE, reason=""))).limit == "change.reason"
    assert (await refused(mesh.steer(pb.STEERING_UNSPECIFIED))).limit == "steering"
    paused = await mesh.steer(pb.STEERING_PAUSE, reason="lunch")
    assert (paused.state.paused, paused.state.reason) == (True, "lunch")
    assert await mesh.steer(pb.STEERING_PAUSE) == paused
    resumed = await mesh.steer(pb.STEERING_RESUME)
    assert not resumed.state.paused
    assert await mesh.steer(pb.STEERING_RESUME) == resumed
    assert resumed.state.entered_at == paused.state.entered_at


async def test_experiments_end_by_an_arm(mesh: Mesh) -> None:
    await mesh.workers(1, "weir-fast@1", "weir-fast@2", "weir-fast@3")
    await mesh.start(experiment())
    running = await mesh.steer(pb.STEERING_ADVANCE)
    assert (running.state.phase, list(running.state.weights)) == (pb.ROLLOUT_PHASE_EXPERIMENT, [3000, 2000])
    assert (await refused(mesh.steer(pb.STEERING_ADVANCE))).limit == "steering"
    assert (await refused(mesh.steer(pb.STEERING_PROMOTE))).limit == "arm"
    assert (await refused(mesh.steer(pb.STEERING_PROMOTE, arm="z"))).limit == "arm"
    await mesh.switch(freeze=True, reason="holidays")
    assert (await refused(mesh.steer(pb.STEERING_PROMOTE, arm="c"))).limit == "switch.freeze"
    await mesh.switch(kill=True, reason="fire")
    assert in_force(await mesh.snapshot(), "weir-fast") is None
    assert (await refused(mesh.steer(pb.STEERING_PROMOTE, arm="c"))).limit == "switch.kill"
    await mesh.switch()
    await mesh.steer(pb.STEERING_PROMOTE, arm="c")
    alias = (await mesh.client.ListModels(pb.ListModelsRequest())).aliases[0]
    assert [target.model_version for target in alias.targets] == ["weir-fast@3"]


async def test_the_switch_needs_a_reason(mesh: Mesh) -> None:
    assert not (await mesh.client.GetRolloutSwitch(pb.GetRolloutSwitchRequest())).switch.kill
    assert (await refused(mesh.switch(kill=True))).limit == "switch.reason"
    stored = await mesh.switch(kill=True, reason="fire")
    assert (await mesh.client.GetRolloutSwitch(pb.GetRolloutSwitchRequest())).switch == stored
    assert (await mesh.newest()).reason == "fire"


async def test_versions_that_are_needed_stay(mesh: Mesh) -> None:
    def wanted(name: str, **change: Any) -> pb.DeleteModelVersionRequest:
        return pb.DeleteModelVersionRequest(model_version=name, change=pb.ChangeOptions(**change))

    delete = mesh.client.DeleteModelVersion
    await mesh.start()
    pin = pb.Pin(model_version="weir-fast@3", reason="compare", warm=True)
    await mesh.client.SetPin(pb.SetPinRequest(pin=pin))
    for name, why in (("weir-fast@1", "alias"), ("weir-fast@2", "rollout"), ("weir-fast@3", "pin")):
        error = await refused(delete(wanted(name)))
        assert (error.reason, why in error.message) == (Reason.CONFLICT, True)
    assert (await refused(delete(wanted("gone@1")))).reason is Reason.NOT_FOUND
    await mesh.client.DeletePin(pb.DeletePinRequest(model_version="weir-fast@3"))
    await mesh.workers(1, "weir-fast@3")
    assert "worker fast-0" in (await refused(delete(wanted("weir-fast@3")))).message
    await mesh.workers(1, "weir-fast@1")
    tried = await delete(wanted("weir-fast@3", dry_run=True))
    assert tried.deleted.version == "3"
    assert len((await mesh.client.ListModels(pb.ListModelsRequest())).model_versions) == 3
    await delete(wanted("weir-fast@3", reason="old"))
    assert len((await mesh.client.ListModels(pb.ListModelsRequest())).model_versions) == 2
    assert (await mesh.newest()).changes[0].after == ""


async def test_pins(mesh: Mesh) -> None:
    for pin, field in (
        (pb.Pin(model_version="gone@1", reason="r"), "pin.model_version"),
        (pb.Pin(model_version="weir-fast@2"), "pin.reason"),
    ):
        assert (await refused(mesh.client.SetPin(pb.SetPinRequest(pin=pin)))).limit == field
    pin = pb.Pin(model_version="weir-fast@2", reason="audit")
    stored = (await mesh.client.SetPin(pb.SetPinRequest(pin=pin))).pin
    assert list((await mesh.client.ListPins(pb.ListPinsRequest())).pins) == [stored]
    assert (await mesh.client.DeletePin(pb.DeletePinRequest(model_version="weir-fast@2"))).pin == stored
    gone = await refused(mesh.client.DeletePin(pb.DeletePinRequest(model_version="weir-fast@2")))
    assert gone.reason is Reason.NOT_FOUND


async def test_trying_a_rollout_changes_nothing(mesh: Mesh) -> None:
    before = mesh.store.revision
    made = await mesh.start(canary(shadow=pb.ShadowPlan(share=1)), dry_run=True)
    assert made.baseline == "weir-fast@1"
    assert mesh.store.revision == before
    with pytest.raises(WeirError):
        await mesh.start(canary(reason=""), dry_run=True)


async def test_budgets_are_listed_without_their_counts(mesh: Mesh) -> None:
    await mesh.put(pb.ErrorBudget(route="generate", tier="*", windows=b"counts"))
    assert list((await mesh.client.ListErrorBudgets(pb.ListErrorBudgetsRequest())).budgets) == [
        pb.ErrorBudget(route="generate", tier="*")
    ]
