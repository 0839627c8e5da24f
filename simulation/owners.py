"""Who admits: the owner of the pool, for a while a second process that takes itself for the owner too, and the edge
that sheds before both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from services.admission.policy.pool import Pool


class Owners:
    """The admission processes that grant on the workers, the newest last."""

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make
        self.pools = [make()]
        self._split = self._fenced = False
        self._asked = 0

    def split(self, *, fenced: bool) -> Pool:
        """Another one begins, and gateways are divided between the two. `fenced`: what the older one grants is refused
        by the workers, whose gateways then ask the newer one."""
        self._split, self._fenced = True, fenced
        self.pools.append(self._make())
        return self.pools[-1]

    def heal(self) -> None:
        """All ask the newest from now on; what waits at an older one is served from there."""
        self._split = False

    def next(self) -> tuple[Pool, bool]:
        """Whom the next request's gateway asks, and whether it had to ask twice."""
        self._asked += 1
        older = self._split and self._asked % 2 == 0
        if older and not self._fenced:
            return self.pools[-2], False
        return self.pools[-1], older


class Edge:
    """What the limiters refuse by the pool's level: of each tenant that it names the share that it names, evenly."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self._due: defaultdict[str, float] = defaultdict(float)

    def look(self, pool: Pool, now: float) -> None:
        """Takes the level over; the pool counts on it from then on."""
        named = pool.edge_shedding.tenants(now)
        pool.edge_shedding.told(named)
        self._shares = {each.tenant: each.shed for each in named}

    def sheds(self, tenant: str) -> bool:
        """Whether the tenant's next request is refused."""
        share = self._shares.get(tenant, 0.0)
        if not share:
            return False
        self._due[tenant] += share
        if self._due[tenant] < 1.0:
            return False
        self._due[tenant] -= 1.0
        return True
