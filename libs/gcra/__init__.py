"""Quotas that hold in any minute: windows of use, and the ledger of all tenants' limits and leases built on them.

Used by the rate-limit service (every replica has one ledger and follows the others' decisions), by the gateway as its
fallback and by the simulation. The name is from the algorithm that it began with; what it holds now are exact sliding
windows (`Window`), because an average rate lets up to twice the limit pass within a minute.
"""

from libs.gcra.ledger import Ledger
from libs.gcra.prices import FREE, Price, PriceBook
from libs.gcra.replica import Logged, Replica, ReplicaState, Seen
from libs.gcra.types import (
    ALL_MODELS,
    NO_LIMITS,
    UNLIMITED,
    Admitted,
    Ask,
    Batch,
    Closed,
    Denied,
    LedgerState,
    LimitKind,
    LimitReport,
    LimitSpec,
    Opened,
    PartState,
    ScopeState,
    SettledAlready,
    SettledId,
    Taken,
)
from libs.gcra.window import DAY_NS, LOCAL, MINUTE_NS, NEVER, SLOTS, Part, Use, Window

__all__ = [
    "ALL_MODELS",
    "DAY_NS",
    "FREE",
    "LOCAL",
    "MINUTE_NS",
    "NEVER",
    "NO_LIMITS",
    "SLOTS",
    "UNLIMITED",
    "Admitted",
    "Ask",
    "Batch",
    "Closed",
    "Denied",
    "Ledger",
    "LedgerState",
    "LimitKind",
    "LimitReport",
    "LimitSpec",
    "Logged",
    "Opened",
    "Part",
    "PartState",
    "Price",
    "PriceBook",
    "Replica",
    "ReplicaState",
    "ScopeState",
    "Seen",
    "SettledAlready",
    "SettledId",
    "Taken",
    "Use",
    "Window",
]
