"""When the executors of one model version run what. Pure: every method gets the time, in seconds of any one clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from libs.batching.cost import CostModel
from libs.batching.queues import Item, Queue, Shares, Verdict

UTILISATION = 0.7
"""ρ*: batches are made as small as they can be while executors are busy for no more than this share of the time."""
LEAD = 4.0
"""By how many full batches' seconds a tenant may be ahead of its fair turn because its deadline is nearer."""
BESIDE = 1.25
"""By how much a batch may last longer than the rows of those within their shares, for a flood's rows beside them."""
EFFICIENCY = 0.7
"""Rows per second of a flood's own batches, as a share of those of full ones: they are short while others come and
would wait for their end. What is lost is the flood's."""
SPARED = 20.0
"""Full batches' time for which a flood's batches stay short after a tenant within its share was served."""
IDLE_QUEUES = 64
"""Shapes whose rate of arrival is remembered while nobody waits for them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much runs and waits.

    :param slots: executors.
    :param max_rows: of one batch; a larger item runs by itself.
    :param queue_rows: that wait at most, over all classes; who has them when they are full, see `Batcher.offer`.
    :param way_back: ε, seconds that an answer needs from an executor to its caller.
    :param longest_wait: W_max, seconds for which an item may be held back so that others join it.
    """

    slots: int = 1
    max_rows: int = 64
    queue_rows: int = 4096
    way_back: float = 0.001
    longest_wait: float = 0.005


class Late(Exception):
    """The item would not be in time, or there is no room for it.

    :ivar retry_after: seconds after which one like it would have been; None when it never would have.
    :ivar waited: it had a place, and lost it; else it never had one.
    """

    def __init__(self, *, full: bool, retry_after: float | None, waited: bool = False) -> None:
        super().__init__("the queue is full" if full else "it would not be in time")
        self.full = full
        self.retry_after = retry_after
        self.waited = waited


@dataclass(slots=True, eq=False)
class Batch:
    """Items that run together."""

    items: list[Item]
    started: float = 0.0
    expected_end: float = 0.0
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = sum(item.rows for item in self.items)


