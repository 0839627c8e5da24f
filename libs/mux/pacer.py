"""When to wait a moment so that more can travel in one message.

A gRPC message costs about 100 µs of CPU at its two ends, whatever is in it; an item in it costs a tenth. So a writer
that is about to be given more within `longest` anyway does better to wait for it. A writer that is not writes at once:
waiting is for load, never for an idle system. Pure.
"""

from __future__ import annotations

_MEMORY = 0.2
"""Seconds over which the rate is remembered (exponentially)."""


class Pacer:
    """Says how long to hold a message back, from the rate at which items have been coming.

    The rule: with r items per second, wait until `target` of them are likely there (`target / r` after the last write),
    never longer than `longest` seconds, and not at all while fewer than one is likely to come in that time.
    """

    __slots__ = ("_last", "_longest", "_rate", "_target")

    def __init__(self, *, longest: float, target: int = 8) -> None:
        self._longest = longest
        self._target = target
        self._rate = 0.0  # items per second
        self._last = 0.0  # when the last message left

    @property
    def rate(self) -> float:
        """Items per second, as remembered."""
        return self._rate

    def wrote(self, items: int, now: float) -> None:
        """A message with so many items leaves at `now` (monotonic seconds)."""
        elapsed = now - self._last
        self._last = now
        if elapsed >= 4 * _MEMORY:
            self._rate = 0.0  # it was quiet: what was known says nothing about now
            return
        weight = elapsed / (elapsed + _MEMORY)
        self._rate += weight * (items / elapsed - self._rate) if elapsed > 0 else items / _MEMORY

    def hold(self, now: float) -> float:
        """Seconds to wait at `now` before the next message; 0 is at once."""
        if self._rate * self._longest < 1.0:
            return 0.0
        spacing = min(self._longest, self._target / self._rate)
        return max(0.0, self._last + spacing - now)
