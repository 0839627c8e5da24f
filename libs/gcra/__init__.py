"""Rate limits as pure GCRA buckets, and the ledger of all tenants' limits and leases built on them.

Used by the rate-limit service and, as its fallback, by the gateway.
"""

from libs.gcra.bucket import MINUTE_NS, NEVER, Bucket, BucketState, LimitReport
from libs.gcra.ledger import Ledger
from libs.gcra.types import (
    ALL_MODELS,
    NO_LIMITS,
    Admitted,
    Changes,
    Denied,
    LeaseState,
    LimitKind,
    LimitSpec,
    ScopeState,
    SettledAlready,
)

__all__ = [
    "ALL_MODELS",
    "MINUTE_NS",
    "NEVER",
    "NO_LIMITS",
    "Admitted",
    "Bucket",
    "BucketState",
    "Changes",
    "Denied",
    "LeaseState",
    "Ledger",
    "LimitKind",
    "LimitReport",
    "LimitSpec",
    "ScopeState",
    "SettledAlready",
]
