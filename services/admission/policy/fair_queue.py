"""Weighted fair queuing across tenants, in token-cost units.

Each tenant has a counter of service received, divided by its weight; the backlogged tenant with the least is served
next (start-time fair queuing, Goyal et al. 1996, with the counters of VTC, Sheng et al. 2024). A tenant that becomes
backlogged is lifted to the present level, so that idleness is not credit. Cost is charged at its upper bound on
dispatch and corrected when the real output is known.

Bound: over any time in which tenants f and g are both backlogged, and heads are dispatched in order, their charged
service differs by at most l_f/w_f + l_g/w_g, where l is the tenant's largest cost and w its weight
(tests/unit/admission/test_fair_queue.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from services.admission.policy.model import Request


@dataclass(slots=True, eq=False)
class Item:
    """A waiting request."""

    request: Request
    cost: float
    order: int
    queued_at: float
    expires_at: float  # the earlier of deadline and TTL
    bypassed: int = 0  # grants given to later requests on workers that this one could use


class Flow:
    """A tenant's waiting requests and its counter.

    Requests wait in one lane per model version, so that a version whose workers are full does not hold up the
    tenant's requests for others.
    """

    __slots__ = ("backlog", "counter", "lanes", "since", "size", "tenant", "weight")

    def __init__(self, tenant: str, since: int) -> None:
        self.tenant = tenant
        self.since = since  # order of the request that made it backlogged
        self.counter = 0.0
        self.weight = 1.0
        self.lanes: dict[str, OrderedDict[str, Item]] = {}
        self.size = 0
        self.backlog = 0.0  # cost units waiting

    def heads(self) -> list[Item]:
        """The oldest of each lane, oldest first."""
        heads = [next(iter(lane.values())) for lane in self.lanes.values()]
        if len(heads) > 1:
            heads.sort(key=lambda item: item.order)
        return heads

    def newest(self) -> Item:
        """The request that came last."""
        return max((next(reversed(lane.values())) for lane in self.lanes.values()), key=lambda item: item.order)


class FairQueue:
    """The waiting requests of one class.

    Memory: one `Flow` per tenant that waits, plus the counters of at most `max_idle` tenants that do not.
    """

    def __init__(self, *, max_idle: int = 10_000) -> None:
        self._flows: dict[str, Flow] = {}  # backlogged
        self._idle: OrderedDict[str, float] = OrderedDict()  # counters that are still above the present level
        self._items: dict[str, Item] = {}
        self._level = 0.0  # virtual time: the counter at which service was last given
        self._max_idle = max_idle
        self.backlog = 0.0
        """Cost units waiting in all."""

    def __len__(self) -> int:
        return len(self._items)

    def size_of(self, tenant: str) -> int:
        """How many requests of the tenant wait."""
        flow = self._flows.get(tenant)
        return flow.size if flow else 0

    def flows(self) -> Iterator[Flow]:
        """The backlogged tenants, in no particular order."""
        return iter(self._flows.values())

    def push(self, item: Item) -> None:
        """Takes a request in; its id must not be waiting already.

        :raises ValueError: it is.
        """
        request = item.request
        if request.request_id in self._items:
            raise ValueError(f"{request.request_id} waits already")
        flow = self._flows.get(request.tenant)
        if flow is None:
            flow = self._activate(request.tenant, item.order)
        flow.weight = request.weight
        flow.lanes.setdefault(request.model_version, OrderedDict())[request.request_id] = item
        flow.size += 1
        flow.backlog += item.cost
        self.backlog += item.cost
        self._items[request.request_id] = item

    def remove(self, request_id: str) -> Item | None:
        """Takes a request out without charging it; None when it does not wait."""
        item = self._items.pop(request_id, None)
        if item is None:
            return None
        flow = self._flows[item.request.tenant]
        lane = flow.lanes[item.request.model_version]
        del lane[request_id]
        if not lane:
            del flow.lanes[item.request.model_version]
        flow.size -= 1
        flow.backlog -= item.cost
        self.backlog -= item.cost
        if not flow.size:
            del self._flows[flow.tenant]
            self._remember(flow.tenant, flow.counter)
        if not self._items:
            self.backlog = 0.0  # rounding must not add up over days
        return item

    def dispatch(self, request_id: str) -> Item:
        """Takes a request out and charges its tenant.

        :raises KeyError: it does not wait.
        """
        item = self._items[request_id]
        flow = self._flows[item.request.tenant]
        self._level = max(self._level, flow.counter)
        flow.counter += item.cost / item.request.weight
        self.remove(request_id)
        return item

    def charge(self, tenant: str, weight: float, cost: float) -> None:
        """Charges a request that was served without waiting, so that it counts when its tenant has to wait."""
        flow = self._flows.get(tenant)
        if flow is not None:
            flow.counter += cost / weight
            return
        start = max(self._level, self._idle.get(tenant, 0.0))
        if not self._flows:
            self._level = start
        self._remember(tenant, start + cost / weight)

    def refund(self, tenant: str, weight: float, cost: float) -> None:
        """Gives back what was charged but not used. An idle tenant's refund never becomes credit: see `_activate`."""
        flow = self._flows.get(tenant)
        if flow is not None:
            flow.counter -= cost / weight
        elif tenant in self._idle:
            self._remember(tenant, self._idle[tenant] - cost / weight)

    def in_order(self) -> list[Flow]:
        """Backlogged tenants, the least served first; between equals whoever came first."""
        return sorted(self._flows.values(), key=_least_served)

    def _activate(self, tenant: str, since: int) -> Flow:
        flow = Flow(tenant, since)
        flow.counter = max(self._level, self._idle.pop(tenant, 0.0))
        self._flows[tenant] = flow
        return flow

    def _remember(self, tenant: str, counter: float) -> None:
        """Keeps an idle tenant's counter while it says more than the level does."""
        self._idle.pop(tenant, None)
        if counter > self._level:
            self._idle[tenant] = counter
            if len(self._idle) > self._max_idle:
                self._idle.popitem(last=False)


def _least_served(flow: Flow) -> tuple[float, int]:
    return flow.counter, flow.since
