"""The hash-chained audit log: its form, its files, its verification, and the writer's side.

`chain` is pure (lines, hashes, checkpoints as bytes); `files` appends to a directory of segments; `verify` checks
such a directory offline; `marks` says what is stored already; `client` is the writer, over a `libs.journal`.
"""

from libs.auditlog.chain import Checkpoint, Entry, LineError
from libs.auditlog.client import AuditWriter
from libs.auditlog.files import AuditFiles, LogDamagedError, LogLockedError, WriteFailedError
from libs.auditlog.group import Incoming, Stored
from libs.auditlog.keys import load_or_create_signer, load_verifier
from libs.auditlog.marks import Mark, Origin
from libs.auditlog.verify import Report, verify_directory

__all__ = [
    "AuditFiles",
    "AuditWriter",
    "Checkpoint",
    "Entry",
    "Incoming",
    "LineError",
    "LogDamagedError",
    "LogLockedError",
    "Mark",
    "Origin",
    "Report",
    "Stored",
    "WriteFailedError",
    "load_or_create_signer",
    "load_verifier",
    "verify_directory",
]
