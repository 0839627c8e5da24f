"""When to come back to a full service: computed from how fast it gets rid of what it has."""

from __future__ import annotations

from collections.abc import Callable

SOONEST, LATEST = 0.25, 30.0
"""Seconds; nobody is told to come back sooner or later than this."""
_MEMORY = 10.0
"""Seconds over which the rate of ends is remembered (exponentially)."""


class Turnover:
    """The rate at which requests end."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._ends = 0
        self._rate = 0.0

    def ended(self) -> None:
        """One request has ended."""
        self._ends += 1

    def tick(self, now: float) -> None:
        """Take the ends since the last tick into the rate; called about twice a second (monotonic seconds)."""
        elapsed = now - self._since
        if elapsed <= 0:
            return
        weight = elapsed / (elapsed + _MEMORY)
        self._rate += weight * (self._ends / elapsed - self._rate)
        self._since, self._ends = now, 0

    @property
    def rate(self) -> float:
        """Requests that end per second."""
        return self._rate

    def wait(self, ahead: int) -> float:
        """Seconds until `ahead` requests will have ended at the present rate."""
        return LATEST if self._rate * LATEST <= ahead else max(SOONEST, ahead / self._rate)


def jittered(seconds: float, chance: Callable[[], float]) -> float:
    """`seconds` and up to half as much again, so that those who were refused together do not come back together.
    `chance` gives numbers in [0, 1)."""
    return seconds * (1.0 + 0.5 * chance())
