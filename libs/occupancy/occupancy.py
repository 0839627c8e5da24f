"""Who is in a service, and who may not come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.occupancy.turnover import Turnover, jittered


class Occupancy:
    """One per process."""

    def __init__(
        self, *, most: int, share: float, clock: Clock, chance: Callable[[], float], service: str = "gateway"
    ) -> None:
        """`most` requests at once, a `share` of these for one tenant; `chance` gives numbers in [0, 1): for jitter;
        `service` is what refusals call it."""
        self._service = service
        self._most = most
        self._share = max(1, int(most * share))
        self._chance = chance
        self._turnover = Turnover(clock.monotonic())
        self._of_tenant: dict[str, int] = {}  # only tenants that have any
        self._visits: dict[Visit, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.entered = 0
        """Requests that are on their way or run."""
        self.draining = False

    def check(self, tenant: str) -> None:
        """A request of the tenant's that has entered may stay.

        :raises WeirError: DRAINING; REJECTED_QUEUE_FULL with the time to come back.
        """
        if self.draining:
            raise self.shutting_down()
        self._check_room(self.entered - self._most, f"the {self._service} is full", "max_active")
        over = self._of_tenant[tenant] - self._share
        self._check_room(over, f"the {self._service} has too many requests of this tenant", "max_active_share")

    def shutting_down(self) -> WeirError:
        """Others run: come back at once, though not all at the same moment."""
        return WeirError(
            Reason.DRAINING, f"this {self._service} is shutting down", retry_after=0.25 + jittered(0.5, self._chance)
        )

    def sweep(self, now: float) -> None:
        """Called about twice a second (monotonic seconds)."""
        self._turnover.tick(now)

    async def drain(self) -> None:
        """Refuse new requests and return once the others have ended."""
        self.draining = True
        await self._idle.wait()

    def cut(self) -> None:
        """End whatever still runs or waits: each gets its terminal event or its refusal, is settled and recorded. That
        needs a turn of the loop: see `drain`."""
        for visit in self._visits:
            if visit.fail is not None:
                visit.fail(self.shutting_down())
            elif visit.task is not None:
                visit.cut = True
                visit.task.cancel()

    def enter(self, visit: Visit, tenant: str) -> None:
        """See `Visit`."""
        self._visits[visit] = None
        self.entered += 1
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        self._idle.clear()

    def leave(self, visit: Visit, tenant: str) -> None:
        """See `Visit`."""
        del self._visits[visit]
        self.entered -= 1
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        if visit.had_place:
            self._turnover.ended()
        if not self.entered:
            self._idle.set()

    def _check_room(self, over: int, message: str, limit: str) -> None:
        if over > 0:
            retry = jittered(self._turnover.wait(over), self._chance)
            raise WeirError(Reason.REJECTED_QUEUE_FULL, message, limit=limit, retry_after=retry)


class Visit:
    """A request's stay; a block in the task that serves it. Without an occupancy it is not counted."""

    __slots__ = ("_occupancy", "_tenant", "cut", "fail", "had_place", "task")

    def __init__(self, occupancy: Occupancy | None, tenant: str) -> None:
        self._occupancy = occupancy
        self._tenant = tenant
        self.task = asyncio.current_task()
        self.fail: Callable[[WeirError], None] | None = None
        """Ends what runs; without it the task is cancelled."""
        self.had_place = False
        """Those that never asked for a worker make no room for others when they leave."""
        self.cut = False
        """It was ended by us, and not by its caller."""

    def __enter__(self) -> Self:
        if self._occupancy is not None:
            self._occupancy.enter(self, self._tenant)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._occupancy is not None:
            self._occupancy.leave(self, self._tenant)
