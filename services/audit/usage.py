"""Answers questions about usage out of the log: what was added up already is kept, and only what is new is read."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
from weir.audit.v1 import audit_pb2

from libs.auditlog import Entry, LineError
from libs.auditlog.chain import decode_entry
from libs.auditlog.disk import sync_directory
from libs.auditlog.frame import FrameError, header_of
from libs.auditlog.layout import USAGE_NAME, lines_of, segments
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
"""Records: hardly more are read again after a restart."""
_LOOK_SECONDS = 10.0
"""How often what is new is added up, whether or not anybody asks."""
_MOST_DELIVERED = 1_000_000
_CLEAR = frozenset(DIMENSIONS) - {"user"}
_read_told = msgspec.json.Decoder(Told).decode
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(State).decode


class UsageReader:
    """Adds the log up. While the log is whole, the sums are derived: a file that is missing, or of another log, is made
    anew. Once its beginning was truncated they are the only book of that: without them nothing is said of those days.
    """

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
        self._foreign = False  # what lies at the path is not what these sums go on from
        # One thread: what was begun is done to its end, whether or not somebody waits for it, and before the next.
        self._thread = ThreadPoolExecutor(1, "usage")

    async def run(self) -> None:
        """Adds up what is new, and saves it when it is due, until cancelled."""
        while True:
            try:
                await self._in_turn(self._up_to_now)
            except WeirError as error:
                log.error("usage_not_added_up", reason=str(error.__cause__))
            await asyncio.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Takes no more questions."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def usage(self, request: audit_pb2.UsageRequest) -> audit_pb2.UsageResponse:
        """The sums.

        :raises WeirError: INVALID_REQUEST for a dimension that there is not; NOT_FOUND for days of which the sums are
            lost; DEPENDENCY_UNAVAILABLE when the log cannot be read.
        """
        unknown = [name for name in request.by if name not in DIMENSIONS]
        if unknown or len(set(request.by)) < len(request.by):
            raise WeirError(Reason.INVALID_REQUEST, f"usage is known by {', '.join(DIMENSIONS)}, each once", limit="by")
        asked = Asked(
            request.first_day, request.last_day, request.tenant, tuple(request.by), (*request.models,), (*request.keys,)
        )
        rows, count = await self._in_turn(lambda: self._sums(asked))
        return audit_pb2.UsageResponse(rows=[_row(values, counts) for values, counts in rows], sequence=count)

    async def keep(self) -> None:
        """Adds up everything and saves it, before the beginning of the log goes: bills outlast it.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when the log cannot be read or the sums not be written.
        """
        await self._in_turn(lambda: self._save(self._up_to_now()))

    async def reconcile(self, request: audit_pb2.ReconcileRequest) -> audit_pb2.ReconcileResponse:
        """The comparison.

        :raises WeirError: INVALID_REQUEST for too much at once; DEPENDENCY_UNAVAILABLE when the log cannot be read.
        """
        if len(request.delivered) > _MOST_DELIVERED:
            raise WeirError(Reason.INVALID_REQUEST, f"at most {_MOST_DELIVERED} requests at once", limit="delivered")
        return await self._in_turn(lambda: self._compared(request))

    async def _in_turn(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (OSError, LineError, FrameError, msgspec.DecodeError) as error:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log cannot be read") from error

    def _sums(self, asked: Asked) -> tuple[list[tuple[tuple[str, ...], Counts]], int]:
        if not _CLEAR.issuperset(asked.by):
            upto = self._count()
            return self._unsealed(asked, upto).rows(asked), upto
        totals = self._up_to_now()
        if asked.first < totals.since:
            raise WeirError(Reason.NOT_FOUND, f"the sums of days before {totals.since} are lost", limit="first_day")
        return totals.rows(asked), totals.count

    def _up_to_now(self) -> Totals:
        upto = self._count()
        totals = self._totals = self._totals or self._load(upto)
        for entry in _entries(self._directory, totals.count, upto):
            if totals.head and entry.prev.hex() != totals.head:
                self._totals = None
                raise LineError("the log changed while it was read")
            used = read(entry.record)
            if used is not None:
                used.event.user = ""
                totals.add(used)
            totals.count, totals.head = entry.sequence, entry.hash.hex()
        if totals.count >= self._saved + _SAVE_EVERY:
            try:
                self._save(totals)
            except OSError as error:  # what was saved before holds
                log.warning("usage_not_saved", reason=error.strerror)
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

    def _load(self, upto: int) -> Totals:
        """The sums that were kept; new ones where they are of another log. New ones of a log whose beginning is gone
        know nothing of it, and of which days."""
        self._saved, self._foreign, state, why = 0, True, State(), "damaged"
        try:
            state = _decode(self._path.read_bytes())
            why = "of another log"
        except FileNotFoundError:
            self._foreign, why = False, "missing"
        except msgspec.DecodeError:
            pass
        if state.count and not upto:
            raise LineError("the log is not open")
        if state.count and self._fits(state, upto):
            self._saved, self._foreign = state.count, False
            if state.since:
                log.error("usage_incomplete", since=state.since)
            return Totals(state)
        first = next(_entries(self._directory, 0, upto), None)
        if first is None or first.sequence == 1:
            if self._foreign:
                log.warning("usage_added_up_anew", kept=why)
            return Totals()
        # What was cut off had been written before this record, and is of no later day.
        since = (date.fromisoformat(header_of(first.record).time[:10]) + timedelta(days=1)).isoformat()
        log.error("usage_incomplete", since=since, kept=why, records=first.sequence - 1)
        return Totals(State(since=since))

    def _fits(self, state: State, upto: int) -> bool:
        """Whether these are the sums of this log's records up to one of them, or to the last before the first."""
        for entry in _entries(self._directory, state.count - 1, upto):
            return state.head == (entry.hash if entry.sequence == state.count else entry.prev).hex()
        return False

    def _save(self, totals: Totals) -> None:
        if self._foreign:  # it may be the only book of something: whoever mends it finds it
            with contextlib.suppress(FileNotFoundError):
                self._path.rename(self._path.with_name(f"{USAGE_NAME}.before-{totals.count}"))
            self._foreign = False
        partial = self._path.with_suffix(".new")
        with partial.open("wb") as file:
            file.write(_encode(totals.state()))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._path)
        sync_directory(self._path.parent)
        self._saved = totals.count


def _entries(directory: Path, after: int, upto: int) -> Iterator[Entry]:
    """The records behind `after` up to `upto`; each line's own hash is checked.

    :raises LineError: a line does not hold.
    :raises OSError: a segment cannot be read.
    """
    found = segments(directory)
    for position, (first, path) in enumerate(found):
        if position + 1 < len(found) and found[position + 1][0] <= after + 1:
            continue
        if first > upto or after >= upto:
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
