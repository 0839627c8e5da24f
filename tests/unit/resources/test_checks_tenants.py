"""What the registry accepts and refuses of tenants, their limits, keys and budgets, and of role bindings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.access import check_binding
from libs.resources.checks.tenants import check_budget, check_key, check_limits, check_tenant
from libs.resources.snapshot import RegistrySnapshot
from tests.support.messages import fields_of, having, seconds

WORKLOAD = "spiffe://weir.internal/sa/demo-client"
TAKEN = "spiffe://weir.internal/sa/taken"
TENANT = pb.Tenant(
    id="acme",
    display_name="Acme",
    plan=pb.PLAN_PAID,
    plan_policy="gold",
    weight=1.0,
    workloads=[WORKLOAD],
    safety_policies=["default@1"],
    safety_fail_mode=pb.FAIL_MODE_CLOSED,
    max_deadline=seconds(60),
    jwt_issuer="https://issuer.example",
    time_zone="Europe/Berlin",
)
SNAPSHOT = RegistrySnapshot(tenants={"acme": TENANT, "globex": pb.Tenant(id="globex", workloads=[TAKEN])})


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        (dict.fromkeys(("weight", "max_deadline", "jwt_issuer", "workloads", "safety_policies", "time_zone")), []),
        ({"weight": 1000.0, "max_deadline": seconds(86400), "safety_fail_mode": 0}, []),
        # Whether they exist is asked of all references alike.
        ({"safety_policies": ["gone@1"], "plan_policy": "gone"}, []),
        ({"safety_policies": ["a@1", "a@1"]}, ["spec.safety_policies[1]"]),
        ({"id": "Acme"}, ["metadata.name", "spec.workloads[0]"]),
        ({"id": "a/b", "workloads": []}, ["metadata.name"]),
        ({"id": "a.b", "workloads": []}, ["metadata.name"]),
        ({"display_name": "x" * 200}, []),
        ({"display_name": "x" * 201}, ["spec.display_name"]),
        ({"display_name": "a\x07"}, ["spec.display_name"]),
        ({"plan": 0}, ["spec.plan"]),
        ({"plan": 9}, ["spec.plan"]),
        ({"weight": -1.0}, ["spec.weight"]),
        ({"weight": 1000.5}, ["spec.weight"]),
        ({"weight": math.nan}, ["spec.weight"]),
        ({"weight": math.inf}, ["spec.weight"]),
        ({"safety_fail_mode": 7}, ["spec.safety_fail_mode"]),
        ({"max_deadline": seconds(0)}, ["spec.max_deadline"]),
        ({"max_deadline": seconds(86401)}, ["spec.max_deadline"]),
        ({"jwt_issuer": "issuer"}, ["spec.jwt_issuer"]),
        ({"jwt_issuer": "https://"}, ["spec.jwt_issuer"]),
        ({"jwt_issuer": "https://a b"}, ["spec.jwt_issuer"]),
        ({"jwt_issuer": "file:///etc/passwd"}, ["spec.jwt_issuer"]),
        ({"jwt_issuer": "https://[bad"}, ["spec.jwt_issuer"]),
        ({"workloads": ["spiffe://elsewhere/sa/x"]}, ["spec.workloads[0]"]),
        ({"workloads": ["spiffe://weir.internal/sa/"]}, ["spec.workloads[0]"]),
        ({"workloads": ["spiffe://weirXinternal/sa/x"]}, ["spec.workloads[0]"]),
        ({"workloads": [TAKEN]}, ["spec.workloads[0]"]),
        ({"workloads": [WORKLOAD, TAKEN, "x"]}, ["spec.workloads[1]", "spec.workloads[2]"]),
        ({"workloads": [WORKLOAD] * 2}, ["spec.workloads"]),
        ({"workloads": [f"{WORKLOAD}-{n}" for n in range(100)]}, []),
        ({"workloads": [f"{WORKLOAD}-{n}" for n in range(101)]}, ["spec.workloads"]),
        ({"id": "shadow"}, ["metadata.name", "spec.workloads[0]"]),
        ({"id": "shadow", "workloads": []}, ["metadata.name"]),
        ({"id": "shadow", "workloads": ["spiffe://weir.internal/sa/new"], "jwt_issuer": ""}, ["metadata.name"]),
        ({"id": "shadow", "workloads": [], "jwt_issuer": ""}, []),
        (
            {"id": "No!", "plan": 0, "weight": -1.0, "time_zone": "Mars", "workloads": ["x"]},
            ["metadata.name", "spec.plan", "spec.weight", "spec.time_zone", "spec.workloads[0]"],
        ),
    ],
)
def test_tenant(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_tenant, having(TENANT, **changes), SNAPSHOT) == fields


@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT+1", "America/Argentina/Buenos_Aires", "America/Port-au-Prince"])
def test_time_zones(zone: str) -> None:
    assert fields_of(check_tenant, having(TENANT, time_zone=zone), SNAPSHOT) == []


@pytest.mark.parametrize(
    "zone",
    [
        "Europe",
        "Europe/Atlantis",
        "europe/berlin",
        "Europe/Berlin/",
        "Europe//Berlin",
        "Europe/../Europe/Berlin",
        "../../etc/passwd",
        "/etc/passwd",
        "/usr/share/zoneinfo/UTC",
        "localtime",
        "posixrules",
        "right/UTC",
        "tzdata.zi",
        "zone.tab",
        ".",
        "UTC\0",
        "UTC\n",
        "Ünter/Den",
        "A" * 5000,
        "A/" * 40,
    ],
)
def test_what_is_no_time_zone(zone: str) -> None:
    assert fields_of(check_tenant, having(TENANT, time_zone=zone), SNAPSHOT) == ["spec.time_zone"]


LIMITS = pb.Limits(
    tenant="acme",
    model="*",
    requests_per_minute=3,
    tokens_per_minute=200,
    spend_microusd=5_000_000,
    spend_window=seconds(86400),
)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"model": "weir-fast", "requests_per_minute": 0, "tokens_per_minute": 0}, []),
        ({"spend_microusd": 0, "spend_window": None}, []),
        ({"spend_window": seconds(1.0)}, []),
        ({"spend_window": seconds(31 * 86400)}, []),
        ({"requests_per_minute": 10**12, "tokens_per_minute": 10**12, "spend_microusd": 10**15}, []),
        ({"requests_per_minute": 10**12 + 1}, ["spec.requests_per_minute"]),
        ({"tokens_per_minute": 10**12 + 1}, ["spec.tokens_per_minute"]),
        ({"spend_microusd": 10**15 + 1}, ["spec.spend_microusd"]),
        ({"spend_window": seconds(0.0)}, ["spec.spend_window"]),
        ({"spend_window": seconds(0.999)}, ["spec.spend_window"]),
        ({"spend_window": seconds(-5.0)}, ["spec.spend_window"]),
        ({"spend_window": seconds(31 * 86400 + 1)}, ["spec.spend_window"]),
        (
            {"requests_per_minute": 2**64 - 1, "spend_microusd": 2**64 - 1, "spend_window": seconds(0.0)},
            ["spec.requests_per_minute", "spec.spend_microusd", "spec.spend_window"],
        ),
    ],
)
def test_limits(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_limits, having(LIMITS, **changes)) == fields


def wanted(tenant: str, scopes: list[str], note: str = "", ttl: float | None = None) -> pb.CreateKeyRequest:
    return pb.CreateKeyRequest(tenant=tenant, scopes=scopes, note=note, ttl=None if ttl is None else seconds(ttl))


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (wanted("acme", ["inference", "admin"], "mine"), []),
        (wanted("acme", ["inference"], ttl=60.0), []),
        (wanted("acme", ["inference"], ttl=3650 * 86400.0), []),
        (wanted("", ["inference"]), ["tenant"]),
        (wanted("shadow", ["inference"]), ["tenant"]),
        (wanted("acme", []), ["scopes"]),
        (wanted("acme", ["inference"] * 2), ["scopes"]),
        (wanted("acme", ["root"]), ["scopes[0]"]),
        (wanted("acme", ["inference"], ttl=0.0), ["ttl"]),
        (wanted("acme", ["inference"], ttl=-5.0), ["ttl"]),
        (wanted("acme", ["inference"], ttl=3650 * 86400.0 + 1), ["ttl"]),
        (wanted("acme", ["inference"], "n" * 201), ["note"]),
        (wanted("shadow", ["admin", "root", "x"], "\0", 0.0), ["tenant", "scopes[1]", "scopes[2]", "ttl", "note"]),
    ],
)
def test_key(request_: pb.CreateKeyRequest, fields: list[str]) -> None:
    assert fields_of(check_key, request_, {"inference", "admin"}) == fields


BUDGET = pb.Budget(tenant="acme", monthly_microusd=100, daily_microusd=10, alert_percent=[80, 100])


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"monthly_microusd": 0}, []),
        ({"daily_microusd": 0}, []),
        ({"daily_microusd": 100}, []),
        ({"monthly_microusd": 10**15, "daily_microusd": 10**15}, []),
        ({"enforcement": pb.BUDGET_ENFORCEMENT_SOFT, "alert_percent": []}, []),
        ({"alert_percent": [1, 1000]}, []),
        ({"alert_percent": range(1, 11)}, []),
        ({"monthly_microusd": 0, "daily_microusd": 0}, ["spec"]),
        ({"daily_microusd": 101}, ["spec.daily_microusd"]),
        ({"monthly_microusd": 10**15 + 1}, ["spec.monthly_microusd"]),
        ({"monthly_microusd": 0, "daily_microusd": 10**15 + 1}, ["spec.daily_microusd"]),
        ({"enforcement": 3}, ["spec.enforcement"]),
        ({"alert_percent": [0]}, ["spec.alert_percent"]),
        ({"alert_percent": [1001]}, ["spec.alert_percent"]),
        ({"alert_percent": [80, 80]}, ["spec.alert_percent"]),
        ({"alert_percent": [100, 80, 90]}, ["spec.alert_percent"]),
        ({"alert_percent": range(1, 12)}, ["spec.alert_percent"]),
        (
            {"monthly_microusd": 5, "enforcement": 9, "alert_percent": [0, 0]},
            [
                "spec.daily_microusd",
                "spec.enforcement",
                "spec.alert_percent",
            ],
        ),
    ],
)
def test_budget(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_budget, having(BUDGET, **changes)) == fields


@given(st.lists(st.integers(0, 1100), max_size=12))
def test_alerts_grow_within_bounds(percents: list[int]) -> None:
    good = len(percents) <= 10 and percents == sorted(set(percents)) and all(1 <= each <= 1000 for each in percents)
    assert (not fields_of(check_budget, having(BUDGET, alert_percent=percents))) is good


@pytest.mark.parametrize(
    ("principal", "roles", "namespaces", "fields"),
    [
        ("key:k1", ["viewer", "publisher"], ["team-a"], []),
        ("operator:jane", [], [], []),
        ("tenant:acme", [], [], ["metadata.name"]),
        ("spiffe://weir.internal/sa/rollout", ["viewer"], [], []),
        ("key:k1", ["owner"], [], []),
        ("key:k1", ["viewer"], [f"n{number}" for number in range(100)], []),
        ("spiffe://elsewhere/sa/rollout", ["viewer"], [], ["metadata.name"]),
        ("spiffe://weir.internal/sa/a/b", ["viewer"], [], ["metadata.name"]),
        ("k1", ["viewer"], [], ["metadata.name"]),
        ("key:", ["viewer"], [], ["metadata.name"]),
        ("key:a\n", ["viewer"], [], ["metadata.name"]),
        ("key:k1", ["root"], [], ["spec.roles[0]"]),
        ("key:k1", ["viewer", "viewer"], [], ["spec.roles"]),
        ("key:k1", ["viewer"], ["No!"], ["spec.namespaces[0]"]),
        ("key:k1", ["viewer"], ["a"] * 101, ["spec.namespaces"]),
        ("key:k1", ["owner"], ["team-a"], ["spec.namespaces"]),
        (
            "x",
            ["viewer", "root", "viewer", "owner"],
            ["ok", "No!"],
            ["metadata.name", "spec.roles", "spec.roles[1]", "spec.namespaces[1]", "spec.namespaces"],
        ),
    ],
)
def test_binding(principal: str, roles: list[str], namespaces: list[str], fields: list[str]) -> None:
    message = pb.RoleBinding(principal=principal, roles=roles, namespaces=namespaces)
    assert fields_of(check_binding, message) == fields
