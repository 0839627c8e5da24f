"""A gateway's end of the quota: what it serves, and what it gives out by itself of what the owner told it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from libs.quota.amount import NO_LIMIT, Amount
from libs.quota.budget import BudgetSpec
from libs.quota.ledger import Ledger
from libs.quota.settled import Key
from libs.quota.shares import Allotment, OwnShare, Share
from libs.quota.types import ALL_MODELS, Admitted, Ask, Denied, LimitSpec, SettledAlready
from libs.quota.window import MINUTE_NS

T = TypeVar("T")
Covers = tuple[str, str, str]
"""Tenant, model and version: what says which limits cover a request."""


class Question(NamedTuple):
    """What goes to a tenant's owner about one request, beside the request itself."""

    tenant: str
    at: int
    """When it was asked: shares that are told with the answer count from then."""
    seen: int
    """Of the shares here that cover the request, the number of the oldest."""
    wanted: bool
    """New shares, to be given out without asking."""
    claims: bool
    """The request is served already."""
    uncounted: bool
    """The edge did not count it, so of the shares that it brings the requests are held against the edge."""


class _Running(NamedTuple, Generic[T]):
    ask: T
    over_quota: bool
    until: int
    tokens: int
    spend: int
    grown: bool


class _Untold(NamedTuple):
    """Of a request, what was given out here and is not known yet to have come to the owner."""

    ask: Ask
    """With no more than that."""
    total: int
    """Tokens of the request in all."""
    began: bool
    """It was granted here, with a slot, and did not only grow."""
    at: int


class _Account:
    """What passes between here and one tenant's owner."""

    __slots__ = ("allowed", "asking", "untold", "wanted")

    def __init__(self) -> None:
        self.allowed = False
        """Its shares may be given out without asking."""
        self.asking = 0
        """Questions that have no answer yet."""
        self.wanted = False
        """A new share was asked for."""
        self.untold: dict[str, _Untold] = {}

    @property
    def idle(self) -> bool:
        return not (self.asking or self.untold)


