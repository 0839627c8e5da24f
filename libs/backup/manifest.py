"""What a backup says of itself. Pure.

A backup is its manifest, a file like any other in the store: its digest is the backup's id, and since it names every
other file by its digest, whoever noted the id elsewhere finds any byte that was changed since.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

FORMAT = "weir-backup/1"
INDEX = "backups/"
"""Under this, in what a store keeps by name: the newest backup is the first by name."""
_LAST = 10**14
"""Milliseconds since 1970 at which names would run out: in the year 5138."""


class ManifestError(ValueError):
    """It is no manifest, or not one that this version knows."""


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file."""

    path: str
    """Where it belongs, relative."""
    sha256: str
    size: int
    """Bytes."""


class EtcdPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot of etcd: every key with its revisions and leases, users and roles."""

    snapshot: Piece
    """As `etcdctl snapshot save` writes it: the database and its SHA-256."""
    revision: int
    """It holds at least this."""


class AuditPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An audit log up to its newest checkpoint, and the public half of the key that signed it."""

    pieces: tuple[Piece, ...]
    records: int
    key_fingerprint: str
    """SHA-256 of the public key, hex."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backup; of one part, or of several."""

    format: str = FORMAT
    taken_at: float
    """Unix seconds at which it began: what was written later may not be in it."""
    previous: str = ""
    """The id of the one before it in this store."""
    etcd: EtcdPart | None = None
    audit: AuditPart | None = None
    records: Piece | None = None
    """The sums of a store of records in SQLite."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All files."""
        found = (self.etcd.snapshot,) if self.etcd else ()
        return found + (self.audit.pieces if self.audit else ()) + ((self.records,) if self.records else ())


def encode(manifest: Manifest) -> bytes:
    """Its file; the same bytes for the same content."""
    return msgspec.json.encode(manifest, order="deterministic")


def decode(content: bytes) -> Manifest:
    """Reads one.

    :raises ManifestError: it is none, of another format, or leads out of the folder that it is restored into.
    """
    try:
        made = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise ManifestError(f"it is no manifest of a backup: {error}") from error
    if made.format != FORMAT:
        raise ManifestError(f"its format is {made.format!r}, and {FORMAT!r} is what is known here")
    for piece in made.pieces:
        path = PurePosixPath(piece.path)
        if path.is_absolute() or ".." in path.parts or not path.parts or piece.size < 0:
            raise ManifestError("a file of it would lie outside of the folder that it belongs to")
    return made


def index_name(taken_at: float) -> str:
    """The name under which a store keeps a backup's id; of a later backup an earlier name."""
    return f"{INDEX}{_LAST - 1 - round(taken_at * 1000):014d}"
