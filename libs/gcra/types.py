"""The plain values that go into and come out of a ledger."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from libs.gcra.bucket import BucketState, LimitReport

ALL_MODELS = "*"
"""The model name of a tenant-wide limit."""


class LimitKind(StrEnum):
    """Which limit; the value is its name on the wire."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """The limits of one scope; 0 means unlimited."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0

    def __post_init__(self) -> None:
        if min(self.requests_per_minute, self.tokens_per_minute, self.concurrency) < 0:
            raise ValueError(f"limits must not be negative: {self}")


NO_LIMITS = LimitSpec()
"""Everything unlimited."""


class Admitted(NamedTuple):
    """The request passed; the tightest state of each kind of limit after it (limit 0: unlimited)."""

    requests: LimitReport
    tokens: LimitReport
    concurrency: LimitReport


@dataclass(frozen=True, slots=True)
class Denied:
    """The request did not pass and nothing was taken."""

    kind: LimitKind
    """The limit that takes longest to lift."""
    model: str
    """The model it is for, `"*"` for the tenant as a whole."""
    report: LimitReport
    """Its state."""
    cost: int
    """What was asked of it."""
    retry_after_ns: int | None
    """When the same request would pass (a hint for concurrency); None when it never will."""

    def outlasts(self, other: "Denied") -> bool:
        """Whether this denial takes longer to lift."""
        if other.retry_after_ns is None:
            return False
        return self.retry_after_ns is None or self.retry_after_ns > other.retry_after_ns

    def message(self) -> str:
        """One sentence for the caller."""
        where = "" if self.model == ALL_MODELS else f" for model {self.model}"
        limit = self.report.limit
        if self.kind is LimitKind.CONCURRENCY:
            return f"Limit of {limit} concurrent requests{where} reached."
        unit = "requests" if self.kind is LimitKind.REQUESTS else "tokens"
        if self.retry_after_ns is None:
            return f"{self.cost} {unit} at once can never fit the limit of {limit} {unit} per minute{where}."
        return f"Limit of {limit} {unit} per minute{where} reached: {self.report.remaining} left, {self.cost} needed."


@dataclass(frozen=True, slots=True)
class SettledAlready:
    """The request id was settled or expired before; nothing was taken."""


class ScopeState(NamedTuple):
    """A scope at rest."""

    tenant: str
    model: str
    requests: BucketState | None
    tokens: BucketState | None
    concurrency: int


class LeaseState(NamedTuple):
    """A live lease at rest."""

    tenant: str
    request_id: str
    model: str
    tokens: int
    expires_in_ns: int


class Changes(NamedTuple):
    """A ledger's state, or what changed of it: later ones replace earlier ones key by key."""

    scopes: tuple[ScopeState, ...]
    leases: tuple[LeaseState, ...]
    settled: tuple[tuple[str, str], ...]
    """(tenant, request id); ends a lease that an earlier one opened."""
