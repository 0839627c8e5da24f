"""When a failed engine is started again, and when that is given up."""

from __future__ import annotations

from collections import deque


class Restarts:
    """Counts failures. The delay doubles with each one in the window and is at its first again after a quiet one."""

    def __init__(self, *, limit: int, window: float, first_delay: float, max_delay: float) -> None:
        """More than `limit` failures within `window` seconds are too many. Delays in seconds."""
        self._limit = limit
        self._window = window
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._failures: deque[float] = deque()

    def failed(self, now: float) -> float | None:
        """It failed: how long to wait before it is started again, or None if it is not to be."""
        failures = self._failures
        while failures and failures[0] <= now - self._window:
            failures.popleft()
        failures.append(now)
        if len(failures) > self._limit:
            return None
        return float(min(self._max_delay, self._first_delay * 2 ** (len(failures) - 1)))
