"""The keys that all gateways share to sign cursors: a file with one key per line, 64 hexadecimal digits each.

The first line signs; every line is good for checking. To rotate: put the new key below the old ones, wait until every
gateway has read it, move it to the top, and take the old ones out a cursor's life later.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path

KEY_BYTES = 32
MAX_KEYS = 16


def new_key() -> bytes:
    """A key that nobody can guess."""
    return secrets.token_bytes(KEY_BYTES)


class Keyring:
    """Keys by their ids. The first of `keys` signs."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """:raises ValueError: no key, too many, or one that is not of 32 bytes."""
        if not 0 < len(keys) <= MAX_KEYS:
            raise ValueError(f"a keyring has 1 to {MAX_KEYS} keys")
        if any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"every key has {KEY_BYTES} bytes")
        self.signing = keys[0]
        self._by_id = {key_id(key): key for key in reversed(keys)}

    @property
    def signing_id(self) -> bytes:
        """The id of the key that signs."""
        return key_id(self.signing)

    def key(self, wanted: bytes) -> bytes | None:
        """The key of an id."""
        return self._by_id.get(wanted)


class KeyringFile:
    """A keyring that follows its file. Without a path: one key of this process alone, for tests and single gateways
    whose cursors need not outlive them."""

    def __init__(self, path: str) -> None:
        """:raises OSError: the file cannot be read.

        :raises ValueError: it holds no keyring.
        """
        self._path = Path(path) if path else None
        self._seen: tuple[int, int, int] | None = None
        self.keys = Keyring([new_key()])
        self.refresh()

    def refresh(self) -> None:
        """Take up a changed file: a stat where nothing changed.

        :raises OSError: the file cannot be read.
        :raises ValueError: it holds no keyring. What was read before stays in force in both cases.
        """
        if self._path is None:
            return
        found = self._path.stat()
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        if seen != self._seen:
            self.keys = _parse(self._path.read_bytes())
            self._seen = seen


def key_id(key: bytes) -> bytes:
    """Two bytes that tell keys of one ring apart."""
    return hashlib.blake2b(key, digest_size=2, person=b"weir-cursor-id").digest()


def _parse(content: bytes) -> Keyring:
    try:
        keys = [bytes.fromhex(line.decode("ascii")) for line in content.split()]
    except ValueError:  # its message would quote the line
        raise ValueError("a line is not hexadecimal") from None
    return Keyring(keys)
