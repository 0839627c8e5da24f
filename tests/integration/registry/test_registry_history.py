"""History of every change, differences between revisions, going back, dry runs, roles; on a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf import duration_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import make_key, sign
from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.pki import issue
from libs.registry import EtcdStore, KeyValue, MemoryStore, Put, Store, keys
from libs.rpc import make_channel
from libs.service.process import serve
from services.registry.app import build
from services.registry.history import History
from services.registry.policy.access import ALLOWED, Role
from tests.support.etcd import EtcdServer
from tests.support.registry_service import Client, model, refused, serving, settings, tenant


@pytest.fixture
async def etcd_store(etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([etcd.endpoint])
    yield store
    await store.close()


@pytest.fixture
async def client(tmp_path: Path, etcd_store: EtcdStore) -> AsyncIterator[Client]:
    async with serving(settings(tmp_path), etcd_store) as (client, _):
        yield client


def limits(requests: int, tenant_id: str = "acme", **change: Any) -> pb.SetLimitsRequest:
    wanted = pb.Limits(tenant=tenant_id, model="*", requests_per_minute=requests, revision=-1)
    return pb.SetLimitsRequest(limits=wanted, change=pb.ChangeOptions(**change))


def alias_to(version: str, **change: Any) -> pb.SetAliasRequest:
    target = pb.AliasTarget(model_version=version, weight=100)
    wanted = pb.Alias(name="weir-fast", targets=[target], revision=-1)
    return pb.SetAliasRequest(alias=wanted, change=pb.ChangeOptions(**change))


def rollback(revision: int, reason: str = "it was better", **change: Any) -> pb.RollbackToRevisionRequest:
    options = pb.ChangeOptions(reason=reason, **change)
    return pb.RollbackToRevisionRequest(to_revision=revision, change=options)


async def stored(store: Store, *without: str) -> dict[str, bytes]:
    """Everything in the registry's store but what it works with, and what starts with one of the names."""
    own = ("audit-outbox/", "fence", "endpoints/", *without)
    kvs = (await store.get_prefix(keys.ROOT)).kvs
    return {kv.key: kv.value for kv in kvs if not kv.key.removeprefix(keys.ROOT).startswith(own)}


def trust_of(*signers: Any) -> pb.TrustPolicy:
    return pb.TrustPolicy(namespace="team", keys=[signer.trusted() for signer in signers], revision=-1)


Requests = dict[str, Callable[[], Any]]


