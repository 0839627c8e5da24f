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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TypeVar

from services.admission.policy.fading import FadingMean, FadingRate
from services.admission.policy.model import QueueClass, Request

_GRAIN = 0.02  # shares are told in steps of this, so that not every breath is a change
_MOST_NAMED = 100
SLICE = 250
"""Tenants that are looked at at a time: half a millisecond."""
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


class _Demand:
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


_T = TypeVar("_T")
_Asking = tuple[float, str, float, _Demand]
"""A tenant of one class: rate over weight, name (unique in its class), rate, demand."""
_ALL = TenantLevel("", math.inf, 0.0)


class EdgeShedding:
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
        self._demands: OrderedDict[tuple[str, QueueClass], _Demand] = OrderedDict()
        self._told: dict[str, float] = {}
        self._refused_at = -math.inf

    def arrived(self, request: Request, cost: float, now: float) -> None:
        """A request came; it stands for those that the edge shed."""
        key = request.tenant, request.queue_class
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = _Demand(self._memory, now)
            if len(self._demands) > self._max_tracked:
                self._demands.popitem(last=False)
        else:
            self._demands.move_to_end(key)
        demand.weight = request.weight
        stands_for = 1.0 / (1.0 - self._told.get(request.tenant, 0.0))
        demand.asked.add(now, cost * stands_for)
        demand.came.add(now, stands_for)

    def granted(self, request: Request, cost: float, now: float) -> None:
        """A request got a worker."""
        demand = self._demands.get((request.tenant, request.queue_class))
        if demand is not None:
            demand.got.add(now, cost)
            demand.passed.add(now, 1.0)

    def rate_of(self, request: Request, now: float) -> float:
        """Cost units per second that the tenant gets in this class."""
        demand = self._demands.get((request.tenant, request.queue_class))
        return demand.got.per_second(now) if demand is not None else 0.0

    def refused(self, request: Request, cost: float, retry_after: float | None, now: float) -> None:
        """A request was refused or evicted because there was too much."""
        self._refused_at = now
        demand = self._demands.get((request.tenant, request.queue_class))
        if demand is not None:
            demand.refused.add(now, cost)
            if retry_after is not None:
                demand.retry_after.add(retry_after)

    def told(self, tenants: tuple[TenantLevel, ...]) -> None:
        """The edge knows this now, and sheds accordingly; nothing when it could not be told."""
        self._told = {each.tenant: each.shed for each in tenants}

    def tenants(self, now: float) -> tuple[TenantLevel, ...]:
        """Whom the edge should shed, the largest share first."""
        return next(found for found in self.survey(now) if found is not None)

    def survey(self, now: float) -> Iterator[tuple[TenantLevel, ...] | None]:
        """The same, in pieces of at most `SLICE` tenants' work: None after each, the answer after the last. For a loop
        that has other things to do in between; what happens meanwhile counts or not."""
        if now - self._refused_at > _OVER * self._memory:
            yield ()
            return
        asking: dict[QueueClass, list[list[_Asking]]] = {}
        fair = {queue_class: FairRate() for queue_class in QueueClass}
        for demands in _slices(list(self._demands.items())):
            yield None
            for queue_class, part in self._asking(demands, fair, now).items():
                asking.setdefault(queue_class, []).append(part)
        named: dict[str, TenantLevel | None] = {}
        for queue_class, parts in asking.items():
            for some in _slices(merge(*parts)):
                yield None
                if fair[queue_class].found_with(some):
                    break
            for part in parts:
                yield None
                self._name(part, fair[queue_class].rate, named, now)
        most: list[TenantLevel] = []
        for levels in _slices(named.values()):
            yield None
            most += [each for each in levels if each is not None]
            most.sort(key=lambda each: (-each.shed, each.tenant))
            del most[_MOST_NAMED:]
        yield tuple(most)

    def _asking(
        self, demands: list[tuple[tuple[str, QueueClass], _Demand]], fair: dict[QueueClass, FairRate], now: float
    ) -> dict[QueueClass, list[_Asking]]:
        """Those that asked for anything lately, those who ask least first; the others are forgotten."""
        found: dict[QueueClass, list[_Asking]] = {}
        for key, demand in demands:
            if now - demand.asked.at > _QUIET * self._memory:
                self._demands.pop(key, None)
                continue
            tenant, queue_class = key
            rate = demand.asked.per_second(now)
            found.setdefault(queue_class, []).append((rate / demand.weight, tenant, rate, demand))
            fair[queue_class].count(demand.weight, demand.got.per_second(now))
        for part in found.values():
            part.sort()
        return found

    def _name(self, part: list[_Asking], fair: float, named: dict[str, TenantLevel | None], now: float) -> None:
        """Adds whom of these the edge should shed, and None for those whom it should not: a tenant is shed by the least
        of its classes' shares."""
        for _, tenant, asked, demand in part:
            share = 0.0
            if asked > fair * demand.weight and demand.refused.per_second(now) > 0.0:
                share = 1.0 - self._headroom * demand.passed.per_second(now) / demand.came.per_second(now)
                share *= math.exp(min(0.0, _CALM - (now - demand.refused.at)) / _FADING)
            if share < (self._end if tenant in self._told else self._begin):
                named[tenant] = None
                continue
            shed = round(round(min(self._most, share) / _GRAIN) * _GRAIN, 2)
            before = named.get(tenant, _ALL)
            if before is not None and shed < before.shed:
                named[tenant] = TenantLevel(tenant, shed, demand.retry_after.mean)


class FairRate:
    """Max-min fairness: the rate per weight at which a capacity is used up when nobody gets more than it asks for.
    First all are counted, then told what they ask for."""

    def __init__(self) -> None:
        self._weights = 0.0
        self._left = 0.0
        self.rate = math.inf
        """Infinite when there is enough for all."""

    def count(self, weight: float, capacity: float) -> None:
        """One more asks, and adds so much to what there is."""
        self._weights += weight
        self._left += capacity

    def found_with(self, asking: Iterable[_Asking]) -> bool:
        """What some ask for, those who ask least by weight first. True when that is enough to know the rate."""
        for by_weight, _, rate, demand in asking:
            if by_weight * self._weights > self._left:
                self.rate = self._left / self._weights
                return True
            self._left -= rate
            self._weights -= demand.weight
        return False


def _slices(items: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(items)
    while part := list(islice(rest, SLICE)):
        yield part
