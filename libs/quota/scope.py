"""What one limits entry covers, and a reservation in it: the parts that a ledger is made of."""

from __future__ import annotations

from collections.abc import Iterable

from libs.quota.budget import Budget
from libs.quota.types import (
    UNLIMITED,
    Admitted,
    Ask,
    Denied,
    LimitKind,
    LimitReport,
    LimitSpec,
    Opened,
    PartState,
    ScopeState,
)
from libs.quota.window import MINUTE_NS, NEVER, Part, Window

_SHORTEST_RETRY_NS = 50_000_000
_HOLD_SHARE = 8
"""A lease's duration moves the average by one part in this many."""


class Scope:
    """The use of one limits entry: what was settled or counted within the period, and what is reserved now."""

    __slots__ = (
        "budget",
        "held_spend",
        "held_tokens",
        "hold_ns",
        "in_use",
        "model",
        "requests",
        "spec",
        "spend",
        "tenant",
        "tokens",
        "told",
    )

    def __init__(self, tenant: str, model: str, spec: LimitSpec) -> None:
        self.tenant = tenant
        self.model = model
        self.spec = spec
        self.requests = Window()
        self.tokens = Window()
        self.spend = Window(spec.spend_window_ns)
        self.budget: Budget | None = None
        """The tenant's, in the scope of all its models."""
        self.in_use = 0
        self.held_tokens = 0
        self.held_spend = 0
        self.hold_ns = 0
        """Average time that leases are held, once one has ended."""
        self.told: dict[str, tuple[int, int, int]] = {}
        """By holder: (tokens, requests, when) of the share it was told to be its own."""

    def apply(self, spec: LimitSpec) -> None:
        """Makes `spec` its limits; what was used stays used."""
        self.spec = spec
        self.spend.rescale(spec.spend_window_ns)

    def idle(self, now: int) -> bool:
        """Nothing would be forgotten by dropping it."""
        return not (self.in_use or self.requests.used(now) or self.tokens.used(now) or self.spend.used(now))

    def check(self, ask: Ask, requests: int, tokens: int, slots: int, now: int, retry_ns: int) -> Denied | None:
        """The denial that takes longest to lift; None when everything fits. Takes nothing.

        What is asked for as 0 is not looked at. The time until a refused request would pass is exact while what was
        used is in the way, since it is known when that leaves. Open reservations may end at any moment, and what they
        delivered counts for a whole period after that: while they are in the way, the time is an estimate, the longer
        of the time until everything settled has left and the average time that leases are held.

        :param retry_ns: taken for that average before any lease has ended.
        """
        spec = self.spec
        denied: Denied | None = None
        if spec.requests_per_minute and requests:
            denied = self._look(LimitKind.REQUESTS, self.requests, spec.requests_per_minute, 0, requests, now, retry_ns)
        if spec.tokens_per_minute and tokens:
            denied = worse(
                denied,
                self._look(
                    LimitKind.TOKENS, self.tokens, spec.tokens_per_minute, self.held_tokens, tokens, now, retry_ns
                ),
            )
        if spec.spend_microusd and ask.spend:
            denied = worse(
                denied,
                self._look(LimitKind.SPEND, self.spend, spec.spend_microusd, self.held_spend, ask.spend, now, retry_ns),
            )
        if self.budget is not None and ask.spend:
            wait = max(self.hold_ns or retry_ns, _SHORTEST_RETRY_NS)
            for refusal in self.budget.refusals(self.held_spend, ask.spend, now, wait):
                denied = worse(denied, refusal)
        if spec.concurrency and slots and self.in_use >= spec.concurrency:
            wait = max(_SHORTEST_RETRY_NS, self.hold_ns // self.in_use if self.hold_ns else retry_ns)
            report = LimitReport(spec.concurrency, 0, 0)
            denied = worse(denied, Denied(LimitKind.CONCURRENCY, self.model, report, slots, wait))
        if spec.max_output and ask.output > spec.max_output:
            denied = worse(denied, self._too_long(LimitKind.MAX_OUTPUT, spec.max_output, ask.output))
        if spec.max_context and ask.context > spec.max_context:
            denied = worse(denied, self._too_long(LimitKind.MAX_CONTEXT, spec.max_context, ask.context))
        return denied

    def _look(
        self, kind: LimitKind, window: Window, limit: int, held: int, cost: int, now: int, retry_ns: int
    ) -> Denied | None:
        over = window.used(now) + held + cost - limit
        if over <= 0:
            return None
        wait: int | None = None
        if cost <= limit:
            wait = window.wait(over, now)
            if wait == NEVER:
                wait = max(window.reset(now), self.hold_ns or retry_ns, _SHORTEST_RETRY_NS)
        return Denied(kind, self.model, report_of(window, limit, held, now), cost, wait)

    def _too_long(self, kind: LimitKind, limit: int, cost: int) -> Denied:
        return Denied(kind, self.model, LimitReport(limit, limit, 0), cost, None)

    def share(self, holder: str, holders: int, admitted: Admitted, now: int) -> tuple[int, int]:
        """See `Ledger.share`."""
        tokens, requests = admitted.tokens.remaining, admitted.requests.remaining
        others_tokens = others_requests = 0
        for name, (told_tokens, told_requests, at) in list(self.told.items()):
            if at + MINUTE_NS <= now:
                del self.told[name]
            elif name != holder:
                others_tokens += told_tokens
                others_requests += told_requests
        share = (
            max(0, min(tokens // holders, tokens - others_tokens)),
            max(0, min(requests // holders, requests - others_requests)),
        )
        self.told[holder] = (*share, now)
        return share

    def state(self, now: int) -> ScopeState:
        """The scope at rest, without its leases."""
        requests, tokens, spend = self.requests.state(now), self.tokens.state(now), self.spend.state(now)
        parts = {**requests, **tokens, **spend}
        return ScopeState(
            self.tenant,
            self.model,
            tuple(PartState(part, requests.get(part, ()), tokens.get(part, ()), spend.get(part, ())) for part in parts),
            self.spend.period,
        )

    def replace(self, state: PartState, spend_longer_ns: int, now: int) -> None:
        """Makes this what one replica's decisions used; `spend_longer_ns` by how much the period of spend is longer
        here."""
        self.requests.replace(state.part, state.requests, now)
        self.tokens.replace(state.part, state.tokens, now)
        spend = (use._replace(left_ns=use.left_ns + spend_longer_ns) for use in state.spend)
        self.spend.replace(state.part, spend, now)


class Lease:
    """A live reservation."""

    __slots__ = (
        "expires",
        "holder",
        "key",
        "model",
        "open",
        "opened",
        "over_quota",
        "part",
        "requests",
        "scopes",
        "spend",
        "tokens",
        "version",
    )

    def __init__(self, ask: Ask, *, tokens: int, requests: int, scopes: list[Scope], part: Part, now: int) -> None:
        self.key = (ask.tenant, ask.request_id)
        self.model = ask.model
        self.version = ask.version
        self.tokens = tokens
        self.spend = ask.spend
        self.requests = requests
        self.over_quota = False
        self.holder = ask.holder
        self.part = part
        self.scopes = scopes
        self.opened = now
        self.expires = now
        self.open = True

    def __lt__(self, other: Lease) -> bool:
        return self.expires < other.expires

    def take(self) -> None:
        """Occupies its slots and shares."""
        for scope in self.scopes:
            scope.in_use += 1
            scope.held_tokens += self.tokens
            scope.held_spend += self.spend

    def release(self, now: int) -> None:
        """Gives them back."""
        self.open = False
        held = now - self.opened
        for scope in self.scopes:
            scope.in_use -= 1
            scope.held_tokens -= self.tokens
            scope.held_spend -= self.spend
            scope.hold_ns += (held - scope.hold_ns) // _HOLD_SHARE if scope.hold_ns else held

    def state(self, now: int) -> Opened:
        """The lease at rest."""
        tenant, request_id = self.key
        return Opened(
            tenant,
            self.model,
            request_id,
            self.version,
            self.tokens,
            self.spend,
            self.requests,
            self.over_quota,
            self.holder,
            now - self.opened,
            self.expires - now,
            self.part,
        )


def report_of(window: Window, limit: int, held: int, now: int) -> LimitReport:
    """What a caller is told of one limit."""
    left = limit - window.used(now) - held
    return LimitReport(limit, left if left > 0 else 0, window.period if held else window.reset(now), window.period)


def worse(one: Denied | None, other: Denied | None) -> Denied | None:
    """The denial that takes longer to lift; the first on a tie."""
    if one is None or other is None:
        return one or other
    return other if other.outlasts(one) else one


def tightest(scopes: Iterable[Scope], now: int, *, over_quota: bool = False) -> Admitted:
    """Of each kind of limit, the report with the least left."""
    requests = tokens = slots = spend = UNLIMITED
    for scope in scopes:
        spec = scope.spec
        if spec.requests_per_minute:
            requests = _less(requests, scope.requests, spec.requests_per_minute, 0, now)
        if spec.tokens_per_minute:
            tokens = _less(tokens, scope.tokens, spec.tokens_per_minute, scope.held_tokens, now)
        if spec.concurrency:
            left = max(0, spec.concurrency - scope.in_use)
            if not slots.limit or left < slots.remaining:
                slots = LimitReport(spec.concurrency, left, 0)
        if spec.spend_microusd:
            spend = _less(spend, scope.spend, spec.spend_microusd, scope.held_spend, now)
        if scope.budget is not None:
            for report in scope.budget.reports(scope.held_spend, now):
                if not spend.limit or report.remaining < spend.remaining:
                    spend = report
    return Admitted(requests, tokens, slots, spend, over_quota)


def _less(tightest_yet: LimitReport, window: Window, limit: int, held: int, now: int) -> LimitReport:
    """The report of whichever has less left; the other is not even made."""
    if tightest_yet.limit and limit - window.used(now) - held >= tightest_yet.remaining:
        return tightest_yet
    return report_of(window, limit, held, now)