async def every_change(client: Any, store: Store) -> Requests:
    """One request for each call that changes something, each valid once the ones before were carried out."""
    signer = make_key()
    signed = model(version="5", namespace="team").model_version
    signed.signature = sign(signed, signer)
    rule = pb.SafetyRule(id="card", category="pii.card", pattern=r"\d{16}", action="block", stage="both")
    worker = pb.Endpoint(service="worker", instance="w0", pool="fast", model_versions=["weir-fast@1", "weir-fast@2"])
    await store.txn(puts=[Put(keys.key_of(worker), keys.encode(worker))])
    await client.CreateModelVersion(model(version="2"))
    await client.CreateModelVersion(model(version="7"))
    key: list[str] = []

    async def made_key() -> Any:
        answer = await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
        key[:] = [answer.key.id]
        return answer

    rollout = pb.Rollout(
        alias="weir-fast",
        arms=[pb.RolloutArm(name="canary", model_version="weir-fast@2")],
        steps=[pb.RolloutStep(weight=10)],
        reason="better",
        revision=-1,
    )
    why = pb.ChangeOptions(reason="why")
    return {
        "SetSafetyPolicy": lambda: client.SetSafetyPolicy(
            pb.SetSafetyPolicyRequest(policy=pb.SafetyPolicy(id="default", rules=[rule]))
        ),
        "SetPlanPolicy": lambda: client.SetPlanPolicy(pb.SetPlanPolicyRequest(plan=pb.PlanPolicy(id="gold", weight=3))),
        "SetTenant": lambda: client.SetTenant(tenant("acme")),
        "SetLimits": lambda: client.SetLimits(limits(3)),
        "CreateKey": made_key,
        "RevokeKey": lambda: client.RevokeKey(pb.RevokeKeyRequest(key_id=key[0])),
        "SetTrustPolicy": lambda: client.SetTrustPolicy(pb.SetTrustPolicyRequest(trust=trust_of(signer))),
        "CreateModelVersion": lambda: client.CreateModelVersion(pb.CreateModelVersionRequest(model_version=signed)),
        "SetAlias": lambda: client.SetAlias(alias_to("weir-fast@7")),
        "SetPrice": lambda: client.SetPrice(
            pb.SetPriceRequest(price=pb.Price(model="*", input_microusd_per_million=5))
        ),
        "SetSlo": lambda: client.SetSlo(
            pb.SetSloRequest(slo=pb.Slo(route="generate", tier="*", e2e_p95=duration_pb2.Duration(seconds=1)))
        ),
        "SetPin": lambda: client.SetPin(pb.SetPinRequest(pin=pb.Pin(model_version="weir-fast@5", reason="kept"))),
        "DeletePin": lambda: client.DeletePin(pb.DeletePinRequest(model_version="weir-fast@5")),
        "DeleteModelVersion": lambda: client.DeleteModelVersion(
            pb.DeleteModelVersionRequest(model_version="weir-fast@5")
        ),
        "SetRoleBinding": lambda: client.SetRoleBinding(
            pb.SetRoleBindingRequest(binding=pb.RoleBinding(principal="key:k9", roles=["viewer"]))
        ),
        "SetRolloutSwitch": lambda: client.SetRolloutSwitch(
            pb.SetRolloutSwitchRequest(switch=pb.RolloutSwitch(freeze=False, reason="checked"))
        ),
        "StartRollout": lambda: client.StartRollout(pb.StartRolloutRequest(rollout=rollout)),
        "SteerRollout": lambda: client.SteerRollout(
            pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_PAUSE, change=why)
        ),
        "AbortRollout": lambda: client.AbortRollout(pb.AbortRolloutRequest(alias="weir-fast", change=why)),
    }


async def test_every_change_is_in_the_history_with_before_and_after(client: Client, etcd_store: EtcdStore) -> None:
    requests = await every_change(client, etcd_store)
    many = {"RollbackToRevision", "Import"}
    assert set(requests) | many == {name for name, roles in ALLOWED.items() if Role.VIEWER not in roles} - {"Export"}
    start = (await etcd_store.get_prefix(keys.HISTORY)).revision
    state = {}
    for name, call in requests.items():
        before = await stored(etcd_store)
        await call()
        after = await stored(etcd_store)
        state[name] = before
        entry = (await client.ListHistory(pb.ListHistoryRequest(limit=1))).entries[0]
        assert (entry.action, entry.actor) == (f"registry.{name}", "insecure")
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert {keys.ROOT + change.resource for change in entry.changes} == changed, name
        for change in entry.changes:
            key = keys.ROOT + change.resource
            for told, real in ((change.before, before.get(key)), (change.after, after.get(key))):
                if key.startswith((keys.KEYS, keys.MODELS)):
                    shown, whole = json.loads(told or "{}"), json.loads(real or b"{}")
                    assert {**shown, "hash": 0, "signature": 0} == {**whole, "hash": 0, "signature": 0}
                    assert "hash" not in shown
                else:
                    assert told.encode() == (real or b""), name
    entries = (await client.ListHistory(pb.ListHistoryRequest(limit=1000))).entries
    assert [entry.action.removeprefix("registry.") for entry in reversed(entries)][2:] == list(requests)
    assert [entry.revision for entry in entries] == sorted((entry.revision for entry in entries), reverse=True)
    records = (await etcd_store.get_prefix(keys.AUDIT_OUTBOX)).kvs
    assert {kv.key.removeprefix(keys.AUDIT_OUTBOX) for kv in records} == {entry.id for entry in entries}
    whole = await client.DiffRevisions(pb.DiffRevisionsRequest(from_revision=start))
    first, last = state["SetSafetyPolicy"], await stored(etcd_store)
    differing = {key for key in first.keys() | last.keys() if first.get(key) != last.get(key)}
    assert {keys.ROOT + change.resource for change in whole.changes} == differing


