"""Presents a library that schedules by itself (TensorRT-LLM, vLLM) as an `Engine`.

Such a library takes requests one by one and gives each an asynchronous stream of what is new. A task follows each
stream; what all of them say within one turn of the event loop becomes one step, because a library hands the results
of one of its own steps to all streams in one turn. Deadlines, cancels, refusals and the end after a failure are the
same whatever the library, so they are here.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libs.clock import Clock
from services.worker.engines.library import Delta, Library, Load, RequestRefusedError
from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SequenceRequest,
    StepOutput,
    StepSink,
    TokenLogprob,
)

logger = logging.getLogger(__name__)

_FAILED = "the engine failed on this sequence"
_BROKEN = "the engine failed"
_CLOSED = "the engine takes no more work"


class EmbeddingUnsupportedError(EngineLoadError):
    """This engine generates and cannot embed."""


@dataclass(slots=True)
class _Followed:
    request: SequenceRequest
    blocks: int
    task: asyncio.Task[None] | None = None
    started: bool = False
    ending: Delta | None = None
    """It was aborted; what is told once its stream is closed."""


class FollowedEngine:
    """An `Engine` around a `Library`. See the module docstring."""

    def __init__(
        self, library: Library, *, clock: Clock, on_failure: Callable[[BaseException], None] | None = None
    ) -> None:
        """`on_failure` is called once, on the loop, if the library breaks."""
        self._library = library
        self._clock = clock
        self._on_failure = on_failure
        self._sink: StepSink | None = None
        self._live: dict[int, _Followed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = ""  # why no more work is taken
        self._stopping: asyncio.Task[None] | None = None
        self._started = 0
        self._unstarted_tokens = 0
        self._reserved = 0
        self._deadlines: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._steps = 0
        self._pending: StepOutput | None = None
        self._places: dict[int, int] = {}  # of handles in the pending step
        self._busy_since = 0.0
        self._last_step_seconds = 0.0

    @property
    def info(self) -> EngineInfo:
        """See `Engine`."""
        return self._library.info

    async def start(self, sink: StepSink) -> None:
        """See `Engine`."""
        self._sink = sink
        await self._library.load(self._fail)

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Engine`."""
        now = self._clock.monotonic()
        if not self._live:
            self._busy_since = now
        for request in requests:
            if problem := self._problem(request):
                self._report(request.handle, [], FinishReason.ERROR, problem)
            elif request.deadline is not None and request.deadline <= now:
                self._report(request.handle, [], FinishReason.DEADLINE)
            else:
                self._follow(request)
        self._arm()

    def cancel(self, handles: Sequence[int]) -> None:
        """See `Engine`."""
        for handle in handles:
            self._abort(handle, FinishReason.CANCELLED)

    def capacity(self) -> Capacity:
        """See `Engine`."""
        return self._library.capacity(
            Load(
                started=self._started,
                unstarted=len(self._live) - self._started,
                queued_prefill_tokens=self._unstarted_tokens,
                reserved_blocks=self._reserved,
                last_step_seconds=self._last_step_seconds,
            )
        )

    async def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """:raises EmbeddingUnsupportedError: always; these libraries return no hidden states of generation models."""
        raise EmbeddingUnsupportedError(f"the {self.info.engine} engine offers no embeddings ({model})")

    async def load(self, model: str, folder: str) -> dict[str, float]:
        """:raises EngineLoadError: always; an instance of these libraries holds the model that it was started with."""
        raise EngineLoadError(f"{model}: {self._fixed()}")

    async def unload(self, model: str) -> None:
        """:raises EngineLoadError: the model is served here; see `load`."""
        if model in self.info.models:
            raise EngineLoadError(f"{model}: {self._fixed()}")

    def _fixed(self) -> str:
        served = ", ".join(self.info.models)
        return f"the {self.info.engine} engine serves what it was started with, and nothing else ({served})"

    async def stop(self) -> None:
        """See `Engine`."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._closed = self._closed or _CLOSED
        self.cancel(list(self._live))
        self._arm()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._flush()
        await self._library.close()

    def _fail(self, error: BaseException) -> None:
        """The library is gone: nothing is left without an outcome. Whoever listens for that hears of it
        first, and may give the sequences another outcome than the one that they get here (`supervised.py` does)."""
        if self._closed:
            return
        logger.error("the %s engine failed: %s", self.info.engine, type(error).__name__)
        self._closed = _BROKEN
        if self._on_failure is not None:
            self._on_failure(error)
        for handle, followed in list(self._live.items()):
            if followed.task is not None:
                followed.task.cancel()
            self._end(handle, Delta([], FinishReason.ERROR, message=_BROKEN))  # nobody is left to give memory back
        self._flush()

    # ---- sequences -----------------------------------------------------------------------------------------------

    def _problem(self, request: SequenceRequest) -> str:
        if self._closed:
            return self._closed
        info = self.info
        if request.model not in info.models:
            return f"model {request.model} is not served here"
        if not request.prompt:
            return "the prompt is empty"
        if len(request.prompt) >= info.max_context:
            return f"the prompt has {len(request.prompt)} tokens; the context is {info.max_context}"
        if request.params.max_tokens < 1:
            return "max_tokens must be at least 1"
        return self._library.problem(request)

    def _follow(self, request: SequenceRequest) -> None:
        info = self.info
        tokens = min(len(request.prompt) + request.params.max_tokens, info.max_context)
        followed = _Followed(request, blocks=-(-tokens // info.block_size))
        self._live[request.handle] = followed
        self._unstarted_tokens += len(request.prompt)
        self._reserved += followed.blocks
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.handle))
        task = followed.task = asyncio.get_running_loop().create_task(self._run(followed))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._closed_stream(followed, done))

    async def _run(self, followed: _Followed) -> None:
        """Report a request's tokens as they come, and its end."""
        request = followed.request
        message = "the engine ended the sequence without a reason"
        try:
            room = self.info.max_context - len(request.prompt)
            async with contextlib.aclosing(self._library.generate(request, room)) as stream:
                async for delta in stream:
                    self._on_delta(followed, delta)
                    if delta.finish is not None:
                        return
        except asyncio.CancelledError:
            return  # by _abort
        except RequestRefusedError as error:
            self._end(request.handle, Delta([], FinishReason.ERROR, message=str(error)))
            return
        except Exception as error:  # one request's failure, of whatever type, must not reach the others
            logger.error("a request failed in the %s engine: %s", self.info.engine, type(error).__name__)
            message = _FAILED
        if followed.ending is None and request.handle in self._live:
            self._step().faults.append(request.handle)
            self._end(request.handle, Delta([], FinishReason.ERROR, message=message))

    def _closed_stream(self, followed: _Followed, task: asyncio.Task[None]) -> None:
        """A stream is closed, and what the library held for it is free."""
        self._tasks.discard(task)
        if followed.ending is not None:
            self._end(followed.request.handle, followed.ending)

    def _on_delta(self, followed: _Followed, delta: Delta) -> None:
        handle = followed.request.handle
        if handle not in self._live or followed.ending is not None:
            return
        if delta.tokens and not followed.started:
            self._mark_started(followed)
            self._step().prompt_tokens_cached[handle] = delta.cached
        if delta.finish is not None:
            self._end(handle, delta)
        else:
            self._report(handle, delta.tokens, None, logprobs=delta.logprobs)

    def _mark_started(self, followed: _Followed) -> None:
        followed.started = True
        self._started += 1
        self._unstarted_tokens -= len(followed.request.prompt)

    def _abort(self, handle: int, reason: FinishReason) -> None:
        """End a sequence. It is told, and counted as holding its memory, until its stream is closed."""
        followed = self._live.get(handle)
        if followed is not None and followed.ending is None and followed.task is not None:
            followed.ending = Delta([], reason)
            followed.task.cancel()  # ends the stream, and with it the request inside the library

    def _end(self, handle: int, last: Delta) -> None:
        followed = self._live.pop(handle, None)
        if followed is None:
            return  # ended before, by a cancel
        if followed.started:
            self._started -= 1
        else:
            self._unstarted_tokens -= len(followed.request.prompt)
        self._reserved -= followed.blocks
        self._report(handle, last.tokens, last.finish, last.message or _FAILED, logprobs=last.logprobs)

    # ---- deadlines -----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wake at the nearest deadline of a sequence that is still alive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._deadlines and self._is_stale(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        if self._deadlines:
            delay = max(0.0, self._deadlines[0][0] - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._end_late)

    def _is_stale(self, deadline: float, handle: int) -> bool:
        followed = self._live.get(handle)
        return followed is None or followed.request.deadline != deadline

    def _end_late(self) -> None:
        now = self._clock.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, handle = heapq.heappop(self._deadlines)
            if not self._is_stale(deadline, handle):
                self._abort(handle, FinishReason.DEADLINE)
        self._arm()

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _step(self) -> StepOutput:
        """The step being gathered; it is handed out at the end of this turn of the loop."""
        if self._pending is None:
            self._pending = StepOutput(
                step=self._steps, handles=[], tokens=[], finish=[], logprobs={}, errors={}, prompt_tokens_cached={}
            )
            self._steps += 1
            asyncio.get_running_loop().call_soon(self._flush)
        return self._pending

    def _report(
        self,
        handle: int,
        tokens: Sequence[int],
        finish: FinishReason | None,
        message: str = "",
        *,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        step = self._step()
        place = self._places.get(handle)
        if place is None:
            self._places[handle] = len(step.handles)
            step.handles.append(handle)
            step.tokens.append(list(tokens))
            step.finish.append(finish or 0)
        else:
            step.tokens[place].extend(tokens)
            step.finish[place] = finish or 0
        if logprobs:
            step.logprobs.setdefault(handle, []).extend(logprobs)
        if finish is FinishReason.ERROR:
            step.errors[handle] = message

    def _flush(self) -> None:
        output, self._pending = self._pending, None
        self._places.clear()
        if output is None or self._sink is None:
            return
        if any(output.tokens):
            now = self._clock.monotonic()
            output.step_seconds = self._last_step_seconds = now - self._busy_since
            self._busy_since = now
        self._sink(output)
