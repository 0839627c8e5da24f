"""Deadlines: absolute inside a process, remaining time between processes.

Two machines' clocks differ, so a deadline crosses the wire as the time that is left (`grpc-timeout`, or a Duration in
a multiplexed item) and becomes absolute again, on the receiver's monotonic clock, on arrival. An expired deadline is
its own outcome: it is never clamped to zero and treated as urgent.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf import duration_pb2

from libs.clock import Clock

_NANOS = 1_000_000_000


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment on the local monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> Deadline:
        """The moment `seconds` from now."""
        return cls(clock.monotonic() + seconds)

    def remaining(self, clock: Clock) -> float:
        """Seconds left; negative once it has passed."""
        return self.at - clock.monotonic()

    def expired(self, clock: Clock) -> bool:
        """True once it has passed."""
        return clock.monotonic() >= self.at

    def timeout(self, clock: Clock) -> float:
        """Seconds left, at least 0: for APIs that take a timeout. Check `expired` first."""
        return max(0.0, self.at - clock.monotonic())

    def earlier(self, other: Deadline | None) -> Deadline:
        """The stricter of the two."""
        return self if other is None or self.at <= other.at else other


def to_duration(seconds: float) -> duration_pb2.Duration:
    """A non-negative number of seconds as a protobuf Duration."""
    nanos = int(seconds * _NANOS)
    return duration_pb2.Duration(seconds=nanos // _NANOS, nanos=nanos % _NANOS)


def to_seconds(duration: duration_pb2.Duration) -> float:
    """A protobuf Duration as seconds."""
    return duration.seconds + duration.nanos / _NANOS
