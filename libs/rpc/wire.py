"""gRPC settings that both ends of every connection share."""

from __future__ import annotations

from typing import Any

WIRE_OPTIONS: list[tuple[str, Any]] = [
    # The bandwidth probe answers small frames with pings, which double the wake-ups of a stream of small messages;
    # with it off the flow-control window is fixed, so it is made wide enough for a zone's latency.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # Bookkeeping per call and per message for an introspection service that nobody here serves.
    ("grpc.enable_channelz", 0),
]
