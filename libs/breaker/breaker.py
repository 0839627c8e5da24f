"""One circuit breaker over a sliding window of outcomes."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

_ROUNDING = 1e-9
"""Ten tenths are a little less than one in floating point."""


class BreakerState(enum.Enum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOptions:
    """When a breaker opens and how it closes. Seconds throughout."""

    window: float = 10.0
    """Outcomes older than this are forgotten."""
    buckets: int = 10
    """The window's resolution: memory per breaker, and the step in which outcomes are forgotten."""
    min_volume: int = 20
    """Fewer outcomes than this in the window never open it: one failure at night is not an outage."""
    failure_rate: float = 0.5
    """Opens at this share of failures or above."""
    open_for: float = 5.0
    """First time that it stays open."""
    max_open_for: float = 60.0
    """`open_for` doubles with each failed probe up to this."""
    probes: int = 5
    """Probes per `probe_interval` while half-open, and successes needed to close."""
    probe_interval: float = 1.0
    """See `probes`."""
    slow_start: float = 10.0
    """After closing, the share of the turns that it takes grows from `slow_start_share` to all of them over this long;
    0 takes all at once. What has just come back has cold caches, and a queue of others' work to take over."""
    slow_start_share: float = 0.1
    """See `slow_start`."""

    def __post_init__(self) -> None:
        if not (self.window > 0 and self.buckets > 0 and self.min_volume > 0 and self.probes > 0):
            raise ValueError("window, buckets, min_volume and probes must be positive")
        if not 0 < self.failure_rate <= 1:
            raise ValueError("failure_rate must be in (0, 1]")
        if not 0 < self.open_for <= self.max_open_for:
            raise ValueError("open_for must be positive and at most max_open_for")
        if not (self.probe_interval > 0 and self.slow_start >= 0 and 0 < self.slow_start_share <= 1):
            raise ValueError("probe_interval must be positive, slow_start not negative, slow_start_share in (0, 1]")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a breaker stands that is not simply closed, for processes that follow it. In seconds, from now."""

    half_open_in: float | None
    """Until it is half-open, at most 0 while it is; None: it is closed."""
    closed_for: float = 0.0
    """Since it closed; it does not take all of its turns yet."""


class Breaker:
    """Counts outcomes and says whether to send. All times are one monotonic clock's seconds.

    Questions (`state`, `can_probe`, `share`, `standing`, `idle`) change nothing. Commands (`take_probe`, `take_turn`,
    `record`, `follow`) do: a probe is taken when its request is really sent here, not when one only could have been.
    """

    def __init__(self, options: BreakerOptions) -> None:
        self._options = options
        self._span = options.window / options.buckets
        self._counts: deque[tuple[int, int, int]] = deque()  # (bucket number, successes, failures)
        self._opened_at: float | None = None
        self._open_for = options.open_for
        self._probe_successes = 0
        self._probe_period = 0.0
        self._probes_left = 0
        self._closed_at = float("-inf")
        self._credit = 0.0

    def state(self, now: float) -> BreakerState:
        """Where it stands; an open breaker turns half-open by itself when its time is over."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._opened_at + self._open_for else BreakerState.HALF_OPEN

    def can_probe(self, now: float) -> bool:
        """Is it half-open with a probe left in the present interval?"""
        if self.state(now) is not BreakerState.HALF_OPEN:
            return False
        return self._probes_left > 0 or now >= self._probe_period + self._options.probe_interval

    def take_probe(self, now: float) -> None:
        """A request is sent as a probe.

        :raises RuntimeError: not `can_probe`.
        """
        if not self.can_probe(now):
            raise RuntimeError("there is no probe to take")
        if now >= self._probe_period + self._options.probe_interval:
            self._probe_period, self._probes_left = now, self._options.probes
        self._probes_left -= 1

    def share(self, now: float) -> float:
        """The share of its turns that it takes: 1, or less for a while after closing; 0 while not closed."""
        if self._opened_at is not None:
            return 0.0
        if now >= self._closed_at + self._options.slow_start:
            return 1.0
        grown = (now - self._closed_at) / self._options.slow_start
        return max(self._options.slow_start_share, grown)

    def take_turn(self, now: float) -> bool:
        """A request would be sent here first: does this one come, or does it pass? Over any turns the taken ones are
        within one of the sum of their shares."""
        share = self.share(now)
        if share == 1.0:
            return True
        self._credit += share
        if self._credit < 1.0 - _ROUNDING:
            return False
        self._credit -= 1.0
        return True

    def idle(self, now: float) -> bool:
        """Would a new breaker do as well as this one?"""
        self._forget(int(now / self._span))
        return self.share(now) == 1.0 and not self._counts

    def standing(self, now: float) -> Standing | None:
        """What others need to know to do as it does; None while it is closed and takes all of its turns."""
        if self._opened_at is not None:
            return Standing(self._opened_at + self._open_for - now)
        return None if self.share(now) == 1.0 else Standing(None, now - self._closed_at)

    def follow(self, standing: Standing, now: float) -> None:
        """Stands where another process's breaker does. Turns passed here so far count on."""
        if standing.half_open_in is None:
            self._opened_at, self._closed_at = None, now - standing.closed_for
        else:
            self._opened_at, self._open_for, self._credit = now, standing.half_open_in, 0.0

    def record(self, *, successes: int, failures: int, now: float) -> bool:
        """Learns outcomes; whether that opened or closed it. While open they are stragglers from before and change
        nothing."""
        before = self._opened_at
        self._learn(successes, failures, now)
        return self._opened_at != before

    def _learn(self, successes: int, failures: int, now: float) -> None:
        state = self.state(now)
        if state is BreakerState.CLOSED:
            self._count(successes, failures, now)
            if self._too_many_failures():
                self._open(now, self._options.open_for)
        elif state is BreakerState.HALF_OPEN:
            if failures:
                self._open(now, min(self._open_for * 2, self._options.max_open_for))
                return
            self._probe_successes += successes
            if self._probe_successes >= self._options.probes:
                self._close(now)

    def _count(self, successes: int, failures: int, now: float) -> None:
        bucket = int(now / self._span)
        self._forget(bucket)
        if self._counts and self._counts[-1][0] == bucket:
            _, before, failed_before = self._counts.pop()
            successes, failures = successes + before, failures + failed_before
        self._counts.append((bucket, successes, failures))

    def _forget(self, bucket: int) -> None:
        while self._counts and self._counts[0][0] <= bucket - self._options.buckets:
            self._counts.popleft()

    def _too_many_failures(self) -> bool:
        failed = sum(failures for _, _, failures in self._counts)
        volume = failed + sum(successes for _, successes, _ in self._counts)
        return volume >= self._options.min_volume and failed >= self._options.failure_rate * volume

    def _open(self, now: float, seconds: float) -> None:
        self._opened_at, self._open_for = now, seconds
        self._probe_successes, self._probes_left, self._probe_period = 0, 0, now - self._options.probe_interval
        self._counts.clear()

    def _close(self, now: float) -> None:
        self._opened_at, self._open_for, self._probe_successes = None, self._options.open_for, 0
        self._closed_at, self._credit = now, 0.0
        self._counts.clear()
