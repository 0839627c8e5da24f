"""What an operator's role allows: the pure decision, its bounds, and that no call is forgotten."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.apikeys import pseudonym
from libs.authority.identity import Identity, Operator
from libs.authority.operators import (
    CALLS,
    CHANGES,
    PER_TENANT,
    Binding,
    Caller,
    Grant,
    Refused,
    Touched,
    at_edge,
    authorize,
    binding_of,
    enough_for,
    foreign,
    may_change,
    parse_scopes,
    rows,
)
from libs.changes import Write, put
from libs.registry import KeyValue, RegistrySnapshot, keys, snapshot_of
from libs.resources.checks.access import check_binding
from libs.resources.codec import key_of
from libs.resources.kind import Kind, Role
from libs.resources.kinds import BY_NAME, KINDS
from services.registry.server import RegistryServicer
from services.registry.touched import touched

RPCS = pb.DESCRIPTOR.services_by_name["RegistryService"].methods_by_name
READS = {"Get", "List", "Watch", "History", "Diff", "WhoAmI"}
SERVICES = ("gateway", "router", "edge-auth", "ratelimit", "admission", "safety", "worker", "audit", "rollout", "envoy")
OWNER = frozenset({Role.OWNER})
NAMES = st.sampled_from(["acme", "globex", "initech", "team-a", "team-b", ""])


def edge(key_id: str = "", *scopes: str) -> Caller:
    return Caller("envoy", Identity("envoy").spiffe, frozenset(scopes), key_id)


def service(name: str, **parts: str) -> Caller:
    return Caller(name, Identity(name, **parts).spiffe)


def person(name: str) -> Caller:
    return Caller("", Operator(name).spiffe)


def asked(rpc: str, who: Caller, bound: Binding | None = None, *kinds: str, **more: Any) -> Any:
    return authorize(rpc, who, kinds=[BY_NAME[each] for each in kinds], bound=bound, tls=True, **more)


@pytest.mark.parametrize(
    ("who", "principal", "known_by"),
    [
        (person("jane"), "operator:jane", "certificate"),
        (edge("k1"), "key:k1", "key"),
        (edge("oidc:corp/jane@example.org"), "oidc:corp/jane@example.org", "token"),
        # Tenants' tokens are nobody, and so is who says nothing.
        (edge(pseudonym("https://issuer", "jane", b"p" * 32)), "", "token"),
        (edge(), "", "key"),
        # Whichever of its processes.
        (service("worker", instance="w-1", pool="demo"), "spiffe://weir.internal/sa/worker", "certificate"),
        (Caller("", ""), "", "certificate"),
        (Caller("", "spiffe://elsewhere/operator/jane"), "", "certificate"),
        # Identity metadata counts from Envoy alone: anybody else could have written it.
        (
            Caller("gateway", Identity("gateway").spiffe, key_id="oidc:corp/jane"),
            Identity("gateway").spiffe,
            "certificate",
        ),
        (Caller("", Operator("joe").spiffe, key_id="oidc:corp/jane"), "operator:joe", "certificate"),
    ],
)
def test_who_somebody_is(who: Caller, principal: str, known_by: str) -> None:
    assert (who.principal, who.known_by) == (principal, known_by)


def test_the_scope_makes_owners_of_keys_and_of_nobody_else() -> None:
    for rpc in ("Apply", "List", "Rollback", "Watch"):
        assert asked(rpc, edge("k1", "admin"), None, "RoleBinding", "ApiKey", secrets=True) == Grant("key:k1", OWNER)
    for who in (edge("", "admin"), edge("jwt-5f", "admin"), edge("oidc:corp/jane", "admin")):
        assert isinstance(asked("List", who), Refused)
    for who in (Caller("gateway", Identity("gateway").spiffe, frozenset({"admin"}), "k1"), person("jane")):
        assert isinstance(asked("List", dataclasses.replace(who, scopes=frozenset({"admin"}))), Refused)


@pytest.mark.parametrize("name", [*SERVICES, "probe", "cli", "demo-client"])
def test_a_certificate_of_a_service_alone_operates_nothing(name: str) -> None:
    for call in {*RPCS, *CALLS}:
        assert isinstance(asked(call, service(name)), Refused), call


def test_without_a_binding_nobody_may_anything_and_is_told_no_more() -> None:
    for who in (person("jane"), edge("k1"), edge("oidc:corp/jane"), edge("jwt-5f"), edge(), Caller("", "")):
        for bound in (None, Binding(frozenset())):
            refused = asked("List", who, bound)
            assert isinstance(refused, Refused)
            assert refused.actor in refused.message
    # A binding that is nobody's is not that of nobody.
    assert isinstance(asked("List", edge("jwt-5f"), Binding(OWNER)), Refused)
    assert isinstance(asked("List", Caller("", ""), Binding(OWNER)), Refused)


def test_settings_name_the_owners_of_a_fresh_mesh_and_no_others() -> None:
    assert asked("Rollback", person("jane"), owners=("operator:jane",)) == Grant("operator:jane", OWNER)
    for who in (person("joe"), edge("jane"), edge("jwt-5f"), Caller("", "")):
        assert isinstance(asked("Rollback", who, owners=("operator:jane", "")), Refused)


def test_every_call_has_its_roles_and_its_method() -> None:
    assert set(RPCS) == {call for call in CALLS if "." not in call} | CHANGES
    assert not CHANGES & CALLS.keys()
    for name in RPCS:
        assert Role.OWNER in enough_for(name), name
        assert getattr(RegistryServicer, name) is not getattr(registry_pb2_grpc.RegistryServiceServicer, name), name
    assert enough_for("MadeUp") == frozenset()
    assert isinstance(asked("MadeUp", person("jane"), Binding(frozenset(Role))), Refused)


def test_every_change_says_why_and_can_be_tried_and_nothing_else_changes() -> None:
    for name, method in RPCS.items():
        field = method.input_type.fields_by_name.get("change")
        told = field.message_type.full_name if field is not None else ""
        assert (told == "weir.registry.v1.ChangeOptions") == (name in CHANGES | {"Rollback"}), name


@pytest.mark.parametrize(
    ("role", "may", "calls"),
    [
        ("viewer", "", ""),
        ("auditor", "", "audit.Tail audit.Verify"),
        ("publisher", "ModelVersion Pin", ""),
        ("releaser", "Alias Rollout RolloutSwitch", "rollout.ReportScores"),
        ("operator", "Tenant Limits PlanPolicy Slo Price Budget SafetyPolicy ApiKey RolloutSwitch ModelGrant", ""),
        ("owner", " ".join(BY_NAME), "audit.Tail audit.Verify rollout.ReportScores Rollback"),
    ],
)
def test_roles(role: str, may: str, calls: str) -> None:
    bound, who = binding_of([role]), person("jane")
    for kind in BY_NAME:
        allowed = asked("Apply", who, bound, kind)
        assert isinstance(allowed, Grant) == (kind in may.split()), kind
        if isinstance(allowed, Refused):
            for told in ("Apply", BY_NAME[kind].plural, role):
                assert told in allowed.message
    for rpc in READS:
        assert isinstance(asked(rpc, who, bound, "Tenant"), Grant)
    for call in ("audit.Tail", "audit.Verify", "rollout.ReportScores", "Rollback"):
        assert isinstance(asked(call, who, bound), Grant) == (call in calls.split()), call
    assert isinstance(asked("List", who, bound, secrets=True), Grant) == (role == "owner")


def test_the_table_of_documents_is_the_decision() -> None:
    told = {(row.what, row.verb): row.roles for row in rows(KINDS)}
    for kind in KINDS:
        for role in Role:
            grant = asked("Delete", person("jane"), Binding(frozenset({role})), kind.name)
            assert isinstance(grant, Grant) == (role in told[kind.plural, "change"])
    assert told["audit.Tail", "call"] == {Role.AUDITOR, Role.OWNER}
    assert told["Rollback", "call"] == OWNER


def test_of_several_kinds_each_needs_one_of_the_callers_roles() -> None:
    assert isinstance(asked("Apply", edge("k1"), binding_of(["operator", "releaser"]), "Tenant", "Alias"), Grant)
    refused = asked("Apply", edge("k1"), binding_of(["operator"]), "Tenant", "Alias")
    assert isinstance(refused, Refused)
    assert "releaser" in refused.message
    assert may_change(Grant("a", frozenset({Role.RELEASER})), BY_NAME["Alias"])
    assert not may_change(Grant("a", frozenset({Role.RELEASER})), BY_NAME["Tenant"])


@pytest.mark.parametrize("peer", SERVICES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_service_follows_exactly_what_its_row_says(kind: Kind, peer: str) -> None:
    grant = asked("Watch", service(peer, instance=f"{peer}-0"), None, kind.name)
    assert isinstance(grant, Grant) == (peer in kind.followers)
    if isinstance(grant, Grant):
        assert grant == Grant(f"spiffe://weir.internal/sa/{peer}", frozenset(), trusted=peer)
    # To follow is not to read, and not to follow something else besides.
    assert isinstance(asked("List", service(peer), None, kind.name), Refused)
    others = [each.name for each in KINDS if peer not in each.followers]
    assert isinstance(asked("Watch", service(peer), None, kind.name, *others[:1]), Refused)
    assert isinstance(asked("Watch", service(peer)), Refused)


@pytest.mark.parametrize("peer", SERVICES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_service_gets_exactly_what_its_row_says(kind: Kind, peer: str) -> None:
    grant = asked("Get", service(peer, instance=f"{peer}-0"), None, kind.name)
    assert isinstance(grant, Grant) == (peer in kind.readers)
    if isinstance(grant, Grant):
        # It sees no secrets, and no more than the one that it names.
        assert grant == Grant(f"spiffe://weir.internal/sa/{peer}", frozenset())
    assert isinstance(asked("Get", service(peer)), Refused)


def test_roles_of_a_later_version_count_nothing() -> None:
    assert binding_of(["astronaut"]).roles == frozenset()
    assert isinstance(asked("List", edge("k1"), binding_of(["astronaut"])), Refused)


def test_without_tls_everybody_owns() -> None:
    assert authorize("Rollback", Caller("", ""), bound=None, tls=False) == Grant("insecure", OWNER)


@given(
    roles=st.sets(st.sampled_from(Role)),
    namespaces=st.frozensets(NAMES),
    tenants=st.frozensets(NAMES),
    kind=st.sampled_from(KINDS),
    tenant=NAMES,
    about=st.frozensets(NAMES),
)
def test_nothing_is_changed_beyond_a_bound(
    roles: set[Role],
    namespaces: frozenset[str],
    tenants: frozenset[str],
    kind: Kind,
    tenant: str,
    about: frozenset[str],
) -> None:
    """Whoever is kept to tenants touches nothing that is not theirs; whoever is kept to namespaces nothing, of what its
    roles let it change, that is not wholly within."""
    grant = Grant("operator:jane", frozenset(roles), namespaces, tenants)
    what, why = foreign(grant, [Touched(kind, tenant, about)])
    assert bool(what) == bool(why)
    if tenants and tenant not in tenants:
        assert what == "tenant"
    elif namespaces and may_change(grant, kind) and not (about and about <= namespaces):
        assert what == "namespace"
    else:
        assert not what
    assert grant.knows(tenant) == (not tenants or tenant in tenants)


@given(call=st.sampled_from(sorted({*CALLS, *CHANGES})), roles=st.sets(st.sampled_from(Role), min_size=1))
def test_who_is_kept_to_tenants_uses_no_call_about_the_whole_mesh(call: str, roles: set[Role]) -> None:
    bound = Binding(frozenset(roles), tenants=frozenset({"acme"}))
    if call not in PER_TENANT:
        assert isinstance(asked(call, person("jane"), bound), Refused)


@given(st.text(max_size=40))
def test_what_edge_auth_says_is_never_two_principals(key_id: str) -> None:
    principal = at_edge(key_id)
    assert principal == "" or principal.startswith(("oidc:", "key:"))
    assert not principal.startswith(("operator:", "spiffe:"))


@pytest.mark.parametrize(
    ("principal", "good"),
    [
        ("operator:jane", True),
        ("oidc:corp/jane@example.org", True),
        ("key:abcd1234", True),
        ("spiffe://weir.internal/sa/rollout", True),
        ("spiffe://weir.internal/sa/worker/instance/w-1", False),
        ("spiffe://weir.internal/operator/jane", False),
        ("operator:Jane", False),
        ("operator:", False),
        ("oidc:corp", False),
        ("oidc:corp/", False),
        ("oidc:corp/jané", False),
        ("key:jwt-5f3a9c01", False),
        ("tenant:acme", False),
    ],
)
def test_whom_bindings_may_name(principal: str, good: bool) -> None:
    faults = list(check_binding(pb.RoleBinding(principal=principal, roles=["viewer"]), RegistrySnapshot()))
    assert (not faults) == good


@pytest.mark.parametrize(
    ("roles", "namespaces", "tenants", "fault"),
    [
        (["publisher", "releaser", "viewer"], ["team-a"], [], ""),
        (["operator", "auditor", "viewer"], [], ["acme"], ""),
        (["owner"], ["team-a"], [], "owner cannot be kept to namespaces"),
        (["owner"], [], ["acme"], "owner cannot be kept to tenants"),
        (["operator"], ["team-a"], [], "operator cannot be kept to namespaces"),
        (["releaser"], [], ["acme"], "releaser cannot be kept to tenants"),
        (["viewer"], ["team-a"], ["acme"], "not to both"),
        (["viewer"], [], [""], "spec.tenants"),
    ],
)
def test_which_roles_can_be_kept_to_what(
    roles: list[str], namespaces: list[str], tenants: list[str], fault: str
) -> None:
    binding = pb.RoleBinding(principal="operator:jane", roles=roles, namespaces=namespaces, tenants=tenants)
    found = [f"{each.field}: {each.message}" for each in check_binding(binding, RegistrySnapshot())]
    assert any(fault in each for each in found) if fault else not found


def snapshot(*messages: Any) -> RegistrySnapshot:
    return snapshot_of([KeyValue(keys.key_of(message), keys.encode(message), 1) for message in messages], 1)


def test_a_change_touches_the_namespaces_and_tenants_of_before_and_after() -> None:
    mine = pb.ModelVersion(name="m", version="1", namespace="team-a")
    theirs = pb.ModelVersion(name="m", version="2", namespace="team-b")
    plain = pb.ModelVersion(name="p", version="1")
    alias = pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@1", weight=100)])
    rollout = pb.Rollout(alias="m", baseline="m@1", arms=[pb.RolloutArm(name="canary", model_version="m@2")])
    key = pb.ApiKey(id="abcd", tenant="acme")
    held = snapshot(mine, theirs, plain, alias, rollout, key, pb.Pin(model_version="m@2", reason="r"))

    def spaces(*writes: Write) -> set[str]:
        return {name for each in touched(held, writes) for name in each.namespaces}

    def tenants(*writes: Write) -> set[str]:
        return {each.tenant for each in touched(held, writes)}

    moved = pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@2", weight=100)])
    assert spaces(put(alias)) == {"team-a"}
    assert spaces(put(moved)) == {"team-a", "team-b"}
    assert spaces(Write(key_of(pb.Pin(model_version="m@2")), None)) == {"team-b"}
    assert spaces(put(pb.Pin(model_version="p@1"))) == {"default"}
    assert spaces(Write(key_of(theirs), None)) == {"team-b"}
    assert spaces(put(pb.ModelVersion(name="n", version="1", namespace="team-c"))) == {"team-c"}
    assert spaces(Write(key_of(rollout), None)) == {"team-a", "team-b"}
    # What names versions among other things is not about versions alone.
    assert spaces(put(pb.Tenant(id="acme")), put(pb.Price(model="m@2"))) == set()
    assert tenants(put(pb.Tenant(id="acme"))) == {"acme"}
    assert tenants(put(pb.Limits(tenant="globex", model="*")), Write(key_of(key), None)) == {"globex", "acme"}
    assert tenants(put(pb.Price(model="m@2")), put(alias)) == {""}


def test_scopes() -> None:
    assert parse_scopes("") == frozenset()
    assert parse_scopes("admin inference,models.read") == {"admin", "inference", "models.read"}
    assert "admin" not in parse_scopes("administrator")
