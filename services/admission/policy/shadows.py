"""Shadow requests: mirrored copies that nobody waits for, and that must cost those who do nothing worth noticing.

They are kept apart from the backlog, so that nothing of it (order, fairness, predictions, levels) knows of them:

- **Start** only when nobody else waits in the pool, nor has in the last `shadow_calm` seconds, and where a worker's
  utilisation is at most `shadow_room` with the copy included. Otherwise up to `shadow_queue` of them wait, first come
  first served, for their class's TTL; without that calm newcomers are refused at once. A pool at its limits has moments
  without a queue, and to begin and interrupt copies in each of them would cost it something.
- **Stop**: the moment that anybody waits, all shadow requests on the workers that this one may use are interrupted, and
  at every tick those on workers that others' work has brought to `shadow_yield`.

So a request waits for shadow requests at most from its arrival until those are interrupted and released: one
interruption's way through worker and gateway, and `prefill_settle` more when one was granted only just before.

They take no part in prefix affinity (their prefixes would push out those of others), and say nothing about workers'
health, lengths and first tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from services.admission.policy.books import Books, Held
from services.admission.policy.fair_queue import Item
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Event,
    Granted,
    Interrupt,
    Outcome,
    QueueClass,
    Queued,
    Refused,
    Request,
)
from services.admission.policy.refusals import Refusals
from services.admission.policy.worker import Worker

_LOOKED_AT = 16  # waiting requests for which shadow requests are interrupted at a time


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    queued_at: float
    expires_at: float


class Shadows:
    """Those of one pool."""

    def __init__(self, limits: Limits, fleet: Fleet, books: Books, refusals: Refusals) -> None:
        self._limits = limits
        self._fleet = fleet
        self._books = books
        self._refusals = refusals
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self.others_waited = -math.inf
        """When anybody else was last seen to wait in the pool."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many hold a share."""
        return self._books.running[QueueClass.SHADOW]

    def find(self, request_id: str) -> Request | None:
        """The waiting one of this id."""
        waiting = self._waiting.get(request_id)
        return waiting.request if waiting is not None else None

    def remove(self, request_id: str) -> bool:
        """It waits no more. False when it did not."""
        return self._waiting.pop(request_id, None) is not None

    def admit(self, request: Request, now: float, *, others: bool) -> Granted | Queued | Refused:
        """Grants, queues or refuses one that is new; `others` wait in the pool."""
        request = replace(request, prefix_hashes=())
        busy = others or not self._calm(now)
        if not (busy or self._waiting or request.resumed_tokens):
            worker = self._pick(request, now)
            if worker is not None:
                return self._grant(request, worker, 0.0, now)
        # One that was interrupted has had its chance: to go on, it would prefill its prompt a second time.
        if busy or request.resumed_tokens or len(self._waiting) >= self._limits.shadow_queue:
            message = "Shadow requests run only where nobody else wants to."
            return self._refusals.refuse(request, Outcome.REJECTED_QUEUE_FULL, message, limit="shadow")
        expires_at = min(now + self._limits.ttl(QueueClass.SHADOW), request.deadline - self._limits.return_margin)
        self._waiting[request.request_id] = _Waiting(request, now, expires_at)
        return Queued(request)

    def dispatch(self, now: float) -> list[Event]:
        """Grants to those that wait, in order, while they fit. Only for when nobody else waits in the pool."""
        events: list[Event] = []
        if not self._calm(now):
            return events
        full: set[str] = (
            set()
        )  # versions whose workers have no room: the first that waits for one stands for the others
        for waiting in list(self._waiting.values()):
            request = waiting.request
            worker = self._pick(request, now) if request.model_version not in full else None
            if worker is None:
                full.add(request.model_version)
            else:
                del self._waiting[request.request_id]
                events.append(self._grant(request, worker, now - waiting.queued_at, now))
        return events

    def tick(self, now: float) -> list[Event]:
        """Evicts those that waited too long; interrupts those on workers that have become too full."""
        events: list[Event] = []
        for waiting in [each for each in self._waiting.values() if each.expires_at <= now]:
            del self._waiting[waiting.request.request_id]
            events.append(
                self._refusals.refuse(
                    waiting.request,
                    Outcome.EVICTED_TTL,
                    "There was no room to spare for a shadow request.",
                    limit="shadow",
                    waited=now - waiting.queued_at,
                )
            )
        if self.running:
            crowded = (w for w in self._holding() if w.room(now).utilisation >= self._limits.shadow_yield)
            events += self._interrupt(crowded, now)
        return events

    def make_way(self, waiting: Iterable[Item], now: float) -> list[Interrupt]:
        """Interrupts all on the workers that those who are `waiting` may use, the first of them at least."""
        holding = {worker.spec.worker: worker for worker in self._holding()} if self.running else {}
        found: list[Worker] = []
        for item in islice(waiting, _LOOKED_AT):
            if not holding:
                break
            request, fleet = item.request, self._fleet
            if fleet.over_version_share(request):
                found += holding.values()  # what they hold may be what its version lacks
                break
            if not fleet.over_share(request):
                found += [holding.pop(w.spec.worker) for w in fleet.eligible(request) if w.spec.worker in holding]
        return self._interrupt(found, now)

    def drain(self, now: float) -> list[Event]:
        """This process goes away: those that wait are refused."""
        gone = list(self._waiting.values())
        self._waiting.clear()
        return [self._refusals.draining(each.request, now - each.queued_at) for each in gone]

    def _calm(self, now: float) -> bool:
        return now - self.others_waited >= self._limits.shadow_calm

    def _grant(self, request: Request, worker: Worker, waited: float, now: float) -> Granted:
        self._fleet.reserve(request, worker.spec.worker, now)
        self._books.open(Held(request, worker.spec.worker, 0.0, waited, 0.0, 0.0, now))
        return Granted(request, worker.spec.worker, waited)

    def _pick(self, request: Request, now: float) -> Worker | None:
        """The least utilised worker that may take it; None when it would use more than `shadow_room` of each."""
        best: Worker | None = None
        least = self._limits.shadow_room
        fleet = self._fleet
        for worker in fleet.eligible(request):
            room = worker.room(now)
            if fleet.outliers.watched(worker.spec.worker) or worker.trusted(now) < 1.0:
                continue
            need = fleet.need(request, worker)
            blocks = 1.0 - (worker.unheld_blocks(now) - need) / worker.spec.total_blocks
            sequences = 1.0 - (worker.unheld_sequences(now) - request.choices) / worker.most_sequences
            use = max(room.utilisation, blocks, sequences)
            if (use < least or (best is None and use == least)) and fleet.fits(request, worker, now):
                best, least = worker, use
        return best

    def _holding(self) -> list[Worker]:
        """Workers that run any."""
        return [w for w in self._fleet.workers.values() if w.held_by_class.get(QueueClass.SHADOW, (0, 0))[1]]

    def _interrupt(self, workers: Iterable[Worker], now: float) -> list[Interrupt]:
        preemption = self._fleet.preemption
        asked = ((w.spec.worker, preemption.of_class(QueueClass.SHADOW, w, now)) for w in workers)
        return [Interrupt(worker, request_ids) for worker, request_ids in asked if request_ids]
