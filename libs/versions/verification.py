"""Whether a registered version may be loaded here: who vouches for it, and whether what it names is there."""

from __future__ import annotations

import re

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import BLOBS, FetchError, TrustError, TrustFault, artifacts_of, full_name, namespace_of, verify
from libs.registry import RegistrySnapshot
from libs.versions.errors import RefusedError
from libs.versions.plan import Fault

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_FAULTS = (TrustFault.DIGEST, TrustFault.OTHER_MANIFEST)


def check_version(version: pb.ModelVersion, snapshot: RegistrySnapshot, *, now: float, required: bool) -> str:
    """The digest of a version whose record holds: its digest is that of its content, its signatures satisfy its
    namespace's trust policy, its safety policy exists, its files lie in the blob store and its hashes are ones.

    `now`: Unix seconds. `required`: refuse what is not signed or has no trust policy.

    :raises RefusedError: something does not hold.
    """
    name = full_name(version)
    try:
        verified = verify(version, snapshot.trust.get(namespace_of(version)), now, required=required)
    except TrustError as error:
        fault = Fault.DIGEST if error.fault in _DIGEST_FAULTS else Fault.SIGNATURE
        raise RefusedError(fault, str(error)) from error
    for field in ("schema_sha256", "tokenizer_sha256", "chat_template_sha256"):
        value = getattr(version, field)
        if value and not _DIGEST.fullmatch(value):
            raise RefusedError(Fault.DIGEST, f"{name}: {field} is no SHA-256")
    _check_policy(version, snapshot)
    if version.source != BLOBS:
        raise RefusedError(Fault.SOURCE, f"{name}: its source is {version.source[:80]!r}, not the blob store")
    if any(each.role == "adapter" for each in version.artifacts):
        raise RefusedError(Fault.SOURCE, f"{name} is an adapter: only workers serve those, that their settings name")
    try:
        if not artifacts_of(version):
            raise RefusedError(Fault.DIGEST, f"{name} has no files")
    except FetchError as error:
        raise RefusedError(Fault.DIGEST, str(error)) from error
    return verified.digest


def basis_of(version: pb.ModelVersion, snapshot: RegistrySnapshot) -> str:
    """All that `check_version` looks at, as text that changes when any of it does."""
    trust = snapshot.trust.get(namespace_of(version))
    return "/".join(
        (
            version.digest,
            version.source,
            version.signature,
            str(trust.revision) if trust is not None else "",
            *_absent(version, snapshot),
        )
    )


def _check_policy(version: pb.ModelVersion, snapshot: RegistrySnapshot) -> None:
    for pin in _absent(version, snapshot):
        raise RefusedError(Fault.POLICY, f"{full_name(version)}: there is no safety policy {pin!r}")


def _absent(version: pb.ModelVersion, snapshot: RegistrySnapshot) -> list[str]:
    """Safety policies that it names and nobody has registered."""
    return [pin for pin in version.safety_policies if pin not in snapshot.safety_policies]
