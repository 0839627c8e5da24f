"""One pool's admission: the state machine that ties queue, ledger, placement and rate together.

Question and command are one here: `admit` answers at once with Granted, Queued or Refused. Whatever changes capacity
or the queue returns the events (grants and evictions of queued requests) that follow from it. Every request leaves
exactly once: by the answer of `admit`, by one event, or by `cancel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.admission.policy.backlog import Backlog
from services.admission.policy.fair_queue import Item
from services.admission.policy.ledger import Ledger, Reservation, Worker
from services.admission.policy.model import (
    Event,
    Granted,
    Limits,
    Outcome,
    Queued,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.placement import Failed, eligible
from services.admission.policy.rate import ServiceRate, cost_ahead
from services.admission.policy.refusals import MIN_RETRY_AFTER, never_fits, refuse

_SWEEP = 1.0  # seconds between two looks for overdue shares
_MOVES = "Admission moves to another process; try again."
_FULL = "Too many requests wait already."


class Pool:
    """Decides for one pool. All `now` are the same monotonic clock's seconds and must not go back."""

    def __init__(self, name: str, limits: Limits, *, now: float) -> None:
        self.name = name
        self.limits = limits
        self.ledger = Ledger(limits)
        self.backlog = Backlog(limits)
        self._rate = ServiceRate()
        self._born = now
        self._last_served: dict[str, float] = {}  # model version → when its last worker went
        self._next_sweep = now
        self._draining = False

    # ---- requests ------------------------------------------------------------------------------------------------

    def admit(self, request: Request, now: float) -> tuple[Granted | Queued | Refused, list[Event]]:
        """Grants at once when there is room and nobody waits; else queues or refuses. Idempotent by request id.

        The events concern other requests (one may be shed for this one). A request that holds a share already is
        granted it again while that still covers it; one that waits already goes on waiting.
        """
        repeated = self._repeated(request)
        if repeated is not None:
            return repeated, []
        refused = self._hopeless(request, now)
        if refused is not None:
            return refused, []
        if not len(self.backlog):
            granted = self._grant_directly(request, now)
            if granted is not None:
                return granted, []
        refused = self._no_room(request, now) or self._too_late(request, now)
        if refused is not None:
            return refused, []
        return self._enqueue(request, now)

    def release(self, request_id: str, now: float, *, output_tokens: int | None = None) -> tuple[bool, list[Event]]:
        """The request has ended after `output_tokens`, or (None) was never submitted. Was it known, and what follows.

        A request that still waits is taken out of the queue.
        """
        if self.backlog.remove(request_id) is not None:
            return True, self._dispatch(now)
        reservation = self.ledger.release(request_id)
        if reservation is None:
            return False, []
        self._settle(reservation, output_tokens)
        return True, self._dispatch(now)

    def cancel(self, request_id: str, now: float) -> tuple[bool, list[Event]]:
        """A waiting request's caller gave up. False when it does not wait (any more)."""
        if self.backlog.remove(request_id) is None:
            return False, []
        return True, self._dispatch(now)

    def abandon(self, owner: str, now: float) -> tuple[int, list[Event]]:
        """A gateway is gone for good: its shares are given back; what still runs shows in the workers' reports."""
        count = self.ledger.disown(self.ledger.owned_by(owner), now)
        return count, self._dispatch(now) if count else []

    # ---- workers -------------------------------------------------------------------------------------------------

    def worker_joined(self, spec: WorkerSpec, now: float) -> None:
        """A worker opened its capacity stream. It gets work from its first report on."""
        self.ledger.join(spec, now)

    def worker_reported(self, worker: str, report: Report, now: float) -> list[Event]:
        """A worker told its load."""
        account = self.ledger.workers.get(worker)
        if account is None:
            return []
        account.heard(report, now)
        return self._dispatch(now)

    def worker_left(self, worker: str, now: float) -> bool:
        """A worker's stream broke or fell silent: it gets no work from this moment. False when it was not there."""
        account = self.ledger.workers.get(worker)
        if account is None or not self.ledger.leave(worker):
            return False
        for version in account.spec.model_versions:
            self._last_served[version] = now
        return True

    def drain_worker(self, worker: str) -> None:
        """A worker is asked to finish: it gets no new work from this moment until it joins anew."""
        account = self.ledger.workers.get(worker)
        if account is not None:
            account.draining = True

    def silent_workers(self, now: float, heartbeat: float) -> list[str]:
        """Live workers that were not heard of for longer than `heartbeat` seconds."""
        return [
            name for name, worker in self.ledger.workers.items() if worker.live and now - worker.last_heard > heartbeat
        ]

    # ---- time and life -------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Event]:
        """What the passing of time brings: evictions, overdue shares, kept work that expired. Call it often."""
        events: list[Event] = [self._evict(item, now) for item in self.backlog.expired(now)]
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP
            self.ledger.disown(self.ledger.overdue(now), now)
        events += self._dispatch(now)
        return events

    def drain(self, now: float) -> list[Event]:
        """This process goes away: new requests are refused, waiting ones sent elsewhere."""
        self._draining = True
        return [
            refuse(item.request, Outcome.DRAINING, _MOVES, retry_after=MIN_RETRY_AFTER, waited=now - item.queued_at)
            for item in self.backlog.clear()
        ]

    @property
    def idle(self) -> bool:
        """Nothing waits and no share is held."""
        return not len(self.backlog) and not self.ledger.reservations

    # ---- admitting -----------------------------------------------------------------------------------------------

    def _repeated(self, request: Request) -> Granted | Queued | Refused | None:
        """The answer for a request id that is known already; None when it is not, or no longer of use."""
        item = self.backlog.find(request.request_id)
        held = self.ledger.reservations.get(request.request_id)
        known = item.request if item else held.request if held else None
        if known is None:
            return None
        if known.tenant != request.tenant:
            return refuse(request, Outcome.INVALID_REQUEST, "The request id is in use.", limit="request_id")
        if item is not None:
            if _covers(known, request):
                return Queued(known)
            self.backlog.remove(request.request_id)
        elif held is not None:
            return self._held_already(held, request)
        return None

    def _held_already(self, held: Reservation, request: Request) -> Granted | None:
        worker = self.ledger.workers[held.worker]
        if worker.live and held.worker not in request.excluded and _covers(held.request, request):
            held.request = replace(held.request, owner=request.owner)
            held.until = request.deadline + self.limits.release_grace
            return Granted(held.request, held.worker)
        # A migration: the old worker is lost or failed it, so the request needs another share, not a second one.
        released = self.ledger.release(request.request_id)
        if released is not None:
            self._settle(released, None)
        return None

    def _hopeless(self, request: Request, now: float) -> Refused | None:
        """The refusals that no waiting can change."""
        if self._draining:
            return refuse(request, Outcome.DRAINING, _MOVES, retry_after=MIN_RETRY_AFTER)
        if request.deadline <= now:
            return refuse(request, Outcome.REJECTED_DEADLINE, "The deadline has passed.", limit="deadline")
        serving = self.ledger.serving(request.model_version)
        if not serving:
            return self._nobody_serves(request, now)
        candidates = self.ledger.eligible(request)
        if not candidates:
            return refuse(
                request,
                Outcome.REJECTED_NO_CAPACITY,
                f"No other worker serves {request.model_version}.",
                limit="workers",
                retry_after=self.limits.absence_grace,
            )
        if any(worker.could_ever_fit(request) for worker in candidates):
            return None
        return never_fits(request, candidates)

    def _nobody_serves(self, request: Request, now: float) -> Refused | None:
        """Right after a start or a loss workers may be on their way back: then the request may wait."""
        if now - self._last_served.get(request.model_version, self._born) < self.limits.absence_grace:
            return None
        return refuse(
            request,
            Outcome.REJECTED_NO_CAPACITY,
            f"No worker serves {request.model_version}.",
            limit="workers",
            retry_after=self.limits.absence_grace,
        )

    def _grant_directly(self, request: Request, now: float) -> Granted | None:
        worker = self.ledger.pick(request, now)
        if worker is None:
            return None
        reservation = self.ledger.reserve(request, worker.spec.worker, now)
        queue = self.backlog.queues[request.queue_class]
        queue.charge(request.tenant, request.weight, reservation.cost)
        return Granted(request, worker.spec.worker)

    def _no_room(self, request: Request, now: float) -> Refused | None:
        limit = self.backlog.room_for(request)
        if not limit:
            return None
        retry_after = self._wait_of(request, now) or 1.0
        return refuse(request, Outcome.REJECTED_QUEUE_FULL, _FULL, limit=limit, retry_after=retry_after)

    def _too_late(self, request: Request, now: float) -> Refused | None:
        """Early rejection: better told now than after the wait."""
        wait = self._wait_of(request, now)
        allowed = request.deadline - self.limits.return_margin - now
        if wait is None or wait <= allowed:
            return None
        return refuse(
            request,
            Outcome.REJECTED_DEADLINE,
            "The deadline cannot be met by the present queue.",
            limit="deadline",
            retry_after=wait - max(0.0, allowed),
        )

    def _wait_of(self, request: Request, now: float) -> float | None:
        """Seconds that the request would wait, by the present rate of service; None when that is not known."""
        self._rate.observe(now, backlogged=len(self.backlog) > 0)
        rate = self._rate.per_second()
        if rate is None:
            return None
        queue = self.backlog.queues[request.queue_class]
        higher = self.backlog.higher(request.queue_class)
        cost = self.limits.cost_of(request)
        return cost_ahead(queue, request.tenant, request.weight, cost, higher) / rate

    def _enqueue(self, request: Request, now: float) -> tuple[Granted | Queued | Refused, list[Event]]:
        item, shed = self.backlog.push(request, now)
        if shed is item:
            retry_after = self._wait_of(request, now) or 1.0
            refused = refuse(request, Outcome.REJECTED_QUEUE_FULL, _FULL, limit="queue", retry_after=retry_after)
            return refused, []
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
        """Grants to waiting requests, in order, until none that may go next fits."""
        events: list[Event] = []
        if not len(self.backlog):
            self._rate.observe(now, backlogged=False)
            return events
        while (found := self._next(now)) is not None:
            item, worker = found
            self.backlog.dispatch(item)
            self.ledger.reserve(item.request, worker, now)
            self._rate.observe(now, backlogged=True, granted=item.cost)
            events.append(Granted(item.request, worker, waited=now - item.queued_at))
        self._rate.observe(now, backlogged=len(self.backlog) > 0)
        return events

    def _next(self, now: float) -> tuple[Item, str] | None:
        """The first request in order that fits a worker, and that worker.

        Requests that do not fit may be overtaken by later ones that do, so that capacity is not left idle; but only
        `max_bypass` times: then the worker nearest to having room is kept for them, so that large requests do not
        starve behind small ones.
        """
        if not self.ledger.any_room(now):
            return None
        blocked: list[Item] = []
        kept: set[str] = set()
        failed = Failed()
        for item in self.backlog.in_order():
            request = item.request
            if not failed.includes(request):
                worker = self.ledger.pick(request, now, kept=kept)
                if worker is not None:
                    self._count_bypassed(blocked, worker)
                    return item, worker.spec.worker
                failed.add(request)
            blocked.append(item)
            if item.bypassed >= self.limits.max_bypass:
                keep = self.ledger.to_keep(request, now, kept=kept)
                if keep is not None:
                    kept.add(keep.spec.worker)
        return None

    def _count_bypassed(self, blocked: Sequence[Item], worker: Worker) -> None:
        for item in blocked:
            if item.request.model_version in worker.spec.model_versions and eligible(item.request, (worker,)):
                item.bypassed += 1

    def _settle(self, reservation: Reservation, output_tokens: int | None) -> None:
        """Corrects the tenant's charge to what the request really cost."""
        request = reservation.request
        actual = 0.0 if output_tokens is None else self.limits.cost(request.prompt_tokens, output_tokens)
        queue = self.backlog.queues[request.queue_class]
        queue.refund(request.tenant, request.weight, max(0.0, reservation.cost - actual))

    def _evict(self, item: Item, now: float, *, shed: bool = False) -> Refused:
        request, waited = item.request, now - item.queued_at
        retry_after = self._wait_of(request, now) or 1.0
        if shed:
            outcome, message = Outcome.EVICTED_SHED, "Shed for more urgent requests under overload."
        elif item.expires_at < request.deadline - self.limits.return_margin:
            outcome, message = Outcome.EVICTED_TTL, "Waited longer than this class may wait."
        else:
            outcome, message = Outcome.EVICTED_DEADLINE, "The deadline came while waiting for a worker."
        return refuse(request, outcome, message, limit="queue", retry_after=retry_after, waited=waited)


def _covers(held: Request, asked: Request) -> bool:
    """Would a grant for `held` do for `asked`?"""
    return (
        held.model_version == asked.model_version
        and held.prompt_tokens >= asked.prompt_tokens
        and held.max_output_tokens >= asked.max_output_tokens
        and held.choices >= asked.choices
    )
