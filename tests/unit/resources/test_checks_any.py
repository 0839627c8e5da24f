"""What holds of every check: it answers whatever it is asked, at a bounded price, and needs next to nothing loaded."""

from __future__ import annotations

import inspect
import subprocess
import sys
from itertools import islice
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks import rollouts, tenants
from libs.resources.checks.faults import Fault
from libs.resources.checks.tenants import check_key
from libs.resources.kind import Kind
from libs.resources.kinds import ATTRIBUTE, BY_MESSAGE, KINDS
from libs.resources.snapshot import RegistrySnapshot
from tests.support.messages import EMPTY, WORDS, having, messages

APPLIED = [kind for kind in KINDS if kind.check is not None]
HELD = {
    ATTRIBUTE[BY_MESSAGE[message].plural]: st.dictionaries(
        st.sampled_from([("worker", "a"), ("a", "b")] if BY_MESSAGE[message].parts > 1 else ["a", "m@1", "acme", ""]),
        messages(message, 1),
        max_size=1,
    ).map(MappingProxyType)
    for message in (pb.Alias, pb.ModelVersion, pb.SafetyPolicy, pb.Tenant, pb.Endpoint)
}
SNAPSHOTS = st.builds(RegistrySnapshot, **HELD)
"""Some of what checks look up, under names that random messages use, and as wrong as those."""


@pytest.mark.parametrize("kind", APPLIED, ids=lambda kind: kind.name)
@settings(max_examples=15)  # of each of many kinds
@given(st.data())
def test_no_check_raises(kind: Kind, data: st.DataObject) -> None:
    assert kind.check is not None
    found = list(kind.check(data.draw(messages(kind.message)), data.draw(SNAPSHOTS)))
    assert all(isinstance(fault, Fault) and fault.message for fault in found)
    assert all(fault.field == "spec" or fault.field.startswith(("spec.", "metadata.")) for fault in found)
    assert all(fault.field.isprintable() and len(fault.field) < 200 for fault in found)


@given(messages(pb.CreateKeyRequest), st.sets(st.text(max_size=3), max_size=3))
def test_no_key_makes_its_check_raise(request: pb.CreateKeyRequest, scopes: set[str]) -> None:
    assert all(
        fault.field.partition("[")[0] in ("tenant", "scopes", "ttl", "note") for fault in check_key(request, scopes)
    )


@pytest.mark.parametrize("kind", APPLIED, ids=lambda kind: kind.name)
def test_faults_are_found_one_by_one(kind: Kind) -> None:
    """Whoever asks cuts: the rest of a hostile message is not even looked at."""
    assert kind.check is not None
    assert inspect.isgeneratorfunction(kind.check)
    rules = [pb.SafetyRule(id="No!", pattern="(" * 2000)] * 10_000
    assert len(list(islice(kind.check(kind.message(), EMPTY), 2))) <= 2
    if kind.message is pb.SafetyPolicy:
        first = list(islice(kind.check(pb.SafetyPolicy(id="p", version="1", rules=rules), EMPTY), 3))
        assert [fault.field for fault in first] == ["spec.rules", "spec.rules[0].id", "spec.rules[0].category"]


MANY = 10_000


@pytest.mark.parametrize(
    ("message", "field", "most"),
    [
        (pb.SafetyPolicy(rules=[pb.SafetyRule()] * MANY), "rules", 500),
        (pb.TrustPolicy(keys=[pb.TrustedKey()] * MANY), "keys", 16),
        (pb.RoleBinding(namespaces=["No!"] * MANY), "namespaces", 100),
        (pb.ModelVersion(artifacts=[pb.Artifact()] * MANY), "artifacts", 512),
        (pb.ModelVersion(offline_metrics={f"!{n}": 1.0 for n in range(MANY)}), "offline_metrics", 64),
        (pb.Alias(targets=[pb.AliasTarget()] * MANY), "targets", 16),
        (pb.PlanPolicy(ladder=[pb.DegradationStep()] * MANY), "ladder", 8),
        (
            pb.PlanPolicy(ladder=[{"cpu_fallback": {"pools": {f"{n:05}": "x" for n in range(MANY)}}}]),
            "ladder[0].cpu_fallback.pools",
            100,
        ),
        (
            pb.PlanPolicy(ladder=[{"smaller_model": {"models": {f"{n:05}": "" for n in range(MANY)}}}]),
            "ladder[0].smaller_model.models",
            100,
        ),
        (pb.Tenant(workloads=["x"] * MANY), "workloads", 100),
        (pb.Rollout(arms=[pb.RolloutArm()] * MANY), "arms", 8),
        (pb.Rollout(steps=[pb.RolloutStep()] * MANY), "steps", 20),
        (pb.Rollout(gates=[pb.Gate()] * MANY), "gates", 30),
        (pb.Rollout(blast_radius={"only_tenants": [""] * MANY}), "blast_radius.only_tenants", 1000),
        (pb.Rollout(blast_radius={"except_tenants": [""] * MANY}), "blast_radius.except_tenants", 1000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_elements_are_bounded(message: Any, field: str, most: int) -> None:
    check = BY_MESSAGE[type(message)].check
    assert check is not None
    found = [fault.field for fault in check(message, EMPTY)]
    assert f"spec.{field}" in found
    looked_at = {each.split("]")[field.count("]")] for each in found if each.startswith(f"spec.{field}[")}
    assert len(looked_at) == most


@pytest.mark.parametrize("kind", APPLIED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("word", ["x" * 100_000, *WORDS], ids=lambda word: repr(word[:20]))
def test_any_text_makes_short_faults(kind: Kind, word: str) -> None:
    text = [each for each in kind.message.DESCRIPTOR.fields if each.type == each.TYPE_STRING and not each.is_repeated]
    assert kind.check is not None
    for fault in kind.check(having(kind.message(), **{each.name: word for each in text}), EMPTY):
        assert len(fault.message) < 500


def test_names_that_checks_repeat_are_the_same_elsewhere() -> None:
    """The checks cannot import these: they are below libs.rollouts."""
    from libs.rollouts import BASELINE, SHADOW_TENANT
    from libs.rollouts.exposure import WHOLE

    assert (rollouts.BASELINE, rollouts.WHOLE) == (BASELINE, WHOLE)
    assert {SHADOW_TENANT} == tenants.RESERVED


def test_the_table_of_kinds_is_light() -> None:
    heavy = ("grpc", "asyncio", "cryptography", "zoneinfo", "libs.artifacts", "libs.safety_filter", "libs.registry")
    script = f"import sys, libs.resources.kinds; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
