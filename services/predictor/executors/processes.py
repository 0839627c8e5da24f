"""The process lane: an executor whose process is replaced when it dies, hangs or grows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from libs.clock import Clock
from libs.telemetry import get_logger
from services.predictor.executors.process import ModelProcess
from services.predictor.executors.shared import Garbled
from services.predictor.executors.threads import Ended
from services.predictor.executors.wire import Loaded, Run
from services.predictor.executors.work import Died, Done, Work, split

log = get_logger(__name__)

COPY_BYTES = 1 << 20
"""More is copied in a thread: a megabyte takes 0.1–0.2 ms."""
DEATHS_SECONDS = 60.0
"""In which deaths count for the pause before the next start."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0

Start = Callable[[], Awaitable[tuple[ModelProcess, Loaded]]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a process is replaced.

    :ivar seconds: that a batch may run.
    :ivar growth: resident bytes beyond those after its warm-up.
    """

    seconds: float = 60.0
    growth: int = 512 << 20


class ProcessExecutor:
    """Implements `Executor`.

    :ivar revival_seconds: see `Executor`.
    """

    def __init__(
        self, process: ModelProcess, loaded: Loaded, start: Start, clock: Clock, bounds: Bounds, start_seconds: float
    ) -> None:
        """`start`: another process with the same model, which took `start_seconds`; raises LoadError."""
        self._process = process
        self._next: ModelProcess | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._start = start
        self._clock = clock
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._copies = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._most = loaded.rss + bounds.growth
        self._deaths: deque[float] = deque(maxlen=16)
        self._running: asyncio.Task[Done] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self.revival_seconds = start_seconds

    @property
    def pid(self) -> int:
        """Of the process that runs batches."""
        return self._process.pid

    def start(self, work: Work, expected: float, ended: Ended) -> None:
        """See `Executor`."""
        self._swap()
        self._running = self._loop.create_task(self._execute(work))
        self._running.add_done_callback(lambda task: self._ended(task, ended))

    async def revive(self) -> None:
        """See `Executor`. A process that dies often is started ever more seldom."""
        dead = self._process
        if self._replacing is not None:
            await asyncio.wait({self._replacing})
        while self._process is dead and self._next is None:
            now = self._clock.monotonic()
            self._deaths.append(now)
            recent = sum(death > now - DEATHS_SECONDS for death in self._deaths)
            if recent > 1:
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (recent - 2)))
            try:
                await self._renew()
            except Exception as error:
                log.error("model_process_lost", kind=type(error).__name__, deaths=recent)

    async def close(self) -> None:
        """See `Executor`."""
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)
        for process in (self._process, self._next):
            if process is not None:
                await process.close()
        await asyncio.gather(*self._closing)
        self._copies.shutdown(wait=False)

    # ---- a batch ---------------------------------------------------------------------------------------------------

    async def _execute(self, work: Work) -> Done:
        process, began = self._process, self._clock.monotonic()
        arrays = {name: [inputs[name] for inputs in work.inputs] for name in work.inputs[0]}
        size = sum(part.nbytes for parts in arrays.values() for part in parts)
        placed = await self._copied(size, partial(process.inputs.write, arrays))
        ready = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._bounds.seconds):
                given = await process.run(Run(placed, None if work.outputs is None else list(work.outputs)))
        except TimeoutError:
            process.kill()
            raise Died(f"a batch ran for more than {self._bounds.seconds:g} s, and its process was ended") from None
        process.inputs.trim()
        size = sum(one.nbytes for one in given.outputs)
        try:
            outputs = await self._copied(size, partial(process.outputs.read, given.outputs, copy=True))
        except Garbled as error:
            log.error("model_process_garbled", pid=process.pid, why=str(error))
            process.kill()
            raise Died("the model's process lost its senses, and was ended") from None
        parts = [outputs] if work.whole else split(outputs, work.rows)
        if given.rss > self._most and self._replacing is None:
            log.warning("model_process_grew", pid=process.pid, rss=given.rss)
            self._replacing = self._loop.create_task(self._replace())
        # What the two wake-ups took is neither copying nor computing, and is told as the former.
        return Done(parts, ready - began, given.seconds, self._clock.monotonic() - ready - given.seconds)

    async def _copied(self, size: int, copy: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._copies, copy) if size > COPY_BYTES else copy()

    def _ended(self, task: asyncio.Task[Done], ended: Ended) -> None:
        self._running = None
        if task.cancelled():  # the loop is closed
            return
        error = task.exception()
        if error is None:
            ended(task.result())
        else:
            ended(error if isinstance(error, Exception) else Died("it was ended"))

    # ---- another process -------------------------------------------------------------------------------------------

    async def _replace(self) -> None:
        """While the old one goes on; the new one takes over between two batches."""
        try:
            await self._renew()
        except Exception as error:
            log.error("model_process_not_replaced", kind=type(error).__name__)
            self._most += self._bounds.growth  # not after every batch
        finally:
            self._replacing = None

    async def _renew(self) -> None:
        began = self._clock.monotonic()
        process, loaded = await self._start()
        self.revival_seconds = self._clock.monotonic() - began
        self._most = loaded.rss + self._bounds.growth
        self._next = process
        if self._running is None:
            self._swap()

    def _swap(self) -> None:
        if self._next is not None:
            closing = self._loop.create_task(self._process.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._process, self._next = self._next, None
