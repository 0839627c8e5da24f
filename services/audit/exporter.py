"""Signed exports of records, for those who must prove something without the log."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.audit.v1 import audit_pb2

from libs.auditlog import AuditFiles
from libs.auditlog.chain import LineError, decode_entry
from libs.auditlog.export import Head, Item, write
from libs.auditlog.frame import FrameError, header_of
from libs.auditlog.keys import Signer
from libs.auditlog.layout import lines_of, segments
from libs.auditlog.retention import CLASSES
from libs.auditlog.tombstones import is_tombstone
from libs.errors import Reason, WeirError
from services.audit.sealing import Sealing

_PIECE = 256 * 1024
"""Bytes of a message, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """Reads what is committed; one export holds one piece and one segment in memory."""

    files: AuditFiles
    log_dir: Path
    sealing: Sealing
    sign: Signer
    public_key: bytes
    """Raw, 32 bytes."""
    rfc3339: Callable[[], str]
    record: Callable[[str, str, str, str], Awaitable[object]]
    """Records (actor, action, resource, reason)."""

    async def export(self, request: audit_pb2.ExportRequest, actor: str) -> AsyncIterator[audit_pb2.ExportResponse]:
        """The lines of an export; that it was asked for is recorded first.

        :raises WeirError: INVALID_REQUEST, naming the field; DEPENDENCY_UNAVAILABLE when it cannot be recorded, or the
            log cannot be read.
        """
        first = max(request.first, self.files.base.count + 1)
        last = min(request.last or self.files.count, self.files.count)
        if request.data_class and request.data_class not in CLASSES:
            raise WeirError(
                Reason.INVALID_REQUEST, f"data_class: one of {', '.join(sorted(CLASSES))}", limit="data_class"
            )
        if first > last + 1:
            raise WeirError(Reason.INVALID_REQUEST, f"first: the log has records up to {last}", limit="first")
        checkpoint = self.files.checkpoint_line
        await self.record(actor, "audit.Export", f"audit/{request.tenant or '*'}", "")
        head = Head(
            by=actor,
            time=self.rfc3339(),
            tenant=request.tenant,
            data_class=request.data_class,
            first=first,
            last=last,
            checkpoint=checkpoint.decode(),
            public_key=base64.b64encode(self.public_key).decode(),
        )
        pieces = _pieces(write(head, self._items(request, first, last), self.sign))
        while True:
            try:
                piece = await asyncio.to_thread(next, pieces, b"")
            except (OSError, LineError, FrameError) as error:
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, f"the log cannot be exported: {error}") from error
            if not piece:
                return
            yield audit_pb2.ExportResponse(lines=piece)

    def _items(self, request: audit_pb2.ExportRequest, first: int, last: int) -> Iterator[Item]:
        """Of a tenant, its own records and the tombstones that are about everybody's."""
        found = segments(self.log_dir)
        for at, (begins, path) in enumerate(found):
            if begins > last or (at + 1 < len(found) and found[at + 1][0] <= first):
                continue
            for place, line in enumerate(lines_of(path)[0], begins):
                if not first <= place <= last:
                    continue
                entry = decode_entry(line)
                header = header_of(entry.record)
                grave = is_tombstone(entry.record) and header.tenant in ("", request.tenant)
                wanted = request.tenant in ("", header.tenant) and request.data_class in ("", header.data_class)
                if wanted or grave:
                    opened = self.sealing.opened(entry)
                    yield Item(line=line.decode(), record=opened.body, erased_by=opened.erased_by, fault=opened.fault)


def _pieces(lines: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
