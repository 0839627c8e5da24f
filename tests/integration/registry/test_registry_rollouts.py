"""Rollouts through the registry: what begins, what is refused and why, steering, aborting, the kill switch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.registry import MemoryStore
from libs.resources.codec import unpack
from libs.rollouts import SHADOW_TENANT, arms_of, in_force
from tests.support.registry_service import (
    Client,
    alias,
    model,
    outcomes,
    put,
    refused,
    serving,
    settings,
    snapshot_in,
    tenant,
)
from tests.support.world import SLO, canary


class Mesh:
    """A registry with three versions, an alias, objectives and one worker."""

    def __init__(self, client: Client, store: MemoryStore) -> None:
        self.client = client
        self.store = store

    async def prepare(self) -> None:
        await self.client.apply(*(model(version=each) for each in "123"), alias(), tenant(), SLO)
        await self.workers(1)

    async def workers(self, count: int, *ready: str, pool: str = "fast") -> None:
        for number in range(count):
            endpoint = pb.Endpoint(
                service="worker", instance=f"{pool}-{number}", address="127.0.0.1:1", pool=pool, model_versions=ready
            )
            await self.put(endpoint)

    async def put(self, message: Any) -> None:
        await put(self.store, message)
        # A change returns once the service has seen everything up to it.
        await self.client.apply(tenant(f"t{self.store.revision}"))

    async def start(self, rollout: pb.Rollout | None = None, **change: Any) -> pb.Rollout:
        await self.client.apply(rollout or canary(), **change)
        return await self.rollout()

    async def rollout(self) -> pb.Rollout:
        return (await snapshot_in(self.store)).rollouts["weir-fast"]

    async def targets(self) -> list[str]:
        return [each.model_version for each in (await self.client.read("Alias/weir-fast")).targets]

    async def steer(self, steering: pb.Steering, reason: str = "because", arm: str = "", **change: Any) -> pb.Rollout:
        options = pb.ChangeOptions(reason=reason, **change)
        request = pb.SteerRolloutRequest(alias="weir-fast", steering=steering, arm=arm, change=options)
        answer = await self.client.SteerRollout(request)
        if not options.dry_run:
            assert answer.rollout == await self.client.get("Rollout/weir-fast")
        made = unpack(answer.rollout)
        assert isinstance(made, pb.Rollout)
        return made

    async def abort(self, reason: str = "enough") -> pb.Rollout:
        return await self.steer(pb.STEERING_ABORT, reason)

    async def switch(self, **fields: Any) -> None:
        await self.client.apply(pb.RolloutSwitch(**fields))


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        made = Mesh(client, store)
        await made.prepare()
        yield made


def experiment(**more: Any) -> pb.Rollout:
    arms = [
        pb.RolloutArm(name="b", model_version="weir-fast@2", weight=3000),
        pb.RolloutArm(name="c", model_version="weir-fast@3", weight=2000),
    ]
    return canary(arms=arms, steps=[], **more)


async def test_a_rollout_begins_with_what_is_computed(mesh: Mesh) -> None:
    made = await mesh.start(canary(baseline="forged", id="forged", state=pb.RolloutState(phase=5)), reason="so be it")
    assert made.baseline == "weir-fast@1"
    assert len(made.id) == 32
    assert made.state.phase == pb.ROLLOUT_PHASE_PREPARING
    assert made.state.HasField("started_at")
    assert (list(made.state.weights), made.state.reason) == ([], "better answers")
    assert made.revision > 0
    assert made.state.decided_by == "insecure"
    entry = await mesh.client.newest()
    assert (entry.action, entry.reason, entry.revision) == ("registry.Apply", "so be it", made.revision)
    assert [change.resource for change in entry.changes] == ["rollouts/weir-fast"]


async def test_a_shadow_plan_brings_its_quota_in_the_same_transaction(mesh: Mesh) -> None:
    made = await mesh.start(canary(shadow=pb.ShadowPlan(share=500, requests_per_minute=60)))
    snapshot = await snapshot_in(mesh.store)
    quota = snapshot.limits[SHADOW_TENANT, "weir-fast"]
    assert (quota.requests_per_minute, quota.tokens_per_minute) == (60, 200_000)
    assert quota.revision == made.revision == snapshot.tenants[SHADOW_TENANT].revision
    await mesh.abort()
    again = await mesh.start(canary(shadow=pb.ShadowPlan(share=500, requests_per_minute=60)))
    snapshot = await snapshot_in(mesh.store)
    # What is as it shall be is not written again.
    assert snapshot.limits[SHADOW_TENANT, "weir-fast"].revision == made.revision < again.revision


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"alias": "gone"}, "metadata.name"),
        ({"arms": []}, "spec.arms"),
        ({"arms": [pb.RolloutArm(name="canary", model_version="gone@1")]}, "spec.arms[0].model_version"),
        ({"arms": [pb.RolloutArm(name="canary", model_version="weir-fast@1")]}, "spec.arms[0].model_version"),
        ({"reason": ""}, "spec.reason"),
        ({"steps": [pb.RolloutStep(weight=10), pb.RolloutStep(weight=10)]}, "spec.steps[1].weight"),
        ({"blast_radius": pb.BlastRadius(only_tenants=["gone"])}, "spec.blast_radius.only_tenants[0]"),
        ({"gates": [pb.Gate(metric="beauty")]}, "spec.gates[0].metric"),
        ({"alpha": float("nan")}, "spec.alpha"),
        ({"keep_warm": timedelta(seconds=-1)}, "spec.keep_warm"),
        ({"sticky": 77}, "spec.sticky"),
        ({"on_rollback": 77}, "spec.on_rollback"),
        ({"gates": [pb.Gate(metric="ttft", on_breach=77)]}, "spec.gates[0].on_breach"),
    ],
)
async def test_a_bad_rollout_is_refused_with_its_field(mesh: Mesh, changes: dict[str, Any], field: str) -> None:
    before = mesh.store.revision
    error = await refused(mesh.start(canary(**changes)))
    assert (error.reason, error.limit) == (
        Reason.INVALID_REQUEST,
        f"rollouts/{changes.get('alias', 'weir-fast')} {field}",
    )
    assert mesh.store.revision == before


async def test_an_alias_that_lists_more_than_the_baseline_is_no_place_for_a_rollout(mesh: Mesh) -> None:
    targets = [pb.AliasTarget(model_version=f"weir-fast@{n}", weight=weight) for n, weight in ((1, 100), (2, 0))]
    for pointed in (pb.Alias(name="weir-fast", targets=targets), alias("weir-fast@1", "weir-fast@3")):
        await mesh.client.apply(pointed)
        error = await refused(mesh.start())
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "rollouts/weir-fast metadata.name")
        assert "2 targets" in error.message


async def test_what_the_mesh_cannot_carry_out_now(mesh: Mesh) -> None:
    async def conflict(rollout: pb.Rollout | None = None) -> str:
        error = await refused(mesh.start(rollout))
        assert error.reason is Reason.CONFLICT
        return error.limit

    await mesh.client.apply(pb.Slo(route="generate", tier="*"))
    assert await conflict() == "slo"
    await mesh.client.apply(pb.Slo(route="generate", tier="fast", availability=0.9))

    await mesh.client.apply(model(version="9", pool="other"))
    other = canary(arms=[pb.RolloutArm(name="canary", model_version="weir-fast@9")])
    assert await conflict(other) == "spec.arms[0].model_version"
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
    assert await conflict() == "rollout"
    assert started.override_reason


async def test_an_alias_stays_while_its_rollout_is_live(mesh: Mesh) -> None:
    await mesh.start()
    moved = alias("weir-fast@2")
    error = await refused(mesh.client.apply(moved))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "rollout")
    # What changes nothing is nothing to refuse.
    await mesh.client.apply(alias("weir-fast@1"))
    ended = await mesh.abort()
    assert (ended.state.phase, ended.state.reason) == (pb.ROLLOUT_PHASE_ABORTED, "enough")
    assert ended.state.HasField("ended_at")
    assert await mesh.abort("again") == ended
    await mesh.client.apply(moved)


async def test_advancing_through_all_steps_promotes_in_one_transaction(mesh: Mesh) -> None:
    await mesh.start(canary(shadow=pb.ShadowPlan(share=500)))
    assert (await refused(mesh.steer(pb.STEERING_ADVANCE))).limit == "capacity"
    await mesh.workers(1, "weir-fast@1", "weir-fast@2")
    shadow = await mesh.steer(pb.STEERING_ADVANCE)
    assert (shadow.state.phase, list(shadow.state.weights)) == (pb.ROLLOUT_PHASE_SHADOW, [])
    first = await mesh.steer(pb.STEERING_ADVANCE)
    assert (first.state.phase, first.state.step, list(first.state.weights)) == (pb.ROLLOUT_PHASE_CANARY, 0, [1000])
    snapshot = await snapshot_in(mesh.store)
    force = in_force(snapshot, "weir-fast")
    assert force is not None
    assert [(arm.name, arm.weight) for arm in arms_of(force)] == [("baseline", 9000), ("canary", 1000)]
    second = await mesh.steer(pb.STEERING_ADVANCE)
    assert (second.state.step, list(second.state.weights)) == (1, [5000])
    promoted = await mesh.steer(pb.STEERING_ADVANCE, reason="all is well")
    assert (promoted.state.phase, list(promoted.state.weights)) == (pb.ROLLOUT_PHASE_PROMOTED, [])
    assert await mesh.targets() == ["weir-fast@2"]
    assert (await mesh.client.get("Alias/weir-fast")).metadata.revision == promoted.revision
    entry = await mesh.client.newest()
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


async def test_f6_nobody_goes_on_with_what_has_cost_all_that_it_may(mesh: Mesh) -> None:
    await mesh.workers(1, "weir-fast@1", "weir-fast@2")
    spent = await mesh.start(canary(blast_radius=pb.BlastRadius(max_cost_microusd=5000)))
    spent.state.cost_microusd = 4999
    await mesh.put(spent)
    assert (await mesh.steer(pb.STEERING_ADVANCE)).state.phase == pb.ROLLOUT_PHASE_CANARY
    spent = await mesh.rollout()
    spent.state.cost_microusd = 5000
    await mesh.put(spent)
    for steering in (pb.STEERING_ADVANCE, pb.STEERING_PROMOTE):
        error = await refused(mesh.steer(steering))
        assert (error.reason, error.limit) == (Reason.CONFLICT, "max_cost")
    assert (await mesh.abort()).state.phase == pb.ROLLOUT_PHASE_ABORTED


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
    assert in_force(await snapshot_in(mesh.store), "weir-fast") is None
    assert (await refused(mesh.steer(pb.STEERING_PROMOTE, arm="c"))).limit == "switch.kill"
    await mesh.switch()
    await mesh.steer(pb.STEERING_PROMOTE, arm="c")
    assert await mesh.targets() == ["weir-fast@3"]


async def test_the_switch_needs_a_reason(mesh: Mesh) -> None:
    for which in ("kill", "freeze"):
        assert (await refused(mesh.switch(**{which: True}))).limit == "switches/rollouts spec.reason"
        await mesh.switch(reason="fire", **{which: True})
        assert getattr(await mesh.client.read("RolloutSwitch/rollouts"), which)
    await mesh.client.delete("RolloutSwitch/rollouts")


async def test_one_that_has_ended_begins_again(mesh: Mesh) -> None:
    first = await mesh.start(canary(shadow=pb.ShadowPlan(share=500)))
    assert (await refused(mesh.steer(pb.STEERING_RESTART))).limit == "rollout"
    await mesh.abort()
    tried = await mesh.steer(pb.STEERING_RESTART, dry_run=True)
    assert tried.state.phase == pb.ROLLOUT_PHASE_PREPARING
    assert (await mesh.rollout()).id == first.id
    again = await mesh.steer(pb.STEERING_RESTART, "once more")
    assert (again.state.phase, again.state.reason) == (pb.ROLLOUT_PHASE_PREPARING, "once more")
    assert again.id not in (first.id, "")
    assert (again.reason, again.arms, again.steps) == (first.reason, first.arms, first.steps)
    await mesh.abort()
    # By the alias as it is now.
    await mesh.client.apply(alias("weir-fast@3"))
    assert (await mesh.steer(pb.STEERING_RESTART)).baseline == "weir-fast@3"
    await mesh.abort()
    await mesh.switch(freeze=True, reason="holidays")
    assert (await refused(mesh.steer(pb.STEERING_RESTART))).limit == "switch.freeze"
    await mesh.switch()
    await mesh.client.delete("Rollout/weir-fast")
    assert (await refused(mesh.steer(pb.STEERING_RESTART))).reason is Reason.NOT_FOUND


async def test_a_rollout_stays_whose_it_is_whoever_steers_it(mesh: Mesh) -> None:
    await mesh.client.apply(canary(), owner="dir")
    await mesh.steer(pb.STEERING_PAUSE)
    assert (await mesh.client.get("Rollout/weir-fast")).metadata.owner == "dir"


async def test_a_new_alias_and_its_rollout_come_together(mesh: Mesh) -> None:
    """As in a directory that nobody has applied yet."""
    fresh = canary(alias="fresh")
    await mesh.client.apply(fresh, alias("weir-fast@1", name="fresh"))
    assert (await snapshot_in(mesh.store)).rollouts["fresh"].baseline == "weir-fast@1"
    # One that moves the alias and begins, begins from where it moved to.
    await mesh.client.apply(canary(), alias("weir-fast@3"))
    assert (await mesh.rollout()).baseline == "weir-fast@3"
    error = await refused(mesh.client.apply(canary(steps=[pb.RolloutStep(weight=1)]), alias("weir-fast@1")))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "rollout")


async def test_the_quota_of_mirrored_requests_may_be_said(mesh: Mesh) -> None:
    own = pb.Limits(tenant=SHADOW_TENANT, model="weir-fast", requests_per_minute=7)
    await mesh.client.apply(canary(shadow=pb.ShadowPlan(share=500)), own, tenant(SHADOW_TENANT))
    assert (await snapshot_in(mesh.store)).limits[SHADOW_TENANT, "weir-fast"].requests_per_minute == 7


async def test_pins(mesh: Mesh) -> None:
    for pin, field in (
        (pb.Pin(model_version="gone@1", reason="r"), "pins/gone@1 metadata.name"),
        (pb.Pin(model_version="weir-fast@2"), "pins/weir-fast@2 spec.reason"),
    ):
        assert (await refused(mesh.client.apply(pin))).limit == field
    await mesh.client.apply(pb.Pin(model_version="weir-fast@2", reason="audit"))
    assert await mesh.client.names("Pin") == ["weir-fast@2"]


async def test_trying_a_rollout_changes_nothing(mesh: Mesh) -> None:
    before = mesh.store.revision
    tried = await mesh.client.apply(canary(shadow=pb.ShadowPlan(share=1)), dry_run=True)
    assert outcomes(tried.results) == {
        "Rollout/weir-fast": "CREATED",
        "Tenant/shadow": "CREATED",
        "Limits/shadow/weir-fast": "CREATED",
    }
    assert '"baseline": "weir-fast@1"' in tried.results[0].change.after
    assert mesh.store.revision == before
    with pytest.raises(WeirError):
        await mesh.client.apply(canary(arms=[]), dry_run=True)
