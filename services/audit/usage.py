"""Answers questions about usage out of the log: what was added up already is kept, and only what is new is read."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from weir.audit.v1 import audit_pb2

from libs.auditlog import Entry, LineError
from libs.auditlog.chain import decode_entry
from libs.auditlog.layout import lines_of, segments
from libs.auditlog.marks import Told
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from libs.usage import DIMENSIONS, Totals, read
from libs.usage.reconcile import Books, Delivered, Spent
from libs.usage.totals import Asked, Counts, State
from services.audit.sealing import Opened

log = get_logger(__name__)
T = TypeVar("T")
_SAVE_EVERY = 10_000
"""Records: so many are read again at most after a restart."""
_MOST_DELIVERED = 1_000_000
_CLEAR = frozenset(DIMENSIONS) - {"user"}
_read_told = msgspec.json.Decoder(Told).decode
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(State).decode


class UsageReader:
    """Adds the log up. What it has is derived: a file that is missing, or of another log, is made anew."""

    def __init__(
        self, directory: Path, state: Path, *, count: Callable[[], int], opened: Callable[[Entry], Opened]
    ) -> None:
        """`directory` is the log's, `state` the file of the sums; `count` says how many records are committed, `opened`
        reads a sealed one."""
        self._opened = opened
        self._directory = directory
        self._path = state
        self._count = count
        self._totals: Totals | None = None
        self._saved = 0
        self._one = asyncio.Lock()

    async def usage(self, request: audit_pb2.UsageRequest) -> audit_pb2.UsageResponse:
        """The sums.

        :raises WeirError: INVALID_REQUEST for a dimension that there is not; DEPENDENCY_UNAVAILABLE when the log cannot
            be read.
        """
        unknown = [name for name in request.by if name not in DIMENSIONS]
        if unknown or len(set(request.by)) < len(request.by):
            raise WeirError(Reason.INVALID_REQUEST, f"usage is known by {', '.join(DIMENSIONS)}, each once", limit="by")
        asked = Asked(
            request.first_day, request.last_day, request.tenant, tuple(request.by), (*request.models,), (*request.keys,)
        )
        async with self._one:
            rows, count = await _readable(asyncio.to_thread(self._sums, asked))
        return audit_pb2.UsageResponse(rows=[_row(values, counts) for values, counts in rows], sequence=count)

    async def keep(self) -> None:
        """Adds up everything and saves it, before the beginning of the log goes: bills outlast it.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when the log cannot be read or the sums not be written.
        """
        async with self._one:
            await _readable(asyncio.to_thread(self._keep))

    async def reconcile(self, request: audit_pb2.ReconcileRequest) -> audit_pb2.ReconcileResponse:
        """The comparison.

        :raises WeirError: INVALID_REQUEST for too much at once; DEPENDENCY_UNAVAILABLE when the log cannot be read.
        """
        if len(request.delivered) > _MOST_DELIVERED:
            raise WeirError(Reason.INVALID_REQUEST, f"at most {_MOST_DELIVERED} requests at once", limit="delivered")
        async with self._one:
            return await _readable(asyncio.to_thread(self._compared, request))

    def _sums(self, asked: Asked) -> tuple[list[tuple[tuple[str, ...], Counts]], int]:
        upto = self._count()
        if not _CLEAR.issuperset(asked.by):
            return self._unsealed(asked, upto).rows(asked), upto
        totals = self._up_to(upto)
        if totals.count >= self._saved + _SAVE_EVERY:
            with contextlib.suppress(OSError):  # it is made anew
                self._save(totals)
        return totals.rows(asked), totals.count

    def _keep(self) -> None:
        self._save(self._up_to(self._count()))

    def _up_to(self, upto: int) -> Totals:
        totals = self._advanced(self._totals or self._load(), upto) or self._advanced(Totals(), upto)
        self._totals = totals
        if totals is None:
            raise OSError("the log changed while it was read")
        return totals

    def _unsealed(self, asked: Asked, upto: int) -> Totals:
        """Sums by what is sealed, a tenant's users, who may be erased: read each time, and kept nowhere."""
        totals = Totals()
        for entry in _entries(self._directory, 0, upto):
            used = read(entry.record)
            if used is None or not (asked.first or used.day) <= used.day <= (asked.last or used.day):
                continue
            if not asked.tenant or asked.tenant == used.event.tenant:
                event = (self._opened(entry).body or {}).get("request", {})
                used.event.user = event.get("user", "")
                used.event.key_id = event.get("key_id", "")
                totals.add(used)
        return totals

    def _compared(self, request: audit_pb2.ReconcileRequest) -> audit_pb2.ReconcileResponse:
        spent = [
            Spent(each.tenant, each.time_zone, each.day, each.day_microusd, each.month, each.month_microusd)
            for each in request.ledger
        ]
        books, gaps, upto = Books({each.tenant: each for each in spent}), [], self._count()
        for entry in _entries(self._directory, 0, upto):
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

    def _advanced(self, totals: Totals, upto: int) -> Totals | None:
        """The sums with what came since; None where they are of another log."""
        for entry in _entries(self._directory, totals.count, upto):
            if totals.head and entry.prev.hex() != totals.head:
                log.warning("usage_added_up_anew", records=totals.count)
                self._saved = 0
                return None
            used = read(entry.record)
            if used is not None:
                used.event.user = ""
                totals.add(used)
            totals.count, totals.head = entry.sequence, entry.hash.hex()
        return totals if totals.count >= upto else None

    def _load(self) -> Totals:
        try:
            state = _decode(self._path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return Totals()
        self._saved = state.count
        return Totals(state)

    def _save(self, totals: Totals) -> None:
        partial = self._path.with_suffix(".new")
        with partial.open("wb") as file:
            file.write(_encode(totals.state()))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._path)
        self._saved = totals.count


async def _readable(work: Awaitable[T]) -> T:
    try:
        return await work
    except (OSError, LineError, msgspec.DecodeError) as error:
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log cannot be read") from error


def _entries(directory: Path, after: int, upto: int) -> Iterator[Entry]:
    """The records behind `after` up to `upto`; each line's own hash is checked.

    :raises LineError: a line does not hold.
    :raises OSError: a segment cannot be read.
    """
    found = segments(directory)
    for position, (first, path) in enumerate(found):
        if position + 1 < len(found) and found[position + 1][0] <= after + 1:
            continue
        if first > upto:
            return
        for line in lines_of(path)[0][max(0, after + 1 - first) : upto + 1 - first]:
            yield decode_entry(line)


def _row(values: tuple[str, ...], counts: Counts) -> audit_pb2.UsageRow:
    return audit_pb2.UsageRow(
        values=values,
        requests=counts.requests,
        refused=counts.refused,
        prompt_tokens=counts.prompt,
        cached_prompt_tokens=counts.cached,
        completion_tokens=counts.completion,
        spend_microusd=counts.microusd,
        unknown=counts.unknown,
        at_most_tokens=counts.at_most,
        rows=counts.rows,
        predictions=counts.predictions,
        at_most_rows=counts.at_most_rows,
    )
