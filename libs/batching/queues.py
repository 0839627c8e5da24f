"""Who is served next among tenants that share an executor: start-time fair queuing by what their work costs. Pure."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any

FLOOD = 1.4
"""Times its share of all that waits; whoever waits with more floods the others."""
SKIPS = 8
"""Tenants who may be passed over in filling one batch, because their next item would not fit."""

_order = count()


@dataclass(slots=True, eq=False)
class Item:
    """One request, or what is left of it.

    :param key: what must be equal in a batch: dtypes, the shape without its rows, the outputs asked for.
    :param rank: its class, 0 before 1: no class waits behind a later one.
    :param deadline: by the caller's clock of `now`, seconds; the answer must have left the batcher's process by then.
    :param rows: what it costs, at least 1.
    """

    tenant: str
    key: Hashable
    rows: int
    deadline: float
    payload: Any
    rank: int = 0
    weight: float = 1.0
    arrived: float = 0.0
    crashes: int = 0
    queued: bool = field(default=False, repr=False)
    left: bool = field(default=False, repr=False)


class Shares:
    """The virtual time of one class, over all its queues: a tenant's service in one shape counts in all.

    A tenant who waits has a start tag, which grows by what its items cost; the virtual time is the least of them: who
    is overtaken keeps its turn, and who comes anew begins where the others are.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.weight = 0.0
        self.spared_until = 0.0  # batches of a flood are short until then
        self._virtual = 0.0
        self._waiting: dict[str, tuple[int, float]] = {}  # rows, weight
        self._tags: dict[str, float] = {}  # of who waits, or was served beyond the virtual time
        self._order: list[tuple[float, str]] = []
        self._ordered: set[str] = set()

    def tag(self, tenant: str) -> float:
        """The start tag of the tenant's next item; it only grows."""
        return self._tags[tenant]

    def served(self, item: Item, cost: float) -> None:
        """The item, which waits, starts; `cost` in seconds of an executor."""
        tag = self._tags[item.tenant]
        self._tags[item.tenant] = tag + cost / item.weight
        self._virtual = max(self._virtual, min(tag, self._least()))

    def ahead(self, item: Item) -> float:
        """Rows that are served before an item that comes now: its tenant's own, and of others by weight as many."""
        rows, weight = self._waiting.get(item.tenant, (0, 0.0))
        others = self.weight - weight
        return min(float(self.rows), rows + (rows + item.rows) * others / item.weight)

    def is_light(self, tenant: str, rows: int) -> bool:
        """What the tenant waits with is no more than its share of so many rows."""
        waiting, weight = self._waiting.get(tenant, (0, 0.0))
        return waiting * self.weight <= rows * weight

    def is_flooded(self, rows: int) -> bool:
        """Somebody waits with more than so many rows, and with much more than their share of what waits."""
        most = FLOOD * self.rows / self.weight if self.rows > rows else math.inf
        return any(waiting > rows and waiting > most * weight for waiting, weight in self._waiting.values())

    def level(self, item: Item) -> float:
        """Rows per weight that the item's tenant would wait with, were the item among them."""
        return (self._waiting.get(item.tenant, (0, 0.0))[0] + item.rows) / item.weight

    def above(self, level: float) -> float:
        """Rows beyond so many per weight that tenants wait with."""
        return sum(max(0.0, rows - level * weight) for rows, weight in self._waiting.values())

    def fullest(self) -> str:
        """The tenant who waits with most rows per weight; somebody must wait."""
        return max(self._waiting, key=lambda tenant: self._waiting[tenant][0] / self._waiting[tenant][1])

    def came(self, item: Item) -> None:
        """The item waits."""
        rows, weight = self._waiting.get(item.tenant, (0, 0.0))
        if not rows:
            tag = self._tags[item.tenant] = max(self._virtual, self._tags.get(item.tenant, 0.0))
            if item.tenant not in self._ordered:
                self._ordered.add(item.tenant)
                heapq.heappush(self._order, (tag, item.tenant))
        self._waiting[item.tenant] = (rows + item.rows, item.weight)
        self.rows += item.rows
        self.weight += item.weight - weight

    def went(self, item: Item) -> None:
        """The item no longer waits, for whatever reason."""
        rows, weight = self._waiting.pop(item.tenant)
        self.rows -= item.rows
        if rows > item.rows:
            self._waiting[item.tenant] = (rows - item.rows, weight)
            return
        self.weight = self.weight - weight if self._waiting else 0.0
        if self._tags[item.tenant] <= self._virtual:
            del self._tags[item.tenant]

    def forget(self) -> None:
        """Nobody waits or runs: who was served before is even with whoever comes."""
        self._tags.clear()
        self._order.clear()
        self._ordered.clear()
        self._virtual = 0.0

    def _least(self) -> float:
        while self._order:
            tag, tenant = self._order[0]
            if tenant not in self._waiting:
                heapq.heappop(self._order)
                self._ordered.discard(tenant)
            elif self._tags[tenant] > tag:
                heapq.heapreplace(self._order, (self._tags[tenant], tenant))
            else:
                return tag
        return math.inf