class Trying:
    """A client whose calls are dry runs while `dry_run` says so."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.dry_run = False

    def __getattr__(self, method: str) -> Any:
        def send(request: Any) -> Any:
            request.change.dry_run = self.dry_run
            return getattr(self.client, method)(request)

        return send


async def test_a_dry_run_of_any_change_writes_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        trying = Trying(client)
        for name, call in (await every_change(trying, store)).items():
            before = (store.revision, await stored(store))
            trying.dry_run = True
            await call()
            assert (store.revision, await stored(store)) == before, name
            trying.dry_run = False
            await call()
            assert store.revision > before[0], name


async def test_history_by_resource_and_page(client: Client) -> None:
    await client.SetTenant(tenant("acme"))
    await client.SetTenant(tenant("acme-2"))
    for number in range(1, 6):
        await client.SetLimits(limits(number, reason=f"number {number}"))

    async def reasons(**fields: Any) -> list[str]:
        return [entry.reason for entry in (await client.ListHistory(pb.ListHistoryRequest(**fields))).entries]

    assert await reasons(resource="limits/acme/*") == [f"number {number}" for number in (5, 4, 3, 2, 1)]
    assert await reasons(resource="limits/", limit=2) == ["number 5", "number 4"]
    page = (await client.ListHistory(pb.ListHistoryRequest(resource="limits/acme", limit=2))).entries
    assert await reasons(resource="limits/acme", limit=2, before_revision=page[-1].revision) == ["number 3", "number 2"]
    assert len(await reasons(resource="tenants/acme")) == 1
    assert await reasons(resource="tenants/acm") == []


async def test_differences_forth_and_back(client: Client) -> None:
    await client.SetTenant(tenant("acme"))
    one = (await client.SetLimits(limits(1))).limits.revision
    await client.SetLimits(limits(2))
    back = (await client.SetLimits(limits(1))).limits.revision
    two = (await client.SetTenant(tenant("globex"))).tenant.revision

    async def diff(start: int, end: int = 0) -> list[tuple[str, bool, bool]]:
        answer = await client.DiffRevisions(pb.DiffRevisionsRequest(from_revision=start, to_revision=end))
        assert answer.to_revision == (end or answer.to_revision) > 0
        return [(change.resource, bool(change.before), bool(change.after)) for change in answer.changes]

    # What came back to what it was is no difference.
    assert await diff(one, back) == []
    assert await diff(one) == [("tenants/globex", False, True)]
    assert await diff(two, one) == [("tenants/globex", True, False)]
    assert await diff(two, two) == []
    assert (await refused(diff(1))).reason is Reason.NOT_FOUND
    assert (await refused(diff(two + 1000))).reason is Reason.INVALID_REQUEST
    assert (await refused(diff(-1))).reason is Reason.INVALID_REQUEST


async def test_going_back_restores_the_configuration_and_nothing_else(client: Client, etcd_store: EtcdStore) -> None:
    await client.CreateModelVersion(model())
    await client.CreateModelVersion(model(version="2"))
    await client.SetTenant(tenant("acme"))
    await client.SetAlias(alias_to("weir-fast@1"))
    await client.SetLimits(limits(1))
    await client.SetPrice(pb.SetPriceRequest(price=pb.Price(model="weir-fast", input_microusd_per_million=1)))
    then = (await client.SetTenant(tenant("globex"))).tenant.revision
    wanted = await stored(etcd_store)

    await client.SetAlias(alias_to("weir-fast@2"))
    await client.SetLimits(limits(2))
    await client.SetLimits(limits(9, "globex"))
    await client.SetTenant(tenant("later"))
    await client.CreateModelVersion(model(version="3"))
    await client.SetPin(pb.SetPinRequest(pin=pb.Pin(model_version="weir-fast@3", reason="kept")))
    made = await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    kept = {key: value for key, value in (await stored(etcd_store)).items() if key.startswith((keys.PINS, keys.KEYS))}

    before = await stored(etcd_store)
    tried = await client.RollbackToRevision(rollback(then, dry_run=True))
    assert await stored(etcd_store) == before
    done = await client.RollbackToRevision(rollback(then))
    assert tried.changes == done.changes
    assert tried.revision < done.revision
    assert [change.resource for change in done.changes] == [
        "aliases/weir-fast",
        "limits/acme/*",
        "limits/globex/*",
        "tenants/later",
    ]
    now = await stored(etcd_store)
    own = (keys.PINS, keys.KEYS, keys.MODELS)
    assert {key: now[key] for key in now if not key.startswith(own)} == {
        key: wanted[key] for key in wanted if not key.startswith(own)
    }
    assert {key: value for key, value in now.items() if key.startswith((keys.PINS, keys.KEYS))} == kept
    assert keys.model_key("weir-fast", "3") in now
    assert made.key.id
    entry = (await client.ListHistory(pb.ListHistoryRequest(limit=1))).entries[0]
    assert (entry.action, entry.reason) == ("registry.RollbackToRevision", "it was better")
    # And forth again: a rollback is a change like any other.
    again = await client.RollbackToRevision(rollback(done.revision - 1))
    assert len(again.changes) == 4
    assert await stored(etcd_store) == before
    unchanged = await client.RollbackToRevision(rollback(again.revision))
    assert not unchanged.changes


async def test_going_back_to_what_would_not_hold_is_refused_by_name(client: Client) -> None:
    await client.CreateModelVersion(model())
    await client.CreateModelVersion(model(version="2"))
    early = (await client.SetTenant(tenant("acme"))).tenant.revision
    on_one = (await client.SetAlias(alias_to("weir-fast@1"))).alias.revision
    on_two = (await client.SetAlias(alias_to("weir-fast@2"))).alias.revision
    await client.DeleteModelVersion(pb.DeleteModelVersionRequest(model_version="weir-fast@1"))
    error = await refused(client.RollbackToRevision(rollback(on_one)))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "aliases/weir-fast")
    assert "weir-fast@1" in error.message
    assert not (await client.RollbackToRevision(rollback(on_two))).changes

    await client.SetTenant(tenant("late"))
    made = await client.CreateKey(pb.CreateKeyRequest(tenant="late", scopes=["inference"]))
    error = await refused(client.RollbackToRevision(rollback(on_two)))
    assert error.limit == f"keys/{made.key.id}"
    await client.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.id))
    await client.RollbackToRevision(rollback(on_two))

    # No worker would load a version whose safety policy is gone.
    await client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=pb.SafetyPolicy(id="strict")))
    await client.CreateModelVersion(model(version="3", safety_policy="strict", safety_policy_version=1))
    error = await refused(client.RollbackToRevision(rollback(on_two)))
    assert (error.limit, "'strict'" in error.message) == ("models/weir-fast@3", True)
    await client.DeleteModelVersion(pb.DeleteModelVersionRequest(model_version="weir-fast@3"))
    assert (await client.RollbackToRevision(rollback(on_two))).changes

    assert (await refused(client.RollbackToRevision(rollback(early, reason="")))).limit == "change.reason"
    assert (await refused(client.RollbackToRevision(rollback(1)))).reason is Reason.NOT_FOUND


async def test_more_than_a_transaction_takes_is_refused_and_the_most_goes(client: Client) -> None:
    await client.SetTenant(tenant("acme"))
    then = (await client.SetLimits(limits(1))).limits.revision
    for number in range(120):
        await client.SetTenant(tenant(f"t{number:03}"))
    assert len((await client.RollbackToRevision(rollback(then))).changes) == 120
    for number in range(121):
        await client.SetTenant(tenant(f"t{number:03}"))
    error = await refused(client.RollbackToRevision(rollback(then)))
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "to_revision")
    assert "121" in error.message


async def test_safety_policies_go_back_under_a_new_version(client: Client) -> None:
    rule = pb.SafetyRule(id="card", category="pii.card", pattern=r"\d{16}", action="block", stage="both")
    policy = pb.SafetyPolicy(id="default", rules=[rule], revision=-1)
    first = (await client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=policy))).policy
    policy.rules[0].action = "flag"
    await client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=policy))
    await client.RollbackToRevision(rollback(first.revision))
    now = (await client.ListSafetyPolicies(pb.ListSafetyPoliciesRequest())).policies[0]
    assert (now.rules[0].action, now.version) == ("block", 3)


async def test_who_may_act_as_a_tenant_is_not_undone_by_going_back(client: Client) -> None:
    trusted: dict[str, Any] = {"workloads": ["spiffe://weir.internal/sa/old"], "jwt_issuer": "https://old.example"}
    await client.SetTenant(tenant("acme", display_name="Acme", **trusted))
    then = (await client.SetTenant(tenant("globex", **trusted | {"workloads": []}))).tenant.revision
    await client.SetTenant(tenant("acme", display_name="Other", workloads=["spiffe://weir.internal/sa/new"]))
    await client.SetTenant(tenant("globex"))
    done = await client.RollbackToRevision(rollback(then))
    # Nothing else of globex differs.
    assert [change.resource for change in done.changes] == ["tenants/acme"]
    acme, globex = (await client.ListTenants(pb.ListTenantsRequest())).tenants
    assert (acme.display_name, acme.jwt_issuer) == ("Acme", "")
    assert list(acme.workloads) == ["spiffe://weir.internal/sa/new"]
    assert globex.jwt_issuer == ""
    # Forth again: one that is not there any more comes back whole.
    made = (await client.SetTenant(tenant("initech", jwt_issuer="https://new.example"))).tenant.revision
    await client.RollbackToRevision(rollback(then))
    await client.RollbackToRevision(rollback(made))
    listed = (await client.ListTenants(pb.ListTenantsRequest())).tenants
    assert [each.jwt_issuer for each in listed if each.id == "initech"] == ["https://new.example"]


async def test_an_alias_under_a_rollout_is_not_moved_by_going_back(client: Client, etcd_store: EtcdStore) -> None:
    requests = await every_change(client, etcd_store)
    for name in ("SetTenant", "SetAlias", "SetSlo"):
        await requests[name]()
    then = (await client.SetAlias(alias_to("weir-fast@2"))).alias.revision
    await client.SetAlias(alias_to("weir-fast@7"))
    await requests["StartRollout"]()
    error = await refused(client.RollbackToRevision(rollback(then)))
    assert (error.reason, error.limit) == (Reason.CONFLICT, "rollout")
    await requests["AbortRollout"]()
    done = await client.RollbackToRevision(rollback(then))
    assert [change.resource for change in done.changes] == ["aliases/weir-fast"]


async def test_replicas_that_race_leave_one_history(tmp_path: Path, etcd: EtcdServer) -> None:
    stores = [EtcdStore([etcd.endpoint]) for _ in range(2)]
    async with (
        serving(settings(tmp_path, instance="registry-0"), stores[0]) as (one, _),
        serving(settings(tmp_path, instance="registry-1"), stores[1]) as (two, _),
    ):
        await one.SetTenant(tenant("acme"))
        then = (await one.SetLimits(limits(1))).limits.revision
        calls = [replica.SetTenant(tenant(f"t{number}")) for number, replica in enumerate([one, two] * 4)]
        back = [replica.RollbackToRevision(rollback(then)) for replica in (one, two)]
        results = await asyncio.gather(*calls, *back, return_exceptions=True)
        assert [error for error in results if isinstance(error, BaseException)] == []
        # Replayed from nothing, the history gives what is there.
        state: dict[str, str] = {}
        entries = (await one.ListHistory(pb.ListHistoryRequest(limit=1000))).entries
        for entry in reversed(entries):
            for change in entry.changes:
                assert state.get(change.resource, "") == change.before
                state[change.resource] = change.after
        present = {key.removeprefix(keys.ROOT): value.decode() for key, value in (await stored(stores[0])).items()}
        assert {name: value for name, value in state.items() if value} == present
    for store in stores:
        await store.close()


async def test_the_history_is_bounded(etcd_store: EtcdStore) -> None:
    store = etcd_store
    history = History(store=store, limit=150, interval=60.0, rng=Random(1))
    assert await history.trim() == 0
    revisions = []
    for number in range(420):
        entry = pb.HistoryEntry(id=str(number), changes=[pb.ResourceChange(resource="tenants/a", after=str(number))])
        result = await store.txn(puts=[Put(f"{keys.HISTORY}{number:020d}-{number}", keys.encode(entry))])
        revisions.append(result.revision)
    assert await history.trim() == 270
    kept = await history.entries(limit=1000)
    assert [entry.revision for entry in kept] == revisions[:-151:-1]
    found, _ = await history.differences(revisions[-150], 0)
    assert [(each.resource, each.after) for each in found] == [("tenants/a", "419")]
    with pytest.raises(WeirError) as caught:
        await history.differences(revisions[-151], 0)
    assert caught.value.reason is Reason.NOT_FOUND
    assert str(revisions[-150]) in caught.value.message


async def test_an_unreadable_entry_is_shown_and_stops_differences(etcd_store: EtcdStore) -> None:
    first = await etcd_store.txn(puts=[Put(f"{keys.HISTORY}1-a", b"{}")])
    await etcd_store.txn(puts=[Put(f"{keys.HISTORY}2-b", b"\xff")])
    history = History(store=etcd_store, limit=10, interval=60.0, rng=Random(1))
    assert [entry.action for entry in await history.entries()] == ["unreadable", ""]
    with pytest.raises(WeirError) as caught:
        await history.differences(first.revision, 0)
    assert caught.value.reason is Reason.INTERNAL


async def test_roles_over_the_edge(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    names = ("registry", "cli", "envoy", "gateway")
    tls = {
        name: TlsFiles(**{field: getattr(issue(pki, name), field) for field in ("ca", "cert", "key")}) for name in names
    }
    config = settings(tmp_path, tls=tls["registry"])
    service = await build(config, store=MemoryStore())
    async with serve(service, config) as running, asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        await running.ready.wait()

        async def peer(name: str, *metadata: tuple[str, str]) -> Client:
            channel = make_channel(
                f"127.0.0.1:{running.port}", tls=tls[name], server_name="registry.weir.internal", translate_errors=True
            )
            return Client(await stack.enter_async_context(channel), metadata)

        async def bind(principal: str, *roles: str, namespaces: tuple[str, ...] = (), revision: int = -1) -> Any:
            binding = pb.RoleBinding(principal=principal, roles=roles, namespaces=namespaces, revision=revision)
            return (await owner.SetRoleBinding(pb.SetRoleBindingRequest(binding=binding))).binding

        owner = await peer("cli")
        key = await peer("envoy", ("x-weir-key-id", "k1"), ("x-weir-scopes", "inference"), ("x-weir-tenant", "acme"))
        await owner.SetTenant(tenant("acme"))
        await owner.CreateModelVersion(model())
        await owner.CreateModelVersion(model(version="2", namespace="team-a"))
        await owner.CreateModelVersion(model(version="3", namespace="team-a"))
        await owner.SetAlias(alias_to("weir-fast@2"))
        assert (await refused(key.ListModels(pb.ListModelsRequest()))).reason is Reason.SCOPE_MISSING

        await bind("key:k1", "operator")
        await key.SetLimits(limits(3))
        entry = (await key.ListHistory(pb.ListHistoryRequest(limit=1))).entries[0]
        assert entry.actor == "key:k1"
        error = await refused(key.SetAlias(alias_to("weir-fast@3")))
        assert (error.reason, "releaser" in error.message) == (Reason.SCOPE_MISSING, True)
        admin = pb.CreateKeyRequest(tenant="acme", scopes=["admin"])
        assert (await refused(key.CreateKey(admin))).reason is Reason.SCOPE_MISSING
        await owner.CreateKey(admin)
        await key.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
        # A tenant that holds a role is not an operator's to give to another issuer's tokens.
        await bind("tenant:acme", "owner")
        assert (await refused(key.SetTenant(tenant("acme")))).limit == "role"
        assert (await refused(drained(key))).reason is Reason.SCOPE_MISSING

        await bind("key:k1", "releaser", namespaces=("team-a",))
        await key.SetAlias(alias_to("weir-fast@3"))
        error = await refused(key.SetAlias(alias_to("weir-fast@1")))
        assert (error.reason, error.limit) == (Reason.PERMISSION_DENIED, "namespace")
        assert "'default'" in error.message
        assert (await refused(key.SetAlias(alias_to("weir-fast@1", dry_run=True)))).limit == "namespace"

        bound = await bind("key:k1", "viewer")
        assert len((await key.ListRoleBindings(pb.ListRoleBindingsRequest())).bindings) == 2
        assert (await refused(bind("key:k1", revision=bound.revision - 1))).reason is Reason.CONFLICT
        await bind("key:k1", revision=bound.revision)
        assert (await refused(key.ListModels(pb.ListModelsRequest()))).reason is Reason.SCOPE_MISSING
        await bind("key:k1")
        spiffe = "spiffe://weir.internal/sa/gateway"
        gateway = await peer("gateway")
        assert (await refused(gateway.ListModels(pb.ListModelsRequest()))).reason is Reason.PERMISSION_DENIED
        await bind(spiffe, "viewer")
        assert (await gateway.ListModels(pb.ListModelsRequest())).model_versions


class Interrupted(MemoryStore):
    """Lets something happen between a change's beginning and its plan."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def get(self, key: str) -> KeyValue | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().get(key)


