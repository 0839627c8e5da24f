"""Who is in this gateway: how many may be, when the next may come, and how it empties."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from libs.clock import Clock
from libs.errors import Reason, WeirError
from services.gateway.config import Settings
from services.gateway.generation import Generation
from services.gateway.policy.turnover import Turnover, jittered
from services.gateway.request import Request


class Occupancy:
    """One per process."""

    def __init__(self, settings: Settings, *, clock: Clock, chance: Callable[[], float]) -> None:
        """`chance` gives numbers in [0, 1): for jitter."""
        self._most = settings.max_active
        self._share = max(1, int(settings.max_active * settings.max_active_share))
        self._chance = chance
        self._turnover = Turnover(clock.monotonic())
        self._of_tenant: dict[str, int] = {}  # only tenants that have any
        self._visits: dict[Visit, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.entered = 0
        """Requests that are on their way or run."""
        self.draining = False

    def check(self, request: Request) -> None:
        """A request that has entered may stay.

        :raises WeirError: DRAINING; REJECTED_QUEUE_FULL with the time to come back.
        """
        if self.draining:
            raise self.shutting_down()
        self._check_room(self.entered - self._most, "the gateway is full", "max_active")
        over = self._of_tenant[request.identity.tenant] - self._share
        self._check_room(over, "the gateway has too many requests of this tenant", "max_active_share")

    def shutting_down(self) -> WeirError:
        """Others run: come back at once, though not all at the same moment."""
        return WeirError(
            Reason.DRAINING, "this gateway is shutting down", retry_after=0.25 + jittered(0.5, self._chance)
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
            if visit.generation is not None:
                visit.generation.fail(self.shutting_down())
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
    """A request's stay; a block in the task that serves it. Internal ones are not counted."""

    __slots__ = ("_occupancy", "_tenant", "cut", "generation", "had_place", "task")

    def __init__(self, occupancy: Occupancy, request: Request) -> None:
        self._occupancy = occupancy if request.internal is None else None
        self._tenant = request.identity.tenant
        self.task = asyncio.current_task()
        self.generation: Generation | None = None
        """What runs on a worker."""
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
