"""An audit log in a folder, as the service writes one, without the service."""

from __future__ import annotations

import json
from pathlib import Path

from libs.auditlog import AuditFiles, Incoming, load_or_create_signer, load_verifier
from libs.auditlog.keys import PUBLIC_NAME


def audit_files(folder: Path, *, segment_bytes: int = 2**20) -> AuditFiles:
    """The log of a folder, with a key of its own, opened."""
    files = AuditFiles(
        folder / "log",
        folder / "checkpoints",
        sign=load_or_create_signer(folder / "keys"),
        verify=load_verifier(folder / "keys" / PUBLIC_NAME),
        now=lambda: "2026-11-23T10:00:00.000Z",
        segment_bytes=segment_bytes,
    )
    files.open()
    return files


def append(files: AuditFiles, count: int) -> None:
    """Commits records behind what there is, one at a time, each with its checkpoint."""
    for number in range(files.count + 1, files.count + count + 1):
        files.commit([Incoming(f"r{number}", json.dumps({"id": f"r{number}"}, separators=(",", ":")).encode())])
