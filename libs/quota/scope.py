"""What one limits entry covers: what was used of it, what is reserved and held, and whether a request fits."""

from __future__ import annotations

from collections.abc import Iterable

from libs.quota.amount import NO_LIMIT, NOTHING, Amount
from libs.quota.budget import Budget
from libs.quota.shares import Holdings, OwnShare, Share, part_of, slots_of
from libs.quota.types import (
    ROWS,
    UNLIMITED,
    Admitted,
    Ask,
    Denied,
    LimitKind,
    LimitReport,
    LimitSpec,
    PartState,
    ScopeState,
    Told,
    unit_of,
)
from libs.quota.window import DAY_NS, MINUTE_NS, NEVER, Window

_SHORTEST_RETRY_NS = 50_000_000


class Terms:
    """On what terms a ledger decides at present."""

    __slots__ = ("holders", "money_needs_share", "retry_ns", "share_ns", "sides")

    def __init__(self, *, retry_ns: int, share_ns: int, money_needs_share: bool) -> None:
        self.retry_ns = retry_ns
        """The hint given while open leases are in the way and none has ever ended."""
        self.share_ns = share_ns
        """How long a share lasts."""
        self.money_needs_share = money_needs_share
        """Caps and hard budgets refuse unless a share of them was told."""
        self.holders = 1
        """Gateways that are told shares."""
        self.sides = 1
        """Into how many parts the replicas may have fallen; each grants one of what is left."""


