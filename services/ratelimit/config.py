"""Settings of the rate limiter."""

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the rate limiter needs beside the common settings."""

    domain: str = "weir-edge"
    """The rate-limit domain that Envoy's filter names; others are refused."""
    edge_peers: tuple[str, ...] = ("envoy",)
    """Services that may call ShouldRateLimit."""
    session_peers: tuple[str, ...] = ("gateway", "jobs")
    """Services that may open a quota session."""
    default_requests_per_minute: int = 60
    """For tenants without limits of their own for "*"; 0 is unlimited, here and below."""
    default_tokens_per_minute: int = 20_000
    """As above."""
    default_concurrency: int = 4
    """As above."""
    burst_seconds: int = 60
    """A bucket holds this many seconds' worth of its limit; 60 lets a whole minute's limit be spent at once."""
    lease_seconds: float = 600.0
    """How long a reservation lives when the caller names no time."""
    max_lease_seconds: float = 3600.0
    """The most a caller may name."""
    settled_retention_seconds: float = 120.0
    """How long settled ids are remembered; longer than any settle is retried."""
    max_settled: int = 200_000
    """The most settled ids remembered (about 200 bytes each)."""
    flush_seconds: float = 1.0
    """Pause between two writes of the journal: what a SIGKILL can lose."""
    journal_bytes: int = 4 * 2**20
    """The journal is rewritten as one snapshot when it is longer than this and than twice the last snapshot."""
    max_in_flight: int = 4096
    """Calls in flight per quota session."""
