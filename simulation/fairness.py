"""What tenants of one queue were granted while they waited, and the bound that the fair queue promises of it.

The bound is that of `services/admission/policy/fair_queue.py`, term by term. Costs are counted in hindsight: what a
request came to cost counts from its grant on, and until the queue has heard of it the difference is an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.admission.policy.model import Granted, QueueClass
from services.admission.policy.pool import Pool

if TYPE_CHECKING:
    from simulation.live import Live


@dataclass(slots=True, eq=False)
class Grant:
    """One, in cost units per weight."""

    tenant: str
    real: float
    """What the request costs, as far as is known."""
    charged: float
    """What its tenant was charged for it."""
    overtook: tuple[str, ...] = ()
    """Tenants before it in order, for whom the worker had no room, or too late."""


@dataclass(slots=True)
class Gap:
    """Two tenants, over the time in which both waited and in which their services came to differ by the largest part
    of the bound."""

    gap: float = 0.0
    """The largest difference between what they were granted in any part of it."""
    bound: float = 0.0
    """What the fair queue promises."""
    burst: float = 0.0
    """Of the bound, what they had not used of their bursts when it began."""
    overtaken: float = 0.0
    """Of the bound, what overtook them, because they could not use the worker, or not in time."""

    @property
    def share(self) -> float:
        """Of the bound; above 1 it was not kept."""
        return self.gap / self.bound if self.bound else 0.0


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    """"queued", "left", "granted", "told" (a use of a credit: now it is charged) or "ended"."""
    tenant: str
    grant: Grant | None = None
    amount: float = 0.0
    """The burst with which its tenant began to wait; or the change of what it was charged."""


@dataclass(slots=True)
class _Flow:
    waiting: int = 0
    service: float = 0.0
    error: float = 0.0
    """Real cost minus what was charged, of all that the queue has not heard the end of."""
    burst: float = 0.0
    """What is left of it."""
    overtaken: float = 0.0
    """Since it waits."""


@dataclass(slots=True)
class _Stretch:
    """Of two tenants that wait."""

    burst: float
    least: float
    most: float


@dataclass(slots=True)
class ServiceGaps:
    """Follows one queue: a pool's, of one class and one model version, whose workers all its tenants may use."""

    _events: list[_Event] = field(default_factory=list)

    def queued(self, tenant: str, burst: float) -> None:
        """A request of the tenant waits; `burst` is how far below the present level the tenant is with it."""
        self._events.append(_Event("queued", tenant, amount=burst))

    def left(self, tenant: str) -> None:
        """It waits no more."""
        self._events.append(_Event("left", tenant))

    def granted(self, grant: Grant) -> Grant:
        """A request was granted. Call before `left` when it waited."""
        self._events.append(_Event("granted", grant.tenant, grant, grant.charged))
        return grant

    def told(self, grant: Grant, charged: float) -> None:
        """It ran on a credit, and admission has heard of it: now its tenant is charged."""
        grant.charged += charged
        self._events.append(_Event("told", grant.tenant, grant, charged))

    def ended(self, grant: Grant, actual: float) -> None:
        """The queue has heard of its real cost."""
        self._events.append(_Event("ended", grant.tenant, grant, actual - grant.charged))
        grant.real = actual

    def gaps(self) -> dict[tuple[str, str], Gap]:
        """By the names of two tenants, in order."""
        largest: dict[str, float] = {}
        errors = [0.0]
        for flows, event in self._replayed():
            flow = flows[event.tenant]
            errors.append(flow.error)
            if event.grant is not None:
                largest[event.tenant] = max(largest.get(event.tenant, 0.0), event.grant.real)
        error = max(errors) - min(errors)
        found: dict[tuple[str, str], Gap] = {}
        stretches: dict[tuple[str, str], _Stretch] = {}
        for flows, event in self._replayed():
            flow = flows[event.tenant]
            if event.kind == "left" or not flow.waiting:
                continue
            for name, other in flows.items():
                if not other.waiting or name == event.tenant:
                    continue
                pair, sign = ((event.tenant, name), 1) if event.tenant < name else ((name, event.tenant), -1)
                difference, burst = sign * (flow.service - other.service), flow.burst + other.burst
                stretch = stretches.get(pair)
                begins = event.kind == "queued" and flow.waiting == 1
                if stretch is None or begins or (stretch.burst and not burst):  # and where bursts are used up
                    stretch = stretches[pair] = _Stretch(burst, difference, difference)
                stretch.least, stretch.most = min(stretch.least, difference), max(stretch.most, difference)
                overtaken = flow.overtaken + other.overtaken
                units = 2 * max(largest.get(event.tenant, 0.0), largest.get(name, 0.0)) + 2 * error
                gap = Gap(stretch.most - stretch.least, units + stretch.burst + overtaken, stretch.burst, overtaken)
                if pair not in found or gap.share > found[pair].share:
                    found[pair] = gap
        return found

    def _replayed(self) -> Iterator[tuple[dict[str, _Flow], _Event]]:
        """Every event, and what is after it."""
        flows: dict[str, _Flow] = {}
        for event in self._events:
            flow = flows.setdefault(event.tenant, _Flow())
            if event.kind == "queued":
                flow.waiting += 1
                if flow.waiting == 1:
                    flow.burst, flow.overtaken = max(0.0, event.amount), 0.0
            elif event.kind == "left":
                flow.waiting -= 1
            elif event.grant is not None:
                grant = event.grant
                if event.kind == "granted":
                    flow.service += grant.real
                    flow.error += grant.real
                    for name in grant.overtook:
                        flows.setdefault(name, _Flow()).overtaken += grant.real
                flow.error -= event.amount
                flow.burst = max(0.0, flow.burst - event.amount)
            yield flows, event


class Fairness:
    """Of all queues: of each pool, class and version, whose tenants go by one order to the same workers."""

    def __init__(self, budgeted: frozenset[str]) -> None:
        """Those who are `budgeted` in KV blocks wait for themselves, and are owed nothing."""
        self._budgeted = budgeted
        self._queues: defaultdict[tuple[QueueClass, Pool, str], ServiceGaps] = defaultdict(ServiceGaps)

    def queued(self, live: Live) -> None:
        """It waits."""
        if live.tenant not in self._budgeted and live.request is not None:
            flow = live.pool.backlog.queue_of(live.request).flow(live.tenant)
            self._of(live).queued(live.tenant, flow.burst if flow is not None else 0.0)

    def left(self, live: Live) -> None:
        """It waits no more."""
        if live.tenant not in self._budgeted:
            self._of(live).left(live.tenant)

    def granted(self, live: Live, granted: Granted) -> None:
        """It was granted. Call before `left` when it waited."""
        live.grant = self._of(live).granted(Grant(live.tenant, live.real, live.expected, granted.overtook))

    def charged(self, live: Live, cost: float) -> None:
        """Admission has heard that it runs on a credit, and charges its tenant so many cost units."""
        if live.grant is not None:
            self._of(live).told(live.grant, cost / live.arrival.weight)

    def ended(self, live: Live, actual: float) -> None:
        """Admission has heard what it cost, per weight."""
        if live.grant is not None:
            self._of(live).ended(live.grant, actual)

    def gaps(self) -> list[tuple[QueueClass, tuple[str, str], Gap]]:
        """Of every two tenants that waited at one time."""
        return [(key[0], pair, gap) for key, queue in self._queues.items() for pair, gap in queue.gaps().items()]

    def _of(self, live: Live) -> ServiceGaps:
        version = live.request.model_version if live.request is not None else ""
        return self._queues[live.queue_class, live.pool, version]
