"""A core in a thread of the worker's process.

Commands travel to it through an inbox guarded by a condition, so an idle thread wakes at once and nobody polls.
Reports travel back with `loop.call_soon_threadsafe`; steps that end while a delivery is already under way share its
wake-up. A core that takes the whole process down (a segmentation fault, the kernel's out-of-memory killer) takes the
worker with it: `process.py` is the remedy.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

from services.worker.engines.core import Command, Report, run_core
from services.worker.engines.driven import DrivenEngine
from services.worker.engines.sync import SyncEngine


class ThreadedEngine(DrivenEngine):
    """An `Engine` around a `SyncEngine` in a thread.

    The thread never waits for a reader of tokens. It does wait when the event loop itself has fallen
    `max_undelivered_steps` behind, because otherwise a blocked loop would let memory grow without bound.
    """

    def __init__(
        self,
        core: SyncEngine,
        *,
        name: str = "engine",
        max_undelivered_steps: int = 256,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        host = ThreadHost(core, name=name, max_undelivered=max_undelivered_steps)
        super().__init__(host, on_failure=on_failure)


class ThreadHost:
    """Both ends of the way between the loop and a core's thread: a `CoreHost` and a `CoreLink`."""

    def __init__(self, core: SyncEngine, *, name: str, max_undelivered: int) -> None:
        """`max_undelivered` reports: with more the thread waits for the loop."""
        self._core = core
        self._name = name
        self._max_undelivered = max_undelivered
        self._wake = threading.Condition()
        # Guarded by _wake:
        self._inbox: list[Command] = []
        self._undelivered: deque[Report] = deque()
        self._delivery_scheduled = False
        self._stopping = False
        self._woken = False
        # Set by `start`, constant afterwards:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._on_report: Callable[[Report], None] | None = None
        self._on_end: Callable[[str], None] | None = None

    # ---- on the loop -----------------------------------------------------------------------------------------------

    async def start(self, on_report: Callable[[Report], None], on_end: Callable[[str], None]) -> None:
        """See `CoreHost`."""
        self._loop = asyncio.get_running_loop()
        self._on_report, self._on_end = on_report, on_end
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def tell(self, command: Command) -> None:
        """See `CoreHost`."""
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def request_stop(self) -> None:
        """See `CoreHost`; a thread cannot be ended by force."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    async def join(self) -> None:
        """See `CoreHost`."""
        if self._thread is not None:
            # The thread is at its last line; even so, the loop does not wait for it.
            await asyncio.to_thread(self._thread.join)

    def _deliver(self) -> None:
        with self._wake:
            reports = list(self._undelivered)
            self._undelivered.clear()
            self._delivery_scheduled = False
            if len(reports) >= self._max_undelivered:
                self._wake.notify()
        if self._on_report is not None:
            for report in reports:
                self._on_report(report)

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            run_core(lambda: self._core, self)
        finally:
            if self._on_end is not None:
                self._call_on_loop(self._on_end, "the engine's thread ended")

    def receive(self, *, idle: bool) -> Sequence[Command] | None:
        """See `CoreLink`."""
        with self._wake:
            while not self._stopping and (
                len(self._undelivered) >= self._max_undelivered or (idle and not self._inbox and not self._woken)
            ):
                self._wake.wait()
            if self._stopping:
                return None
            self._woken = False
            commands, self._inbox = self._inbox, []
            return commands

    def wake(self) -> None:
        """See `CoreLink`."""
        with self._wake:
            self._woken = True
            self._wake.notify()

    def report(self, report: Report) -> None:
        """See `CoreLink`."""
        with self._wake:
            self._undelivered.append(report)
            if self._delivery_scheduled:
                return
            self._delivery_scheduled = True
        self._call_on_loop(self._deliver)

    def _call_on_loop(self, callback: Callable[..., None], *args: object) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            # The loop closed without stopping the engine; nobody is left to hear the rest.
            with self._wake:
                self._stopping = True
