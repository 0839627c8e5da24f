"""Quotas that hold in any minute: windows of use, and the ledger of all tenants' limits and leases built on them.

Used by the rate-limit service (every replica has one ledger and follows the others' decisions), by the gateway as its
fallback and by the simulation. Exact sliding windows (`Window`) and not an average rate, which lets up to twice the
limit pass within a minute.
"""

from libs.quota.asking import MOST_TOKENS, REASONS, ask_of, error_of
from libs.quota.budget import ALERT_PERCENT, Alert, Budgets, BudgetSpec, Record
from libs.quota.ledger import Ledger
from libs.quota.prices import FREE, Price, PriceBook
from libs.quota.replica import Logged, Replica, ReplicaState, Seen
from libs.quota.spent import BudgetState, SpentState, Tally
from libs.quota.types import (
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
from libs.quota.window import DAY_NS, LOCAL, MINUTE_NS, NEVER, SLOTS, Part, Use, Window

__all__ = [
    "ALERT_PERCENT",
    "ALL_MODELS",
    "DAY_NS",
    "FREE",
    "LOCAL",
    "MINUTE_NS",
    "MOST_TOKENS",
    "NEVER",
    "NO_LIMITS",
    "REASONS",
    "SLOTS",
    "UNLIMITED",
    "Admitted",
    "Alert",
    "Ask",
    "Batch",
    "BudgetSpec",
    "BudgetState",
    "Budgets",
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
    "Record",
    "Replica",
    "ReplicaState",
    "ScopeState",
    "Seen",
    "SettledAlready",
    "SettledId",
    "SpentState",
    "Taken",
    "Tally",
    "Use",
    "Window",
    "ask_of",
    "error_of",
]
