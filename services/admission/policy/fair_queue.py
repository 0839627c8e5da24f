"""Weighted fair queuing across tenants, in token-cost units.

Each tenant has a counter of service received, divided by its weight; the backlogged tenant with the least is served
next (start-time fair queuing, Goyal et al. 1996, with the counters of VTC, Sheng et al. 2024). A tenant that becomes
backlogged is lifted to the present level, the counter at which service was last given, so that idleness is not credit:
that of the version which it asks for, since another one's workers may serve far more than that one's.
But for its *burst* (as BVT's latency credit, Duda and Cheriton 1999): it is lifted to the level of `burst_seconds` ago
only, as if it had come then. Requests come in clusters, and a tenant that asks for less than its share must not wait
behind a flood for each cluster as if it had asked for all of its share before.
What a request is expected to cost is charged on dispatch and corrected, up or down, when its real cost is known.

Bound: let f and g be backlogged from t1 to t2. Then the real costs of what f and g were granted in that time, each
divided by the tenant's weight, differ by at most 2·U + 2·E + B + O, where

- U is the largest real cost of one request of theirs over its weight;
- E is the largest sum of errors (real minus charged, over weight) of a tenant's uncorrected requests at any time, less
  the smallest of any tenant's. With exact expectations it is 0; without any it is at most what runs at once, as in
  VTC. What runs on a credit is an error in full until its use is told;
- B is what the two had not used of their bursts at t1 (`Flow.burst`): at most the way that the level went in
  `burst_seconds`, and 0 from when they are used up;
- O is what was granted, over weight, to those who overtook f or g since each is backlogged: requests further behind in
  order, because the first had no room on the worker, or would have been too late there (`Selection`).

For while nobody overtakes, only the one with the smaller counter is served, so a difference beyond where they began
comes of one request on each side and of errors. Proven by tests/unit/admission/test_fair_queue.py; `weir simulate`
ends with an error where it is passed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from services.admission.policy.levels import Levels
from services.admission.policy.model import Request
from services.admission.policy.service_curve import ServiceCurve

_MANY = 128  # tenants, from which on what serves them is summed up by a curve instead of one by one

Lane = tuple[bool, str, tuple[str, ...]]
"""Is it new (not resumed), its model version, its zones: requests of a lane look for room on the same workers."""
_Place = tuple[float, int, "Flow"]
"""Counter, `since`, which is unique, and whose they are."""
_SAMPLES = 8  # of the levels, in the time of a burst


@dataclass(slots=True, eq=False)
class Item:
    """A waiting request."""

    request: Request
    cost: float  # expected
    order: int
    queued_at: float
    expires_at: float  # the earliest of deadline, TTL and the last moment for its TTFT target
    limit: str = (
        "queue"  # which of them: "deadline", "queue", "ttft_target"; or what kept it: "workers", "version_share"
    )
    predicted_wait: float | None = None  # as told when it came
    predicted_first_token: float = 0.0  # likewise, the wait included
    urgent: bool = False  # it will be too late unless less urgent work is interrupted
    bypassed: int = 0  # grants given to later requests on workers that this one could use


class Flow:
    """A tenant's waiting requests and its counter.

    Requests wait in one lane per model version and zones, so that a version whose workers are full does not hold up
    the tenant's requests for others. Resumed requests wait in lanes of their own, which go first: their work so far is
    lost if they do not come back soon.
    """

    __slots__ = ("backlog", "counter", "entered", "lanes", "parked", "since", "size", "tenant", "weight")

    def __init__(self, tenant: str, since: int) -> None:
        self.tenant = tenant
        self.since = since  # order of the request that made it backlogged
        self.counter = 0.0
        self.entered = 0.0  # the level when it became backlogged; with a burst its counter began below
        self.weight = 1.0
        self.lanes: dict[Lane, OrderedDict[str, Item]] = {}
        self.parked: set[Lane] = set()  # lanes that are passed over until something changes
        self.size = 0
        self.backlog = 0.0  # cost units waiting

    @property
    def burst(self) -> float:
        """How far its counter is below the level at which it began to wait."""
        return max(0.0, self.entered - self.counter)

    def heads(self) -> list[Item]:
        """The oldest of each lane: resumed ones first, then by age."""
        if len(self.lanes) == 1:
            (lane,) = self.lanes.values()
            return [next(iter(lane.values()))]
        heads = [(lane[0], self.head(lane)) for lane in self.lanes]
        heads.sort(key=lambda head: (head[0], head[1].order))
        return [item for _, item in heads]

    def head(self, lane: Lane) -> Item:
        """The oldest of a lane, which must have one."""
        return next(iter(self.lanes[lane].values()))

    def items(self) -> Iterator[Item]:
        """All of them, resumed ones first."""
        for key in sorted(self.lanes):
            yield from self.lanes[key].values()

    def newest(self) -> Item:
        """The request that came last; a resumed one only when there is no other."""
        new = not self.all_resumed
        lasts = [next(reversed(lane.values())) for key, lane in self.lanes.items() if key[0] == new]
        return max(lasts, key=lambda item: item.order)

    @property
    def all_resumed(self) -> bool:
        """Only resumed requests wait."""
        return not any(lane[0] for lane in self.lanes)


class FairQueue:
    """The waiting requests of one class.

    Memory: one `Flow` per tenant that waits, plus the counters of at most `max_idle` tenants that do not.
    """

    def __init__(self, *, max_idle: int = 10_000, by_tenant: bool = True, burst_seconds: float = 0.0) -> None:
        """Without `by_tenant` all are one flow, in order of arrival: the plain queue to compare with. Bursts want
        `tick`."""
        self._by_tenant = by_tenant
        self._flows: dict[str, Flow] = {}  # backlogged
        self._order: list[_Place] = []  # the same, by counter
        self._lanes: dict[Lane, list[_Place]] = {}  # likewise, those that have something in the lane, not parked
        self._curve: ServiceCurve | None = None  # only while many wait
        self._moved: dict[int, Flow] = {}  # by `since`: what the curve does not know yet
        self._idle: OrderedDict[str, float] = OrderedDict()  # counters that are still above the present level
        self._items: dict[str, Item] = {}
        self._levels = Levels()
        self._burst_seconds = burst_seconds
        self._past: deque[tuple[float, Levels]] = deque()  # the oldest is that of `burst_seconds` ago
        self._max_idle = max_idle
        self.backlog = 0.0
        """Cost units waiting in all."""

    def __len__(self) -> int:
        return len(self._items)

    def tick(self, now: float) -> None:
        """Time goes on, in seconds; call it several times in `burst_seconds`."""
        past, seconds = self._past, self._burst_seconds
        if seconds and (not past or now >= past[-1][0] + seconds / _SAMPLES):
            past.append((now, self._levels.copy()))
            while len(past) > 1 and past[1][0] <= now - seconds:
                past.popleft()

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Each tenant of which requests wait, and how many; a plain queue has one, whose name is empty."""
        return ((flow.tenant, flow.size) for flow in self._flows.values())

    def size_of(self, tenant: str) -> int:
        """How many requests of the tenant wait."""
        flow = self._flows.get(self._key(tenant))
        return flow.size if flow else 0

    def flow(self, tenant: str) -> Flow | None:
        """What waits of the tenant's."""
        return self._flows.get(self._key(tenant))

    def level_of(self, tenant: str, version: str = "") -> float:
        """The counter at which the tenant's next request for the version would be served."""
        key = self._key(tenant)
        flow = self._flows.get(key)
        return flow.counter if flow is not None else self._start_of(key, version)

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
        key = self._key(request.tenant)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._activate(key, request.model_version, item.order)
        flow.weight = request.weight
        lane = self._lane(request)
        if lane not in flow.lanes:
            flow.lanes[lane] = OrderedDict()
            insort(self._lanes.setdefault(lane, []), (flow.counter, flow.since, flow))
        flow.lanes[lane][request.request_id] = item
        flow.size += 1
        flow.backlog += item.cost
        self.backlog += item.cost
        self._items[request.request_id] = item
        self._moved[flow.since] = flow

    def remove(self, request_id: str) -> Item | None:
        """Takes a request out without charging it; None when it does not wait."""
        item = self._items.pop(request_id, None)
        if item is None:
            return None
        flow = self._flows[self._key(item.request.tenant)]
        lane = self._lane(item.request)
        if lane in flow.parked:
            self._unpark(flow)  # the next may need less
        del flow.lanes[lane][request_id]
        if not flow.lanes[lane]:
            self._take_from(lane, flow)
            del flow.lanes[lane]
        flow.size -= 1
        flow.backlog -= item.cost
        self.backlog -= item.cost
        self._moved[flow.since] = flow
        if not flow.size:
            del self._flows[flow.tenant]
            del self._order[self._place(self._order, flow)]
            self._remember(flow.tenant, flow.counter)
        if not self._items:
            self.backlog = 0.0  # rounding must not add up over days
            self._curve = None
            self._moved.clear()
        return item

    def dispatch(self, request_id: str) -> Item:
        """Takes a request out and charges its tenant.

        :raises KeyError: it does not wait.
        """
        item = self._items[request_id]
        flow = self._flows[self._key(item.request.tenant)]
        self._levels.served(max(flow.counter, flow.entered), item.request.model_version)
        self._move(flow, flow.counter + item.cost / item.request.weight)
        self.remove(request_id)
        return item

    def charge(self, tenant: str, weight: float, cost: float, version: str = "") -> None:
        """Charges a request for the version that was served without waiting, so that it counts when its tenant has to
        wait."""
        key = self._key(tenant)
        flow = self._flows.get(key)
        if flow is not None:
            self._move(flow, flow.counter + cost / weight)
            return
        start = self.level_of(tenant, version)
        if not self._flows:
            self._levels.served(max(start, self._levels.at(version)), version)
        self._remember(key, start + cost / weight)

    def correct(self, tenant: str, weight: float, difference: float) -> None:
        """Adds real cost minus charged cost. An idle tenant's refund never becomes credit: see `_activate`."""
        key = self._key(tenant)
        flow = self._flows.get(key)
        if flow is not None:
            self._move(flow, flow.counter + difference / weight)
        elif key in self._idle or difference > 0.0:
            self._remember(key, self._idle.get(key, self._lowest()) + difference / weight)

    def park(self, item: Item) -> None:
        """A waiting request is at the head of its tenant's lane and kept out by the tenant's own KV budget: the lane is
        passed over until `unpark`."""
        flow, lane = self._flows[self._key(item.request.tenant)], self._lane(item.request)
        if lane not in flow.parked:
            self._take_from(lane, flow)
            flow.parked.add(lane)

    def unpark(self, tenant: str | None = None) -> None:
        """The tenant's lanes, or everybody's, are looked at again. Nobody is owed what he could not take meanwhile."""
        flows = self._flows.values() if tenant is None else (self.flow(tenant),)
        for flow in flows:
            if flow is not None and flow.parked:
                self._unpark(flow)

    def served_until(self, level: float, *, besides: Flow | None) -> float:
        """Cost units that bring all counters but that of `besides` up to this level: of each at most its backlog, and
        one request more than what fits exactly."""
        if len(self._order) <= (_MANY if self._curve is None else _MANY // 2):
            self._curve = None
            self._moved.clear()
            served = self._one_by_one(level)
        else:
            served = self._by_curve(level)
        if besides is not None and besides.counter <= level:
            fits = (level - besides.counter) * besides.weight
            served -= min(besides.backlog, fits + besides.backlog / besides.size)
        return served if served > 0.0 else 0.0

    def in_order(self) -> Iterator[Flow]:
        """Backlogged tenants, the least served first; between equals whoever came first. Start anew after changes."""
        return (flow for _, _, flow in self._order)

    def heads(self, wanted: Callable[[Lane], bool], depth: int | None = None) -> Iterator[Item]:
        """The oldest of each tenant in each wanted lane, the least served tenant's first; of each lane at most the
        first `depth`. Start anew after changes."""
        lanes = [self._heads_of(lane, depth) for lane in self._lanes if wanted(lane)]
        return (head for _, head in (lanes[0] if len(lanes) == 1 else merge(*lanes)))

    def _heads_of(self, lane: Lane, depth: int | None) -> Iterator[tuple[tuple[float, int, bool, int], Item]]:
        for counter, since, flow in islice(self._lanes[lane], depth):
            head = flow.head(lane)
            yield (counter, since, lane[0], head.order), head

    def _one_by_one(self, level: float) -> float:
        served = 0.0
        for counter, _, flow in self._order:
            if counter > level:
                break
            fits, backlog = (level - counter) * flow.weight, flow.backlog
            if fits < backlog:
                fits += backlog / flow.size
            served += backlog if backlog < fits else fits
        return served

    def _by_curve(self, level: float) -> float:
        if self._curve is None:
            self._curve = ServiceCurve()
            self._moved = {flow.since: flow for flow in self._flows.values()}
        for since, flow in self._moved.items():
            if flow.size:
                self._curve.put(since, counter=flow.counter, weight=flow.weight, backlog=flow.backlog, size=flow.size)
            else:
                self._curve.drop(since)
        self._moved.clear()
        return self._curve.at(level)

    def _key(self, tenant: str) -> str:
        return tenant if self._by_tenant else ""

    def _lane(self, request: Request) -> Lane:
        return not (self._by_tenant and request.resumed_tokens), request.model_version, request.zones

    def _start_of(self, key: str, version: str) -> float:
        """Where a tenant begins that has nothing waiting."""
        return max(min(self._levels.at(version), self._before.at(version)), self._idle.get(key, 0.0))

    def _lowest(self) -> float:
        """Nobody begins below."""
        return min(self._levels.lowest(), self._before.lowest())

    @property
    def _before(self) -> Levels:
        """The levels of a burst ago."""
        return self._past[0][1] if self._past else self._levels

    def _activate(self, key: str, version: str, since: int) -> Flow:
        flow = Flow(key, since)
        flow.counter = self._start_of(key, version)
        flow.entered = self._levels.at(version)
        self._idle.pop(key, None)
        self._flows[key] = flow
        insort(self._order, (flow.counter, flow.since, flow))
        return flow

    def _move(self, flow: Flow, counter: float) -> None:
        orders = [self._order, *(self._lanes[lane] for lane in flow.lanes if lane not in flow.parked)]
        for order in orders:
            del order[self._place(order, flow)]
            insort(order, (counter, flow.since, flow))
        flow.counter = counter
        self._moved[flow.since] = flow

    def _unpark(self, flow: Flow) -> None:
        level = min(self._levels.at(lane[1]) for lane in flow.parked)
        for lane in flow.parked:
            insort(self._lanes.setdefault(lane, []), (flow.counter, flow.since, flow))
        flow.parked.clear()
        if flow.counter < level:
            self._move(flow, level)

    def _take_from(self, lane: Lane, flow: Flow) -> None:
        order = self._lanes[lane]
        del order[self._place(order, flow)]
        if not order:
            del self._lanes[lane]

    @staticmethod
    def _place(order: list[_Place], flow: Flow) -> int:
        return bisect_left(order, (flow.counter, flow.since))  # type: ignore[type-var]

    def _remember(self, key: str, counter: float) -> None:
        """Keeps an idle tenant's counter while it says more than where all begin."""
        self._idle.pop(key, None)
        if counter > self._lowest():
            self._idle[key] = counter
            if len(self._idle) > self._max_idle:
                self._idle.popitem(last=False)
