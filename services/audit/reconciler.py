"""Holds the log against other books: it is read from its beginning, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from weir.audit.v1 import audit_pb2

from libs.auditlog import Entry, LineError
from libs.auditlog.chain import decode_entry
from libs.auditlog.layout import lines_of, segments
from libs.auditlog.marks import Told
from libs.errors import Reason, WeirError
from libs.usage import read
from libs.usage.reconcile import Books, Delivered, Spent

_MOST_DELIVERED = 1_000_000
_read_told = msgspec.json.Decoder(Told).decode


class Reconciler:
    """One comparison after the other."""

    def __init__(self, directory: Path, *, count: Callable[[], int]) -> None:
        """`directory` is the log's; `count` says how many records are committed."""
        self._directory = directory
        self._count = count
        # One thread: what was begun is done to its end, whether or not somebody waits for it, and before the next.
        self._thread = ThreadPoolExecutor(1, "reconcile")

    def close(self) -> None:
        """Takes no more questions."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def reconcile(self, request: audit_pb2.ReconcileRequest) -> audit_pb2.ReconcileResponse:
        """The comparison.

        :raises WeirError: INVALID_REQUEST for too much at once; DEPENDENCY_UNAVAILABLE when the log cannot be read.
        """
        if len(request.delivered) > _MOST_DELIVERED:
            raise WeirError(Reason.INVALID_REQUEST, f"at most {_MOST_DELIVERED} requests at once", limit="delivered")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._compared, request)
        except (OSError, LineError, msgspec.DecodeError) as error:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log cannot be read") from error

    def _compared(self, request: audit_pb2.ReconcileRequest) -> audit_pb2.ReconcileResponse:
        spent = [
            Spent(each.tenant, each.time_zone, each.day, each.day_microusd, each.month, each.month_microusd)
            for each in request.ledger
        ]
        books, gaps, upto = Books({each.tenant: each for each in spent}), [], self._count()
        for entry in _entries(self._directory, upto):
            if (used := read(entry.record)) is not None:
                books.add(used)
            elif b'"gap":{' in entry.record and (gap := _read_told(entry.record).gap) is not None:
                gaps.append((gap.source, gap.reason, gap.first, gap.last))
        delivered = (
            Delivered(each.request_id, each.prompt_tokens, each.completion_tokens, each.rows)
            for each in request.delivered
        )
        found = books.differences(delivered, gaps)
        return audit_pb2.ReconcileResponse(
            differences=[audit_pb2.Difference(**each._asdict()) for each in found],
            requests=len(books.requests),
            sequence=upto,
        )


def _entries(directory: Path, upto: int) -> Iterator[Entry]:
    """The records up to `upto`; each line's own hash is checked.

    :raises LineError: a line does not hold.
    :raises OSError: a segment cannot be read.
    """
    for first, path in segments(directory):
        if first > upto:
            return
        for line in lines_of(path)[0][: upto + 1 - first]:
            yield decode_entry(line)
