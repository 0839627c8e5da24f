"""Metrics of the rate limiter. Labels are closed sets; tenants are not labels."""

from prometheus_client import Counter, Gauge

_EDGE = Counter("weir_ratelimit_edge_total", "Requests at the edge by outcome.", ["outcome"])
_RESERVE = Counter("weir_ratelimit_reserve_total", "Reservations by outcome.", ["outcome"])
_SETTLE = Counter("weir_ratelimit_settle_total", "Settlements by whether the lease was live.", ["known"])

EDGE_OK = _EDGE.labels("ok")
EDGE_DENIED = {kind: _EDGE.labels(kind) for kind in ("requests_per_minute", "tokens_per_minute", "concurrency")}
RESERVE_OK = _RESERVE.labels("ok")
RESERVE_SETTLED = _RESERVE.labels("settled_already")
RESERVE_DENIED = {kind: _RESERVE.labels(kind) for kind in EDGE_DENIED}
SETTLE_KNOWN = _SETTLE.labels("true")
SETTLE_UNKNOWN = _SETTLE.labels("false")
LEASES = Gauge("weir_ratelimit_leases", "Reservations that are neither settled nor expired.")
EXPIRED = Counter("weir_ratelimit_leases_expired_total", "Leases that nobody settled in time.")
LIMITS_REVISION = Gauge("weir_ratelimit_limits_revision", "Registry revision of the limits in force.")
JOURNAL_WRITES = Counter("weir_ratelimit_journal_writes_total", "Frames written to the journal.")
JOURNAL_FAILURES = Counter("weir_ratelimit_journal_failures_total", "Frames that could not be written.")
