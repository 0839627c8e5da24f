"""`Delete`: what something refers to stays, by every reference of every kind; and what else keeps a resource."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason
from libs.registry import MemoryStore, Put, keys
from libs.resources.kinds import BY_NAME, KINDS
from tests.support.registry_service import (
    Client,
    alias,
    grant,
    model,
    named,
    outcomes,
    put,
    refused,
    serving,
    settings,
    stored,
    tenant,
)
from tests.support.world import BUDGET, PLAN, POLICY, SLO, WORKER, canary

ONE, TWO, ACME, FAST = "ModelVersion/weir-fast@1", "ModelVersion/weir-fast@2", "Tenant/acme", "Alias/weir-fast"
ROLLOUT = "Rollout/weir-fast"


class Case(NamedTuple):
    """A registry in which one thing names another by this reference."""

    kind: str
    path: str
    to: str
    world: list[Message]
    target: str
    referrer: str
    besides: tuple[str, ...] = ()
    """What else names the target."""


def begun(**radius: list[str]) -> list[Message]:
    blast = pb.BlastRadius(**radius)
    return [model(), model(version="2"), alias(), SLO, tenant(), canary(blast_radius=blast)]


CASES = [
    Case(
        "ModelVersion",
        "safety_policies",
        "safety",
        [POLICY, model(safety_policies=["strict@1"])],
        "SafetyPolicy/strict@1",
        ONE,
    ),
    Case(
        "SafetyFloor",
        "policies",
        "safety",
        [POLICY, pb.SafetyFloor(policies=["strict@1"])],
        "SafetyPolicy/strict@1",
        "SafetyFloor/mesh",
    ),
    Case("Alias", "targets.model_version", "models", [model(), alias()], ONE, FAST),
    Case(
        "PlanPolicy",
        "ladder.smaller_model.models",
        "aliases",
        [model(), model(version="2"), alias(), PLAN],
        FAST,
        "PlanPolicy/gold",
    ),
    Case(
        "PlanPolicy",
        "ladder.smaller_model.models",
        "models",
        [model(), model(version="2"), alias(), PLAN],
        TWO,
        "PlanPolicy/gold",
    ),
    Case(
        "Tenant",
        "safety_policies",
        "safety",
        [POLICY, tenant(safety_policies=["strict@1"])],
        "SafetyPolicy/strict@1",
        ACME,
    ),
    Case("Tenant", "plan_policy", "plans", [pb.PlanPolicy(id="p"), tenant(plan_policy="p")], "PlanPolicy/p", ACME),
    Case("ApiKey", "tenant", "tenants", [tenant()], ACME, "ApiKey/"),
    Case("ModelGrant", "subject", "tenants", [tenant(), grant("tenant:acme")], ACME, "ModelGrant/tenant:acme"),
    Case(
        "ModelGrant",
        "subject",
        "plans",
        [pb.PlanPolicy(id="p"), grant("plan:p")],
        "PlanPolicy/p",
        "ModelGrant/plan:p",
    ),
    Case("ModelGrant", "models", "models", [model(), grant(models=["weir-fast@1"])], ONE, "ModelGrant/all"),
    Case(
        "ModelGrant",
        "models",
        "aliases",
        [model(), alias(), grant(models=["weir-fast"])],
        FAST,
        "ModelGrant/all",
    ),
    Case("Limits", "tenant", "tenants", [tenant(), pb.Limits(tenant="acme", model="*")], ACME, "Limits/acme/*"),
    Case(
        "Limits",
        "model",
        "aliases",
        [tenant(), model(), alias(), pb.Limits(tenant="acme", model="weir-fast")],
        FAST,
        "Limits/acme/weir-fast",
    ),
    Case(
        "Limits",
        "model",
        "models",
        [tenant(), model(), pb.Limits(tenant="acme", model="weir-fast@1")],
        ONE,
        "Limits/acme/weir-fast@1",
    ),
    Case("Budget", "tenant", "tenants", [tenant(), BUDGET], ACME, "Budget/acme"),
    Case("Price", "model", "aliases", [model(), alias(), pb.Price(model="weir-fast")], FAST, "Price/weir-fast"),
    Case("Price", "model", "models", [model(), pb.Price(model="weir-fast@1")], ONE, "Price/weir-fast@1"),
    Case(
        "Pin",
        "model_version",
        "models",
        [model(), pb.Pin(model_version="weir-fast@1", reason="r")],
        ONE,
        f"Pin/{ONE[13:]}",
    ),
    Case("Rollout", "alias", "aliases", begun(), FAST, ROLLOUT),
    Case("Rollout", "baseline", "models", begun(), ONE, ROLLOUT, (FAST,)),
    Case("Rollout", "arms.model_version", "models", begun(), TWO, ROLLOUT),
    Case("Rollout", "blast_radius.only_tenants", "tenants", begun(only_tenants=["acme"]), ACME, ROLLOUT),
    Case("Rollout", "blast_radius.except_tenants", "tenants", begun(except_tenants=["acme"]), ACME, ROLLOUT),
]


def test_there_is_a_case_for_every_reference_of_the_table() -> None:
    wanted = {(kind.name, ref.path, to) for kind in KINDS for ref in kind.refs for to in ref.to}
    assert {(case.kind, case.path, case.to) for case in CASES} == wanted
    assert all(BY_NAME[case.target.partition("/")[0]].plural == case.to for case in CASES)


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    await put(store, WORKER)
    return store


@pytest.fixture
async def client(tmp_path: Path, store: MemoryStore) -> AsyncIterator[Client]:
    async with serving(settings(tmp_path), store) as (client, _):
        yield client


async def abort(client: Client) -> None:
    why = pb.ChangeOptions(reason="over")
    await client.SteerRollout(pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_ABORT, change=why))


async def built(client: Client, case: Case) -> str:
    """The referrer's name."""
    await client.apply(*case.world)
    if case.kind != "ApiKey":
        return case.referrer
    made = await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    return f"ApiKey/{made.key.metadata.name}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}.{case.path}-{case.to}")
