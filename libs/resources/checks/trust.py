"""Whose signatures count: what a trust policy may say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import check_count
from libs.resources.checks.faults import Fault, check_id, check_sha256, check_text

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

MAX_KEYS = 16
"""Keys of one namespace."""
_MAX_PEM = 1024


def check_trust(message: pb.TrustPolicy, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a trust policy."""
    yield from check_id("metadata.name", message.namespace)
    yield from check_count("spec.keys", message.keys, MAX_KEYS, least=1)
    seen: set[str] = set()
    for number, key in enumerate(message.keys[:MAX_KEYS]):
        path = f"spec.keys[{number}]"
        yield from check_sha256(f"{path}.key_id", key.key_id)
        yield from check_text(f"{path}.note", key.note, 200)
        yield from _check_public(path, key)
        if key.key_id in seen:
            yield Fault(f"{path}.key_id", "a key appears twice")
        seen.add(key.key_id)
    # An expired key stays in the list, so that a refusal can name it; whether enough are left is told by the hour.
    if message.threshold > len(message.keys):
        yield Fault("spec.threshold", f"{message.threshold} keys must sign, and there are only {len(message.keys)}")


def _check_public(path: str, key: pb.TrustedKey) -> Iterator[Fault]:
    from libs.artifacts import key_id_of

    if len(key.public_key) > _MAX_PEM:
        yield Fault(f"{path}.public_key", f"must have at most {_MAX_PEM} characters")
        return
    try:
        actual = key_id_of(key.public_key)
    except ValueError as error:
        yield Fault(f"{path}.public_key", str(error))
        return
    if actual != key.key_id:
        yield Fault(f"{path}.key_id", f"is not that of its public key, {actual}")
