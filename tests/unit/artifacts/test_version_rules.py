"""What the registry asks of a version's newer fields and of a trust policy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from libs.artifacts import key_id_of, make_key
from services.registry.policy import models, trust
from services.registry.policy.models import ArtifactSpec, ModelSpec, ProvenanceSpec
from services.registry.policy.trust import TrustedKeySpec, TrustSpec

HEX = "a" * 64
MODEL = ModelSpec(
    name="weir-fast",
    version="2",
    artifacts=[ArtifactSpec("model.safetensors", HEX, 10, "weights")],
    source="blobs:",
    architecture="LlamaForCausalLM",
    context_length=1024,
    tier="fast",
    pool="fast",
    temperature=0.7,
    top_p=0.95,
    max_tokens=256,
    safety_policy="default",
    training_data_sha256=HEX,
    chat_template_sha256=HEX,
    schema_sha256=HEX,
    tokenizer_sha256=HEX,
    namespace="research",
    safety_policy_version=3,
    metrics={"loss/held-out": 0.333, "mmlu@5": -1.0},
    provenance=ProvenanceSpec("https://host/code", "abc", "pipeline 7", "weir-fast@1"),
    signature_length=2000,
)
KEYS = [make_key() for _ in range(3)]
TRUST = TrustSpec(
    "default", [TrustedKeySpec(key.key_id, key.public_pem, f"key {n}") for n, key in enumerate(KEYS)], threshold=2
)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"namespace": "", "schema_sha256": "", "tokenizer_sha256": "", "provenance": ProvenanceSpec()}, None),
        ({"artifacts": [ArtifactSpec("notes.txt", HEX, 1)]}, None),
        ({"schema_sha256": "x"}, "schema_sha256"),
        ({"tokenizer_sha256": HEX.upper()}, "tokenizer_sha256"),
        ({"namespace": "a/b"}, "namespace"),
        ({"safety_policy_version": 4}, "safety_policy_version"),
        ({"safety_policy": ""}, "safety_policy_version"),
        ({"signature_length": 1 << 20}, "signature"),
        ({"metrics": {"loss": math.nan}}, "offline_metrics['loss']"),
        ({"metrics": {"loss": math.inf}}, "offline_metrics['loss']"),
        ({"metrics": {"": 1.0}}, "offline_metrics['']"),
        ({"metrics": {f"m{n}": 1.0 for n in range(65)}}, "offline_metrics"),
        ({"provenance": ProvenanceSpec(builder="a\nb")}, "provenance.builder"),
        ({"provenance": ProvenanceSpec(source_uri="x" * 1025)}, "provenance.source_uri"),
        ({"provenance": ProvenanceSpec(base="weir-fast")}, "provenance.base"),
        ({"provenance": ProvenanceSpec(base="weir-fast@2")}, "provenance.base"),
        ({"artifacts": [ArtifactSpec("model.bin", HEX, 1, "wheights")]}, "artifacts[0].role"),
        ({"artifacts": [ArtifactSpec("manifest.json", HEX, 1)]}, "artifacts[0].path"),
    ],
)
def test_version(changes: dict[str, Any], field: str | None) -> None:
    fault = models.check_model(dataclasses.replace(MODEL, **changes), policies={"default": 3})
    assert (fault.field if fault else None) == (f"model_version.{field}" if field else None)


def with_key(number: int, **changes: Any) -> dict[str, Any]:
    keys = list(TRUST.keys)
    keys[number] = dataclasses.replace(keys[number], **changes)
    return {"keys": keys}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"threshold": 0}, None),
        ({"threshold": 3}, None),
        ({"threshold": 4}, "threshold"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": "A"}, "namespace"),
        ({"keys": []}, "keys"),
        ({"keys": list(TRUST.keys) * 6}, "keys"),
        ({"keys": [TRUST.keys[0], TRUST.keys[0]]}, "keys[1].key_id"),
        (with_key(1, key_id="b" * 64), "keys[1].key_id"),
        (with_key(1, key_id="short"), "keys[1].key_id"),
        (with_key(1, public_key="not PEM"), "keys[1].public_key"),
        (with_key(1, public_key=KEYS[1].public_pem + " " * 2000), "keys[1].key_id"),
        (with_key(1, public_key=KEYS[2].public_pem), "keys[1].key_id"),
        (with_key(1, public_key=KEYS[1].signer.private_bytes.decode()), "keys[1].public_key"),
        (with_key(2, note="a\0b"), "keys[2].note"),
    ],
)
def test_trust_policy(changes: dict[str, Any], field: str | None) -> None:
    fault = trust.check_trust(dataclasses.replace(TRUST, **changes), key_id_of=key_id_of)
    assert (fault.field if fault else None) == (f"trust.{field}" if field else None)


def test_only_ed25519_keys_are_trusted() -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = rsa.generate_private_key(65537, 2048).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    fault = trust.check_trust(dataclasses.replace(TRUST, **with_key(0, public_key=pem)), key_id_of=key_id_of)
    assert fault is not None
    assert fault.field == "trust.keys[0].public_key"
    assert "Ed25519" in fault.message
