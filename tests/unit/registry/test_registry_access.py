"""Who may do what with the registry: scopes, roles, kinds, namespaces, and that no call is forgotten."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.changes import Write, put
from libs.registry import KeyValue, RegistrySnapshot, keys, snapshot_of
from libs.resources.codec import key_of
from libs.resources.kind import Kind, Role
from libs.resources.snapshot import BY_NAME, KINDS
from services.registry.policy.access import (
    CHANGES,
    READS,
    WHOLE,
    Binding,
    Caller,
    Grant,
    Refused,
    authorize,
    binding_of,
    check_namespaces,
    enough_for,
    may_change,
    parse_scopes,
)
from services.registry.server import RegistryServicer
from services.registry.touched import namespaces_of

RPCS = pb.DESCRIPTOR.services_by_name["RegistryService"].methods_by_name
SERVICES = ("gateway", "router", "edge-auth", "ratelimit", "admission", "safety", "worker", "audit", "rollout", "envoy")


def caller(**changes: Any) -> Caller:
    return dataclasses.replace(Caller("envoy", "spiffe://weir.internal/sa/envoy", frozenset(), "", ""), **changes)


def service(name: str) -> Caller:
    return caller(peer=name, spiffe=f"spiffe://weir.internal/sa/{name}")


def asked(rpc: str, who: Caller, bindings: dict[str, Binding] | None = None, *kinds: str, **more: Any) -> Any:
    return authorize(
        rpc,
        who,
        kinds=[BY_NAME[each] for each in kinds],
        bindings=bindings or {},
        admin_services=("cli",),
        tls=True,
        **more,
    )


@pytest.mark.parametrize(
    ("who", "actor"),
    [
        (caller(scopes=frozenset({"admin"}), key_id="k1", tenant="ops"), "key:k1"),
        (caller(scopes=frozenset({"admin"}), tenant="ops"), "tenant:ops"),
        (service("cli"), "spiffe://weir.internal/sa/cli"),
    ],
)
@pytest.mark.parametrize("rpc", ["Apply", "List", "Rollback", "Watch"])
def test_scope_and_certificate_are_owners(who: Caller, actor: str, rpc: str) -> None:
    assert asked(rpc, who, None, "RoleBinding", "ApiKey", secrets=True) == Grant(actor, frozenset({Role.OWNER}))


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
    refused = asked("List", who, {"key:other": Binding(frozenset({Role.OWNER}), frozenset())})
    assert isinstance(refused, Refused)
    assert refused.scope_missing is scope_missing


def test_every_call_has_its_roles_and_its_method() -> None:
    assert set(RPCS) == READS | WHOLE | CHANGES
    assert len(READS) + len(WHOLE) + len(CHANGES) == len(RPCS)
    for name in RPCS:
        assert Role.OWNER in enough_for(name), name
        assert getattr(RegistryServicer, name) is not getattr(registry_pb2_grpc.RegistryServiceServicer, name), name
    assert enough_for("MadeUp") == frozenset()


def test_every_change_says_why_and_can_be_tried_and_nothing_else_changes() -> None:
    for name, method in RPCS.items():
        field = method.input_type.fields_by_name.get("change")
        told = field.message_type.full_name if field is not None else ""
        assert (told == "weir.registry.v1.ChangeOptions") == (name in CHANGES | WHOLE), name


def test_viewers_only_read_and_everybody_may_view() -> None:
    for kind in KINDS:
        assert all(enough_for(rpc, kind) == frozenset(Role) for rpc in READS)
        assert Role.VIEWER not in enough_for("Apply", kind)
        assert enough_for("Delete", kind) == kind.change | {Role.OWNER}


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("viewer", "", "Pin Alias Tenant ApiKey RoleBinding TrustPolicy RolloutSwitch"),
        ("publisher", "ModelVersion Pin", "Alias TrustPolicy Tenant"),
        ("releaser", "Alias Rollout RolloutSwitch", "ModelVersion Tenant"),
        (
            "operator",
            "Tenant Limits PlanPolicy Slo Price Budget SafetyPolicy ApiKey RolloutSwitch",
            "Alias RoleBinding TrustPolicy",
        ),
        ("owner", " ".join(BY_NAME), ""),
    ],
)
def test_roles(role: str, may: str, may_not: str) -> None:
    bindings = {"key:k1": binding_of([role], [])}
    who = caller(key_id="k1", tenant="ops")
    for kind in may.split():
        assert isinstance(asked("Apply", who, bindings, kind), Grant), kind
    for kind in may_not.split():
        refused = asked("Apply", who, bindings, kind)
        assert isinstance(refused, Refused), kind
        for told in ("Apply", BY_NAME[kind].plural, role):
            assert told in refused.message
    for rpc in READS:
        assert isinstance(asked(rpc, who, bindings, "Tenant"), Grant)
    for whole in (asked("Rollback", who, bindings), asked("List", who, bindings, secrets=True)):
        assert isinstance(whole, Grant) == (role == "owner")


def test_of_several_kinds_each_needs_one_of_the_callers_roles() -> None:
    who = caller(key_id="k1", tenant="ops")
    both = {"key:k1": binding_of(["operator", "releaser"], [])}
    assert isinstance(asked("Apply", who, both, "Tenant", "Alias"), Grant)
    refused = asked("Apply", who, {"key:k1": binding_of(["operator"], [])}, "Tenant", "Alias")
    assert isinstance(refused, Refused)
    assert "releaser" in refused.message
    assert may_change(Grant("a", frozenset({Role.RELEASER})), BY_NAME["Alias"])
    assert not may_change(Grant("a", frozenset({Role.RELEASER})), BY_NAME["Tenant"])


@pytest.mark.parametrize("peer", SERVICES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_service_follows_exactly_what_its_row_says(kind: Kind, peer: str) -> None:
    grant = asked("Watch", service(peer), None, kind.name)
    assert isinstance(grant, Grant) == (peer in kind.followers)
    if isinstance(grant, Grant):
        assert grant == Grant(f"spiffe://weir.internal/sa/{peer}", frozenset(), trusted=peer)
    # To follow is not to read, and not to follow something else besides.
    assert isinstance(asked("List", service(peer), None, kind.name), Refused)
    others = [each.name for each in KINDS if peer not in each.followers]
    assert isinstance(asked("Watch", service(peer), None, kind.name, *others[:1]), Refused)
    assert isinstance(asked("Watch", service(peer)), Refused)


def test_a_binding_counts_for_one_identity() -> None:
    bindings = {
        "tenant:ops": binding_of(["owner"], []),
        "spiffe://weir.internal/sa/rollout": binding_of(["viewer"], []),
    }
    assert isinstance(asked("Apply", caller(tenant="ops"), bindings, "Tenant"), Grant)
    # A key of the tenant is somebody else: whoever makes keys would otherwise be whoever the tenant is.
    assert isinstance(asked("Apply", caller(key_id="k1", tenant="ops"), bindings, "Tenant"), Refused)
    # A token's subject goes by a pseudonym; its own binding counts before the tenant's.
    token = caller(key_id="jwt-5f", tenant="ops")
    allowed = asked("Apply", token, bindings, "Tenant")
    assert isinstance(allowed, Grant)
    assert allowed.actor == "key:jwt-5f"
    own = {**bindings, "key:jwt-5f": binding_of(["viewer"], [])}
    assert isinstance(asked("Apply", token, own, "Tenant"), Refused)
    rollout = dataclasses.replace(service("rollout"), tenant="ops")
    assert isinstance(asked("List", rollout, bindings), Grant)
    assert isinstance(asked("Apply", rollout, bindings, "Tenant"), Refused)


def test_roles_of_a_later_version_count_nothing() -> None:
    assert binding_of(["auditor"], []).roles == frozenset()
    assert isinstance(asked("List", caller(key_id="k1"), {"key:k1": binding_of(["auditor"], [])}), Refused)
    assert isinstance(asked("MadeUp", caller(scopes=frozenset({"admin"}), key_id="k1")), Refused)


def test_without_tls_everybody_owns() -> None:
    grant = authorize("Rollback", caller(peer="", spiffe=""), bindings={}, admin_services=(), tls=False)
    assert grant == Grant("insecure", frozenset({Role.OWNER}))


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
    assert touched(Write(key_of(pb.Pin(model_version="m@2")), None)) == {"team-b"}
    assert touched(put(pb.Pin(model_version="p@1"))) == {"default"}
    assert touched(Write(key_of(theirs), None)) == {"team-b"}
    assert touched(put(pb.ModelVersion(name="n", version="1", namespace="team-c"))) == {"team-c"}
    assert touched(Write(key_of(rollout), None)) == {"team-a", "team-b"}
    assert touched(put(pb.Tenant(id="acme"))) == set()
    # What names versions among other things is not about versions alone.
    assert touched(put(pb.Price(model="m@2"))) == set()


def test_scopes() -> None:
    assert parse_scopes("") == frozenset()
    assert parse_scopes("admin inference,models.read") == {"admin", "inference", "models.read"}
    assert "admin" not in parse_scopes("administrator")
