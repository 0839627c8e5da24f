"""Group commit: everything that queued up goes to disk in one write, in a thread; the event loop never waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from libs.auditlog import AuditFiles, WriteFailedError
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from services.audit import metrics

log = get_logger(__name__)


Result = TypeVar("Result")
T = TypeVar("T")


@dataclass(slots=True)
class _Waiting(Generic[Result]):
    record: bytes
    forced: bool = False
    futures: list[asyncio.Future[Result]] = field(default_factory=list)


class Committer(Generic[Result]):
    """Owns the files and their thread. `append` from the event loop only."""

    def __init__(
        self,
        files: AuditFiles,
        *,
        max_queued: int,
        max_group: int,
        probe_seconds: float,
        clock: Clock,
        result: Callable[[int, bool], Result],
        on_writable: Callable[[], None],
    ) -> None:
        """`files` must be open before `run`, or `damaged` set. `result(sequence, duplicate)` makes what the futures of
        `append` give. `on_writable` is called at every change of whether writing works."""
        self._files = files
        self._max_queued = max_queued
        self._max_group = max_group
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._result = result
        self._on_writable = on_writable
        self._queue: dict[str, _Waiting[Result]] = {}
        self._writing: dict[str, _Waiting[Result]] = {}
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit-disk")
        self._writable = True
        self._closing = False
        self.damaged = ""
        """Why nothing can be appended: what was acknowledged is not as it was. Empty while the log is sound."""

    @property
    def writable(self) -> bool:
        """The last write worked and the log is sound."""
        return self._writable and not self.damaged

    @property
    def count(self) -> int:
        """Committed records."""
        return self._files.count

    @property
    def checkpoint_line(self) -> bytes:
        """The newest checkpoint; empty before the first."""
        return self._files.checkpoint_line

    async def on_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in the files' thread, between two commits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def append(self, record_id: str, record: bytes, *, forced: bool = False) -> asyncio.Future[Result]:
        """Return a future that is done when the record is on disk; a record id is stored once. `forced` appends to a
        log that its anchors contradict: the record of an operator's having accepted it.

        It fails with WeirError DEPENDENCY_UNAVAILABLE when the write failed.

        :raises WeirError: DEPENDENCY_UNAVAILABLE (damaged log, closing) or REJECTED_QUEUE_FULL.
        """
        if self.damaged and not forced:
            raise _damaged()
        if self._closing:
            raise WeirError(Reason.DRAINING, "the audit log is closing")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        sequence = self._files.sequence_of(record_id)
        if sequence is not None:
            metrics.DUPLICATE.inc()
            future.set_result(self._result(sequence, True))
            return future
        waiting = self._writing.get(record_id) or self._queue.get(record_id)
        if waiting is None:
            if len(self._queue) >= self._max_queued:
                raise WeirError(Reason.REJECTED_QUEUE_FULL, "too many records wait for the disk", limit="audit_queue")
            waiting = self._queue[record_id] = _Waiting(record, forced)
            metrics.QUEUED.set(len(self._queue))
            self._wake.set()
        waiting.futures.append(future)
        return future

    async def run(self) -> None:
        """Commit what comes, until `close`."""
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._queue):
            if not self._queue and not await self._pause():
                continue
            group = dict(list(self._queue.items())[: self._max_group])
            for record_id in group:
                del self._queue[record_id]
            self._writing = group
            metrics.QUEUED.set(len(self._queue))
            await self._commit(loop, group)

    async def close(self) -> None:
        """Refuse new records and wait until `run` has written those that wait."""
        self._closing = True
        self._wake.set()

    def shut(self) -> None:
        """Close the files; `run` has ended."""
        self._thread.submit(self._files.close).result()
        self._thread.shutdown()

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

    async def _commit(self, loop: asyncio.AbstractEventLoop, group: dict[str, _Waiting[Result]]) -> None:
        if self.damaged:  # they came while the log was being compared with its anchors
            self._fail({name: waiting for name, waiting in group.items() if not waiting.forced}, _damaged())
            group = {name: waiting for name, waiting in group.items() if waiting.forced}
            if not group:
                return
        records = [(record_id, waiting.record) for record_id, waiting in group.items()]
        started = self._clock.monotonic()
        try:
            stored = await loop.run_in_executor(self._thread, self._files.commit, records)
        except WriteFailedError as error:
            self._set_writable(False, str(error))
            self._fail(group, WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log cannot write", retry_after=1.0))
            return
        self._writing = {}
        metrics.COMMIT.observe(self._clock.monotonic() - started)
        metrics.GROUP.observe(len(group))
        late = sum(each.duplicate for each in stored)
        metrics.APPENDED.inc(len(group) - late)
        metrics.DUPLICATE.inc(late)
        metrics.SEQUENCE.set(self._files.count)
        self._set_writable(True, "")
        for each, waiting in zip(stored, group.values(), strict=True):
            for number, future in enumerate(waiting.futures):
                if not future.done():
                    future.set_result(self._result(each.sequence, each.duplicate or number > 0))

    def _fail(self, group: dict[str, _Waiting[Result]], error: WeirError) -> None:
        """None of the group is on disk."""
        self._writing = {}
        metrics.FAILED.inc(len(group))
        for waiting in group.values():
            for future in waiting.futures:
                if not future.done():
                    future.set_exception(error)

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


def _damaged() -> WeirError:
    return WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log takes no records now")
