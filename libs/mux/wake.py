"""A wake-up for one waiting task; the cheap half of an asyncio.Event."""

from __future__ import annotations

import asyncio


class Wake:
    """One task waits, any callback sets. A set while nobody waits is kept for the next wait."""

    __slots__ = ("_pending", "_waiter")

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._pending = False

    def set(self) -> None:
        """Let the waiter go on; it runs in the next tick, so all that this tick still queues goes with it."""
        waiter = self._waiter
        if waiter is None:
            self._pending = True
        elif not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Return after the next `set`, or at once after one that nobody saw."""
        if self._pending:
            self._pending = False
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._pending = False
