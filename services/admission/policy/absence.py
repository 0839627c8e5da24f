"""What cannot run at all: too large for any worker, or of a version that no worker has, or not any more.

Nobody there is an outage (`NO_WORKERS`), and no overload, however long the queue is by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from services.admission.policy.fair_queue import Item
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import Outcome, Refused, Request
from services.admission.policy.refusals import Refusals


class Absence:
    """Of one pool. Right after a start, or after the last worker of a version has gone, workers may be on their way
    back: for `absence_grace` seconds requests may wait for them, and those with tokens inside their deadline: ending
    them would waste what was done."""

    def __init__(self, limits: Limits, fleet: Fleet, refusals: Refusals, *, now: float) -> None:
        self._grace = limits.absence_grace
        self._fleet = fleet
        self._refusals = refusals
        self._born = now
        self._last_served: dict[str, float] = {}  # model version → when its last worker went
        self._strand_at = math.inf  # when to look for what waits for a worker that did not come back

    def gone(self, model_versions: Iterable[str], now: float) -> None:
        """A worker of these is lost."""
        self.dropped(model_versions, now)
        self._strand_at = now + self._grace

    def dropped(self, model_versions: Iterable[str], now: float) -> None:
        """A worker does not have these ready any more."""
        for version in model_versions:
            self._last_served[version] = now

    def hopeless(self, request: Request, now: float) -> Refused | None:
        """The refusals that no waiting can change."""
        if request.deadline <= now:
            message = "The deadline has passed."
            return self._refusals.refuse(request, Outcome.REJECTED_DEADLINE, message, limit="deadline")
        candidates = self._fleet.eligible(request)
        if any(worker.could_ever_fit(request) for worker in candidates):
            return None
        if candidates:
            return self._refusals.never_fits(request, candidates)
        others = bool(self._fleet.serving(request.model_version))
        if request.resumed_tokens or (others and request.excluded):
            self._strand_at = min(self._strand_at, now + self._grace)
            return None
        if not others and now - self._last_served.get(request.model_version, self._born) < self._grace:
            return None
        return self._refusals.nobody_serves(request, other=others, retry_after=self._grace)

    def stranded(self, waiting: Iterable[Item], now: float) -> list[Item]:
        """What fits none of the workers that remain: it would wait in vain, and keep its tenant's next from being
        seen. Looked for once after each loss.

        By then a worker that failed a request either is known to be lost or is as well as others: where only such are
        left, they are tried again.
        """
        if now < self._strand_at:
            return []
        self._strand_at = math.inf
        found = []
        for item in waiting:
            if self._fleet.stranded(item.request):
                item.request = replace(item.request, excluded=frozenset())
                if self._fleet.stranded(item.request):
                    found.append(item)
        return found

    def came_back(self, worker: str, waiting: Iterable[Item]) -> None:
        """A worker begins anew: what it failed before it may have now."""
        for item in waiting:
            if worker in item.request.excluded:
                item.request = replace(item.request, excluded=item.request.excluded - {worker})
