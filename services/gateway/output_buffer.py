"""What a face reads from: updates that merge while nobody takes them, heartbeats, and the one end.

What was not read yet is counted, together with what the face has taken and is still writing: its next `take` says
that the write is done. A face writes one merged update at a time and comes back for the next when gRPC has taken it, so
a closed HTTP/2 window shows as a face that does not come back. None of them may hold memory, KV blocks or another's
stream for long: `SlowReaders` looks twice a second, so that a token costs nothing for it but an addition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from libs.clock import Clock
from libs.errors import Reason, WeirError
from services.gateway import metrics
from services.gateway.flushing import Flushing
from services.gateway.policy.events import Breakdown, ChoiceUpdate, End, Finish, Logprob, Usage
from services.gateway.policy.readers import Verdict, beyond, verdict
from services.gateway.request import Accepted

TURN = 65_536
"""Characters that a face gets at a time: what one slow reader leaves in gRPC's hands, and how long the others wait
for one greedy stream (encoding and writing that much takes well under a millisecond)."""
_LOGPROB_CHARS = 64
"""What one log-probability weighs in the count of unread output."""


class OutputBuffer:
    """A generation as its face sees it."""

    accepted: Accepted
    """Set before its face gets it."""

    def __init__(
        self,
        *,
        request_id: str,
        choices: int,
        clock: Clock,
        arrived: float,
        readers: SlowReaders,
        flushing: Flushing | None = None,
        flush_most: float = 0.0,
    ) -> None:
        """`flushing` says when its reader is woken, after `flush_most` seconds at the latest; None: at once."""
        self.request_id = request_id
        self.width = choices
        self.usage = Usage()
        self.earlier = Usage()
        self.breakdown = Breakdown()
        self.degraded: list[str] = []
        self.end: End | None = None
        self.error: WeirError | None = None
        self.arrived = arrived
        self.last_activity = arrived
        self.unread = 0
        """Characters that the reader may not have got yet."""
        self.taken_at = clock.monotonic()
        """When the reader last had all there was, or got something."""
        self.wrote = 0.0
        """Seconds that its writes have taken."""
        self.on_taken: Callable[[int], None] | None = None
        """Is told how many tokens were delivered each time that the reader takes some, until the end: then its record
        tells, and another request may have its place in the journal."""
        self._clock = clock
        self._readers = readers
        self._flushing = flushing
        self._flush_most = flush_most
        self._begun = False  # its reader has had its first output
        self._held = False  # there is output that waits for company
        self._writing = 0  # of the unread, what the face has taken
        self._pending: dict[int, ChoiceUpdate] = {}
        self._heartbeat = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> End:
        """The end of one that has ended."""
        if self.end is None:
            raise RuntimeError("it has not ended")
        return self.end

    @property
    def delivered(self) -> int:
        """Tokens of its output so far."""
        return self.usage.completion_tokens

    @property
    def reader_waits(self) -> bool:
        """The reader has all there is."""
        return self._waiter is not None

    @property
    def progress(self) -> int:
        """Tokens that were taken for what was handed on by now; less than 0 where it could not be gone on with."""
        return -1

    # The face's side.

    async def take(self) -> tuple[list[ChoiceUpdate], bool, End | None]:
        """Wait for news: updates (merged per choice since the last call, about `TURN` characters at most), whether a
        heartbeat is due, and the end once everything before it was taken."""
        if self._writing:
            self._count(-self._writing)
            self._written()
        while not self._pending and not self._heartbeat and self.end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.unread <= TURN:
            self._writing = self.unread
            updates = list(self._pending.values())
            self._pending = {}
        else:
            updates = self._turn()
        if updates:
            self._told()
        self._begun = self._begun or bool(updates)
        heartbeat, self._heartbeat = self._heartbeat, False
        self.last_activity = self.taken_at = self._clock.monotonic()
        return updates, heartbeat, None if self._pending else self.end

    def _told(self) -> None:
        if self.on_taken is not None and self.end is None:
            self.on_taken(self.delivered)

    def _turn(self) -> list[ChoiceUpdate]:
        """The first of what waits, up to `TURN` characters. Text with log-probabilities is not cut: they belong to it
        as a whole."""
        taken: list[ChoiceUpdate] = []
        while self._pending and self._writing < TURN:
            index, update = next(iter(self._pending.items()))
            room = TURN - self._writing
            if update.logprobs is None and len(update.text) > room:
                taken.append(ChoiceUpdate(index, update.text[:room]))
                update.text = update.text[room:]
                self._writing += room
            else:
                taken.append(self._pending.pop(index))
                self._writing += size_of(update.text, update.logprobs)
        return taken

    def heartbeat(self) -> None:
        """Nothing flowed for a while; tell the face so."""
        self._heartbeat = True
        self._wake()

    def left(self) -> None:
        """The reader is gone, or done: what it did not get is dropped."""
        if self._writing:
            self._written()
        self._count(-self.unread)
        self._pending = {}

    def _written(self) -> None:
        self._writing = 0
        self.wrote += self._clock.monotonic() - self.taken_at

    def stop(self, finish: Finish) -> None:
        """End it now. Does nothing after the end."""

    def fail(self, error: WeirError) -> None:
        """End it with an error; what was delivered stays."""
        self.error = error
        self.stop(Finish.DEADLINE if error.reason is Reason.DEADLINE_EXCEEDED else Finish.ERROR)

    # The producer's side.

    def _put(self, index: int, text: str, logprobs: list[Logprob] | None, finish: Finish | None) -> None:
        update = self._pending.get(index)
        if update is None:
            self._pending[index] = ChoiceUpdate(index, text, logprobs, finish)
        else:
            update.text += text
            update.finish = finish
            if logprobs:
                update.logprobs = update.logprobs or []
                update.logprobs += logprobs
        size = size_of(text, logprobs) if logprobs else len(text)  # as `_count`, without its cost per token
        self.unread += size
        self._readers.unread += size

    def _count(self, size: int) -> None:
        self.unread += size
        self._readers.unread += size

    def _close(self, finish: Finish, choices: list[Finish], error: WeirError | None = None) -> None:
        self.end = End(
            finish=finish,
            usage=self.usage,
            earlier=self.earlier,
            breakdown=self.breakdown,
            degraded=tuple(self.degraded),
            error=error,
            choices=choices,
        )

    def flush(self) -> None:
        """See `Flushing.later`."""
        if self._held:
            self._wake()

    def _news(self) -> None:
        """There is output: its reader is woken, the first time and at the end at once."""
        flushing = self._flushing
        if flushing is None or not flushing.hold or not self._begun or self.end is not None:
            self._wake()
        elif not self._held and self._waiter is not None:
            self._held = True
            flushing.later(self, self._flush_most)

    def _wake(self) -> None:
        self._held = False
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self.taken_at = self._clock.monotonic()  # until now it had all there was
            waiter.set_result(None)


def size_of(text: str, logprobs: Sequence[Logprob] | None) -> int:
    """What output weighs, in characters."""
    return len(text) + (_LOGPROB_CHARS * sum(1 + len(entry.top) for entry in logprobs) if logprobs else 0)


class SlowReaders:
    """The readers of one gateway."""

    def __init__(self, *, stall: float, most_stream: int, most: int) -> None:
        """`stall` in seconds; the bounds in characters, of one stream and of all together."""
        self.unread = 0
        """Characters that were not read yet, of all streams; kept by their buffers."""
        self._stall = stall
        self._most_stream = most_stream
        self._most = most
        self._readers: dict[OutputBuffer, asyncio.Task[None]] = {}
        self._cutting: set[OutputBuffer] = set()

    @property
    def readers(self) -> int:
        """Calls that are being answered."""
        return len(self._readers)

    @contextmanager
    def reading(self, buffer: OutputBuffer) -> Iterator[None]:
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
            if buffer.wrote:
                metrics.WRITE.observe(buffer.wrote)

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

    def _end(self, buffer: OutputBuffer, why: str) -> None:
        metrics.SLOW_READERS.labels(why).inc()
        buffer.fail(_slow_reader())

    def _cut(self, buffer: OutputBuffer, task: asyncio.Task[None]) -> None:
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


class Readable(Protocol):
    """What a face reads: an `OutputBuffer`, or several as one."""

    width: int

    @property
    def progress(self) -> int:
        """See `OutputBuffer`."""

    async def take(self) -> tuple[list[ChoiceUpdate], bool, End | None]:
        """See `OutputBuffer`."""

    def stop(self, finish: Finish) -> None:
        """See `OutputBuffer`."""


async def collect(generation: Readable) -> tuple[list[ChoiceUpdate], End]:
    """Read a generation to its end; every choice as one update, by index. Cancelling this stops the generation."""
    whole = [ChoiceUpdate(index) for index in range(generation.width)]
    try:
        while True:
            updates, _, end = await generation.take()
            for update in updates:
                choice = whole[update.index]
                choice.text += update.text
                choice.finish = update.finish
                if update.logprobs is not None:
                    choice.logprobs = choice.logprobs or []
                    choice.logprobs += update.logprobs
            if end is not None:
                return whole, end
    finally:
        generation.stop(Finish.CANCELLED)
