"""Backups into a blob store and out of it."""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

from libs.artifacts import BlobNotFound, BlobStore, get_file
from libs.artifacts.blobs import sha256_of
from libs.backup import auditlog, etcd
from libs.backup import records as sums
from libs.backup.manifest import INDEX, AuditPart, EtcdPart, Manifest, ManifestError, Piece, decode, encode, index_name
from libs.config import TlsFiles

SNAPSHOT = "etcd.snapshot"


class NoBackupError(Exception):
    """There is no such backup in the store."""


async def save(
    store: BlobStore,
    *,
    now: float,
    endpoints: Sequence[str] = (),
    tls: TlsFiles | None = None,
    audit: Path | None = None,
    sealing: Path | None = None,
    records: Path | None = None,
) -> tuple[str, Manifest]:
    """Takes a backup and returns its id and its manifest. etcd comes first: the log then contains whatever etcd's
    anchors say of it. So do the sums of records, which then know nothing that the log does not.

    :param now: Unix seconds.
    :param endpoints: etcd's, "host:port" each, and `tls` the certificate of its root user; none: without it.
    :param audit: the audit service's state directory; None: without it. Its keys lie there, or in `sealing`.
    :param records: the state directory of the store of records; None, or where its database is none in it: without it.
    :raises WeirError, SnapshotError: etcd gives no snapshot.
    :raises SumsError: the sums cannot be read, or nothing else is named and there are none.
    :raises AuditLogError, LineError, KeyFileError: there is no audit log, or it does not hold.
    :raises BlobError: the store is away, or somebody else took a backup in this very millisecond.
    :raises OSError: a file cannot be read.
    """
    kept = await store.first_kept(INDEX)
    saved = await _save_etcd(store, endpoints, tls) if tls else None
    found = sums.sums_in(records) if records else b""
    if not (tls or audit or found):
        raise sums.SumsError(f"there is no {sums.NAME} in {records}; a store in PostgreSQL has backups of its own")
    manifest = Manifest(
        taken_at=now,
        previous=kept[1].decode() if kept else "",
        etcd=saved,
        records=await _put(store, sums.SUMS, found) if found else None,
        audit=await _save_audit(store, audit, sealing) if audit else None,
    )
    piece = await _put(store, "", encode(manifest))
    # Last: a backup that can be found is whole.
    if not await store.keep(index_name(now), piece.sha256.encode()):
        raise NoBackupError("somebody else took a backup into this store at the same moment")
    return piece.sha256, manifest


async def latest(store: BlobStore) -> str:
    """The id of the newest backup.

    :raises NoBackupError: there is none.
    :raises BlobError: the store is away.
    """
    kept = await store.first_kept(INDEX)
    if kept is None:
        raise NoBackupError("there is no backup in this store")
    return kept[1].decode()


async def load(store: BlobStore, backup: str) -> Manifest:
    """The manifest of a backup by its id.

    :raises NoBackupError: there is none.
    :raises ManifestError: it is no backup.
    :raises BlobError: the store is away, or the bytes are not those of the id.
    """
    found = io.BytesIO()
    try:
        await store.get(backup, found)
    except BlobNotFound:
        raise NoBackupError(f"there is no backup {backup[:12]}… in this store") from None
    except ValueError as error:
        raise ManifestError("a backup's id is 64 lower-case hex digits") from error
    return decode(found.getvalue())


async def fetch(store: BlobStore, manifest: Manifest, folder: Path) -> None:
    """Writes what a backup holds into an empty folder and verifies it: each byte, the snapshot's own SHA-256, the audit
    log's chain and signatures.

    :raises BlobError: a file is missing or damaged.
    :raises SnapshotError, AuditLogError: a part does not hold.
    :raises OSError: a file cannot be written.
    """
    for piece in manifest.pieces:
        path = folder / piece.path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The service goes on writing its log.
        await get_file(store, piece.sha256, path, size=piece.size, mode=0o600)
    if manifest.etcd:
        etcd.check(folder / manifest.etcd.snapshot.path)
    if manifest.audit:
        auditlog.check(folder, manifest.audit.records)


async def erased_since(store: BlobStore, backup: str) -> list[tuple[int, bytes]]:
    """Tombstones, (number, record), that the newest backup knows: what is restored from an older one must not bring
    back what was erased between the two.

    :raises NoBackupError, ManifestError, BlobError, AuditLogError, OSError: it cannot be read.
    """
    newest = await latest(store)
    if newest == backup:
        return []
    manifest = await load(store, newest)
    pieces = [piece for piece in manifest.pieces if piece.path == auditlog.VAULT]
    with tempfile.TemporaryDirectory(prefix="weir-backup-") as folder:
        for piece in pieces:
            path = Path(folder) / "keys.db"
            await get_file(store, piece.sha256, path, size=piece.size, mode=0o600)
            return auditlog.tombstones_in(path)
    return []


async def _save_etcd(store: BlobStore, endpoints: Sequence[str], tls: TlsFiles) -> EtcdPart:
    with tempfile.TemporaryDirectory(prefix="weir-backup-") as folder:
        path = Path(folder) / SNAPSHOT
        revision = await etcd.save(endpoints, tls, path)
        with path.open("rb") as file:
            digest, size = sha256_of(file)
        await store.put(digest, path)
    return EtcdPart(Piece(SNAPSHOT, digest, size), revision)


async def _save_audit(store: BlobStore, folder: Path, sealing: Path | None) -> AuditPart:
    log = auditlog.SavedLog(folder, sealing)
    pieces = [await _put(store, path, content) for path, content in log.files()]
    return AuditPart(tuple(pieces), log.records, log.fingerprint)


async def _put(store: BlobStore, path: str, content: bytes) -> Piece:
    digest = hashlib.sha256(content).hexdigest()
    await store.put(digest, io.BytesIO(content))
    return Piece(path, digest, len(content))
