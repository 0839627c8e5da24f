"""Signatures over manifests: DSSE envelopes (github.com/secure-systems-lab/dsse) with Ed25519 keys.

An envelope holds the canonical manifest itself, so a signature says what was signed even where the record was changed
later; `verify` compares the two byte for byte. Keys are known by the id that securesystemslib gives them, SHA-256 of
their canonical form, which is computed from the key and never taken from what somebody says that it is.
"""

from __future__ import annotations

import enum
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.envelopes import (
    CryptoSigner,
    Envelope,
    Key,
    SSlibKey,
    UnverifiedSignatureError,
    VerificationError,
)
from libs.artifacts.manifest import full_name, manifest_bytes, manifest_digest
from libs.resources.namespaces import namespace_of

PAYLOAD_TYPE = "application/vnd.weir.model-manifest.v1+json"
"""What an envelope's payload is."""


class _Signature(msgspec.Struct, frozen=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True):
    """The form of an envelope; the library checks its content, not its types."""

    payload: str
    payloadType: str  # noqa: N815 - as DSSE spells it
    signatures: list[_Signature]


class TrustFault(enum.Enum):
    """What does not hold."""

    DIGEST = "digest"
    """The record's digest is not that of its content."""
    NO_SIGNATURE = "no_signature"
    """It is not signed, and must be."""
    MALFORMED = "malformed"
    """The signature is no DSSE envelope over a manifest."""
    OTHER_MANIFEST = "other_manifest"
    """The envelope holds another manifest than the record."""
    UNKNOWN_KEY = "unknown_key"
    """No signature is by a key that the namespace trusts."""
    BAD_SIGNATURE = "bad_signature"
    """A trusted key's signature does not fit."""
    EXPIRED_KEY = "expired_key"
    """The key was trusted, and is no longer."""
    THRESHOLD = "threshold"
    """Fewer trusted keys have signed than must."""
    NO_POLICY = "no_policy"
    """Signatures are required, and nobody is trusted."""
    POLICY = "policy"
    """The trust policy itself makes no sense."""


class TrustError(Exception):
    """A model version must not be used; the message says why in one sentence that names it."""

    def __init__(self, fault: TrustFault, message: str, *, key_id: str = "") -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.key_id = key_id
        """The key concerned, if it is about one."""


class KeyFileError(Exception):
    """A key cannot be read or must not be used; the message names the file, never its content."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key; neither printed nor compared."""

    signer: CryptoSigner

    @property
    def key_id(self) -> str:
        """64 hex digits."""
        return self.signer.public_key.keyid

    @property
    def public_pem(self) -> str:
        """The public key: PEM, SubjectPublicKeyInfo."""
        raw = bytes.fromhex(self.signer.public_key.keyval["public"])
        pem = Ed25519PublicKey.from_public_bytes(raw).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem.decode()

    def trusted(self, note: str = "") -> pb.TrustedKey:
        """How a trust policy names it."""
        return pb.TrustedKey(key_id=self.key_id, public_key=self.public_pem, note=note)

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id[:12]})"


@dataclass(frozen=True, slots=True)
class Verified:
    """A version whose digest and signatures hold."""

    digest: str
    """64 hex digits."""
    key_ids: tuple[str, ...]
    """Trusted keys that signed; empty where nobody is asked."""


def make_key() -> SigningKey:
    """A new Ed25519 key."""
    return SigningKey(CryptoSigner.generate_ed25519())


def write_key(path: Path, key: SigningKey) -> None:
    """Writes a private key (PEM, PKCS #8, mode 0600) and, beside it as PATH.pub, the public one. Neither may exist.

    :raises KeyFileError: there is a file already, or it cannot be written.
    """
    public = path.with_name(f"{path.name}.pub")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file, mode, content in ((path, 0o600, key.signer.private_bytes), (public, 0o644, key.public_pem.encode())):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
    except FileExistsError as error:
        raise KeyFileError(f"{error.filename} exists; a key is never overwritten") from error
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error


