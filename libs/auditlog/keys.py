"""The key that signs checkpoints: Ed25519, in PEM files beside neither the log nor the checkpoints."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from libs.private_file import private_file

Signer = Callable[[bytes], bytes]
"""Signs a message: 64 bytes."""
Verifier = Callable[[bytes, bytes], bool]
"""Tells whether a signature (first) is this key's over a message (second)."""
PRIVATE_NAME = "checkpoint.key"
PUBLIC_NAME = "checkpoint.pub"


class KeyFileError(ValueError):
    """A key file does not hold an Ed25519 key."""


def load_or_create_signer(directory: Path) -> Signer:
    """Load the private key of a directory, or create the pair (the private key with mode 0600).

    Raises:
        KeyFileError: the file holds something else.
        OSError: it cannot be read or written.
    """
    path = directory / PRIVATE_NAME
    if not path.exists():
        _create(directory)
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} holds no Ed25519 key")
    return key.sign


def load_verifier(path: Path) -> Verifier:
    """Load a public key file.

    Raises:
        KeyFileError: the file holds something else.
        OSError: it cannot be read.
    """
    key = _public_key(path)

    def verify(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return verify


def _public_key(path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except ValueError as error:
        raise KeyFileError(f"{path} holds no public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path} holds no Ed25519 key")
    return key


def fingerprint(path: Path) -> str:
    """SHA-256 of a public key file's key, 64 hex digits: what one pins somewhere else.

    Raises:
        KeyFileError: the file holds something else.
        OSError: it cannot be read.
    """
    return hashlib.sha256(public_bytes(path)).hexdigest()


def public_bytes(path: Path) -> bytes:
    """A public key file's key, raw, 32 bytes.

    Raises:
        KeyFileError: the file holds something else.
        OSError: it cannot be read.
    """
    return _public_key(path).public_bytes_raw()


def _create(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (directory / PUBLIC_NAME).write_bytes(public)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The private key last and under its final name only when whole: a crash in between makes a new pair.
    with private_file(directory / PRIVATE_NAME) as file:
        file.write(private)
