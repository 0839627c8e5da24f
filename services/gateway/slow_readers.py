"""Readers that do not read: none of them may hold memory, KV blocks or another's stream for long.

A face writes one merged update at a time and comes back for the next when gRPC has taken it, so a closed HTTP/2 window
shows as a face that does not come back. Looked at twice a second, so that a token costs nothing here but an addition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from libs.errors import Reason, WeirError
from services.gateway import metrics
from services.gateway.policy.events import End
from services.gateway.policy.readers import Verdict, beyond, verdict


class Unread(Protocol):
    """What a call reads."""

    unread: int
    """Characters that its reader may not have got yet."""
    taken_at: float
    """When its reader last had all there was, or got something (monotonic seconds)."""
    end: End | None

    @property
    def reader_waits(self) -> bool:
        """The reader has all there is."""

    def fail(self, error: WeirError) -> None:
        """End it with an error."""

    def left(self) -> None:
        """The reader is gone."""


class SlowReaders:
    """The readers of one gateway."""

    def __init__(self, *, stall: float, most_stream: int, most: int) -> None:
        """`stall` in seconds; the bounds in characters, of one stream and of all together."""
        self.unread = 0
        """Characters that were not read yet, of all streams; kept by their buffers."""
        self._stall = stall
        self._most_stream = most_stream
        self._most = most
        self._readers: dict[Unread, asyncio.Task[None]] = {}
        self._cutting: set[Unread] = set()

    @property
    def readers(self) -> int:
        """Calls that are being answered."""
        return len(self._readers)

    @contextmanager
    def reading(self, buffer: Unread) -> Iterator[None]:
        """Around everything that the present task, a call's, does with a buffer.

        :raises WeirError: SLOW_READER when the call was broken off.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a buffer is read by a task")
        self._readers[buffer] = task
        try:
            yield
        except asyncio.CancelledError:
            if buffer not in self._cutting:
                raise  # the caller's doing
            task.uncancel()
            raise _slow_reader() from None
        finally:
            self._readers.pop(buffer, None)
            self._cutting.discard(buffer)
            buffer.left()

    def sweep(self, now: float) -> None:
        """End what nobody reads; called about twice a second (monotonic seconds)."""
        for buffer, task in list(self._readers.items()):
            if buffer.reader_waits:
                continue  # nearly all of them: not worth a verdict
            found = verdict(
                idle=now - buffer.taken_at,
                unread=buffer.unread,
                ended=buffer.end is not None,
                stall=self._stall,
                most=self._most_stream,
            )
            if found is Verdict.END:
                self._end(buffer, "stalled")
            elif found is Verdict.CUT:
                self._cut(buffer, task)
        if self.unread > self._most:
            readers = list(self._readers.items())
            for place in beyond([buffer.unread for buffer, _ in readers], self._most):
                buffer, task = readers[place]
                if buffer.end is None:
                    self._end(buffer, "crowded")
                self._cut(buffer, task)
        metrics.UNREAD.set(self.unread)

    def _end(self, buffer: Unread, why: str) -> None:
        metrics.SLOW_READERS.labels(why).inc()
        buffer.fail(_slow_reader())

    def _cut(self, buffer: Unread, task: asyncio.Task[None]) -> None:
        """Its face stands in a write that does not end: break off the write, and drop what was not taken. The call's
        status is all that is sent after it; gRPC keeps that write, of one `TURN` at most, until the reader comes back,
        its deadline passes or its connection ends."""
        if buffer in self._cutting:
            return
        metrics.SLOW_READERS.labels("cut").inc()
        self._cutting.add(buffer)
        buffer.left()
        task.cancel()


def _slow_reader() -> WeirError:
    return WeirError(Reason.SLOW_READER, "nobody read this stream for too long")
