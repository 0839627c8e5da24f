"""Going back to an earlier revision: what comes along, what never does, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import make_key
from libs.errors import Reason
from libs.registry import MemoryStore
from libs.resources.kinds import KINDS
from tests.support.registry_service import (
    Client,
    alias,
    model,
    put,
    refused,
    resource,
    serving,
    settings,
    stored,
    tenant,
)
from tests.support.world import BUDGET, POLICY, SLO, WORKER, canary

RESTORED = ("aliases", "plans", "tenants", "limits", "budgets", "slos", "prices")


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    await put(store, WORKER)
    return store


@pytest.fixture
async def client(tmp_path: Path, store: MemoryStore) -> AsyncIterator[Client]:
    async with serving(settings(tmp_path), store) as (client, _):
        yield client


def limits(requests: int, tenant_id: str = "acme") -> pb.Limits:
    return pb.Limits(tenant=tenant_id, model="*", requests_per_minute=requests)


def back(revision: int, reason: str = "it was better", **more: Any) -> pb.RollbackRequest:
    where = {name: more.pop(name) for name in ("kind", "name") if name in more}
    return pb.RollbackRequest(to_revision=revision, change=pb.ChangeOptions(reason=reason, **more), **where)


async def rolled(client: Client, revision: int, **more: Any) -> list[str]:
    return [each.resource for each in (await client.Rollback(back(revision, **more))).changes]


def test_what_comes_along() -> None:
    assert tuple(kind.plural for kind in KINDS if kind.restored) == RESTORED


async def test_going_back_restores_the_configuration_and_nothing_else(client: Client, store: MemoryStore) -> None:
    one: list[Message] = [
        *(model(version=each) for each in ("1", "2")),
        resource(tenant(), labels={"team": "a"}, owner="dir"),
        alias("weir-fast@1"),
        limits(1),
        BUDGET,
        SLO,
        pb.PlanPolicy(id="gold", weight=2),
        pb.Price(model="weir-fast", input_microusd_per_million=1),
    ]
    await client.apply(*one)
    then = (await client.apply(tenant("globex"))).revision
    wanted = await stored(store)
    await client.apply(
        resource(tenant(display_name="x"), labels={"team": "b"}, owner="other"),
        alias("weir-fast@2"),
        limits(2),
        limits(9, "globex"),
        pb.Budget(tenant="acme", monthly_microusd=5),
        pb.Slo(route="generate", tier="*", availability=0.5),
        pb.PlanPolicy(id="gold", weight=3),
        pb.Price(model="weir-fast", input_microusd_per_million=2),
        tenant("later"),
        model(version="3"),
        take_over=True,
    )
    later: list[Message] = [
        pb.Pin(model_version="weir-fast@3", reason="kept"),
        pb.RoleBinding(principal="key:k", roles=["viewer"]),
        pb.TrustPolicy(namespace="team", keys=[make_key().trusted()]),
        pb.RolloutSwitch(kill=True, reason="fire"),
    ]
    await client.apply(*later)
    await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    before = await stored(store)
    tried = await client.Rollback(back(then, dry_run=True))
    assert await stored(store) == before
    done = await client.Rollback(back(then))
    assert tried.changes == done.changes
    assert tried.revision < done.revision
    now = await stored(store)

    def split(state: dict[str, bytes]) -> tuple[dict[str, bytes], dict[str, bytes]]:
        mine = {name: value for name, value in state.items() if name.partition("/")[0] in RESTORED}
        return mine, {name: value for name, value in state.items() if name not in mine}

    assert split(now) == (split(wanted)[0], split(before)[1])
    entry = await client.newest()
    assert (entry.action, entry.reason) == ("registry.Rollback", "it was better")
    # And forth again: a rollback is a change like any other.
    assert len(await rolled(client, done.revision - 1)) == len(done.changes)
    assert await stored(store) == before
    assert not await rolled(client, done.revision + 1)


async def test_one_resource_or_one_kind_goes_back_alone(client: Client) -> None:
    await client.apply(tenant(), tenant("globex"))
    then = (await client.apply(limits(1), limits(1, "globex"))).revision
    await client.apply(limits(2), limits(2, "globex"), tenant(display_name="x"))
    assert await rolled(client, then, kind="Limits", name="acme/*") == ["limits/acme/*"]
    assert await rolled(client, then, kind="Limits") == ["limits/globex/*"]
    assert await rolled(client, then) == ["tenants/acme"]


async def test_going_back_to_what_would_not_hold_is_refused_by_name(client: Client) -> None:
    await client.apply(model(), model(version="2"))
    early = (await client.apply(tenant())).revision
    on_one = (await client.apply(alias("weir-fast@1"))).revision
    on_two = (await client.apply(alias("weir-fast@2"))).revision
    await client.delete("ModelVersion/weir-fast@1")
    error = await refused(rolled(client, on_one))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "aliases/weir-fast")
    assert "weir-fast@1" in error.message
    assert not await rolled(client, on_two)

    await client.apply(tenant("late"))
    made = await client.CreateKey(pb.CreateKeyRequest(tenant="late", scopes=["inference"]))
    name = made.key.metadata.name
    error = await refused(rolled(client, on_two, kind="Tenant", name="late"))
    assert error.limit == f"keys/{name}"
    assert f"`weir keys revoke {name}` first" in error.message
    await client.RevokeKey(pb.RevokeKeyRequest(key_id=name))
    assert await rolled(client, on_two) == ["tenants/late"]

    # Neither versions nor safety policies go back.
    await client.apply(POLICY, model(version="3", safety_policies=["strict@1"]))
    assert not await rolled(client, on_two)
    await client.delete("ModelVersion/weir-fast@3")

    assert (await refused(rolled(client, early, reason=""))).limit == "change.reason"
    assert (await refused(rolled(client, 1))).reason is Reason.NOT_FOUND


async def test_what_keys_made_since_need_stays_with_its_bounds_and_all_else_goes_back(client: Client) -> None:
    then = (await client.apply(tenant(), limits(1))).revision
    bounds = [pb.Budget(tenant="late", monthly_microusd=5), limits(9, "late")]
    await client.apply(pb.PlanPolicy(id="new", weight=2), tenant("late", plan_policy="new"), *bounds)
    await client.apply(tenant("idle"), limits(9, "idle"), limits(2), pb.Budget(tenant="acme", monthly_microusd=5))
    await client.CreateKey(pb.CreateKeyRequest(tenant="late", scopes=["inference"]))
    done = await client.Rollback(back(then))
    assert list(done.kept) == ["budgets/late", "limits/late/*", "plans/new", "tenants/late"]
    assert {each.resource for each in done.changes} == {
        "tenants/idle",
        "limits/idle/*",
        "limits/acme/*",
        "budgets/acme",
    }
    assert await client.read("Limits/late/*")


async def test_the_safety_floor_does_not_go_back_and_what_a_tenant_adds_to_it_does(client: Client) -> None:
    strict = pb.SafetyPolicy(id="strict", version="2", rules=POLICY.rules)
    then = (await client.apply(POLICY, tenant(safety_policies=["strict@1"]))).revision
    await client.apply(strict, tenant(safety_policies=["strict@2"]), pb.SafetyFloor(policies=["strict@2"]))
    assert await rolled(client, then) == ["tenants/acme"]
    assert list((await client.read("Tenant/acme")).safety_policies) == ["strict@1"]
    assert list((await client.read("SafetyFloor/mesh")).policies) == ["strict@2"]


async def test_who_may_act_as_a_tenant_is_not_undone_by_going_back(client: Client) -> None:
    trusted: dict[str, Any] = {"workloads": ["spiffe://weir.internal/sa/old"], "jwt_issuer": "https://old.example"}
    await client.apply(tenant(display_name="Acme", **trusted))
    then = (await client.apply(tenant("globex", jwt_issuer="https://old.example"))).revision
    await client.apply(tenant(display_name="Other", workloads=["spiffe://weir.internal/sa/new"]), tenant("globex"))
    # Nothing else of globex differs.
    assert await rolled(client, then) == ["tenants/acme"]
    acme, globex = [await client.read(f"Tenant/{name}") for name in ("acme", "globex")]
    assert (acme.display_name, acme.jwt_issuer, globex.jwt_issuer) == ("Acme", "", "")
    assert list(acme.workloads) == ["spiffe://weir.internal/sa/new"]
    # Forth again: one that is not there any more comes back without them.
    made = (await client.apply(tenant("initech", jwt_issuer="https://new.example"))).revision
    await rolled(client, then)
    await rolled(client, made)
    assert (await client.read("Tenant/initech")).jwt_issuer == ""


async def test_an_alias_under_a_rollout_is_not_moved_by_going_back(client: Client) -> None:
    await client.apply(*(model(version=each) for each in ("1", "2", "3")), SLO)
    then = (await client.apply(alias("weir-fast@3"))).revision
    await client.apply(alias("weir-fast@1"), canary(shadow=pb.ShadowPlan(share=5)))
    error = await refused(rolled(client, then))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "rollout")
    why = pb.ChangeOptions(reason="over")
    await client.SteerRollout(pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_ABORT, change=why))
    # Neither the rollout nor what it made for its mirrored requests goes with it.
    assert await rolled(client, then) == ["aliases/weir-fast"]
    assert "shadow" in await client.names("Tenant")


async def test_more_than_a_transaction_takes_is_refused_and_the_most_goes(client: Client) -> None:
    then = (await client.apply(tenant())).revision
    for start in (0, 1000):
        await client.apply(*(tenant(f"t{number}") for number in range(start, start + 1000)))
    assert len(await rolled(client, then)) == 2000
    for start, end in ((0, 1000), (1000, 2001)):
        await client.apply(*(tenant(f"t{number}") for number in range(start, end)))
    error = await refused(rolled(client, then))
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "writes")
    assert "2001" in error.message
