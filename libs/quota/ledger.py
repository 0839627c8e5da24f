"""Every tenant's limits and leases as one pure, single-threaded state.

A *scope* is what one `Limits` entry covers: a tenant as a whole (`"*"`) or a tenant's use of one model. A request is
held to all scopes that cover it, all or nothing. A *lease* is a reservation that has not been settled yet.

Limits hold in any period exactly, not on average. The use of a scope is what its open leases reserve, what gateways
were told to be their shares, and what was settled within the last period, charged when it is settled; a request passes
when that and its own cost stay within the limit. So, if nothing is delivered beyond a reservation, the limit holds in
any period (T - 60 s, T]: at the last admission before T, whatever was delivered in that period was either in an open
lease or settled within the 60 s before that admission, and all of it was counted then.

Not thread-safe: one event loop owns a ledger, and every call is a plain function without awaits, which is what makes
concurrent reserves exact. Time comes in as `now`, integer nanoseconds on a clock that does not run backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from libs.quota import following
from libs.quota.amount import Amount
from libs.quota.books import Books, count
from libs.quota.budget import BudgetSpec
from libs.quota.changes import Changes
from libs.quota.lease import Lease
from libs.quota.scope import Scope, Terms, tightest, worse
from libs.quota.settled import Charge, Key
from libs.quota.shares import Share
from libs.quota.types import (
    ALL_MODELS,
    NO_LIMITS,
    Admitted,
    Ask,
    Batch,
    Closed,
    Denied,
    LimitSpec,
    SettledAlready,
    Told,
    unit_of,
)
from libs.quota.window import LOCAL, Part

_SECOND = 1_000_000_000
_MOST_ENDED = 256
"""Leases that end in one call: a gateway may leave thousands."""


class Ledger:
    """Use, slots, leases and shares of all tenants.

    :param default: limits of a tenant that has none of its own for `"*"`.
    :param part: who decides here, where several replicas do.
    :param settled_retention_ns: how long a settled id is remembered, so that a repeated settle changes nothing; no
        lease is longer.
    :param retry_ns: the hint given while open leases are in the way and none has ever ended.
    :param share_ns: how long a share lasts that is told to a gateway.
    :param money_needs_share: at a gateway: caps and hard budgets refuse unless a share of them was told.
    :param max_idle_tenants: above this many tenants, the ones with nothing used are forgotten.
    :param track_changes: keep what was decided for `take_changes`; whoever sets it must call that regularly.
    """

    def __init__(
        self,
        *,
        default: LimitSpec = NO_LIMITS,
        part: Part = LOCAL,
        settled_retention_ns: int = 60 * _SECOND,
        retry_ns: int = _SECOND,
        share_ns: int = 10 * _SECOND,
        money_needs_share: bool = False,
        max_idle_tenants: int = 50_000,
        track_changes: bool = False,
    ) -> None:
        self.part = part
        self.terms = Terms(retry_ns=retry_ns, share_ns=share_ns, money_needs_share=money_needs_share)
        self._track = track_changes
        self.books = Books(default=default, retention_ns=settled_retention_ns, max_idle_tenants=max_idle_tenants)
        self.budgets = self.books.budgets
        self._scopes = self.books.scopes
        self._changes = Changes()
        self._shares = 0

    @property
    def live_leases(self) -> int:
        """Reservations that are neither settled nor expired."""
        return self.books.live

    @property
    def remembered_settled(self) -> int:
        """Settled ids in memory."""
        return sum(len(bucket.settled) for bucket in self._scopes.buckets.values())

    @property
    def untold(self) -> int:
        """Leases that nobody settled and that `forget` has not told of: they were too many at once."""
        return sum(bucket.settled.untold for bucket in self._scopes.buckets.values())

    @property
    def holders(self) -> frozenset[str]:
        """Who holds leases."""
        return frozenset(self.books.held)

    def apply_limits(self, specs: Mapping[Key, LimitSpec], now: int) -> None:
        """Makes `specs`, by (tenant, model or `"*"`), the limits from now on; what was used stays used.

        A limit for a model that had none counts what is used from now on.
        """
        self._scopes.apply(specs, now)

    def apply_budgets(self, specs: Mapping[str, BudgetSpec]) -> None:
        """Makes `specs` the tenants' budgets from now on: see `Budgets.apply`."""
        self.budgets.apply(specs)
        self._scopes.apply_budgets()

    # --- decisions ------------------------------------------------------------------------------------------------

    def admit_edge(self, tenant: str, *, requests: int, tokens: int, now: int, spend: int = 0) -> Admitted | Denied:
        """Takes `requests` of the tenant's requests when `tokens` and `spend` would fit too.

        Tokens and spend are only looked at: `reserve` takes the real numbers. Slots are not looked at either: the
        settle of the stream before may still be on its way while `reserve` would come after it.
        """
        if 0 < self.books.next_expiry <= now:
            self.expire(now)
        scope = self._scopes.wide(tenant, now)
        denied = scope.check(Ask(tenant, ALL_MODELS, "", tokens, spend=spend), requests, tokens, 0, now, self.terms)
        if denied is not None:
            return denied
        if requests:
            scope.requests.charge(requests, now, self.part)
            if self.terms.sides > 1:
                scope.count_granted(requests, 0, 0, now)
            if self._track:
                self._changes.taken[tenant] += requests
        return tightest((scope,), now)

    def reserve(self, ask: Ask, *, lease_ns: int, now: int) -> Admitted | Denied | SettledAlready:
        """Takes the tokens, the spend, one slot and one request in every scope, or nothing at all. What the edge
        counted it counted for the tenant as a whole, not knowing the model: only there it is not counted again.

        A repeat with the id of a live lease reports the present state and takes nothing; one with more tokens takes the
        difference, or nothing at all. An id that was settled or expired is not reserved again; but one that expired is,
        where its gateway says that it still serves it, or that it needs more.
        """
        if 0 < self.books.next_expiry <= now:
            self.expire(now)
        key = (ask.tenant, ask.request_id)
        scopes = self._scopes.covering(ask.tenant, ask.model, ask.version, now)
        bucket = self._scopes.bucket(ask.tenant)
        lease = bucket.leases.get(key)
        if lease is not None:
            lease.here = True
            denied = self._grow(lease, ask, now) if ask.tokens > lease.tokens and not lease.over_quota else None
            return denied or tightest(lease.scopes, now, over_quota=lease.over_quota, unit=lease.unit)
        charged = bucket.settled.get(key)
        if charged is not None:
            if not (charged.ended and (ask.granted or ask.grows)):
                return SettledAlready()
            self.books.reopen(key, charged, now)
        requests, tokens, over_quota = ask.requests if ask.count_request else 0, ask.tokens, False
        if ask.granted:
            over_quota = ask.over_quota_allowed
        else:
            denied = self._check(scopes, ask, requests, ask.requests, tokens, now)
            if denied is not None and ask.over_quota_allowed:
                over_quota = True
                denied = self._check(scopes, ask, 0, 0, 0, now)
            if denied is not None:
                if charged is not None:
                    self.books.charge(scopes, key, charged._replace(at=now), now)
                return denied
        if over_quota:
            requests = tokens = 0
        lease = Lease(ask, tokens=tokens, requests=requests, scopes=scopes, part=self.part, now=now)
        lease.over_quota, lease.here = over_quota, True
        lease.expires = now + min(lease_ns, self.books.retention_ns)
        self.books.open(lease)
        if not over_quota:
            count(scopes, requests, lease.each, now, self.part)
        if self.terms.money_needs_share:
            _take_shares(lease, requests, now)
        elif self.terms.sides > 1:
            for scope in scopes:
                scope.count_granted(requests, tokens if scope.unit is lease.unit else 0, ask.spend, now)
        if self._track:
            self._changes.opened.append(lease)
        return tightest(scopes, now, over_quota=over_quota, unit=lease.unit)

    def _grow(self, lease: Lease, ask: Ask, now: int) -> Denied | None:
        """Takes what is asked for beyond what the lease has."""
        tokens, spend = ask.tokens - lease.tokens, max(0, ask.spend - lease.spend)
        if not ask.granted:
            denied = self._check(lease.scopes, ask._replace(spend=spend), 0, 0, tokens, now, slots=0)
            if denied is not None:
                return denied
        lease.grow(ask.tokens, ask.spend)
        if self.terms.money_needs_share:
            _take_more(lease, tokens, spend, now)
        elif self.terms.sides > 1:
            for scope in lease.scopes:
                scope.count_granted(0, tokens if scope.unit is lease.unit else 0, spend, now)
        if self._track:
            self._changes.grown[lease.key] = lease
        return None

    def _check(
        self, scopes: Iterable[Scope], ask: Ask, requests: int, of_model: int, tokens: int, now: int, *, slots: int = 1
    ) -> Denied | None:
        """The denial that lasts longest; `requests` of the tenant, `of_model` of each model that has limits."""
        denied: Denied | None = None
        terms, unit = self.terms, ask.unit
        slots = min(slots, unit.slots)
        for scope in scopes:
            found = scope.check(ask, requests, tokens if scope.unit is unit else 0, slots, now, terms)
            if found is not None:
                denied = worse(denied, found)
            requests = of_model  # the first is the tenant's own
        return denied

    def settle(
        self,
        tenant: str,
        model: str,
        request_id: str,
        tokens: int,
        now: int,
        *,
        spend: int = 0,
        version: str = "",
        over_quota: bool = False,
    ) -> bool:
        """Ends a lease and charges `tokens` and `spend` instead of what was reserved, also when that is more, and also
        when the lease had ended by itself.

        :param over_quota: what was served took none of the quota, and no tokens are charged; known of a live lease.
        :return: False when the lease was not live: settled before (nothing changes), expired, or never seen (it
            was opened elsewhere, or lost in a crash, so what was used is charged now).
        """
        key = (tenant, request_id)
        bucket = self._scopes.bucket(tenant)
        lease = bucket.leases.get(key)
        if lease is not None and lease.expires <= now:
            self.books.end(lease, now)
            lease = None
        if lease is None:
            charged = bucket.settled.get(key)
            if charged is not None:
                if not charged.ended:
                    return False
                self.books.void(key, charged, now)
            scopes: Sequence[Scope] = self._scopes.covering(tenant, model, version, now)
        else:
            scopes, model, version, over_quota = lease.scopes, lease.model, lease.version, lease.over_quota
            self.books.close(lease, now)
        if over_quota:
            tokens = 0
        if lease is not None and lease.shares:
            _give_back(lease, tokens, spend)
        self.books.charge(scopes, key, Charge(now, False, self.part, model, version, tokens, spend), now)
        if self._track:
            self._changes.closed.append(Closed(tenant, model, request_id, version, tokens, spend))
        return lease is not None

    def renew(self, tenant: str, request_ids: Iterable[str], *, lease_ns: int, now: int) -> list[str]:
        """Prolongs leases. Returns those that are not known: who serves them reserves them anew (`Ask.granted`)."""
        bucket, until = self._scopes.bucket(tenant), now + min(lease_ns, self.books.retention_ns)
        unknown = []
        for request_id in request_ids:
            key = (tenant, request_id)
            lease = bucket.leases.get(key)
            if lease is not None:
                lease.here = True
                lease.expires = max(lease.expires, until)
            else:
                charged = bucket.settled.get(key)
                if charged is None or charged.ended:
                    unknown.append(request_id)
        return unknown

    def expire(self, now: int) -> int:
        """Ends leases whose time has passed; what they reserved counts as used now. Returns how many there were. Very
        many take several calls: what has not ended yet is still reserved."""
        return self.books.expire(now, _MOST_ENDED)

    def end_held_by(self, holder: str, now: int) -> int:
        """Ends the leases of a holder that is gone for good, as if they had expired. Returns how many there were; very
        many take several calls."""
        held = self.books.held.get(holder, {})
        gone = list(islice(chain.from_iterable(leases.values() for leases in held.values()), _MOST_ENDED))
        for lease in gone:
            self.books.end(lease, now)
            if self._track:
                self._changes.ended.append(lease.key)
        return len(gone)

    def forget(self, now: int) -> list[tuple[Key, Charge]]:
        """Forgets ids that are old enough, where nothing was settled lately. Call now and then. Returns those that
        were forgotten and that nobody had settled, for their leases ended by themselves: each time until they are
        `recorded`, here or elsewhere, or are as old as that."""
        return [each for bucket in self._scopes.buckets.values() for each in bucket.settled.lapsed(now)]

    def recorded(self, keys: Iterable[Key]) -> None:
        """There is a record of each of these, which nobody settled: `forget` tells them no more, nor after a restart,
        nor on another replica."""
        for key in keys:
            self._scopes.bucket(key[0]).settled.recorded(key)
            if self._track:
                self._changes.recorded.append(key)

    def holds(self, tenant: str, request_id: str) -> bool:
        """Whether the request has a live lease."""
        return self.books.lease((tenant, request_id)) is not None

    def forget_ended(self, tenant: str, request_id: str) -> None:
        """An id whose lease ended by itself may be reserved again, beside what was charged at that end."""
        bucket = self._scopes.bucket(tenant)
        charged = bucket.settled.get((tenant, request_id))
        if charged is not None and charged.ended:
            bucket.settled.forget((tenant, request_id))

    def report(self, tenant: str, model: str, now: int) -> Admitted:
        """The tightest state of each kind of limit that covers the tenant's use of the model."""
        return tightest(self._scopes.covering(tenant, model, "", now), now, unit=unit_of(model))

    # --- shares of what is left -----------------------------------------------------------------------------------

    def tell(self, ask: Ask, seen: int, now: int, *, allowance: bool = False) -> tuple[int, list[Share]]:
        """What the holder who asks may give out while nobody can be asked, of all limits that cover the request; held
        for it from now on. Returned with the number under which it was told.

        :param seen: of the shares that came to the holder for these limits, the number of the oldest.
        :param allowance: it may be given out without asking, too: with slots.
        """
        self._shares = max(self._shares, seen) + 1  # above what the holder has of a limiter that is gone
        shares = []
        for scope in self._scopes.covering(ask.tenant, ask.model, ask.version, now):
            shares.append(scope.tell(ask, self._shares, seen, now, self.terms, allowance=allowance))
            if self._track:
                self._changes.told[(scope.tenant, scope.model), ask.holder] = scope
        return self._shares, shares

    def due(self, ask: Ask, now: int) -> bool:
        """Whether to tell the holder anew: one of its shares, which are held for it, is not of the last moments, or is
        more than is left: what is held for a holder is granted to it like all else, and must not be given out twice."""
        fresh = self.terms.share_ns * 3 // 4
        for scope in self._scopes.covering(ask.tenant, ask.model, ask.version, now):
            old = scope.limits_shares and scope.holdings.lasts(ask.holder, now) < fresh
            if old or scope.short(ask.holder, now):
                return True
        return False

    def scope(self, tenant: str, model: str, now: int) -> Scope | None:
        """One limits entry; None for a model without limits."""
        return self._scopes.find(tenant, model, now)

    def covering(self, tenant: str, model: str, version: str, now: int) -> Sequence[Scope]:
        """All limits that cover a request, the tenant's own first."""
        return self._scopes.covering(tenant, model, version, now)

    def hold(self, told: Iterable[Told]) -> None:
        """Goes on with the numbers of shares that another replica told."""
        for each in told:
            self._shares = max(self._shares, each.number)

    # --- what others decided --------------------------------------------------------------------------------------

    def take_changes(self, now: int) -> Batch:
        """What was decided here since the last call."""
        return self._changes.take(now)

    def apply(self, batch: Batch, part: Part, now: int) -> None:
        """Takes over what `part` decided. Apply each batch once."""
        self.hold(batch.told)
        following.apply(self.books, batch, part, now)


