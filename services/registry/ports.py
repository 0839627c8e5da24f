"""What the registry service asks of others, beside the store."""

from __future__ import annotations

from typing import Protocol

from weir.audit.v1 import audit_pb2


class AuditPort(Protocol):
    """Appends records to the audit log."""

    async def append(self, record: audit_pb2.Record) -> None:
        """Returns once the record is on disk; the same record id is stored once.

        :raises WeirError: DEPENDENCY_UNAVAILABLE or DEADLINE_EXCEEDED when the log is away; others when it refuses.
        """
