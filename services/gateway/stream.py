"""The third stage: a generation runs on the worker that was granted, and on the next one where it has to move.

A stream that moves goes on exactly where it was: the next worker gets the prompt and every token that was delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libs.breaker import is_fault
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.routing import Route
from libs.telemetry import get_logger
from services.gateway import metrics
from services.gateway.acquire import Held
from services.gateway.generation import Generation, Moving
from services.gateway.membership import Membership, TakenOut
from services.gateway.messages import divert_message, readmit_message, submit_message
from services.gateway.policy.events import End, Finish
from services.gateway.policy.plans import VERSION_CHANGED
from services.gateway.policy.turnover import jittered
from services.gateway.ports import OutputFilter, RouterPort
from services.gateway.request import Candidate, Request
from services.gateway.sequence import OutputSequence

log = get_logger(__name__)
_OWN_ENDS = frozenset({Finish.STOP, Finish.LENGTH})
"""Whoever ended so was as long as it wanted to be."""
_LATE = (Reason.DEADLINE_EXCEEDED, Reason.EVICTED_DEADLINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """What all streams of a process share."""

    membership: Membership
    router: RouterPort
    safety: OutputFilter
    max_migrations: int
    clock: Clock
    chance: Callable[[], float]
    """Gives numbers in [0, 1): for jitter."""


class Stream:
    """One generation's way over workers."""

    __slots__ = ("_candidate", "_faults", "_generation", "_grant", "_member", "_of", "_request", "_route")

    def __init__(
        self, of: Streaming, request: Request, candidate: Candidate, generation: Generation, held: Held
    ) -> None:
        self._of = of
        self._request = request
        self._candidate = candidate
        self._generation = generation
        self._grant = held.grant
        self._member = held.member
        self._route = candidate.route  # until it is moved to another version
        self._faults = 0  # workers that it lost
        held.member.on_taken_out = self._taken_out
        generation.on_end = held.member.break_off  # nobody looks for a worker any more

    @property
    def moved(self) -> bool:
        """Another version gave its rest."""
        return self._route is not self._candidate.route

    async def run(self) -> None:
        """Run it to its end, whatever that is, and give its grant back."""
        generation = self._generation
        try:
            self._submit(generation.sequences)
            while (moving := await generation.turn()) is not None:
                await self._migrate(moving)
                self._of.safety.flush()  # what ended for it
        except Exception:
            generation.fail(WeirError(Reason.INTERNAL, "internal error"))
            raise
        finally:
            generation.stop(Finish.CANCELLED)  # nothing, unless this was cancelled
            self._member.on_taken_out = generation.on_end = None
            self._give_back(generation)

    def _submit(self, sequences: Sequence[OutputSequence]) -> None:
        generation, admit, granted = self._generation, self._grant.admit, self._grant.granted
        if admit is None or granted is None:
            raise RuntimeError("submitted before it was granted")
        bound, clock = generation.parameters, self._of.clock
        messages = [
            submit_message(self._request, self._candidate, bound, admit, granted, sequence, clock)
            for sequence in sequences
        ]
        generation.submit(granted, list(zip(messages, sequences, strict=True)))

    def _give_back(self, generation: Generation) -> None:
        end = generation.end
        if end is None:
            raise RuntimeError("it has not ended")
        ok = _did_its_part(end)
        if ok is not None and self._request.internal is None:
            self._served(ok=ok)
        failed = end.error_reason == Reason.ENGINE_ERROR.name
        self._grant.release(**generation.brought(), failed=failed, cut_short=end.finish not in _OWN_ENDS)

    async def _migrate(self, moving: Moving) -> None:
        generation, grant = self._generation, self._grant
        lost = generation.granted.worker if generation.granted is not None else ""
        if moving is Moving.LOST:
            self._served(ok=False)
        brought = generation.brought()
        generation.leave_worker()
        refused = moving in (Moving.REFUSED, Moving.ABSENT)
        # One that its worker refused cost nothing and teaches nothing, unless another sequence ran on it.
        unused = refused and not brought["output_tokens"]
        grant.release(**brought, failed=moving is Moving.LOST, cut_short=True, unused=unused)
        if not generation.unfinished:
            return
        metrics.MOVED.labels(moving.value).inc()
        if moving.counted:
            if self._faults >= self._of.max_migrations:
                metrics.MIGRATIONS.labels("exhausted").inc()
                generation.fail(self._worker_lost("the worker was lost"))
                return
            self._faults += 1
        shunned = lost if moving.shuns else ""
        while True:
            try:
                await self._member.wait(self._ask(moving, shunned))
                break
            except TakenOut:
                if generation.end is not None:
                    return
                moving, shunned = Moving.TAKEN_OUT, ""
                metrics.MOVED.labels(moving.value).inc()
            except WeirError as error:
                metrics.MIGRATIONS.labels("failed").inc()
                generation.fail(self._stranded(moving, error))
                return
        metrics.MIGRATIONS.labels("moved" if moving.counted else "resumed").inc()
        self._submit(generation.unfinished)  # the filter may have stopped some meanwhile

    async def _ask(self, moving: Moving, shunned: str) -> None:
        """Ask for another worker: of another version, where the arm is out of force or the version is leaving."""
        admit, generation, candidate = self._grant.admit, self._generation, self._candidate
        if admit is None:
            raise RuntimeError("moved before it was admitted")
        route = self._elsewhere(absent=moving is Moving.ABSENT)
        if route is not None:
            membership = self._of.membership
            admit = divert_message(admit, route, membership.share(candidate.model, route))
            shunned = "" if moving is Moving.ABSENT else shunned  # it may well have the other version
            self._route = route
            membership.enter(self._member, candidate.model, route)
            if VERSION_CHANGED not in generation.degraded:
                generation.degraded.append(VERSION_CHANGED)
        waiting = generation.unfinished
        readmit_message(
            admit,
            candidate.prompt,
            waiting,
            request_id=self._grant.next_id,
            max_tokens=generation.parameters.max_tokens,
            lost=shunned,
            diverted=self.moved,
        )
        if moving.counted:
            log.warning("migrating", request_id=self._request.id, lost_worker=shunned, choices=len(waiting))
        await self._grant.ask(admit)

    def _taken_out(self, migrate: bool) -> None:
        """Its arm is out of force: it leaves its worker if it is to `migrate`, and what it waits for in any case, if
        what its caller gets now can go on with its tokens."""
        if self._member.waits:
            if self._elsewhere() is not None:
                self._member.break_off()
        elif migrate and self._elsewhere() is not None:
            self._generation.move(Moving.TAKEN_OUT)

    def _elsewhere(self, *, absent: bool = False) -> Route | None:
        return self._of.membership.elsewhere(self._request, self._candidate, self._route, absent=absent)

    def _served(self, *, ok: bool) -> None:
        """Feed the breaker of the version and zone that it runs on."""
        admit, granted = self._grant.admit, self._grant.granted
        if admit is not None and granted is not None:
            self._of.router.outcome(pool=admit.pool, model_version=admit.model_version, zone=granted.zone, ok=ok)

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
        return WeirError(Reason.WORKER_LOST, message, retry_after=jittered(1.0, self._of.chance))


def _did_its_part(end: End) -> bool | None:
    """Whether the zone did; None when the end says nothing about the zone."""
    if end.finish in (Finish.CANCELLED, Finish.DEADLINE):
        return None  # the caller's doing: its deadline may have been too short for anybody
    if end.finish is not Finish.ERROR:
        return True
    return False if is_fault(Reason.parse(end.error_reason)) else None
