"""The client's decisions, without I/O: which call is queued, in flight, retried, expired or done.

`ClientCore` is driven by the asyncio shell (client.py) and, unchanged, by the property tests. Time comes in as
monotonic seconds. A call is in exactly one place until it is done: in the queue, or in flight on one stream; whoever
takes it out ends it, so it has exactly one outcome.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any, Generic, TypeVar

T = TypeVar("T")

NEVER = float("inf")


class Semantics(enum.Enum):
    """What a lost stream means for a call that was written on it."""

    RETRY = "retry"
    """The operation is idempotent: it is sent again on the next stream, within its deadline."""
    ONCE = "once"
    """It may have been executed, so it fails with DEPENDENCY_UNAVAILABLE. It is never written twice."""
    WATCH = "watch"
    """As RETRY, and answered when there is something to tell: that its peer is silent meanwhile means nothing."""


class Outcome(enum.Enum):
    """How a call ended without its peer's answer."""

    DEADLINE = "deadline"
    """Its deadline passed while the peer had it, or while it waited for the window."""
    UNAVAILABLE = "unavailable"
    """Its deadline passed while there was no stream to write it on."""
    LOST = "lost"
    """Its stream was lost and it may not be sent again."""
    CLOSED = "closed"
    """The client was closed."""


class Place(enum.Enum):
    """Where a call is."""

    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    DONE = "done"


class Call(Generic[T]):
    """One call. `item` is opaque here; `waiter` belongs to the shell."""

    __slots__ = (
        "attempts",
        "deadline",
        "id",
        "item",
        "order",
        "pinned",
        "place",
        "semantics",
        "size",
        "stream",
        "traceparent",
        "waiter",
    )

    def __init__(
        self,
        item: T,
        *,
        deadline: float,
        semantics: Semantics,
        waiter: Any = None,
        traceparent: str = "",
        pinned: int = 0,
        size: int = 0,
    ) -> None:
        """`deadline` in monotonic seconds; `pinned` is the only stream generation it may be written on, 0 for any;
        `size` in bytes."""
        self.item = item
        self.deadline = deadline
        self.semantics = semantics
        self.waiter = waiter
        self.traceparent = traceparent
        self.pinned = pinned
        self.size = size
        self.order = 0
        self.attempts = 0
        self.id = 0
        self.stream: Stream[T] | None = None
        self.place = Place.QUEUED


class Stream(Generic[T]):
    """One stream as the core sees it. Ids are never reused on it."""

    __slots__ = ("cancels", "draining", "generation", "in_flight", "last_id", "lost", "window")

    def __init__(self, generation: int, window: int) -> None:
        self.generation = generation
        self.window = window
        self.in_flight: dict[int, Call[T]] = {}
        self.cancels: list[int] = []
        self.last_id = 0
        self.draining = False
        self.lost = False

    @property
    def finished(self) -> bool:
        """Draining, and nothing is left that could still be answered or cancelled."""
        return self.draining and not self.in_flight and not self.cancels


Ended = list[tuple[Call[T], Outcome]]


