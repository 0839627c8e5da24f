"""Who may do what with the registry: scopes, roles, namespaces, and that no call is forgotten."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.changes import delete, put
from libs.registry import KeyValue, RegistrySnapshot, keys, snapshot_of
from services.registry.consistency import namespaces_of
from services.registry.policy.access import (
    ALLOWED,
    Binding,
    Caller,
    Grant,
    Refused,
    Role,
    authorize,
    binding_of,
    check_binding,
    check_namespaces,
    parse_scopes,
)
from services.registry.reads import READS
from services.registry.rpcs import CHANGES
from services.registry.server import RegistryServicer

RPCS = pb.DESCRIPTOR.services_by_name["RegistryService"].methods_by_name
WRITES = ("Set", "Create", "Delete", "Start", "Steer", "Abort", "Revoke", "Rollback", "Import")


def caller(**changes: Any) -> Caller:
    return dataclasses.replace(Caller("envoy", "spiffe://weir.internal/sa/envoy", frozenset(), "", ""), **changes)


def asked(rpc: str, who: Caller, bindings: dict[str, Binding] | None = None) -> Grant | Refused:
    return authorize(rpc, who, bindings=bindings or {}, admin_services=("cli",), tls=True)


@pytest.mark.parametrize(
    ("who", "actor"),
    [
        (caller(scopes=frozenset({"admin"}), key_id="k1", tenant="ops"), "key:k1"),
        (caller(scopes=frozenset({"admin"}), tenant="ops"), "tenant:ops"),
        (caller(peer="cli", spiffe="spiffe://weir.internal/sa/cli"), "spiffe://weir.internal/sa/cli"),
    ],
)
@pytest.mark.parametrize("rpc", ["SetTenant", "ListKeys", "SetRoleBinding", "Export"])
def test_scope_and_certificate_are_owners(who: Caller, actor: str, rpc: str) -> None:
    assert asked(rpc, who) == Grant(actor, frozenset({Role.OWNER}))


@pytest.mark.parametrize(
    ("who", "scope_missing"),
    [
        (caller(scopes=frozenset({"inference", "models.read"}), key_id="k1"), True),
        (caller(), True),
        # Identity metadata counts from Envoy alone: anybody else could have written it.
        (caller(peer="gateway", scopes=frozenset({"admin"}), key_id="k1"), False),
        (caller(peer="", spiffe="", scopes=frozenset({"admin"})), False),
        (caller(peer="worker"), False),
    ],
)
def test_others_are_refused(who: Caller, scope_missing: bool) -> None:
    refused = asked("ListModels", who, {"key:other": Binding(frozenset({Role.OWNER}), frozenset())})
    assert isinstance(refused, Refused)
    assert refused.scope_missing is scope_missing


def test_every_call_has_its_roles_and_its_method() -> None:
    assert set(ALLOWED) == set(RPCS)
    for name in RPCS:
        assert Role.OWNER in ALLOWED[name], name
        assert getattr(RegistryServicer, name) is not getattr(registry_pb2_grpc.RegistryServiceServicer, name), name
    assert not set(READS) & set(CHANGES)


def test_viewers_only_read_and_everybody_may_view() -> None:
    for name, roles in ALLOWED.items():
        assert (Role.VIEWER in roles) == (not name.startswith(WRITES) and name != "Export"), name
        if Role.VIEWER in roles:
            assert roles == frozenset(Role), name


def test_every_change_says_why_and_can_be_tried() -> None:
    for name, method in RPCS.items():
        if name.startswith(WRITES):
            field = method.input_type.fields_by_name["change"]
            assert field.message_type.full_name == "weir.registry.v1.ChangeOptions", name


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("viewer", {"ListKeys", "DiffRevisions"}, {"SetPin", "Export"}),
        ("publisher", {"CreateModelVersion", "SetPin", "ListModels"}, {"SetAlias", "SetTrustPolicy"}),
        ("releaser", {"SetAlias", "StartRollout", "SetRolloutSwitch"}, {"CreateModelVersion", "SetTenant"}),
        ("operator", {"SetTenant", "CreateKey", "SetRolloutSwitch"}, {"SetAlias", "SetRoleBinding", "Import"}),
        ("owner", set(RPCS), set()),
    ],
)
def test_roles(role: str, may: set[str], may_not: set[str]) -> None:
    bindings = {"key:k1": binding_of([role], [])}
    who = caller(key_id="k1", tenant="ops")
    for rpc in may:
        assert isinstance(asked(rpc, who, bindings), Grant), rpc
    for rpc in may_not:
        refused = asked(rpc, who, bindings)
        assert isinstance(refused, Refused), rpc
        assert rpc in refused.message
        assert role in refused.message


def test_a_binding_counts_for_one_identity() -> None:
    bindings = {
        "tenant:ops": binding_of(["owner"], []),
        "spiffe://weir.internal/sa/rollout": binding_of(["viewer"], []),
    }
    assert isinstance(asked("SetTenant", caller(tenant="ops"), bindings), Grant)
    # A key of the tenant is somebody else: whoever makes keys would otherwise be whoever the tenant is.
    assert isinstance(asked("SetTenant", caller(key_id="k1", tenant="ops"), bindings), Refused)
    # A token's subject goes by a pseudonym; its own binding counts before the tenant's.
    token = caller(key_id="jwt-5f", tenant="ops")
    allowed = asked("SetTenant", token, bindings)
    assert isinstance(allowed, Grant)
    assert allowed.actor == "key:jwt-5f"
    assert isinstance(asked("SetTenant", token, {**bindings, "key:jwt-5f": binding_of(["viewer"], [])}), Refused)
    service = caller(peer="rollout", spiffe="spiffe://weir.internal/sa/rollout", tenant="ops")
    assert isinstance(asked("ListModels", service, bindings), Grant)
    assert isinstance(asked("SetTenant", service, bindings), Refused)


def test_roles_of_a_later_version_count_nothing() -> None:
    assert binding_of(["auditor"], []).roles == frozenset()
    assert isinstance(asked("ListModels", caller(key_id="k1"), {"key:k1": binding_of(["auditor"], [])}), Refused)
    assert isinstance(asked("MadeUp", caller(scopes=frozenset({"admin"}), key_id="k1")), Refused)


def test_without_tls_everybody_owns() -> None:
    grant = authorize("Import", caller(peer="", spiffe=""), bindings={}, admin_services=(), tls=False)
    assert grant == Grant("insecure", frozenset({Role.OWNER}))


@pytest.mark.parametrize(
    ("principal", "roles", "namespaces", "field"),
    [
        ("key:k1", ["viewer", "publisher"], ["team-a"], None),
        ("tenant:acme", [], [], None),
        ("spiffe://weir.internal/sa/rollout", ["viewer"], [], None),
        ("spiffe://elsewhere/sa/rollout", ["viewer"], [], "binding.principal"),
        ("k1", ["viewer"], [], "binding.principal"),
        ("key:", ["viewer"], [], "binding.principal"),
        ("key:k1", ["root"], [], "binding.roles[0]"),
        ("key:k1", ["viewer", "viewer"], [], "binding.roles"),
        ("key:k1", ["viewer"], ["No!"], "binding.namespaces[0]"),
        ("key:k1", ["viewer"], ["a"] * 101, "binding.namespaces"),
        ("key:k1", ["owner"], ["team-a"], "binding.namespaces"),
    ],
)
def test_bindings(principal: str, roles: list[str], namespaces: list[str], field: str | None) -> None:
    fault = check_binding(principal, roles, namespaces)
    assert (fault.field if fault else None) == field


def test_namespaces_bound_what_is_changed() -> None:
    grant = Grant("key:k1", frozenset({Role.RELEASER}), frozenset({"team-a"}))
    assert check_namespaces(grant, {"team-a"}) == ""
    assert check_namespaces(grant, set()) == ""
    assert "team-b" in check_namespaces(grant, {"team-a", "team-b"})
    assert check_namespaces(dataclasses.replace(grant, namespaces=frozenset()), {"team-b"}) == ""
    assert check_namespaces(dataclasses.replace(grant, roles=frozenset({Role.OWNER})), {"team-b"}) == ""


def snapshot(*messages: Any) -> RegistrySnapshot:
    return snapshot_of([KeyValue(keys.key_of(message), keys.encode(message), 1) for message in messages], 1)


def test_a_change_touches_the_namespaces_of_before_and_after() -> None:
    mine = pb.ModelVersion(name="m", version="1", namespace="team-a")
    theirs = pb.ModelVersion(name="m", version="2", namespace="team-b")
    plain = pb.ModelVersion(name="p", version="1")
    alias = pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@1", weight=100)])
    rollout = pb.Rollout(alias="m", baseline="m@1", arms=[pb.RolloutArm(name="canary", model_version="m@2")])
    held = snapshot(mine, theirs, plain, alias, rollout, pb.Pin(model_version="m@2", reason="r"))

    def touched(*writes: Any) -> set[str]:
        return set(namespaces_of(held, writes))

    moved = pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@2", weight=100)])
    assert touched(put(alias)) == {"team-a"}
    assert touched(put(moved)) == {"team-a", "team-b"}
    assert touched(delete(pb.Pin(model_version="m@2"))) == {"team-b"}
    assert touched(put(pb.Pin(model_version="p@1"))) == {"default"}
    assert touched(delete(theirs)) == {"team-b"}
    assert touched(put(pb.ModelVersion(name="n", version="1", namespace="team-c"))) == {"team-c"}
    assert touched(delete(rollout)) == {"team-a", "team-b"}
    assert touched(put(pb.Tenant(id="acme"))) == set()


def test_scopes() -> None:
    assert parse_scopes("") == frozenset()
    assert parse_scopes("admin inference,models.read") == {"admin", "inference", "models.read"}
    assert "admin" not in parse_scopes("administrator")