async def test_a_role_that_is_taken_away_meanwhile_counts_no_more(tmp_path: Path) -> None:
    pki, store = tmp_path / "pki", Interrupted()
    tls = {
        name: TlsFiles(**{field: getattr(issue(pki, name), field) for field in ("ca", "cert", "key")})
        for name in ("registry", "cli", "gateway")
    }
    config = settings(tmp_path, tls=tls["registry"])
    service = await build(config, store=store)
    async with serve(service, config) as running, asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        await running.ready.wait()
        owner, gateway = [
            Client(
                await stack.enter_async_context(
                    make_channel(
                        f"127.0.0.1:{running.port}",
                        tls=tls[name],
                        server_name="registry.weir.internal",
                        translate_errors=True,
                    )
                )
            )
            for name in ("cli", "gateway")
        ]
        binding = pb.RoleBinding(principal="spiffe://weir.internal/sa/gateway", roles=["operator"], revision=-1)
        await owner.SetRoleBinding(pb.SetRoleBindingRequest(binding=binding))
        await gateway.SetTenant(tenant("acme"))

        async def taken_away() -> None:
            await store.txn(puts=[Put(keys.FENCE, b"another replica's")], deletes=[keys.key_of(binding)])

        store.meanwhile = taken_away
        assert (await refused(gateway.SetTenant(tenant("globex")))).reason is Reason.PERMISSION_DENIED
        assert [each.id for each in (await owner.ListTenants(pb.ListTenantsRequest())).tenants] == ["acme"]


