"""What the registry accepts and refuses."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.registry.changes import pattern_fault
from services.registry.policy import models, safety, tenants
from services.registry.policy.models import ArtifactSpec, ModelSpec, TargetSpec
from services.registry.policy.safety import RuleSpec
from services.registry.policy.tenants import KeySpec, LimitsSpec, TenantSpec

HEX = "a" * 64
MODEL = ModelSpec(
    name="weir-fast",
    version="1",
    artifacts=[ArtifactSpec("model.safetensors", HEX, 10)],
    source="models/demo/fast",
    architecture="LlamaForCausalLM",
    context_length=1024,
    tier="fast",
    pool="fast",
    temperature=0.7,
    top_p=0.95,
    max_tokens=256,
    safety_policy="",
    training_data_sha256=HEX,
    chat_template_sha256="",
)
TENANT = TenantSpec(
    id="acme",
    display_name="Acme",
    plan=2,
    plan_policy="gold",
    weight=1.0,
    workloads=["spiffe://weir.internal/sa/demo-client"],
    safety_policy="default",
    safety_fail_mode=1,
    max_deadline_seconds=60.0,
    jwt_issuer="https://issuer.example",
)
RULE = RuleSpec("card", "pii.card_number", r"\d{16}", "redact", "both", "[card]")


def artifact(**changes: Any) -> dict[str, Any]:
    return {"artifacts": [dataclasses.replace(MODEL.artifacts[0], **changes)]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"safety_policy": "default"}, None),
        ({"max_tokens": 0, "temperature": 0.0, "top_p": 1.0}, None),
        ({"name": ""}, "name"),
        ({"name": "Weir"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a@b"}, "name"),
        ({"name": "-a"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"name": "a\n"}, "name"),
        ({"version": "1 2"}, "version"),
        ({"version": "../x"}, "version"),
        ({"pool": ""}, "pool"),
        ({"source": ""}, "source"),
        ({"source": "a\0b"}, "source"),
        ({"tier": "huge"}, "tier"),
        ({"context_length": 0}, "context_length"),
        ({"safety_policy": "gone"}, "safety_policy"),
        ({"training_data_sha256": "xyz"}, "training_data_sha256"),
        ({"temperature": math.nan}, "sampling_defaults.temperature"),
        ({"temperature": 2.1}, "sampling_defaults.temperature"),
        ({"top_p": 0.0}, "sampling_defaults.top_p"),
        ({"max_tokens": 1025}, "sampling_defaults.max_tokens"),
        ({"artifacts": []}, "artifacts"),
        ({"artifacts": [MODEL.artifacts[0]] * 2}, "artifacts[1].path"),
        (artifact(path="/etc/passwd"), "artifacts[0].path"),
        (artifact(path="../x"), "artifacts[0].path"),
        (artifact(path="a/../../x"), "artifacts[0].path"),
        (artifact(path="a//b"), "artifacts[0].path"),
        (artifact(path=""), "artifacts[0].path"),
        (artifact(sha256=HEX.upper()), "artifacts[0].sha256"),
        (artifact(size=0), "artifacts[0].bytes"),
    ],
)
def test_model(changes: dict[str, Any], field: str | None) -> None:
    fault = models.check_model(dataclasses.replace(MODEL, **changes), policies={"default": 3})
    assert (fault.field if fault else None) == (f"model_version.{field}" if field else None)


@pytest.mark.parametrize(
    ("targets", "field"),
    [
        ([TargetSpec("m@1", 100, "")], None),
        ([TargetSpec("m@1", 90, "control"), TargetSpec("m@2", 10, "new")], None),
        ([TargetSpec("m@1", 100, ""), TargetSpec("m@2", 0, "")], None),
        ([TargetSpec("m@1", 50, "a"), TargetSpec("m@1", 50, "b")], None),
        ([], "targets"),
        ([TargetSpec("m@1", 99, "")], "targets"),
        ([TargetSpec("m@1", 60, ""), TargetSpec("m@2", 60, "")], "targets"),
        ([TargetSpec("m@3", 100, "")], "targets[0].model_version"),
        ([TargetSpec("m", 100, "")], "targets[0].model_version"),
        ([TargetSpec("m@1", 50, ""), TargetSpec("m@1", 50, "")], "targets[1].model_version"),
        ([TargetSpec("m@1", 100, "Ä")], "targets[0].arm"),
    ],
)
def test_alias(targets: list[TargetSpec], field: str | None) -> None:
    fault = models.check_alias("weir-fast", targets, versions={"m@1", "m@2"})
    assert (fault.field if fault else None) == (f"alias.{field}" if field else None)


def test_alias_name_cannot_look_like_a_version() -> None:
    assert models.check_alias("m@1", [TargetSpec("m@1", 100, "")], versions={"m@1"}) is not None


@given(st.lists(st.integers(0, 120), min_size=1, max_size=8))
def test_alias_weights_must_sum_to_100(weights: list[int]) -> None:
    targets = [TargetSpec("m@1", weight, f"arm{number}") for number, weight in enumerate(weights)]
    assert (models.check_alias("a", targets, versions={"m@1"}) is None) is (sum(weights) == 100)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"weight": 0.0, "max_deadline_seconds": None, "jwt_issuer": "", "workloads": [], "safety_policy": ""}, None),
        ({"id": "Acme"}, "id"),
        ({"id": "a/b"}, "id"),
        ({"id": "a.b"}, "id"),
        ({"display_name": "x" * 201}, "display_name"),
        ({"display_name": "a\x07"}, "display_name"),
        ({"plan": 0}, "plan"),
        ({"plan": 9}, "plan"),
        ({"plan_policy": ""}, None),
        ({"plan_policy": "silver"}, "plan_policy"),
        ({"weight": -1.0}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"weight": math.inf}, "weight"),
        ({"safety_policy": "gone"}, "safety_policy"),
        ({"safety_fail_mode": 7}, "safety_fail_mode"),
        ({"max_deadline_seconds": 0.0}, "max_deadline"),
        ({"max_deadline_seconds": 1e9}, "max_deadline"),
        ({"jwt_issuer": "issuer"}, "jwt_issuer"),
        ({"jwt_issuer": "file:///etc/passwd"}, "jwt_issuer"),
        ({"jwt_issuer": "https://[bad"}, "jwt_issuer"),
        ({"workloads": ["spiffe://elsewhere/sa/x"]}, "workloads[0]"),
        ({"workloads": ["spiffe://weir.internal/sa/"]}, "workloads[0]"),
        ({"workloads": ["spiffe://weir.internal/sa/taken"]}, "workloads[0]"),
        ({"workloads": list(TENANT.workloads) * 2}, "workloads"),
        ({"id": "shadow"}, "id"),
        ({"id": "shadow", "workloads": []}, "id"),
        ({"id": "shadow", "workloads": [], "jwt_issuer": ""}, None),
    ],
)
def test_tenant(changes: dict[str, Any], field: str | None) -> None:
    owners = {"spiffe://weir.internal/sa/taken": "globex", "spiffe://weir.internal/sa/demo-client": "acme"}
    spec = dataclasses.replace(TENANT, **changes)
    fault = tenants.check_tenant(spec, policies={"default"}, plans={"gold"}, workload_owners=owners)
    assert (fault.field if fault else None) == (f"tenant.{field}" if field else None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"model": "weir-fast", "requests_per_minute": 0, "tokens_per_minute": 0}, None),
        ({"model": "weir-fast@1"}, None),
        ({"spend_microusd": 0, "spend_window_seconds": None}, None),
        ({"spend_window_seconds": 1.0}, None),
        ({"tenant": "gone"}, "tenant"),
        ({"model": "gone"}, "model"),
        ({"requests_per_minute": 10**13}, "requests_per_minute"),
        ({"tokens_per_minute": 10**13}, "tokens_per_minute"),
        ({"spend_microusd": 10**16}, "spend_microusd"),
        ({"spend_window_seconds": 0.0}, "spend_window"),
        ({"spend_window_seconds": -5.0}, "spend_window"),
        ({"spend_window_seconds": 32 * 86400.0}, "spend_window"),
    ],
)
def test_limits(changes: dict[str, Any], field: str | None) -> None:
    spec = dataclasses.replace(LimitsSpec("acme", "*", 3, 200, 5_000_000, 86400.0), **changes)
    fault = tenants.check_limits(spec, tenants={"acme"}, models={"weir-fast", "weir-fast@1"})
    assert (fault.field if fault else None) == (f"limits.{field}" if field else None)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (KeySpec("acme", ["inference", "admin"], "mine", None), None),
        (KeySpec("acme", ["inference"], "", 60.0), None),
        (KeySpec("gone", ["inference"], "", None), "tenant"),
        (KeySpec("shadow", ["inference"], "", None), "tenant"),
        (KeySpec("acme", [], "", None), "scopes"),
        (KeySpec("acme", ["inference"] * 2, "", None), "scopes"),
        (KeySpec("acme", ["root"], "", None), "scopes[0]"),
        (KeySpec("acme", ["inference"], "", 0.0), "ttl"),
        (KeySpec("acme", ["inference"], "", -5.0), "ttl"),
        (KeySpec("acme", ["inference"], "n" * 201, None), "note"),
    ],
)
def test_key(spec: KeySpec, field: str | None) -> None:
    fault = tenants.check_key(spec, tenants={"acme", "shadow"}, scopes={"inference", "admin"})
    assert (fault.field if fault else None) == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"action": "block", "replacement": ""}, None),
        ({"id": "Card"}, "id"),
        ({"category": "PII"}, "category"),
        ({"category": ""}, "category"),
        ({"action": "delete"}, "action"),
        ({"stage": "never"}, "stage"),
        ({"action": "flag"}, "replacement"),
        ({"replacement": "x" * 201}, "replacement"),
        ({"pattern": ""}, "pattern"),
        ({"pattern": "x" * 2001}, "pattern"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "[a"}, "pattern"),
    ],
)
def test_safety_rule(changes: dict[str, Any], field: str | None) -> None:
    rules = [dataclasses.replace(RULE, **changes)]
    fault = safety.check_policy("default", rules, pattern_fault=pattern_fault)
    assert (fault.field if fault else None) == (f"policy.rules[0].{field}" if field else None)


def test_safety_policy() -> None:
    assert safety.check_policy("default", [], pattern_fault=pattern_fault) is None
    assert safety.check_policy("No", [], pattern_fault=pattern_fault) is not None
    twice = safety.check_policy("default", [RULE, RULE], pattern_fault=pattern_fault)
    assert twice is not None
    assert twice.field == "policy.rules[1].id"
    many = [dataclasses.replace(RULE, id=f"r{number}") for number in range(501)]
    assert safety.check_policy("default", many, pattern_fault=pattern_fault) is not None
