"""Runs a synchronous engine core in its own thread and presents it as an asynchronous `Engine`.

The core knows nothing of asyncio: it is loaded, stepped and closed in one thread. Commands (submit, cancel, embed)
travel to it through an inbox guarded by a condition, so an idle thread wakes at once and nobody polls. Step outputs
travel back with `loop.call_soon_threadsafe`; steps that end while a delivery is already under way share its wake-up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    FinishReason,
    SequenceRequest,
    StepOutput,
    StepSink,
)

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_NO_CAPACITY = Capacity(free_blocks=0, running=0, waiting=0, queued_prefill_tokens=0, last_step_seconds=0.0)


class SyncEngine(Protocol):
    """A model runner that is driven from one thread. Every method is called from that thread, `info` from any after
    `load`."""

    @property
    def info(self) -> EngineInfo:
        """Constant after `load` returns."""

    def load(self) -> None:
        """Read the models, warm up, self-test.

        :raises EngineLoadError: a file is missing, corrupted or unsupported.
        """

    def add(self, requests: Sequence[SequenceRequest]) -> None:
        """Take sequences in. Never raises for a request's sake: an impossible one is answered with
        FinishReason.ERROR by the next `step`."""

    def cancel(self, handles: Sequence[int]) -> None:
        """Mark sequences to end; the next `step` reports them CANCELLED and frees their memory. Unknown handles are
        ignored."""

    def has_work(self) -> bool:
        """Whether `step` would do or report anything."""

    def step(self) -> StepOutput:
        """Run one step: end what was cancelled or is past its deadline, then advance what is scheduled."""

    def capacity(self) -> Capacity:
        """The present load; called after every step, so it must be O(1)."""

    def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.embed`."""

    def close(self) -> None:
        """Release everything. Called once, last, also after a failed `load`."""


@dataclass(slots=True)
class _Add:
    requests: Sequence[SequenceRequest]


@dataclass(slots=True)
class _Cancel:
    handles: Sequence[int]


@dataclass(slots=True)
class _Embed:
    model: str
    prompts: Sequence[Sequence[int]]
    reply: asyncio.Future[list[list[float]]]


_Command = _Add | _Cancel | _Embed


class EngineStoppedError(RuntimeError):
    """The engine was stopped or its core failed; it takes no more work."""