async def drained(client: Client) -> list[pb.ExportResponse]:
    return [part async for part in client.Export(pb.ExportRequest())]


async def test_signatures_are_checked_where_a_namespace_has_trusted_keys(client: Client) -> None:
    known, unknown = make_key(), make_key()
    bad = trust_of(known)
    bad.threshold = 2
    assert (await refused(client.SetTrustPolicy(pb.SetTrustPolicyRequest(trust=bad)))).limit == "trust.threshold"
    trust = (await client.SetTrustPolicy(pb.SetTrustPolicyRequest(trust=trust_of(known)))).trust
    assert list((await client.ListTrustPolicies(pb.ListTrustPoliciesRequest())).trusts) == [trust]
    request = model(namespace="team")
    unsigned = copy.deepcopy(request.model_version)
    for signature in ("", sign(unsigned, unknown)):
        request.model_version.signature = signature
        error = await refused(client.CreateModelVersion(request))
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "model_version.signature")
    request.model_version.signature = sign(unsigned, known)
    made = (await client.CreateModelVersion(request)).model_version
    assert made.signature == request.model_version.signature
    # Signed anew, as in a rotation of keys; without a signature it keeps the one that it has.
    await client.SetTrustPolicy(pb.SetTrustPolicyRequest(trust=trust_of(known, unknown)))
    request.model_version.signature = sign(unsigned, unknown)
    renewed = (await client.CreateModelVersion(request)).model_version
    assert renewed.signature == request.model_version.signature != made.signature
    request.model_version.signature = ""
    assert (await client.CreateModelVersion(request)).model_version == renewed
    # Elsewhere nobody's signature is needed.
    await client.CreateModelVersion(model(version="2"))