async def test_what_is_named_stays_until_what_names_it_is_gone(client: Client, store: MemoryStore, case: Case) -> None:
    referrer = await built(client, case)
    which, target = named(referrer), named(case.target)
    got = await client.Get(pb.GetRequest(kind=target.kind, name=target.name))
    assert which in got.referrers
    assert {f"{each.kind}/{each.name}" for each in got.referrers} == {referrer, *case.besides}
    before = await stored(store)
    for dry_run in (True, False):
        error = await refused(client.delete(case.target, dry_run=dry_run))
        assert (error.reason, error.limit) == (Reason.CONFLICT, f"{case.to}/{target.name}")
        assert f"{BY_NAME[which.kind].plural}/{which.name}" in error.message
    assert await stored(store) == before
    if case.kind == "Rollout":
        assert "its own traffic" in (await refused(client.delete(referrer))).message
        await abort(client)
        # What is over is history: it needs nothing any more.
        assert which not in (await client.Get(pb.GetRequest(kind=target.kind, name=target.name))).referrers
    if case.kind == "ApiKey":
        assert "weir keys revoke" in (await refused(client.delete(referrer))).message
        await client.RevokeKey(pb.RevokeKeyRequest(key_id=which.name))
        assert which not in (await client.Get(pb.GetRequest(kind=target.kind, name=target.name))).referrers
    both = [case.target, referrer, *case.besides]
    tried = await client.delete(*both, dry_run=True)
    assert set(outcomes(tried.results)) == set(both)
    assert {each.outcome for each in tried.results} == {pb.OUTCOME_DELETED}
    await client.delete(referrer, *case.besides)
    await client.delete(case.target)
    assert (await refused(client.get(case.target))).reason is Reason.NOT_FOUND


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}.{case.path}-{case.to}")
async def test_what_is_named_must_be_there(client: Client, case: Case) -> None:
    """The other side of each reference: nothing names what is not there."""
    kind, name = case.target.split("/", 1)
    without = [
        each
        for each in case.world
        if (type(each).DESCRIPTOR.name, BY_NAME[type(each).DESCRIPTOR.name].name_of(each)) != (kind, name)
    ]
    if case.kind == "ApiKey":
        request = pb.CreateKeyRequest(tenant="acme", scopes=["inference"])
        assert (await refused(client.CreateKey(request))).limit == "tenant"
        return
    error = await refused(client.apply(*without))
    assert error.reason is Reason.INVALID_REQUEST
    referrer = f"{BY_NAME[case.kind].plural}/{case.referrer.split('/', 1)[1]} "
    told = [field for field, message in error.faults if field.startswith(referrer) and repr(name) in message]
    # The baseline is the alias's target: without it there is none.
    assert told or case.path == "baseline"


