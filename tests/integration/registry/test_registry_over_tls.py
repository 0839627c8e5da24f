"""Who may do what, over real certificates: the edge's callers by their roles, services by their rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.auditlog.security import Kind, Sight
from libs.auditlog.watch import SecurityWatch
from libs.errors import Reason, WeirError
from libs.registry import KeyValue, MemoryStore, Put, keys
from libs.resources.kinds import KINDS
from tests.support.registry_service import (
    OWNER,
    Client,
    Peers,
    alias,
    model,
    peers,
    put,
    refused,
    snapshot_in,
    tenant,
)
from tests.support.world import applied, observed

FOLLOWERS = sorted({name for kind in KINDS for name in kind.followers})
SPIFFE = "spiffe://weir.internal/sa/"
ADMIN = (("x-weir-scopes", "admin inference"), ("x-weir-key-id", "k0"), ("x-weir-tenant", "ops"))
KEY = (("x-weir-key-id", "k1"), ("x-weir-scopes", "inference"), ("x-weir-tenant", "acme"))


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def mesh(tmp_path: Path, store: MemoryStore) -> AsyncIterator[Peers]:
    async with peers(tmp_path, store, OWNER, "envoy", "rollout", *FOLLOWERS) as made:
        yield made


def binding(principal: str, *roles: str, namespaces: tuple[str, ...] = ()) -> pb.RoleBinding:
    return pb.RoleBinding(principal=principal, roles=roles, namespaces=namespaces)


async def test_b5_refused_administrative_calls_are_counted_for_the_audit_log(
    tmp_path: Path, store: MemoryStore, mesh: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Sight] = []
    monkeypatch.setattr(SecurityWatch, "note", lambda _, sight: seen.append(sight))
    client = await mesh.client("envoy", *KEY)
    for _ in range(2):
        await refused(client.apply(tenant("a word of a user")))
    await refused((await mesh.client("gateway")).CreateKey(pb.CreateKeyRequest(tenant="acme")))
    told = [(each.kind, each.reason, each.actor, each.action) for each in seen]
    by_key = (Kind.ADMIN_REFUSED, "scope_missing", "key:k1", "registry.Apply")
    assert told == [by_key, by_key, (Kind.ADMIN_REFUSED, "permission_denied", f"{SPIFFE}gateway", "registry.CreateKey")]


async def test_scopes_and_certificates(mesh: Peers) -> None:
    await (await mesh.client(OWNER)).apply(tenant("acme"))
    await (await mesh.client("envoy", *ADMIN)).apply(tenant("globex"))
    for peer, metadata, reason in (
        ("envoy", KEY, Reason.SCOPE_MISSING),
        ("envoy", (), Reason.SCOPE_MISSING),
        # Identity metadata counts from Envoy alone.
        ("gateway", ADMIN, Reason.PERMISSION_DENIED),
    ):
        client = await mesh.client(peer, *metadata)
        why = pb.ChangeOptions(reason="r")
        calls = [
            client.apply(tenant("evil")),
            client.delete("Tenant/acme"),
            client.get("Tenant/acme"),
            client.names("ApiKey"),
            client.names("PoolLevel"),
            client.newest(),
            client.Diff(pb.DiffRequest(from_revision=1)),
            client.Rollback(pb.RollbackRequest(to_revision=1, change=why)),
            client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"])),
            client.RevokeKey(pb.RevokeKeyRequest(key_id="k")),
            client.SteerRollout(pb.SteerRolloutRequest(alias="a", change=why)),
            client.Watch(pb.WatchRequest(kinds=["Tenant", "RoleBinding", "Spend"])).read(),
        ]
        assert {(await refused(call)).reason for call in calls} == {reason}


async def test_roles_over_the_edge(mesh: Peers) -> None:
    owner, key = await mesh.client(OWNER), await mesh.client("envoy", *KEY)
    versions = [model(version=each) for each in "123"]
    await owner.apply(tenant("acme"), *versions, alias("weir-fast@2"))
    assert (await refused(key.names("ModelVersion"))).reason is Reason.SCOPE_MISSING

    await owner.apply(binding("key:k1", "operator"))
    await key.apply(pb.Limits(tenant="acme", model="*", requests_per_minute=3))
    assert (await key.newest()).actor == "key:k1"
    error = await refused(key.apply(alias("weir-fast@3")))
    assert (error.reason, "releaser" in error.message) == (Reason.SCOPE_MISSING, True)
    # One that it may not change makes it all something that it may not.
    assert (await refused(key.apply(tenant("b"), alias("weir-fast@3")))).reason is Reason.SCOPE_MISSING
    assert (await refused(key.delete("Tenant/acme", "Alias/weir-fast"))).reason is Reason.SCOPE_MISSING
    admin = pb.CreateKeyRequest(tenant="acme", scopes=["admin"])
    assert (await refused(key.CreateKey(admin))).reason is Reason.SCOPE_MISSING
    await owner.CreateKey(admin)
    await key.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    await owner.apply(binding("key:k1", "operator", "releaser"))
    await key.apply(tenant("both"), alias("weir-fast@3"))
    await owner.apply(binding("key:k1", "viewer"))
    assert await key.names("RoleBinding") == ["key:k1"]
    assert (await refused(key.apply(binding("key:k1", "owner")))).reason is Reason.SCOPE_MISSING
    await owner.delete("RoleBinding/key:k1")
    assert (await refused(key.names("ModelVersion"))).reason is Reason.SCOPE_MISSING
    gateway = await mesh.client("gateway")
    assert (await refused(gateway.names("ModelVersion"))).reason is Reason.PERMISSION_DENIED
    await owner.apply(binding(f"{SPIFFE}gateway", "viewer"))
    assert await gateway.names("ModelVersion")


async def test_namespaces_bound_what_is_changed(mesh: Peers) -> None:
    owner, key = await mesh.client(OWNER), await mesh.client("envoy", *KEY)
    versions = [model("plain"), *(model(version=each, namespace="team-a") for each in ("2", "3"))]
    await owner.apply(*versions, alias("weir-fast@2"))
    await owner.apply(binding("key:k1", "releaser", "publisher", namespaces=("team-a",)))
    await key.apply(alias("weir-fast@3"))
    foreign = alias("plain@1", name="mine")
    for call in (
        key.apply(alias("plain@1", name="plain")),
        key.apply(alias("plain@1", name="plain"), dry_run=True),
        key.apply(alias("weir-fast@3", name="fine"), foreign),
        key.apply(model("plain", version="4")),
        key.apply(pb.Pin(model_version="plain@1", reason="r")),
        key.delete("ModelVersion/plain@1"),
    ):
        error = await refused(call)
        assert (error.reason, error.limit) == (Reason.PERMISSION_DENIED, "namespace")
        assert "'default'" in error.message
    # A new version and its alias in one: the namespace is the new version's.
    stranger = model("other", namespace="team-b")
    assert (await refused(key.apply(stranger, alias("other@1", name="other")))).limit == "namespace"
    await key.apply(model("own", namespace="team-a"), alias("own@1", name="own"))
    await owner.apply(foreign, owner="dir")
    # What is pruned is changed, too.
    assert (await refused(key.apply(alias("own@1", name="own"), owner="dir", prune=True))).limit == "namespace"


async def test_pruning_needs_the_right_to_delete_each(mesh: Peers) -> None:
    owner, key = await mesh.client(OWNER), await mesh.client("envoy", *KEY)
    await owner.apply(tenant("theirs"), model(), alias(), owner="dir")
    await owner.apply(binding("key:k1", "releaser"))
    error = await refused(key.apply(alias(), owner="dir", prune=True))
    assert (error.reason, error.limit) == (Reason.SCOPE_MISSING, "prune")
    assert "tenants/theirs" in error.message or "models/weir-fast@1" in error.message
    await owner.apply(binding("key:k1", "viewer"))
    assert (await refused(key.apply(owner="dir", prune=True))).limit == "prune"
    assert await key.names("Tenant") == ["theirs"]
    await owner.apply(binding("key:k1", "releaser", "operator", "publisher"))
    await key.apply(owner="dir", prune=True)
    assert await key.names("Tenant") == []


async def test_secrets_are_for_owners_who_save_and_for_those_who_check_keys(mesh: Peers) -> None:
    owner, key = await mesh.client(OWNER), await mesh.client("envoy", *KEY)
    await owner.apply(tenant(), binding("key:k1", "viewer", "operator", "releaser", "publisher"))
    made = await owner.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    name = f"ApiKey/{made.key.metadata.name}"
    for client in (owner, key):
        assert not (await client.get(name)).key.hash
        assert not (await client.listed("ApiKey"))[0].key.hash
        assert not (await client.Watch(pb.WatchRequest(kinds=["ApiKey"])).read()).resources[0].key.hash
    [saved] = await owner.listed("ApiKey", secrets=True)
    assert len(saved.key.hash) == 32
    for call in (
        key.listed("ApiKey", secrets=True),
        key.listed(secrets=True),
        key.apply(saved, restore=True),
        (await mesh.client("edge-auth")).listed("ApiKey", secrets=True),
    ):
        assert (await refused(call)).reason in (Reason.SCOPE_MISSING, Reason.PERMISSION_DENIED)
    assert saved.key.hash.hex() not in str(await owner.History(pb.HistoryRequest()))
    watch = (await mesh.client("edge-auth")).Watch(pb.WatchRequest(kinds=["ApiKey"]))
    assert (await watch.read()).resources[0].key.hash == saved.key.hash
    await owner.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    assert len((await watch.read()).resources[0].key.hash) == 32


async def first(client: Client, *kinds: str) -> pb.WatchResponse | WeirError:
    stream = client.Watch(pb.WatchRequest(kinds=kinds))
    try:
        answer: pb.WatchResponse = await stream.read()
    except WeirError as error:
        return error
    finally:
        stream.cancel()
    assert answer is not grpc.aio.EOF
    return answer


async def test_every_service_follows_its_kinds_and_no_other(mesh: Peers, store: MemoryStore) -> None:
    await put(store, *observed())
    owner = await mesh.client(OWNER)
    await owner.apply(*applied(), pb.TrustPolicy(namespace="x", keys=[trusted()]))
    await owner.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    parts = {kind.name: kind.part for kind in KINDS}
    for service in (*FOLLOWERS, "rollout"):
        client = await mesh.client(service)
        for kind in KINDS:
            answer = await first(client, kind.name)
            if service in kind.followers:
                assert isinstance(answer, pb.WatchResponse), (service, kind.name)
                told = {each.WhichOneof("spec") or each.WhichOneof("status") for each in answer.resources}
                assert told == {parts[kind.name]}, (service, kind.name)
            else:
                assert isinstance(answer, WeirError), (service, kind.name)
                assert answer.reason is Reason.PERMISSION_DENIED
        followed = [kind for kind in KINDS if service in kind.followers]
        # All that it may follow, when it names none.
        answer = await first(client)
        if followed:
            assert isinstance(answer, pb.WatchResponse)
            told = {each.WhichOneof("spec") or each.WhichOneof("status") for each in answer.resources}
            assert told == {kind.part for kind in followed}
        else:
            assert isinstance(answer, WeirError)
        assert (await refused(client.names("Tenant"))).reason is Reason.PERMISSION_DENIED


def trusted() -> pb.TrustedKey:
    from libs.artifacts import make_key

    return make_key().trusted()


class Interrupted(MemoryStore):
    """Lets something happen between a change's beginning and its plan."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def get(self, key: str) -> KeyValue | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().get(key)


async def test_a_role_that_is_taken_away_meanwhile_counts_no_more(tmp_path: Path) -> None:
    store = Interrupted()
    async with peers(tmp_path, store, OWNER, "gateway") as mesh:
        owner, gateway = await mesh.client(OWNER), await mesh.client("gateway")
        role = binding(f"{SPIFFE}gateway", "operator")
        await owner.apply(role)
        await gateway.apply(tenant("acme"))

        async def taken_away() -> None:
            await store.txn(puts=[Put(keys.FENCE, b"another replica's")], deletes=[keys.key_of(role)])

        store.meanwhile = taken_away
        assert (await refused(gateway.apply(tenant("globex")))).reason is Reason.PERMISSION_DENIED
        assert set((await snapshot_in(store)).tenants) == {"acme"}
