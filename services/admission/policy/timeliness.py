"""What is too late, what is about to be, and what is interrupted for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from services.admission.policy.backlog import Backlog
from services.admission.policy.books import Books
from services.admission.policy.estimates import Estimates
from services.admission.policy.fair_queue import Item
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    QUEUED_CLASSES,
    Interrupt,
    QueueClass,
    Request,
)
from services.admission.policy.worker import Worker

_INTERRUPTING = (QueueClass.PAID, QueueClass.FREE, QueueClass.OVER_QUOTA)
_GRANTED, _IN_VAIN = 0.01, -0.1
"""What the end of a wait adds to `Timeliness.allowed_share`: one in vain weighs as much as ten grants."""
_LOOKED_AT = 16  # waiting requests for which less urgent work may be interrupted


@dataclass(frozen=True, slots=True)
class Late:
    """Why a request would come too late, and by how much."""

    limit: str  # "deadline" or "ttft_target"
    by: float  # seconds


class Timeliness:
    """Compares predictions with deadlines and TTFT targets, for one pool. Resumed requests had their first token: they
    have a deadline, but no target."""

    def __init__(
        self, limits: Limits, estimates: Estimates, fleet: Fleet, backlog: Backlog, books: Books, *, now: float
    ) -> None:
        self._limits = limits
        self._estimates = estimates
        self._fleet = fleet
        self._backlog = backlog
        self._fair = limits.discipline == "fair"
        self._books = books
        self._next_interrupt = now
        self.allowed_share = 1.0
        """Of the time to a target, the share that a predicted wait may take: all while waits end with grants."""

    def waited(self, *, in_vain: bool) -> None:
        """A wait is over: with a grant, or `in_vain`, as the target could not be met any more."""
        share = self.allowed_share + (_IN_VAIN if in_vain else _GRANTED)
        self.allowed_share = min(1.0, max(self._limits.wait_caution, share))

    def leave_by(self, request: Request, computed: float, now: float) -> float:
        """When waiting on is of no use any more; `computed` as by `Estimates.computed_first_token`."""
        if not self._has_target(request):
            return math.inf
        return request.ttft_by - self._estimates.first_token_at_worst(computed, request, now)

    def in_time(self, request: Request, worker: Worker, now: float) -> bool:
        """Would its first token come in time from this worker now? Also yes when no worker could be quicker and
        nobody waits: then it is not load that makes it late."""
        if not self._has_target(request):
            return True
        estimates, left = self._estimates, request.ttft_by - now
        computed = estimates.computed_first_token(request, worker, self._fleet, now)
        if estimates.first_token(computed, request, worker, now) <= left:
            return True
        waiting = len(self._backlog)
        if waiting > 1 or (waiting == 1 and self._backlog.find(request.request_id) is None):
            return False  # somebody else waits
        unloaded = estimates.unloaded_first_token(request, self._fleet, now)
        return estimates.first_token(unloaded, request, None, now) > left

    def late(self, request: Request, wait: float | None, now: float) -> Late | None:
        """Early rejection: better told now than after the wait. Resumed requests are never too late to go on."""
        if not self._fair or request.resumed_tokens:
            return None
        estimates = self._estimates
        computed = estimates.computed_first_token(request, None, self._fleet, now)
        left = request.deadline - self._limits.return_margin - estimates.first_token(computed, request, None, now) - now
        by_deadline = (wait or 0.0) - left
        by_target = -math.inf
        if request.ttft_by < math.inf:
            left = request.ttft_by - estimates.first_token_at_worst(computed, request, now) - now
            # The first of its class may try at its own risk: else a class could be refused for ever by a prediction.
            share = self.allowed_share if len(self._backlog.queue_of(request)) else 1.0
            by_target = (wait or 0.0) - share * left
        late = Late("deadline", by_deadline) if by_deadline >= by_target else Late("ttft_target", by_target)
        return late if late.by > 0.0 else None

    def may_interrupt(self, request: Request) -> bool:
        """Is there less urgent work to interrupt beyond what those before it will need? Shadows go for anybody."""
        own = request.queue_class
        if not self._fair:
            return False
        less = self._books.running[QueueClass.SHADOW]
        if own is not QueueClass.BATCH:
            less += max(0, self._interruptible(own))
        before = sum(len(queue) for other, queue in self._backlog.queues.items() if other <= own)
        return less > before

    def make_room(self, now: float) -> list[Interrupt]:
        """Whom to interrupt for a waiting request that would come too late otherwise; at most one worker's, and not
        more often than every `preempt_interval`."""
        if not self._fair or now < self._next_interrupt:
            return []
        self._next_interrupt = now + self._limits.preempt_interval
        if not any(self._interruptible(queue_class) > 0 for queue_class in _INTERRUPTING):
            return []
        for item in islice(self._backlog.waiting(), _LOOKED_AT):
            request = item.request
            if request.queue_class is QueueClass.BATCH or self._interruptible(request.queue_class) <= 0:
                continue
            patience = self._limits.preempt_after
            if self._has_target(request):
                patience = (item.expires_at - item.queued_at) / 2
            if item.urgent or now - item.queued_at >= patience:
                interrupt = self._fleet.victims(request, now)
                if interrupt is not None:
                    return [interrupt]
        return []

    def pressure(self, item: Item, now: float) -> float:
        """The predicted wait of another such request, as a share of what it may take; from 1 on it is refused."""
        if not len(self._backlog):
            return 0.0
        request = item.request
        wait = self._estimates.wait(request, self._backlog, self._fleet, now) or 0.0
        allowed = self._limits.ttl(request.queue_class)
        if self._has_target(request):
            computed = self._estimates.computed_first_token(request, None, self._fleet, now)
            target = request.ttft_by - item.queued_at - self._estimates.first_token_at_worst(computed, request, now)
            allowed = self.allowed_share * max(target, 1e-3)
        return wait / allowed

    def _has_target(self, request: Request) -> bool:
        return self._fair and request.ttft_by < math.inf and not request.resumed_tokens

    def _interruptible(self, queue_class: QueueClass) -> int:
        """Requests that run in the backlog's classes below, but for the share that is reserved for them."""
        running = self._books.running
        lower = sum(running[other] for other in QUEUED_CLASSES if other > queue_class)
        if not lower:
            return 0
        return lower - int(self._limits.reserved_share * sum(running[each] for each in QUEUED_CLASSES))
