"""Time as a parameter. Decision code takes a `Clock` or plain seconds and never reads the system's time itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Reads time in seconds."""

    def monotonic(self) -> float:
        """Seconds that never go back; for durations and deadlines."""

    def time(self) -> float:
        """Seconds since the Unix epoch; for records and expiries that others read."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def time(self) -> float:
        """See `Clock`."""
        return time.time()


class ManualClock:
    """A clock that moves when told to; for tests and simulations."""

    def __init__(self, start: float = 0.0, *, epoch: float = 1_700_000_000.0) -> None:
        self._now = start
        self._epoch = epoch - start

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._now

    def time(self) -> float:
        """See `Clock`."""
        return self._epoch + self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` (not negative).

        :raises ValueError: time cannot go back.
        """
        if seconds < 0:
            raise ValueError("time cannot go back")
        self._now += seconds

    def jump(self, seconds: float) -> None:
        """Set the time of day by so much, as an operator or NTP does; durations are not touched."""
        self._epoch += seconds
