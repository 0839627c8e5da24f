"""Leases that many calls share: one reservation for what a tenant's calls take within a second.

For calls that last milliseconds a reservation and a settlement each would cost more than what is served. So a lease is
of as many rows as such calls took lately, each draws from it, and one settlement says what they used together. Near a
limit, where so much is not to be had, it is of what the next call needs.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import Future, Task
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from weir.quota.v1 import quota_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.limiter.client import QuotaClient, Reservation
from libs.limiter.lease import forget

SPAN = 1.0
"""Seconds that a lease is drawn from: what is left of it then goes back to the tenant's others."""
_REMEMBERED = 0.25
"""Seconds for which a refusal holds at most for calls that are no smaller, and that a limit is used up for those that
are served beyond it: near a limit its owner is asked at most so often."""
_GROWTH = 4
_LEAST = 1e-3
_CALLS = 120.0
"""Seconds that a call which drew from a lease may still take."""
_IDLE = 60.0
_QUOTA = frozenset(
    {Reason.QUOTA_ROWS, Reason.QUOTA_REQUESTS, Reason.QUOTA_SPEND, Reason.QUOTA_TOKENS, Reason.QUOTA_CONCURRENCY}
)


class Key(NamedTuple):
    """Whose calls share leases."""

    tenant: str
    model: str
    """As callers name it."""
    version: str
    """What serves it."""
    counted: bool = False
    """The edge has taken them from requests per minute."""
    beyond: bool = False
    """They are served beyond limits per minute, in the class of such calls."""


class Diary(Protocol):
    """Keeps what leases were used for, for the next life of a process that is killed."""

    def opened(self, lease: SharedLease) -> int:
        """It was taken; returns its place."""

    def used(self, place: int, rows: int) -> None:
        """So many in all."""

    def closed(self, place: int) -> None:
        """It was settled."""


class SharedLease:
    """One reservation. Whoever draws from it ends what it drew, once."""

    __slots__ = (
        *("_diary", "_settle", "ends", "id", "key", "left", "open", "opened", "place", "requests", "reservation"),
        *("retired", "rows", "took", "used"),
    )

    def __init__(
        self,
        key: Key,
        name: str,
        reservation: Reservation,
        *,
        rows: int,
        requests: int,
        now: float,
        settle: Callable[[SharedLease], None],
        diary: Diary,
    ) -> None:
        self.key = key
        self.id = name
        self.reservation = reservation
        """What the limiter said of it."""
        self.rows = self.left = rows
        self.requests = requests
        """That may still draw."""
        self.opened = now
        self.ends = now + (_REMEMBERED if reservation.over_quota else SPAN)
        self.open = self.took = self.used = 0
        """Calls that have drawn and not ended; that have drawn; rows that were used."""
        self.retired = False
        self._settle = settle
        self._diary = diary
        self.place = diary.opened(self)

    def draw(self, rows: int, now: float) -> bool:
        """Take so many; False where there are too few."""
        if rows > self.left or self.requests <= 0 or now >= self.ends:
            return False
        self.left -= rows
        self.requests -= 1
        self.open += 1
        self.took += 1
        return True

    def end(self, rows: int, used: int) -> None:
        """A call that drew `rows` is over and used so many of them, or more."""
        self.open -= 1
        self.left += rows - used
        self.used += used
        if used:
            self._diary.used(self.place, self.used)
        if self.open == 0 and self.retired:
            self._settle(self)

    def retire(self) -> None:
        """Nobody draws from it any more: it is settled with its last call."""
        if not self.retired:
            self.retired = True
            if self.open == 0:
                self._settle(self)