async def test_several_at_once_are_all_or_none(client: Client, store: MemoryStore) -> None:
    await client.apply(tenant(), tenant("b"), pb.Limits(tenant="acme", model="*"))
    before = await stored(store)
    for names in (["Tenant/b", "Tenant/gone"], ["Tenant/b", "Tenant/acme"], ["Tenant/b", "Tenannt/b"]):
        await refused(client.delete(*names))
    assert await stored(store) == before
    gone = await refused(client.delete("Tenant/b", "Tenant/gone"))
    assert (gone.reason, gone.limit, "tenants/gone" in gone.message) == (Reason.NOT_FOUND, "tenants/gone", True)
    done = await client.delete("Tenant/b", "Tenant/acme", "Limits/acme/*", "Tenant/b", reason="enough")
    assert [each.resource.name for each in done.results] == ["b", "acme", "acme/*"]
    assert all(each.change.before and not each.change.after for each in done.results)
    entry = await client.newest()
    assert (entry.action, entry.reason, entry.revision) == ("registry.Delete", "enough", done.revision)
    assert (await refused(client.delete("Tenant/b"))).reason is Reason.NOT_FOUND


@pytest.mark.parametrize("kind", ["Endpoint", "PoolLevel", "Spend", "ErrorBudget", "Nothing", ""])
async def test_what_others_write_is_not_deleted(client: Client, store: MemoryStore, kind: str) -> None:
    error = await refused(client.delete(f"{kind}/worker/w0"))
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "resources[0].kind")
    assert await store.get(keys.key_of(WORKER))


async def test_versions_that_workers_have_stay(client: Client, store: MemoryStore) -> None:
    await client.apply(model(), model(version="2"), tenant())
    worker = pb.Endpoint(service="worker", instance="w1", pool="fast", model_versions=["weir-fast@2"])
    worker.model_states.add(model_version="weir-fast@1", state=pb.LOAD_STATE_FETCHING)

    async def seen(message: pb.Endpoint) -> None:
        await put(store, message)
        # A change returns once the service has seen everything up to it.
        await client.apply(tenant(display_name=f"at {store.revision}"))

    await seen(worker)
    for name in (ONE, TWO):
        assert "worker w1" in (await refused(client.delete(name))).message
    del worker.model_versions[:]
    worker.model_states[0].state = pb.LOAD_STATE_FAILED
    await seen(worker)
    await client.delete(ONE, TWO)


async def test_the_old_version_of_a_promoted_rollout_stays_as_long_as_it_is_kept_warm(client: Client) -> None:
    await client.apply(*begun())
    state = pb.RolloutState(phase=pb.ROLLOUT_PHASE_PROMOTED)
    state.ended_at.GetCurrentTime()
    await client.delete("Tenant/acme")
    await abort(client)
    ended = canary(id="r", baseline="weir-fast@1", state=state)
    await client.apply(ended, alias("weir-fast@2"), restore=True)
    assert "warm after the rollout" in (await refused(client.delete(ONE))).message
    ended.state.ended_at.FromSeconds(1000)
    await client.apply(ended, restore=True)
    await client.delete(ONE)


async def test_a_base_of_what_is_needed_is_needed(client: Client) -> None:
    adapter = model(version="2", provenance=pb.Provenance(base="weir-fast@1"))
    await client.apply(model(), adapter, alias("weir-fast@2"))
    assert "base of weir-fast@2" in (await refused(client.delete(ONE))).message
    await client.delete(FAST)
    await client.delete(ONE, TWO)


async def test_what_is_both_an_alias_and_a_version_is_there_while_either_is(client: Client, store: MemoryStore) -> None:
    """No such names can be applied; an old store may have them."""
    odd = pb.Alias(name="weir-fast@1", targets=[pb.AliasTarget(model_version="weir-fast@1", weight=100)])
    await put(store, odd)
    await client.apply(model(), pb.Price(model="weir-fast@1"))
    await client.delete("Alias/weir-fast@1")
    assert "prices/weir-fast@1" in (await refused(client.delete(ONE))).message


async def test_unreadable_values_are_not_there(client: Client, store: MemoryStore) -> None:
    await store.txn(puts=[Put(keys.key("tenants", "acme"), b"\xff")])
    await client.apply(tenant("b"))
    assert (await refused(client.delete("Tenant/acme"))).reason is Reason.NOT_FOUND
