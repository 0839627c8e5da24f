"""Unix seconds and protobuf's timestamps. Apart from the clocks, so that pure code may have those without protobuf."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(seconds: float) -> Timestamp:
    """Unix seconds as a Timestamp."""
    made = Timestamp()
    made.FromNanoseconds(int(seconds * 1e9))
    return made


def unix(stamp: Timestamp) -> float:
    """A Timestamp as Unix seconds; 0 when unset."""
    return stamp.seconds + stamp.nanos * 1e-9
