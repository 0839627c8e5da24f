"""A list of prompts in one completion: each is a request of its own, and their answers are read as one.

They are begun one after the other and run a few at a time, and one for which the tenant has no slot waits for another
of the list to end: a list must not refuse itself. One that fails does not take the others along, which are billed and
so must be given: its choices say "error".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from libs.callers import Caller
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger, place_of
from services.gateway.output_buffer import OutputBuffer
from services.gateway.policy.events import Breakdown, ChoiceUpdate, End, Finish, Usage, worst
from services.gateway.policy.spec import Spec
from services.gateway.request import Accepted
from services.gateway.serve import Pipeline

log = get_logger(__name__)
_AT_ONCE = 8
"""Prompts of one list that run at a time."""
Taken = tuple[list[ChoiceUpdate], bool, End | None]


class PromptList:
    """Read like an `OutputBuffer`. Choice `i * n + k` is the k-th of prompt `i`."""

    def __init__(self, pipeline: Pipeline, specs: Sequence[Spec], caller: Caller, clock: Clock) -> None:
        self._pipeline = pipeline
        self._specs = specs
        self._caller = caller
        self._clock = clock
        self._began = clock.monotonic()
        self._each = specs[0].parameters.n or 1
        self.width = self._each * len(specs)
        self._places = asyncio.Semaphore(_AT_ONCE - 1)  # the first one has begun
        self._news: asyncio.Queue[tuple[list[ChoiceUpdate], bool]] = asyncio.Queue(_AT_ONCE)
        self._running: set[OutputBuffer] = set()
        self._one_ended = asyncio.Event()
        self._ends: dict[int, End | WeirError] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def failed(self) -> set[int]:
        """Choices of the prompts that failed."""
        return {
            position * self._each + choice
            for position, end in self._ends.items()
            if _failure(end) is not None
            for choice in range(self._each)
        }

    @property
    def progress(self) -> int:
        """See `OutputBuffer`: a list cannot be gone on with."""
        return -1

    async def open(self) -> Accepted:
        """Begin, once the first prompt is accepted.

        :raises WeirError: what refused that one.
        """
        first = await self._open(0)
        self._task = asyncio.create_task(self._run(first), name="prompts")
        return replace(first.accepted, price=None)  # each is billed by itself, of its own version

    async def aclose(self) -> None:
        """End what runs, and return when it has ended."""
        self.stop(Finish.CANCELLED)
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def take(self) -> Taken:
        """See `OutputBuffer.take`."""
        updates, heartbeat = await self._news.get()
        while not self._news.empty():
            more, beat = self._news.get_nowait()
            updates, heartbeat = updates + more, heartbeat or beat
        return updates, heartbeat, self._end() if len(self._ends) == len(self._specs) and self._news.empty() else None

    def stop(self, finish: Finish) -> None:
        """See `OutputBuffer.stop`."""
        for buffer in list(self._running):
            buffer.stop(finish)
        if self._task is not None:
            self._task.cancel()

    async def _open(self, position: int, attempt: int = 0, **more: Any) -> OutputBuffer:
        caller = self._caller
        if caller.remaining is not None:
            caller = replace(caller, remaining=caller.remaining - (self._clock.monotonic() - self._began))
        if position or attempt:
            identity = replace(caller.identity, request_counted=True)  # one call is one request
            caller = replace(caller, identity=identity, request_id=f"{caller.request_id}.{position}.{attempt}")
        buffer = await self._pipeline.open(self._specs[position], caller, **more)
        self._running.add(buffer)
        return buffer

    async def _run(self, first: OutputBuffer) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer(0, first))
            for position in range(1, len(self._specs)):
                await self._places.acquire()
                try:
                    buffer = await self._opened(position)
                except Exception as error:
                    await self._over(position, _told(error))
                else:
                    group.create_task(self._answer(position, buffer))

    async def _answer(self, position: int, buffer: OutputBuffer) -> None:
        try:
            end: End | WeirError = await self._read(position * self._each, buffer)
        except Exception as error:
            end = _told(error)
        await self._over(position, end)

    async def _over(self, position: int, end: End | WeirError) -> None:
        """Whoever waits for a slot of the tenant's may try again, and the next of the list may begin."""
        first = position * self._each if isinstance(end, WeirError) else self.width
        told = range(first, min(first + self._each, self.width))
        await self._news.put(([ChoiceUpdate(choice, finish=Finish.ERROR) for choice in told], False))
        self._ends[position] = end
        ended, self._one_ended = self._one_ended, asyncio.Event()
        ended.set()
        self._places.release()

    async def _opened(self, position: int) -> OutputBuffer:
        """Begin a prompt.

        :raises WeirError: what refused it, and not for want of what others of the list have.
        """
        attempt = 0
        while True:
            ended = self._one_ended
            again = partial(self._waits, position, ended)
            try:
                return await self._open(position, attempt, again=again)
            except WeirError as error:
                if not again(error):
                    raise
            await ended.wait()
            attempt += 1

    def _waits(self, position: int, ended: asyncio.Event, error: WeirError) -> bool:
        """Whether a slot may come free: others of the list run, or have ended while this one was being refused."""
        return error.reason is Reason.QUOTA_CONCURRENCY and (position > len(self._ends) or ended.is_set())

    async def _read(self, first: int, buffer: OutputBuffer) -> End:
        try:
            with self._pipeline.parts.readers.reading(buffer):
                while True:
                    updates, heartbeat, end = await buffer.take()
                    for update in updates:
                        update.index += first
                    if updates or heartbeat:
                        await self._news.put((updates, heartbeat))
                    if end is not None:
                        return end
        finally:
            self._running.discard(buffer)
            buffer.stop(Finish.CANCELLED)

    def _end(self) -> End:
        found = [self._ends[position] for position in sorted(self._ends)]
        ends = [end for end in found if isinstance(end, End)]
        errors = [error for end in found if (error := _failure(end)) is not None]
        usage = Usage()
        for end in ends:
            usage.prompt_tokens += end.usage.prompt_tokens
            usage.completion_tokens += end.usage.completion_tokens
            usage.cached_prompt_tokens += end.usage.cached_prompt_tokens
        return End(
            finish=Finish.ERROR if errors else worst([end.finish for end in ends]),
            usage=usage,
            breakdown=max((end.breakdown for end in ends), key=lambda found: found.total, default=Breakdown()),
            degraded=tuple(dict.fromkeys(flag for end in ends for flag in end.degraded)),
            error=errors[0] if errors else None,
            choices=[reason for end in ends for reason in end.choices],
        )


def _failure(end: End | WeirError) -> WeirError | None:
    if isinstance(end, WeirError):
        return end
    return end.error if end.finish is Finish.ERROR else None


def _told(error: Exception) -> WeirError:
    """What the reader hears; a fault of ours ends that prompt alone."""
    if isinstance(error, WeirError):
        return error
    log.error("prompt_failed", error=type(error).__name__, where=place_of(error))
    return WeirError(Reason.INTERNAL, "internal error; the trace id finds it")
