"""Whose signatures count: what a trust policy may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.registry.policy.faults import Fault, check_id, check_sha256, check_text

MAX_KEYS = 16
"""Keys of one namespace."""
_MAX_PEM = 1024


@dataclass(frozen=True, slots=True)
class TrustedKeySpec:
    """A key that may sign."""

    key_id: str
    public_key: str
    """PEM."""
    note: str


@dataclass(frozen=True, slots=True)
class TrustSpec:
    """What is checked of a trust policy; fields as in `weir.registry.v1.TrustPolicy`."""

    namespace: str
    keys: Sequence[TrustedKeySpec]
    threshold: int


def check_trust(spec: TrustSpec, *, key_id_of: Callable[[str], str]) -> Fault | None:
    """The first fault of a trust policy, or None.

    :param key_id_of: the id of an Ed25519 public key in PEM form (SubjectPublicKeyInfo), or ValueError, which says why
        it is none: libs.artifacts.key_id_of.
    """
    if fault := check_id("trust.namespace", spec.namespace):
        return fault
    if not 1 <= len(spec.keys) <= MAX_KEYS:
        return Fault("trust.keys", f"a trust policy needs between 1 and {MAX_KEYS} keys")
    seen: set[str] = set()
    for number, key in enumerate(spec.keys):
        where = f"trust.keys[{number}]"
        fault = check_sha256(f"{where}.key_id", key.key_id) or check_text(f"{where}.note", key.note, 200)
        if fault:
            return fault
        try:
            actual = key_id_of(key.public_key[: _MAX_PEM + 1])
        except ValueError as error:
            return Fault(f"{where}.public_key", f"{where}.public_key: {error}")
        if len(key.public_key) > _MAX_PEM or actual != key.key_id:
            return Fault(f"{where}.key_id", f"{where}.key_id is not that of its public key, {actual}")
        if actual in seen:
            return Fault(f"{where}.key_id", "a key appears twice")
        seen.add(actual)
    # An expired key stays in the list, so that a refusal can name it; whether enough are left is told by the hour.
    if spec.threshold > len(spec.keys):
        return Fault(
            "trust.threshold", f"{spec.threshold} keys must have signed, and there are only {len(spec.keys)} of them"
        )
    return None
