"""Backups of what the mesh cannot make again: etcd and the audit log, in a blob store. See README.md."""

from libs.backup.archive import NoBackupError, erased_since, fetch, latest, load, save
from libs.backup.auditlog import AuditLogError
from libs.backup.etcd import SnapshotError
from libs.backup.manifest import Manifest, ManifestError

__all__ = [
    "AuditLogError",
    "Manifest",
    "ManifestError",
    "NoBackupError",
    "SnapshotError",
    "erased_since",
    "fetch",
    "latest",
    "load",
    "save",
]