class Scope:
    """The use of one limits entry: what was settled or counted within the period, and what is reserved now."""

    __slots__ = (
        "budget",
        "covering",
        "granted",
        "held_spend",
        "held_tokens",
        "hold_ns",
        "holdings",
        "in_use",
        "model",
        "requests",
        "share",
        "spec",
        "spend",
        "tenant",
        "tokens",
        "unit",
    )

    def __init__(self, tenant: str, model: str, spec: LimitSpec) -> None:
        self.tenant = tenant
        self.model = model
        self.unit = unit_of(model)
        """What `tokens` are; others are nothing to it."""
        self.spec = spec
        self.covering: dict[tuple[str, str], list[Scope]] = {}
        """In the scope of all models: those that cover a request, by the model that it names and what serves it."""
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
        self.holdings = Holdings()
        """What gateways were told to be their shares."""
        self.share: OwnShare | None = None
        """At a gateway: its own."""
        self.granted: dict[LimitKind, Window] | None = None
        """What was granted here while this replica heard no majority of the others."""

    @property
    def name(self) -> str:
        """The model, as the registry's limits name it."""
        return self.model.removeprefix(ROWS)

    def apply(self, spec: LimitSpec) -> None:
        """Makes `spec` its limits; what was used stays used."""
        self.spec = spec
        self.spend.rescale(spec.spend_window_ns)

    def idle(self, now: int) -> bool:
        """Nothing would be forgotten by dropping it."""
        return not (
            self.in_use
            or self.requests.used(now)
            or self.tokens.used(now)
            or self.spend.used(now)
            or any(self.holdings.but("", now))
        )

    def blind(self, now: int) -> bool:
        """At a gateway: it bounds money, of which nobody told a share that is in force."""
        bound = self.spec.spend_microusd or (self.budget is not None and self.budget.left(0, now) is not None)
        return bool(bound) and (self.share is None or self.share.until <= now)

    def check(self, ask: Ask, requests: int, tokens: int, slots: int, now: int, terms: Terms) -> Denied | None:
        """The denial that takes longest to lift; None when everything fits. Takes nothing.

        What is asked for as 0 is not looked at. The time until a refused request would pass is exact while what was
        used is in the way, since it is known when that leaves. Open reservations may end at any moment, and what they
        delivered counts for a whole period after that: while they are in the way, the time is an estimate, the longer
        of the time until everything settled has left and the average time that leases are held.
        """
        spec, share = self.spec, self.share
        denied: Denied | None = None
        if share is not None and share.until > now:
            denied = self._check_share(share, ask, requests, tokens, now)
        elif requests or tokens or ask.spend:
            # The edge, which knows no gateway, takes requests only, beside all that gateways hold but those requests
            # that they give out without asking and that it did not count.
            others = self.holdings.but(ask.holder, now)
            if not ask.request_id:
                others = NOTHING._replace(requests=others.uncounted)
            alone = terms.sides == 1  # so that most answers need no second look
            limit = spec.requests_per_minute
            if limit and requests and not (alone and self.requests.used(now) + others.requests + requests <= limit):
                denied = self._look(LimitKind.REQUESTS, self.requests, limit, others.requests, requests, now, terms)
            held, limit = self.held_tokens + others.tokens, spec.tokens_per_minute
            if limit and tokens and not (alone and self.tokens.used(now) + held + tokens <= limit):
                denied = worse(denied, self._look(self.unit, self.tokens, limit, held, tokens, now, terms))
            if spec.spend_microusd and ask.spend:
                held, limit = self.held_spend + others.spend, spec.spend_microusd
                if terms.money_needs_share:
                    denied = worse(denied, self._unknown(limit, ask.spend, terms))
                else:
                    denied = worse(denied, self._look(LimitKind.SPEND, self.spend, limit, held, ask.spend, now, terms))
            if self.budget is not None and ask.spend:
                denied = worse(denied, self._check_budget(self.budget, others.spend, ask.spend, now, terms))
        if spec.concurrency and slots and self.in_use + self.holdings.but(ask.holder, now).slots >= spec.concurrency:
            wait = max(_SHORTEST_RETRY_NS, self.hold_ns // max(1, self.in_use) if self.hold_ns else terms.retry_ns)
            report = LimitReport(spec.concurrency, 0, 0)
            denied = worse(denied, Denied(LimitKind.CONCURRENCY, self.name, report, slots, wait))
        if spec.max_output and ask.output > spec.max_output:
            denied = worse(denied, self._too_long(LimitKind.MAX_OUTPUT, spec.max_output, ask.output))
        if spec.max_context and ask.context > spec.max_context:
            denied = worse(denied, self._too_long(LimitKind.MAX_CONTEXT, spec.max_context, ask.context))
        return denied

    def _look(
        self, kind: LimitKind, window: Window, limit: int, held: int, cost: int, now: int, terms: Terms
    ) -> Denied | None:
        used = window.used(now)
        over = used + held + cost - limit
        if terms.sides > 1 and over <= 0:
            # What each of the sides may grant of what all of them knew to be left.
            granted = self.granted[kind].used(now) if self.granted is not None else 0
            over = granted + cost - max(0, limit - max(0, used + held - granted)) // terms.sides
        if over <= 0:
            return None
        wait: int | None = None
        if cost <= limit:
            wait = window.wait(over, now)
            if wait == NEVER:
                wait = max(window.reset(now), self.hold_ns or terms.retry_ns, _SHORTEST_RETRY_NS)
        return Denied(kind, self.name, report_of(window, limit, held, now), cost, wait)

    def _check_share(self, share: OwnShare, ask: Ask, requests: int, tokens: int, now: int) -> Denied | None:
        denied: Denied | None = None
        for kind, left, cost, limit in (
            (LimitKind.REQUESTS, share.left.requests, requests, self.spec.requests_per_minute),
            (self.unit, share.left.tokens, tokens, self.spec.tokens_per_minute),
            (LimitKind.SPEND, share.left.spend, ask.spend, self.spec.spend_microusd),
        ):
            if cost > left:
                report = LimitReport(max(limit, left), max(0, left), share.until - now, MINUTE_NS)
                denied = worse(denied, Denied(kind, self.name, report, cost, share.until - now))
        return denied

    def _check_budget(self, budget: Budget, others: int, cost: int, now: int, terms: Terms) -> Denied | None:
        held = self.held_spend + others
        denied: Denied | None = None
        if terms.sides > 1 or terms.money_needs_share:
            left = budget.left(held, now)
            granted = self.granted[LimitKind.SPEND].used(now) if self.granted is not None else 0
            if left is not None and (terms.money_needs_share or granted + cost > (left + granted) // terms.sides):
                return self._unknown(left, cost, terms)
        for refusal in budget.refusals(held, cost, now, max(self.hold_ns or terms.retry_ns, _SHORTEST_RETRY_NS)):
            denied = worse(denied, refusal)
        return denied

    def _unknown(self, limit: int, cost: int, terms: Terms) -> Denied:
        """Nobody here knows that so much money is left."""
        return Denied(LimitKind.SPEND, self.name, LimitReport(limit, 0, 0, self.spend.period), cost, terms.retry_ns)

    def count_granted(self, requests: int, tokens: int, spend: int, now: int) -> None:
        """This was granted without a majority of the replicas."""
        if self.granted is None:
            self.granted = {LimitKind.REQUESTS: Window(), self.unit: Window(), LimitKind.SPEND: Window(DAY_NS)}
        self.granted[LimitKind.REQUESTS].charge(requests, now)
        self.granted[self.unit].charge(tokens, now)
        self.granted[LimitKind.SPEND].charge(spend, now)

    def _too_long(self, kind: LimitKind, limit: int, cost: int) -> Denied:
        return Denied(kind, self.name, LimitReport(limit, limit, 0), cost, None)

    @property
    def limits_shares(self) -> bool:
        """A share of it would be of something."""
        spec = self.spec
        return bool(spec.tokens_per_minute or spec.requests_per_minute or spec.spend_microusd or self.budget)

    def tell(self, ask: Ask, number: int, seen: int, now: int, terms: Terms, *, allowance: bool) -> Share:
        """A share of what is left, held for the holder from now on: see `libs.quota.shares`."""
        spec, holders, holder = self.spec, max(1, terms.holders * terms.sides), ask.holder
        others = self.holdings.but(holder, now)
        slots = 0
        if allowance:
            left = spec.concurrency - self.in_use - others.slots
            bound = spec.concurrency and ask.unit.slots
            slots = slots_of(spec.concurrency, left, holders) if bound else NO_LIMIT
        spend = _part(spec.spend_microusd, self.spend, self.held_spend + others.spend, holders, now)
        if self.budget is not None and (left_of := self.budget.left(self.held_spend + others.spend, now)) is not None:
            spend = min(spend, part_of(left_of, left_of, holders))
        tokens = spec.tokens_per_minute if self.unit is ask.unit else 0
        share = Amount(
            _part(tokens, self.tokens, self.held_tokens + others.tokens, holders, now),
            _part(spec.requests_per_minute, self.requests, others.requests, holders, now),
            spend,
            slots,
        )
        held = Amount(*(0 if much == NO_LIMIT else much for much in share))
        if any(held) or self.holdings.knows(holder):
            uncounted = held.requests if ask.count_request and slots else 0
            told = Told(self.tenant, self.model, holder, number, *held[:3], terms.share_ns, seen, held.slots, uncounted)
            self.holdings.tell(told, now)
        return Share(self.model, share)

    def short(self, holder: str, now: int) -> bool:
        """Less is left than is held for the holder, who was granted of its own share."""
        spec, own = self.spec, self.holdings.of(holder)
        if own == NOTHING:
            return False
        others = self.holdings.but(holder, now)
        tokens = self.tokens.used(now) + self.held_tokens + others.tokens
        requests = self.requests.used(now) + others.requests
        return (
            (own.tokens > 0 and spec.tokens_per_minute - tokens < own.tokens)
            or (own.requests > 0 and spec.requests_per_minute - requests < own.requests)
            or (own.spend > 0 and self._money_left(others.spend, now) < own.spend)
            or (own.slots > 0 and spec.concurrency - self.in_use - others.slots < own.slots)
        )

    def _money_left(self, others: int, now: int) -> int:
        held, limit = self.held_spend + others, self.spec.spend_microusd
        left = [limit - self.spend.used(now) - held] if limit else []
        of_budget = self.budget.left(held, now) if self.budget is not None else None
        return min([*left, of_budget] if of_budget is not None else left, default=NEVER)

    def state(self, now: int) -> ScopeState:
        """The scope at rest, without its leases."""
        requests, tokens, spend = self.requests.state(now), self.tokens.state(now), self.spend.state(now)
        parts = {**requests, **tokens, **spend}
        return ScopeState(
            self.tenant,
            self.model,
            tuple(PartState(part, requests.get(part, ()), tokens.get(part, ()), spend.get(part, ())) for part in parts),
            self.spend.period,
            tuple(self.holdings.told(self.tenant, self.model, now)),
        )

    def replace(self, state: PartState, spend_longer_ns: int, now: int) -> None:
        """Makes this what one replica's decisions used; `spend_longer_ns` by how much the period of spend is longer
        here."""
        self.requests.replace(state.part, state.requests, now)
        self.tokens.replace(state.part, state.tokens, now)
        spend = (use._replace(left_ns=use.left_ns + spend_longer_ns) for use in state.spend)
        self.spend.replace(state.part, spend, now)


def _part(limit: int, window: Window, held: int, holders: int, now: int) -> int:
    return part_of(limit, limit - window.used(now) - held, holders) if limit else NO_LIMIT


def report_of(window: Window, limit: int, held: int, now: int) -> LimitReport:
    """What a caller is told of one limit."""
    left = limit - window.used(now) - held
    return LimitReport(limit, left if left > 0 else 0, window.period if held else window.reset(now), window.period)


def worse(one: Denied | None, other: Denied | None) -> Denied | None:
    """The denial that takes longer to lift; the first on a tie."""
    if one is None or other is None:
        return one or other
    return other if other.outlasts(one) else one


def tightest(
    scopes: Iterable[Scope], now: int, *, over_quota: bool = False, unit: LimitKind = LimitKind.TOKENS
) -> Admitted:
    """Of each kind of limit, the report with the least left; of tokens, or of rows."""
    slots = spend = UNLIMITED
    few = little = 1 << 62
    of_requests: Scope | None = None
    of_tokens: Scope | None = None
    for scope in scopes:
        spec = scope.spec
        if spec.requests_per_minute:
            left = spec.requests_per_minute - scope.requests.used(now)
            if left < few:
                few, of_requests = left, scope
        if spec.tokens_per_minute and scope.unit is unit:
            left = spec.tokens_per_minute - scope.tokens.used(now) - scope.held_tokens
            if left < little:
                little, of_tokens = left, scope
        if spec.concurrency and unit.slots:
            left = max(0, spec.concurrency - scope.in_use)
            if not slots.limit or left < slots.remaining:
                slots = LimitReport(spec.concurrency, left, 0)
        if spec.spend_microusd:
            spend = _less(spend, scope.spend, spec.spend_microusd, scope.held_spend, now)
        if scope.budget is not None:
            for report in scope.budget.reports(scope.held_spend, now):
                if not spend.limit or report.remaining < spend.remaining:
                    spend = report
    requests = tokens = UNLIMITED
    if of_requests is not None:
        requests = report_of(of_requests.requests, of_requests.spec.requests_per_minute, 0, now)
    if of_tokens is not None:
        tokens = report_of(of_tokens.tokens, of_tokens.spec.tokens_per_minute, of_tokens.held_tokens, now)
    return Admitted(requests, tokens, slots, spend, over_quota)


def _less(tightest_yet: LimitReport, window: Window, limit: int, held: int, now: int) -> LimitReport:
    """The report of whichever has less left; the other is not even made."""
    if tightest_yet.limit and limit - window.used(now) - held >= tightest_yet.remaining:
        return tightest_yet
    return report_of(window, limit, held, now)
