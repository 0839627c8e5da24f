"""Quotas that hold in any minute: windows of use, and the ledger of all tenants' limits and leases built on them.

Used by the rate-limit service (every replica has one ledger and follows the others' decisions), by the gateway as its
fallback and by the simulation. Exact sliding windows (`Window`) and not an average rate, which lets up to twice the
limit pass within a minute.
"""

from libs.quota.asking import MOST_TOKENS, REASONS, ask_of, error_of, used_of
from libs.quota.bridge import Bridge, Question
from libs.quota.bucket import BUCKETS
from libs.quota.budget import ALERT_PERCENT, Alert, Budgets, BudgetSpec, Record
from libs.quota.headers import Header, limit_headers, retry_headers
from libs.quota.ledger import Ledger
from libs.quota.owner import Answer, answer
from libs.quota.prices import FREE, Price, PriceBook
from libs.quota.replica import Cursor, Joining, Logged, Piece, Replica, Seen
from libs.quota.shares import HOLDERS, Allotment, Share
from libs.quota.spent import BudgetState, SpentState, Tally
from libs.quota.types import (
    ALL_MODELS,
    NO_LIMITS,
    ROWS,
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
    Told,
    unit_of,
)
from libs.quota.window import DAY_NS, LOCAL, MINUTE_NS, NEVER, SLOTS, Part, Use, Window

__all__ = [
    "ALERT_PERCENT",
    "ALL_MODELS",
    "BUCKETS",
    "DAY_NS",
    "FREE",
    "HOLDERS",
    "LOCAL",
    "MINUTE_NS",
    "MOST_TOKENS",
    "NEVER",
    "NO_LIMITS",
    "REASONS",
    "ROWS",
    "SLOTS",
    "UNLIMITED",
    "Admitted",
    "Alert",
    "Allotment",
    "Answer",
    "Ask",
    "Batch",
    "Bridge",
    "BudgetSpec",
    "BudgetState",
    "Budgets",
    "Closed",
    "Cursor",
    "Denied",
    "Header",
    "Joining",
    "Ledger",
    "LedgerState",
    "LimitKind",
    "LimitReport",
    "LimitSpec",
    "Logged",
    "Opened",
    "Part",
    "PartState",
    "Piece",
    "Price",
    "PriceBook",
    "Question",
    "Record",
    "Replica",
    "ScopeState",
    "Seen",
    "SettledAlready",
    "SettledId",
    "Share",
    "SpentState",
    "Taken",
    "Tally",
    "Told",
    "Use",
    "Window",
    "answer",
    "ask_of",
    "error_of",
    "limit_headers",
    "retry_headers",
    "unit_of",
    "used_of",
]
