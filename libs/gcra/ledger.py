"""Every tenant's limits and leases as one pure, single-threaded state.

A *scope* is what one `Limits` entry covers: a tenant as a whole (`"*"`) or a tenant's use of one model. A request is
held to all scopes that cover it, all or nothing. A *lease* is a reservation that has not been settled yet.

Not thread-safe: one event loop owns a ledger, and every call is a plain function without awaits, which is what makes
concurrent reserves exact. Time comes in as `now`, integer nanoseconds on a clock that does not run backwards.
"""

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from libs.gcra.bucket import Bucket
from libs.gcra.scope import Lease, Scope, tightest, worse
from libs.gcra.types import (
    ALL_MODELS,
    NO_LIMITS,
    Admitted,
    Changes,
    Denied,
    LeaseState,
    LimitSpec,
    ScopeState,
    SettledAlready,
)


class Ledger:
    """Buckets, slots and leases of all tenants.

    :param default: limits of a tenant that has none of its own for `"*"`.
    :param burst_seconds: a bucket holds this many seconds' worth of its limit (at least one unit); 60 makes the burst
        equal to the limit.
    :param settled_retention_ns: how long a settled id is remembered, so that a repeated settle changes nothing.
    :param max_settled: the most settled ids remembered; the oldest go first.
    :param concurrency_retry_ns: the hint given when no slot is free (nobody knows when one will be).
    :param max_idle_tenants: above this many tenants, the ones with nothing consumed are forgotten.
    :param track_changes: keep what changed for `take_changes`; whoever sets it must call that regularly.
    """

    def __init__(
        self,
        *,
        default: LimitSpec = NO_LIMITS,
        burst_seconds: int = 60,
        settled_retention_ns: int = 120_000_000_000,
        max_settled: int = 200_000,
        concurrency_retry_ns: int = 1_000_000_000,
        max_idle_tenants: int = 50_000,
        track_changes: bool = False,
    ) -> None:
        self._default = default
        self._burst_seconds = burst_seconds
        self._retention = settled_retention_ns
        self._max_settled = max_settled
        self._concurrency_retry = concurrency_retry_ns
        self._max_idle_tenants = max_idle_tenants
        self._prune_at = max_idle_tenants
        self._track = track_changes
        self._specs: Mapping[tuple[str, str], LimitSpec] = {}
        self._wide: dict[str, Scope] = {}
        self._named: dict[tuple[str, str], Scope] = {}
        self._leases: dict[tuple[str, str], Lease] = {}
        self._expiries: list[Lease] = []
        self._settled: set[tuple[str, str]] = set()
        self._settled_order: deque[tuple[int, tuple[str, str]]] = deque()
        self._dirty: set[Scope] = set()
        self._opened: list[Lease] = []
        self._closed: list[tuple[str, str]] = []

    @property
    def live_leases(self) -> int:
        """Reservations that are neither settled nor expired."""
        return len(self._leases)

    @property
    def remembered_settled(self) -> int:
        """Settled ids in memory."""
        return len(self._settled)

    def apply_limits(self, specs: Mapping[tuple[str, str], LimitSpec], now: int) -> None:
        """Makes `specs`, by (tenant, model or `"*"`), the limits from now on; what was consumed stays consumed.

        A concurrency limit that is new counts the leases that open from now on.
        """
        self._specs = dict(specs)
        for tenant, scope in list(self._wide.items()):
            scope.apply(self._specs.get((tenant, ALL_MODELS), self._default), self._burst_seconds, now)
            if scope.idle(now):
                del self._wide[tenant]
        for key, scope in list(self._named.items()):
            scope.apply(self._specs.get(key, NO_LIMITS), self._burst_seconds, now)
            if key not in self._specs and scope.idle(now):
                del self._named[key]
        for key, spec in self._specs.items():
            if key[1] != ALL_MODELS and key not in self._named:
                self._named[key] = self._new_scope(key[0], key[1], spec, now)

    def admit_edge(self, tenant: str, *, requests: int, tokens: int, now: int) -> Admitted | Denied:
        """Takes `requests` from the tenant's request bucket when `tokens` would fit its token bucket too.

        The token bucket is only looked at: `reserve` takes the real number. Slots are not looked at either: the
        settle of the stream before may still be on its way while `reserve` would come after it.
        """
        scope = self._wide.get(tenant) or self._tenant_scope(tenant, now)
        denied = scope.check(requests, tokens, 0, now)
        if denied is not None:
            return denied
        if requests and scope.requests is not None:
            scope.requests.charge(requests, now)
            if self._track:
                self._dirty.add(scope)
        return tightest((scope,), now)

    def reserve(
        self,
        tenant: str,
        model: str,
        request_id: str,
        tokens: int,
        *,
        count_request: bool,
        lease_ns: int,
        now: int,
    ) -> Admitted | Denied | SettledAlready:
        """Takes `tokens`, one slot and (with `count_request`) one request in every scope, or nothing at all.

        A repeat with the id of a live lease takes nothing and reports the present state. An id that was settled or
        expired is not reserved again.
        """
        if self._expiries and self._expiries[0].expires <= now:
            self.expire(now)
        key = (tenant, request_id)
        lease = self._leases.get(key)
        if lease is not None:
            return tightest(lease.scopes, now)
        if key in self._settled:
            return SettledAlready()
        scopes = self._scopes(tenant, model, now)
        requests = 1 if count_request else 0
        denied: Denied | None = None
        for scope in scopes:
            denied = worse(denied, scope.check(requests, tokens, 1, now, self._concurrency_retry))
        if denied is not None:
            return denied
        self._open(key, model, tokens, now + lease_ns, scopes, requests, now)
        return tightest(scopes, now)

    def _open(
        self,
        key: tuple[str, str],
        model: str,
        tokens: int,
        expires: int,
        scopes: list[Scope],
        requests: int,
        now: int,
    ) -> None:
        charged: list[Bucket] = []
        for scope in scopes:
            scope.in_use += 1
            if requests and scope.requests is not None:
                scope.requests.charge(requests, now)
            if scope.tokens is not None:
                scope.tokens.charge(tokens, now)
                charged.append(scope.tokens)
        lease = Lease(key, model, tokens, expires, scopes, charged)
        self._leases[key] = lease
        heappush(self._expiries, lease)
        if self._track:
            self._dirty.update(scopes)
            self._opened.append(lease)

    def settle(self, tenant: str, model: str, request_id: str, tokens: int, now: int) -> bool:
        """Ends a lease and charges `tokens` instead of what was reserved; the bucket may go into debt.

        :return: False when the lease was not live: settled or expired before (nothing changes), or never seen (it
            was lost in a crash together with its charge, so `tokens` are charged now).
        """
        key = (tenant, request_id)
        lease = self._leases.get(key)
        if lease is not None and lease.expires <= now:
            self.expire(now)
            return False
        if lease is None:
            if key not in self._settled:
                for scope in self._scopes(tenant, model, now):
                    if scope.tokens is not None:
                        scope.tokens.charge(tokens, now)
                        if self._track:
                            self._dirty.add(scope)
                self._remember_settled(key, now)
            return False
        for bucket in lease.charged:
            bucket.settle(lease.tokens, tokens, now)
        self._close(lease, now)
        return True

    def expire(self, now: int) -> int:
        """Frees the slots of leases whose time has passed; their tokens stay charged. Returns how many there were."""
        expired = 0
        heap = self._expiries
        while heap and heap[0].expires <= now:
            lease = heappop(heap)
            if lease.open:
                self._close(lease, now)
                expired += 1
        return expired

    def report(self, tenant: str, model: str, now: int) -> Admitted:
        """The tightest state of each kind of limit that covers the tenant's use of the model."""
        return tightest(self._scopes(tenant, model, now), now)

    # --- persistence -------------------------------------------------------------------------------------------

    def take_changes(self, now: int) -> Changes:
        """What changed since the last call, as plain data."""
        opened = tuple(lease.state(now) for lease in self._opened if lease.open)
        changes = Changes(tuple(scope.state(now) for scope in self._dirty), opened, tuple(self._closed))
        self._forget_changes()
        return changes

    def full_state(self, now: int) -> Changes:
        """Everything, as plain data: consumed buckets, live leases, remembered settled ids. Clears the changes."""
        every = (*self._wide.values(), *self._named.values())
        scopes = tuple(scope.state(now) for scope in every if not scope.idle(now))
        leases = tuple(lease.state(now) for lease in self._leases.values())
        self._forget_changes()
        return Changes(scopes, leases, tuple(key for _, key in self._settled_order))

    def restore_scope(self, state: ScopeState, elapsed_ns: int, now: int) -> None:
        """Goes on from a scope written `elapsed_ns` ago. Call before leases are restored and limits are applied."""
        scope = Scope.restored(state, elapsed_ns, now)
        if state.model == ALL_MODELS:
            self._wide[state.tenant] = scope
        else:
            self._named[(state.tenant, state.model)] = scope

    def restore_lease(self, state: LeaseState, elapsed_ns: int, now: int) -> None:
        """Goes on from a lease written `elapsed_ns` ago; its tokens are in the restored buckets already."""
        scopes = self._scopes(state.tenant, state.model, now)
        charged = [scope.tokens for scope in scopes if scope.tokens is not None]
        expires = now + max(0, state.expires_in_ns - max(0, elapsed_ns))
        lease = Lease((state.tenant, state.request_id), state.model, state.tokens, expires, scopes, charged)
        for scope in scopes:
            scope.in_use += 1
        self._leases[lease.key] = lease
        heappush(self._expiries, lease)

    def restore_settled(self, key: tuple[str, str], now: int) -> None:
        """Remembers an id (tenant, request id) as settled."""
        if key not in self._settled:
            self._remember_settled(key, now)
        self._closed.clear()

    def _forget_changes(self) -> None:
        self._dirty.clear()
        self._opened.clear()
        self._closed.clear()

    # --- scopes ------------------------------------------------------------------------------------------------

    def _scopes(self, tenant: str, model: str, now: int) -> list[Scope]:
        """All scopes that cover a request: the tenant, the name it used, and that name without its version.

        The last keeps a pinned version ("weir-fast@1") from passing around the limit on "weir-fast".
        """
        scopes = [self._wide.get(tenant) or self._tenant_scope(tenant, now)]
        if self._named:
            named = self._named.get((tenant, model))
            if named is not None:
                scopes.append(named)
            if "@" in model:
                base = self._named.get((tenant, model.partition("@")[0]))
                if base is not None:
                    scopes.append(base)
        return scopes

    def _tenant_scope(self, tenant: str, now: int) -> Scope:
        if len(self._wide) >= self._prune_at:
            self._wide = {name: scope for name, scope in self._wide.items() if not scope.idle(now)}
            self._prune_at = max(self._max_idle_tenants, 2 * len(self._wide))
        spec = self._specs.get((tenant, ALL_MODELS), self._default)
        scope = self._wide[tenant] = self._new_scope(tenant, ALL_MODELS, spec, now)
        return scope

    def _new_scope(self, tenant: str, model: str, spec: LimitSpec, now: int) -> Scope:
        scope = Scope(tenant, model)
        scope.apply(spec, self._burst_seconds, now)
        return scope

    # --- leases ------------------------------------------------------------------------------------------------

    def _close(self, lease: Lease, now: int) -> None:
        lease.open = False
        del self._leases[lease.key]
        for scope in lease.scopes:
            scope.in_use -= 1
        if self._track:
            self._dirty.update(lease.scopes)
        self._remember_settled(lease.key, now)
        # Settled leases stay in the heap until their time; rebuild it when they are most of it.
        if len(self._expiries) > 1024 and len(self._expiries) > 4 * len(self._leases):
            self._expiries = list(self._leases.values())
            heapify(self._expiries)

    def _remember_settled(self, key: tuple[str, str], now: int) -> None:
        self._settled.add(key)
        order = self._settled_order
        order.append((now, key))
        if self._track:
            self._closed.append(key)
        oldest = now - self._retention
        while order and (order[0][0] < oldest or len(order) > self._max_settled):
            self._settled.discard(order.popleft()[1])
