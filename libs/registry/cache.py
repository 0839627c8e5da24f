"""The last good listing on disk, so that a process can start while the store is away."""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

import msgspec

from libs.private_file import private_file
from libs.registry.ports import KeyValue, Listing


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: str
    """Base64."""
    mod_revision: int
    lease: int


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    revision: int
    entries: tuple[_Entry, ...]


def save(path: Path, listing: Listing) -> None:
    """Writes the listing, readable by this user only, whole or not at all (write, fsync, rename).

    :raises OSError: when the disk refuses.
    """
    entries = tuple(
        _Entry(kv.key, base64.b64encode(kv.value).decode(), kv.mod_revision, kv.lease) for kv in listing.kvs
    )
    body = msgspec.json.encode(_Body(listing.revision, entries))
    path.parent.mkdir(parents=True, exist_ok=True)
    with private_file(path) as file:
        file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def load(path: Path) -> Listing | None:
    """The listing as saved; None when there is none, or it is damaged (its SHA-256 or its form does not hold)."""
    try:
        digest, _, body = path.read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        decoded = msgspec.json.decode(body, type=_Body)
        kvs = tuple(
            KeyValue(entry.key, base64.b64decode(entry.value, validate=True), entry.mod_revision, entry.lease)
            for entry in decoded.entries
        )
    except (OSError, msgspec.DecodeError, binascii.Error):
        return None
    return Listing(kvs, decoded.revision)
