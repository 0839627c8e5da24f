"""Lets long checks of inputs take turns on the event loop, so that none keeps it from the filters of outputs.

A check runs at once as long as the present tick's share lasts; what is left of it waits. Tenants with waiting checks
take turns, whatever their number of checks, and between two turns the loop serves everybody else. A turn goes on until
`SLICE` has passed and ends at the check's next pause (`libs.safety_filter.stream.TURN` steps): less than 2 ms.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.safety_filter import Verdict

SLICE = 0.0007
"""Seconds after which a turn ends, and of checks that run at once in one tick of the loop."""

Steps = Generator[None, None, Verdict]


@dataclass(slots=True, eq=False)
class _Waiting:
    steps: Steps
    size: int
    done: Future[Verdict]


class Turns:
    """The checks of one process."""

    def __init__(self, *, clock: Clock, max_waiting: int) -> None:
        """`max_waiting` is the most characters of one tenant that wait."""
        self._clock = clock
        self._max_waiting = max_waiting
        self._queues: dict[str, deque[_Waiting]] = {}
        self._sizes: dict[str, int] = {}
        self._left = SLICE
        self._fresh = True
        self._driver: asyncio.Task[None] | None = None

    def start(self, tenant: str, steps: Steps, size: int) -> Verdict | Future[Verdict]:
        """Check a text of `size` characters: the verdict, where the share of this tick lasts, or a promise of it.

        :raises WeirError: REJECTED_OVERLOAD when too much of the tenant waits already; not a reason that callers take
            for an absence, or a tenant could be served unchecked by flooding.
        """
        if tenant not in self._queues:
            if self._fresh:
                self._fresh = False
                asyncio.get_running_loop().call_soon(self._renew)
            began = self._clock.monotonic()
            verdict = self._run(steps, began + self._left)
            self._left -= self._clock.monotonic() - began
            if verdict is not None:
                return verdict
        waiting = self._sizes.get(tenant, 0)
        if waiting and waiting + size > self._max_waiting:
            raise WeirError(
                Reason.REJECTED_OVERLOAD, f"{waiting} characters wait to be checked", limit="max_waiting_chars"
            )
        entry = _Waiting(steps, size, asyncio.get_running_loop().create_future())
        self._queues.setdefault(tenant, deque()).append(entry)
        self._sizes[tenant] = waiting + size
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive(), name="safety.turns")
        return entry.done

    def _renew(self) -> None:
        self._left, self._fresh = SLICE, True

    def _run(self, steps: Steps, until: float) -> Verdict | None:
        """Go on with a check until its verdict or the time `until`."""
        while self._clock.monotonic() < until:
            try:
                next(steps)
            except StopIteration as end:
                verdict: Verdict = end.value
                return verdict
        return None

    async def _drive(self) -> None:
        """Give turns until nothing waits."""
        try:
            while self._queues:
                for tenant in list(self._queues):
                    await asyncio.sleep(0)
                    self._turn(tenant)
        finally:
            self._driver = None

    def _turn(self, tenant: str) -> None:
        queue = self._queues[tenant]
        entry = queue[0]
        verdict: Verdict | None = None
        if not entry.done.done():  # else it was cancelled: its deadline has passed
            try:
                verdict = self._run(entry.steps, self._clock.monotonic() + SLICE)
            except Exception as error:
                entry.done.set_exception(error)
        if verdict is not None:
            entry.done.set_result(verdict)
        if entry.done.done():
            queue.popleft()
            self._sizes[tenant] -= entry.size
            if not queue:
                del self._queues[tenant], self._sizes[tenant]
