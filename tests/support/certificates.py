"""Certificates of a test's own CA."""

from __future__ import annotations

from pathlib import Path

from libs.authority.identity import Identity, Operator
from libs.config import TlsFiles
from libs.pki import issue


def tls_of(directory: Path, who: str | Operator, instance: str = "", *, pool: str = "", zone: str = "") -> TlsFiles:
    """Files of a service, of one of its instances, or of a person; issued when missing."""
    files = issue(directory, who if isinstance(who, Operator) else Identity(who, instance, pool, zone))
    return TlsFiles(files.ca, files.cert, files.key)
