"""What a ledger knows: scopes, leases and ids, and the few ways in which they change together."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from libs.quota.budget import Budgets
from libs.quota.lease import Lease
from libs.quota.scope import Scope
from libs.quota.scopes import Scopes
from libs.quota.settled import Charge, Key
from libs.quota.types import Ask, LimitSpec, Opened, unit_of
from libs.quota.window import Part


class Books:
    """Scopes, leases and ids of all tenants; no decision is made here. See `Ledger` for the parameters."""

    def __init__(self, *, default: LimitSpec, retention_ns: int, max_idle_tenants: int) -> None:
        self.budgets = Budgets()
        self.scopes = Scopes(default, max_idle_tenants, self.budgets, retention_ns)
        self.retention_ns = retention_ns
        self.live = 0
        """Leases that are open."""
        self.held: dict[str, dict[int, dict[Key, Lease]]] = {}
        """Leases by their holder and the number of their bucket: small, since large ones grow in milliseconds."""
        self._expiries: list[tuple[int, int, Lease]] = []
        self._pushed = 0

    @property
    def next_expiry(self) -> int:
        """No lease ends by itself before; 0 when none is open."""
        return self._expiries[0][0] if self._expiries else 0

    def lease(self, key: Key) -> Lease | None:
        """A live lease."""
        return self.scopes.bucket(key[0]).leases.get(key)

    def open(self, lease: Lease) -> None:
        """It takes its slots and what it reserves."""
        bucket = self.scopes.bucket(lease.key[0])
        lease.take()
        bucket.leases[lease.key] = lease
        self.live += 1
        self.held.setdefault(lease.holder, {}).setdefault(bucket.number, {})[lease.key] = lease
        self._push(lease)

    def restore(self, state: Opened, now: int) -> None:
        """Opens a lease that was opened elsewhere or before."""
        scopes = self.scopes.covering(state.tenant, state.model, state.version, now)
        ask = Ask(state.tenant, state.model, state.request_id, state.tokens, state.version, state.spend)
        lease = Lease(
            ask._replace(holder=state.holder, requests=state.each),
            tokens=state.tokens,
            requests=state.requests,
            scopes=scopes,
            part=state.part,
            now=now - state.age_ns,
        )
        lease.over_quota = state.over_quota
        lease.expires = now + max(0, state.expires_in_ns)
        self.open(lease)

    def close(self, lease: Lease, now: int) -> None:
        """It gives them back; nothing is charged."""
        lease.release(now)
        bucket = self.scopes.bucket(lease.key[0])
        del bucket.leases[lease.key]
        self.live -= 1
        held = self.held[lease.holder]
        del held[bucket.number][lease.key]
        if not held[bucket.number]:
            del held[bucket.number]
            if not held:
                del self.held[lease.holder]
        # Closed leases stay in the heap until their time; rebuild it when they are most of it.
        if len(self._expiries) > 1024 and len(self._expiries) > 4 * self.live:
            self._expiries = [each for each in self._expiries if each[2].open]
            heapify(self._expiries)

    def end(self, lease: Lease, now: int) -> None:
        """Nobody settled it: what it reserved counts as used, as decided by whoever opened it, so that every replica
        that ends it counts it in the same place."""
        self.close(lease, now)
        charge = Charge(now, True, lease.part, lease.model, lease.version, lease.tokens, lease.spend)
        self.charge(lease.scopes, lease.key, charge, now)

    def expire(self, now: int, most: int) -> int:
        """Ends leases whose time has passed, at most so many; returns how many."""
        expired = 0
        heap = self._expiries
        while heap and heap[0][0] <= now and expired < most:
            lease = heappop(heap)[2]
            if lease.open:
                if lease.expires > now:  # it was prolonged
                    self._push(lease)
                else:
                    self.end(lease, now)
                    expired += 1
        return expired

    def charge(self, scopes: Sequence[Scope], key: Key, charge: Charge, now: int) -> None:
        """Charges all scopes, of which the first is the tenant's own with its budget, and remembers the id."""
        tokens, spend, part, unit = charge.tokens, charge.spend, charge.part, unit_of(charge.model)
        for scope in scopes:
            if scope.unit is unit:
                scope.tokens.charge(tokens, now, part)
            scope.spend.charge(spend, now, part)
        if scopes[0].budget is not None:
            scopes[0].budget.charge(spend, now, part)
        self.scopes.bucket(key[0]).settled.put(key, charge, now)

    def void(self, key: Key, charge: Charge, now: int) -> None:
        """Takes back what was charged for an id."""
        scopes, unit = self.scopes.covering(key[0], charge.model, charge.version, now), unit_of(charge.model)
        for scope in scopes:
            if scope.unit is unit:
                scope.tokens.void(charge.tokens, charge.at, charge.part)
            scope.spend.void(charge.spend, charge.at, charge.part)
        if scopes[0].budget is not None:
            scopes[0].budget.void(charge.spend, charge.at, charge.part)

    def reopen(self, key: Key, charge: Charge, now: int) -> None:
        """A lease that had ended by itself is going to be open again."""
        self.void(key, charge, now)
        self.scopes.bucket(key[0]).settled.forget(key)

    def _push(self, lease: Lease) -> None:
        self._pushed += 1
        heappush(self._expiries, (lease.expires, self._pushed, lease))


def count(scopes: Sequence[Scope], requests: int, each: int, now: int, part: Part) -> None:
    """Counts `requests` for the tenant, which is the first, and `each` for each model that has limits."""
    for scope in scopes:
        scope.requests.charge(requests, now, part)
        requests = each
