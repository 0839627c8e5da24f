"""How refusals are worded and when the caller is told to come back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from services.admission.policy.fair_queue import Item
from services.admission.policy.model import Outcome, Refused, Request
from services.admission.policy.worker import Worker

MIN_RETRY_AFTER = 0.1
"""Seconds; coming back sooner finds the same queue."""
MAX_RETRY_AFTER = 60.0
"""Seconds; an estimate beyond is no better than this."""
_JITTER = 0.5  # most that is added, as a share: callers that were refused together must not come back together

_LAST_TURN = 10.0  # seconds; whoever does not come back leaves a turn unused, so that many of them say little
_UNKNOWN_TURN = 0.05  # seconds that a turn takes of a tenant that gets nothing at present

OVERLOAD = frozenset(
    {
        Outcome.REJECTED_QUEUE_FULL,
        Outcome.REJECTED_DEADLINE,
        Outcome.EVICTED_TTL,
        Outcome.EVICTED_DEADLINE,
        Outcome.EVICTED_SHED,
    }
)
"""Refusals for want of capacity now; the others would be given to an idle pool too."""


class Turns:
    """When refused requests of one tenant may come back: one after the other, as fast as the tenant is served, or all
    would come back to the same queue. Memory: the last `max_tracked` tenants that were refused."""

    def __init__(self, *, max_tracked: int = 10_000) -> None:
        self._max_tracked = max_tracked
        self._until: OrderedDict[str, float] = OrderedDict()  # when the last that was told to come back will be served

    def next(self, request: Request, cost: float, rate: float, now: float) -> float:
        """Seconds until those of the tenant's that were refused before are served; `rate` in cost units per second is
        what it gets. Takes the next turn."""
        turn = max(0.0, self._until.pop(request.tenant, now) - now)
        took = cost / rate if rate > 0.0 else _UNKNOWN_TURN
        self._until[request.tenant] = now + min(_LAST_TURN, turn + took)
        if len(self._until) > self._max_tracked:
            self._until.popitem(last=False)
        return turn


class Refusals:
    """Words refusals for one pool."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` draws from 0 to 1."""
        self._chance = chance

    def refuse(
        self,
        request: Request,
        outcome: Outcome,
        message: str,
        *,
        limit: str = "",
        retry_after: float | None = None,
        waited: float = 0.0,
    ) -> Refused:
        """A refusal whose `retry_after` (seconds) is kept within bounds and jittered, upwards only."""
        if retry_after is not None:
            retry_after = min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, retry_after)) * (1.0 + _JITTER * self._chance())
        return Refused(request, outcome, message, limit, retry_after, waited)

    def draining(self, request: Request, waited: float = 0.0) -> Refused:
        """This process goes away."""
        message = "Admission moves to another process; try again."
        return self.refuse(request, Outcome.DRAINING, message, retry_after=MIN_RETRY_AFTER, waited=waited)

    def full(self, request: Request, limit: str, retry_after: float) -> Refused:
        """No room to wait in."""
        message = "Too many requests wait already."
        return self.refuse(request, Outcome.REJECTED_QUEUE_FULL, message, limit=limit, retry_after=retry_after)

    def too_late(self, request: Request, limit: str, retry_after: float) -> Refused:
        """The queue is too long for the request's deadline or TTFT target."""
        what = "deadline" if limit == "deadline" else "target for the first token"
        message = f"The {what} cannot be met by the present queue."
        return self.refuse(request, Outcome.REJECTED_DEADLINE, message, limit=limit, retry_after=retry_after)

    def evicted(self, item: Item, now: float, retry_after: float, *, shed: bool = False) -> Refused:
        """It waited in vain."""
        if shed:
            outcome, message = Outcome.EVICTED_SHED, "Shed for more urgent requests under overload."
        elif item.limit == "deadline":
            outcome, message = Outcome.EVICTED_DEADLINE, "The deadline came while waiting for a worker."
        elif item.limit == "ttft_target":
            outcome, message = Outcome.EVICTED_TTL, "The first token would come later than its target."
        elif item.limit == "version_share":
            outcome, message = Outcome.EVICTED_TTL, "Its model version has all of the pool that it may have."
        else:
            outcome, message = Outcome.EVICTED_TTL, "Waited longer than this class may wait."
        limit = "queue" if shed else item.limit
        waited = now - item.queued_at
        return self.refuse(item.request, outcome, message, limit=limit, retry_after=retry_after, waited=waited)

    def nobody_serves(self, request: Request, *, other: bool, retry_after: float, waited: float = 0.0) -> Refused:
        """There is no (`other`) worker of its version, or none came back while it waited."""
        message = f"No {'other ' if other else ''}worker serves {request.model_version}."
        return self.refuse(
            request, Outcome.NO_WORKERS, message, limit="workers", retry_after=retry_after, waited=waited
        )

    def never_fits(self, request: Request, candidates: Sequence[Worker]) -> Refused:
        """Why the request fits none of these workers (at least one) even when they are empty."""
        tokens = request.prompt_tokens + request.max_output_tokens
        context = max(worker.spec.max_context for worker in candidates)
        if tokens > context:
            return self.refuse(
                request,
                Outcome.CONTEXT_LENGTH_EXCEEDED,
                f"Prompt and output of {tokens} tokens exceed the context of {context}.",
                limit="max_context",
            )
        return self.refuse(
            request,
            Outcome.REJECTED_NO_CAPACITY,
            f"{request.choices} choices of {tokens} tokens fit no worker of {request.model_version}, even empty.",
            limit="kv_blocks",
        )
