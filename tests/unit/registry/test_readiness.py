"""Which rollouts may begin now: each thing that stands in the way, alone."""

from __future__ import annotations

from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.schemas import schema_sha256
from libs.resources.snapshot import RegistrySnapshot
from services.registry.readiness import cannot_begin, frozen, killed
from tests.support.messages import having, seconds


def version(name: str, number: str) -> pb.ModelVersion:
    return pb.ModelVersion(name=name, version=number, pool=name, tier="quality" if name == "big" else "fast")


def workers(**pools: int) -> dict[str, Any]:
    """So many workers of each pool, and a gateway that says it is of both."""
    made = {("gateway", pool): pb.Endpoint(service="gateway", instance=pool, pool=pool) for pool in ("fast", "big")}
    for pool, count in pools.items():
        for number in range(count):
            instance = f"{pool}-{number}"
            made["worker", instance] = pb.Endpoint(service="worker", instance=instance, pool=pool)
    return {"endpoints": made}


def slos(*tiers: str) -> dict[str, Any]:
    made = {("generate", tier): pb.Slo(route="generate", tier=tier, ttft_p95=seconds(1.0)) for tier in tiers}
    return {"slos": {**made, ("embed", "fast"): pb.Slo(route="embed", tier="fast", availability=0.9)}}


def consumed(tier: str, *shares: float) -> dict[str, Any]:
    objectives = [pb.ObjectiveBudget(objective="availability", consumed=share) for share in shares]
    return {"error_budgets": {("generate", tier): pb.ErrorBudget(route="generate", tier=tier, objectives=objectives)}}


def switch(**changes: Any) -> dict[str, Any]:
    return {"switches": {"rollouts": pb.RolloutSwitch(**changes)}}


def rollouts(alias: str, phase: pb.RolloutPhase, rollout_id: str = "other") -> dict[str, Any]:
    state = pb.RolloutState(phase=phase)
    return {"rollouts": {alias: pb.Rollout(alias=alias, id=rollout_id, state=state)}}


WORLD: dict[str, Any] = {
    "aliases": {"fast": pb.Alias(name="fast", targets=[pb.AliasTarget(model_version="fast@1", weight=100)])},
    "model_versions": {
        "fast@1": version("fast", "1"),
        "fast@2": version("fast", "2"),
        "big@1": version("big", "1"),
    },
    **workers(fast=4, big=2),
    **slos("fast", "quality"),
}
CANARY = pb.Rollout(
    alias="fast",
    id="mine",
    arms=[pb.RolloutArm(name="canary", model_version="fast@2")],
    steps=[pb.RolloutStep(weight=100), pb.RolloutStep(weight=1000)],
    reason="better",
)
BIG = having(
    CANARY,
    arms=[pb.RolloutArm(name="canary", model_version="big@1")],
    steps=[pb.RolloutStep(weight=5000), pb.RolloutStep(weight=10)],
)
EXPERIMENT = having(BIG, steps=None, arms=[pb.RolloutArm(name="b", model_version="big@1", weight=5000)])


