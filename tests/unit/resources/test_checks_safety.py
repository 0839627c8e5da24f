"""What the registry accepts and refuses of safety policies and of trust."""

from __future__ import annotations

from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import make_key
from libs.resources.checks.safety import check_floor, check_policy
from libs.resources.checks.trust import check_trust
from tests.support.messages import EMPTY, fields_of, having

RULE = pb.SafetyRule(
    id="card", category="pii.card_number", pattern=r"\d{16}", action="redact", stage="both", replacement="[card]"
)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"action": "block", "replacement": ""}, []),
        ({"category": "a.b.c.d", "stage": "input", "replacement": "x" * 200}, []),
        ({"id": "Card"}, ["id"]),
        ({"category": "PII"}, ["category"]),
        ({"category": ""}, ["category"]),
        ({"category": "a.b.c.d.e"}, ["category"]),
        ({"category": "a" * 101}, ["category"]),
        ({"action": "delete"}, ["action", "replacement"]),
        ({"action": "flag"}, ["replacement"]),
        ({"action": "tokenise", "stage": "input", "replacement": "CARD"}, []),
        ({"action": "tokenise", "stage": "both", "replacement": "CARD"}, ["stage"]),
        ({"action": "tokenise", "stage": "input", "replacement": "card 1"}, ["replacement"]),
        ({"action": "tokenise", "stage": "input", "replacement": ""}, ["replacement"]),
        ({"stage": "never"}, ["stage"]),
        ({"replacement": "x" * 201}, ["replacement"]),
        ({"replacement": "a\0"}, ["replacement"]),
        ({"pattern": ""}, ["pattern"]),
        ({"pattern": "x" * 2001}, ["pattern"]),
        ({"pattern": "("}, ["pattern"]),
        ({"pattern": "[a"}, ["pattern"]),
        ({"pattern": "(" * 2000}, ["pattern"]),
        ({"id": "", "category": "", "stage": "", "pattern": ")"}, ["id", "category", "stage", "pattern"]),
    ],
)
def test_rule(changes: dict[str, Any], fields: list[str]) -> None:
    policy = pb.SafetyPolicy(id="default", version="1", rules=[having(RULE, id="other"), having(RULE, **changes)])
    assert fields_of(check_policy, policy) == [f"spec.rules[1].{each}" for each in fields]


def test_longest_pattern() -> None:
    """Its length is fine; whether it compiles is the dialect's to say."""
    policy = pb.SafetyPolicy(id="default", version="1", rules=[having(RULE, pattern="x" * 2000)])
    assert all("compile" in fault.message for fault in check_policy(policy, EMPTY))


def test_policy() -> None:
    assert fields_of(check_policy, pb.SafetyPolicy(id="default", version="1")) == []
    assert fields_of(check_policy, pb.SafetyPolicy(id="No", version="1")) == ["metadata.name"]
    for version in ("", "a b", "x" * 33, "0"):
        assert fields_of(check_policy, pb.SafetyPolicy(id="default", version=version)) == ["metadata.name"], version
    assert fields_of(check_policy, pb.SafetyPolicy(id="default", version="1", rules=[RULE, RULE])) == [
        "spec.rules[1].id"
    ]
    many = [having(RULE, id=f"r{number}") for number in range(501)]
    assert fields_of(check_policy, pb.SafetyPolicy(id="default", version="1", rules=many[:500])) == []
    assert fields_of(check_policy, pb.SafetyPolicy(id="No", version="1", rules=many)) == ["metadata.name", "spec.rules"]


def test_floor() -> None:
    assert fields_of(check_floor, pb.SafetyFloor(policies=["default@1", "strict@2"])) == []
    assert fields_of(check_floor, pb.SafetyFloor()) == ["spec.policies"]
    assert fields_of(check_floor, pb.SafetyFloor(policies=["a@1", "", "a@1"])) == [
        "spec.policies[1]",
        "spec.policies[2]",
    ]
    assert fields_of(check_floor, pb.SafetyFloor(policies=[f"a@{n}" for n in range(9)])) == ["spec.policies"]


def test_why_a_pattern_does_not_compile() -> None:
    policy = pb.SafetyPolicy(id="default", version="1", rules=[having(RULE, pattern="a*")])
    (fault,) = check_policy(policy, EMPTY)
    assert "does not compile" in fault.message


KEYS = [make_key() for _ in range(3)]
TRUST = pb.TrustPolicy(
    namespace="default",
    keys=[
        pb.TrustedKey(key_id=key.key_id, public_key=key.public_pem, note=f"key {number}")
        for number, key in enumerate(KEYS)
    ],
    threshold=2,
)


def with_key(number: int, **changes: Any) -> dict[str, Any]:
    keys = list(TRUST.keys)
    keys[number] = having(keys[number], **changes)
    return {"keys": keys}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"threshold": 0}, []),
        ({"threshold": 3}, []),
        ({"threshold": 4}, ["spec.threshold"]),
        ({"namespace": ""}, ["metadata.name"]),
        ({"namespace": "A"}, ["metadata.name"]),
        ({"keys": []}, ["spec.keys", "spec.threshold"]),
        ({"keys": [TRUST.keys[0], TRUST.keys[0]]}, ["spec.keys[1].key_id"]),
        (with_key(1, key_id="b" * 64), ["spec.keys[1].key_id"]),
        (with_key(1, key_id="short"), ["spec.keys[1].key_id", "spec.keys[1].key_id"]),
        (with_key(1, public_key="not PEM"), ["spec.keys[1].public_key"]),
        (with_key(1, public_key=""), ["spec.keys[1].public_key"]),
        (with_key(1, public_key=KEYS[1].public_pem + " " * 2000), ["spec.keys[1].public_key"]),
        (with_key(1, public_key=KEYS[2].public_pem), ["spec.keys[1].key_id"]),
        (with_key(1, public_key=KEYS[1].signer.private_bytes.decode()), ["spec.keys[1].public_key"]),
        (with_key(2, note="a\0b"), ["spec.keys[2].note"]),
        (with_key(2, note="a" * 201), ["spec.keys[2].note"]),
        (
            {"namespace": "A", **with_key(0, key_id="x", public_key="", note="\0"), "threshold": 4},
            ["metadata.name", "spec.keys[0].key_id", "spec.keys[0].note", "spec.keys[0].public_key", "spec.threshold"],
        ),
    ],
)
def test_trust(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_trust, having(TRUST, **changes)) == fields


def test_a_namespace_has_sixteen_keys_at_most() -> None:
    keys = [make_key() for _ in range(17)]
    trusted = [pb.TrustedKey(key_id=key.key_id, public_key=key.public_pem) for key in keys]
    assert fields_of(check_trust, having(TRUST, keys=trusted[:16])) == []
    assert fields_of(check_trust, having(TRUST, keys=trusted)) == ["spec.keys"]


def test_only_ed25519_keys_are_trusted() -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = rsa.generate_private_key(65537, 2048).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    (fault,) = check_trust(having(TRUST, **with_key(0, public_key=pem)), EMPTY)
    assert fault.field == "spec.keys[0].public_key"
    assert "Ed25519" in fault.message