def read_key(path: Path) -> SigningKey:
    """A private key from a file that only its owner may read.

    :raises KeyFileError: it is missing, readable by others, or no unencrypted Ed25519 key in PEM form.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as handle:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
                raise KeyFileError(f"{path}: others may read this private key; `chmod 600` it")
            content = handle.read(16_384)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    try:
        private = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path}: no unencrypted private key in PEM form") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: not an Ed25519 key")
    return SigningKey(CryptoSigner(private))


def ensure_key(path: Path) -> SigningKey:
    """The key in a file, made when there is none.

    :raises KeyFileError: as `read_key` and `write_key`.
    """
    if not path.exists():
        write_key(path, make_key())
    return read_key(path)


def public_key(pem: str) -> Key:
    """A public key from its PEM form, with its id.

    :raises ValueError: it is no Ed25519 key in SubjectPublicKeyInfo form.
    """
    try:
        parsed = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("no public key in PEM form (SubjectPublicKeyInfo)") from error
    if not isinstance(parsed, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return SSlibKey.from_crypto(parsed)


def key_id_of(pem: str) -> str:
    """The id of a public key in PEM form, 64 hex digits.

    :raises ValueError: as `public_key`.
    """
    return public_key(pem).keyid


def sign(version: pb.ModelVersion, *keys: SigningKey) -> str:
    """A DSSE envelope (JSON) over the version's manifest by all keys; what `ModelVersion.signature` shall be.

    Signatures that the version already has over the same manifest are kept, so that several may sign one after another.

    :raises ValueError: no key is given.
    """
    if not keys:
        raise ValueError("a key is needed to sign")
    payload = manifest_bytes(version)
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    if version.signature:
        try:
            before = read_envelope(version.signature)
        except ValueError:
            before = envelope
        if (before.payload, before.payload_type) == (payload, PAYLOAD_TYPE):
            envelope = before
    for key in keys:
        envelope.sign(key.signer)
    return json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":"))


def read_envelope(signature: str) -> Envelope:
    """The envelope in `ModelVersion.signature`.

    :raises ValueError: it is none.
    """
    try:
        return Envelope.from_dict(msgspec.to_builtins(msgspec.json.decode(signature, type=_Envelope)))
    except (ValueError, RecursionError) as error:
        raise ValueError("no DSSE envelope") from error


def signers(version: pb.ModelVersion) -> tuple[str, ...]:
    """Ids of the keys whose signatures the version carries, unchecked, for display."""
    try:
        return tuple(sorted(read_envelope(version.signature).signatures)) if version.signature else ()
    except ValueError:
        return ()


def verify(version: pb.ModelVersion, policy: pb.TrustPolicy | None, now: float, *, required: bool = False) -> Verified:
    """Checks that a version is what its digest says and that enough trusted keys vouch for it.

    :param policy: its namespace's; None when it has none: then only the digest is checked, and that an envelope, if
        there is one, holds this manifest; unless a signature is `required`.
    :param now: Unix seconds; keys that expired by then do not count.
    :raises TrustError: something does not hold.
    """
    name = full_name(version)
    digest = manifest_digest(version)
    if version.digest and version.digest != digest:
        raise TrustError(
            TrustFault.DIGEST, f"{name}: its digest is {version.digest[:12]}…, its content has {digest[:12]}…"
        )
    if policy is None:
        if required:
            raise TrustError(
                TrustFault.NO_POLICY,
                f"{name}: signatures are required, and namespace {namespace_of(version)!r} has no trust policy",
            )
        if version.signature:
            # Nobody says whose word counts, but it must be about this manifest.
            _envelope_of(version, name)
        return Verified(digest, ())
    if policy.namespace != namespace_of(version):
        raise TrustError(
            TrustFault.POLICY,
            f"{name} is of namespace {namespace_of(version)!r}, this trust policy of {policy.namespace!r}",
        )
    envelope = _envelope_of(version, name)
    keys, expired = _usable(policy, name, now)
    threshold = policy.threshold or 1
    good, bad = _sort(envelope, keys)
    if len(good) < threshold:
        raise _refusal(name, envelope, threshold=threshold, good=good, bad=bad, expired=expired)
    # The library decides; what stands above only finds the words for a refusal.
    try:
        accepted = envelope.verify(list(keys.values()), threshold)
    except (VerificationError, ValueError) as error:
        raise TrustError(TrustFault.BAD_SIGNATURE, f"{name}: the signatures do not hold ({error})") from error
    return Verified(digest, tuple(sorted(accepted)))


def _envelope_of(version: pb.ModelVersion, name: str) -> Envelope:
    if not version.signature:
        raise TrustError(
            TrustFault.NO_SIGNATURE,
            f"{name} is not signed; namespace {namespace_of(version)!r} takes only signed versions",
        )
    try:
        envelope = read_envelope(version.signature)
    except ValueError as error:
        raise TrustError(TrustFault.MALFORMED, f"{name}: its signature is no DSSE envelope") from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise TrustError(
            TrustFault.MALFORMED, f"{name}: its signature is over {str(envelope.payload_type)[:60]!r}, not a manifest"
        )
    if envelope.payload != manifest_bytes(version):
        raise TrustError(TrustFault.OTHER_MANIFEST, f"{name}: what was signed is another manifest than this one")
    return envelope


def _usable(policy: pb.TrustPolicy, name: str, now: float) -> tuple[dict[str, Key], dict[str, float]]:
    """Keys that count now by id, and the others' times of expiry."""
    keys: dict[str, Key] = {}
    expired: dict[str, float] = {}
    for trusted in policy.keys:
        try:
            key = public_key(trusted.public_key)
        except ValueError as error:
            raise TrustError(
                TrustFault.POLICY, f"{name}: key {trusted.key_id[:12]}… of {policy.namespace!r} is unusable: {error}"
            ) from error
        end = trusted.expires_at.seconds + trusted.expires_at.nanos * 1e-9
        if trusted.HasField("expires_at") and end <= now:
            expired[key.keyid] = end
        else:
            keys[key.keyid] = key
    return keys, {key_id: end for key_id, end in expired.items() if key_id not in keys}


