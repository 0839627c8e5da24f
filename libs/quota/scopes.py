"""All scopes: which there are, and which cover a request."""

from __future__ import annotations

from collections.abc import Mapping

from libs.quota.bucket import bucket_of
from libs.quota.budget import Budgets
from libs.quota.lease import Lease
from libs.quota.scope import Scope
from libs.quota.settled import Key, SettledIds
from libs.quota.types import ALL_MODELS, NO_LIMITS, ROWS, LimitSpec

_MAX_COVERING = 1000
"""Combinations of model and version whose scopes are kept at hand, of each tenant."""


class Bucket:
    """What is known of some tenants."""

    __slots__ = ("leases", "number", "scopes", "settled")

    def __init__(self, number: int, retention_ns: int) -> None:
        self.number = number
        self.scopes: dict[Key, Scope] = {}
        """By tenant and model."""
        self.leases: dict[Key, Lease] = {}
        """By tenant and request id."""
        self.settled = SettledIds(retention_ns)


class Scopes:
    """The scopes of all tenants, made when they are first asked for.

    :param default: limits of a tenant that has none of its own for `"*"`.
    :param max_idle_tenants: above this many tenants, the ones with nothing used are forgotten.
    """

    def __init__(self, default: LimitSpec, max_idle_tenants: int, budgets: Budgets, retention_ns: int) -> None:
        self.buckets: dict[int, Bucket] = {}
        """Those that were ever asked for, by number."""
        self._retention_ns = retention_ns
        self._default = default
        self._max_idle_tenants = max_idle_tenants
        self._budgets = budgets
        self._prune_at = max_idle_tenants
        self._specs: Mapping[tuple[str, str], LimitSpec] = {}
        self._wide: dict[str, Scope] = {}
        self._named: dict[tuple[str, str], Scope] = {}

    def apply(self, specs: Mapping[tuple[str, str], LimitSpec], now: int) -> None:
        """See `Ledger.apply_limits`."""
        self._specs = dict(specs)
        for tenant, scope in list(self._wide.items()):
            scope.covering.clear()
            scope.apply(self._specs.get((tenant, ALL_MODELS), self._default))
            if scope.idle(now):
                del self._wide[tenant], self.bucket(tenant).scopes[tenant, ALL_MODELS]
        for key, scope in list(self._named.items()):
            scope.apply(self._specs.get(key, NO_LIMITS))
            if key not in self._specs and scope.idle(now):
                del self._named[key], self.bucket(key[0]).scopes[key]
        for key, spec in self._specs.items():
            if key[1] != ALL_MODELS and key not in self._named:
                self._named[key] = self._new(*key, spec)

    def apply_budgets(self) -> None:
        """Looks up anew which tenants have a budget."""
        for tenant, scope in self._wide.items():
            scope.budget = self._budgets.of(tenant)

    def covering(self, tenant: str, model: str, version: str, now: int) -> list[Scope]:
        """All scopes that cover a request: first the tenant, then the name it used and what serves it, with and without
        version.

        So neither a pinned version ("weir-fast@1") nor an alias passes around the limit on "weir-fast". Of what is
        counted by rows these are for its requests and its money, and the same names behind `ROWS` for the rows.
        """
        wide = self.wide(tenant, now)
        scopes = wide.covering.get((model, version))
        if scopes is None:
            scopes = [wide]
            asked = model.removeprefix(ROWS)
            names = {asked, version, asked.partition("@")[0], version.partition("@")[0]}
            if asked != model:
                names |= {ROWS + name for name in (*names, ALL_MODELS)}
            for name in names:
                scope = self._named.get((tenant, name))
                if scope is not None:
                    scopes.append(scope)
            if len(wide.covering) >= _MAX_COVERING:
                wide.covering.clear()
            wide.covering[model, version] = scopes
        return scopes

    def find(self, tenant: str, model: str, now: int) -> Scope | None:
        """The scope of one limits entry; None for a model without limits."""
        return self.wide(tenant, now) if model == ALL_MODELS else self._named.get((tenant, model))

    def wide(self, tenant: str, now: int) -> Scope:
        """The scope of a tenant as a whole."""
        scope = self._wide.get(tenant)
        if scope is None:
            if len(self._wide) >= self._prune_at:
                for name in [name for name, known in self._wide.items() if known.idle(now)]:
                    del self._wide[name], self.bucket(name).scopes[name, ALL_MODELS]
                self._prune_at = max(self._max_idle_tenants, 2 * len(self._wide))
            spec = self._specs.get((tenant, ALL_MODELS), self._default)
            scope = self._wide[tenant] = self._new(tenant, ALL_MODELS, spec)
            scope.budget = self._budgets.of(tenant)
        return scope

    def bucket(self, tenant: str) -> Bucket:
        """Where a tenant's leases and ids are."""
        number = bucket_of(tenant)
        bucket = self.buckets.get(number)
        if bucket is None:
            bucket = self.buckets[number] = Bucket(number, self._retention_ns)
        return bucket

    def _new(self, tenant: str, model: str, spec: LimitSpec) -> Scope:
        scope = self.bucket(tenant).scopes[tenant, model] = Scope(tenant, model, spec)
        return scope
