"""Credits: room set aside for requests that have not come yet, so that a gateway needs to ask for it no more.

A credit is a grant like any other, but for its request: it is nobody's, of one version and one choice, and as large as
its caps say, all output included. It holds its blocks and its sequence on its worker from the moment that it is given,
so that what is held never exceeds what there is, whatever becomes of it. A request that runs on it takes its place,
with what it needs itself, and is charged then; what follows (growth, release, interruption) is every grant's.

Given are credits only while nobody waits, for paid and free requests, on workers in ease: at most `room` of whose
blocks, sequences and waiting prefill is in use, at most `share` of each held by credits, and which are not on
probation. A request with a budget (`kv_share`, `version_share`) gets none: what its tenant holds only the owner knows.
What is not used within `seconds` gateways give back; if they do not, it is taken back when no worker accepts it more.

Fairness: that a request on a credit was not in order counts only if others had begun to wait since it was given. That
is at most `seconds` ago, and at most the credits then out, whose requests are charged like all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from services.admission.policy.backlog import Backlog
from services.admission.policy.books import Books, Held
from services.admission.policy.edge_shedding import EdgeShedding
from services.admission.policy.estimates import Estimates
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import Granted, QueueClass, Request
from services.admission.policy.timeliness import Timeliness
from services.admission.policy.worker import Worker

_CLASSES = frozenset({QueueClass.PAID, QueueClass.FREE})
_HELD_ON = 1.25
"""Seconds beyond its time that a credit is held: a worker whose clock is a second late (`grant_clock_leeway`) still
takes it, and its use is told lazily."""


class Credits:
    """Of one pool."""

    def __init__(
        self,
        limits: Limits,
        *,
        fleet: Fleet,
        backlog: Backlog,
        estimates: Estimates,
        timeliness: Timeliness,
        books: Books,
        edge_shedding: EdgeShedding,
    ) -> None:
        self._limits = limits
        self._fleet = fleet
        self._backlog = backlog
        self._estimates = estimates
        self._timeliness = timeliness
        self._books = books
        self._edge_shedding = edge_shedding
        self._expiries: deque[tuple[float, str]] = deque()

    def give(self, request: Request, ids: Iterable[str], now: float) -> list[Granted]:
        """Up to as many credits as there are `ids`, for requests like this one, which was granted just now."""
        limits, given = self._limits.credits, list[Granted]()
        if len(self._backlog) or not may_run_on_credit(request):
            return given
        like = replace(
            request,
            tenant="",
            prompt_tokens=_rounded(request.prompt_tokens),
            deadline=now + limits.seconds,
            queue_class=QueueClass.PAID,  # nobody interrupts what does not run
            credit=True,
        )
        for _, name in zip(range(limits.most), ids, strict=False):
            worker = self._fleet.pick(like, now)
            if worker is None or not self._in_ease(worker, like, now):
                break
            computed = self._estimates.computed_first_token(like, worker, self._fleet, now)
            first = self._estimates.first_token(computed, like, worker, now)
            credit = replace(like, request_id=name, prefix_hashes=())
            self._fleet.reserve(credit, worker.spec.worker, now)
            self._expiries.append((now + limits.seconds + _HELD_ON, name))
            given.append(Granted(credit, worker.spec.worker, first_token=first))
        return given

    def use(self, credit_id: str, request: Request, now: float) -> Granted | None:
        """The request runs on this credit, by its gateway's word. None when there is no such credit, because its use
        is told twice or too late, or another owner gave it: then what runs shows in its worker's reports."""
        credit = self._fleet.reservations.get(credit_id)
        if credit is None or not credit.request.covers(request):
            return None
        worker = self._fleet.workers[credit.worker]
        computed = self._estimates.computed_first_token(request, worker, self._fleet, now)
        if self._fleet.exchange(credit_id, request, now) is None:
            return None
        cost = self._estimates.expected_cost(request)
        self._edge_shedding.arrived(request, cost, now)
        self._edge_shedding.granted(request, cost, now)
        self._backlog.queue_of(request).charge(request.tenant, request.weight, cost, request.model_version)
        self._estimates.let_in(request, cost, now)
        first = self._estimates.first_token(computed, request, worker, now)
        self._books.open(Held(request, worker.spec.worker, cost, 0.0, computed, first, now))
        return Granted(request, worker.spec.worker, first_token=first)

    def tick(self, now: float) -> None:
        """Takes back what was not used in time."""
        while self._expiries and self._expiries[0][0] <= now:
            name = self._expiries.popleft()[1]
            held = self._fleet.reservations.get(name)
            if held is not None and held.request.credit:
                self._fleet.release(name)

    def _in_ease(self, worker: Worker, credit: Request, now: float) -> bool:
        limits, spec = self._limits.credits, worker.spec
        return (
            spec.takes_credits
            and worker.room(now).utilisation <= limits.room
            and worker.credits + 1 <= limits.share * worker.most_sequences
            and worker.credit_blocks + self._fleet.need(credit, worker) <= limits.share * spec.total_blocks
            and not self._fleet.outliers.watched(spec.worker)
            and self._timeliness.in_time(credit, worker, now)
        )


def may_run_on_credit(request: Request) -> bool:
    """Only the owner may decide where a budget or an earlier worker counts; and not everybody is in a hurry."""
    return (
        request.queue_class in _CLASSES
        and request.choices == 1
        and not (request.resumed_tokens or request.excluded or request.kv_share or request.version_share)
    )


def _rounded(tokens: int) -> int:
    """The next power of two: the next request's prompt is not as long to the token."""
    return 1 << (tokens - 1).bit_length()