def _sort(envelope: Envelope, keys: Mapping[str, Key]) -> tuple[list[str], list[str]]:
    """Ids of usable keys whose signature fits, and of those whose does not."""
    good: list[str] = []
    bad: list[str] = []
    pae = envelope.pae()
    for key_id, signature in envelope.signatures.items():
        if key_id in keys:
            try:
                keys[key_id].verify_signature(signature, pae)
                good.append(key_id)
            except UnverifiedSignatureError:
                bad.append(key_id)
    return good, bad


def _refusal(
    name: str,
    envelope: Envelope,
    *,
    threshold: int,
    good: list[str],
    bad: list[str],
    expired: Mapping[str, float],
) -> TrustError:
    late = sorted(envelope.signatures.keys() & expired.keys())
    if bad:
        return TrustError(
            TrustFault.BAD_SIGNATURE, f"{name}: the signature of key {bad[0][:12]}… does not fit", key_id=bad[0]
        )
    if late:
        return TrustError(
            TrustFault.EXPIRED_KEY,
            f"{name}: signed by key {late[0][:12]}…, which is not trusted any more since {_date(expired[late[0]])}",
            key_id=late[0],
        )
    if good:
        return TrustError(
            TrustFault.THRESHOLD, f"{name}: {threshold} trusted keys must have signed it, {len(good)} has or have"
        )
    who = _names(envelope.signatures)
    return TrustError(TrustFault.UNKNOWN_KEY, f"{name}: {who}", key_id=next(iter(envelope.signatures), ""))


def _names(key_ids: Iterable[str]) -> str:
    shown = [f"{key_id[:12]}…" for key_id in key_ids]
    if not shown:
        return "its envelope holds no signature"
    return f"no key that signed it is trusted ({', '.join(shown[:3])}{' and others' if len(shown) > 3 else ''})"


def _date(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
