"""A lock that its most urgent waiter gets next."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Held by one at a time; of those that wait, the one with the smallest place, then the first."""

    def __init__(self) -> None:
        self._waiting: list[tuple[tuple[object, ...], int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._held = False

    @asynccontextmanager
    async def taken(self, place: tuple[object, ...]) -> AsyncIterator[None]:
        """Wait for the turn and keep it until the end of the block; all places must compare with each other."""
        if self._held:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (place, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was given to who does not want it any more
                    self._pass_on()
                raise
        self._held = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the next who still waits."""
        self._held = False
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                self._held = True
                turn.set_result(None)
                return
