"""Grants in use: submissions to workers, cancels, and the move to another worker when one is lost or interrupted.

A stream that moves goes on exactly where it was: the next worker gets the prompt and every token that was delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from services.gateway import metrics
from services.gateway.arms import VERSION_CHANGED, Arms
from services.gateway.choice import Choice
from services.gateway.closing import Closing
from services.gateway.generation import Generation
from services.gateway.moves import Moving
from services.gateway.policy.turnover import jittered
from services.gateway.ports import AdmissionPort, WorkerPort
from services.gateway.request import Request, divert_message, readmit_message, submission

log = get_logger(__name__)
_LATE = (Reason.DEADLINE_EXCEEDED, Reason.EVICTED_DEADLINE)


class Dispatch:
    """Runs granted requests on workers. One per process."""

    def __init__(
        self,
        *,
        admission: AdmissionPort,
        workers: WorkerPort,
        closing: Closing,
        arms: Arms,
        max_migrations: int,
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._workers = workers
        self._closing = closing
        self._arms = arms
        self._max_migrations = max_migrations
        self._clock = clock
        self._chance = chance
        self._moves: set[asyncio.Task[None]] = set()

    @property
    def moving(self) -> int:
        """Requests that look for another worker."""
        return len(self._moves)

    def submit(self, request: Request, generation: Generation, choices: Sequence[Choice]) -> None:
        """Send choices to the worker that was granted."""
        granted = request.granted
        if granted is None:
            raise RuntimeError("submitted before it was granted")
        generation.next_leg(self._clock.monotonic())
        submissions = [
            (submission(request, granted, generation.parameters, choice, self._clock), choice) for choice in choices
        ]
        for choice, handle in zip(choices, self._workers.submit(granted, submissions), strict=True):
            choice.handle = handle

    def running(self, request: Request) -> Running:
        """What the request's generation is to ask of its workers."""
        return Running(self, request)

    def cancel(self, request: Request, choice: Choice) -> None:
        """End a choice on its worker."""
        if request.granted is not None and choice.handle:
            self._workers.cancel(request.granted.worker, [choice.handle])
            choice.handle = 0

    def move(self, request: Request, moving: Moving) -> None:
        """Run what is left of a request on another grant; see `WorkerEvents.move`."""
        generation = request.generation
        if generation is None or generation.end is not None or request.granted is None:
            return
        lost, request.granted = request.granted, None
        # After a refusal, other choices may run on that worker: they end there before they go on elsewhere.
        self._workers.cancel(lost.worker, [choice.handle for choice in generation.choices if choice.handle])
        for choice in generation.choices:
            choice.handle = 0
            choice.end_if_whole()
        refused = moving in (Moving.REFUSED, Moving.ABSENT)
        self._closing.release(request, failed=moving is Moving.LOST, cut_short=True, refused=refused)
        if moving is Moving.LOST:
            self._closing.outcome(request, lost.zone, ok=False)
        if all(choice.ending is not None for choice in generation.choices):
            return
        metrics.MOVED.labels(moving.value).inc()
        if moving.counted:
            if request.faults >= self._max_migrations:
                metrics.MIGRATIONS.labels("exhausted").inc()
                generation.fail(self._worker_lost("the worker was lost"))
                return
            request.faults += 1
        self._start(request, generation, moving, lost.worker if moving.shuns else "")

    def taken_out(self, request: Request, *, migrate: bool) -> None:
        """The request's arm is out of force. If it is to `migrate`, and what its caller gets now can go on with its
        tokens, it goes there; so does one that waits for a worker anyway."""
        generation = request.generation
        if generation is None or generation.end is not None:
            return
        if request.granted is not None:
            if migrate and self._arms.elsewhere(request) is not None:
                self.move(request, Moving.TAKEN_OUT)
        elif request.moving is not None and self._arms.elsewhere(request) is not None:
            request.moving.cancel()
            metrics.MOVED.labels(Moving.TAKEN_OUT.value).inc()
            self._start(request, generation, Moving.TAKEN_OUT, "")

    def _start(self, request: Request, generation: Generation, moving: Moving, away: str) -> None:
        """Look for another worker: of another version, where the arm is out of force or the version is leaving."""
        found = self._arms.elsewhere(request, absent=moving is Moving.ABSENT)
        if found is not None and request.admit is not None:
            route, _ = found
            request.admit = divert_message(request.admit, route, self._arms.change(request, route))
            away = "" if moving is Moving.ABSENT else away  # it may well have the other version
            request.moved = True
            if VERSION_CHANGED not in generation.degraded:
                generation.degraded.append(VERSION_CHANGED)
        task = asyncio.get_running_loop().create_task(self._move(request, generation, moving, away))
        request.moving = task
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _move(self, request: Request, generation: Generation, moving: Moving, away: str) -> None:
        admit = request.admit
        if admit is None:
            raise RuntimeError("moved before it was admitted")
        request.asked += 1
        waiting = generation.unfinished
        readmit_message(request, admit, waiting, max_tokens=generation.parameters.max_tokens, lost=away)
        if moving.counted:
            log.warning("migrating", request_id=request.id, lost_worker=away, choices=len(waiting))
        try:
            request.granted = await self._admission.admit(
                admit, deadline=request.deadline, traceparent=request.span.traceparent
            )
        except WeirError as error:
            metrics.MIGRATIONS.labels("failed").inc()
            generation.fail(self._stranded(moving, error))
            return
        metrics.MIGRATIONS.labels("moved" if moving.counted else "resumed").inc()
        self.submit(request, generation, generation.unfinished)  # the filter may have stopped some meanwhile

    def _stranded(self, moving: Moving, error: WeirError) -> WeirError:
        """How a stream ends that found no other worker."""
        if moving is Moving.ABSENT:
            return self._worker_lost(f"its worker does not have the version any more, and {error.message}")
        if moving.counted:
            return self._worker_lost(f"the worker was lost and {error.message}")
        if error.reason in _LATE:
            return WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed while the request was interrupted")
        cause = "a more urgent request" if moving is Moving.PREEMPTED else "a change of the model's version"
        message = f"interrupted for {cause}, and {error.message}"
        return WeirError(Reason.PREEMPTED, message, limit=error.limit, retry_after=error.retry_after)

    def _worker_lost(self, message: str) -> WeirError:
        return WeirError(Reason.WORKER_LOST, message, retry_after=jittered(1.0, self._chance))


class Running:
    """Implements `WorkerEvents` for one request."""

    __slots__ = ("_dispatch", "_request")

    def __init__(self, dispatch: Dispatch, request: Request) -> None:
        self._dispatch = dispatch
        self._request = request

    def cancel(self, choice: Choice) -> None:
        """See `WorkerEvents`."""
        self._dispatch.cancel(self._request, choice)

    def move(self, moving: Moving) -> None:
        """See `WorkerEvents`."""
        self._dispatch.move(self._request, moving)
