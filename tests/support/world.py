"""A registry with one valid resource of every kind, of which everything that can be named is named by something."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from tests.support.registry_service import alias, grant, model, tenant

POLICY = pb.SafetyPolicy(
    id="strict",
    version="1",
    rules=[pb.SafetyRule(id="card", category="pii.card", pattern=r"\d{16}", action="block", stage="both")],
)
PLAN = pb.PlanPolicy(
    id="gold",
    weight=2,
    ladder=[pb.DegradationStep(smaller_model=pb.SmallerModel(models={"weir-fast": "weir-fast@2"}))],
)
SLO = pb.Slo(route="generate", tier="*", availability=0.999)
BUDGET = pb.Budget(tenant="acme", monthly_microusd=100, daily_microusd=10)
WORKER = pb.Endpoint(service="worker", instance="w0", address="127.0.0.1:1", pool="fast")


def canary(**more: Any) -> pb.Rollout:
    values: dict[str, Any] = {
        "alias": "weir-fast",
        "arms": [pb.RolloutArm(name="canary", model_version="weir-fast@2")],
        "steps": [pb.RolloutStep(weight=1000), pb.RolloutStep(weight=5000)],
        "reason": "better answers",
    }
    return pb.Rollout(**(values | more))


def applied() -> list[Message]:
    """One of every kind that can be applied, and what those name, in no order; a trust policy excepted, which would
    need signatures."""
    radius = pb.BlastRadius(only_tenants=["acme"], except_tenants=["globex"])
    return [
        canary(blast_radius=radius),
        pb.RolloutSwitch(reason="checked"),
        pb.Pin(model_version="weir-fast@2", reason="kept"),
        pb.Price(model="weir-fast", input_microusd_per_million=5),
        SLO,
        BUDGET,
        pb.Limits(tenant="acme", model="weir-fast", requests_per_minute=3),
        grant("tenant:acme", models=["weir-fast", "weir-fast@2"]),
        grant("plan:gold"),
        tenant("acme", plan_policy="gold", safety_policies=["strict@1"], max_deadline=timedelta(seconds=9)),
        tenant("globex"),
        PLAN,
        alias("weir-fast@1"),
        model(version="1", safety_policies=["strict@1"]),
        model(version="2"),
        pb.RoleBinding(principal="key:k1", roles=["viewer"]),
        POLICY,
        pb.SafetyFloor(policies=["strict@1"]),
    ]


def observed() -> list[Message]:
    """What others than the registry write."""
    return [
        pb.Spend(tenant="acme", day="2026-11-23", day_microusd=7, month="2026-11", month_microusd=70),
        pb.ErrorBudget(
            route="generate",
            tier="*",
            objectives=[pb.ObjectiveBudget(objective="availability", consumed=0.5)],
            windows=b"counts",
        ),
        pb.PoolLevel(pool="fast", tenants=[pb.TenantLevel(tenant="acme", shed=0.5)]),
        WORKER,
    ]
