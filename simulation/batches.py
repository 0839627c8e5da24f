"""A simulation of batching: the real `libs.batching` under made-up arrivals, beside a plain queue with a fixed window.

    python -m simulation.batches

Executors cost α + β·w seconds for w rows, with noise. Prints goodput at 1, 2 and 4 times what the executors can do, and
what a tenant's flood does to another's latency. Nothing here was measured on a machine.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from libs.batching import Batch, Batcher, CostModel, Item, Late, Limits


@dataclass(frozen=True, slots=True)
class Caller:
    """One tenant's Poisson arrivals. `budget`: seconds until its deadlines."""

    tenant: str
    per_second: float
    rows: int = 1
    budget: float = 0.05
    key: str = "a"
    weight: float = 1.0


@dataclass(slots=True)
class Result:
    """What became of them."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    in_time_rows: int = 0
    refused: int = 0
    late: int = 0
    begun_expired: int = 0

    def p99(self, tenant: str) -> float:
        """Seconds."""
        found = sorted(self.latencies[tenant])
        return found[math.ceil(0.99 * len(found)) - 1]


class Policy(Protocol):
    """What decides; `libs.batching.Batcher` is one."""

    wake_at: float

    def offer(self, item: Item, now: float) -> list[Item]: ...
    def take(self, now: float) -> Batch | None: ...
    def finished(self, batch: Batch, now: float) -> None: ...
    def expired(self, now: float) -> list[Item]: ...


class FixedWindow:
    """First come first served; a batch goes when it is full or its first item has waited for `window` seconds."""

    def __init__(self, limits: Limits, window: float) -> None:
        self.wake_at = math.inf
        self._limits = limits
        self._window = window
        self._line: deque[Item] = deque()
        self._free = limits.slots

    def offer(self, item: Item, now: float) -> list[Item]:
        """:raises Late: the queue is full."""
        if sum(waiting.rows for waiting in self._line) + item.rows > self._limits.queue_rows:
            raise Late(full=True, retry_after=None)
        item.arrived = now
        self._line.append(item)
        return []

    def take(self, now: float) -> Batch | None:
        """The first ones."""
        self.wake_at = math.inf
        if not self._free or not self._line:
            return None
        if sum(item.rows for item in self._line) < self._limits.max_rows:
            self.wake_at = self._line[0].arrived + self._window
            if self.wake_at > now:
                return None
        taken = [self._line.popleft()]
        while self._line and sum(item.rows for item in taken) + self._line[0].rows <= self._limits.max_rows:
            taken.append(self._line.popleft())
        self._free -= 1
        return Batch(taken, started=now)

    def finished(self, batch: Batch, now: float) -> None:
        """An executor is free."""
        self._free += 1

    def expired(self, now: float) -> list[Item]:
        """It looks at no deadline."""
        return []


def simulate(
    policy: Policy,
    callers: Sequence[Caller],
    *,
    seconds: float,
    alpha: float,
    beta: float,
    seed: int,
    noise: float = 0.1,
) -> Result:
    """Run the callers against the policy."""
    chance, result = random.Random(seed), Result({caller.tenant: [] for caller in callers})
    events: list[tuple[float, int, object]] = []
    number = 0

    def at(when: float, what: object) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, what))

    for caller in callers:
        at(chance.expovariate(caller.per_second), caller)
    while events:
        now, _, what = heapq.heappop(events)
        if isinstance(what, Caller):
            item = Item(what.tenant, what.key, what.rows, now + what.budget, None, weight=what.weight)
            try:
                result.refused += len(policy.offer(item, now))
            except Late:
                result.refused += 1
            if (then := now + chance.expovariate(what.per_second)) < seconds:
                at(then, what)
        elif isinstance(what, Batch):
            policy.finished(what, now)
            for item in what.items:
                result.latencies[item.tenant].append(now - item.arrived)
                result.in_time_rows += item.rows * (now <= item.deadline)
        result.late += len(policy.expired(now))
        while (batch := policy.take(now)) is not None:
            result.begun_expired += sum(item.deadline <= now for item in batch.items)
            at(now + (alpha + beta * batch.rows) * chance.lognormvariate(0.0, noise), batch)
        if policy.wake_at < math.inf:
            at(max(policy.wake_at, now), None)
    return result


def measure(seconds: float = 5.0) -> dict[str, float]:
    """The figures."""
    alpha, beta, limits = 0.004, 0.00025, Limits(slots=2, max_rows=32, queue_rows=2048)
    full = limits.slots * limits.max_rows / (alpha + beta * limits.max_rows)
    figures: dict[str, float] = {"capacity_rows_per_s": full}

    def run(callers: Sequence[Caller], *, plain: bool = False) -> Result:
        policy: Policy = FixedWindow(limits, 0.005) if plain else Batcher(CostModel(alpha, beta), limits)
        return simulate(policy, callers, seconds=seconds, alpha=alpha, beta=beta, seed=1)

    for times in (0.5, 1, 2, 4):
        callers = [Caller(f"tenant-{n}", full * times / 8) for n in range(8)]
        ours, theirs = run(callers), run(callers, plain=True)
        figures[f"goodput_{times}x"] = ours.in_time_rows / seconds / full
        figures[f"goodput_{times}x_plain"] = theirs.in_time_rows / seconds / full
        figures[f"expired_executed_{times}x"] = ours.begun_expired
    calm = [Caller("victim", full * 0.05), Caller("other", full * 0.2)]
    flood = [Caller("victim", full * 0.05), Caller("other", full * 4)]
    figures["victim_p99_ratio"] = run(flood).p99("victim") / run(calm).p99("victim")
    return figures


def main() -> None:
    """Print the figures as one line of JSON that says what it is."""
    sys.stdout.write(json.dumps({"bench": "batches-simulated", "figures": measure()}) + "\n")


if __name__ == "__main__":
    main()
