"""Whom the edge refuses because the mesh could not serve him now: admission's levels as one share per tenant.

Admission tells, per pool, of which tenants' requests a share should be refused. Which pool a request will use is only
known once its body is read, which is what shedding at the edge saves. So a tenant is shed here as much as every pool
that serves at all would shed it: the smallest of their shares, 0 for a pool without a level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Shed(NamedTuple):
    """What to do with a tenant's requests."""

    share: float
    """Of its requests that are refused, 0 to 1."""
    retry_after_ns: int
    """When to come back."""


NOTHING = Shed(0.0, 0)
"""All may pass."""

Level = Mapping[str, Shed]
"""One pool's, by tenant."""


class Levels:
    """The levels of all pools.

    :param by_pool: a pool that sheds nothing may be absent.
    :param serving: pools that have workers.
    """

    def __init__(self, by_pool: Mapping[str, Level] | None = None, serving: Iterable[str] = ()) -> None:
        self._by_pool = dict(by_pool or {})
        pools = sorted(set(serving))
        self._everywhere: dict[str, Shed] = {}
        if pools and all(pool in self._by_pool for pool in pools):
            for tenant in self._by_pool[pools[0]]:
                least = min((self._by_pool[pool].get(tenant, NOTHING) for pool in pools), key=lambda shed: shed.share)
                if least.share > 0:
                    self._everywhere[tenant] = least

    def of(self, tenant: str, pool: str = "") -> Shed:
        """What holds for a tenant, on one pool or, when it is not known, wherever its request may go."""
        if pool:
            return self._by_pool.get(pool, {}).get(tenant, NOTHING)
        return self._everywhere.get(tenant, NOTHING)
