"""Settings of the rate limiter."""

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the rate limiter needs beside the common settings."""

    domain: str = "weir-edge"
    """The rate-limit domain that Envoy's filter names; others are refused."""
    audit_target: str = "xds:///audit.weir.internal"
    """Where the audit service is; empty records no security events (tests only)."""
    security_seconds: float = 60.0
    """How often counted refusals at the edge are written."""
    default_requests_per_minute: int = 60
    """For tenants without limits of their own for "*"; 0 is unlimited, here and below."""
    default_tokens_per_minute: int = 20_000
    """As above."""
    default_concurrency: int = 4
    """As above."""
    lease_seconds: float = 20.0
    """How long a reservation lives that its gateway does not prolong, when the caller names no time."""
    share_seconds: float = 10.0
    """How long a gateway may give out its share while the owner is away, counted from when it last asked."""
    settled_retention_seconds: float = 60.0
    """How long settled ids are remembered; longer than any settle is retried. No lease is longer."""
    flush_seconds: float = 1.0
    """Pause between two writes of the journal: what a SIGKILL can lose where there is no other replica."""
    journal_bytes: int = 4 * 2**20
    """The journal is rewritten as one snapshot when it is longer than this and than twice the last snapshot."""
    spend_seconds: float = 5.0
    """Pause between two writes of what was spent of budgets: what the loss of all limiters at once forgets of it."""
    max_in_flight: int = 4096
    """Calls in flight per quota session."""
    owners: str = "xds:///ratelimit.weir.internal"
    """Where a stream with a shard's header reaches the shard's owner; dialled while there are several replicas."""
    replicate_seconds: float = 0.02
    """A decision waits at most this long before it is told to the other replicas."""
    peer_seconds: float = 5.0
    """What one replica tells another is retried for this long; later the other asks for the whole state."""
    level_seconds: float = 10.0
    """After so long without the registry, levels of overload count no more: their end could not be seen."""
    forward_seconds: float = 0.05
    """The owner's time to answer for the edge; after it the replica that was asked decides by what it knows."""
    hear_seconds: float = 1.0
    """A replica that owes an answer for so long is not heard."""
    join_seconds: float = 10.0
    """At the start, the time to get the state of another replica; after it, the journal's is taken as it is."""
    settle_seconds: float = 2.0
    """After a change among the replicas, sessions are sent to their new owners once nothing changed for this long."""
    rebalance_seconds: float = 300.0
    """With several replicas, sessions are sent to their owners this often, whatever happened to the network."""
