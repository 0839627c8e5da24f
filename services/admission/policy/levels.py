"""What the edge is told of a pool: whose requests are refused anyway, and so need not come as far as here.

Per tenant and class, fading rates say what it asks for and what it gets. A tenant is named when it asks for more than
its fair share of what its class gets (by weight, max-min) and much of it is refused. The edge is to let through
`headroom` times what the tenant gets here: a little more than can be served, so that the queue never runs dry, the
estimates stay alive and an end of the overload is seen at once. A tenant with requests in several classes is shed by
the least share of them, since the edge cannot tell them apart.

When none of a tenant's requests is refused here any more, what the edge sheds of them is too much, or the overload has
ended: its share fades within seconds, and comes back with the first refusal.

Hysteresis: named from `begin` on, until below `end`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from services.admission.policy.fading import FadingMean, FadingRate
from services.admission.policy.model import QueueClass, Request

_GRAIN = 0.02  # shares are told in steps of this, so that not every breath is a change
_MOST_NAMED = 100
_OVER = 0.5  # memories without any refusal after which nobody is named: the load is over
_LEAST = 1.0  # seconds over which a rate is taken at least: a first request is no flood
_QUIET = 4.0  # memories after which what was is forgotten
_CALM = 0.5  # seconds without a refusal of a tenant's here from which on less of its requests is shed
_FADING = 1.0  # seconds in which the share then falls to 1/e, until refusals begin again or it has ended


@dataclass(frozen=True, slots=True)
class TenantLevel:
    """What the edge should do with one tenant."""

    tenant: str
    shed: float  # share of its requests to refuse, 0 to 1
    retry_after: float  # seconds


class _Account:
    """A tenant in one class. `asked` and `got` in cost units per second, which is what fairness goes by; `came` and
    `passed` in requests, which is what the edge sheds. What it shed is reckoned in."""

    __slots__ = ("asked", "came", "got", "passed", "refused", "retry_after", "weight")

    def __init__(self, memory: float, now: float) -> None:
        self.weight = 1.0
        self.asked = FadingRate(memory, now - _LEAST)
        self.got = FadingRate(memory, now - _LEAST)
        self.came = FadingRate(memory, now - _LEAST)
        self.passed = FadingRate(memory, now - _LEAST)
        self.refused = FadingRate(memory, now - _LEAST)
        self.retry_after = FadingMean(16.0)


class Levels:
    """Who asks for how much of a pool, and gets how much. Memory: `max_tracked` tenants × classes."""

    def __init__(
        self,
        *,
        memory: float = 5.0,
        headroom: float = 1.1,
        begin: float = 0.3,
        end: float = 0.1,
        most: float = 0.98,
        max_tracked: int = 10_000,
    ) -> None:
        """`memory` in seconds; `begin`, `end` and `most` are shares: when to begin and to cease to name a tenant, and
        the largest share that is ever shed."""
        self._memory = memory
        self._headroom = headroom
        self._begin = begin
        self._end = end
        self._most = most
        self._max_tracked = max_tracked
        self._accounts: OrderedDict[tuple[str, QueueClass], _Account] = OrderedDict()
        self._told: dict[str, float] = {}
        self._refused_at = -math.inf

    def arrived(self, request: Request, cost: float, now: float) -> None:
        """A request came; it stands for those that the edge shed."""
        key = request.tenant, request.queue_class
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(self._memory, now)
            if len(self._accounts) > self._max_tracked:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(key)
        account.weight = request.weight
        stands_for = 1.0 / (1.0 - self._told.get(request.tenant, 0.0))
        account.asked.add(now, cost * stands_for)
        account.came.add(now, stands_for)

    def granted(self, request: Request, cost: float, now: float) -> None:
        """A request got a worker."""
        account = self._accounts.get((request.tenant, request.queue_class))
        if account is not None:
            account.got.add(now, cost)
            account.passed.add(now, 1.0)

    def rate_of(self, request: Request, now: float) -> float:
        """Cost units per second that the tenant gets in this class."""
        account = self._accounts.get((request.tenant, request.queue_class))
        return account.got.per_second(now) if account is not None else 0.0

    def refused(self, request: Request, cost: float, retry_after: float | None, now: float) -> None:
        """A request was refused or evicted because there was too much."""
        self._refused_at = now
        account = self._accounts.get((request.tenant, request.queue_class))
        if account is not None:
            account.refused.add(now, cost)
            if retry_after is not None:
                account.retry_after.add(retry_after)

    def told(self, tenants: tuple[TenantLevel, ...]) -> None:
        """The edge knows this now, and sheds accordingly; nothing when it could not be told."""
        self._told = {each.tenant: each.shed for each in tenants}

    def tenants(self, now: float) -> tuple[TenantLevel, ...]:
        """Whom the edge should shed, the largest share first."""
        if now - self._refused_at > _OVER * self._memory:
            return ()
        shares: dict[str, tuple[float, float]] = {}
        for accounts in self._by_class(now).values():
            asked = {tenant: account.asked.per_second(now) for tenant, account in accounts.items()}
            capacity = sum(account.got.per_second(now) for account in accounts.values())
            fair = fair_rate({tenant: (asked[tenant], accounts[tenant].weight) for tenant in accounts}, capacity)
            for tenant, account in accounts.items():
                share = 0.0
                if asked[tenant] > fair * account.weight and account.refused.per_second(now) > 0.0:
                    share = 1.0 - self._headroom * account.passed.per_second(now) / account.came.per_second(now)
                    share *= math.exp(min(0.0, _CALM - (now - account.refused.at)) / _FADING)
                before = shares.get(tenant)
                if before is None or share < before[0]:
                    shares[tenant] = share, account.retry_after.mean
        named = [
            TenantLevel(tenant, round(round(min(self._most, share) / _GRAIN) * _GRAIN, 2), retry_after)
            for tenant, (share, retry_after) in shares.items()
            if share >= (self._end if tenant in self._told else self._begin)
        ]
        named.sort(key=lambda each: (-each.shed, each.tenant))
        return tuple(named[:_MOST_NAMED])

    def _by_class(self, now: float) -> dict[QueueClass, dict[str, _Account]]:
        """Those that asked for anything lately; the others are forgotten."""
        found: dict[QueueClass, dict[str, _Account]] = {}
        for (tenant, queue_class), account in list(self._accounts.items()):
            if now - account.asked.at > _QUIET * self._memory:
                del self._accounts[tenant, queue_class]
            else:
                found.setdefault(queue_class, {})[tenant] = account
        return found


def fair_rate(asked: dict[str, tuple[float, float]], capacity: float) -> float:
    """Max-min fairness: the rate per weight at which a capacity is used up when nobody gets more than it asks for.

    `asked` holds rate and weight of each; infinite when there is enough for all.
    """
    left, weights = capacity, sum(weight for _, weight in asked.values())
    for rate, weight in sorted(asked.values(), key=lambda each: each[0] / each[1]):
        if rate / weight * weights > left:
            return left / weights
        left -= rate
        weights -= weight
    return float("inf")
