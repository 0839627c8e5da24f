"""A3: operators are people, each with a certificate or token and roles; what each may is held on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.registry import MemoryStore
from libs.resources.kind import Role
from libs.resources.kinds import BY_MESSAGE, BY_NAME, KINDS
from libs.rpc import make_channel
from tests.support.edge import control_plane
from tests.support.registry_service import OWNER, Client, Peers, alias, certificates, model, peers, put, refused, tenant
from tests.support.world import applied, observed

DENIED = (Reason.SCOPE_MISSING, Reason.PERMISSION_DENIED)
CHANGES = {
    "viewer": set(),
    "auditor": set(),
    "publisher": {"ModelVersion", "Pin"},
    "releaser": {"Alias", "Rollout", "RolloutSwitch"},
    "operator": {
        *("Tenant", "ApiKey", "Limits", "PlanPolicy", "Price", "Slo", "Budget", "SafetyPolicy", "RolloutSwitch"),
        "ModelGrant",
    },
    "owner": set(BY_NAME),
}
"""Role → kinds that it changes, written down once more: a change of the table must be meant."""
PEOPLE = {role.value: f"operator:{role.value}" for role in Role if role is not Role.OWNER} | {"owner": OWNER}
NOBODIES = ("probe", "cli", "gateway", "worker", "demo-client", "envoy", "operator:stranger")
ADMIN = (("x-weir-scopes", "admin"), ("x-weir-key-id", "oidc:corp/boss"), ("x-weir-tenant", "ops"))
"""What edge-auth would say of an owner."""


def bound(who: str, *roles: str, tenants: tuple[str, ...] = ()) -> pb.RoleBinding:
    return pb.RoleBinding(principal=who, roles=roles, tenants=tenants)


def budget(name: str) -> pb.Budget:
    return pb.Budget(tenant=name, daily_microusd=9)


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def mesh(tmp_path: Path, store: MemoryStore) -> AsyncIterator[Peers]:
    async with peers(tmp_path, store, *PEOPLE.values(), *NOBODIES, "operator:tom") as made:
        yield made


def calls_of(client: Client, why: pb.ChangeOptions) -> dict[str, Awaitable[Any]]:
    """Every call that there is, once."""
    return {
        "Get": client.get("Tenant/acme"),
        "List": client.names("Tenant"),
        "Apply": client.apply(tenant("evil"), dry_run=True),
        "Delete": client.delete("Tenant/acme", dry_run=True),
        "Watch": client.Watch(pb.WatchRequest(kinds=["RoleBinding", "Spend"])).read(),
        "History": client.newest(),
        "Diff": client.Diff(pb.DiffRequest(from_revision=1)),
        "WhoAmI": client.WhoAmI(pb.WhoAmIRequest()),
        "Rollback": client.Rollback(pb.RollbackRequest(to_revision=1, change=why)),
        "CreateKey": client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"], change=why)),
        "RevokeKey": client.RevokeKey(pb.RevokeKeyRequest(key_id="k", change=why)),
        "SteerRollout": client.SteerRollout(pb.SteerRolloutRequest(alias="a", change=why)),
    }


async def allowed(call: Awaitable[Any]) -> bool:
    """Whether it was not for want of a right that it was refused."""
    try:
        await call
    except WeirError as error:
        return error.reason not in DENIED
    return True


async def test_a3_who_is_bound_to_nothing_may_nothing(mesh: Peers) -> None:
    """Any certificate of the mesh, that of the health probe and of an unknown person included, and whatever identity it
    claims in metadata: that is believed of Envoy alone."""
    await (await mesh.client(OWNER)).apply(tenant(), bound(OWNER, "owner"), bound("oidc:corp/boss", "owner"))
    why = pb.ChangeOptions(dry_run=True, reason="r")
    names = pb.DESCRIPTOR.services_by_name["RegistryService"].methods_by_name
    for name in NOBODIES:
        for metadata in ((), ADMIN, (("x-weir-key-id", "jwt-5f"), *ADMIN[:1])):
            if name == "envoy" and metadata == ADMIN:
                assert await allowed((await mesh.client(name, *metadata)).names("Tenant"))
                continue
            calls = calls_of(await mesh.client(name, *metadata), why)
            assert set(calls) == set(names)
            for call, made in calls.items():
                assert not await allowed(made), (name, call, metadata)
    # Of a person with a token the scope says nothing: only its binding does.
    other = (ADMIN[0], ("x-weir-key-id", "oidc:corp/other"))
    assert not await allowed((await mesh.client("envoy", *other)).names("Tenant"))


async def test_a3_every_role_does_what_the_table_says_and_nothing_else(mesh: Peers, store: MemoryStore) -> None:
    """Role × kind × {read, change, delete}, each cell over mTLS."""
    await put(store, *observed())
    owner = await mesh.client(OWNER)
    # Bindings first: the fresh mesh's owner is one by its settings until there is one.
    await owner.apply(*(bound(who, role) for role, who in PEOPLE.items()))
    await owner.apply(*applied())
    one_of_each = {BY_MESSAGE[type(each)].name: each for each in (*applied(), *observed(), pb.ApiKey(id="kk"))}
    one_of_each["TrustPolicy"] = pb.TrustPolicy(namespace="x")
    assert one_of_each.keys() == BY_NAME.keys()
    for role, who in PEOPLE.items():
        client = await mesh.client(who)
        for kind in KINDS:
            may = kind.name in CHANGES[role]
            message, name = one_of_each[kind.name], kind.name_of(one_of_each[kind.name])
            assert await allowed(client.names(kind.name)), (role, kind.name)
            assert await allowed(client.Watch(pb.WatchRequest(kinds=[kind.name])).read()), (role, kind.name)
            assert await allowed(client.apply(_copy(message), dry_run=True)) == may, (role, kind.name)
            assert await allowed(client.delete(f"{kind.name}/{name}", dry_run=True)) == may, (role, kind.name)
            secrets = pb.ListRequest(kinds=[kind.name], secrets=True)
            assert await allowed(client.List(secrets)) == (role == "owner")
        keys = pb.CreateKeyRequest(tenant="acme", scopes=["inference"], change=pb.ChangeOptions(dry_run=True))
        assert await allowed(client.CreateKey(keys)) == (role in ("operator", "owner"))
        steered = pb.SteerRolloutRequest(alias="none", change=pb.ChangeOptions(dry_run=True, reason="r"))
        assert await allowed(client.SteerRollout(steered)) == (role in ("releaser", "owner"))
        back = pb.RollbackRequest(to_revision=1, change=pb.ChangeOptions(dry_run=True, reason="r"))
        assert await allowed(client.Rollback(back)) == (role == "owner")
        assert (await client.WhoAmI(pb.WhoAmIRequest())).roles == [role]


def _copy(message: Message) -> Message:
    made = type(message)()
    made.CopyFrom(message)
    return made


async def test_a3_what_clients_the_control_plane_has_is_told_to_operators_alone(tmp_path: Path) -> None:
    """It was told to every certificate of the mesh, those of tenants' workloads included."""
    store = MemoryStore()
    await put(store, bound("operator:tom", "viewer"), bound("operator:kept", "viewer", tenants=("acme",)))
    tls = certificates(tmp_path, "controlplane", "operator:tom", "operator:kept", *NOBODIES)
    async with control_plane(store=store, tls=tls["controlplane"]) as plane, asyncio.timeout(60):
        published, changed = plane.control.publisher, asyncio.Event()
        with published.subscribed(changed):
            while not published.current.revision:
                await changed.wait()
                changed.clear()
        for who in ("operator:tom", "operator:kept", *NOBODIES):
            name = "controlplane.weir.internal"
            async with make_channel(plane.address, tls=tls[who], server_name=name, translate_errors=True) as channel:
                fetch = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel).FetchClientStatus
                call = fetch(csds_pb2.ClientStatusRequest(), timeout=10)
                assert await allowed(call) == (who == "operator:tom"), who


