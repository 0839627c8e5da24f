"""What became of every request, and what was observed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulation.workload import Arrival

OK = "ok"


@dataclass(slots=True)
class Outcome:
    """One request and its end. Times in seconds."""

    arrival: Arrival
    queue_class: str
    """What it was served in: quotas may have lowered it."""
    outcome: str
    """"ok", or a reason of weir.errors.v1 without "REASON_"."""
    ttft: float | None
    e2e: float
    delivered: int
    """Output tokens that came."""
    waited: float
    """In admission's queue, in all."""
    retry_after: float | None = None
    interrupted: int = 0
    """How often it was, for more urgent work."""
    moved: int = 0
    """How often its worker was lost."""

    @property
    def itl(self) -> float | None:
        """Mean gap between its tokens."""
        if self.ttft is None or self.delivered < 2:
            return None
        return (self.e2e - self.ttft) / (self.delivered - 1)


@dataclass(slots=True)
class Gap:
    """Service of two tenants of one class, compared while both wait. In cost units per weight."""

    widest: float = 0.0
    """The largest difference of what they were granted over any time in which both waited, at its real cost."""
    largest: float = 0.0
    """The largest real cost of one request."""
    error: float = 0.0
    """The largest difference between them in what their running requests cost beyond what admission expected."""

    @property
    def bound(self) -> float:
        """What the fair queue promises; see services/admission/policy/fair_queue.py."""
        return 2.0 * self.largest + 2.0 * self.error

    @property
    def share(self) -> float:
        """Of the bound; above 1 it was not kept."""
        return self.widest / self.bound if self.bound else 0.0


@dataclass(slots=True)
class _Flow:
    waiting: int = 0
    service: float = 0.0
    largest: float = 0.0
    error: float = 0.0


class ServiceGaps:
    """Follows what each tenant of one class is granted while it waits."""

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._range: dict[tuple[str, str], tuple[float, float]] = {}  # least and most of the difference, both waiting
        self.gaps: dict[tuple[str, str], Gap] = {}

    def queued(self, tenant: str) -> None:
        """A request of the tenant waits."""
        flow = self._flows.setdefault(tenant, _Flow())
        flow.waiting += 1
        if flow.waiting == 1:
            for other, with_other in self._waiting(tenant):
                self._range.pop(_pair(tenant, other), None)
                self._widen(tenant, flow, other, with_other)

    def left(self, tenant: str) -> None:
        """It waits no more."""
        self._flows[tenant].waiting -= 1

    def granted(self, tenant: str, real: float, expected: float) -> None:
        """A request was granted; costs per weight. Call before `left` when it waited."""
        flow = self._flows.setdefault(tenant, _Flow())
        flow.service += real
        flow.error += real - expected
        flow.largest = max(flow.largest, real)
        if flow.waiting:
            for other, with_other in self._waiting(tenant):
                self._widen(tenant, flow, other, with_other)

    def corrected(self, tenant: str, real: float, expected: float, actual: float) -> None:
        """It has ended, so that the queue knows its real cost; `actual` is less when it was cut short."""
        flow = self._flows[tenant]
        flow.error -= real - expected
        flow.service += actual - real

    def _waiting(self, tenant: str) -> Iterator[tuple[str, _Flow]]:
        return ((name, flow) for name, flow in self._flows.items() if flow.waiting and name != tenant)

    def _widen(self, tenant: str, flow: _Flow, other: str, with_other: _Flow) -> None:
        pair = _pair(tenant, other)
        difference = flow.service - with_other.service
        if pair[0] != tenant:
            difference = -difference
        least, most = self._range.get(pair, (difference, difference))
        least, most = min(least, difference), max(most, difference)
        self._range[pair] = least, most
        gap = self.gaps.setdefault(pair, Gap())
        gap.widest = max(gap.widest, most - least)
        gap.largest = max(gap.largest, flow.largest, with_other.largest)
        gap.error = max(gap.error, abs(flow.error - with_other.error))


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


@dataclass(slots=True)
class Observed:
    """Everything that a run leaves."""

    outcomes: list[Outcome] = field(default_factory=list)
    gaps: dict[str, ServiceGaps] = field(default_factory=dict)
    """By class."""
    step_gaps: Counter[int] = field(default_factory=Counter)
    """Gaps between tokens by length, in units of 0.1 ms: how many tokens came after so long."""
    events: int = 0
    steps: int = 0
    """Engine steps that the events stand for."""
    busy: float = 0.0
    """Share of the workers' time that was spent in steps, while requests came."""
    preempted: int = 0
    on_credit: int = 0
    """Requests for which nobody was asked, as their gateway had a credit."""
    memory_preemptions: int = 0
    """Sequences that workers computed anew for want of memory."""
    committed: float = 0.0
    """The most that all that was granted on one worker came to need, over its memory. Only where workers preempt or a
    pool had two owners."""
    reserved: float = 0.0
    """The most that admission counted it as, likewise."""
    prompt_tokens: int = 0
    output_tokens: int = 0
