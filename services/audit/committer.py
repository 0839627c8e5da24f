"""Group commit: everything that queued up goes to disk in one write, in a thread; the event loop never waits."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from libs.auditlog import AuditFiles, Incoming, Stored, WriteFailedError
from libs.auditlog.frame import Draft
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.sealing.keyring import SealingError
from libs.telemetry import get_logger
from services.audit import metrics

log = get_logger(__name__)


_OWN = 2
"""Lines of a commit that are the log's own: marks, and a gap before a journal's records."""
_UNSEALED_SECONDS = 15.0
"""After a record that could not be sealed: its writer tries again within this."""
Result = TypeVar("Result")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Result]):
    records: Sequence[Incoming]
    forced: bool = False
    futures: list[asyncio.Future[Result]] = field(default_factory=list)


class Committer(Generic[Result]):
    """Owns the files and their thread. `append` from the event loop only."""

    def __init__(
        self,
        files: AuditFiles,
        write: Callable[[Sequence[Incoming]], Sequence[Stored | SealingError | None]],
        *,
        max_queued: int,
        max_group: int,
        probe_seconds: float,
        clock: Clock,
        result: Callable[[int, bool], Result],
        on_writable: Callable[[], None],
    ) -> None:
        """`files` must be open before `run`, or `damaged` set. `write` puts a group into them: where each record lies,
        None for one of an epoch that is over, or why one could not be sealed. `result(sequence, duplicate)` makes what
        the futures of `append` give. `on_writable` is called at every change of whether writing works."""
        self._files = files
        self._write = write
        self._max_queued = max_queued
        self._max_group = max_group
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._result = result
        self._on_writable = on_writable
        self._queue: deque[_Waiting[Result]] = deque()
        self._queued = 0  # records in it
        self._by_id: dict[str, _Waiting[Result]] = {}  # of no journal, queued or being written
        self._wake = asyncio.Event()
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit-disk")
        self._writable = True
        self._closing = False
        self._unsealed_at = float("-inf")
        self.damaged = ""
        """Why nothing can be appended: what was acknowledged is not as it was. Empty while the log is sound."""

    @property
    def writable(self) -> bool:
        """The last write worked and the log is sound."""
        return self._writable and not self.damaged

    @property
    def unsealed(self) -> bool:
        """A record could not be sealed lately: whoever wrote it tries it again and again, beside others that can."""
        return self._clock.monotonic() < self._unsealed_at + _UNSEALED_SECONDS

    @property
    def count(self) -> int:
        """Committed records."""
        return self._files.count

    @property
    def checkpoint_line(self) -> bytes:
        """The newest checkpoint; empty before the first."""
        return self._files.checkpoint_line

    async def grown(self, count: int, seconds: float) -> None:
        """Wait until there are more records than `count`, or for so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.count <= count and not self._closing:
                    await self._more.wait()

    async def on_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in the files' thread, between two commits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def append(self, draft: Draft, *, forced: bool = False) -> asyncio.Future[Result]:
        """Return a future that is done when the record is on disk; a record id is stored once. `forced` appends to a
        log that its anchors contradict: the record of an operator's having accepted it.

        It fails with WeirError DEPENDENCY_UNAVAILABLE when the write failed, or the record cannot be sealed.

        :raises WeirError: DEPENDENCY_UNAVAILABLE (damaged log, closing) or REJECTED_QUEUE_FULL.
        """
        self._check(forced=forced)
        record_id = draft.id
        sequence = self._files.sequence_of(record_id)
        if sequence is not None:
            metrics.DUPLICATE.inc()
            future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            future.set_result(self._result(sequence, True))
            return future
        waiting = self._by_id.get(record_id)
        if waiting is None:
            waiting = self._by_id[record_id] = self._enqueue((Incoming(record_id, draft),), forced=forced)
        return _future_of(waiting)

    def append_batch(self, records: Sequence[Incoming]) -> asyncio.Future[Result]:
        """Return a future that is done when the records of one journal are on disk, each of its numbers once: see
        `append`. It fails with CONFLICT, nothing having been stored, where the journal's epoch is over.

        :raises WeirError: likewise; PAYLOAD_TOO_LARGE for more records than one commit may have.
        """
        self._check(forced=False)
        if len(records) + _OWN > self._max_group:
            raise WeirError(Reason.PAYLOAD_TOO_LARGE, f"at most {self._max_group - _OWN} records", limit="records")
        return _future_of(self._enqueue(records, forced=False))

    async def run(self) -> None:
        """Commit what comes, until `close`."""
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._queue):
            if not self._queue and not await self._pause():
                continue
            await self._commit(loop, self._next_group())

    async def close(self) -> None:
        """Refuse new records and wait until `run` has written those that wait."""
        self._closing = True
        self._wake.set()
        self._tell()

    def shut(self) -> None:
        """Close the files; `run` has ended."""
        self._thread.submit(self._files.close).result()
        self._thread.shutdown()

    def _tell(self) -> None:
        """Those who wait for more."""
        self._more.set()
        self._more = asyncio.Event()

    async def _pause(self) -> bool:
        """Wait for records; while writing fails, try the disk now and then. True when there are records."""
        self._wake.clear()
        if self._closing:
            return False
        try:
            async with asyncio.timeout(None if self._writable else self._probe_seconds):
                await self._wake.wait()
        except TimeoutError:
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._files.probe)
            except WriteFailedError:
                return False
            self._set_writable(True, "")
        return bool(self._queue)

    def _check(self, *, forced: bool) -> None:
        if self.damaged and not forced:
            raise _damaged()
        if self._closing:
            raise WeirError(Reason.DRAINING, "the audit log is closing")

    def _enqueue(self, records: Sequence[Incoming], *, forced: bool) -> _Waiting[Result]:
        if self._queued + len(records) > self._max_queued:
            raise WeirError(Reason.REJECTED_QUEUE_FULL, "too many records wait for the disk", limit="audit_queue")
        waiting: _Waiting[Result] = _Waiting(records, forced)
        self._queue.append(waiting)
        self._count(len(records))
        self._wake.set()
        return waiting

    def _next_group(self) -> list[_Waiting[Result]]:
        group: list[_Waiting[Result]] = []
        room = self._max_group - 1
        # Never more lines than a crash may leave: each may have a gap before it.
        while self._queue and (not group or len(self._queue[0].records) < room):
            group.append(waiting := self._queue.popleft())
            room -= len(waiting.records) + 1
            self._count(-len(waiting.records))
        return group

    def _count(self, more: int) -> None:
        self._queued += more
        metrics.QUEUED.set(self._queued)

    async def _commit(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting[Result]]) -> None:
        if self.damaged:  # they came while the log was being compared with its anchors
            self._fail([waiting for waiting in group if not waiting.forced], _damaged())
            group = [waiting for waiting in group if waiting.forced]
            if not group:
                return
        records = [record for waiting in group for record in waiting.records]
        started = self._clock.monotonic()
        try:
            stored = await loop.run_in_executor(self._thread, self._write, records)
        except WriteFailedError as error:
            self._set_writable(False, str(error))
            self._fail(group, WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log cannot write", retry_after=1.0))
            return
        metrics.COMMIT.observe(self._clock.monotonic() - started)
        metrics.GROUP.observe(len(records))
        placed = [each for each in stored if isinstance(each, Stored)]
        late = sum(each.duplicate for each in placed)
        metrics.APPENDED.inc(len(placed) - late)
        metrics.DUPLICATE.inc(late)
        metrics.SEQUENCE.set(self._files.count)
        self._tell()
        if len(placed) > late:  # what writes nothing shows nothing
            self._set_writable(True, "")
        found = iter(stored)
        for waiting in group:
            self._answer(waiting, [next(found) for _ in waiting.records])

    def _answer(self, waiting: _Waiting[Result], stored: Sequence[Stored | SealingError | None]) -> None:
        self._forget(waiting)
        last = stored[-1]
        if isinstance(last, SealingError):  # nothing is written unsealed: who wrote it tries again
            self._unsealed_at = self._clock.monotonic()
            metrics.UNSEALED.inc(sum(isinstance(each, SealingError) for each in stored))
            log.error("audit_records_unsealed", reason=str(last))
            unsealed = "the key that seals this record cannot be had"
            _end(waiting, WeirError(Reason.DEPENDENCY_UNAVAILABLE, unsealed, retry_after=1.0))
            return
        if last is None:
            _end(waiting, WeirError(Reason.CONFLICT, "another life of this journal has written since", limit="epoch"))
            return
        for number, future in enumerate(waiting.futures):
            if not future.done():
                future.set_result(self._result(last.sequence, last.duplicate or number > 0))

    def _fail(self, group: Iterable[_Waiting[Result]], error: WeirError) -> None:
        """None of the group is on disk."""
        for waiting in group:
            metrics.FAILED.inc(len(waiting.records))
            self._forget(waiting)
            _end(waiting, error)

    def _forget(self, waiting: _Waiting[Result]) -> None:
        record_id = waiting.records[0].id
        if self._by_id.get(record_id) is waiting:
            del self._by_id[record_id]

    def _set_writable(self, writable: bool, reason: str) -> None:
        metrics.WRITABLE.set(int(writable and not self.damaged))
        if writable == self._writable:
            return
        self._writable = writable
        if writable:
            log.info("audit_writes_recovered")
        else:
            log.error("audit_write_failed", reason=reason)
        self._on_writable()


def _future_of(waiting: _Waiting[Result]) -> asyncio.Future[Result]:
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    waiting.futures.append(future)
    return future


def _end(waiting: _Waiting[Result], error: WeirError) -> None:
    for future in waiting.futures:
        if not future.done():
            future.set_exception(error)


def _damaged() -> WeirError:
    return WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log takes no records now")
