"""The plain values that go into and come out of a ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from libs.quota.spent import BudgetState
from libs.quota.window import DAY_NS, Use

ALL_MODELS = "*"
"""The model name of a tenant-wide limit."""
ROWS = "rows/"
"""Begins the model's name where what is counted is rows of predictions instead of tokens: such limits are entries of
their own ("rows/*", "rows/fraud"), and money and requests are those of the tenant and its models."""


class LimitKind(StrEnum):
    """Which limit; the value is its name on the wire."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    ROWS = "rows_per_minute"
    CONCURRENCY = "concurrency"
    SPEND = "spend"
    BUDGET_DAY = "budget:day"
    BUDGET_MONTH = "budget:month"
    MAX_CONTEXT = "max_context"
    MAX_OUTPUT = "max_output"

    @property
    def slots(self) -> int:
        """Streams at once that a lease of this unit is: predictions last milliseconds, and are bounded where they
        run."""
        return int(self is not LimitKind.ROWS)


def unit_of(model: str) -> LimitKind:
    """What is counted under a model's name."""
    return LimitKind.ROWS if model.startswith(ROWS) else LimitKind.TOKENS


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """The limits of one scope; 0 means unlimited."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Of an entry of rows, rows."""
    concurrency: int = 0
    spend_microusd: int = 0
    spend_window_ns: int = DAY_NS
    max_context: int = 0
    """Prompt and longest output of one choice together, in tokens."""
    max_output: int = 0
    """Longest output of one choice, in tokens."""

    def __post_init__(self) -> None:
        limits = (
            self.requests_per_minute,
            self.tokens_per_minute,
            self.concurrency,
            self.spend_microusd,
            self.max_context,
            self.max_output,
        )
        if min(limits) < 0 or self.spend_window_ns < 1:
            raise ValueError(f"limits must not be negative: {self}")

    def shared(self, holders: int) -> LimitSpec:
        """An equal part of it for each of `holders` that cannot ask one another; at least one of everything that is
        limited. Lengths are those of one request: they hold for each as they are."""
        if holders <= 1:
            return self

        def part(limit: int) -> int:
            return max(1, limit // holders) if limit else 0

        return replace(
            self,
            requests_per_minute=part(self.requests_per_minute),
            tokens_per_minute=part(self.tokens_per_minute),
            concurrency=part(self.concurrency),
            spend_microusd=part(self.spend_microusd),
        )


NO_LIMITS = LimitSpec()
"""Everything unlimited."""


class Ask(NamedTuple):
    """What a request wants to reserve."""

    tenant: str
    model: str
    """As the caller names it; behind `ROWS` where `tokens` counts rows: then it takes no slot."""
    request_id: str
    """Made by the mesh, never by a client: a repeat takes nothing."""
    tokens: int
    """Prompt and longest output of all choices; or rows."""
    version: str = ""
    """What serves it; its own limits hold too."""
    spend: int = 0
    """Micro-dollars that `tokens` cost at most."""
    context: int = 0
    """Prompt and longest output of one choice; 0 is not looked at."""
    output: int = 0
    """Longest output of one choice; 0 is not looked at."""
    count_request: bool = True
    """Not counted at the edge, which counts for the tenant as a whole."""
    over_quota_allowed: bool = False
    """When requests or tokens refuse, take only the slot and the spend."""
    holder: str = ""
    """Who settles: a gateway and which life of it."""
    granted: bool = False
    """Its gateway serves it already: it is taken whatever the limits say."""
    grows: bool = False
    """More is asked for while it runs: it is asked again after its lease ended by itself, too."""
    requests: int = 1
    """How many it stands for."""

    @property
    def unit(self) -> LimitKind:
        """What `tokens` are."""
        return unit_of(self.model)


class LimitReport(NamedTuple):
    """What a caller is told about one limit (the `x-ratelimit-*` headers)."""

    limit: int
    """Units per period, or streams at once; 0 means unlimited."""
    remaining: int
    """Whole units that could be taken now."""
    reset_ns: int
    """Until all of it could be, when nothing else comes; with open reservations, a whole period."""
    period_ns: int = 0
    """The limit's; 0 for streams."""


UNLIMITED = LimitReport(0, 0, 0)
"""The report where no limit is set."""


class Admitted(NamedTuple):
    """The request passed; the tightest state of each kind of limit after it (limit 0: unlimited)."""

    requests: LimitReport = UNLIMITED
    tokens: LimitReport = UNLIMITED
    concurrency: LimitReport = UNLIMITED
    spend: LimitReport = UNLIMITED
    over_quota: bool = False
    """Only a slot and the spend were taken."""


_UNITS = {
    LimitKind.REQUESTS: "requests",
    LimitKind.TOKENS: "tokens",
    LimitKind.ROWS: "rows",
    LimitKind.SPEND: "micro-dollars",
}
_BUDGETS = {LimitKind.BUDGET_DAY: "day", LimitKind.BUDGET_MONTH: "month"}


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
    """When the same request would pass, if nothing else comes; an estimate while open reservations stand in the way
    (see `Scope.check`). None when it never will."""

    def outlasts(self, other: Denied) -> bool:
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
        if self.kind is LimitKind.MAX_CONTEXT:
            return f"Prompt and output together are {self.cost} tokens; the longest context{where} is {limit} tokens."
        if self.kind is LimitKind.MAX_OUTPUT:
            return f"An output of {self.cost} tokens was asked for; the longest{where} is {limit} tokens."
        if self.kind in _BUDGETS:
            what = f"the budget of {limit} micro-dollars for the {_BUDGETS[self.kind]}"
            if self.retry_after_ns is None:
                return f"{self.cost} micro-dollars at once can never fit {what}."
            return f"{what.capitalize()} is spent: {self.report.remaining} left, {self.cost} needed."
        unit = _UNITS[self.kind]
        period = "minute" if self.kind is not LimitKind.SPEND else f"{self.report.period_ns // 1_000_000_000} seconds"
        if self.retry_after_ns is None:
            return f"{self.cost} {unit} at once can never fit the limit of {limit} {unit} per {period}{where}."
        return f"Limit of {limit} {unit} per {period}{where} reached: {self.report.remaining} left, {self.cost} needed."


@dataclass(frozen=True, slots=True)
class SettledAlready:
    """The request id was settled or expired before; nothing was taken."""


class Opened(NamedTuple):
    """A lease at rest, or as another replica hears of it."""

    tenant: str
    model: str
    request_id: str
    version: str
    tokens: int
    spend: int
    requests: int
    """Counted with it for the tenant as a whole."""
    over_quota: bool
    holder: str
    age_ns: int
    expires_in_ns: int
    part: tuple[str, str]
    """Who opened it."""
    each: int = 1
    """Requests that count with the model's own limits."""


class Closed(NamedTuple):
    """A settled lease: what it really used."""

    tenant: str
    model: str
    request_id: str
    version: str
    tokens: int
    spend: int


class Taken(NamedTuple):
    """Requests that the edge took."""

    tenant: str
    requests: int


class Told(NamedTuple):
    """A share that a holder was told, at rest: see `libs.quota.shares`."""

    tenant: str
    model: str
    holder: str
    number: int
    tokens: int
    requests: int
    spend: int
    lasts_ns: int
    seen: int = 0
    """The number of the last one that is known to have come to the holder."""
    slots: int = 0
    uncounted: int = 0


class Batch(NamedTuple):
    """What one ledger decided, for another to take over, once (libs.quota.replica)."""

    opened: tuple[Opened, ...] = ()
    closed: tuple[Closed, ...] = ()
    taken: tuple[Taken, ...] = ()
    ended: tuple[tuple[str, str], ...] = ()
    """(tenant, request id) of leases that ended before their time because their holder is gone."""
    told: tuple[Told, ...] = ()
    grown: tuple[Opened, ...] = ()
    """Leases that reserve more than when they were opened."""
    recorded: tuple[tuple[str, str], ...] = ()
    """(tenant, request id) of leases that nobody settled and of which there is a record now: nobody makes another."""

    def only(self, wanted: Callable[[str], bool]) -> Batch:
        """What concerns the tenants that are wanted."""
        return Batch(
            tuple(each for each in self.opened if wanted(each.tenant)),
            tuple(each for each in self.closed if wanted(each.tenant)),
            tuple(each for each in self.taken if wanted(each.tenant)),
            tuple(each for each in self.ended if wanted(each[0])),
            tuple(each for each in self.told if wanted(each.tenant)),
            tuple(each for each in self.grown if wanted(each.tenant)),
            tuple(each for each in self.recorded if wanted(each[0])),
        )


class PartState(NamedTuple):
    """What one replica's decisions used of one scope."""

    part: tuple[str, str]
    requests: tuple[Use, ...]
    tokens: tuple[Use, ...]
    spend: tuple[Use, ...]


class ScopeState(NamedTuple):
    """A scope at rest."""

    tenant: str
    model: str
    parts: tuple[PartState, ...]
    spend_period_ns: int = DAY_NS
    told: tuple[Told, ...] = ()


class SettledId(NamedTuple):
    """A settled id at rest, with what was charged for it."""

    tenant: str
    request_id: str
    age_ns: int
    ended: bool
    """By itself: what its lease reserved is in the part of who opened it."""
    part: tuple[str, str]
    """Who charged it."""
    model: str
    version: str
    tokens: int
    spend: int


class LedgerState(NamedTuple):
    """A ledger, or some of its buckets, at rest."""

    scopes: tuple[ScopeState, ...] = ()
    leases: tuple[Opened, ...] = ()
    settled: tuple[SettledId, ...] = ()
    budgets: tuple[BudgetState, ...] = ()
