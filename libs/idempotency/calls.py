"""Requests that are answered whole, under idempotency keys: the first one is made, every other one joins it or is given
it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from prometheus_client import Counter

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.idempotency.kept import KeptAnswers
from libs.idempotency.keyed import Entry, Keyed

A = TypeVar("A")
Answer = asyncio.Future[tuple[A, bool]]
"""And whether a process before this one gave it."""


@contextmanager
def conflicts_counted(outcomes: Counter) -> Iterator[None]:
    """Counts what the block refuses because its key stands for something else."""
    try:
        yield
    except WeirError as error:
        if error.reason is Reason.IDEMPOTENCY_CONFLICT:
            outcomes.labels("conflict").inc()
        raise


class KeyedCalls(Generic[A]):
    """Of one kind; one per process."""

    def __init__(
        self,
        keyed: Keyed[Any],
        kept: KeptAnswers,
        pack: Callable[[A], bytes],
        unpack: Callable[[bytes], A],
        *,
        outcomes: Counter,
        clock: Clock,
    ) -> None:
        """:param keyed: may know keys of other kinds of requests, too.
        :param unpack: raises ValueError for what `pack` has not made.
        :param outcomes: began, joined, replayed and conflict are counted.
        """
        self._keyed = keyed
        self._kept = kept
        self._pack, self._unpack = pack, unpack
        self._outcomes = outcomes
        self._clock = clock

    async def answer(self, tenant: str, key: str, body: bytes, make: Callable[[], Awaitable[A]]) -> tuple[A, bool]:
        """What the key stands for, and whether it did before; `make` is called where that is nothing yet, and is not
        ended by who leaves. `body` is a digest of all that makes a request the same one.

        :raises WeirError: INVALID_REQUEST, IDEMPOTENCY_CONFLICT, REJECTED_QUEUE_FULL; DEPENDENCY_UNAVAILABLE where
            nobody knows; what `make` raises, and then the key stands for nothing.
        """
        with conflicts_counted(self._outcomes):
            known: Answer[A] | None = self._keyed.find(tenant, key, body)
            joins = known is not None and not known.done()
            answer, restored = await asyncio.shield(known or self._begin(tenant, key, body, make))
        again = restored or known is not None
        self._outcomes.labels("joined" if joins else "replayed" if again else "began").inc()
        return answer, again

    def _begin(self, tenant: str, key: str, body: bytes, make: Callable[[], Awaitable[A]]) -> Answer[A]:
        future: Answer[A] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        entry = self._keyed.put(tenant, key, body, future, self._clock.monotonic())
        self._kept.spawn(self._make(entry, make))
        return future

    async def _make(self, entry: Entry[Answer[A]], make: Callable[[], Awaitable[A]]) -> None:
        async with self._kept.answering(self._keyed, entry, entry.answer) as claim:
            if (found := await claim.begin(self._unpack)) is not None:
                entry.answer.set_result((found, True))
                return
            answer = await make()
            packed = self._pack(answer)
            self._keyed.grew(entry, len(packed))
            await claim.keep(packed)
            entry.answer.set_result((answer, False))
