"""An answer that is written down while it is given, so that whoever comes with the same idempotency key reads it too:
from its beginning or from where it was, while it is given and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec.structs import replace

from libs.clock import Clock
from libs.cursor import Position
from libs.errors import WeirError
from services.gateway.output_buffer import OutputBuffer, SlowReaders, size_of
from services.gateway.policy.events import ChoiceUpdate, End, Finish
from services.gateway.policy.resuming import Remainder
from services.gateway.request import NO_LIMITS, Accepted


class Recording:
    """One answer. It is given to its end whether or not anybody reads it."""

    def __init__(self) -> None:
        self.accepted: Accepted
        """Known once it is `opened`."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it is known who answers, or why nobody does."""
        self.opened.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        self.choices: list[ChoiceUpdate] = []
        """Everything so far."""
        self.progress = -1
        self.policies: tuple[str, ...] = ()
        """Of safety, under which it was given."""
        self.end: End | None = None
        self.got: Callable[[], None] = lambda: None
        """To be called by a reader that has all of `choices`."""
        self.readers: set[Joined] = set()
        self.restored = False
        """It was given by a process before this one, whole."""

    def restore(self, accepted: Accepted, choices: list[ChoiceUpdate], end: End) -> None:
        """It is over already: this is what was given."""
        self.accepted, self.choices, self.end, self.restored = accepted, choices, end, True
        self.opened.set_result(None)

    async def record(
        self, buffer: OutputBuffer, grew: Callable[[int], None], ended: Callable[[End], Awaitable[None]]
    ) -> End:
        """Write it down as it comes; `grew` is told by how many characters, `ended` is waited for before its readers
        are told the end."""
        self.accepted = buffer.accepted
        on_taken, buffer.on_taken = buffer.on_taken, None  # nobody has got what is only written down
        self.choices = [ChoiceUpdate(index) for index in range(buffer.width)]
        self.opened.set_result(None)
        try:
            while True:
                updates, heartbeat, end = await buffer.take()
                self.progress = buffer.progress
                if on_taken is not None and end is None:
                    self.got = partial(self._got, buffer, on_taken, buffer.delivered)
                for update in updates:
                    self._add(update)
                    grew(size_of(update.text, update.logprobs))
                if heartbeat:
                    for reader in list(self.readers):
                        reader.heartbeat()
                if end is not None:
                    await ended(end)
                    self.end = end
                    for reader in list(self.readers):
                        reader.over(end)
                    return end
        finally:
            buffer.stop(Finish.CANCELLED)
            buffer.left()

    def _got(self, buffer: OutputBuffer, on_taken: Callable[[int], None], delivered: int) -> None:
        if buffer.end is None:
            on_taken(delivered)

    def _add(self, update: ChoiceUpdate) -> None:
        whole = self.choices[update.index]
        whole.text += update.text
        whole.finish = update.finish
        if update.logprobs:
            whole.logprobs = [*(whole.logprobs or ()), *update.logprobs]
        for reader in list(self.readers):
            reader.add(update)


class Joined(OutputBuffer):
    """One reader's view of a recording, from where the reader is. It leaves the others alone, and the answer goes on
    without it."""

    def __init__(
        self,
        recording: Recording,
        *,
        request_id: str,
        replayed: bool,
        at: Sequence[Position],
        clock: Clock,
        readers: SlowReaders,
    ) -> None:
        """`replayed`: another call began it. `at`: where its reader is; empty: at the beginning."""
        choices = len(recording.choices)
        super().__init__(
            request_id=request_id, choices=choices, clock=clock, arrived=clock.monotonic(), readers=readers
        )
        accepted = recording.accepted
        self.accepted = replace(accepted, replayed=True, limits=NO_LIMITS) if replayed else accepted
        self._recording = recording
        self._remainder = Remainder(at) if at else None
        recording.readers.add(self)
        for whole in recording.choices:
            if whole.text or whole.finish is not None:
                self.add(whole)
        if recording.end is not None:
            self.over(recording.end)

    @property
    def progress(self) -> int:
        """See `OutputBuffer`."""
        return self._recording.progress

    def _told(self) -> None:
        if not self._pending:  # of one that is behind nobody knows how many tokens it has
            self._recording.got()

    def add(self, update: ChoiceUpdate) -> None:
        """There is more."""
        text, logprobs = update.text, None if update.logprobs is None else list(update.logprobs)
        if self._remainder is not None:
            try:
                text, logprobs, news = self._remainder.cut(update.index, text, logprobs, update.finish)
            except WeirError as error:
                self.fail(error)
                return
            if not news:
                return
        self._put(update.index, text, logprobs, update.finish)
        self._wake()

    def over(self, end: End) -> None:
        """That was all."""
        self._recording.readers.discard(self)
        if self.end is None:
            self.end = end
            self._wake()

    def stop(self, finish: Finish) -> None:
        """Its reader leaves."""
        self._recording.readers.discard(self)
        if self.end is None:
            self._close(finish, [finish] * self.width, self.error)
            self._wake()
