"""One term of one leader."""

from __future__ import annotations

import asyncio

from libs.clock import Clock
from libs.registry import Compare, KeyValue, Store


class Leadership:
    """A term. It ends once and for all; the next one has another guard."""

    def __init__(self, *, store: Store, held: KeyValue, until: float, clock: Clock) -> None:
        """:param held: the leader's key as we wrote it.

        :param until: monotonic seconds up to which the lease surely lives.
        """
        self.guard = Compare(held.key, held.mod_revision)
        """Add it to the conditions of every write: the write then happens only if this term still runs."""
        self.lease = held.lease
        """The lease under which the key lies; the store deletes the key with it."""
        self._store = store
        self._until = until
        self._clock = clock
        self._ended = asyncio.Event()

    @property
    def held(self) -> bool:
        """By the own clock nobody else can lead yet. True says little about writes: use the guard."""
        return not self._ended.is_set() and self._clock.monotonic() < self._until

    @property
    def left(self) -> float:
        """Seconds until the term ends by the own clock, unless it is extended; at least 0."""
        return 0.0 if self._ended.is_set() else max(0.0, self._until - self._clock.monotonic())

    async def confirm(self) -> bool:
        """Asks the store whether the term still runs, and ends it if not; for a write that the guard may have stopped.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when the store does not answer.
        """
        found = await self._store.get(self.guard.key)
        if found is None or found.mod_revision != self.guard.mod_revision:
            self.end()
        return self.held

    async def wait_ended(self) -> None:
        """Returns once `end` was called."""
        await self._ended.wait()

    def extend(self, until: float) -> None:
        """The lease was renewed; it surely lives until then (monotonic seconds)."""
        self._until = max(self._until, until)

    def end(self) -> None:
        """The term is over."""
        self._ended.set()
