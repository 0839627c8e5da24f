"""What the service's shell needs from outside."""

from collections.abc import Callable

from libs.clock import Clock

Nanoseconds = Callable[[], int]
"""Reads integer nanoseconds on a clock that does not run backwards."""


def monotonic_ns(clock: Clock) -> Nanoseconds:
    """The clock's monotonic time in nanoseconds."""
    monotonic = clock.monotonic
    return lambda: int(monotonic() * 1e9)


def wall_ns(clock: Clock) -> Nanoseconds:
    """The clock's wall time in nanoseconds."""
    time = clock.time
    return lambda: int(time() * 1e9)
