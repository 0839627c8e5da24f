"""When a failed engine is started again, and when that is given up."""

from __future__ import annotations

from collections import deque


class Restarts:
    """Counts failures. The delay doubles with each one in the window and is at its first again after a quiet one.

    The window is of time that the engine ran. An engine that takes longer to start than a window lasts, and fails each
    time, would otherwise be started for ever.
    """

    def __init__(self, *, limit: int, window: float, first_delay: float, max_delay: float) -> None:
        """More than `limit` failures within `window` seconds of running are too many. Delays in seconds."""
        self._limit = limit
        self._window = window
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._ran = 0.0  # seconds, up to the last failure
        self._started_at: float | None = None  # while it runs
        self._failures: deque[float] = deque()  # by `_ran`

    def started(self, now: float) -> None:
        """It runs, from now on."""
        self._started_at = now

    def failed(self, now: float) -> float | None:
        """It failed, while it ran or to start: how long to wait before it is started again, None if it is not to be."""
        if self._started_at is not None:
            self._ran += now - self._started_at
            self._started_at = None
        failures = self._failures
        while failures and failures[0] <= self._ran - self._window:
            failures.popleft()
        failures.append(self._ran)
        if len(failures) > self._limit:
            return None
        return float(min(self._max_delay, self._first_delay * 2 ** (len(failures) - 1)))