@pytest.mark.parametrize(
    ("rollout", "world", "field"),
    [
        (CANARY, {}, None),
        (CANARY, rollouts("fast", pb.ROLLOUT_PHASE_CANARY), "metadata.name"),
        (CANARY, rollouts("fast", pb.ROLLOUT_PHASE_UNSPECIFIED), "metadata.name"),
        (CANARY, rollouts("fast", pb.ROLLOUT_PHASE_CANARY, "mine"), None),
        (CANARY, rollouts("fast", pb.ROLLOUT_PHASE_PROMOTED), None),
        (CANARY, rollouts("other", pb.ROLLOUT_PHASE_CANARY), None),
        (CANARY, switch(kill=True, reason="fire"), "switch.kill"),
        (CANARY, switch(freeze=True, reason="holidays"), "switch.freeze"),
        (CANARY, switch(reason="over"), None),
        (CANARY, consumed("fast", 0.2, 1.2), "budget"),
        (CANARY, consumed("fast", 1.0), "budget"),
        (CANARY, consumed("fast", 0.99), None),
        (CANARY, consumed("quality", 1.2), None),
        (CANARY, slos("quality"), "slo"),
        (CANARY, slos("*"), None),
        (CANARY, {**slos("*"), **consumed("*", 1.2)}, "budget"),
        # Objectives that declare nothing are none.
        (CANARY, {"slos": {("generate", "fast"): pb.Slo(route="generate", tier="fast", revision=7)}}, "slo"),
        (CANARY, workers(big=9), "spec.arms[0].model_version"),
        (CANARY, workers(fast=1), None),
        (BIG, {}, None),
        (EXPERIMENT, {}, None),
        (BIG, slos("fast"), "slo"),
        (BIG, consumed("quality", 1.0), "budget"),
        # Half of what four workers serve needs two of the other pool.
        (BIG, workers(fast=4, big=1), "spec.arms[0].model_version"),
        (BIG, workers(fast=5, big=2), "spec.arms[0].model_version"),
        (EXPERIMENT, workers(fast=5, big=2), "spec.arms[0].model_version"),
        # A baseline without workers cannot serve as a measure.
        (BIG, workers(big=1), None),
        # That they are missing is told by others.
        (CANARY, {"aliases": {}}, None),
        (CANARY, {"aliases": {"fast": pb.Alias(name="fast")}}, None),
        (CANARY, {"model_versions": {}}, None),
    ],
)
def test_what_the_mesh_allows_now(rollout: pb.Rollout, world: dict[str, Any], field: str | None) -> None:
    fault = cannot_begin(rollout, RegistrySnapshot(**{**WORLD, **world}))
    assert (fault.field if fault else None) == field


def test_overriding_lifts_the_freeze_and_nothing_else() -> None:
    world = {**WORLD, **consumed("fast", 1.2)}
    rollout = having(CANARY, override_reason="it is the fix")
    assert cannot_begin(rollout, RegistrySnapshot(**{**world, **switch(freeze=True, reason="holidays")})) is None
    both = RegistrySnapshot(**{**world, **switch(kill=True, freeze=True, reason="fire")})
    fault = cannot_begin(rollout, both)
    assert fault is not None
    assert fault == killed(both)
    assert "fire" in fault.message
    budget = frozen({"fast"}, RegistrySnapshot(**world))
    assert budget is not None
    assert "availability 120%" in budget.message


def predicts(number: str, width: int, *outputs: str) -> pb.ModelVersion:
    tensors = [pb.TensorSpec(name=name, datatype="FP32", shape=[-1]) for name in outputs]
    features = pb.TensorSpec(name="features", datatype="FP32", shape=[-1, width])
    made = pb.PredictionSpec(inputs=[features], outputs=tensors, profile="classical")
    return pb.ModelVersion(name="fast", version=number, pool="fast", prediction=made)


def test_another_schema_than_the_baselines_is_said_and_must_be_meant() -> None:
    objectives = {("predict", "classical"): pb.Slo(route="predict", tier="classical", availability=0.9)}
    versions = {"fast@1": predicts("1", 3, "score", "why"), "fast@2": predicts("2", 4, "why", "score", "odds")}
    world = {**WORLD, "slos": objectives, "model_versions": versions}
    fault = cannot_begin(CANARY, RegistrySnapshot(**world))
    assert fault is not None
    assert fault.field == "spec.arms[0].model_version"
    assert "fast@2 has another schema than fast@1" in fault.message
    assert "a new output 'odds'; another shape of input 'features' ([-1, 3] → [-1, 4])" in fault.message
    assert schema_sha256(versions["fast@2"].prediction)[:12] in fault.message
    assert cannot_begin(having(CANARY, schema_changed=True), RegistrySnapshot(**world)) is None
    same = {**versions, "fast@2": predicts("2", 3, "why", "score")}
    assert cannot_begin(CANARY, RegistrySnapshot(**{**world, "model_versions": same})) is None