async def test_a3_history_names_the_person(mesh: Peers) -> None:
    owner, jane = await mesh.client(OWNER), await mesh.client("operator:operator")
    await owner.apply(bound("operator:operator", "operator"), bound(OWNER, "owner"))
    await jane.apply(tenant())
    assert (await jane.newest()).actor == "operator:operator"
    assert (await jane.WhoAmI(pb.WhoAmIRequest())).principal == "operator:operator"


async def test_a3_a_revoked_person_is_refused_at_once_and_its_watches_end(mesh: Peers) -> None:
    owner, tom = await mesh.client(OWNER), await mesh.client("operator:tom")
    await owner.apply(bound(OWNER, "owner"), bound("operator:tom", "operator"), tenant())
    watch = tom.Watch(pb.WatchRequest(kinds=["Tenant"]))
    assert [each.metadata.name for each in (await watch.read()).resources] == ["acme"]
    await owner.delete("RoleBinding/operator:tom")
    assert (await refused(tom.names("Tenant"))).reason is Reason.SCOPE_MISSING
    assert (await refused(tom.apply(tenant("mine")))).reason is Reason.SCOPE_MISSING
    await owner.apply(tenant("globex"))
    assert (await refused(silent(watch))).reason is Reason.SCOPE_MISSING


async def silent(watch: Any) -> None:
    """Reads a watch to its end; nothing more is told on it."""
    async with asyncio.timeout(20):
        while (message := await watch.read()) is not grpc.aio.EOF:
            assert not message.resources