class ClientCore(Generic[T]):
    """All calls of one client."""

    def __init__(self, *, max_queued: int, max_attempts: int) -> None:
        self._max_queued = max_queued
        self._max_attempts = max_attempts
        # By order of submission. An OrderedDict, because calls leave from both ends and from the middle.
        self._queue: OrderedDict[int, Call[T]] = OrderedDict()
        self._streams: list[Stream[T]] = []
        self._last_order = 0
        self._closed = False
        self.current: Stream[T] | None = None
        """The stream that takes new calls."""
        self.generation = 0
        """Number of streams opened so far."""
        self.next_deadline = NEVER
        """No call expires before this moment."""

    @property
    def closed(self) -> bool:
        """No call is taken any more."""
        return self._closed

    @property
    def queued(self) -> int:
        """Calls that wait for the window or for a stream."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Calls written and not answered."""
        return sum(len(stream.in_flight) for stream in self._streams)

    @property
    def has_work(self) -> bool:
        """A frame of calls could be written on the current stream now."""
        stream = self.current
        return stream is not None and bool(self._queue) and len(stream.in_flight) < stream.window

    def submit(self, call: Call[T]) -> bool:
        """Queue a call; False, and nothing done, when the queue is full or the client is closed."""
        if len(self._queue) >= self._max_queued or self._closed:
            return False
        self._last_order += 1
        call.order = self._last_order
        self._queue[call.order] = call
        if call.deadline < self.next_deadline:
            self.next_deadline = call.deadline
        return True

    def open(self, window: int) -> Stream[T]:
        """A stream was welcomed: it takes the calls from now on. `window` is the most it may have in flight."""
        self.generation += 1
        stream: Stream[T] = Stream(self.generation, max(1, window))
        self._streams.append(stream)
        self.current = stream
        return stream

    def take(self, stream: Stream[T], now: float, *, max_items: int, max_bytes: int) -> tuple[list[Call[T]], Ended[T]]:
        """Move calls from the queue to the stream, in order, as far as the window and the frame allow.

        Returns the calls to write, with their ids given, and those that ended instead.
        """
        calls: list[Call[T]] = []
        ended: Ended[T] = []
        if stream is not self.current:
            return calls, ended
        queue = self._queue
        room = min(max_items, stream.window - len(stream.in_flight))
        size = 0
        while queue and room > 0 and size < max_bytes:
            call = queue.popitem(last=False)[1]
            if call.deadline <= now:
                ended.append(_end(call, Outcome.DEADLINE))
                continue
            if call.pinned and call.pinned != stream.generation:
                ended.append(_end(call, Outcome.LOST))
                continue
            stream.last_id += 1
            call.id = stream.last_id
            call.stream = stream
            call.place = Place.IN_FLIGHT
            stream.in_flight[call.id] = call
            calls.append(call)
            size += call.size
            room -= 1
        return calls, ended

    def answer(self, stream: Stream[T], call_id: int) -> Call[T] | None:
        """The call that a reply ends; None for one that ended before (cancelled, expired, or answered twice)."""
        call = stream.in_flight.pop(call_id, None)
        if call is not None:
            call.place = Place.DONE
        return call

    def refuse(self, stream: Stream[T], call_ids: list[int]) -> Ended[T]:
        """A draining server answered that it did not take these calls: they were not executed, so they are queued
        again whatever their semantics."""
        taken = [stream.in_flight.pop(call_id, None) for call_id in call_ids]
        return self._requeue([call for call in taken if call is not None])

    def cancel(self, call: Call[T]) -> bool:
        """The caller gave up. True when the server must be told (the stream's writer has a cancel frame to write)."""
        if call.place is Place.QUEUED:
            self._queue.pop(call.order, None)
        told = call.place is Place.IN_FLIGHT and call.stream is not None
        if told and call.stream is not None:
            call.stream.in_flight.pop(call.id, None)
            call.stream.cancels.append(call.id)
        call.place = Place.DONE
        return told

    def drain(self, stream: Stream[T]) -> None:
        """The server said GoAway: no new calls on this stream, those in flight go on."""
        stream.draining = True
        if self.current is stream:
            self.current = None

    def lose(self, stream: Stream[T]) -> Ended[T]:
        """The stream ended. Its ONCE calls and all that were pinned to it end as LOST, its RETRY calls are queued
        again, before younger ones."""
        if stream.lost:
            return []
        stream.lost = True
        self._streams.remove(stream)
        if self.current is stream:
            self.current = None
        calls = list(stream.in_flight.values())
        stream.in_flight.clear()
        stream.cancels.clear()
        ended = [_end(call, Outcome.LOST) for call in calls if call.semantics is Semantics.ONCE]
        ended += self._requeue([call for call in calls if call.semantics is not Semantics.ONCE])
        # Pinned to it and not yet written: no other stream will ever take them.
        for call in [call for call in self._queue.values() if call.pinned == stream.generation]:
            del self._queue[call.order]
            ended.append(_end(call, Outcome.LOST))
        return ended

    def expire(self, now: float) -> Ended[T]:
        """End every call whose deadline has passed; those in flight leave a cancel frame to write."""
        if now < self.next_deadline:
            return []
        waiting = Outcome.DEADLINE if self.current is not None else Outcome.UNAVAILABLE
        ended: Ended[T] = []
        nearest = NEVER
        for call in self._alive():
            if call.deadline > now:
                nearest = min(nearest, call.deadline)
                continue
            outcome = waiting if call.place is Place.QUEUED else Outcome.DEADLINE
            self.cancel(call)
            ended.append((call, outcome))
        self.next_deadline = nearest
        return ended

    def close(self) -> Ended[T]:
        """End every call; none is taken any more."""
        self._closed = True
        ended = [_end(call, Outcome.CLOSED) for call in self._alive()]
        self._queue.clear()
        for stream in self._streams:
            stream.in_flight.clear()
        self._streams.clear()
        self.current = None
        return ended

    def _alive(self) -> list[Call[T]]:
        calls = list(self._queue.values())
        for stream in self._streams:
            calls.extend(stream.in_flight.values())
        return calls

    def _requeue(self, calls: list[Call[T]]) -> Ended[T]:
        """Queue calls again, in the order of submission. They had a place already, so `max_queued` does not bind."""
        ended: Ended[T] = []
        for call in calls:
            call.attempts += 1
            call.stream = None
            if call.attempts >= self._max_attempts or call.pinned:
                ended.append(_end(call, Outcome.LOST))
            else:
                call.place = Place.QUEUED
                self._queue[call.order] = call
        # Streams are lost rarely; sorting a nearly sorted queue then is cheaper than keeping a sorted structure.
        self._queue = OrderedDict(sorted(self._queue.items()))
        return ended


def _end(call: Call[T], outcome: Outcome) -> tuple[Call[T], Outcome]:
    call.place = Place.DONE
    return call, outcome
