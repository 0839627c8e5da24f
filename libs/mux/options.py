"""Options of the two ends. The defaults suit one gateway talking to one replica inside a zone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Limits and timings of a `MuxClient`; times in seconds."""

    max_queued: int = 8192
    """Calls that may wait for the window or for a stream; one more is refused at once."""
    max_frame_items: int = 256
    """Most calls written in one frame."""
    max_frame_bytes: int = 1 << 20
    """A frame is closed once its calls reach this size (one larger call still travels, alone)."""
    max_item_bytes: int = 12 << 20
    """A larger call is refused with PAYLOAD_TOO_LARGE: gRPC would end the whole stream over it (limit 16 MiB)."""
    longest_hold: float = 0.003
    """Under load a frame may wait this long for more calls to travel with it (libs.mux.pacer); 0 never waits."""
    lazy_hold: float = 0.05
    """A lazy call, for which nobody waits, waits at most this long for another call to travel with."""
    max_attempts: int = 16
    """A RETRY call that has lost this many streams fails: it may be what breaks its server."""
    connect_timeout: float = 5.0
    """From opening a stream to its Welcome."""
    silence: float = 1.5
    """A stream on which nothing comes for this long, although calls are in flight and its peer was asked whether it is
    there, is given up."""
    first_retry: float = 0.02
    """Base of the first reconnect delay; the delay drawn is between half of it and all of it."""
    max_retry: float = 1.0
    """Ceiling of the reconnect delay."""
    stable_after: float = 1.0
    """A stream that lived this long resets the back-off."""
    timer_granularity: float = 0.005
    """Expired calls are looked for at most this often, so a call may end this late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Limits and timings of a `MuxServer`; times in seconds."""

    max_in_flight: int = 1024
    """Calls that one client may have in flight on one stream; told in Welcome."""
    max_frame_items: int = 256
    """Most replies written in one frame."""
    max_frame_bytes: int = 1 << 20
    """A frame is closed once its replies reach this size."""
    timer_granularity: float = 0.005
    """Expired calls are looked for at most this often."""
    hello_timeout: float = 10.0
    """A stream that has not said Hello by then is ended."""