async def test_a3_a_watch_ends_when_what_may_be_seen_becomes_less(mesh: Peers) -> None:
    owner, tom = await mesh.client(OWNER), await mesh.client("operator:tom")
    await owner.apply(bound(OWNER, "owner"), bound("operator:tom", "viewer"), tenant(), tenant("globex"))
    watch = tom.Watch(pb.WatchRequest(kinds=["Tenant"]))
    assert len((await watch.read()).resources) == 2
    await owner.apply(bound("operator:tom", "viewer", tenants=("acme",)))
    await owner.apply(tenant("globex", weight=5.0))
    assert (await refused(silent(watch))).reason is Reason.PERMISSION_DENIED


async def test_a3_the_last_owner_stays_and_settings_name_none_beside_it(mesh: Peers) -> None:
    owner, other = await mesh.client(OWNER), await mesh.client("operator:viewer")
    await owner.apply(bound("operator:viewer", "owner"))
    # There is an owner now, and it is not the one of the settings.
    assert (await refused(owner.names("Tenant"))).reason is Reason.SCOPE_MISSING
    for call in (
        other.delete("RoleBinding/operator:viewer"),
        other.apply(bound("operator:viewer", "viewer")),
        other.apply(bound("operator:viewer")),
    ):
        assert (await refused(call)).reason is Reason.CONFLICT
    await other.apply(bound(OWNER, "owner"))
    await other.delete("RoleBinding/operator:viewer")
    assert await owner.names("RoleBinding") == [OWNER]


async def kept_to_acme(mesh: Peers, *roles: str) -> tuple[Client, Client]:
    """An owner, and tom, who is kept to one of two tenants that have something of everything."""
    owner, tom = await mesh.client(OWNER), await mesh.client("operator:tom")
    await owner.apply(bound(OWNER, "owner"), tenant("acme"), tenant("globex"), model(), alias())
    for name in ("acme", "globex"):
        await owner.apply(
            pb.Limits(tenant=name, model="*", requests_per_minute=3), pb.Budget(tenant=name, daily_microusd=9)
        )
        await owner.CreateKey(pb.CreateKeyRequest(tenant=name, scopes=["inference"]))
    await owner.apply(bound("operator:tom", *roles, tenants=("acme",)))
    return owner, tom


async def test_a3_to_whom_is_kept_to_a_tenant_no_other_exists(mesh: Peers) -> None:
    owner, tom = await kept_to_acme(mesh, "operator", "auditor")
    keys = {each.key.tenant: each.metadata.name for each in await owner.listed("ApiKey")}
    seen = await tom.listed()
    assert {f"{each.metadata.name}" for each in seen} == {"acme", "acme/*", keys["acme"]}
    watch = await tom.Watch(pb.WatchRequest(kinds=["Tenant", "Limits", "Budget", "ApiKey", "Alias"])).read()
    assert len(watch.resources) == 4
    told = str(await tom.History(pb.HistoryRequest())) + str(await tom.Diff(pb.DiffRequest(from_revision=2)))
    assert "acme" in told
    for hidden in ("globex", "weir-fast", "roles/", keys["globex"]):
        assert hidden not in told, hidden
    for there, absent in (
        ("Tenant/globex", "Tenant/nobody"),
        ("Limits/globex/*", "Limits/nobody/*"),
        (f"ApiKey/{keys['globex']}", "ApiKey/nobody"),
        ("Alias/weir-fast", "Alias/nobody"),
        (f"RoleBinding/{OWNER}", "RoleBinding/operator:nobody"),
    ):
        for act in (tom.get, tom.delete):
            one, other = await refused(act(there)), await refused(act(absent))
            assert _same(one, other, there, absent), (act, one, other)


