"""One pool's admission: the state machine that ties queue, fleet and estimates together.

Question and command are one here: `admit` answers at once with Granted, Queued or Refused. Whatever changes capacity
or the queue returns the events (grants and evictions of queued requests, interruptions) that follow from it. Every
request leaves exactly once: by the answer of `admit`, by one event, or by `cancel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from services.admission.policy.absence import Absence
from services.admission.policy.backlog import Backlog
from services.admission.policy.books import Books, Held
from services.admission.policy.credits import Credits
from services.admission.policy.edge_shedding import EdgeShedding
from services.admission.policy.estimates import Estimates
from services.admission.policy.fair_queue import Item
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Event,
    Granted,
    Outcome,
    QueueClass,
    Queued,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.refusals import OVERLOAD, Refusals, Turns
from services.admission.policy.selection import Selection
from services.admission.policy.shadows import Shadows
from services.admission.policy.timeliness import Timeliness
from services.admission.policy.worker import Reservation, Worker

_SWEEP = 1.0  # seconds between two looks for overdue shares


class Pool:
    """Decides for one pool. All `now` are the same monotonic clock's seconds and must not go back."""

    def __init__(self, name: str, limits: Limits, *, now: float, chance: Callable[[], float] = lambda: 0.0) -> None:
        """`chance` draws from 0 to 1, for the jitter of retry-after; without it there is none."""
        self.name = name
        self.limits = limits
        self.estimates = Estimates(limits, now=now)
        self.fleet = Fleet(
            limits, expected_output=self.estimates.high_output, slowness=self.estimates.first_tokens.slowness
        )
        self.backlog = Backlog(limits)
        self.edge_shedding = EdgeShedding()
        self.books = Books(limits, self.backlog, self.estimates)
        self._refusals = Refusals(chance)
        self.shadows = Shadows(limits, self.fleet, self.books, self._refusals)
        self._turns = Turns()
        self._timeliness = Timeliness(limits, self.estimates, self.fleet, self.backlog, self.books, now=now)
        self._selection = Selection(limits, self.backlog, self.fleet, self.estimates, self._timeliness)
        self._credits = Credits(
            limits,
            fleet=self.fleet,
            backlog=self.backlog,
            estimates=self.estimates,
            timeliness=self._timeliness,
            books=self.books,
            edge_shedding=self.edge_shedding,
        )
        self._fair = limits.discipline == "fair"
        self._absence = Absence(limits, self.fleet, self._refusals, now=now)
        self._next_sweep = now
        self._draining = False

    # ---- requests ------------------------------------------------------------------------------------------------

    def admit(self, request: Request, now: float) -> tuple[Granted | Queued | Refused, list[Event]]:
        """Grants at once when there is room and nobody waits; else queues or refuses. Idempotent by request id.

        The events concern other requests (one may be shed or interrupted for this one). A request that holds a share
        already is granted it again while that still covers it; one that waits already goes on waiting.
        """
        repeated = self._repeated(request, now)
        if repeated is not None:
            return repeated, []
        refused = self._refusals.draining(request) if self._draining else self._absence.hopeless(request, now)
        if refused is not None:
            return refused, []
        if request.queue_class is QueueClass.SHADOW:
            return self.shadows.admit(request, now, others=len(self.backlog) > 0), []
        cost = self.estimates.expected_cost(request)
        if not self.fleet.deserted(request, now):  # the edge sheds what is too much, and not what nobody serves
            self.edge_shedding.arrived(request, cost, now)
        if not len(self.backlog):
            granted = self._grant_directly(request, cost, now)
            if granted is not None:
                return granted, []
        limit = self.backlog.room_for(request)
        wait = self.estimates.wait(request, self.backlog, self.fleet, now)
        if limit:
            return self._full(request, limit, wait, cost, now), []
        late = self._timeliness.late(request, wait, now)
        if late is not None and not self._timeliness.may_interrupt(request) and not self._fits_now(request, now):
            turn = self._turns.next(request, cost, self.edge_shedding.rate_of(request, now), now)
            return self._refused(self._refusals.too_late(request, late.limit, late.by + turn), cost, now), []
        return self._enqueue(request, cost, wait, now, urgent=late is not None)

    def release(
        self,
        request_id: str,
        now: float,
        *,
        output_tokens: int | None = None,
        failed: bool = False,
        first_token: float | None = None,
        cached_prompt_tokens: int = 0,
        cut_short: bool = False,
    ) -> tuple[bool, list[Event]]:
        """The request has ended after `output_tokens`, or (None) was never submitted. Was it known, and what follows.

        `first_token` are seconds from the grant to it, None when there was none. What was `cut_short` would have been
        longer. A request that still waits is taken out of the queue.
        """
        if self._take_out(request_id):
            return True, self._dispatch(now)
        if request_id not in self.fleet.reservations:
            return False, []
        interrupted = self.fleet.preemption.asked(request_id)
        if output_tokens is not None:
            self.fleet.ended(
                request_id,
                now,
                output_tokens=output_tokens,
                failed=failed,
                cached_prompt_tokens=cached_prompt_tokens,
            )
        self._give_back(request_id)
        learn = not (failed or interrupted)  # those go on elsewhere, and teach at their end
        self.books.settle(
            request_id,
            now,
            output_tokens,
            learn=learn,
            cut_short=cut_short,
            first_token=first_token,
            cached_prompt_tokens=cached_prompt_tokens,
        )
        return True, self._dispatch(now)

    def give(self, request: Request, ids: Iterable[str], now: float) -> list[Granted]:
        """See `Credits.give`."""
        return [] if self._draining else self._credits.give(request, ids, now)

    def use(self, credit_id: str, request: Request, now: float) -> Granted | None:
        """See `Credits.use`."""
        return self._credits.use(credit_id, request, now)

    def cancel(self, request_id: str, now: float) -> tuple[bool, list[Event]]:
        """A waiting request's caller gave up. False when it does not wait (any more)."""
        if not self._take_out(request_id):
            return False, []
        return True, self._dispatch(now)

    def abandon(self, owner: str, now: float) -> tuple[int, list[Event]]:
        """A gateway is gone for good: its shares are given back; what still runs shows in the workers' reports."""
        count = self._disown(self.fleet.owned_by(owner), now)
        return count, self._dispatch(now) if count else []

    def waiting(self, request_id: str) -> Request | None:
        """The request of this id, if it waits."""
        item = self.backlog.find(request_id)
        return item.request if item is not None else self.shadows.find(request_id)

    # ---- workers -------------------------------------------------------------------------------------------------

    def worker_joined(self, spec: WorkerSpec, now: float) -> None:
        """A worker opened its capacity stream. It gets work from its first report on."""
        self.fleet.join(spec, now)
        self._absence.came_back(spec.worker, self.backlog.waiting())
        self.backlog.unpark()

    def worker_reported(self, worker: str, report: Report, now: float) -> list[Event]:
        """A worker told its load."""
        return self._dispatch(now) if self.fleet.heard(worker, report, now) else []

    def worker_serves(self, worker: str, model_versions: frozenset[str], now: float) -> None:
        """A live worker has these versions ready from now on, whatever it had before."""
        self._absence.dropped(self.fleet.serves(worker, model_versions), now)

    def worker_left(self, worker: str, now: float) -> bool:
        """A worker's stream broke or fell silent: it gets no work from this moment. False when it was not there."""
        known = self.fleet.workers.get(worker)
        if known is None or not self.fleet.leave(worker):
            return False
        self._absence.gone(known.spec.model_versions, now)
        if not self.fleet.staffed:  # what waits for somebody to come back says nothing of the pool
            self.estimates.observe(now, backlogged=False)
            for item in self.backlog.waiting():
                item.predicted_wait = None
        return True

    def drain_worker(self, worker: str) -> None:
        """A worker is asked to finish: it gets no new work from this moment until it joins anew."""
        self.fleet.drain(worker)

    def silent_workers(self, now: float, heartbeat: float) -> list[str]:
        """Live workers that were not heard of for longer than `heartbeat` seconds."""
        return [
            name for name, worker in self.fleet.workers.items() if worker.live and now - worker.last_heard > heartbeat
        ]

    # ---- time and life -------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Event]:
        """What the passing of time brings: evictions, overdue shares, kept work that expired. Call it often."""
        self.backlog.tick(now)
        self._credits.tick(now)
        events: list[Event] = [self._evict(item, now) for item in self.backlog.expired(now)]
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP
            self._disown(self.fleet.overdue(now), now)
            events += self._evict_stranded(now)
        events += self._dispatch(now)
        events += self.shadows.tick(now)
        return events

    def drain(self, now: float) -> list[Event]:
        """This process goes away: new requests are refused, waiting ones sent elsewhere."""
        self._draining = True
        gone: list[Event] = [
            self._refusals.draining(item.request, now - item.queued_at) for item in self.backlog.clear()
        ]
        return gone + self.shadows.drain(now)

    @property
    def idle(self) -> bool:
        """Nothing waits and no share is held."""
        return not len(self.backlog) and not len(self.shadows) and not self.fleet.reservations

    # ---- admitting -----------------------------------------------------------------------------------------------

    def _repeated(self, request: Request, now: float) -> Granted | Queued | Refused | None:
        """The answer for a request id that is known already; None when it is not, or no longer of use."""
        item = self.backlog.find(request.request_id)
        held = self.fleet.reservations.get(request.request_id)
        known = item.request if item else held.request if held else self.shadows.find(request.request_id)
        if known is None:
            return None
        if known.tenant != request.tenant:
            message = "The request id is in use."
            return self._refusals.refuse(request, Outcome.INVALID_REQUEST, message, limit="request_id")
        if item is not None:
            if known.covers(request):
                item.request = replace(known, owner=request.owner, excluded=known.excluded | request.excluded)
                return Queued(item.request)
            self._take_out(request.request_id)
        elif held is not None:
            return self._held_already(held, request, now)
        elif known.covers(request):
            return Queued(known)
        else:
            self.shadows.remove(request.request_id)
        return None

    def _held_already(self, held: Reservation, request: Request, now: float) -> Granted | None:
        worker = self.fleet.workers[held.worker]
        usable = worker.live and request.model_version in worker.spec.model_versions
        if usable and held.worker not in request.excluded and held.request.covers(request):
            held.request = replace(held.request, owner=request.owner)
            held.until = request.deadline + self.limits.release_grace
            return Granted(held.request, held.worker)
        # A migration: the old worker is lost or failed it, so the request needs another share, not a second one.
        self._give_back(request.request_id)
        self.books.settle(request.request_id, now, None, learn=False)
        return None

    def _grant_directly(self, request: Request, cost: float, now: float) -> Granted | None:
        worker = self.fleet.pick(request, now)
        if worker is None or not self._timeliness.in_time(request, worker, now):
            return None
        self.backlog.queue_of(request).charge(request.tenant, request.weight, cost, request.model_version)
        self.estimates.let_in(request, cost, now)
        return self._hold(request, worker, cost, now)

    def _fits_now(self, request: Request, now: float) -> bool:
        """Would it be granted though others wait, because those cannot use the room that there is?"""
        room = self.fleet.has_room(request.model_version, request.zones, now)
        worker = self.fleet.pick(request, now) if room else None
        return worker is not None and self._timeliness.in_time(request, worker, now)

    def _enqueue(
        self, request: Request, cost: float, wait: float | None, now: float, *, urgent: bool
    ) -> tuple[Granted | Queued | Refused, list[Event]]:
        computed = self.estimates.computed_first_token(request, None, self.fleet, now)
        leave_by = max(now, self._timeliness.leave_by(request, computed, now))
        item, shed = self.backlog.push(request, now, cost=cost, leave_by=leave_by)
        if shed is item:
            return self._full(request, "queue", wait, cost, now), []
        item.urgent = urgent
        item.predicted_wait = None if urgent or not self.fleet.staffed else wait
        item.predicted_first_token = (wait or 0.0) + self.estimates.first_token(computed, request, None, now)
        self.estimates.let_in(request, cost, now)
        events: list[Event] = [] if shed is None else [self._evict(shed, now, shed=True)]
        own: Granted | None = None
        for event in self._dispatch(now):
            if isinstance(event, Granted) and event.request is request:
                own = event
            else:
                events.append(event)
        return own or Queued(request), events

    # ---- serving the queue ---------------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> list[Event]:
        """Grants to waiting requests, in order, until none that may go next fits; then room is made, if it must be."""
        events: list[Event] = []
        if not len(self.backlog):
            self.estimates.observe(now, backlogged=False)
            return self.shadows.dispatch(now) if len(self.shadows) else events
        while (found := self._selection.next(now)) is not None:
            item, worker, overtook = found
            self.backlog.dispatch(item)
            self.estimates.observe(now, backlogged=True, granted=item.cost)
            waited = now - item.queued_at
            self.estimates.waited(item.request, item.predicted_wait, waited, now)
            self._timeliness.waited(in_vain=False)
            granted = self._hold(item.request, worker, item.cost, now, item)
            events.append(replace(granted, overtook=overtook) if overtook else granted)
        waiting = len(self.backlog) > 0
        self.estimates.observe(now, backlogged=waiting and self.fleet.staffed)
        if waiting:
            self.shadows.others_waited = now
            if self.shadows.running:
                events += self.shadows.make_way(self.backlog.waiting(), now)
            events += self._timeliness.make_room(now)
        return events

    # ---- books ---------------------------------------------------------------------------------------------------

    def _hold(self, request: Request, worker: Worker, cost: float, now: float, item: Item | None = None) -> Granted:
        computed = self.estimates.computed_first_token(request, worker, self.fleet, now)
        self.fleet.reserve(request, worker.spec.worker, now)
        self.edge_shedding.granted(request, cost, now)
        waited, pressure, predicted = 0.0, 0.0, self.estimates.first_token(computed, request, worker, now)
        if item is not None:
            waited, predicted = now - item.queued_at, item.predicted_first_token
            pressure = self._timeliness.pressure(item, now)
        self.books.open(Held(request, worker.spec.worker, cost, waited, computed, predicted, now))
        return Granted(request, worker.spec.worker, waited, pressure, predicted)

    def _give_back(self, request_id: str) -> None:
        held = self.fleet.release(request_id)
        if held is not None:
            self.backlog.unpark(held.request.tenant)

    def _disown(self, request_ids: list[str], now: float) -> int:
        count = self.fleet.disown(request_ids, now)
        if count:
            self.backlog.unpark()
        for request_id in request_ids:
            self.books.forget(request_id)
        return count

    def _take_out(self, request_id: str) -> bool:
        """The request waits no more, nor is room made for it. False when it did not wait."""
        if self.backlog.remove(request_id) is None:
            return self.shadows.remove(request_id)
        self.fleet.preemption.over(request_id)
        return True

    def _evict(self, item: Item, now: float, *, shed: bool = False) -> Refused:
        self.fleet.preemption.over(item.request.request_id)
        if not shed and item.limit in ("queue", "ttft_target") and self.fleet.over_version_share(item.request):
            item.limit = "version_share"
        if not shed:
            self.estimates.waited(item.request, item.predicted_wait, now - item.queued_at, now)
            if item.limit == "ttft_target" and item.predicted_wait is not None:  # an outage teaches nothing
                self._timeliness.waited(in_vain=True)
        wait = self.estimates.wait(item.request, self.backlog, self.fleet, now) or 1.0
        wait += self._turns.next(item.request, item.cost, self.edge_shedding.rate_of(item.request, now), now)
        return self._refused(self._refusals.evicted(item, now, wait, shed=shed), item.cost, now)

    def _evict_stranded(self, now: float) -> list[Event]:
        stranded = self._absence.stranded(self.backlog.waiting(), now)
        for item in stranded:
            self.backlog.remove(item.request.request_id)
            item.limit = "workers"
        return [self._evict(item, now) for item in stranded]

    def _full(self, request: Request, limit: str, wait: float | None, cost: float, now: float) -> Refused:
        turn = self._turns.next(request, cost, self.edge_shedding.rate_of(request, now), now)
        return self._refused(self._refusals.full(request, limit, (wait or 1.0) + turn), cost, now)

    def _refused(self, refused: Refused, cost: float, now: float) -> Refused:
        """The refusal as it is told: for want of room, or of anybody who could serve it."""
        request = refused.request
        if self.fleet.deserted(request, now):
            other = bool(self.fleet.serving(request.model_version))
            grace = self.limits.absence_grace
            return self._refusals.nobody_serves(request, other=other, retry_after=grace, waited=refused.waited)
        if self._fair and refused.outcome in OVERLOAD:
            self.edge_shedding.refused(refused.request, cost, refused.retry_after, now)
        return refused