class _Tab:
    """One key's leases."""

    __slots__ = ("beyond_until", "lease", "refusal", "requests", "rows", "seen", "serving", "spare", "waiting")

    def __init__(self) -> None:
        self.lease: SharedLease | None = None
        self.waiting: deque[tuple[int, Future[SharedLease]]] = deque()
        self.serving: Task[None] | None = None
        self.rows = self.requests = 0
        """What the next lease is to be of."""
        self.spare = 0
        """Requests that were counted and not made."""
        self.refusal: tuple[float, int, WeirError] | None = None
        """Until when, from how many rows on, and why."""
        self.beyond_until = 0.0
        self.seen = 0.0

    def measure(self, now: float) -> None:
        """The lease is over: what the next one should be of."""
        lease = self.lease
        if lease is None:
            return
        share = SPAN / max(now - lease.opened, _LEAST)
        self.rows = min(_GROWTH * lease.rows, math.ceil((lease.rows - lease.left) * share))
        self.requests = min(_GROWTH * max(1, lease.took), math.ceil(lease.took * share))
        self.spare = lease.requests if now < lease.ends + SPAN else 0


class SharedLeases:
    """All of one process and event loop. Times are monotonic seconds."""

    def __init__(self, quota: QuotaClient, *, clock: Clock, prefix: str, diary: Diary, most: int) -> None:
        """`prefix` differs from process to process and from start to start: leases are named by it. At `most` of them
        those that no call draws from are settled: no more than one are then beyond what calls there are."""
        self._quota = quota
        self._clock = clock
        self._prefix = prefix
        self._diary = diary
        self._tabs: dict[Key, _Tab] = {}
        self._opened = self._unsettled = 0
        self._most = most

    def draw(self, key: Key, rows: int) -> SharedLease | None:
        """Out of the present lease, at once; None where `wait` is needed."""
        tab = self._tabs.get(key)
        if tab is None or tab.lease is None or tab.waiting or not tab.lease.draw(rows, self._clock.monotonic()):
            return None
        return tab.lease

    async def wait(self, key: Key, rows: int, *, deadline: float) -> SharedLease:
        """Draw from the present lease or from another one, in the order of asking; until `deadline` at most.

        :raises WeirError: QUOTA_ROWS, QUOTA_REQUESTS, QUOTA_SPEND; DEADLINE_EXCEEDED.
        """
        now = self._clock.monotonic()
        tab = self._tabs.get(key)
        if tab is None:
            tab = self._tabs[key] = _Tab()
        tab.seen = now
        self._check_refusal(tab, rows, now)
        waiter: Future[SharedLease] = asyncio.get_running_loop().create_future()
        tab.waiting.append((rows, waiter))
        if tab.serving is None:
            tab.serving = asyncio.get_running_loop().create_task(self._serve(key, tab))
        try:
            async with asyncio.timeout(max(0.0, deadline - now)):
                return await waiter
        except TimeoutError:
            self._left(waiter, rows)
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed while quota was asked for") from None
        except asyncio.CancelledError:
            self._left(waiter, rows)
            raise

    def sweep(self) -> None:
        """Gives back what is left of leases whose time is over; called some times a second."""
        now = self._clock.monotonic()
        for key, tab in list(self._tabs.items()):
            if tab.serving is not None:
                continue
            if tab.lease is not None and now >= tab.lease.ends:
                self._retire(tab, now)
            if tab.lease is None and now - tab.seen > _IDLE:
                del self._tabs[key]

    def drain(self) -> None:
        """Settles all: what is open, with its last call."""
        now = self._clock.monotonic()
        for tab in self._tabs.values():
            self._retire(tab, now)

    def _left(self, waiter: Future[SharedLease], rows: int) -> None:
        """Whoever waited is gone; it may have been given its rows in this very turn of the loop."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            waiter.result().end(rows, 0)
        else:
            waiter.cancel()
            forget(waiter)

    async def _serve(self, key: Key, tab: _Tab) -> None:
        """Everybody who waits, in order."""
        try:
            while tab.waiting:
                rows, waiter = tab.waiting[0]
                lease, now = tab.lease, self._clock.monotonic()
                if waiter.done():  # it has left
                    tab.waiting.popleft()
                elif lease is not None and lease.draw(rows, now):
                    tab.waiting.popleft()
                    waiter.set_result(lease)
                else:
                    await self._refill(key, tab, rows)
        except asyncio.CancelledError:
            self._fail(tab, WeirError(Reason.DRAINING, "this process is shutting down"))
            raise
        except Exception:  # a fault of ours; whoever waits hears of it
            self._fail(tab, WeirError(Reason.INTERNAL, "quota could not be asked for"))
            raise
        finally:
            tab.serving = None

    def _fail(self, tab: _Tab, error: WeirError) -> None:
        while tab.waiting:
            _, waiter = tab.waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    async def _refill(self, key: Key, tab: _Tab, rows: int) -> None:
        """Another lease; or a refusal for the first who waits, who needs so many rows."""
        now = self._clock.monotonic()
        self._retire(tab, now)
        most, requests = max(rows, tab.rows), max(1, tab.requests)
        beyond = key.beyond and now < tab.beyond_until
        try:
            self._check_refusal(tab, rows, now)
            try:
                await self._reserve(key, tab, most, requests, beyond=beyond)
            except WeirError as error:
                if error.reason not in _QUOTA or (most == rows and requests == 1 and beyond == key.beyond):
                    raise
                await self._reserve(key, tab, rows, 1, beyond=key.beyond)
        except WeirError as error:
            now = self._clock.monotonic()
            if error.reason in _QUOTA and (tab.refusal is None or tab.refusal[0] <= now or tab.refusal[2] is not error):
                known = min(_REMEMBERED, error.retry_after or _REMEMBERED)
                tab.refusal = now + known, rows if error.reason is Reason.QUOTA_ROWS else 0, error
            self._refuse(tab, error)

    def _refuse(self, tab: _Tab, error: WeirError) -> None:
        _, waiter = tab.waiting.popleft()
        if not waiter.done():
            waiter.set_exception(error)

    def _check_refusal(self, tab: _Tab, rows: int, now: float) -> None:
        if tab.refusal is None:
            return
        until, least, error = tab.refusal
        if now >= until:
            tab.refusal = None
        elif rows >= least:
            raise error

    async def _reserve(self, key: Key, tab: _Tab, rows: int, requests: int, *, beyond: bool) -> None:
        self._opened += 1
        name, spare = f"{self._prefix}-{self._opened:x}", tab.spare
        reserve = quota_pb2.Reserve(
            tenant=key.tenant,
            model=key.model,
            model_version=key.version,
            request_id=name,
            tokens=rows,
            rows=True,
            requests=max(1, requests - spare),
            request_counted=key.counted,
            over_quota_allowed=beyond,
        )
        deadline = Deadline.after(SPAN + _CALLS, self._clock)
        reservation = await self._quota.start_reserve(reserve, deadline=deadline, traceparent="")
        now = self._clock.monotonic()
        if reservation.over_quota:
            tab.beyond_until = now + _REMEMBERED
        tab.spare, requests = 0, reserve.requests + spare
        if self._unsettled >= self._most:
            for each in self._tabs.values():
                if each.lease is not None and each.lease.open == 0:
                    self._retire(each, now)
        self._unsettled += 1
        tab.lease = SharedLease(
            key, name, reservation, rows=rows, requests=requests, now=now, settle=self._settle, diary=self._diary
        )

    def _retire(self, tab: _Tab, now: float) -> None:
        if tab.lease is not None:
            tab.measure(now)
            lease, tab.lease = tab.lease, None
            lease.retire()

    def _settle(self, lease: SharedLease) -> None:
        self._unsettled -= 1
        key = lease.key
        self._quota.settle(
            quota_pb2.Settle(
                tenant=key.tenant,
                model=key.model,
                model_version=key.version,
                request_id=lease.id,
                tokens=lease.used,
                rows=True,
            )
        )
        self._diary.closed(lease.place)
