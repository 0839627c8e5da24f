"""What a face reads from: updates that merge while nobody takes them, heartbeats, and the one end.

What was not read yet is counted, together with what the face has taken and is still writing: its next `take` says
that the write is done. `slow_readers.py` bounds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from libs.clock import Clock
from libs.errors import Reason, WeirError
from services.gateway.flushing import Flushing
from services.gateway.policy.answers import Answer
from services.gateway.policy.events import Accepted, Breakdown, ChoiceUpdate, End, Finish, Logprob, Usage, worst
from services.gateway.slow_readers import SlowReaders

TURN = 65_536
"""Characters that a face gets at a time: what one slow reader leaves in gRPC's hands, and how long the others wait
for one greedy stream (encoding and writing that much takes well under a millisecond)."""
_LOGPROB_CHARS = 64
"""What one log-probability weighs in the count of unread output."""


class OutputBuffer:
    """A generation as its face sees it."""

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
        self.accepted: Accepted | None = None
        self.usage = Usage()
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
    def reader_waits(self) -> bool:
        """The reader has all there is."""
        return self._waiter is not None

    # The face's side.

    async def take(self) -> tuple[list[ChoiceUpdate], bool, End | None]:
        """Wait for news: updates (merged per choice since the last call, about `TURN` characters at most), whether a
        heartbeat is due, and the end once everything before it was taken."""
        if self._writing:
            self._count(-self._writing)
            self._writing = 0
        while not self._pending and not self._heartbeat and self.end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.unread <= TURN:
            self._writing = self.unread
            updates = list(self._pending.values())
            self._pending = {}
        else:
            updates = self._turn()
        self._begun = self._begun or bool(updates)
        heartbeat, self._heartbeat = self._heartbeat, False
        self.last_activity = self.taken_at = self._clock.monotonic()
        return updates, heartbeat, None if self._pending else self.end

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
                self._writing += _size(update.text, update.logprobs)
        return taken

    def heartbeat(self) -> None:
        """Nothing flowed for a while; tell the face so."""
        self._heartbeat = True
        self._wake()

    def left(self) -> None:
        """The reader is gone, or done: what it did not get is dropped."""
        self._count(-self.unread)
        self._writing = 0
        self._pending = {}

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
        size = _size(text, logprobs) if logprobs else len(text)  # as `_count`, without its cost per token
        self.unread += size
        self._readers.unread += size

    def _count(self, size: int) -> None:
        self.unread += size
        self._readers.unread += size

    def _close(
        self,
        finish: Finish,
        choices: Sequence[Finish],
        *,
        message: str = "",
        reason: str = "",
        retry: float | None = None,
    ) -> None:
        self.end = End(
            finish=finish,
            usage=self.usage,
            breakdown=self.breakdown,
            degraded=tuple(self.degraded),
            message=message,
            error_reason=reason,
            retry_after=retry,
            choices=list(choices),
        )

    def flush(self) -> None:
        """See `Waiting`."""
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


def _size(text: str, logprobs: Sequence[Logprob] | None) -> int:
    return len(text) + (_LOGPROB_CHARS * sum(1 + len(entry.top) for entry in logprobs) if logprobs else 0)


class Replay(OutputBuffer):
    """An answer that no worker gives: one from the cache, or the plan's fixed text. It has ended when it begins."""

    def __init__(
        self,
        answer: Answer,
        *,
        request_id: str,
        clock: Clock,
        arrived: float,
        readers: SlowReaders,
        degraded: Sequence[str],
    ) -> None:
        super().__init__(
            request_id=request_id, choices=len(answer.choices), clock=clock, arrived=arrived, readers=readers
        )
        self.usage = Usage(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens)
        self.degraded = list(degraded)
        passed = clock.monotonic() - arrived
        self.breakdown = Breakdown(time_to_first_token=passed, total=passed)
        for index, (text, finish) in enumerate(answer.choices):
            self._put(index, text, None, finish)
        finishes = [finish for _, finish in answer.choices]
        self._close(worst(finishes), finishes)
