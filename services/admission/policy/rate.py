"""How fast a pool serves its queue, and so how long a request would wait."""

from __future__ import annotations

import math
from collections.abc import Iterable

from services.admission.policy.fair_queue import FairQueue


class ServiceRate:
    """Cost units granted per second while requests wait: an average with exponentially fading memory.

    Only backlogged time counts, since an idle pool's throughput says nothing about what it could do.
    """

    def __init__(self, *, memory: float = 10.0, min_observed: float = 0.5) -> None:
        """`memory` is the time constant, `min_observed` how much backlogged time a first estimate needs; seconds."""
        self._memory = memory
        self._min_observed = min_observed
        self._cost = 0.0
        self._time = 0.0
        self._since: float | None = None  # start of the backlogged time not yet counted

    def observe(self, now: float, *, backlogged: bool, granted: float = 0.0) -> None:
        """Counts the time since the last call, if it was backlogged, and `granted` cost units."""
        if self._since is not None:
            elapsed = max(0.0, now - self._since)
            fading = math.exp(-elapsed / self._memory)
            self._cost = self._cost * fading + granted
            self._time = self._time * fading + elapsed
        self._since = now if backlogged else None

    def per_second(self) -> float | None:
        """The estimate; None while too little was seen."""
        if self._time < self._min_observed or self._cost <= 0.0:
            return None
        return self._cost / self._time


def cost_ahead(queue: FairQueue, tenant: str, weight: float, cost: float, higher: Iterable[FairQueue]) -> float:
    """Cost units that fair order serves up to and including a request of `cost` that this tenant would add now.

    Higher classes go first entirely. In its own class each other tenant is served, while this tenant's backlog is,
    at most its own backlog and at most in the proportion of the weights.
    """
    own = cost
    others: list[tuple[float, float]] = []
    for flow in queue.flows():
        if flow.tenant == tenant:
            own += flow.backlog
        else:
            others.append((flow.backlog, flow.weight))
    share = own / weight
    return own + sum(min(backlog, share * other) for backlog, other in others) + sum(q.backlog for q in higher)
