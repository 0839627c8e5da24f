"""`weir backup` and `weir restore`: what the mesh cannot make again, in a store elsewhere and back."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from services.cli.app import Argument, DryRun, Json, Option, UsageError, warn
from services.cli.output import dry, failed, print_fields, print_json

Store = Annotated[str, Argument("A folder, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME.", "DIR|URI", "file")]
Audit = Annotated[Path | None, Option(help="The audit service's state directory.", metavar="DIR")]
Keys = Annotated[Path | None, Option(help="Its keys' folder (sealing_dir), if not in it.", metavar="DIR")]
Records = Annotated[
    Path | None, Option(help="The state directory of the store of records, if it keeps SQLite there.", metavar="DIR")
]
SNAPSHOT, PRIVATE_NAME = "etcd.snapshot", "checkpoint.key"
NOT_IN_IT = (
    "model files (the blob store's own), answers to idempotency keys, certificates, pepper, the audit log's "
    "key-encryption key and other secrets"
)


def backup(
    store: Store,
    etcd: Annotated[str, Option(help="Where it is, HOST:PORT; several with commas.")] = "",
    ca: Annotated[str, Option(help="The CA of etcd's certificate, PEM.")] = "",
    cert: Annotated[str, Option(help="The certificate with the common name root, PEM.")] = "",
    key: Annotated[str, Option(help="Its key, PEM.")] = "",
    audit: Audit = None,
    audit_keys: Keys = None,
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Save etcd, the audit log and sums of usage. Without --etcd, --audit and --records those of the mesh on this
    machine; else what is named. Answers to idempotency keys are in no backup: after a restore a key stands for nothing.

    May run while everything runs. The store holds each file once, under its SHA-256: the next backup adds what is new.
    It holds hashes of API keys, so it is to be read by few. Note the id elsewhere: it proves every byte.
    """
    from libs.backup import save
    from libs.config import TlsFiles

    if "://" not in store:
        _private(Path(store))
    endpoints, tls = tuple(filter(None, etcd.split(","))), None
    if endpoints:
        if not (ca and cert and key):
            raise UsageError("--etcd needs --ca, --cert and --key")
        tls = TlsFiles(ca=ca, cert=cert, key=key)
    elif audit is None and records is None:
        from services.cli.config import locate

        mesh = locate()
        if _uri(store) == mesh.blobs:
            raise UsageError("the store of models takes no backups: `weir models gc` would remove them")
        root = mesh.state / "secrets" / "root"
        endpoints, tls = mesh.addresses("etcd"), TlsFiles(ca=mesh.tls.ca, cert=f"{root}.pem", key=f"{root}.key")
        audit = mesh.state / "data" / "audit"
        records = mesh.state / "data" / "records"

    async def work(opened: Any) -> tuple[str, Any]:
        parts = {"audit": audit, "sealing": audit_keys, "records": records}
        return await save(opened, now=time.time(), endpoints=endpoints, tls=tls, **parts)

    made, manifest = _in_store(store, work)
    _told(made, manifest, as_json)
    if not as_json:
        print(f"not in it: {NOT_IN_IT}")


