"""`Apply`: all or none, in any order, idempotent, with owners, revisions, pruning and every fault at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason
from libs.registry import EtcdStore, MemoryStore, keys
from libs.resources.codec import unpack
from libs.resources.kinds import KINDS
from tests.support.etcd import EtcdServer
from tests.support.registry_service import (
    Client,
    alias,
    apply_of,
    model,
    outcomes,
    put,
    refused,
    resource,
    serving,
    settings,
    snapshot_in,
    stored,
    tenant,
)
from tests.support.world import WORKER, applied, canary, observed

LIMITS = pb.Limits(tenant="acme", model="*", requests_per_minute=3)


@dataclass
class Desk:
    client: Client
    store: MemoryStore


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    store = MemoryStore()
    await put(store, WORKER)
    async with serving(settings(tmp_path), store) as (client, _):
        yield Desk(client, store)


@pytest.fixture
def client(desk: Desk) -> Client:
    return desk.client


@pytest.mark.parametrize("turn", [lambda made: made, lambda made: made[::-1]], ids=["forth", "back"])
async def test_one_of_every_kind_in_any_order_is_one_transaction(desk: Desk, turn: Any) -> None:
    request = apply_of(*turn(applied()), reason="all of it")
    done = await desk.client.Apply(request)
    assert [each.resource.name for each in done.results] == [each.metadata.name for each in request.resources]
    assert set(outcomes(done.results).values()) == {"CREATED"}
    snapshot = await snapshot_in(desk.store)
    made = [kv for kv in (await desk.store.get_prefix(keys.EVERYTHING)).kvs if "/endpoints/" not in kv.key]
    assert {kv.mod_revision for kv in made} == {done.revision}
    assert {each.resource.revision for each in done.results} == {done.revision}
    # The rollout begins by the alias that comes with it.
    assert snapshot.rollouts["weir-fast"].baseline == "weir-fast@1"
    assert snapshot.tenants["acme"].max_deadline.seconds == 9
    entry = await desk.client.newest()
    assert (entry.action, entry.reason, len(entry.changes)) == ("registry.Apply", "all of it", len(applied()))


async def test_what_is_so_already_is_not_written_again(desk: Desk) -> None:
    first = await desk.client.apply(*applied())
    again = await desk.client.apply(*applied())
    assert set(outcomes(again.results).values()) == {"UNCHANGED"}
    assert {each.resource.revision for each in again.results} == {first.revision}
    assert not any(each.HasField("change") for each in again.results)
    assert (await desk.client.newest()).revision == first.revision
    mixed = await desk.client.apply(tenant("acme", display_name="Acme"), tenant("globex"), tenant("new"))
    # The rollout names acme and globex; neither its plan nor what it is called matters to it.
    assert outcomes(mixed.results) == {"Tenant/acme": "CHANGED", "Tenant/globex": "UNCHANGED", "Tenant/new": "CREATED"}
    assert [change.resource for change in (await desk.client.newest()).changes] == ["tenants/acme", "tenants/new"]
    told = {each.resource.name: each.change for each in mixed.results}
    assert ('"Acme"' in told["acme"].before, '"Acme"' in told["acme"].after) == (False, True)
    assert (told["new"].before, bool(told["new"].after)) == ("", True)


async def test_every_fault_is_told_at_once_with_its_path(desk: Desk) -> None:
    before = desk.store.revision
    error = await refused(
        desk.client.apply(
            tenant("acme", weight=-1.0, plan_policy="none"),
            alias("gone@1"),
            pb.Price(model="gone"),
            resource(tenant("Bad"), labels={"a,b": "c"}),
            tenant("fine"),
        )
    )
    # What has no shape comes first: nothing else can be said before that is mended.
    assert [field for field, _ in error.faults] == ["tenants/Bad metadata.labels"]
    error = await refused(
        desk.client.apply(
            tenant("acme", weight=-1.0, plan_policy="none"), alias("gone@1"), pb.Price(model="gone"), tenant("fine")
        )
    )
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "tenants/acme spec.weight")
    assert {field for field, _ in error.faults} == {
        "tenants/acme spec.weight",
        "tenants/acme spec.plan_policy",
        "aliases/weir-fast spec.targets[0].model_version",
        "prices/gone metadata.name",
    }
    assert "(and 3 more)" in error.message
    assert desk.store.revision == before


async def test_more_faults_than_a_status_can_carry_are_counted(client: Client) -> None:
    error = await refused(client.apply(*(tenant(f"t{number}", weight=-1.0) for number in range(500))))
    assert "(and 499 more)" in error.message
    assert error.faults[-1][0] == "…"
    assert error.faults[-1][1] == f"and {500 - len(error.faults) + 1} more"


async def test_labels_are_what_is_said_and_the_owner_stays_when_none_is(client: Client) -> None:
    labels = {"team": "search", "reviewed": ""}
    await client.apply(resource(tenant(), labels=labels, owner="dir"))

    async def metadata() -> tuple[dict[str, str], str]:
        found = (await client.get("Tenant/acme")).metadata
        return dict(found.labels), found.owner

    assert await metadata() == (labels, "dir")
    again = await client.apply(resource(tenant(), labels=labels))
    assert outcomes(again.results) == {"Tenant/acme": "UNCHANGED"}
    changed = await client.apply(resource(tenant(), labels={"team": "ads"}))
    assert outcomes(changed.results) == {"Tenant/acme": "CHANGED"}
    assert await metadata() == ({"team": "ads"}, "dir")


async def test_what_belongs_to_somebody_else_is_taken_over_only_when_that_is_said(client: Client) -> None:
    await client.apply(tenant(), owner="one")
    await client.apply(tenant("own"))
    assert (await client.get("Tenant/acme")).metadata.owner == "one"
    for wanted in (apply_of(tenant(), owner="two"), apply_of(resource(tenant(), owner="two"), owner="one")):
        error = await refused(client.Apply(wanted))
        assert (error.reason, error.limit) == (Reason.CONFLICT, "owner")
        assert "tenants/acme belongs to 'one'" in error.message
    # Who claims nothing may change it, and what belongs to nobody is anybody's.
    await client.apply(tenant(display_name="Acme"))
    await client.apply(tenant("own"), owner="two")
    taken = await client.apply(tenant(display_name="Acme"), owner="two", take_over=True)
    assert outcomes(taken.results) == {"Tenant/acme": "CHANGED"}
    assert [(await client.get(f"Tenant/{name}")).metadata.owner for name in ("acme", "own")] == ["two", "two"]


async def test_revisions_are_expected_or_not(client: Client) -> None:
    made = await client.apply(resource(tenant(), revision=-1))
    error = await refused(client.apply(resource(tenant(), revision=-1)))
    assert (error.reason, f"at revision {made.revision}" in error.message) == (Reason.ALREADY_EXISTS, True)
    error = await refused(client.apply(resource(tenant("other"), revision=5)))
    assert (error.reason, "does not exist" in error.message) == (Reason.CONFLICT, True)
    second = await client.apply(resource(tenant(display_name="Acme"), revision=made.revision))
    third = await client.apply(tenant(weight=2.0, display_name="Acme"), LIMITS)
    # Both sides changed: who was it, and what.
    error = await refused(client.apply(resource(tenant(display_name="Mine"), revision=second.revision)))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "tenants/acme spec.weight")
    assert f"is at revision {third.revision}, not at revision {second.revision}" in error.message
    assert "spec.weight changed since, last by insecure" in error.message
    error = await refused(client.apply(resource(tenant(), revision=made.revision)))
    assert "spec.display_name, spec.weight changed since" in error.message
    # Deleting asks the same.
    stale = pb.ResourceName(kind="Limits", name="acme/*", revision=made.revision)
    error = await refused(client.Delete(pb.DeleteRequest(resources=[stale])))
    assert (error.reason, "not at revision" in error.message) == (Reason.CONFLICT, True)
    stale.revision = third.revision
    await client.Delete(pb.DeleteRequest(resources=[stale]))


async def test_one_refusal_refuses_all(desk: Desk) -> None:
    await desk.client.apply(tenant())
    before = await stored(desk.store)
    for bad in (resource(tenant(), revision=99), alias("gone@1"), resource(tenant("t"), owner="x" * 101)):
        await refused(desk.client.apply(tenant("a"), bad, tenant("b")))
    assert await stored(desk.store) == before


async def test_what_cannot_be_applied_is_refused(client: Client) -> None:
    twice = await refused(client.apply(tenant(), tenant("b"), tenant(display_name="other")))
    assert (twice.limit, twice.faults[0][1]) == ("tenants/acme", "appears twice")
    for message in observed():
        error = await refused(client.apply(message))
        assert (error.reason, "nobody applies those" in error.message) == (Reason.INVALID_REQUEST, True)
    for bare in (pb.Resource(), pb.Resource(metadata=pb.Metadata(name="x"))):
        assert "says no spec" in (await refused(client.apply(bare))).message
    other = pb.Resource(metadata=pb.Metadata(name="mine"), switch=pb.RolloutSwitch())
    assert (await refused(client.apply(other))).limit == "switches/mine metadata.name"
    placed = resource(tenant(), namespace="team")
    assert (await refused(client.apply(placed))).limit == "tenants/acme metadata.namespace"


async def test_statuses_and_computed_fields_are_nobodys_to_say(desk: Desk) -> None:
    version = model(digest="f" * 64)
    version.created_at.FromSeconds(1)
    forged = canary(id="forged", baseline="forged@1", state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_PROMOTED))
    slo = resource(pb.Slo(route="generate", tier="*", availability=0.9))
    slo.error_budget.objectives.add(objective="availability", consumed=0.0)
    await desk.client.apply(forged, alias(), version, model(version="2"), slo)
    snapshot = await snapshot_in(desk.store)
    made = snapshot.rollouts["weir-fast"]
    assert (made.baseline, len(made.id), made.state.phase) == ("weir-fast@1", 32, pb.ROLLOUT_PHASE_PREPARING)
    assert snapshot.model_versions["weir-fast@1"].digest != "f" * 64
    assert snapshot.model_versions["weir-fast@1"].created_at.seconds > 1
    assert not snapshot.error_budgets
    # What was read and is sent back as it was read is no change.
    read = [await desk.client.get(name) for name in ("Rollout/weir-fast", "Slo/generate/*", "ModelVersion/weir-fast@1")]
    assert set(outcomes((await desk.client.apply(*read)).results).values()) == {"UNCHANGED"}


async def test_pruning_deletes_what_is_its_own_and_in_order(desk: Desk) -> None:
    await desk.client.apply(*applied(), tenant("late"), owner="dir")
    await desk.client.apply(tenant("theirs"), owner="other")
    await desk.client.apply(tenant("nobodys"))
    await desk.client.SteerRollout(
        pb.SteerRolloutRequest(
            alias="weir-fast", steering=pb.STEERING_ABORT, change=pb.ChangeOptions(reason="to be gone")
        )
    )
    kept = tenant("globex")
    tried = await desk.client.apply(kept, owner="dir", prune=True, dry_run=True)
    done = await desk.client.apply(kept, owner="dir", prune=True)
    assert outcomes(tried.results) == outcomes(done.results)
    assert done.results[0].outcome == pb.OUTCOME_UNCHANGED
    gone = [each.resource.kind for each in done.results if each.outcome == pb.OUTCOME_DELETED]
    order = [kind.name for kind in KINDS]
    # What refers to others comes before them.
    assert gone == sorted(gone, key=order.index, reverse=True)
    assert len(gone) == len(applied())
    assert all(each.change.before and not each.change.after for each in done.results[1:])
    assert sorted(await desk.client.names("Tenant")) == ["globex", "nobodys", "theirs"]
    assert set(await stored(desk.store)) == {f"tenants/{name}" for name in ("globex", "nobodys", "theirs")}


async def test_pruning_is_refused_where_something_that_stays_needs_it(client: Client) -> None:
    await client.apply(tenant(), tenant("globex"), owner="dir")
    await client.apply(LIMITS)
    error = await refused(client.apply(tenant("globex"), owner="dir", prune=True))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "tenants/acme")
    assert "limits/acme/*" in error.message
    error = await refused(client.apply(tenant("globex"), prune=True))
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "owner")
    # What is pruned with it is no reason.
    await client.apply(LIMITS, owner="dir")
    await client.apply(tenant("globex"), owner="dir", prune=True)
    assert await client.names("Limits") == []


async def test_pruning_does_not_take_a_live_rollout(client: Client) -> None:
    await client.apply(*applied(), owner="dir")
    without = [each for each in applied() if not isinstance(each, pb.Rollout)]
    error = await refused(client.apply(*without, owner="dir", prune=True))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "rollouts/weir-fast")


async def test_a_rollout_that_is_applied_again_goes_on(desk: Desk) -> None:
    """As a directory does with every run: also when its reason was that of the call."""
    await desk.client.apply(*applied())
    await desk.client.SteerRollout(
        pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_ABORT, change=pb.ChangeOptions(reason="no"))
    )
    bare = canary(reason="")
    await desk.client.apply(bare, reason="first")
    first = (await snapshot_in(desk.store)).rollouts["weir-fast"]
    assert first.reason == "first"
    for reason in ("second", "first", ""):
        again = await desk.client.apply(bare, alias("weir-fast@1"), reason=reason)
        assert set(outcomes(again.results).values()) == {"UNCHANGED"}
    # An ended one as well: it has had its turn.
    await desk.client.SteerRollout(
        pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_ABORT, change=pb.ChangeOptions(reason="no"))
    )
    assert set(outcomes((await desk.client.apply(bare)).results).values()) == {"UNCHANGED"}
    # Another one is another one.
    await desk.client.apply(canary(reason="", steps=[pb.RolloutStep(weight=7)]), reason="third")
    assert (await snapshot_in(desk.store)).rollouts["weir-fast"].id != first.id


async def test_a_dry_run_says_what_would_be_and_writes_nothing(desk: Desk) -> None:
    await desk.client.apply(tenant())
    before = (desk.store.revision, await stored(desk.store))
    wanted = (tenant(display_name="Acme"), LIMITS, tenant("globex"))
    tried = await desk.client.apply(*wanted, dry_run=True)
    assert (desk.store.revision, await stored(desk.store)) == before
    assert tried.revision <= desk.store.revision
    done = await desk.client.apply(*wanted)
    assert outcomes(tried.results) == outcomes(done.results)
    assert [each.change for each in tried.results] == [each.change for each in done.results]
    assert (await refused(desk.client.apply(tenant(plan_policy="gone"), dry_run=True))).limit


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "..", "../fence", "a\0b", "a\nb", "x" * 10_000, "Ümlaut", "\U0001f4a9" * 300, " ", "*", "a@1", "/"],
    ids=lambda name: repr(name[:9]),
)
async def test_no_name_breaks_anything(desk: Desk, name: str) -> None:
    before = await stored(desk.store)
    for kind in KINDS:
        if not kind.applied or (kind.name, name) in (("Price", "*"), ("SafetyPolicy", "a@1")):
            continue
        bad = pb.Resource(metadata=pb.Metadata(name=name))
        getattr(bad, kind.part).SetInParent()
        error = await refused(desk.client.apply(bad))
        assert error.reason in (Reason.INVALID_REQUEST, Reason.CONFLICT), (kind.name, name)
        assert len(error.message) <= 400
        which = pb.ResourceName(kind=kind.name, name=name)
        assert (await refused(desk.client.Delete(pb.DeleteRequest(resources=[which])))).reason is Reason.NOT_FOUND
        assert (await refused(desk.client.get(f"{kind.name}/{name}"))).reason is Reason.NOT_FOUND
    assert await stored(desk.store) == before


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"a=b": ""},
        {"a": "b,c"},
        {"!a": ""},
        {"a": "b\n"},
        {"a\0": ""},
        {"a" * 64: ""},
        {"a": "b" * 64},
        {f"l{number}": "" for number in range(51)},
        {f"l{number}" * 30: "x" * 5000 for number in range(200)},
    ],
    ids=lambda labels: repr(labels)[:12],
)
async def test_labels_that_no_selector_could_name_are_refused(client: Client, labels: dict[str, str]) -> None:
    error = await refused(client.apply(resource(tenant(), labels=labels)))
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "tenants/acme metadata.labels")
    for owner in ("x" * 101, "a\nb", "\0"):
        assert (await refused(client.apply(tenant(), owner=owner))).limit == "tenants/acme metadata.owner"
    most = {f"{number:02}" + "é" * 61: "ß" * 63 for number in range(50)}
    await client.apply(resource(tenant(), labels=most))
    assert [unpack(each).id for each in await client.listed("Tenant", selector=f"00{'é' * 61}")] == ["acme"]


async def test_a_thousand_at_once_are_one_transaction_on_a_real_etcd(tmp_path: Path, etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    async with serving(settings(tmp_path), store) as (client, _):
        many = [each for n in range(500) for each in (tenant(f"t{n}"), pb.Limits(tenant=f"t{n}", model="*"))]
        made = await client.apply(*many, owner="dir", reason="import")
        assert {each.outcome for each in made.results} == {pb.OUTCOME_CREATED}
        found = await client.listed("Tenant", "Limits")
        assert {each.metadata.revision for each in found} == {made.revision}
        assert len(found) == 1000
        both = await asyncio.gather(
            client.apply(*many, owner="dir"), client.apply(tenant("t0", display_name="x"), owner="dir")
        )
        assert max(each.revision for each in both) > made.revision
        gone = await client.apply(tenant("t0", display_name="x"), owner="dir", prune=True)
        assert len(gone.results) == 1000
        assert await client.names("Tenant") == ["t0"]
        too_many = await refused(client.apply(*(tenant(f"t{n}") for n in range(2001))))
        assert (too_many.reason, too_many.limit) == (Reason.INVALID_REQUEST, "writes")
    await store.close()
