"""Every tenant's limits and leases as one pure, single-threaded state.

A *scope* is what one `Limits` entry covers: a tenant as a whole (`"*"`) or a tenant's use of one model. A request is
held to all scopes that cover it, all or nothing. A *lease* is a reservation that has not been settled yet.

Limits hold in any period exactly, not on average. The use of a scope is what its open leases reserve and what was
settled within the last period, charged when it is settled; a request passes when that and its own cost stay within the
limit. So, if nothing is delivered beyond a reservation, the limit holds in any period (T - 60 s, T]: at the last
admission before T, whatever was delivered in that period was either in an open lease or settled within the 60 s before
that admission, and all of it was counted then.

Not thread-safe: one event loop owns a ledger, and every call is a plain function without awaits, which is what makes
concurrent reserves exact. Time comes in as `now`, integer nanoseconds on a clock that does not run backwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from libs.quota.budget import Budgets, BudgetSpec
from libs.quota.changes import Changes
from libs.quota.scope import Lease, Scope, tightest, worse
from libs.quota.scopes import Scopes
from libs.quota.settled import Key, SettledIds
from libs.quota.types import (
    ALL_MODELS,
    NO_LIMITS,
    Admitted,
    Ask,
    Batch,
    Closed,
    Denied,
    LedgerState,
    LimitSpec,
    Opened,
    SettledAlready,
)
from libs.quota.window import LOCAL, Part


class Ledger:
    """Use, slots and leases of all tenants.

    :param default: limits of a tenant that has none of its own for `"*"`.
    :param part: who decides here, where several replicas do.
    :param settled_retention_ns: how long a settled id is remembered, so that a repeated settle changes nothing.
    :param max_settled: the most settled ids remembered; the oldest go first.
    :param retry_ns: the hint given while open leases are in the way and none has ever ended.
    :param max_idle_tenants: above this many tenants, the ones with nothing used are forgotten.
    :param track_changes: keep what was decided for `take_changes`; whoever sets it must call that regularly.
    """

    def __init__(
        self,
        *,
        default: LimitSpec = NO_LIMITS,
        part: Part = LOCAL,
        settled_retention_ns: int = 120_000_000_000,
        max_settled: int = 200_000,
        retry_ns: int = 1_000_000_000,
        max_idle_tenants: int = 50_000,
        track_changes: bool = False,
    ) -> None:
        self.part = part
        self._retry = retry_ns
        self._track = track_changes
        self.budgets = Budgets()
        self._scopes = Scopes(default, max_idle_tenants, self.budgets)
        self._leases: dict[Key, Lease] = {}
        self._expiries: list[Lease] = []
        self._settled = SettledIds(settled_retention_ns, max_settled)
        self._holders: Counter[str] = Counter()
        self._changes = Changes()

    @property
    def live_leases(self) -> int:
        """Reservations that are neither settled nor expired."""
        return len(self._leases)

    @property
    def remembered_settled(self) -> int:
        """Settled ids in memory."""
        return len(self._settled)

    @property
    def holders(self) -> frozenset[str]:
        """Who holds leases."""
        return frozenset(self._holders)

    def apply_limits(self, specs: Mapping[Key, LimitSpec], now: int) -> None:
        """Makes `specs`, by (tenant, model or `"*"`), the limits from now on; what was used stays used.

        A limit for a model that had none counts what is used from now on.
        """
        self._scopes.apply(specs, now)

    def apply_budgets(self, specs: Mapping[str, BudgetSpec]) -> None:
        """Makes `specs` the tenants' budgets from now on: see `Budgets.apply`."""
        self.budgets.apply(specs)
        self._scopes.apply_budgets()

    def admit_edge(self, tenant: str, *, requests: int, tokens: int, now: int, spend: int = 0) -> Admitted | Denied:
        """Takes `requests` of the tenant's requests when `tokens` and `spend` would fit too.

        Tokens and spend are only looked at: `reserve` takes the real numbers. Slots are not looked at either: the
        settle of the stream before may still be on its way while `reserve` would come after it.
        """
        if self._expiries and self._expiries[0].expires <= now:
            self.expire(now)
        scope = self._scopes.wide(tenant, now)
        denied = scope.check(Ask(tenant, ALL_MODELS, "", tokens, spend=spend), requests, tokens, 0, now, self._retry)
        if denied is not None:
            return denied
        if requests:
            scope.requests.charge(requests, now, self.part)
            if self._track:
                self._changes.taken[tenant] += requests
        return tightest((scope,), now)

    def reserve(self, ask: Ask, *, lease_ns: int, now: int) -> Admitted | Denied | SettledAlready:
        """Takes the tokens, the spend, one slot and one request in every scope, or nothing at all. What the edge
        counted it counted for the tenant as a whole, not knowing the model: only there it is not counted again.

        A repeat with the id of a live lease takes nothing and reports the present state. An id that was settled or
        expired is not reserved again.
        """
        if self._expiries and self._expiries[0].expires <= now:
            self.expire(now)
        key = (ask.tenant, ask.request_id)
        lease = self._leases.get(key)
        if lease is not None:
            return tightest(lease.scopes, now, over_quota=lease.over_quota)
        if key in self._settled:
            return SettledAlready()
        scopes = self._scopes.covering(ask.tenant, ask.model, ask.version, now)
        requests, tokens = int(ask.count_request), ask.tokens
        denied = self._check(scopes, ask, requests, 1, tokens, now)
        over_quota = denied is not None and ask.over_quota_allowed
        if over_quota:
            requests = tokens = 0
            denied = self._check(scopes, ask, 0, 0, 0, now)
        if denied is not None:
            return denied
        lease = Lease(ask, tokens=tokens, requests=requests, scopes=scopes, part=self.part, now=now)
        lease.over_quota = over_quota
        lease.expires = now + lease_ns
        self._open(lease)
        if not over_quota:
            _count(scopes, requests, now, self.part)
        if self._track:
            self._changes.opened.append(lease)
        return tightest(scopes, now, over_quota=over_quota)

    def _check(
        self, scopes: Iterable[Scope], ask: Ask, requests: int, of_model: int, tokens: int, now: int
    ) -> Denied | None:
        """The denial that lasts longest; `requests` of the tenant, `of_model` of each model that has limits."""
        denied: Denied | None = None
        for scope in scopes:
            denied = worse(denied, scope.check(ask, requests, tokens, 1, now, self._retry))
            requests = of_model  # the first is the tenant's own
        return denied

    def settle(
        self, tenant: str, model: str, request_id: str, tokens: int, now: int, *, spend: int = 0, version: str = ""
    ) -> bool:
        """Ends a lease and charges `tokens` and `spend` instead of what was reserved, also when that is more.

        An over-quota lease is charged no tokens: it took none of the quota.

        :return: False when the lease was not live: settled or expired before (nothing changes), or never seen (it
            was opened elsewhere, or lost in a crash, so what was used is charged now).
        """
        key = (tenant, request_id)
        lease = self._leases.get(key)
        if lease is not None and lease.expires <= now:
            self.expire(now)
            return False
        if lease is None:
            if key in self._settled:
                return False
            scopes = self._scopes.covering(tenant, model, version, now)
        else:
            scopes = lease.scopes
            model, version = lease.model, lease.version
            if lease.over_quota:
                tokens = 0
            self._close(lease, now)
        _charge(scopes, tokens, spend, now, self.part)
        self._settled.add(key, now)
        if self._track:
            self._changes.closed.append(Closed(tenant, model, request_id, version, tokens, spend))
        return lease is not None

    def expire(self, now: int) -> int:
        """Ends leases whose time has passed; what they reserved counts as used now. Returns how many there were."""
        expired = 0
        heap = self._expiries
        while heap and heap[0].expires <= now:
            lease = heappop(heap)
            if lease.open:
                self._end(lease, now)
                expired += 1
        return expired

    def end_held_by(
        self, holder: str, now: int, *, opened_before: int | None = None, but_by: frozenset[str] = frozenset()
    ) -> int:
        """Ends the leases of a holder that is gone for good, as if they had expired. Returns how many there were.

        :param opened_before: those that were opened later belong to its next life.
        :param but_by: leases that these replicas opened are left to them.
        """
        gone = [
            lease
            for lease in self._leases.values()
            if lease.holder == holder
            and (opened_before is None or lease.opened < opened_before)
            and lease.part[0] not in but_by
        ]
        for lease in gone:
            self._end(lease, now)
            if self._track:
                self._changes.ended.append(lease.key)
        return len(gone)

    def holds(self, tenant: str, request_id: str) -> bool:
        """Whether the request has a live lease."""
        return (tenant, request_id) in self._leases

    def report(self, tenant: str, model: str, now: int) -> Admitted:
        """The tightest state of each kind of limit that covers the tenant's use of the model."""
        return tightest(self._scopes.covering(tenant, model, "", now), now)

    # --- shares of what is left -----------------------------------------------------------------------------------

    def share(self, tenant: str, holder: str, holders: int, admitted: Admitted, now: int) -> tuple[int, int]:
        """(tokens, requests) that `holder`, one of so many, may give out while nobody can be asked.

        An equal part of what `admitted` says is left, and never more than what the others were not told within the
        last minute, so that all the shares together are left when the last of them is told.
        """
        if holders <= 1:
            return admitted.tokens.remaining, admitted.requests.remaining
        return self._scopes.wide(tenant, now).share(holder, holders, admitted, now)

    def leave(self, tenant: str, *, tokens: int, requests: int, now: int) -> None:
        """Makes at most so much of the tenant's limits left within the period before `now`: what others used of it
        counts as used here, until a period after `now`."""
        scope = self._scopes.wide(tenant, now)
        state = tightest((scope,), now)
        if state.tokens.remaining > tokens:
            scope.tokens.charge(state.tokens.remaining - tokens, now, self.part)
        if state.requests.remaining > requests:
            scope.requests.charge(state.requests.remaining - requests, now, self.part)

    # --- what others decided --------------------------------------------------------------------------------------

    def take_changes(self, now: int) -> Batch:
        """What was decided here since the last call."""
        return self._changes.take(now)

    def apply(self, batch: Batch, part: Part, now: int) -> None:
        """Takes over what `part` decided. Apply each batch once. It counts from `now` on: later than it was, never
        earlier."""
        for opened in batch.opened:
            scopes = self._scopes.covering(opened.tenant, opened.model, opened.version, now)
            if not opened.over_quota:
                _count(scopes, opened.requests, now, part)
            self.restore_lease(opened, now)
        for taken in batch.taken:
            scope = self._scopes.wide(taken.tenant, now)
            scope.requests.charge(taken.requests, now, part)
        for closed in batch.closed:
            key = (closed.tenant, closed.request_id)
            scopes = self._scopes.covering(closed.tenant, closed.model, closed.version, now)
            _charge(scopes, closed.tokens, closed.spend, now, part)
            self.restore_settled(key, now)
        for key in batch.ended:
            lease = self._leases.get(key)
            if lease is not None:
                self._end(lease, now)

    def state(self, now: int) -> LedgerState:
        """Everything, at rest."""
        return LedgerState(
            tuple(scope.state(now) for scope in self._scopes if not scope.idle(now)),
            tuple(lease.state(now) for lease in self._leases.values()),
            self._settled.state(now),
            self.budgets.state(),
        )

    def join(self, state: LedgerState, newer: Iterable[Part], known: Iterable[Part], now: int) -> None:
        """Takes over another ledger's state.

        :param newer: parts that it knows better: their use is taken over, and of their leases those are open that it
            says are.
        :param known: parts that are known as well here: their leases that are not open here have ended.
        """
        better, well = frozenset(newer), frozenset(known)
        for told in state.scopes:
            scope = self._scopes.find(told.tenant, told.model, now)
            if scope is not None:
                for part in told.parts:
                    if part.part in better:
                        scope.replace(part, scope.spend.period - told.spend_period_ns, now)
        self.budgets.join(state.budgets, better)
        self._scopes.apply_budgets()
        for settled in state.settled:
            key = (settled.tenant, settled.request_id)
            lease = self._leases.get(key)
            if settled.ended and lease is not None and lease.part not in better:
                # Its end was charged to a part that is not taken over, because nothing else was decided in it.
                self._end(lease, now)
            else:
                self.restore_settled(key, now - settled.age_ns, ended=settled.ended)
        told_open = {(opened.tenant, opened.request_id) for opened in state.leases}
        for lease in [lease for key, lease in self._leases.items() if lease.part in better and key not in told_open]:
            # It ended there so long ago that its id is forgotten; what it used is in the parts that were taken over.
            self.restore_settled(lease.key, now)
        for opened in state.leases:
            if opened.part in better and self._settled.ended((opened.tenant, opened.request_id)):
                # It ended here and not there yet: the charge was in the part that has just been replaced.
                scopes = self._scopes.covering(opened.tenant, opened.model, opened.version, now)
                _charge(scopes, opened.tokens, opened.spend, now, opened.part)
            elif opened.part not in well:
                self.restore_lease(opened, now)

    def restore_lease(self, state: Opened, now: int) -> None:
        """Opens a lease that was opened elsewhere or before, unless its id is known."""
        key = (state.tenant, state.request_id)
        if key in self._leases or key in self._settled:
            return
        scopes = self._scopes.covering(state.tenant, state.model, state.version, now)
        ask = Ask(state.tenant, state.model, state.request_id, state.tokens, state.version, state.spend)
        lease = Lease(
            ask._replace(holder=state.holder),
            tokens=state.tokens,
            requests=state.requests,
            scopes=scopes,
            part=state.part,
            now=now - state.age_ns,
        )
        lease.over_quota = state.over_quota
        lease.expires = now + max(0, state.expires_in_ns)
        self._open(lease)

    def restore_settled(self, key: Key, now: int, *, ended: bool = False) -> None:
        """Remembers an id (tenant, request id) as settled, and ends its lease without a charge."""
        lease = self._leases.get(key)
        if lease is not None:
            self._close(lease, now)
        self._settled.add(key, now, ended=ended)

    # --- leases ------------------------------------------------------------------------------------------------

    def _open(self, lease: Lease) -> None:
        lease.take()
        self._leases[lease.key] = lease
        self._holders[lease.holder] += 1
        heappush(self._expiries, lease)

    def _end(self, lease: Lease, now: int) -> None:
        """Nobody settled it: what it reserved counts as used, as decided by whoever opened it, so that every replica
        that ends it counts it in the same place."""
        self._close(lease, now)
        _charge(lease.scopes, lease.tokens, lease.spend, now, lease.part)
        self._settled.add(lease.key, now, ended=True)

    def _close(self, lease: Lease, now: int) -> None:
        lease.release(now)
        del self._leases[lease.key]
        self._holders[lease.holder] -= 1
        if not self._holders[lease.holder]:
            del self._holders[lease.holder]
        # Settled leases stay in the heap until their time; rebuild it when they are most of it.
        if len(self._expiries) > 1024 and len(self._expiries) > 4 * len(self._leases):
            self._expiries = list(self._leases.values())
            heapify(self._expiries)


def _count(scopes: Iterable[Scope], requests: int, now: int, part: Part) -> None:
    """Counts `requests` for the tenant, which is the first, and one for each model that has limits."""
    for scope in scopes:
        scope.requests.charge(requests, now, part)
        requests = 1


def _charge(scopes: Sequence[Scope], tokens: int, spend: int, now: int, part: Part) -> None:
    """Charges all scopes; the first is the tenant's own, with its budget."""
    for scope in scopes:
        scope.tokens.charge(tokens, now, part)
        scope.spend.charge(spend, now, part)
    if scopes[0].budget is not None:
        scopes[0].budget.charge(spend, now, part)
