"""Whose word counts: signatures over manifests, and every way in which they do not hold."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import (
    KeyFileError,
    SigningKey,
    TrustError,
    TrustFault,
    ensure_key,
    key_id_of,
    make_key,
    manifest_digest,
    read_key,
    sign,
    signers,
    verify,
)

NOW = 1_800_000_000.0
KEYS = [make_key() for _ in range(4)]


def version(**fields: object) -> pb.ModelVersion:
    made = pb.ModelVersion(
        name="weir-fast",
        version="2",
        artifacts=[pb.Artifact(path="model.safetensors", sha256="a" * 64, bytes=10, role="weights")],
        architecture="LlamaForCausalLM",
        **fields,
    )
    made.digest = manifest_digest(made)
    return made


def signed(*keys: SigningKey, **fields: object) -> pb.ModelVersion:
    made = version(**fields)
    made.signature = sign(made, *keys)
    return made


def trust(keys: Sequence[SigningKey], *, threshold: int = 0, expires: dict[int, float] | None = None) -> pb.TrustPolicy:
    policy = pb.TrustPolicy(namespace="default", keys=[key.trusted() for key in keys], threshold=threshold)
    for index, end in (expires or {}).items():
        policy.keys[index].expires_at.FromNanoseconds(int(end * 1e9))
    return policy


def refused(made: pb.ModelVersion, policy: pb.TrustPolicy | None, *, required: bool = False) -> TrustError:
    with pytest.raises(TrustError) as caught:
        verify(made, policy, NOW, required=required)
    assert "weir-fast@2" in caught.value.message
    return caught.value


def test_a_trusted_signature_holds() -> None:
    made = signed(KEYS[0])
    verified = verify(made, trust(KEYS[:1]), NOW)
    assert (verified.digest, verified.key_ids) == (made.digest, (KEYS[0].key_id,))


def test_without_a_policy_only_the_digest_counts() -> None:
    assert verify(version(), None, NOW).key_ids == ()
    made = version()
    made.context_length = 7
    assert refused(made, None).fault is TrustFault.DIGEST


def test_what_needs_a_signature_needs_a_policy() -> None:
    assert refused(signed(KEYS[0]), None, required=True).fault is TrustFault.NO_POLICY


def test_unsigned() -> None:
    assert refused(version(), trust(KEYS[:1])).fault is TrustFault.NO_SIGNATURE


@pytest.mark.parametrize(
    "signature",
    [
        "x",
        "{}",
        "[]",
        '{"payload": 1, "payloadType": "x", "signatures": []}',
        '{"payload": "!!", "payloadType": "x", "signatures": []}',
        '{"payload": "aaaa", "payloadType": "x", "signatures": [{"keyid": "a", "sig": "zz"}]}',
        '{"payload": "aaaa", "payloadType": "x", "signatures": [{"keyid": 5, "sig": "zz=="}]}',
        '{"payload": "aaaa", "payloadType": "x", "signatures": {}}',
        '{"payload": "aaaa", "payloadType": "text/plain", "signatures": []}',
    ],
)
def test_what_is_no_envelope(signature: str) -> None:
    made = version(signature=signature)
    assert refused(made, trust(KEYS[:1])).fault is TrustFault.MALFORMED


@given(st.text(max_size=200))
def test_no_text_passes_for_a_signature(signature: str) -> None:
    assert refused(version(signature=signature), trust(KEYS[:1])).fault in {
        TrustFault.MALFORMED,
        TrustFault.NO_SIGNATURE,
    }


def test_the_signature_of_another_manifest() -> None:
    made = signed(KEYS[0])
    made.artifacts[0].sha256 = "b" * 64
    made.digest = manifest_digest(made)
    assert refused(made, trust(KEYS[:1])).fault is TrustFault.OTHER_MANIFEST


def test_a_payload_changed_after_it_was_signed() -> None:
    """Record and payload agree, but the signature is over what they were before."""
    made = signed(KEYS[0])
    made.context_length = 5
    made.digest = manifest_digest(made)
    envelope = json.loads(made.signature)
    from libs.artifacts import manifest_bytes

    envelope["payload"] = base64.b64encode(manifest_bytes(made)).decode()
    made.signature = json.dumps(envelope)
    error = refused(made, trust(KEYS[:1]))
    assert (error.fault, error.key_id) == (TrustFault.BAD_SIGNATURE, KEYS[0].key_id)


def test_a_key_that_nobody_trusts() -> None:
    error = refused(signed(KEYS[1]), trust(KEYS[:1]))
    assert error.fault is TrustFault.UNKNOWN_KEY
    assert KEYS[1].key_id[:12] in error.message


def test_a_signature_under_another_keys_name() -> None:
    """An envelope that claims the id of a trusted key for the signature of another."""
    made = signed(KEYS[1])
    made.signature = made.signature.replace(KEYS[1].key_id, KEYS[0].key_id)
    assert refused(made, trust(KEYS[:1])).fault is TrustFault.BAD_SIGNATURE


def test_a_policy_that_gives_a_key_another_name_gains_nothing() -> None:
    """Two entries for one key are one key, whatever ids they claim."""
    policy = trust([KEYS[0], KEYS[0]], threshold=2)
    policy.keys[1].key_id = "f" * 64
    assert refused(signed(KEYS[0]), policy).fault is TrustFault.THRESHOLD


def test_expiry_is_to_the_moment() -> None:
    made = signed(KEYS[0])
    assert verify(made, trust(KEYS[:1], expires={0: NOW + 0.001}), NOW).key_ids
    error = refused(made, trust(KEYS[:1], expires={0: NOW}))
    assert error.fault is TrustFault.EXPIRED_KEY
    assert "2027" in error.message


def test_rotation() -> None:
    """Both keys count while one takes over from the other; then the old one ends, and what both signed goes on."""
    old, new = KEYS[:2]
    before, both, after = signed(old), signed(old, new), signed(new)
    during = trust([old, new])
    for made in (before, both, after):
        verify(made, during, NOW)
    ended = trust([old, new], expires={0: NOW - 1})
    assert verify(both, ended, NOW).key_ids == (new.key_id,)
    assert verify(after, ended, NOW).key_ids == (new.key_id,)
    assert refused(before, ended).fault is TrustFault.EXPIRED_KEY


def test_a_version_signed_again_keeps_the_signatures_that_it_had() -> None:
    made = signed(KEYS[0])
    made.signature = sign(made, KEYS[1])
    assert signers(made) == tuple(sorted(key.key_id for key in KEYS[:2]))
    changed = version(context_length=9, signature=made.signature)
    changed.signature = sign(changed, KEYS[2])
    assert signers(changed) == (KEYS[2].key_id,)


@given(st.sets(st.integers(0, 3), min_size=1), st.sets(st.integers(0, 2)))
def test_two_of_three(by: set[int], expired: set[int]) -> None:
    """It holds exactly when two different keys signed that are trusted (0 to 2) and have not expired."""
    made = signed(*(KEYS[index] for index in sorted(by)))
    policy = trust(KEYS[:3], threshold=2, expires=dict.fromkeys(expired, NOW - 5))
    good = (by & {0, 1, 2}) - expired
    if len(good) >= 2:
        assert set(verify(made, policy, NOW).key_ids) <= {KEYS[index].key_id for index in good}
    else:
        fault = refused(made, policy).fault
        assert fault in {TrustFault.THRESHOLD, TrustFault.EXPIRED_KEY, TrustFault.UNKNOWN_KEY}


def test_the_policy_of_another_namespace() -> None:
    assert refused(signed(KEYS[0], namespace="research"), trust(KEYS[:1])).fault is TrustFault.POLICY


def test_a_policy_with_an_unreadable_key() -> None:
    policy = trust(KEYS[:1])
    policy.keys[0].public_key = "no key"
    assert refused(signed(KEYS[0]), policy).fault is TrustFault.POLICY


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "release"
    made = ensure_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path).key_id == ensure_key(path).key_id == made.key_id
    assert key_id_of((tmp_path / "keys" / "release.pub").read_text()) == made.key_id
    assert "PRIVATE" not in repr(made)


def test_key_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(KeyFileError, match="No such file"):
        read_key(path)
    ensure_key(path)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="others may read"):
        read_key(path)
    path.chmod(0o600)
    path.write_text("-----BEGIN NOTHING-----\n")
    with pytest.raises(KeyFileError, match="PEM"):
        read_key(path)
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    other = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyFileError, match="Ed25519"):
        read_key(path)


def test_checking_signatures_imports_no_client_of_aws_and_leaves_it_to_be_imported() -> None:
    script = "import sys, libs.artifacts; assert 'boto3' not in sys.modules; import libs.artifacts.s3; import boto3"
    subprocess.run([sys.executable, "-c", script], check=True)
