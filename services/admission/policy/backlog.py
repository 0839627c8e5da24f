"""All that waits in one pool: a fair queue per class, bounded, each class before the next but for a reserved share."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from services.admission.policy.fair_queue import FairQueue, Flow, Item, Lane
from services.admission.policy.limits import Limits
from services.admission.policy.model import QUEUED_CLASSES, QueueClass, Request


class Backlog:
    """Bounded waiting room.

    Order: classes strictly, except that classes which wait behind another one earn `reserved_share` of the cost
    granted to it, in equal parts, and go first with their next request once they have earned its cost. So no class
    starves, and a class loses at most that share (and one request of each lower class) to those below it.

    Shedding order: from the last class to the first, there the longest queue's newest request, resumed ones last.

    Discipline "fifo": one queue in order of arrival (per model version), without classes, shares and shedding.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._fair = limits.discipline == "fair"
        if self._fair:
            # Batch work is in no hurry; served in bursts, a tenth less of it came through.
            bursts = dict.fromkeys(QUEUED_CLASSES, limits.burst_seconds) | {QueueClass.BATCH: 0.0}
            self.queues = {each: FairQueue(burst_seconds=seconds) for each, seconds in bursts.items()}
        else:
            self.queues = {QueueClass.PAID: FairQueue(by_tenant=False)}
        self._items: dict[str, Item] = {}
        self._order = 0
        self._expiries: list[tuple[float, int, Item]] = []
        self._earned = dict.fromkeys(self.queues, 0.0)  # cost that a class may be granted before higher ones

    def __len__(self) -> int:
        return len(self._items)

    def tick(self, now: float) -> None:
        """Time goes on."""
        for queue in self.queues.values():
            queue.tick(now)

    def queue_of(self, request: Request) -> FairQueue:
        """Where the request waits, or would."""
        return self.queues[request.queue_class if self._fair else QueueClass.PAID]

    def find(self, request_id: str) -> Item | None:
        """The waiting request of this id."""
        return self._items.get(request_id)

    def room_for(self, request: Request) -> str:
        """The bound that keeps the request out ("queue_per_tenant", "queue_per_class", "queue"); empty when there is
        room. Resumed requests always have room: they are as few as what ran.

        With classes, the bound on all together is kept by `push`.
        """
        if not self._fair:
            return "queue" if len(self._items) >= self._limits.max_queued else ""
        if request.resumed_tokens:
            return ""
        queue = self.queues[request.queue_class]
        if queue.size_of(request.tenant) >= self._limits.max_per_tenant:
            return "queue_per_tenant"
        if len(queue) >= self._limits.max_per_class:
            return "queue_per_class"
        return ""

    def push(
        self, request: Request, now: float, *, cost: float, leave_by: float = float("inf")
    ) -> tuple[Item, Item | None]:
        """Takes a request of this expected cost in; returns it and, when all is full, the one shed for it, which may
        be itself. It leaves at `leave_by` (its TTFT target could not be met later), if not for other reasons before.
        """
        self._order += 1
        limits = self._limits
        expires_at, limit = request.deadline - limits.return_margin, "deadline"
        if self._fair:
            ttl = now + limits.ttl(request.queue_class)
            if ttl < expires_at and not request.resumed_tokens:
                expires_at, limit = ttl, "queue"
            if leave_by < expires_at:
                expires_at, limit = leave_by, "ttft_target"
        item = Item(request, cost, self._order, now, expires_at, limit)
        self.queue_of(request).push(item)
        self._items[request.request_id] = item
        heapq.heappush(self._expiries, (expires_at, item.order, item))
        if len(self._expiries) > 2 * len(self._items) + 64:
            self._expiries = [entry for entry in self._expiries if self._waits(entry[2])]
            heapq.heapify(self._expiries)
        return item, self._shed() if len(self._items) > limits.max_queued else None

    def remove(self, request_id: str) -> Item | None:
        """Takes a request out without charging its tenant; None when it does not wait."""
        item = self._items.pop(request_id, None)
        if item is not None:
            self._left(item, self.queue_of(item.request).remove(request_id))
        return item

    def dispatch(self, item: Item) -> None:
        """Takes a request out and charges its tenant, and its class if that went before its turn."""
        del self._items[item.request.request_id]
        queue = self.queue_of(item.request)
        queue.dispatch(item.request.request_id)
        if self._fair:
            self._account(item)
        self._left(item, item)

    def expired(self, now: float) -> list[Item]:
        """Takes out what has waited too long."""
        gone = []
        while self._expiries and self._expiries[0][0] <= now:
            item = heapq.heappop(self._expiries)[2]
            if self._waits(item):
                self.remove(item.request.request_id)
                gone.append(item)
        return gone

    def clear(self) -> list[Item]:
        """Takes out all that waits, in order of arrival."""
        items = list(self._items.values())
        for item in items:
            self.remove(item.request.request_id)
        return items

    def in_order(self, wanted: Callable[[Lane], bool] = lambda _: True, depth: int | None = None) -> Iterator[Item]:
        """Candidates for the next grant, best first: classes in order (those first that earned it), in each the
        least served tenant, of each tenant the oldest request of each wanted lane. Of each lane at most the first
        `depth`, of each class for itself. Start anew after any change."""
        early = [each for each, earned in self._earned.items() if earned > 0.0 and earned >= self._head_cost(each)]
        later = [each for each, queue in self.queues.items() if len(queue) and each not in early]
        for queue_class in early + later:
            yield from self.queues[queue_class].heads(wanted, depth)

    def park(self, item: Item) -> None:
        """Its tenant's KV budget keeps it out: see `FairQueue.park`."""
        self.queue_of(item.request).park(item)

    def unpark(self, tenant: str | None = None) -> None:
        """The tenant (None: anybody) may have more of its KV budget left."""
        for queue in self.queues.values():
            queue.unpark(tenant)

    def waiting(self) -> Iterator[Item]:
        """All that waits, by class and within it by tenant, the least served first."""
        for queue in self.queues.values():
            for flow in queue.in_order():
                yield from flow.items()

    def higher(self, queue_class: QueueClass) -> list[FairQueue]:
        """The queues that are served before this class."""
        return [queue for other, queue in self.queues.items() if other < queue_class]

    def _head_cost(self, queue_class: QueueClass) -> float:
        """What the class's next request would cost the pool; it must have one."""
        return self._work(next(self.queues[queue_class].in_order()).heads()[0])

    def _work(self, item: Item) -> float:
        """What a grant costs the pool: a resumed request's tenant does not pay for its prompt again, its class does."""
        again = item.request.prompt_tokens if item.request.resumed_tokens else 0
        return item.cost + self._limits.input_cost * again

    def _waits(self, item: Item) -> bool:
        return self._items.get(item.request.request_id) is item

    def _account(self, item: Item) -> None:
        """The classes below earn their share of this grant; a class that went before a higher one spends."""
        own, work = item.request.queue_class, self._work(item)
        if not any(len(queue) for each, queue in self.queues.items() if each < own):
            lower = [each for each, queue in self.queues.items() if each > own and len(queue)]
            for each in lower:
                # Enough for two requests is enough, or a class that found no room would hold up the others later.
                if self._earned[each] < 2 * self._head_cost(each):
                    self._earned[each] += self._limits.reserved_share * work / len(lower)
        self._earned[own] = max(0.0, self._earned[own] - work)

    def _left(self, item: Item, removed: Item | None) -> None:
        """What a class earned while it waited ends with its waiting."""
        if removed is not None and not len(self.queue_of(item.request)):
            queue_class = item.request.queue_class if self._fair else QueueClass.PAID
            self._earned[queue_class] = 0.0

    def _shed(self) -> Item | None:
        for queue_class in reversed(QUEUED_CLASSES):
            queue = self.queues[queue_class]
            if len(queue):
                longest = max(queue.flows(), key=_to_shed)
                return self.remove(longest.newest().request.request_id)
        return None


def _to_shed(flow: Flow) -> tuple[bool, float, str]:
    return not flow.all_resumed, flow.backlog / flow.weight, flow.tenant
