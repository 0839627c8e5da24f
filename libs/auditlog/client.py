"""The writer's side of the audit log: never in the way of a request, and nothing lost while the service is away."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from weir.audit.v1 import audit_pb2

from libs.auditlog import metrics
from libs.auditlog.spool import Spool
from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import MuxClient, Semantics
from libs.telemetry import get_logger

log = get_logger(__name__)
T = TypeVar("T")
_FINAL = frozenset((Reason.INVALID_REQUEST, Reason.PERMISSION_DENIED, Reason.PAYLOAD_TOO_LARGE))
"""Refusals that trying again does not change."""


class AuditWriter:
    """Writes records to the audit service, at least once each; the service stores each id once.

    `write` costs a few microseconds and never waits. While the stream is up records travel at once; those that are not
    acknowledged in time, and all that come while it is down, go to the spool on disk, and from there to the service
    when it is back. In memory at most `max_buffer` records wait; past that, and past the spool's bound, records are
    dropped and counted, and `full` says so beforehand. A killed process loses what was only in memory.
    """

    def __init__(
        self,
        client: MuxClient,
        spool: Spool,
        *,
        clock: Clock,
        max_buffer: int = 4096,
        timeout: float = 5.0,
        replay_batch: int = 256,
        retry_interval: float = 0.25,
    ) -> None:
        """`client` speaks `weir.audit.v1` and is run by its owner. Times in seconds: `timeout` is how long a record may
        go unacknowledged before it is spooled, `retry_interval` how often a waiting spool looks for the service."""
        self._client = client
        self._spool = spool
        self._clock = clock
        self._max_buffer = max_buffer
        self._timeout = timeout
        self._replay_batch = replay_batch
        self._retry_interval = retry_interval
        self._in_flight: dict[int, audit_pb2.Record] = {}
        self._backlog: deque[audit_pb2.Record] = deque()
        self._sent = 0
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._spool_failed = False
        self._disk: asyncio.Future[Any] | None = None
        metrics.SPOOL_BYTES.set(spool.bytes)

    @property
    def full(self) -> bool:
        """A further record may be lost: refuse what must be audited."""
        spool_full = self._spool.full or self._spool_failed
        return self._buffered >= self._max_buffer or (spool_full and not self._client.connected)

    @property
    def healthy(self) -> bool:
        """Records reach the service and none waits on disk."""
        return self._client.connected and self._spool.pending == 0 and not self._backlog

    @property
    def _buffered(self) -> int:
        return len(self._in_flight) + len(self._backlog)

    def write(self, record: audit_pb2.Record, *, traceparent: str = "") -> None:
        """Take a record; the caller must not change it any more. Never waits, never raises for a full buffer.

        `traceparent` puts the append into a request's trace; a record that goes through the spool leaves it.
        """
        if self._buffered >= self._max_buffer:
            metrics.DROPPED.inc()
            log.error("audit_record_dropped", record_id=record.id)
            return
        if self._client.connected and self._submit(record, traceparent):
            return
        self._put_back(record)

    async def run(self) -> None:
        """Keep spooling and replaying until cancelled; what is unacknowledged then goes to the spool."""
        try:
            while True:
                await self._store_backlog()
                if self._spool.pending and self._client.connected and await self._replay():
                    continue
                # Something waits for the service or for the disk: look again soon, else when there is work.
                pause = self._retry_interval if self._spool.pending or self._backlog else None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            if self._disk is not None:  # a thread has the spool: closing it under its hands would break both
                await asyncio.wait([self._disk])
            waiting = [*self._in_flight.values(), *self._backlog]
            self._in_flight.clear()
            self._backlog.clear()
            self._store(waiting)
            self._spool.close()

    async def settled(self) -> None:
        """Wait until no record is in memory alone: each is acknowledged, spooled, refused or dropped."""
        while self._buffered:
            self._changed.clear()
            await self._changed.wait()

    async def drained(self) -> None:
        """Wait until no record is left here, on disk neither; with the service away that may be for ever."""
        while self._buffered or self._spool.pending:
            self._changed.clear()
            await self._changed.wait()

    def _submit(self, record: audit_pb2.Record, traceparent: str = "") -> bool:
        """Send a record; False when it cannot even be queued."""
        self._sent += 1
        number = self._sent
        try:
            self._client.call_nowait(
                audit_pb2.AuditCall(append=audit_pb2.Append(record=record)),
                deadline=Deadline.after(self._timeout, self._clock),
                semantics=Semantics.RETRY,
                on_reply=partial(self._answered, number),
                traceparent=traceparent,
                lazy=True,
            )
        except WeirError as error:
            if error.reason in _FINAL:
                self._refused(record, error)
                return True
            return False
        self._in_flight[number] = record
        metrics.BUFFERED.set(self._buffered)
        return True

    def _answered(self, number: int, reply: Any, error: WeirError | None) -> None:
        record = self._in_flight.pop(number, None)
        if record is None:
            return
        if error is None:
            metrics.ACKNOWLEDGED.inc()
        elif error.reason in _FINAL:
            self._refused(record, error)
        else:
            self._put_back(record)
        self._note()

    def _note(self) -> None:
        metrics.BUFFERED.set(self._buffered)
        self._changed.set()

    def _put_back(self, record: audit_pb2.Record) -> None:
        self._backlog.append(record)
        metrics.BUFFERED.set(self._buffered)
        self._wake.set()

    def _refused(self, record: audit_pb2.Record, error: WeirError) -> None:
        metrics.REFUSED.inc()
        log.error("audit_record_refused", record_id=record.id, reason=error.reason.name, message=error.message)

    async def _store_backlog(self) -> None:
        """Bring what could not be sent to disk; while the disk fails, try the service again instead."""
        while self._backlog:
            records = [self._backlog[at] for at in range(min(len(self._backlog), self._replay_batch))]
            kept = await self._on_disk(partial(self._store, records))
            if not kept:
                await asyncio.sleep(self._retry_interval)
                if not self._client.connected or not all(map(self._submit, records)):
                    return
            for _ in records:
                self._backlog.popleft()
            self._note()

    def _store(self, records: Sequence[audit_pb2.Record]) -> int:
        """Append to the spool; returns how many records are dealt with. A full spool drops, a failing disk waits."""
        if not records:
            return 0
        try:
            stored = self._spool.append_all(record.SerializeToString() for record in records)
        except OSError as error:
            if not self._spool_failed:
                log.error("audit_spool_failed", reason=str(error))
            self._spool_failed = True
            return 0
        self._spool_failed = False
        metrics.SPOOLED.inc(stored)
        metrics.SPOOL_BYTES.set(self._spool.bytes)
        if stored < len(records):
            metrics.DROPPED.inc(len(records) - stored)
            log.error("audit_spool_full", dropped=len(records) - stored)
        return len(records)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. A cancelled caller leaves it running; `run` waits for it before closing the spool."""
        self._disk = asyncio.get_running_loop().run_in_executor(None, work)
        return await asyncio.shield(self._disk)

    async def _replay(self) -> bool:
        """Send the oldest spooled records and forget them once all are acknowledged or finally refused."""
        payloads, lines = await self._on_disk(partial(self._spool.peek, self._replay_batch))
        deadline = Deadline.after(self._timeout, self._clock)
        results = await asyncio.gather(*(self._send(payload, deadline) for payload in payloads))
        if not all(results):
            self._wake.clear()
            return False
        damaged = lines - len(payloads)
        if damaged:
            log.error("audit_spool_damaged", lines=damaged)
        await self._on_disk(partial(self._spool.acknowledge, lines, damaged=damaged))
        metrics.SPOOL_BYTES.set(self._spool.bytes)
        self._note()
        return True

    async def _send(self, payload: bytes, deadline: Deadline) -> bool:
        """Send one spooled record; True when it needs no further try."""
        record = audit_pb2.Record.FromString(payload)
        call = audit_pb2.AuditCall(append=audit_pb2.Append(record=record))
        try:
            await self._client.call(call, deadline=deadline, semantics=Semantics.RETRY)
        except WeirError as error:
            if error.reason not in _FINAL:
                return False
            self._refused(record, error)
            return True
        metrics.ACKNOWLEDGED.inc()
        return True