async def test_a3_what_is_refused_of_another_tenant_does_not_tell_that_it_is_there(mesh: Peers) -> None:
    owner, tom = await kept_to_acme(mesh, "operator")
    keys = {each.key.tenant: each.metadata.name for each in await owner.listed("ApiKey")}

    def key(name: str) -> Awaitable[Any]:
        return tom.CreateKey(pb.CreateKeyRequest(tenant=name, scopes=["inference"]))

    def fresh(name: str) -> pb.Resource:
        return pb.Resource(metadata=pb.Metadata(name=name, revision=-1), tenant=pb.Tenant(plan=pb.PLAN_PAID))

    for there, absent in (
        (key("globex"), key("nobody")),
        (tom.apply(tenant("globex")), tom.apply(tenant("nobody"))),
        (tom.apply(fresh("globex")), tom.apply(fresh("nobody"))),
        (
            tom.apply(budget("globex")),
            tom.apply(budget("nobody")),
        ),
    ):
        one, other = await refused(there), await refused(absent)
        assert one.reason is Reason.PERMISSION_DENIED
        assert _same(one, other, "globex", "nobody"), (one, other)
    revoke = [tom.RevokeKey(pb.RevokeKeyRequest(key_id=each)) for each in (keys["globex"], "nobody")]
    one, other = [await refused(each) for each in revoke]
    assert (one.reason, one.message) == (other.reason, other.message)
    # What is the whole mesh's is nobody's who is kept to a tenant.
    for message in (pb.PlanPolicy(id="gold"), pb.Price(model="*"), pb.RolloutSwitch(kill=True, reason="r")):
        assert (await refused(tom.apply(message))).limit == "tenant"
    await tom.apply(tenant("acme", weight=2.0), pb.Limits(tenant="acme", model="*", requests_per_minute=9))
    await tom.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    await tom.RevokeKey(pb.RevokeKeyRequest(key_id=keys["acme"]))
    assert not (await owner.read("ApiKey/" + keys["globex"])).HasField("revoked_at")


async def test_a3_who_is_kept_to_a_tenant_does_not_say_who_acts_as_it(mesh: Peers) -> None:
    """Else it shuts out another tenant by naming its issuer, and hears whose a workload is."""
    owner, tom = await kept_to_acme(mesh, "operator")
    issuer, workload = "https://idp.globex.example", "spiffe://weir.internal/sa/globex-batch"
    own = {"jwt_issuer": "https://idp.acme.example", "workloads": ["spiffe://weir.internal/sa/acme-batch"]}
    await owner.apply(tenant("globex", jwt_issuer=issuer, workloads=[workload]), tenant("acme", **own))
    for claimed in (
        {**own, "jwt_issuer": issuer},
        {**own, "workloads": [workload]},
        {**own, "workloads": [*own["workloads"], "spiffe://weir.internal/sa/nobodys"]},
        {},
    ):
        error = await refused(tom.apply(tenant("acme", **claimed)))
        assert (error.reason, error.limit) == (Reason.PERMISSION_DENIED, "tenant")
        assert "globex" not in str(error)
    await tom.apply(tenant("acme", weight=2.0, **own))
    assert (await owner.read("Tenant/acme")).weight == 2.0


async def test_a3_pruning_leaves_what_is_not_the_callers(mesh: Peers) -> None:
    owner, tom = await kept_to_acme(mesh, "operator")
    await owner.apply(tenant("acme"), tenant("globex"), pb.Limits(tenant="acme", model="*"), owner="dir")
    await tom.apply(tenant("acme"), owner="dir", prune=True)
    assert sorted(await owner.names("Tenant")) == ["acme", "globex"]
    assert await owner.names("Limits") == ["globex/*"]


def _same(one: WeirError, other: WeirError, there: str, absent: str) -> bool:
    """Whether two refusals differ in nothing but the name that was asked for."""
    name, none = there.partition("/")[2] or there, absent.partition("/")[2] or absent
    return (one.reason, one.message.replace(name, "N")) == (other.reason, other.message.replace(none, "N"))
