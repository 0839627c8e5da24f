"""Key-encryption keys: what wraps data keys. The port, and its adapter over files."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
Context = Mapping[str, str]
"""What a wrapped key is for; it can be unwrapped only by whoever says the same. No secret."""


class KekError(Exception):
    """A key cannot be wrapped or unwrapped; the message says why and holds no key."""


class KekAwayError(KekError):
    """Trying again later may help."""


class KekDamagedError(KekError):
    """The key-encryption key is missing or not what it was, or the wrapped key was not made with it for this."""


class Keks(Protocol):
    """Wraps and unwraps data keys. Calls block. Any may raise KekError."""

    @property
    def primary(self) -> str:
        """The id of the key that wraps."""

    def wrap(self, key: bytes, context: Context) -> bytes:
        """A key under the primary one."""

    def unwrap(self, kek: str, wrapped: bytes, context: Context) -> bytes:
        """A key that `kek` wrapped for the same context.

        :raises KekDamagedError: it did not, or there is no such key.
        """

    def rotate(self) -> str:
        """Makes another key the primary one, where this adapter makes keys; returns the primary's id."""

    def retire(self) -> int:
        """Destroys every key but the primary one, where this adapter can; returns how many. Copies of data keys that
        only those had wrapped are worth nothing afterwards."""


class FileKeks:
    """Keys in a folder of their own, `<id>.kek`, each 64 hex digits (mode 0600). The id is a digest of the key, so a
    file that was changed or mistaken for another shows. `primary` names the one that wraps."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        """:param create: make the first key where there is none: only while nothing is wrapped.

        :raises KekDamagedError: the primary key is missing, or a file is not what its name says.
        :raises KekAwayError: the folder cannot be read or written.
        """
        self._folder = folder
        self._keys: dict[str, AESGCM] = {}
        self.primary = ""
        try:
            self._load(create)
        except OSError as error:
            raise KekAwayError(f"{folder} cannot be used: {error.strerror}") from error

    def wrap(self, key: bytes, context: Context) -> bytes:
        """See `Keks`."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._keys[self.primary].encrypt(nonce, key, _aad(context))

    def unwrap(self, kek: str, wrapped: bytes, context: Context) -> bytes:
        """See `Keks`."""
        key = self._keys.get(kek)
        if key is None:
            raise KekDamagedError(f"the key-encryption key {kek} is not in {self._folder}")
        try:
            return key.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _aad(context))
        except (InvalidTag, ValueError) as error:
            raise KekDamagedError(f"a wrapped key was changed, or was not wrapped by {kek} for this") from error

    def rotate(self) -> str:
        """See `Keks`."""
        try:
            self._make()
        except OSError as error:
            raise KekAwayError(f"{self._folder} cannot be written: {error.strerror}") from error
        return self.primary

    def retire(self) -> int:
        """See `Keks`."""
        gone = [each for each in self._keys if each != self.primary]
        try:
            for each in gone:
                (self._folder / f"{each}.kek").unlink(missing_ok=True)
                del self._keys[each]
            sync_folder(self._folder)
        except OSError as error:
            raise KekAwayError(f"{self._folder} cannot be written: {error.strerror}") from error
        return len(gone)

    def _load(self, create: bool) -> None:
        pointer = self._folder / "primary"
        if create and not pointer.exists() and not any(self._folder.glob("*.kek")):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make()
            return
        if not pointer.is_file():
            raise KekDamagedError(f"{pointer} is missing: put the key-encryption key back, nothing is sealed without")
        self.primary = pointer.read_text().strip()
        for path in self._folder.glob("*.kek"):
            self._keys[path.stem] = _read(path)
        if self.primary not in self._keys:
            raise KekDamagedError(f"the key-encryption key {self.primary!r} is missing in {self._folder}")

    def _make(self) -> None:
        key = secrets.token_bytes(KEY_BYTES)
        name = _id(key)
        _write(self._folder / f"{name}.kek", key.hex())
        _write(self._folder / "primary", name)
        self._keys[name] = AESGCM(key)
        self.primary = name


def sync_folder(folder: Path) -> None:
    """Brings a folder's entries to the disk.

    :raises OSError: that failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _id(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=8, person=b"weir kek").hexdigest()


def _read(path: Path) -> AESGCM:
    try:
        key = bytes.fromhex(path.read_text().strip())
    except ValueError as error:
        raise KekDamagedError(f"{path} holds no key") from error
    if len(key) != KEY_BYTES or _id(key) != path.stem:
        raise KekDamagedError(f"{path} holds another key than its name says")
    return AESGCM(key)


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)


def _aad(context: Context) -> bytes:
    return b"weir data key\0" + msgspec.json.encode(dict(context), order="sorted")
