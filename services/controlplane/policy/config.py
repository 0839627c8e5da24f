"""What the operator decides about the edge; a frozen value, so that a snapshot is a function of it."""

from __future__ import annotations

import msgspec

from libs.config import MAX_BODY_BYTES, MAX_PREDICTION_BYTES
from services.controlplane.policy.cors import is_origin


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
    """Address of the public listeners."""
    https_port: int = 0
    """The public API over TLS; 0 lets Envoy choose."""
    http_port: int | None = None
    """The public API in plaintext as well; None: not at all, 0 lets Envoy choose."""
    admin_host: str = "127.0.0.1"
    """Address of the admin API's listener."""
    admin_port: int | None = None
    """The admin API over TLS; None: not over HTTP at all, 0 lets Envoy choose."""
    certificate: Certificate | None = None
    """Of every TLS listener; None has none of them (tests only)."""
    identity: Identity | None = None
    """None reaches upstreams in plaintext (tests only)."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may call the public API from a browser: "https://app.example.com", or every subdomain,
    "https://*.example.com". None by default. Whoever calls from a page shows that page's readers the key."""
    max_body_bytes: int = MAX_BODY_BYTES
    """Larger HTTP requests get 413; the gateway holds gRPC messages to the same (its `max_message_bytes`)."""
    max_prediction_bytes: int = MAX_PREDICTION_BYTES
    """The same of predictions (`/v2/`) and their answers; predictors hold gRPC messages to it (their
    `max_message_bytes`). Envoy has such a body whole, and once more as a message, of callers whom it knows by then."""
    max_header_kib: int = 32
    """Larger request headers get 431."""
    max_connections: int = 10_000
    """Per listener, in equal parts; further ones are closed at once."""
    source_parts: int = 16
    """Parts into which a listener's connections go by the hash of the address that they come from. A source reaches one
    part, so it can take that share of the connections, and only from those who share the part."""
    source_requests_per_second: int = 1_000
    """From one IPv4 address or IPv6 /64 before anybody is asked who it is, then 429; twice as many at once."""
    known_callers: bool = True
    """Envoy answers for edge-auth and the limiter what they said of a caller a moment ago (`edge.lua`)."""
    max_concurrent_streams: int = 256
    """Per HTTP/2 connection of a client."""
    max_stream_seconds: int = 900
    """Longest request; a shorter `grpc-timeout` binds."""
    header_seconds: int = 10
    """Longest TLS handshake, and longest time for a request's headers, then 408."""
    request_seconds: int = 300
    """Longest time until a request has arrived whole or its answer has begun, then 408."""
    idle_seconds: int = 30
    """Longest life of a connection without a request."""
    stream_idle_seconds: int = 300
    """Longest time in which nothing flows on a request."""
    auth_timeout_ms: int = 2000
    """Longest wait for edge-auth, then 503. After a third of it another process is asked, where there is one."""
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
    """OTLP gRPC collector, "host:port"; empty traces nothing."""
    trace_sample_ratio: float = 1.0
    """Share of requests that are traced."""

    def __post_init__(self) -> None:
        for origin in self.cors:
            if not is_origin(origin):
                raise ValueError(
                    f"edge.cors: {origin!r} is no origin like https://app.example.com or https://*.example.com"
                )
