"""All that waits in one pool: a fair queue per class, bounded, each class before the next."""

from __future__ import annotations

from collections.abc import Iterator

from services.admission.policy.fair_queue import FairQueue, Flow, Item
from services.admission.policy.model import Limits, QueueClass, Request


class Backlog:
    """Bounded waiting room. Shedding order: from the last class to the first, there the longest queue's newest."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.queues = {queue_class: FairQueue() for queue_class in QueueClass}
        self._items: dict[str, Item] = {}
        self._order = 0
        self._next_expiry = float("inf")

    def __len__(self) -> int:
        return len(self._items)

    def find(self, request_id: str) -> Item | None:
        """The waiting request of this id."""
        return self._items.get(request_id)

    def room_for(self, request: Request) -> str:
        """The bound that keeps the request out ("queue_per_tenant", "queue_per_class"); empty when there is room.

        The bound on all classes together is kept by `push`.
        """
        queue = self.queues[request.queue_class]
        if queue.size_of(request.tenant) >= self._limits.max_per_tenant:
            return "queue_per_tenant"
        if len(queue) >= self._limits.max_per_class:
            return "queue_per_class"
        return ""

    def push(self, request: Request, now: float) -> tuple[Item, Item | None]:
        """Takes a request in; returns it and, when all is full, the one shed for it, which may be itself."""
        self._order += 1
        limits = self._limits
        item = Item(
            request=request,
            cost=limits.cost_of(request),
            order=self._order,
            queued_at=now,
            expires_at=min(now + limits.ttl[request.queue_class], request.deadline - limits.return_margin),
        )
        self.queues[request.queue_class].push(item)
        self._items[request.request_id] = item
        self._next_expiry = min(self._next_expiry, item.expires_at)
        return item, self._shed() if len(self._items) > limits.max_queued else None

    def remove(self, request_id: str) -> Item | None:
        """Takes a request out without charging its tenant; None when it does not wait."""
        item = self._items.pop(request_id, None)
        if item is not None:
            self.queues[item.request.queue_class].remove(request_id)
        return item

    def dispatch(self, item: Item) -> None:
        """Takes a request out and charges its tenant."""
        del self._items[item.request.request_id]
        self.queues[item.request.queue_class].dispatch(item.request.request_id)

    def expired(self, now: float) -> list[Item]:
        """Takes out what has waited too long."""
        if now < self._next_expiry:
            return []
        gone = [item for item in self._items.values() if item.expires_at <= now]
        for item in gone:
            self.remove(item.request.request_id)
        self._next_expiry = min((item.expires_at for item in self._items.values()), default=float("inf"))
        return gone

    def clear(self) -> list[Item]:
        """Takes out all that waits, in order of arrival."""
        items = list(self._items.values())
        for item in items:
            self.remove(item.request.request_id)
        return items

    def in_order(self) -> Iterator[Item]:
        """Candidates for the next grant, best first: classes in order, in each the least served tenant, of each
        tenant the oldest request per model version. Start anew after any change."""
        for queue in self.queues.values():
            if len(queue):
                for flow in queue.in_order():
                    yield from flow.heads()

    def higher(self, queue_class: QueueClass) -> list[FairQueue]:
        """The queues that are served before this class."""
        return [queue for other, queue in self.queues.items() if other < queue_class]

    def _shed(self) -> Item | None:
        for queue_class in reversed(QueueClass):
            queue = self.queues[queue_class]
            if len(queue):
                longest = max(queue.flows(), key=_backlog_per_weight)
                return self.remove(longest.newest().request.request_id)
        return None


def _backlog_per_weight(flow: Flow) -> tuple[float, str]:
    return flow.backlog / flow.weight, flow.tenant
