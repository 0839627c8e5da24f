"""Reads the audit log and puts it into the store, in order and each record once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

import msgspec
from weir.audit.v1 import audit_pb2

from libs.auditlog import LineError
from libs.auditlog.chain import decode_entry
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from services.records import metrics
from services.records.store import ForkError, Position, Store, StoreAwayError, TakenError

log = get_logger(__name__)
T = TypeVar("T")
Read = Callable[[audit_pb2.ReadRequest], Awaitable[audit_pb2.ReadResponse]]
_DAY = 86_400
_RETIRE = 2_000
"""Rows that one transaction removes."""


class Projector:
    """The one that writes in this process."""

    def __init__(
        self,
        store: Store,
        read: Read,
        *,
        thread: Executor,
        clock: Clock,
        look_seconds: float,
        retry_seconds: float,
        available: Callable[[bool], None],
    ) -> None:
        """:param read: asks the audit service; raises WeirError.
        :param thread: with one thread, in which the store is written.
        :param available: is told whether the database can be used.
        """
        self._store = store
        self._read = read
        self._thread = thread
        self._clock = clock
        self._look_seconds = look_seconds
        self._retry_seconds = retry_seconds
        self._told = available
        self._at: Position | None = None
        self._opened = False
        self._reachable = True
        self._asked = asyncio.Event()
        self._moved = asyncio.Event()
        self._rebuild = False
        self.fault = ""
        """Why nothing is projected any more; empty while the log goes on where the store is."""

    async def run(self) -> None:
        """Projects until cancelled."""
        while True:
            try:
                await self._step()
            except StoreAwayError as error:
                self._at, self._opened = None, False
                self._available(False, str(error))
                await self._pause(self._retry_seconds)
            except WeirError as error:
                if error.reason is Reason.CONFLICT:
                    self._stop(error.message)
                else:
                    log.debug("audit_log_unread", reason=error.reason.name)
                await self._pause(self._retry_seconds)
            except TakenError:
                self._at = None
            except (ForkError, LineError, msgspec.DecodeError) as error:
                self._stop(str(error))
                await self._pause(self._retry_seconds)

    async def caught_up(self, seconds: float) -> None:
        """Wait until what the log had when this was called is in the store, as far as that takes no longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                self._asked.set()
                await self._round()
                await self._round()  # the one before may have begun before this was called

    async def rebuild(self) -> tuple[int, int]:
        """Begin anew, with what the log has: its first record, and its last.

        :raises WeirError: DEPENDENCY_UNAVAILABLE, the audit service or the database is away.
        """
        answer = await self._read(audit_pb2.ReadRequest(after=0, again=True))
        self._rebuild = True
        self._asked.set()
        return answer.base + 1, answer.count

    async def rebuilt(self, upto: int, seconds: float) -> None:
        """Wait until a rebuilding has come so far, at most for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._rebuild or self.sequence < upto:
                    await self._moved.wait()

    async def retire(self, *, request_days: int, usage_days: int) -> None:
        """Remove what is too old."""
        now = self._clock.time()
        before = int((now - request_days * _DAY) * 1000) if request_days else 0
        hour = int((now - usage_days * _DAY) // 3600) if usage_days else 0
        with suppress(StoreAwayError):
            while gone := await self._on_thread(lambda: self._store.retain(before=before, hour=hour, most=_RETIRE)):
                metrics.RETIRED.inc(gone)

    @property
    def sequence(self) -> int:
        """The last record that is in the store, as far as this process knows."""
        return self._at.sequence if self._at else 0

    async def _step(self) -> None:
        at = self._at
        if at is None:
            at = self._at = await self._on_thread(self._store.position if self._opened else self._store.open)
            self._opened = True
            self._available(True)
        if self._rebuild:
            first = await self._read(audit_pb2.ReadRequest(after=0, again=True))
            before = decode_entry(first.lines.partition(b"\n")[0] + b"\n").prev.hex() if first.lines else ""
            at = self._at = await self._on_thread(lambda: self._store.reset(first.base, before))
            self._rebuild = False
            self._mend()
            log.warning("records_rebuilding", first=first.base + 1)
        if self.fault:
            await self._pause(self._retry_seconds)
            return
        answer = await self._read(audit_pb2.ReadRequest(after=at.sequence))
        if lines := [line + b"\n" for line in answer.lines.split(b"\n")[:-1]]:
            started = self._clock.monotonic()
            self._at = await self._on_thread(
                lambda: self._store.project(at, lines, segment=answer.segment, base=answer.base)
            )
            metrics.BATCH.observe(self._clock.monotonic() - started)
            metrics.PROJECTED.inc(self._at.sequence - at.sequence)
        metrics.SEQUENCE.set(self.sequence)
        metrics.BEHIND.set(max(0, answer.count - self.sequence))
        if self.sequence >= answer.count:
            self._moved.set()
            self._moved = asyncio.Event()
            await self._pause(self._look_seconds)

    async def _round(self) -> None:
        await self._moved.wait()
        self._asked.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        self._asked.clear()

    def _stop(self, why: str) -> None:
        if not self.fault:
            log.error("records_stopped", reason=why)
        self.fault = why
        metrics.INTACT.set(0)

    def _mend(self) -> None:
        self.fault = ""
        metrics.INTACT.set(1)

    def _available(self, available: bool, reason: str = "") -> None:
        metrics.AVAILABLE.set(int(available))
        metrics.INTACT.set(int(not self.fault))
        if available is not self._reachable:
            self._reachable = available
            log.info("records_database_back") if available else log.warning("records_database_away", reason=reason)
        self._told(available)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