class Batcher:
    """The waiting and running work of one model version.

    :ivar free_at: before this no executor is there to run anything; 0: some are. Set by who has the executors.
    :ivar wake_at: when to call `take` again although nothing happened; infinite when only an arrival or an end can
        change anything. Set by `take`.
    """

    def __init__(self, cost: CostModel, limits: Limits) -> None:
        self.cost = cost
        self.limits = limits
        self.free_at = 0.0
        self.wake_at = math.inf
        self._classes: dict[int, tuple[Shares, dict[object, Queue]]] = {}
        self._again: deque[Batch] = deque()
        self._running: set[Batch] = set()
        self._late: list[Item] = []

    @property
    def rows(self) -> int:
        """That wait."""
        return sum(shares.rows for shares, _ in self._classes.values())

    @property
    def running(self) -> int:
        """Batches that run."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Nobody waits, nothing runs or is to run again, everyone was told."""
        return not (self.rows or self._running or self._again or self._late)

    @property
    def full_seconds(self) -> float:
        """That a full queue takes to run."""
        return self.cost.mean(self.limits.queue_rows) / self.limits.slots

    def offer(self, item: Item, now: float) -> list[Item]:
        """The item waits for its turn. Returns who waits no more so that it has room, to be told at once.

        A full queue is shared as executors are: places go from later classes to earlier ones, and within a class from
        whoever waits with most rows by weight to who has less. So nobody is refused a place while what they wait with
        is within their share, by weight among those who wait, of the rows that earlier classes leave.

        :raises Late: there is no room, or it would not be in time.
        """
        missing = self._missing(item)
        if missing > 0 and not self._can_free(missing, item):
            raise Late(full=True, retry_after=self.full_seconds)
        if not self._idle(now):  # an idle executor tries whatever is not over yet, so that a bad estimate is found out
            late = self._end(item, now) + self.limits.way_back - item.deadline
            if late > 0:
                hopeless = now + self.cost.tail(item.rows) + self.limits.way_back > item.deadline
                raise Late(full=False, retry_after=None if hopeless else late)
        elif now >= item.deadline:
            raise Late(full=False, retry_after=None)
        evicted: list[Item] = []
        while self._missing(item) > 0:
            evicted.append(self._evicted())
        self._queue(item).push(item, now)
        return evicted

    def cancel(self, item: Item) -> None:
        """Its caller left. What runs runs to its end, and is not tried again."""
        item.left = True
        if item.queued:
            self._queue(item).drop(item)

    def expired(self, now: float) -> list[Item]:
        """Those who must be told now that their time is over, whether or not an executor is free; each once."""
        over, self._late = self._late, []
        for _, _, queue in self._queues():
            while (item := queue.soonest()) is not None and item.deadline - self.limits.way_back <= now:
                queue.drop(item)
                over.append(item)
        return over

    def next_expiry(self) -> float:
        """When to call `expired` again; infinite when nobody waits."""
        if self._late:
            return -math.inf
        firsts = [item.deadline for _, _, queue in self._queues() if (item := queue.soonest()) is not None]
        return min(firsts, default=math.inf) - self.limits.way_back

    def take(self, now: float) -> Batch | None:
        """What an executor is to run now; None when none is free, nobody waits, or it pays to wait (`wake_at`).

        Who cannot be in time any more is not in it, but in the next answer of `expired`.
        """
        self.wake_at = math.inf
        if len(self._running) >= self.limits.slots:
            return None
        while self._again:
            items = [item for item in self._again.popleft().items if not item.left]
            self._late += [item for item in items if item.deadline <= now]
            if in_time := [item for item in items if item.deadline > now]:
                return self._run(Batch(in_time), now)
        for rank in sorted(self._classes):
            waits = [queue for r, _, queue in self._queues() if r == rank and queue.rows]
            for queue in sorted(waits, key=self._latest_start) if len(waits) > 1 else waits:
                if len(waits) > 1 and queue.tag() > min(map(Queue.tag, waits)) + self._lead():
                    continue
                go_at = self._go_at(queue, now)
                if go_at > now:
                    self.wake_at = min(self.wake_at, go_at)
                    continue
                batch = self._fill(queue, self._classes[rank][0], now)
                if batch is not None:
                    return self._run(batch, now)
            if self.wake_at < math.inf:
                return None  # a later class would be in the way of those who come in a moment
        return None

    def finished(self, batch: Batch, now: float) -> None:
        """It ran to its end."""
        self._running.remove(batch)
        self.cost.observe(batch.rows, now - batch.started)
        self._rest()

    def failed(self, batch: Batch) -> list[Item]:
        """It ended with an error, of one of its rows or of all: halves run again, until the poison is alone. Returns
        those whose error it was.
        """
        self._running.remove(batch)
        if len(batch.items) == 1:
            self._rest()
            return batch.items
        half = len(batch.items) // 2
        self._again += [Batch(batch.items[:half]), Batch(batch.items[half:])]
        return []

    def crashed(self, batch: Batch) -> list[Item]:
        """Its executor died: each of its items runs once more, by itself. Returns those who had their second chance."""
        self._running.remove(batch)
        for item in batch.items:
            item.crashes += 1
        self._again += [Batch([item]) for item in batch.items if item.crashes == 1]
        self._rest()
        return [item for item in batch.items if item.crashes > 1]

    # ---- decisions -----------------------------------------------------------------------------------------------

    def _missing(self, item: Item) -> int:
        """Rows too many that would wait with the item; one of more rows than the queue has waits alone."""
        return self.rows + item.rows - max(self.limits.queue_rows, item.rows)

    def _can_free(self, rows: int, item: Item) -> bool:
        """So many rows wait in later classes than the item's, or in its own beyond what its tenant would have."""
        found = float(sum(shares.rows for rank, (shares, _) in self._classes.items() if rank > item.rank))
        if found < rows and item.rank in self._classes:
            shares = self._classes[item.rank][0]
            found += shares.above(shares.level(item))
        return found >= rows

    def _evicted(self) -> Item:
        """The newest item of who has most in the last class that waits."""
        shares, queues = self._classes[max(rank for rank, (shares, _) in self._classes.items() if shares.rows)]
        tenant = shares.fullest()
        waiting = [(queue, last) for queue in queues.values() if (last := queue.newest(tenant)) is not None]
        queue, last = max(waiting, key=lambda pair: pair[1].arrived)
        queue.drop(last)
        return last

    def _end(self, item: Item, now: float) -> float:
        """When the item would have run, if it came now, in a batch as large as those ahead of it make likely."""
        ahead: float = sum(shares.rows for rank, (shares, _) in self._classes.items() if rank < item.rank)
        if item.rank in self._classes:
            ahead += self._classes[item.rank][0].ahead(item)
        ahead += sum(batch.rows for batch in self._again)
        busy = max(0.0, self.free_at - now)
        if len(self._running) >= self.limits.slots:
            busy = max(busy, min(batch.expected_end for batch in self._running) - now)
        size = math.ceil(max(item.rows, min(ahead + item.rows, self.limits.max_rows)))
        own = item.rows if self._is_tight(item, now, size) else size
        return now + busy + ahead / size / self.limits.slots * self.cost.tail(size) + self.cost.tail(own)

    def _is_tight(self, item: Item, arrived: float, rows: int) -> bool:
        """It never had the time for a batch of so many rows: it gets a smaller one and pays for it, in fair shares."""
        return item.deadline - arrived < self.cost.tail(rows) + self.limits.way_back

    def _wanted(self, queue: Queue) -> int:
        """w*: rows with which the executors keep up with what comes, and have some time left."""
        room = self.limits.slots * UTILISATION - queue.rate * self.cost.beta
        if room <= 0:
            return self.limits.max_rows
        return min(self.limits.max_rows, max(1, math.ceil(queue.rate * self.cost.alpha / room)))

    def _go_at(self, queue: Queue, now: float) -> float:
        """When the queue's next batch starts: at once, unless a larger one pays and nobody's deadline suffers."""
        soonest = queue.soonest()
        if soonest is None:
            return now
        wanted = self._wanted(queue)
        if queue.rows >= wanted or not queue.rate:
            return now
        latest = soonest.deadline - self.cost.tail(wanted) - self.limits.way_back
        return min(now + (wanted - queue.rows) / queue.rate, latest, soonest.arrived + self.limits.longest_wait)

    def _fill(self, queue: Queue, shares: Shares, now: float) -> Batch | None:
        rows, deadline = 0, math.inf
        most, way_back, tail = self.limits.max_rows, self.limits.way_back, self.cost.tail
        wanted = min(self._wanted(queue), queue.rows)
        bound, beside, lights = most, most, 0
        flooded = shares.is_flooded(2 * most)
        if now < shares.spared_until:
            bound = self._spared()

        def judge(item: Item) -> Verdict:
            nonlocal rows, deadline, beside, lights
            left = item.deadline - now - way_back
            if left < tail(item.rows) or (left < tail(wanted) and not self._is_tight(item, item.arrived, wanted)):
                return Verdict.LATE  # who has waited too long must not make everybody's batch small: all would be late
            together = rows + item.rows
            if rows >= most:
                return Verdict.FULL
            if flooded and shares.is_light(item.tenant, most):
                lights += item.rows
                beside = self._rows_in(BESIDE * self.cost.mean(lights))
            elif rows and together > min(bound, beside):
                return Verdict.SKIP
            if rows and (together > most or now + tail(together) + way_back > min(deadline, item.deadline)):
                return Verdict.SKIP
            rows, deadline = together, min(deadline, item.deadline)
            return Verdict.TAKE

        def cost(item: Item) -> float:
            shared = 1 if self._is_tight(item, item.arrived, wanted) else max(wanted, 1)
            return self.cost.alpha / shared + self.cost.beta * item.rows

        taken, late = queue.fill(judge, cost)
        if lights:
            shares.spared_until = now + SPARED * self.cost.mean(most)
        if not taken and late and not self._running:  # it harms nobody, and shows whether the estimate is bad
            best = max(late, key=lambda item: item.deadline)
            if now < best.deadline:
                late.remove(best)
                taken = [best]
        self._late += late
        return Batch(taken) if taken else None

    def _rows_in(self, seconds: float) -> int:
        """Rows that take so long."""
        most = self.limits.max_rows
        return most if self.cost.mean(most) <= seconds else max(1, int((seconds - self.cost.alpha) / self.cost.beta))

    def _spared(self) -> int:
        """The fewest rows of a batch that still do `EFFICIENCY` of the rows per second that full ones do."""
        alpha, beta, most = self.cost.alpha, self.cost.beta, self.limits.max_rows
        room = (alpha + beta * most) / most / EFFICIENCY - beta
        return most if room <= 0 else min(most, max(1, math.ceil(alpha / room)))

    def _run(self, batch: Batch, now: float) -> Batch:
        batch.started, batch.expected_end = now, now + self.cost.mean(batch.rows)
        self._running.add(batch)
        return batch

    # ---- bookkeeping ---------------------------------------------------------------------------------------------

    def _idle(self, now: float) -> bool:
        return len(self._running) < self.limits.slots and not self.rows and not self._again and self.free_at <= now

    def _latest_start(self, queue: Queue) -> float:
        soonest = queue.soonest()
        return math.inf if soonest is None else soonest.deadline - self.cost.tail(min(queue.rows, self.limits.max_rows))

    def _lead(self) -> float:
        return LEAD * self.cost.mean(self.limits.max_rows)

    def _queue(self, item: Item) -> Queue:
        found = self._classes.get(item.rank)
        if found is None:
            found = self._classes[item.rank] = (Shares(), {})
        shares, queues = found
        queue = queues.get(item.key)
        if queue is None:
            if len(queues) >= IDLE_QUEUES:
                for key in [key for key, other in queues.items() if not other.rows][:IDLE_QUEUES]:
                    del queues[key]
            queue = queues[item.key] = Queue(shares)
        return queue

    def _queues(self) -> Iterator[tuple[int, object, Queue]]:
        for rank, (_, queues) in self._classes.items():
            for key, queue in queues.items():
                yield rank, key, queue

    def _rest(self) -> None:
        if not self._running and not self._again:
            for shares, _ in self._classes.values():
                if not shares.rows:
                    shares.forget()