def restore(
    store: Store,
    backup: Annotated[str, Option(help="Its id; else the newest.", metavar="ID")] = "",
    snapshot: Annotated[Path | None, Option(help="Only write etcd's snapshot, to this file.", metavar="FILE")] = None,
    audit: Audit = None,
    audit_keys: Keys = None,
    records: Records = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Put back what `weir backup` saved. Without --snapshot and --audit: into the mesh on this machine, which must be
    down and have lost its data; else only what they, and --records, name.

    Every byte is checked against the id, and the audit log against its signatures. A snapshot in a file is for `etcdutl
    snapshot restore`, once for every member, with a token that is new. What was erased from the audit log stays erased,
    by its own tombstones and the newest backup's. A store of records that is there stays; rows of requests are made
    anew by `weir records rebuild`. --dry-run fetches and checks everything.
    """
    from libs.backup import auditlog, erased_since
    from libs.backup import records as sums
    from services.cli.mesh.restoring import Here

    here = None if dry_run or snapshot or audit or records else Here()
    target = here.audit if here else audit
    beside_it = here.records if here else records
    since: list[tuple[int, bytes]] = []

    async def work(opened: Any) -> tuple[str, Any]:
        wanted = {"etcd": bool(here or snapshot), "audit": target is not None, "records": beside_it is not None}
        done = await _fetched(opened, backup, folder, **wanted, named=records is not None)
        since.extend(await erased_since(opened, done[0]))
        return done

    with _failures(), here.alone() if here else nullcontext():
        if target and not dry_run:
            auditlog.check_room(target)
            target.mkdir(parents=True, exist_ok=True, mode=0o700)
        if records and not dry_run:
            records.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Beside what it becomes, since it is moved there.
        beside = None if dry_run else target or (snapshot.parent if snapshot else records)
        with TemporaryDirectory(prefix=".weir-restore-", dir=beside) as made:
            folder = Path(made)
            wanted, manifest = _in_store(store, work)
            if not dry_run:
                if target:
                    auditlog.check_key(folder, target)
                    auditlog.forget_again(folder, since)
                if here:
                    here.restore_etcd(folder / SNAPSHOT)
                elif snapshot:
                    shutil.move(folder / SNAPSHOT, snapshot)
                if target:
                    auditlog.move_into(folder, target, audit_keys)
                if beside_it:
                    sums.move_into(folder, beside_it)
    _told(wanted, manifest, as_json)
    secrets = [target / auditlog.KEYS / PRIVATE_NAME, target / "kek"] if target and not dry_run else []
    for secret in secrets:
        if not secret.exists():
            warn(f"{secret} is missing: put it back before the audit service starts, if it lay there")
    dry(dry_run and not as_json)


async def _fetched(
    opened: Any, backup: str, folder: Path, *, etcd: bool, audit: bool, records: bool, named: bool
) -> tuple[str, Any]:
    """The parts of a backup that are wanted, or of a trial all, in a folder; `named`: sums of records have to be there,
    which a mesh need not have."""
    from msgspec.structs import replace

    from libs.backup import NoBackupError, fetch, latest, load

    wanted = backup or await latest(opened)
    manifest = await load(opened, wanted)
    for name, asked, part in (
        ("snapshot of etcd", etcd, manifest.etcd),
        ("audit log", audit, manifest.audit),
        ("sums of records", named, manifest.records),
    ):
        if asked and part is None:
            raise NoBackupError(f"backup {wanted[:12]}… holds no {name}")
    if etcd or audit or records:
        asked_for = {"etcd": etcd, "audit": audit, "records": records}
        manifest = replace(
            manifest, **{name: getattr(manifest, name) if has else None for name, has in asked_for.items()}
        )
    await fetch(opened, manifest, folder)
    return wanted, manifest


def _uri(address: str) -> str:
    return address if "://" in address else Path(address).absolute().as_uri()


def _in_store(address: str, work: Callable[[Any], Awaitable[tuple[str, Any]]]) -> tuple[str, Any]:
    from libs.artifacts import open_store

    uri = _uri(address)

    async def run() -> tuple[str, Any]:
        opened = open_store(uri)
        try:
            return await work(opened)
        finally:
            await opened.close()

    with _failures():
        return asyncio.run(run())


@contextmanager
def _failures() -> Iterator[None]:
    """Expected failures become a line and an exit."""
    from libs.artifacts import BlobError, BlobUriError
    from libs.auditlog import LineError
    from libs.auditlog.keys import KeyFileError
    from libs.backup import AuditLogError, ManifestError, NoBackupError, SnapshotError, SumsError

    try:
        yield
    except (BlobError, BlobUriError, LineError, KeyFileError) as error:
        raise failed(str(error)) from error
    except (AuditLogError, ManifestError, NoBackupError, SnapshotError, SumsError) as error:
        raise failed(str(error)) from error
    except OSError as error:
        raise failed(f"{error.filename or 'the file system'}: {error.strerror}") from error


def _private(folder: Path) -> None:
    """Makes a folder that nobody else reads: what lies in it does not keep them out.

    :raises SystemExit: others read it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            raise failed(f"others may enter {folder}, and a backup holds hashes of API keys: chmod 700 {folder}")
    except OSError as error:
        raise failed(f"{folder}: {error.strerror}") from error


def _told(made: str, manifest: Any, as_json: bool) -> None:
    from datetime import UTC, datetime

    taken, size = datetime.fromtimestamp(manifest.taken_at, UTC), sum(each.size for each in manifest.pieces)
    told: dict[str, Any] = {"id": made, "taken_at": taken.isoformat(), "bytes": size}
    if manifest.etcd:
        told["etcd_revision"] = manifest.etcd.revision
    if manifest.audit:
        told |= {"audit_records": manifest.audit.records, "audit_key": manifest.audit.key_fingerprint}
    print_json(told) if as_json else print_fields(told.items())
