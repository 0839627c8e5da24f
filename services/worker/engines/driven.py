"""An `Engine` over a core that runs elsewhere: the event loop's end, the same for a thread and for a process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from libs.telemetry import get_logger
from libs.versions.errors import LoaderGoneError
from services.worker.engines.core import (
    Abandon,
    Add,
    Bring,
    Cancel,
    Changed,
    Command,
    Embed,
    Embedded,
    Failed,
    Idle,
    Loaded,
    Report,
    Stepped,
    TakeOut,
)
from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SequenceRequest,
    StepOutput,
    StepSink,
)

log = get_logger(__name__)

NO_CAPACITY = Capacity(free_blocks=0, running=0, waiting=0, queued_prefill_tokens=0, last_step_seconds=0.0)


class EngineStoppedError(LoaderGoneError):
    """The engine was stopped or its core failed; it takes no more work."""


class CoreEndedError(LoaderGoneError):
    """The core is gone and left no error of its own; the message says how it went."""


class CoreHost(Protocol):
    """Where a core runs. All methods are called on the event loop and none blocks it."""

    async def start(self, on_report: Callable[[Report], None], on_end: Callable[[str], None]) -> None:
        """Begin to run the core. `on_report` gets its reports in order, on the loop; `on_end` is called once, after
        the last report, with how the core ended. If this raises, nothing runs and neither is called."""

    def tell(self, command: Command) -> None:
        """Send a command; after the end it goes nowhere."""

    def request_stop(self) -> None:
        """Let the core end after its present step; what cannot end in time is ended by force, where that can be
        done. Idempotent."""

    async def join(self) -> None:
        """Release what the host holds, after the end."""


class DrivenEngine:
    """An `Engine` around a `CoreHost`.

    A core that fails (it raised, or its process died) is not used again: `on_failure` is called once, its sequences
    end with ERROR, and later ones are answered ERROR too. Who wants a fresh core makes a fresh engine
    (`supervised.py` does).
    """

    def __init__(self, host: CoreHost, *, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._host = host
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sink: StepSink | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._info: EngineInfo | None = None
        self._failure: BaseException | None = None
        self._stopping = False
        self._closed = True  # takes no work
        self._live: set[int] = set()
        self._capacity = NO_CAPACITY
        # (sequences, prompt tokens) of each Add that the core has not taken yet.
        self._untaken: deque[tuple[int, int]] = deque()
        self._untaken_sequences = 0
        self._untaken_tokens = 0
        self._taken = 0
        self._embeds: dict[int, asyncio.Future[list[list[float]]]] = {}
        self._last_embed = 0
        self._coming: dict[str, asyncio.Future[dict[str, float]]] = {}  # loads under way, by model
        self._leaving: dict[str, asyncio.Future[None]] = {}  # removals

    @property
    def info(self) -> EngineInfo:
        """What the core says it is.

        :raises EngineStoppedError: it has not started.
        """
        if self._info is None:
            raise EngineStoppedError("the engine has not started")
        return self._info

    @property
    def failure(self) -> BaseException | None:
        """What broke the core, or None while it is sound."""
        return self._failure

    async def start(self, sink: StepSink) -> None:
        """Start the core's host and load the core in it; returns when the core is ready.

        :raises EngineLoadError: as `SyncEngine.load`.
        :raises EngineStoppedError: the engine was started before.
        :raises CoreEndedError: the core's process died while it loaded.
        """
        if self._loop is not None:
            raise EngineStoppedError("an engine starts once")
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._loaded = self._loop.create_future()
        try:
            await self._host.start(self._on_report, self._on_end)
        except BaseException:
            self._ended.set()
            raise
        try:
            await self._loaded
        except asyncio.CancelledError:
            self._request_stop()
            raise
        except Exception:
            await self.stop()
            raise

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """Send sequences to the core. After a stop or a failure each is answered ERROR through the sink.

        :raises EngineStoppedError: the engine has not started.
        """
        if not requests:
            return
        if self._loop is None:
            raise EngineStoppedError("the engine has not started")
        handles = [request.handle for request in requests]
        if self._closed:
            ended = ended_output(handles, FinishReason.ERROR, "the engine takes no more work")
            self._loop.call_soon(self._hand_out, ended)
            return
        if self._leaving and any(request.model in self._leaving for request in requests):
            gone = [request.handle for request in requests if request.model in self._leaving]
            self._loop.call_soon(self._hand_out, ended_output(gone, FinishReason.ERROR, "this model is unloaded"))
            requests = [request for request in requests if request.model not in self._leaving]
            handles = [request.handle for request in requests]
            if not requests:
                return
        tokens = sum(len(request.prompt) for request in requests)
        self._untaken.append((len(requests), tokens))
        self._untaken_sequences += len(requests)
        self._untaken_tokens += tokens
        self._live.update(handles)
        self._host.tell(Add(requests))

    def cancel(self, handles: Sequence[int]) -> None:
        """End sequences within one step; unknown handles are ignored."""
        if not self._closed:
            self._host.tell(Cancel(handles))

    def capacity(self) -> Capacity:
        """The load after the latest step, with what was submitted since counted as waiting."""
        if not self._untaken:
            return self._capacity
        return replace(
            self._capacity,
            waiting=self._capacity.waiting + self._untaken_sequences,
            queued_prefill_tokens=self._capacity.queued_prefill_tokens + self._untaken_tokens,
        )

    async def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.embed`; runs between steps. Cancelled, it is computed no further.

        :raises EngineStoppedError: the engine is not running.
        """
        if self._closed or self._loop is None:
            raise EngineStoppedError("the engine is not running")
        self._last_embed = number = self._last_embed + 1
        reply = self._embeds[number] = self._loop.create_future()
        self._host.tell(Embed(number, model, prompts))
        try:
            return await reply
        except asyncio.CancelledError:
            if not self._closed:
                self._host.tell(Abandon(number))
            raise
        finally:
            self._embeds.pop(number, None)

    async def load(self, model: str, folder: str) -> dict[str, float]:
        """See `Engine.load`.

        :raises EngineStoppedError: the engine is not running, or ended meanwhile.
        """
        if self._closed or self._loop is None:
            raise EngineStoppedError("the engine is not running")
        if model in self._coming or model in self._leaving or model in self.info.models:
            raise EngineLoadError(f"{model} is loaded already, or comes or goes at this moment")
        answer = self._coming[model] = self._loop.create_future()
        answer.add_done_callback(_retrieve)
        self._host.tell(Bring(model, folder))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._take_out(model)
            raise

    async def unload(self, model: str) -> None:
        """See `Engine.unload`.

        :raises EngineStoppedError: the engine is not running, or ended meanwhile.
        """
        if self._closed or self._loop is None:
            raise EngineStoppedError("the engine is not running")
        await asyncio.shield(self._take_out(model))

    def _take_out(self, model: str) -> asyncio.Future[None]:
        """Have the core drop a model; nothing is submitted for it any more."""
        if model in self._leaving:
            return self._leaving[model]
        loop = asyncio.get_running_loop()
        leaving = self._leaving[model] = loop.create_future()
        leaving.add_done_callback(_retrieve)
        self._info = self._present(self.info)
        self._host.tell(TakeOut(model))
        return leaving

    def _present(self, info: EngineInfo) -> EngineInfo:
        """`info` without the models that are leaving: the core has not heard of that yet."""
        if not self._leaving.keys() & set(info.models):
            return info
        return replace(info, models=tuple(model for model in info.models if model not in self._leaving))

    async def stop(self) -> None:
        """End every sequence with CANCELLED, close the core and release its host. Idempotent."""
        if self._loop is None:
            return
        self._request_stop()
        await self._ended.wait()
        await self._host.join()

    def _request_stop(self) -> None:
        self._stopping = True
        self._host.request_stop()

    # ---- what the core says ----------------------------------------------------------------------------------------

    def _on_report(self, report: Report) -> None:
        match report:
            case Stepped(output, capacity, taken):
                if self._closed:  # its sequences have their outcome already
                    return
                self._settle(capacity, taken)
                if any(output.finish):
                    for handle, finish in zip(output.handles, output.finish, strict=True):
                        if finish:
                            self._live.discard(handle)
                self._hand_out(output)
            case Idle(capacity, taken):
                self._settle(capacity, taken)
            case Embedded(number, vectors, error):
                self._answer(number, vectors, error)
            case Changed():
                self._on_changed(report)
            case Loaded(info, capacity):
                self._info, self._capacity, self._closed = info, capacity, False
                if self._loaded is not None and not self._loaded.done():
                    self._loaded.set_result(None)
            case Failed(error):
                self._fail(error)

    def _on_end(self, how: str) -> None:
        if self._stopping:
            self._close()
            if self._loaded is not None and not self._loaded.done():
                self._loaded.set_exception(EngineStoppedError("the engine was stopped while it loaded"))
        else:
            self._fail(CoreEndedError(how))
        self._ended.set()

    def _settle(self, capacity: Capacity, taken: int) -> None:
        self._capacity = capacity
        while self._taken < taken:
            self._taken += 1
            sequences, tokens = self._untaken.popleft()
            self._untaken_sequences -= sequences
            self._untaken_tokens -= tokens

    def _on_changed(self, change: Changed) -> None:
        """A model came or went, or did not."""
        under_way: dict[str, asyncio.Future[Any]] = self._coming if change.loaded else self._leaving
        reply = under_way.pop(change.model, None)
        self._info = self._present(change.info)
        if reply is None or reply.done():
            return
        if change.error is not None:
            reply.set_exception(change.error)
        else:
            reply.set_result(change.seconds if change.loaded else None)

    def _answer(self, number: int, vectors: list[list[float]], error: Exception | None) -> None:
        reply = self._embeds.get(number)
        if reply is None or reply.done():
            return
        if error is None:
            reply.set_result(vectors)
        else:
            reply.set_exception(error)

    def _fail(self, error: BaseException) -> None:
        """The core is broken. Whoever listens for that hears of it before the sequences end."""
        if self._failure is not None:
            return
        self._failure = error
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(error)
        elif not self._closed and self._on_failure is not None:
            self._on_failure(error)
        self._close()

    def _close(self) -> None:
        """Answer everything that is alive, so that no sequence and no caller is left without an outcome."""
        self._closed = True
        self._capacity = NO_CAPACITY
        self._untaken.clear()
        self._untaken_sequences = self._untaken_tokens = 0
        live, self._live = sorted(self._live), set()
        if live:
            reason = FinishReason.CANCELLED if self._failure is None else FinishReason.ERROR
            self._hand_out(ended_output(live, reason, "the engine failed"))
        replies: list[asyncio.Future[Any]] = [*self._embeds.values(), *self._coming.values(), *self._leaving.values()]
        for reply in replies:
            if not reply.done():
                reply.set_exception(EngineStoppedError("the engine stopped"))
                reply.add_done_callback(_retrieve)  # whoever waited may be gone
        self._coming.clear()
        self._leaving.clear()

    def _hand_out(self, output: StepOutput) -> None:
        if self._sink is None:
            return
        try:
            self._sink(output)
        except Exception as error:  # a fault in handling one step must not lose the steps behind it
            log.error("step_sink_failed", step=output.step, exc_info=error)


def _retrieve(reply: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody may be waiting for any more."""
    if not reply.cancelled():
        reply.exception()


def ended_output(handles: Sequence[int], reason: FinishReason, message: str) -> StepOutput:
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