class Verdict(Enum):
    """What becomes of an item whose turn it is."""

    TAKE = auto()
    SKIP = auto()
    LATE = auto()
    FULL = auto()


class Queue:
    """Items of one class that may share a batch, by tenant."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._lines: dict[str, deque[Item]] = {}
        self._heads: list[tuple[float, int, str]] = []  # tags only grow, so one that is old is at worst too small
        self._deadlines: list[tuple[float, int, Item]] = []
        self._gone = 0
        self.rows = 0
        self._arrivals = Arrivals()

    @property
    def rate(self) -> float:
        """Rows that come per second."""
        return self._arrivals.rate

    def push(self, item: Item, now: float) -> None:
        """The item waits here."""
        if self._gone > 64 and self._gone > 2 * len(self._deadlines) // 3:
            self._compact()
        item.arrived, item.queued = now, True
        self._shares.came(item)
        self._place(item)
        self.rows += item.rows
        self._arrivals.count(item.rows, now)

    def drop(self, item: Item) -> None:
        """The item does not wait any more. What lines and heaps have of it goes as it comes up, or with others'."""
        item.queued = False
        self.rows -= item.rows
        self._shares.went(item)
        self._gone += 1

    def soonest(self) -> Item | None:
        """Who must be answered first."""
        while self._deadlines and not self._deadlines[0][2].queued:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][2] if self._deadlines else None

    def newest(self, tenant: str) -> Item | None:
        """The tenant's item that came last of those that wait here."""
        line = self._lines.get(tenant)
        while line and not line[-1].queued:
            line.pop()
        return line[-1] if line else None

    def tag(self) -> float:
        """The least start tag; infinite when nobody waits."""
        head = self._head()
        return math.inf if head is None else self._shares.tag(head)

    def fill(self, judge: Callable[[Item], Verdict], cost: Callable[[Item], float]) -> tuple[list[Item], list[Item]]:
        """Go through the items in fair order and take out what `judge` says: (taken, late). Of a tenant whose item is
        skipped nothing more is taken, and after `SKIPS` of them the rest waits.
        """
        taken: list[Item] = []
        late: list[Item] = []
        skipped: list[tuple[float, int, str]] = []
        while len(skipped) < SKIPS and (tenant := self._head()) is not None:
            item = self._lines[tenant][0]
            match judge(item):
                case Verdict.TAKE:
                    taken.append(item)
                    self._shares.served(item, cost(item))
                    self.drop(item)
                case Verdict.LATE:
                    late.append(item)
                    self.drop(item)
                case Verdict.SKIP:
                    skipped.append(heapq.heappop(self._heads))
                case Verdict.FULL:
                    break
        for entry in skipped:
            heapq.heappush(self._heads, entry)
        return taken, late

    def _place(self, item: Item) -> None:
        line = self._lines.get(item.tenant)
        if line is None:
            line = self._lines[item.tenant] = deque()
            heapq.heappush(self._heads, (self._shares.tag(item.tenant), next(_order), item.tenant))
        line.append(item)
        heapq.heappush(self._deadlines, (item.deadline, next(_order), item))

    def _head(self) -> str | None:
        while self._heads:
            tag, order, tenant = self._heads[0]
            line = self._lines[tenant]
            while line and not line[0].queued:
                line.popleft()
            if not line:
                heapq.heappop(self._heads)
                del self._lines[tenant]
                continue
            true = self._shares.tag(tenant)  # it waits, here at least
            if true <= tag:
                return tenant
            heapq.heapreplace(self._heads, (true, order, tenant))
        return None

    def _compact(self) -> None:
        """Callers who come and leave again must not fill the memory until their deadlines."""
        waiting = [item for line in self._lines.values() for item in line if item.queued]
        self._lines, self._heads, self._deadlines, self._gone = {}, [], [], 0
        for item in waiting:
            self._place(item)


class Arrivals:
    """Rows per second, smoothed over about twenty arrivals and not known before so many came."""

    def __init__(self) -> None:
        self._gap = self._rows = 0.0
        self._seen = 0
        self._last: float | None = None

    def count(self, rows: int, now: float) -> None:
        """So many came."""
        if self._last is None:
            self._rows = rows
        else:
            gap = max(now - self._last, 0.0)
            self._gap = gap if not self._gap else self._gap + 0.05 * (gap - self._gap)
            self._rows += 0.05 * (rows - self._rows)
        self._last = now
        self._seen += 1

    @property
    def rate(self) -> float:
        """Zero while it is not known."""
        return self._rows / self._gap if self._gap > 0 and self._seen >= 20 else 0.0