class Bridge(Generic[T]):
    """Pure. `T` is how the shell keeps a Reserve, to ask it again. What is asked goes out with `say` and comes back
    with `hear`, in whatever order.

    While the tenant's owner answers, this keeps the shares that it tells and the requests that run, whose leases are
    prolonged by their ids. `allow` gives out of the shares without asking, where the owner said that they are
    allowances; what it gave is told soon. While nobody answers, `reserve` gives out of the shares. Where none was told,
    or it has ended, that is an equal part of the limits for each gateway, of which what this gateway served within the
    last period is a part, whoever granted it; and of money nothing. What was given out so is told to the owner as soon
    as one can be reached: it is among the running requests, and unknown there.

    At any moment, what was given out here and may not have come to the owner, and what is left to be given out, are
    together within what the owner holds for this gateway.

    :param retry_ns: the hint given while open leases are in the way and none has ever ended.
    :param max_idle_tenants: above this many tenants, those of which nothing is on its way are forgotten.
    """

    def __init__(self, *, retry_ns: int = 1_000_000_000, max_idle_tenants: int = 50_000) -> None:
        self._ledger = Ledger(retry_ns=retry_ns, money_needs_share=True, max_idle_tenants=max_idle_tenants)
        self._max_idle_tenants = max_idle_tenants
        self._running: dict[Key, _Running[T]] = {}
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._given: deque[tuple[int, Key]] = deque()
        """When something was given out, and of which request: what is untold goes by it after a minute."""
        self._limits: Mapping[Key, LimitSpec] = {}
        self._budgets: Mapping[str, BudgetSpec] = {}

    def apply(
        self, limits: Mapping[Key, LimitSpec], budgets: Mapping[str, BudgetSpec], gateways: int, now: int
    ) -> None:
        """Makes these the limits and budgets, of which this is one of so many gateways. Where they are others than
        before, the owner is asked from the next request on."""
        changed = {key[0] for key in limits.keys() | self._limits.keys() if limits.get(key) != self._limits.get(key)}
        changed |= {
            name for name in budgets.keys() | self._budgets.keys() if budgets.get(name) != self._budgets.get(name)
        }
        for tenant in changed & self._accounts.keys():
            self._accounts[tenant].allowed = False
        self._limits, self._budgets = dict(limits), dict(budgets)
        self._ledger.apply_budgets(budgets)
        self._ledger.apply_limits({key: spec.shared(gateways) for key, spec in limits.items()}, now)

    # --- what the owner tells --------------------------------------------------------------------------------------

    def ask_anew(self) -> None:
        """What things cost has changed: every tenant's owner is asked from the next request on."""
        for account in self._accounts.values():
            account.allowed = False

    def say(self, covers: Covers, now: int, *, uncounted: bool, claims: bool = False, shares: bool = True) -> Question:
        """A question goes to the owner, who may grant it all that is held here: nothing is allowed until `hear`, unless
        it `claims` what is served already.

        :param uncounted: the edge did not count the request.
        :param shares: ask for new ones, once one of those that cover the request is low.
        """
        account = self._account(covers[0])
        if not claims:
            account.asking += 1
        wanted = shares and self._wants(account, covers, uncounted, now)
        return Question(covers[0], now, self.seen(*covers, now), wanted, claims, uncounted)

    def hear(self, question: Question, told: Allotment | None, now: int) -> None:
        """It was answered, with these shares or with none, or will not be."""
        account = self._account(question.tenant)
        if not question.claims:
            account.asking -= 1
        if told is not None:
            self.told(
                question.tenant,
                told.number,
                told.shares,
                question.at + told.lasts_ns,
                now,
                allowance=told.allowance,
                uncounted=question.uncounted,
            )
        elif question.wanted:
            account.wanted = False

    def seen(self, tenant: str, model: str, version: str, now: int) -> int:
        """The number of the oldest of the shares here that cover a request: nothing told before it is in force."""
        return min(share.number if share else 0 for share in self._shares(tenant, model, version, now))

    def blind(self, tenant: str, model: str, version: str, now: int) -> bool:
        """Whether such a request costs money of which nothing may be given out here: only its owner can let it pass."""
        return any(scope.blind(now) for scope in self._ledger.covering(tenant, model, version, now))

    def _wants(self, account: _Account, covers: Covers, uncounted: bool, now: int) -> bool:
        """Whether to ask for new shares; once until an answer comes."""
        if not account.wanted:
            shares = self._shares(*covers, now)
            account.wanted = (
                not account.allowed
                or any(share is None or share.low(now) for share in shares)
                or (uncounted and _only_counted(shares))
            )
            return account.wanted
        return False

    def told(
        self,
        tenant: str,
        number: int,
        shares: Iterable[Share],
        until: int,
        now: int,
        *,
        allowance: bool = False,
        uncounted: bool = False,
    ) -> None:
        """These came from the owner; `until` counts from when it was asked. `uncounted`: for a request that the edge
        did not count. Only then are their requests held against the edge, and given out without asking to such.

        Of what was given out here since then it may not have known: that is a part of them. Where it is more than they
        are, they are not named as seen, so that the owner goes on holding those before them, out of which it was given.
        """
        account = self._account(tenant)
        account.allowed, account.wanted = allowance, False
        self._forget_untold(now)
        fresh: dict[str, tuple[OwnShare, int]] = {}
        for share in shares:
            scope = self._ledger.scope(tenant, share.model, now)
            if scope is None:  # the owner knows of a limit that is not known here yet
                account.allowed = False
                continue
            before = scope.share.number if scope.share else 0
            if number > before or scope.share is None or scope.share.until <= now:  # else it was overtaken
                scope.share = OwnShare(share.amount, until, now, number, uncounted=uncounted)
                fresh[share.model] = scope.share, before
        of_edge = False  # untold is what the edge does not know of either
        for each in account.untold.values():
            ask, each_began = each.ask, each.ask.requests * each.began
            requests, slots = each_began * ask.count_request, each.began * ask.unit.slots
            of_edge = of_edge or requests > 0
            for scope in self._ledger.covering(tenant, ask.model, ask.version, now):
                if scope.model in fresh:
                    tokens = ask.tokens if scope.unit is ask.unit else 0
                    fresh[scope.model][0].take(Amount(tokens, requests, ask.spend, slots))
                requests = each_began  # the first is the tenant's own
        for model, (share_here, before) in fresh.items():
            only_counted = share_here.told.requests != NO_LIMIT and not uncounted
            if share_here.overdrawn or (of_edge and only_counted and model == ALL_MODELS):
                share_here.number = before

    def taken(self, key: Key, tokens: int | None = None) -> None:
        """The owner has answered: it knows of `tokens` of the request; None says of all that it used."""
        untold = self._account(key[0]).untold
        each = untold.get(key[1])
        if each is None:
            return
        if tokens is None or tokens >= each.total:
            del untold[key[1]]
        else:  # it has grown since
            ask = each.ask._replace(tokens=min(each.ask.tokens, each.total - tokens))
            untold[key[1]] = each._replace(ask=ask, began=False)

    # --- what is given out ------------------------------------------------------------------------------------------

    def allow(self, ask: Ask, kept: T, *, lease_ns: int, until: int, now: int) -> Admitted | None:
        """Gives out of the allowances without asking; None where the owner is to be asked: it was not told so, it is
        being asked, too little is left, or the edge counted neither this request nor holds the share's for it."""
        account = self._accounts.get(ask.tenant)
        if account is None or not account.allowed or account.asking:
            return None
        runs = self.runs((ask.tenant, ask.request_id))
        slots = 0 if runs else ask.unit.slots
        shares = self._shares(ask.tenant, ask.model, ask.version, now)
        for share in shares:
            if share is None or share.until <= now or share.left.slots < slots:
                return None
        if ask.count_request and not runs and _only_counted(shares):
            return None
        ask = ask._replace(over_quota_allowed=False)
        outcome = self.reserve(ask, kept, lease_ns=lease_ns, until=until, now=now)
        return outcome if isinstance(outcome, Admitted) else None

    def reserve(self, ask: Ask, kept: T, *, lease_ns: int, until: int, now: int) -> Admitted | Denied | SettledAlready:
        """Decides here; of what runs already, about what it is to have beyond that."""
        key = (ask.tenant, ask.request_id)
        more, total, spend = ask, ask.tokens, ask.spend
        running = self._running.get(key)
        if running is not None:
            total, spend = max(total, running.tokens), max(spend, running.spend)
            more = ask._replace(tokens=total - running.tokens, spend=spend - running.spend)
            self._ledger.expire(now)
            held = self._ledger.books.lease(key)
            if held is None:
                self._ledger.forget_ended(*key)
            ask = more._replace(
                tokens=more.tokens + (held.tokens if held else 0),
                spend=more.spend + (held.spend if held else 0),
                count_request=False,
                grows=False,
            )
        outcome = self._ledger.reserve(ask, lease_ns=lease_ns, now=now)
        if isinstance(outcome, Admitted):
            self.served(key, kept, over_quota=outcome.over_quota, until=until, tokens=total, spend=spend)
            self._tell(more, total, began=running is None, now=now)
        return outcome

    def _tell(self, more: Ask, total: int, *, began: bool, now: int) -> None:
        """So much more was given out, and is to come to the owner."""
        self._forget_untold(now)
        untold = self._account(more.tenant).untold
        before = untold.get(more.request_id)
        if before is not None:
            ask = before.ask
            more = ask._replace(tokens=ask.tokens + more.tokens, spend=ask.spend + more.spend)
            began = before.began
        untold[more.request_id] = _Untold(more, total, began, now)
        self._given.append((now, (more.tenant, more.request_id)))

    def _forget_untold(self, now: int) -> None:
        """What is older than a minute counts nowhere any more; while no owner can be reached, nobody else takes it
        out."""
        while self._given:
            at, (tenant, request_id) = self._given[0]
            account = self._accounts.get(tenant)
            each = account.untold.get(request_id) if account is not None else None
            if account is not None and each is not None and each.at == at:
                if at + MINUTE_NS > now:
                    return
                del account.untold[request_id]
            self._given.popleft()  # what has come to the owner, or was given more since, as well

    def runs(self, key: Key) -> bool:
        """It was granted and has not ended."""
        return key in self._running

    def served(self, key: Key, ask: T, *, over_quota: bool, until: int, tokens: int, spend: int) -> None:
        """The owner granted it, or more for it; `tokens` and `spend` in all. It runs no longer than `until`."""
        self._running[key] = _Running(ask, over_quota, until, tokens, spend, key in self._running)

    def settle(self, tenant: str, model: str, request_id: str, tokens: int, now: int, *, spend: int) -> bool:
        """It has ended, and counts here for a period, whoever granted it. Whether it was served over quota."""
        running = self._running.pop((tenant, request_id), None)
        over_quota = running is not None and running.over_quota
        self._ledger.settle(tenant, model, request_id, tokens, now, spend=spend, over_quota=over_quota)
        return over_quota

    def running(self, now: int) -> Iterator[Key]:
        """What runs. What should have ended is not looked after any more. Ask for all of it several times a minute:
        leases of what was given out here go on with that, also while no owner can be told."""
        for key, each in list(self._running.items()):
            if each.until <= now:
                del self._running[key]
            else:
                if self._ledger.live_leases:
                    self._ledger.renew(key[0], key[1:], lease_ns=MINUTE_NS, now=now)
                yield key

    def grown(self, now: int) -> Iterator[Key]:
        """What runs with more than it began with. An owner may know less of it, and yet its lease."""
        return (key for key in self.running(now) if self._running[key].grown)

    def lost(self, key: Key) -> tuple[T, bool] | None:
        """To ask again for what the owner does not know: the Reserve, and whether it was over quota."""
        running = self._running.get(key)
        return None if running is None else (running.ask, running.over_quota)

    def _shares(self, tenant: str, model: str, version: str, now: int) -> list[OwnShare | None]:
        return [scope.share for scope in self._ledger.covering(tenant, model, version, now)]

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= self._max_idle_tenants:
                self._forget_some()
            account = self._accounts[tenant] = _Account()
        return account

    def _forget_some(self) -> None:
        """Of the two that were looked at longest ago, those that are idle: no request waits for all to be looked at,
        and more go than come."""
        for name in tuple(islice(self._accounts, 2)):
            if self._accounts[name].idle:
                del self._accounts[name]
            else:
                self._accounts.move_to_end(name)


def _only_counted(shares: Sequence[OwnShare | None]) -> bool:
    """Of the tenant's own, which is the first, requests are given out only to what the edge counted."""
    own = shares[0]
    return own is not None and own.told.requests != NO_LIMIT and not own.uncounted
