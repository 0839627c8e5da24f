"""Which waiting request goes next, and to which worker: order and room brought together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.admission.policy.backlog import Backlog
from services.admission.policy.estimates import Estimates
from services.admission.policy.fair_queue import Item
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import QueueClass, Request
from services.admission.policy.placement import eligible
from services.admission.policy.timeliness import Timeliness
from services.admission.policy.worker import Worker

_TRIED = 32  # waiting requests of a class and lane, before what follows them waits, too


class Selection:
    """The next grant of one pool: the first request in order that fits a worker.

    Requests that do not fit may be overtaken by later ones that do, so that capacity is not left idle; but only
    `max_bypass` times: then the worker nearest to having room is kept for them, so that large requests do not starve
    behind small ones. It is kept from their own class and from those below, never from one above: that a lower class
    may go first, with what it has earned, does not mean that a higher one waits until there is room for it.

    Whoever is at its own or its version's KV budget, or would be late on the worker that has room, waits for itself.

    Lanes whose workers have no room at all are not looked at; of the others in each class the first `_TRIED`, not
    counting those whose tenants are at their KV budgets, which are not looked at again until that has changed.
    """

    def __init__(
        self, limits: Limits, backlog: Backlog, fleet: Fleet, estimates: Estimates, timeliness: Timeliness
    ) -> None:
        self._limits = limits
        self._backlog = backlog
        self._fleet = fleet
        self._estimates = estimates
        self._timeliness = timeliness

    def next(self, now: float) -> tuple[Item, Worker, tuple[str, ...]] | None:
        """Who goes next, where, and before which tenants of its class, though they come first in order; None when
        nobody who may go fits. Nothing is granted by that."""
        while True:
            found, at_budget = self._first_that_fits(now)
            for item in at_budget:
                self._backlog.park(item)
            if found is not None or not at_budget:
                return found

    def _first_that_fits(self, now: float) -> tuple[tuple[Item, Worker, tuple[str, ...]] | None, list[Item]]:
        """One pass; and those who were found to be at their tenants' budgets."""
        fleet = self._fleet
        blocked: list[Item] = []
        at_budget: list[Item] = []
        late: list[Item] = []
        kept: dict[str, QueueClass] = {}
        failed = Failed(self._estimates.high_output)
        for item in self._backlog.in_order(lambda lane: fleet.has_room(lane[1], lane[2], now), _TRIED):
            request = item.request
            if (request.kv_share or request.version_share) and fleet.over_share(request):
                if not fleet.over_version_share(request):
                    at_budget.append(item)
                continue
            not_for_it = [worker for worker, keeper in kept.items() if keeper <= request.queue_class]
            if not failed.includes(request):
                worker = fleet.pick(request, now, kept=not_for_it)
                if worker is not None:
                    if not self._timeliness.in_time(request, worker, now):
                        late.append(item)
                        continue
                    _passed_over(blocked, worker)
                    return (item, worker, _overtaken(item, (blocked, at_budget, late))), at_budget
                failed.add(request)
            blocked.append(item)
            if item.bypassed >= self._limits.max_bypass and self._limits.discipline == "fair":
                keep = fleet.to_keep(request, now, kept=not_for_it)
                if keep is not None:
                    kept[keep.spec.worker] = request.queue_class
        return None, at_budget


def _passed_over(blocked: Sequence[Item], worker: Worker) -> None:
    for other in blocked:
        if other.request.model_version in worker.spec.model_versions and eligible(other.request, (worker,)):
            other.bypassed += 1


def _overtaken(item: Item, passed: Sequence[Sequence[Item]]) -> tuple[str, ...]:
    """The tenants of those that were passed over, of its own class."""
    if not any(passed):
        return ()
    queue_class = item.request.queue_class
    before = {each.request.tenant for some in passed for each in some if each.request.queue_class == queue_class}
    return tuple(sorted(before - {item.request.tenant}))


class Failed:
    """Shapes that did not fit in this pass: whoever needs as much or more, of the same workers, need not be tried."""

    def __init__(self, expected_output: Callable[[Request], int | None] | None = None) -> None:
        """`expected_output` as the fleet's."""
        self._expected = expected_output
        self._needs: dict[_Key, tuple[int, ...]] = {}

    def add(self, request: Request) -> None:
        """The request did not fit."""
        if not request.excluded:  # without excludes the request had every worker that others with its key have
            self._needs[_key(request)] = self._need(request)

    def includes(self, request: Request) -> bool:
        """Is it known without trying that the request does not fit?"""
        before = self._needs.get(_key(request))
        if before is None:
            return False
        return all(now >= then for now, then in zip(self._need(request), before, strict=True))

    def _need(self, request: Request) -> tuple[int, ...]:
        longest = request.max_output_tokens
        expected = self._expected(request) if self._expected is not None else None
        # Unknown is compared by the longest output alone, known by both: kinds of workers go by one or the other.
        return request.choices, request.prompt_tokens, longest, longest if expected is None else min(expected, longest)


_Key = tuple[str, tuple[str, ...], int]


def _key(request: Request) -> _Key:
    # Room that is being made for a class is kept from those below it: classes fail for themselves.
    return request.model_version, request.zones, request.queue_class
