"""The life of a request, top to bottom.

validate → template + tokenise → in parallel: safety, quota, route (`opening.py`) → admission, or less than was asked
for (`degrading.py`) → worker (`dispatch.py`) → step frames → the end (`closing.py`).

`Pipeline.open` does everything up to the submission and returns a running `Generation`; what follows is driven by step
frames (generation.py) and ends in `_on_end`, whatever way the generation ended. Cancellation of `open` gives back what
was taken; cancellation later is `Mailbox.stop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry.tracing import SERVER, span
from services.gateway import metrics
from services.gateway.arms import VERSION_CHANGED, Arms, TakenOut
from services.gateway.catalog import Catalog
from services.gateway.choice import SAFETY_SKIPPED
from services.gateway.closing import Closing
from services.gateway.config import Settings
from services.gateway.degrading import Ladder, granted_locally
from services.gateway.dispatch import Dispatch
from services.gateway.egress import Egress
from services.gateway.generation import Generation
from services.gateway.mailbox import Mailbox, Replay
from services.gateway.mirroring import Mirroring
from services.gateway.opening import Opening
from services.gateway.outcomes import Outcomes
from services.gateway.policy.answers import Answer, AnswerCache, restored
from services.gateway.policy.parameters import check_parameters
from services.gateway.policy.plans import LADDER_FLAGS
from services.gateway.policy.pressure import Pressures
from services.gateway.policy.scoring import Scoring
from services.gateway.policy.spec import Identity, Spec, is_json
from services.gateway.policy.turnover import Turnover, jittered
from services.gateway.ports import (
    AdmissionPort,
    AuditPort,
    MirrorPort,
    QuotaPort,
    RouterPort,
    SafetyPort,
    WorkerPort,
)
from services.gateway.refusals import with_limits
from services.gateway.request import Candidate, Request, accepted_of, broken_off, time_limit, with_seed
from services.gateway.runs import Runs
from services.gateway.text import TextModel

_ALTERED = LADDER_FLAGS | {SAFETY_SKIPPED, VERSION_CHANGED}
"""Flags of answers that are not what the request would get at another time."""


class Pipeline:
    """Orchestrates; decides nothing itself. One per process."""

    def __init__(
        self,
        settings: Settings,
        *,
        catalog: Catalog,
        quota: QuotaPort,
        router: RouterPort,
        admission: AdmissionPort,
        safety: SafetyPort,
        workers: WorkerPort,
        audit: AuditPort,
        outcomes: Outcomes,
        clock: Clock,
        chance: Callable[[], float],
        mirror: Callable[[Runs, Outcomes], MirrorPort] | None = None,
    ) -> None:
        """`chance` gives numbers in [0, 1): for jitter. `mirror` makes what answers mirrored requests."""
        self._settings = settings
        self._catalog = catalog
        self._admission = admission
        self._safety = safety
        self._audit = audit
        self._clock = clock
        self._chance = chance
        self._arms = Arms(catalog, router)
        self._outcomes = outcomes
        self._opening = Opening(settings, catalog=catalog, quota=quota, router=router, safety=safety, clock=clock)
        self._answers = AnswerCache(max_bytes=settings.answer_cache_bytes)
        self._ladder = Ladder(
            opening=self._opening,
            catalog=catalog,
            router=router,
            admission=admission,
            arms=self._arms,
            answers=self._answers,
            pressures=Pressures(hold=settings.pressure_seconds),
            patience=settings.decide_timeout,
            clock=clock,
        )
        self._closing = Closing(
            catalog=catalog,
            quota=quota,
            admission=admission,
            router=router,
            audit=audit,
            outcomes=outcomes,
            lengths=self._opening.lengths,
            clock=clock,
            source=f"{settings.service}/{settings.instance}",
        )
        self._dispatch = Dispatch(
            admission=admission,
            workers=workers,
            closing=self._closing,
            arms=self._arms,
            max_migrations=settings.max_migrations,
            clock=clock,
            chance=chance,
        )
        self.runs = Runs(
            catalog=catalog,
            opening=self._opening,
            admission=admission,
            dispatch=self._dispatch,
            closing=self._closing,
            clock=clock,
        )
        self._mirroring = Mirroring(mirror(self.runs, outcomes)) if mirror is not None else None
        self.egress = Egress(
            stall=settings.reader_stall_seconds, most_stream=settings.max_unread_stream, most=settings.max_unread
        )
        self._scoring = Scoring(settings.scored_per_second)
        self._turnover = Turnover(clock.monotonic())
        self._entered = 0  # requests that are on their way or run
        self._of_tenant: dict[str, int] = {}  # those by tenant; only tenants that have any
        self._openings: dict[asyncio.Task[Any], bool] = {}  # calls of those on their way; True: to be cut
        self._active: dict[Generation, Request] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def active(self) -> int:
        """Generations that run."""
        return len(self._active)

    @property
    def moving(self) -> int:
        """Generations that look for another worker."""
        return self._dispatch.moving

    async def encode(self, text: TextModel, spec: Spec) -> list[int]:
        """See `Opening.encode`."""
        return await self._opening.encode(text, spec)

    async def open(
        self, spec: Spec, identity: Identity, *, request_id: str, remaining: float | None, traceparent: str
    ) -> Mailbox:
        """Run a request up to its submission to a worker, or to the answer that it gets without one.

        `remaining` is the caller's remaining time in seconds, None when it named none.

        :raises WeirError: whatever refused it; nothing is held then.
        """
        tenant = self._catalog.tenant(identity.tenant)
        request = Request(
            request_id=request_id,
            spec=spec,
            identity=identity,
            tenant=tenant,
            plan=self._catalog.plan(tenant),
            time=time_limit(tenant, remaining, self._settings.default_deadline, self._clock),
            arrived=self._clock.monotonic(),
            trace=span(f"{spec.operation} {self._catalog.told(spec.model)}"[:120], traceparent, kind=SERVER),
        )
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is opened by a task")
        self._openings[task] = False
        self._entered += 1
        self._of_tenant[identity.tenant] = self._of_tenant.get(identity.tenant, 0) + 1
        self._idle.clear()
        try:
            self._check_may_run(request)
            return await self._open(request)
        except WeirError as error:
            self._rejected(request, error)
            told = with_limits(error, identity, spec.model, request.reservation, self._catalog)
            if told is error:
                raise
            raise told from error
        except asyncio.CancelledError:
            if not self._openings[task]:
                self._rejected(request, broken_off(request.latest, self._clock))
                raise
            task.uncancel()
            cut = self._draining()
            self._rejected(request, cut)
            raise cut from None
        except Exception:  # a fault of ours still leaves its record; the face's interceptor logs it
            self._rejected(request, WeirError(Reason.INTERNAL, "internal error"))
            raise
        finally:
            del self._openings[task]

    async def drain(self) -> None:
        """Refuse new requests and return once the running ones have ended."""
        self.draining = True
        await self._idle.wait()

    def cut(self) -> None:
        """End whatever still runs or waits: each gets its terminal event or its refusal, is settled and recorded. What
        waits needs a turn of the loop for that: see `drain`."""
        for generation in list(self._active):
            generation.fail(self._draining())
        for task in self._openings:
            self._openings[task] = True
            task.cancel()

    def arms_changed(self) -> None:
        """The catalog has a new snapshot: whoever is on an arm that it has taken out leaves it. Requests that wait are
        routed anew; running streams go on elsewhere where the rollout says so and the tokens allow it."""
        for request, migrate in self._arms.taken_out():
            if request.generation is not None:
                self._dispatch.taken_out(request, migrate=migrate)
            elif request.waiting is not None and not request.withdrawn:
                request.withdrawn = True
                request.waiting.cancel()

    def sweep(self) -> None:
        """Heartbeats, and readers that do not read; called about twice a second."""
        now = self._clock.monotonic()
        self._turnover.tick(now)
        metrics.ACTIVE.set(len(self._active))
        self._closing.refusals.flush()
        self.egress.sweep(now)
        self._outcomes.sweep()
        for generation in self._active:
            if now - generation.last_activity >= self._settings.heartbeat_seconds:
                generation.last_activity = now
                generation.heartbeat()

    # ---- up to the submission ------------------------------------------------------------------------------------

    def _check_may_run(self, request: Request) -> None:
        if self.draining:
            raise self._draining()
        most = self._settings.max_active
        self._check_room(self._entered - most, "the gateway is full", "max_active")
        share = max(1, int(most * self._settings.max_active_share))
        over = self._of_tenant[request.identity.tenant] - share
        self._check_room(over, "the gateway has too many requests of this tenant", "max_active_share")
        if self._audit.full and request.tenant.audit_required:
            retry = jittered(5.0, self._chance)
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "this request could not be audited", retry_after=retry)
        if request.deadline.expired(self._clock):
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the request arrived")
        check_parameters(request.spec.parameters)

    def _check_room(self, over: int, message: str, limit: str) -> None:
        if over > 0:
            retry = jittered(self._turnover.wait(over), self._chance)
            raise WeirError(Reason.REJECTED_QUEUE_FULL, message, limit=limit, retry_after=retry)

    def _draining(self) -> WeirError:
        """Others run: come back at once, though not all at the same moment."""
        return WeirError(
            Reason.DRAINING, "this gateway is shutting down", retry_after=0.25 + jittered(0.5, self._chance)
        )

    async def _open(self, request: Request) -> Mailbox:
        try:
            asked, tokenised = await self._opening.decide(request)
            decided = self._clock.monotonic()
            self._closing.began(request, asked)
            found = await self._find(request, asked)
            mailbox = self._replay(request, found) if isinstance(found, Answer) else self._start(request, found)
        except BaseException:  # also on cancellation
            if request.generation is not None:  # made, and could not be submitted
                self._active.pop(request.generation, None)
                request.generation.discard()
            if request.granted is not None and request.admit is not None:
                self._admission.release(request.admission_id, pool=request.admit.pool, unused=True)
            raise
        breakdown = mailbox.breakdown
        breakdown.preprocess = tokenised - request.arrived
        breakdown.decide = decided - tokenised
        if isinstance(mailbox, Generation):
            breakdown.queue = mailbox.submitted - decided
            mailbox.accepted = accepted_of(request, mailbox.degraded, self._clock.time())
        return mailbox

    async def _find(self, request: Request, asked: Candidate) -> Candidate | Answer:
        """See `Ladder.find`; a request whose arm is taken out while it waits is routed anew."""
        while True:
            request.waiting = asyncio.current_task()
            try:
                return await self._ladder.find(request, asked)
            except TakenOut:
                pass
            except asyncio.CancelledError:
                task = request.waiting
                if task is None or not request.withdrawn or task.uncancel():
                    raise  # the caller has left, or the gateway shuts down
            finally:
                request.waiting = None
                request.withdrawn = False
            metrics.MOVED.labels("withdrawn").inc()
            asked = await self._opening.decide_again(request)

    def _start(self, request: Request, candidate: Candidate) -> Generation:
        if request.granted is not None and granted_locally(request.granted):
            request.degraded.append("admission_local")
        mirroring = self._mirroring if candidate.route.mirror is not None else None
        arm = candidate.arm
        scored = arm is not None and self._scoring.take(arm.rollout_id, arm.arm, self._clock.monotonic())
        generation = Generation(
            request_id=request.id,
            tenant=request.identity.tenant,
            check=candidate.check,
            parameters=with_seed(candidate.bound),
            text=candidate.text,
            prompt_tokens=len(candidate.prompt),
            safety=self._safety,
            clock=self._clock,
            arrived=request.arrived,
            egress=self.egress,
            keep_text=bool(request.answer_key) and _ALTERED.isdisjoint(request.degraded),
            on_worker=self._dispatch.running(request),
            on_end=lambda: self._on_end(request),
            observed=mirroring is not None or scored,
            entire=request.spec.entire,
            latest=request.latest,
            allowance=self._opening.allowance(request, candidate),
            on_text=None if mirroring is None else lambda: mirroring.soon(request),
        )
        generation.degraded = request.degraded
        request.generation = request.mailbox = generation
        self._active[generation] = request
        self._dispatch.submit(request, generation, generation.choices)
        return generation

    def _replay(self, request: Request, answer: Answer) -> Replay:
        """An answer without a worker: it is over when it begins."""
        candidate = request.candidate
        if candidate is not None and candidate.check.values:
            answer = restored(answer, candidate.check.values, json=is_json(candidate.bound.structure))
        replay = request.mailbox = Replay(
            answer,
            request_id=request.id,
            clock=self._clock,
            arrived=request.arrived,
            egress=self.egress,
            degraded=request.degraded,
        )
        replay.accepted = accepted_of(request, replay.degraded, self._clock.time(), simulated=answer.simulated)
        self._left(request)
        self._closing.ended(request)
        return replay

    # ---- the end -------------------------------------------------------------------------------------------------

    def _on_end(self, request: Request) -> None:
        if request.moving is not None:
            request.moving.cancel()
        generation = request.generation
        if generation is not None:
            self._active.pop(generation, None)
        self._left(request)
        self._closing.ended(request)
        if generation is not None:
            self._remember(request, generation)
            if request.final is not None and not request.final.done():
                request.final.set_result(generation.final(model_version=request.model_version, moved=request.moved))

    def _remember(self, request: Request, generation: Generation) -> None:
        """Keep a whole answer that nothing altered, for the ladder of later requests."""
        if not request.answer_key or not _ALTERED.isdisjoint(generation.degraded):
            return
        answer = generation.answer(simulated=bool(generation.accepted and generation.accepted.simulated))
        if answer is not None:
            self._answers.put(request.answer_key, answer, self._clock.monotonic())

    def _rejected(self, request: Request, error: WeirError) -> None:
        self._left(request)
        self._closing.rejected(request, error)

    def _left(self, request: Request) -> None:
        self._arms.leave(request)
        self._entered -= 1
        tenant = request.identity.tenant
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        if request.admit is not None:  # it had a place; those that never got one make no room for others
            self._turnover.ended()
        if not self._entered:
            self._idle.set()
