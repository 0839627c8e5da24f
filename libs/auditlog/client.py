"""The writer's side of the audit log: never in the way of a request, and nothing lost with the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from weir.audit.v1 import audit_pb2

from libs.auditlog import metrics
from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.journal import Batch, Journal, Opening
from libs.mux import MuxClient, Semantics
from libs.telemetry import get_logger

log = get_logger(__name__)
_BATCH, _BATCH_BYTES = 256, 256 << 10
_FINAL = frozenset((Reason.INVALID_REQUEST, Reason.PERMISSION_DENIED, Reason.PAYLOAD_TOO_LARGE))
"""Refusals that trying again does not change."""
_NOTE = b"\0"
"""What is kept and is no record begins so, as no record does: protobuf has no field 0."""
_TEND_SECONDS = 1.0
"""What a machine that loses its power may lose at most, and the time of one sync."""


class AuditWriter:
    """Writes records into a journal, and from there to the audit service: each once, however late.

    `write` and `open` cost a few microseconds, a mark less than one; none of them waits. What they were given is there
    after a SIGKILL, for the next life of this writer to send. While the service is away records wait on the disk; past
    the journal's bound they are dropped and counted, and `full` says so beforehand. The service sees what is missing.
    """

    def __init__(
        self,
        client: MuxClient,
        journal: Journal,
        *,
        source: str,
        clock: Clock,
        timeout: float = 5.0,
        hold: float = 0.05,
        retry_interval: float = 0.25,
    ) -> None:
        """`client` speaks `weir.audit.v1` and is run by its owner. Times in seconds: `timeout` is how long a batch may
        go unacknowledged before it is sent again, `hold` how long a record waits for company, `retry_interval` how
        long after a failure."""
        self._client = client
        self._journal = journal
        self._source = source
        self._clock = clock
        self._timeout = timeout
        self._hold = hold
        self._retry_interval = retry_interval
        self._most = _BATCH
        self._traceparent = ""
        self._crowded = False
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._tending: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """A further record may be lost: refuse what must be audited."""
        return self._journal.full

    @property
    def connected(self) -> bool:
        """There is a stream to the service."""
        return self._client.connected

    @property
    def healthy(self) -> bool:
        """Records reach the service and none waits."""
        return self._client.connected and not self._journal.pending

    def open(self, record: audit_pb2.Record, before: int = -1) -> int:
        """Say that something begins of which there will be a record: as much of it as is known. Returns its place, for
        `mark` and for the record's `write`. What was opened at `before` goes on as this, which takes over its mark; it
        stays as it was where there is no room for another.

        What does not fit goes without the names of its safety policies, of which three tables may each give eight:
        whoever is killed leaves the record without them."""
        payload = record.SerializeToString()
        if len(payload) > self._journal.longest and record.request.safety_policies:
            shorter = audit_pb2.Record.FromString(payload)
            del shorter.request.safety_policies[:]
            payload = shorter.SerializeToString()
        place, none = self._begin(payload), self._journal.none
        if before in (-1, none):
            return place
        if place == none:
            return before
        self._journal.marks[place] = self._journal.marks[before]
        self._journal.release(before)  # last: of two with one id `recover` makes one record
        return place

    def keep(self, note: bytes) -> int:
        """Keep what is no record until it is released, or for the next life. Returns its place."""
        return self._begin(_NOTE + note)

    def mark(self, place: int, number: int) -> None:
        """How far it is."""
        self._journal.marks[place] = number

    def release(self, place: int) -> None:
        """What was opened or kept at the place is over, and leaves no record."""
        self._journal.release(place)

    def write(self, record: audit_pb2.Record, place: int = -1, *, traceparent: str = "") -> None:
        """Take a record, which ends what was opened at the place, if one is named. Never waits, never raises for a
        full journal. The next batch is a part of the last trace that was named."""
        self._traceparent = traceparent or self._traceparent
        if self._journal.append(record.SerializeToString(), place):
            metrics.WRITTEN.inc()
        else:
            metrics.DROPPED.inc()
            log.error("audit_record_dropped", record_id=record.id)
        self._wake.set()

    def recover(
        self,
        lost: Callable[[audit_pb2.Record, int], audit_pb2.Record | None],
        kept: Callable[[bytes], object],
    ) -> list[audit_pb2.Record]:
        """End what former lives of this writer had opened, oldest first: `lost` makes the record of each, of what was
        known of it and its last mark; None of what leaves none. Returns them. `kept` is given what was kept."""
        records = []
        # Settlements come behind what they are of: where both are left, what is recorded is what is settled.
        for opening in self._lost():
            if opening.payload.startswith(_NOTE):
                kept(opening.payload.removeprefix(_NOTE))
                self.release(opening.slot)
                continue
            record = lost(audit_pb2.Record.FromString(opening.payload), opening.mark)
            if record is None:
                self.release(opening.slot)
            else:
                self.write(record, opening.slot)
                records.append(record)
        return records

    async def run(self) -> None:
        """Send, and care for the disk, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tend())
                group.create_task(self._send())
        finally:
            if self._tending is not None:  # a thread has the files: closing them under its hands would break both
                await asyncio.wait([self._tending])
            self._journal.close()

    async def drained(self) -> None:
        """Wait until no record is left here; with the service away that may be for ever."""
        while self._journal.pending:
            self._sent.clear()
            await self._sent.wait()

    def _lost(self) -> Iterable[Opening]:
        """What former lives left, oldest first; what was just going on as something else, as that."""
        found: dict[int | str, Opening] = {}
        for each in sorted(self._journal.lost, key=lambda each: each.number):
            note = each.payload.startswith(_NOTE)
            name = each.number if note else audit_pb2.Record.FromString(each.payload).id
            before = found.pop(name, each)
            mark = self._journal.marks[each.slot] = max(before.mark, each.mark)
            if before is not each:
                self.release(before.slot)
            found[name] = each._replace(mark=mark)
        return found.values()

    def _begin(self, payload: bytes) -> int:
        place = self._journal.begin(payload)
        if place == self._journal.none:
            metrics.UNOPENED.inc()
            if not self._crowded:  # once, however many there are
                log.error("audit_opening_without_slot", bytes=len(payload))
        self._crowded = place == self._journal.none
        return place

    async def _tend(self) -> None:
        failed = False
        while True:
            self._tending = asyncio.get_running_loop().run_in_executor(None, self._journal.tend)
            try:
                await asyncio.shield(self._tending)
                failed = False
            except OSError as error:
                if not failed:
                    log.error("audit_journal_failed", reason=error.strerror or type(error).__name__)
                failed = True
            metrics.JOURNAL_BYTES.set(self._journal.disk_bytes)
            await asyncio.sleep(_TEND_SECONDS)

    async def _send(self) -> None:
        while True:
            batch = self._journal.peek(self._most, _BATCH_BYTES)
            if batch is None:
                self._sent.set()
                self._wake.clear()
                await self._wake.wait()
                await asyncio.sleep(self._hold)  # the others of this moment travel with it
            elif not await self._deliver(batch):
                await asyncio.sleep(self._retry_interval)

    async def _deliver(self, batch: Batch) -> bool:
        """Send a batch; False where it is to be tried again."""
        sent = audit_pb2.AppendBatch(
            source=self._source,
            journal=f"{batch.journal:016x}",
            epoch=f"{batch.epoch:016x}",
            start=batch.start,
            first=batch.first,
            records=batch.payloads,
        )
        deadline = Deadline.after(self._timeout, self._clock)
        traceparent, self._traceparent = self._traceparent, ""
        try:
            await self._client.call(
                audit_pb2.AuditCall(append_batch=sent),
                deadline=deadline,
                semantics=Semantics.RETRY,
                traceparent=traceparent,
            )
        except WeirError as error:
            if error.reason is Reason.CONFLICT:
                # This folder was copied, or put back as it was once: what waits here is not what its other self sent.
                log.error("audit_journal_renamed", journal=sent.journal)
                self._journal.rename()
            if error.reason is Reason.PAYLOAD_TOO_LARGE and len(batch.payloads) > 1:  # for one commit of the service
                self._most = len(batch.payloads) // 2
                return False
            if error.reason not in _FINAL:
                return False
            metrics.REFUSED.inc(len(batch.payloads))
            log.error("audit_records_refused", records=len(batch.payloads), reason=error.reason.name)
        else:
            metrics.ACKNOWLEDGED.inc(len(batch.payloads))
        self._journal.acknowledge(batch)
        return True
