"""Events in order of time: the whole of discrete-event simulation."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[[Any], None]


class Clock:
    """The present, and what is to come. Events of one moment run in the order in which they were set."""

    __slots__ = ("_events", "_order", "now", "ran")

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self.ran = 0
        """Events that were run."""
        self._events: list[tuple[float, int, Action, Any]] = []
        self._order = 0

    def at(self, moment: float, action: Action, argument: Any = None) -> None:
        """Runs `action(argument)` at a moment; one that has passed is now."""
        self._order += 1
        heapq.heappush(self._events, (moment if moment > self.now else self.now, self._order, action, argument))

    def after(self, seconds: float, action: Action, argument: Any = None) -> None:
        """Runs `action(argument)` so many seconds from now."""
        self._order += 1
        heapq.heappush(self._events, (self.now + seconds, self._order, action, argument))

    def run(self, *, until: Callable[[], bool]) -> None:
        """Runs events until there are none or `until` says so."""
        events = self._events
        while events and not until():
            self.now, _, action, argument = heapq.heappop(events)
            self.ran += 1
            action(argument)
