"""Readers that do not read: none of them may hold memory, KV blocks or another's stream for long.

A face writes one merged update at a time and comes back for the next when gRPC has taken it, so a closed HTTP/2 window
shows as a face that does not come back. Looked at twice a second, so that a token costs nothing here but an addition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from libs.errors import Reason, WeirError
from services.gateway import metrics
from services.gateway.policy.readers import Verdict, beyond, verdict

if TYPE_CHECKING:
    from services.gateway.mailbox import Mailbox


class Egress:
    """The readers of one gateway."""

    def __init__(self, *, stall: float, most_stream: int, most: int) -> None:
        """`stall` in seconds; the bounds in characters, of one stream and of all together."""
        self.unread = 0
        """Characters that were not read yet, of all streams; kept by their mailboxes."""
        self._stall = stall
        self._most_stream = most_stream
        self._most = most
        self._readers: dict[Mailbox, asyncio.Task[None]] = {}
        self._cutting: set[Mailbox] = set()

    @property
    def readers(self) -> int:
        """Calls that are being answered."""
        return len(self._readers)

    @contextmanager
    def reading(self, mailbox: Mailbox) -> Iterator[None]:
        """Around everything that the present task, a call's, does with a mailbox.

        :raises WeirError: SLOW_READER when the call was broken off.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a mailbox is read by a task")
        self._readers[mailbox] = task
        try:
            yield
        except asyncio.CancelledError:
            if mailbox not in self._cutting:
                raise  # the caller's doing
            task.uncancel()
            raise _slow_reader() from None
        finally:
            self._readers.pop(mailbox, None)
            self._cutting.discard(mailbox)
            mailbox.left()

    def sweep(self, now: float) -> None:
        """End what nobody reads; called about twice a second (monotonic seconds)."""
        for mailbox, task in list(self._readers.items()):
            if mailbox.reader_waits:
                continue  # nearly all of them: not worth a verdict
            found = verdict(
                idle=now - mailbox.taken_at,
                unread=mailbox.unread,
                ended=mailbox.end is not None,
                stall=self._stall,
                most=self._most_stream,
            )
            if found is Verdict.END:
                self._end(mailbox, "stalled")
            elif found is Verdict.CUT:
                self._cut(mailbox, task)
        if self.unread > self._most:
            readers = list(self._readers.items())
            for place in beyond([mailbox.unread for mailbox, _ in readers], self._most):
                mailbox, task = readers[place]
                if mailbox.end is None:
                    self._end(mailbox, "crowded")
                self._cut(mailbox, task)
        metrics.UNREAD.set(self.unread)

    def _end(self, mailbox: Mailbox, why: str) -> None:
        metrics.SLOW_READERS.labels(why).inc()
        mailbox.fail(_slow_reader())

    def _cut(self, mailbox: Mailbox, task: asyncio.Task[None]) -> None:
        """Its face stands in a write that does not end: break off the write, and drop what was not taken. The call's
        status is all that is sent after it; gRPC keeps that write, of one `TURN` at most, until the reader comes back,
        its deadline passes or its connection ends."""
        if mailbox in self._cutting:
            return
        metrics.SLOW_READERS.labels("cut").inc()
        self._cutting.add(mailbox)
        mailbox.left()
        task.cancel()


def _slow_reader() -> WeirError:
    return WeirError(Reason.SLOW_READER, "nobody read this stream for too long")
