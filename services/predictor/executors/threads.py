"""Executors in the server's own process: on the event loop, or in a thread beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from libs.clock import Clock
from services.predictor.executors.lanes import INLINE_SECONDS, OwnCost
from services.predictor.executors.work import Done, Work, execute
from services.predictor.port import Model

Ended = Callable[[Done | Exception], None]
"""Told once how an execution ended, on the event loop: what came out, a `ModelError`, or what went wrong."""


class Executor(Protocol):
    """Runs one batch at a time."""

    @property
    def pid(self) -> int:
        """Of the process that it runs them in; 0 for this one."""

    def start(self, work: Work, expected: float, ended: Ended) -> None:
        """Run it. `expected`: seconds; `ended` may be told before this returns."""

    @property
    def revival_seconds(self) -> float:
        """That `revive` takes, as far as is known."""

    async def revive(self) -> None:
        """After a batch ended with `Died`: returns when the next one may be started."""

    async def close(self) -> None:
        """Nothing runs, and nothing will: free the model."""


class ThreadExecutor:
    """A model in a thread; with `own`, what is short runs on the event loop instead.

    What is short is judged by the processor's time that batches took, not by the clock: on a busy machine, and behind
    the interpreter's lock, a batch in the thread waits longer than it runs, and one that is thought to be long for that
    would be sent there again.

    The thread starts with the first batch for it. The model is used by one of the two at a time, because an executor
    runs one batch at a time.
    """

    pid = 0
    revival_seconds = 0.0

    def __init__(
        self,
        model: Model,
        clock: Clock,
        *,
        own: OwnCost | None,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """:param own: seconds of the processor that batches take; None: all run in the thread.
        :param cpu: seconds of it that the calling thread has had.
        """
        self._model = model
        self._clock = clock
        self._own = own
        self._cpu = cpu
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[tuple[Work, Ended] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Work, expected: float, ended: Ended) -> None:
        """See `Executor`."""
        if self._own is not None and self._own.of(sum(work.rows)) <= INLINE_SECONDS:
            ended(self._run(work))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="executor", daemon=True)
            self._thread.start()
        self._work.put((work, ended))

    async def revive(self) -> None:
        """See `Executor`. It does not die."""

    async def close(self) -> None:
        """See `Executor`."""
        if self._thread is not None:
            self._work.put(None)
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._model.close)

    def _serve(self) -> None:
        while (given := self._work.get()) is not None:
            work, ended = given
            result = self._run(work)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(ended, result)
            del given, work, ended, result  # tensors are not kept until the next batch

    def _run(self, work: Work) -> Done | Exception:
        began = self._cpu()
        try:
            done = execute(self._model, work, self._clock)
        except Exception as error:  # whatever a library raises is the batch's end, not the executor's
            return error
        if self._own is not None:
            self._own.observe(sum(work.rows), self._cpu() - began)
        return done