def _take_shares(lease: Lease, requests: int, now: int) -> None:
    shares = tuple(scope.share if scope.share and scope.share.until > now else None for scope in lease.scopes)
    if any(shares):
        lease.shares = shares
        for scope, share in zip(lease.scopes, shares, strict=True):
            if share is not None:
                tokens = lease.tokens if scope.unit is lease.unit else 0
                share.take(Amount(tokens, requests, lease.spend, lease.slots))
            requests = lease.each


def _take_more(lease: Lease, tokens: int, spend: int, now: int) -> None:
    shares = tuple(scope.share if scope.share and scope.share.until > now else None for scope in lease.scopes)
    for scope, share in zip(lease.scopes, shares, strict=True):
        if share is not None:
            share.take(Amount(tokens if scope.unit is lease.unit else 0, spend=spend))
    if shares != lease.shares:  # out of several, of which nobody knows what was out of which: nothing comes back
        lease.shares = ()


def _give_back(lease: Lease, tokens: int, spend: int) -> None:
    """What was not used of shares that are still the present ones."""
    for scope, share in zip(lease.scopes, lease.shares, strict=True):
        if share is not None and scope.share is share:
            back = min(0, tokens - lease.tokens) if scope.unit is lease.unit else 0
            share.take(Amount(back, 0, min(0, spend - lease.spend), -lease.slots))
