"""One rate limit as a GCRA bucket: pure, integer nanoseconds, no clock of its own.

Source: the generic cell rate algorithm in its virtual-scheduling form, ITU-T Recommendation I.371 annex A (ATM Forum
Traffic Management 4.0, section 4.4.2). One number is the whole state: the *theoretical arrival time* (TAT), the moment
at which the bucket is full again. A cost of `c` units moves it by `c * interval`; the cost conforms when the new TAT
is at most `tau = burst * interval` ahead of now.

Every caller passes `now`, nanoseconds on any one clock that does not run backwards.

`interval = ceil(minute / limit)`, so the admitted rate is never above the limit; it is below it by less than
`limit / 6e10` of itself (0.002 % at a million units per minute).
"""

from typing import NamedTuple

MINUTE_NS = 60_000_000_000
"""Limits are per minute."""

NEVER = -1
"""A wait that no time ends: the cost exceeds the burst."""


class LimitReport(NamedTuple):
    """What a caller is told about one limit (the `x-ratelimit-*` headers)."""

    limit: int
    """Units per minute (or streams at once); 0 means unlimited."""
    remaining: int
    """Whole units that could be taken now."""
    reset_ns: int
    """Until the bucket is full again."""


class BucketState(NamedTuple):
    """A bucket at rest: what is needed to go on from it under any later limit."""

    limit: int
    """Units per minute it had."""
    burst: int
    """Units it held when full."""
    deficit_ns: int
    """Time that was missing until full when it was written."""


class Bucket:
    """A GCRA bucket of `limit` units per minute that holds `burst` units when full (default: `limit`).

    Starts full.

    :raises ValueError: limit or burst below 1.
    """

    __slots__ = ("burst", "interval", "limit", "tat", "tau")

    def __init__(self, limit: int, burst: int | None = None) -> None:
        self.tat = 0
        self._set(limit, limit if burst is None else burst)

    def _set(self, limit: int, burst: int) -> None:
        if limit < 1 or burst < 1:
            raise ValueError(f"limit and burst must be at least 1, got {limit} and {burst}")
        self.limit = limit
        self.burst = burst
        self.interval = -(-MINUTE_NS // limit)
        self.tau = burst * self.interval

    def wait(self, cost: int, now: int) -> int:
        """Nanoseconds until `cost` fits: 0 when it fits now, `NEVER` when it exceeds the burst. Takes nothing.

        Exact: the cost is refused one nanosecond before and admitted then, when nothing else happens meanwhile. A
        cost of 0 fits unless the bucket is in debt.
        """
        if cost > self.burst:
            return NEVER
        tat = self.tat
        over = (tat if tat > now else now) + cost * self.interval - self.tau - now
        return over if over > 0 else 0

    def take(self, cost: int, now: int) -> int:
        """Takes `cost` when it fits. Returns what `wait` would have: 0 means taken, anything else took nothing."""
        wait = self.wait(cost, now)
        if wait == 0:
            self.charge(cost, now)
        return wait

    def charge(self, cost: int, now: int) -> None:
        """Takes `cost` whether it fits or not; the bucket may go into debt, which later takes wait out."""
        tat = self.tat
        self.tat = (tat if tat > now else now) + cost * self.interval

    def refund(self, cost: int, now: int) -> None:
        """Gives back `cost` that was taken before; never beyond full."""
        tat = self.tat - cost * self.interval
        self.tat = tat if tat > now else now

    def settle(self, taken: int, actual: int, now: int) -> None:
        """Replaces an earlier cost of `taken` by `actual`."""
        if actual > taken:
            self.charge(actual - taken, now)
        elif actual < taken:
            self.refund(taken - actual, now)

    def remaining(self, now: int) -> int:
        """Whole units that could be taken now; 0 in debt."""
        missing = self.tat - now
        left = (self.tau - missing if missing > 0 else self.tau) // self.interval
        return left if left > 0 else 0

    def reset(self, now: int) -> int:
        """Nanoseconds until the bucket is full."""
        missing = self.tat - now
        return missing if missing > 0 else 0

    def report(self, now: int) -> LimitReport:
        """The state for the caller."""
        return LimitReport(self.limit, self.remaining(now), self.reset(now))

    def rescale(self, limit: int, burst: int, now: int) -> None:
        """Changes the limit at once and keeps what was consumed, in units.

        A cut of the limit empties the bucket at most (debt that existed stays, in time), so nobody waits out an old
        minute's consumption at a much lower rate.
        """
        if limit == self.limit and burst == self.burst:
            return
        self.restore(BucketState(self.limit, self.burst, self.reset(now)), 0, now, limit=limit, burst=burst)

    def state(self, now: int) -> BucketState:
        """The bucket at rest."""
        return BucketState(self.limit, self.burst, self.reset(now))

    def restore(
        self, state: BucketState, elapsed_ns: int, now: int, *, limit: int | None = None, burst: int | None = None
    ) -> None:
        """Goes on from `state`, written `elapsed_ns` ago, under the given limit or else the state's own."""
        missing = max(0, state.deficit_ns - max(0, elapsed_ns))
        old_interval = -(-MINUTE_NS // state.limit)
        debt = missing if missing > state.burst * old_interval else 0
        self._set(state.limit if limit is None else limit, state.burst if burst is None else burst)
        scaled = -(-missing * self.interval // old_interval)
        self.tat = now + min(scaled, max(self.tau, debt))