class ThreadedEngine:
    """An `Engine` around a `SyncEngine`.

    A core whose `step` raises is broken: its sequences end with ERROR, later ones are answered ERROR too, and
    `on_failure` is called once on the loop so that the process can report itself unhealthy and leave.

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
        self._core = core
        self._name = name
        self._max_undelivered = max_undelivered_steps
        self._on_failure = on_failure
        self._wake = threading.Condition()
        # Guarded by _wake:
        self._inbox: deque[_Command] = deque()
        self._inbox_sequences = 0
        self._inbox_tokens = 0
        self._undelivered: deque[StepOutput] = deque()
        self._delivery_scheduled = False
        self._stopping = False
        self._closed = False
        # Touched by the engine's thread only:
        self._live: set[int] = set()
        self._failure: BaseException | None = None
        # Replaced whole by the engine's thread, read by anyone:
        self._capacity = _NO_CAPACITY
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sink: StepSink | None = None
        self._ended: asyncio.Event | None = None

    @property
    def info(self) -> EngineInfo:
        """What the core says it is; constant after `start`."""
        return self._core.info

    @property
    def failure(self) -> BaseException | None:
        """What broke the core, or None while it is sound."""
        return self._failure

    async def start(self, sink: StepSink) -> None:
        """Start the thread and load the core in it; returns when the core is ready.

        :raises EngineLoadError: as `SyncEngine.load`.
        :raises EngineStoppedError: the engine was started before.
        """
        if self._thread is not None:
            raise EngineStoppedError("an engine starts once")
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._ended = asyncio.Event()
        loaded: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loaded,), name=self._name, daemon=True)
        self._thread.start()
        try:
            await loaded
        except asyncio.CancelledError:
            self._request_stop()
            raise
        except Exception:
            await self.stop()
            raise

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """Queue sequences for the core. After a stop or a failure each is answered ERROR through the sink."""
        if not requests:
            return
        with self._wake:
            if not self._closed:
                self._inbox.append(_Add(requests))
                self._inbox_sequences += len(requests)
                self._inbox_tokens += sum(len(request.prompt) for request in requests)
                self._wake.notify()
                return
        handles = [request.handle for request in requests]
        self._publish(_ended_output(handles, FinishReason.ERROR, "the engine takes no more work"))

    def cancel(self, handles: Sequence[int]) -> None:
        """End sequences within one step; unknown handles are ignored."""
        with self._wake:
            if not self._closed:
                self._inbox.append(_Cancel(handles))
                self._wake.notify()

    def capacity(self) -> Capacity:
        """The load after the latest step, with what was submitted since counted as waiting."""
        with self._wake:
            return replace(
                self._capacity,
                waiting=self._capacity.waiting + self._inbox_sequences,
                queued_prefill_tokens=self._capacity.queued_prefill_tokens + self._inbox_tokens,
            )

    async def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.embed`; runs between two steps.

        :raises EngineStoppedError: the engine is not running.
        """
        reply: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        with self._wake:
            if self._closed or self._loop is None:
                raise EngineStoppedError("the engine is not running")
            self._inbox.append(_Embed(model, prompts, reply))
            self._wake.notify()
        return await reply

    async def stop(self) -> None:
        """End every sequence with CANCELLED, close the core and join the thread. Idempotent."""
        if self._thread is None or self._ended is None:
            return
        self._request_stop()
        await self._ended.wait()
        # The thread is at its last line; even so, the loop does not wait for it.
        await asyncio.to_thread(self._thread.join)

    def _request_stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()

    # ---- the engine's thread -------------------------------------------------------------------------------------

    def _run(self, loaded: asyncio.Future[None]) -> None:
        try:
            self._core.load()
            self._capacity = self._core.capacity()
        except BaseException as error:
            self._call_on_loop(_reject, loaded, error)
        else:
            self._call_on_loop(_resolve, loaded, None)
            try:
                self._serve()
            except Exception as error:  # any fault of a core must end its sequences, whatever its type
                self._fail(error)
        self._shut()
        try:
            self._core.close()
        except Exception:
            logger.exception("engine core did not close cleanly")
        if self._ended is not None:
            self._call_on_loop(self._ended.set)

    def _serve(self) -> None:
        """Step while there is work, wait while there is none, return when asked to stop."""
        core = self._core
        while True:
            with self._wake:
                while not self._stopping and (
                    len(self._undelivered) >= self._max_undelivered or not (self._inbox or core.has_work())
                ):
                    self._wake.wait()
                if self._stopping:
                    return
                commands = self._take_inbox()
            for command in commands:
                self._apply(command)
            if core.has_work():
                output = core.step()
                self._forget_finished(output)
                self._capacity = core.capacity()
                self._publish(output)
            else:
                self._capacity = core.capacity()

    def _take_inbox(self) -> list[_Command]:
        commands = list(self._inbox)
        self._inbox.clear()
        self._inbox_sequences = 0
        self._inbox_tokens = 0
        return commands

    def _apply(self, command: _Command) -> None:
        match command:
            case _Add(requests):
                self._live.update(request.handle for request in requests)
                self._core.add(requests)
            case _Cancel(handles):
                self._core.cancel(handles)
            case _Embed(model, prompts, reply):
                try:
                    vectors = self._core.embed(model, prompts)
                except Exception as error:  # the caller gets whatever the core raised; other callers go on
                    self._call_on_loop(_reject, reply, error)
                else:
                    self._call_on_loop(_resolve, reply, vectors)

    def _forget_finished(self, output: StepOutput) -> None:
        for handle, finish in zip(output.handles, output.finish, strict=True):
            if finish:
                self._live.discard(handle)

    def _fail(self, error: Exception) -> None:
        logger.error("engine core failed", exc_info=error)
        self._failure = error
        if self._on_failure is not None:
            self._call_on_loop(self._on_failure, error)

    def _shut(self) -> None:
        """Answer everything that is still in the inbox or alive, so that no sequence is left without an outcome."""
        with self._wake:
            self._closed = True
            commands = self._take_inbox()
        for command in commands:
            match command:
                case _Add(requests):
                    self._live.update(request.handle for request in requests)
                case _Embed(_, _, reply):
                    self._call_on_loop(_reject, reply, EngineStoppedError("the engine stopped"))
        if self._live:
            reason = FinishReason.CANCELLED if self._failure is None else FinishReason.ERROR
            self._publish(_ended_output(sorted(self._live), reason, "the engine failed"))
            self._live.clear()
        self._capacity = _NO_CAPACITY

    # ---- from the thread to the loop ----------------------------------------------------------------------------

    def _publish(self, output: StepOutput) -> None:
        with self._wake:
            self._undelivered.append(output)
            if self._delivery_scheduled:
                return
            self._delivery_scheduled = True
        self._call_on_loop(self._deliver)

    def _deliver(self) -> None:
        """On the loop: hand every finished step to the sink, in order."""
        with self._wake:
            outputs = list(self._undelivered)
            self._undelivered.clear()
            self._delivery_scheduled = False
            if len(outputs) >= self._max_undelivered:
                self._wake.notify()
        if self._sink is None:
            return
        for output in outputs:
            try:
                self._sink(output)
            except Exception:  # a fault in handling one step must not lose the steps behind it
                logger.exception("step sink failed", extra={"step": output.step})

    def _call_on_loop(self, callback: Callable[..., None], *args: object) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            # The loop closed without stopping the engine; nobody is left to hear the rest.
            with self._wake:
                self._stopping = True


def _resolve(future: asyncio.Future[_T], value: _T) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[object], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _ended_output(handles: Sequence[int], reason: FinishReason, message: str) -> StepOutput:
    """A step that only ends sequences. `step=-1`: no engine step produced it."""
    return StepOutput(
        step=-1,
        handles=list(handles),
        tokens=[[] for _ in handles],
        finish=[int(reason)] * len(handles),
        logprobs={},
        errors=dict.fromkeys(handles, message) if reason is FinishReason.ERROR else {},
        prompt_tokens_cached={},
    )
