"""The last step of a generation: on the worker that was granted, and on the next one where it has to move.

A stream that moves goes on exactly where it was: the next worker gets the prompt and every token that was delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from libs.breaker import is_fault
from libs.catalog.plans import VERSION_CHANGED
from libs.cursor import Origin
from libs.errors import Reason, WeirError
from libs.occupancy import jittered
from libs.routing import Route
from libs.telemetry import get_logger
from services.gateway import account, metrics
from services.gateway.acquire import Held, accepted_of
from services.gateway.generation import Generation, Moving
from services.gateway.internal import mirror_soon, mirrored_of
from services.gateway.membership import TakenOut
from services.gateway.messages import divert_message, readmit_message, submit_message
from services.gateway.output_buffer import OutputBuffer
from services.gateway.parts import Parts
from services.gateway.policy.events import End, Finish
from services.gateway.policy.resuming import origin_of
from services.gateway.policy.spec import BoundParameters
from services.gateway.ports import Mirrored
from services.gateway.request import Candidate, Prepared, Request, Served, with_seed

log = get_logger(__name__)
_OWN_ENDS = frozenset({Finish.STOP, Finish.LENGTH})
"""Whoever ended so was as long as it wanted to be."""
_LATE = (Reason.DEADLINE_EXCEEDED, Reason.EVICTED_DEADLINE)


async def generate(
    parts: Parts, request: Request, prepared: Prepared, held: Held, hand: Callable[[OutputBuffer], None]
) -> Served:
    """Generate to the end, whatever that is, and hand on what there is to read."""
    candidate, clock = prepared.candidate, parts.clock
    parameters = with_seed(candidate.bound)
    arm, itl = candidate.arm, parts.catalog.objectives(request.route, candidate.version.tier).itl
    scored = arm is not None and parts.scoring.take(arm.rollout_id, arm.arm, clock.monotonic())
    flush_max, mirror = parts.settings.flush_max, parts.mirror
    mirrored: Mirrored | None = None
    if mirror is not None and arm is not None and candidate.route.mirror is not None:
        mirrored = mirrored_of(request, candidate, parameters, arm)
    if held.lease.grows:
        held.lease.begin_growing(len(candidate.prompt), candidate.most_tokens, candidate.bound.n)
    with Generation(
        parts,
        request,
        prepared,
        parameters,
        held.lease,
        observed=mirrored is not None or scored or request.internal is not None,
        flush_most=flush_max if itl is None else min(flush_max, itl),
        on_text=None if mirrored is None or mirror is None else partial(mirror_soon, mirror, mirrored),
    ) as generation:
        origin = _origin(parts, request, candidate, parameters)
        generation.accepted = accepted_of(request, prepared, held, parts.clock.time(), origin)
        generation.breakdown.preprocess = prepared.tokenised - request.arrived
        generation.breakdown.decide = prepared.decided - prepared.tokenised
        held.visit.fail = generation.fail
        stream = Stream(parts, request, prepared, generation, held)
        hand(generation)
        parts.active.add(generation)
        try:
            await stream.run()
        finally:
            parts.active.discard(generation)
    end, accepted, mean = generation.ended, generation.accepted, None
    answer = generation.answer(simulated=accepted.simulated)
    if answer is not None:  # for the ladder of later requests
        parts.answers.put(prepared.answer_key, answer, clock.monotonic())
    if generation.observed:
        final = generation.final(model_version=accepted.model_version, moved=stream.moved)
        mean = final.mean_logprob
        if mirrored is not None and not mirrored.answer.done():
            mirrored.answer.set_result(final)
    return Served(
        candidate=candidate,
        accepted=accepted,
        end=end,
        worker=generation.granted.worker if generation.granted is not None else "",
        lengths=[(len(one.tokens), one.finish is Finish.STOP) for one in generation.sequences],
        # Text that leaves in groups of tokens is waited for by nobody.
        first=generation.first_after if request.spec.whole else end.breakdown.time_to_first_token,
        mean_logprob=mean,
    )


def _origin(parts: Parts, request: Request, candidate: Candidate, parameters: BoundParameters) -> Origin | None:
    """What a stream can be gone on with from; None where nobody will."""
    if request.spec.resumed is not None:
        return request.spec.resumed.cursor.origin
    if request.spec.whole or request.internal is not None or not parts.settings.cursor_life:
        return None
    return origin_of(
        request.id,
        int(parts.clock.time()),
        tenant=request.identity.tenant,
        model_version=candidate.route.model_version,
        prompt=candidate.prompt,
        bound=parameters,
        policies=candidate.check.policies,
    )


class Stream:
    """One generation's way over workers."""

    __slots__ = (
        *("_candidate", "_faults", "_generation", "_grant", "_held", "_member", "_parts", "_prepared", "_request"),
        "_route",
    )

    def __init__(self, parts: Parts, request: Request, prepared: Prepared, generation: Generation, held: Held) -> None:
        self._parts = parts
        self._request = request
        self._prepared = prepared
        self._candidate = prepared.candidate
        self._generation = generation
        self._held = held
        self._grant = held.grant
        self._member = held.member
        self._route = self._candidate.route  # until it is moved to another version
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
            self._submit()
            while (moving := await generation.turn()) is not None:
                await self._migrate(moving)
                self._parts.safety.flush()  # what ended for it
        except Exception:
            generation.fail(WeirError(Reason.INTERNAL, "internal error"))
            raise
        finally:
            generation.stop(Finish.CANCELLED)  # nothing, unless this was cancelled
            self._member.on_taken_out = generation.on_end = None
            self._give_back(generation.ended)

    def _submit(self) -> None:
        generation, grant, request, prompt = self._generation, self._grant, self._request, self._candidate.prompt
        granted, bound, left = grant.held, generation.parameters, request.deadline.timeout(self._parts.clock)
        messages = [
            submit_message(request, prompt, bound, grant.admit, granted, sequence, left)
            for sequence in generation.unfinished
        ]
        generation.submit(granted, messages)

    def _give_back(self, end: End) -> None:
        ok = _did_its_part(end)
        if ok is not None and self._request.internal is None:
            self._tell_breaker(ok=ok)
        failed = end.error_reason == Reason.ENGINE_ERROR.name
        self._grant.release(**self._generation.brought(), failed=failed, cut_short=end.finish not in _OWN_ENDS)

    async def _migrate(self, moving: Moving) -> None:
        generation, grant = self._generation, self._grant
        lost = generation.granted.worker if generation.granted is not None else ""
        if moving is Moving.LOST:
            self._tell_breaker(ok=False)
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
            if self._faults >= self._parts.settings.max_migrations:
                metrics.MIGRATIONS.labels("exhausted").inc()
                generation.fail(self._worker_lost("the worker was lost"))
                return
            self._faults += 1
        shunned = lost if moving in (Moving.LOST, Moving.ABSENT) else ""  # it is of no more use
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
        self._submit()  # what is unfinished: the filter may have stopped some meanwhile

    async def _ask(self, moving: Moving, shunned: str) -> None:
        """Ask for another worker: of another version, where the arm is out of force or the version is leaving."""
        admit, generation, candidate = self._grant.admit, self._generation, self._candidate
        route = self._elsewhere(absent=moving is Moving.ABSENT)
        if route is not None:
            membership = self._parts.membership
            admit = divert_message(admit, route, membership.share(candidate.model, route))
            shunned = "" if moving is Moving.ABSENT else shunned  # it may well have the other version
            self._route = route
            membership.enter(self._member, candidate.model, route)
            if VERSION_CHANGED not in generation.degraded:
                generation.degraded.append(VERSION_CHANGED)
                diverted = replace(self._prepared, degraded=tuple(generation.degraded))
                account.opened(self._parts, self._request, self._held.progress, diverted, self._held.lease.id)
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
        return self._parts.membership.elsewhere(self._request, self._candidate, self._route, absent=absent)

    def _tell_breaker(self, *, ok: bool) -> None:
        """That of the version and zone that it runs on."""
        admit, granted = self._grant.admit, self._grant.granted
        if granted is not None:
            self._parts.router.outcome(pool=admit.pool, model_version=admit.model_version, zone=granted.zone, ok=ok)

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
        return WeirError(Reason.WORKER_LOST, message, retry_after=jittered(1.0, self._parts.chance))


def _did_its_part(end: End) -> bool | None:
    """Whether the zone did; None when the end says nothing about the zone."""
    if end.finish in (Finish.CANCELLED, Finish.DEADLINE):
        return None  # the caller's doing: its deadline may have been too short for anybody
    if end.finish is not Finish.ERROR:
        return True
    return False if is_fault(Reason.parse(end.error_reason)) else None
