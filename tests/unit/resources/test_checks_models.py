"""What the registry accepts and refuses of model versions, aliases and pins."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.models import check_alias, check_model, check_pin
from libs.resources.snapshot import RegistrySnapshot
from tests.support.messages import fields_of, having

HEX = "a" * 64
ARTIFACT = pb.Artifact(path="model.safetensors", sha256=HEX, bytes=10, role="weights")
MODEL = pb.ModelVersion(
    name="weir-fast",
    version="2",
    artifacts=[ARTIFACT],
    source="blobs:",
    architecture="LlamaForCausalLM",
    context_length=1024,
    tier="fast",
    pool="fast",
    sampling_defaults=pb.SamplingDefaults(temperature=0.7, top_p=0.95, max_tokens=256),
    safety_policies=["default@3"],
    training_data_sha256=HEX,
    chat_template_sha256=HEX,
    schema_sha256=HEX,
    tokenizer_sha256=HEX,
    namespace="research",
    offline_metrics={"loss/held-out": 0.333, "mmlu@5": -1.0},
    provenance=pb.Provenance(source_uri="https://host/code", revision="abc", builder="pipeline 7", base="weir-fast@1"),
    signature="s" * 2000,
)
SNAPSHOT = RegistrySnapshot()


def artifact(**changes: Any) -> dict[str, Any]:
    return {"artifacts": [having(ARTIFACT, **changes)]}


def sampling(**changes: Any) -> dict[str, Any]:
    return {"sampling_defaults": having(MODEL.sampling_defaults, **changes)}


def provenance(**changes: Any) -> dict[str, Any]:
    return {"provenance": having(MODEL.provenance, **changes)}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"safety_policies": []}, []),
        ({"safety_policies": [f"p{number}@1" for number in range(8)]}, []),
        ({"safety_policies": [f"p{number}@1" for number in range(9)]}, ["spec.safety_policies"]),
        ({"safety_policies": ["a@1", "b@1", "a@1"]}, ["spec.safety_policies[2]"]),
        ({"safety_policies": [""]}, ["spec.safety_policies[0]"]),
        (sampling(max_tokens=0, temperature=0.0, top_p=1.0), []),
        (sampling(max_tokens=1024, temperature=2.0), []),
        (dict.fromkeys(("namespace", "schema_sha256", "tokenizer_sha256", "provenance", "signature"), None), []),
        (dict.fromkeys(("training_data_sha256", "chat_template_sha256", "architecture"), ""), []),
        ({"artifacts": [pb.Artifact(path="notes.txt", sha256=HEX, bytes=1)]}, []),
        # Whether it exists is asked of all references alike.
        ({"safety_policies": ["gone@1"]}, []),
        ({"name": ""}, ["metadata.name"]),
        ({"name": "Weir"}, ["metadata.name"]),
        ({"name": "a/b"}, ["metadata.name"]),
        ({"name": "a@b"}, ["metadata.name"]),
        ({"name": "-a"}, ["metadata.name"]),
        ({"name": "a" * 63}, []),
        ({"name": "a" * 64}, ["metadata.name"]),
        ({"name": "a\n"}, ["metadata.name"]),
        ({"version": "1 2"}, ["metadata.name"]),
        ({"version": "../x"}, ["metadata.name"]),
        ({"version": ""}, ["metadata.name"]),
        ({"version": "x" * 33}, ["metadata.name"]),
        ({"namespace": "a/b"}, ["metadata.namespace"]),
        ({"pool": ""}, ["spec.pool"]),
        ({"pool": "No!"}, ["spec.pool"]),
        ({"source": ""}, ["spec.source"]),
        ({"source": "a\0b"}, ["spec.source"]),
        ({"source": "a" * 1025}, ["spec.source"]),
        ({"architecture": "a" * 101}, ["spec.architecture"]),
        ({"tier": "huge"}, ["spec.tier"]),
        ({"tier": ""}, ["spec.tier"]),
        ({"context_length": 0}, ["spec.context_length", "spec.sampling_defaults.max_tokens"]),
        ({"context_length": 16 * 1024 * 1024}, []),
        ({"context_length": 16 * 1024 * 1024 + 1}, ["spec.context_length"]),
        ({"training_data_sha256": "xyz"}, ["spec.training_data_sha256"]),
        ({"chat_template_sha256": "a" * 63}, ["spec.chat_template_sha256"]),
        ({"schema_sha256": "x"}, ["spec.schema_sha256"]),
        ({"tokenizer_sha256": HEX.upper()}, ["spec.tokenizer_sha256"]),
        ({"signature": "s" * 256 * 1024}, []),
        ({"signature": "s" * (256 * 1024 + 1)}, ["spec.signature"]),
        (sampling(temperature=math.nan), ["spec.sampling_defaults.temperature"]),
        (sampling(temperature=2.1), ["spec.sampling_defaults.temperature"]),
        (sampling(temperature=-0.1), ["spec.sampling_defaults.temperature"]),
        (sampling(top_p=0.0), ["spec.sampling_defaults.top_p"]),
        (sampling(top_p=1.1), ["spec.sampling_defaults.top_p"]),
        (sampling(top_p=math.nan), ["spec.sampling_defaults.top_p"]),
        (sampling(max_tokens=1025), ["spec.sampling_defaults.max_tokens"]),
        ({"sampling_defaults": None}, ["spec.sampling_defaults.top_p"]),
        ({"offline_metrics": {"loss": math.nan}}, ["spec.offline_metrics[loss]"]),
        ({"offline_metrics": {"loss": math.inf}}, ["spec.offline_metrics[loss]"]),
        ({"offline_metrics": {"": 1.0}}, ["spec.offline_metrics[]"]),
        ({"offline_metrics": {"a\n": 1.0}}, ["spec.offline_metrics[a\\n]"]),
        ({"offline_metrics": {"m" * 65: 1.0}}, [f"spec.offline_metrics[{'m' * 64}]"]),
        ({"offline_metrics": {f"m{n}": 1.0 for n in range(64)}}, []),
        ({"offline_metrics": {f"m{n}": 1.0 for n in range(65)}}, ["spec.offline_metrics"]),
        (provenance(builder="a\nb"), ["spec.provenance.builder"]),
        (provenance(revision="x" * 201), ["spec.provenance.revision"]),
        (provenance(source_uri="x" * 1025), ["spec.provenance.source_uri"]),
        (provenance(base="weir-fast"), ["spec.provenance.base"]),
        (provenance(base="Weir@1"), ["spec.provenance.base"]),
        (provenance(base="weir@"), ["spec.provenance.base"]),
        (provenance(base="weir-fast@2"), ["spec.provenance.base"]),
        ({"artifacts": []}, ["spec.artifacts"]),
        ({"artifacts": [ARTIFACT] * 2}, ["spec.artifacts[1].path"]),
        ({"artifacts": [having(ARTIFACT, path=f"f{n}") for n in range(512)]}, []),
        ({"artifacts": [having(ARTIFACT, path=f"f{n}") for n in range(513)]}, ["spec.artifacts"]),
        (artifact(path="a/b.bin"), []),
        (artifact(path="/etc/passwd"), ["spec.artifacts[0].path"]),
        (artifact(path="../x"), ["spec.artifacts[0].path"]),
        (artifact(path="a/../../x"), ["spec.artifacts[0].path"]),
        (artifact(path="a//b"), ["spec.artifacts[0].path"]),
        (artifact(path="a\\b"), ["spec.artifacts[0].path"]),
        (artifact(path="a\nb"), ["spec.artifacts[0].path"]),
        (artifact(path="."), ["spec.artifacts[0].path"]),
        (artifact(path=""), ["spec.artifacts[0].path"]),
        (artifact(path="manifest.json"), ["spec.artifacts[0].path"]),
        (artifact(sha256=HEX.upper()), ["spec.artifacts[0].sha256"]),
        (artifact(sha256=""), ["spec.artifacts[0].sha256"]),
        (artifact(bytes=0), ["spec.artifacts[0].bytes"]),
        (artifact(role=""), []),
        (artifact(role="wheights"), ["spec.artifacts[0].role"]),
    ],
)
def test_model(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_model, having(MODEL, **changes), SNAPSHOT) == fields


def test_all_faults_of_a_model_come_at_once() -> None:
    wrong = having(MODEL, name="No!", tier="huge", pool="", **artifact(path="../x", bytes=0), **provenance(base="x"))
    assert fields_of(check_model, wrong, SNAPSHOT) == [
        "metadata.name",
        "spec.pool",
        "spec.tier",
        "spec.provenance.base",
        "spec.artifacts[0].path",
        "spec.artifacts[0].bytes",
    ]


def target(model_version: str, weight: int, arm: str = "") -> pb.AliasTarget:
    return pb.AliasTarget(model_version=model_version, weight=weight, arm=arm)


@pytest.mark.parametrize(
    ("targets", "fields"),
    [
        ([target("m@1", 100)], []),
        ([target("m@1", 90, "control"), target("m@2", 10, "new")], []),
        ([target("m@1", 100), target("m@2", 0)], []),
        ([target("m@1", 50, "a"), target("m@1", 50, "b")], []),
        ([target("m@1", 100 if n == 0 else 0, f"a{n}") for n in range(16)], []),
        ([target("m@1", 100 if n == 0 else 0, f"a{n}") for n in range(17)], ["spec.targets"]),
        ([], ["spec.targets", "spec.targets"]),
        ([target("m@1", 99)], ["spec.targets"]),
        ([target("m@1", 60), target("m@2", 60)], ["spec.targets"]),
        ([target("", 100)], ["spec.targets[0].model_version"]),
        ([target("m@1", 50), target("m@1", 50)], ["spec.targets[1].model_version"]),
        ([target("m@1", 100, "Ä")], ["spec.targets[0].arm"]),
        (
            [target("m@1", 5, "Ä"), target("", 5)],
            ["spec.targets[0].arm", "spec.targets[1].model_version", "spec.targets"],
        ),
    ],
)
def test_alias(targets: list[pb.AliasTarget], fields: list[str]) -> None:
    assert fields_of(check_alias, pb.Alias(name="weir-fast", targets=targets)) == fields


@pytest.mark.parametrize("name", ["m@1", "", "No", "a/b"])
def test_an_alias_looks_like_no_version(name: str) -> None:
    assert fields_of(check_alias, pb.Alias(name=name, targets=[target("m@1", 100)])) == ["metadata.name"]


@given(st.lists(st.integers(0, 120), min_size=1, max_size=8))
def test_alias_weights_must_sum_to_100(weights: list[int]) -> None:
    targets = [target("m@1", weight, f"arm{number}") for number, weight in enumerate(weights)]
    assert (not fields_of(check_alias, pb.Alias(name="a", targets=targets))) is (sum(weights) == 100)


@pytest.mark.parametrize(
    ("reason", "fields"),
    [("r" * 500, []), ("", ["spec.reason"]), ("r" * 501, ["spec.reason"]), ("a\nb", ["spec.reason"])],
)
def test_pin(reason: str, fields: list[str]) -> None:
    assert fields_of(check_pin, pb.Pin(model_version="m@1", reason=reason)) == fields
