"""What the operator decides about the edge; a frozen value, so that a snapshot is a function of it."""

from __future__ import annotations

import msgspec


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Paths of PEM files as Envoy sees them."""

    cert: str
    key: str


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Envoy's workload identity towards the mesh: paths of PEM files as Envoy sees them."""

    ca: str
    cert: str
    key: str


class EdgeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The public edge."""

    host: str = "127.0.0.1"
    """Address of both public listeners."""
    http_port: int = 0
    """Plain listener; 0 lets Envoy choose."""
    https_port: int = 0
    """TLS listener, present when `certificate` is set; 0 lets Envoy choose."""
    certificate: Certificate | None = None
    """The public certificate."""
    identity: Identity | None = None
    """None reaches upstreams in plaintext (tests only)."""
    max_body_bytes: int = 1 << 20
    """Larger HTTP requests get 413."""
    max_header_kib: int = 32
    """Larger request headers get 431."""
    max_connections: int = 10_000
    """Per listener; further ones are closed at once."""
    max_concurrent_streams: int = 256
    """Per HTTP/2 connection of a client."""
    max_stream_seconds: int = 900
    """Longest request; a shorter `grpc-timeout` binds."""
    idle_seconds: int = 300
    """Longest time in which nothing flows on a request."""
    auth_timeout_ms: int = 1000
    """Longest wait for edge-auth, then 503."""
    ratelimit_timeout_ms: int = 200
    """Longest wait for ratelimit, then the request passes; the mesh enforces again."""
    retry_after_seconds: int = 1
    """`retry-after` on Envoy's own 503 and 504."""
    upstream_max_requests: int = 20_000
    """Requests in flight to one upstream cluster, then 503."""
    buffer_bytes: int = 256 * 1024
    """Envoy's buffers per connection, each side: what a slow reader can hold before the upstream is paused."""
    zone_local: bool = False
    """Envoy prefers upstreams of its own zone."""
    access_log: bool = True
    """One JSON line per request on Envoy's standard output."""
    trace_endpoint: str = ""
    """OTLP gRPC collector, "host:port"; empty traces nothing and passes `traceparent` on."""
    trace_sample_ratio: float = 1.0
    """Share of requests without a sampled `traceparent` that are traced."""
