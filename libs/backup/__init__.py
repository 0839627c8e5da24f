"""Backups of what the mesh cannot make again: etcd, the audit log, sums of usage, in a blob store. See README.md."""

from libs.backup.archive import NoBackupError, erased_since, fetch, latest, load, save
from libs.backup.auditlog import AuditLogError
from libs.backup.etcd import SnapshotError
from libs.backup.manifest import Manifest, ManifestError
from libs.backup.records import SumsError

__all__ = [
    "AuditLogError",
    "Manifest",
    "ManifestError",
    "NoBackupError",
    "SnapshotError",
    "SumsError",
    "erased_since",
    "fetch",
    "latest",
    "load",
    "save",
]
