"""The life of a request: `Pipeline.serve`, read from top to bottom.

    prepare → acquire → stream → account

One coroutine per request, in a task of its own, whatever asked for it: a chat, a completion, a native call, an
embedding, or a copy that nobody sees. It waits for decisions and for the end; what comes between is driven by step
frames (`generation.py`). A face gets what there is to read once it is known who answers. A face that leaves ends the
request; the request ends as it must whether or not its face still reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from libs.answer_lengths import Lengths
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger, place_of
from libs.telemetry.tracing import SERVER, span
from services.gateway import metrics
from services.gateway.account import Account
from services.gateway.acquire import Acquisition, Grant, Held
from services.gateway.catalog import Catalog
from services.gateway.config import Settings
from services.gateway.embed import MAX_INPUTS, Embedded, Embedding
from services.gateway.flushing import Flushing
from services.gateway.generate import Generating
from services.gateway.generation import Generation
from services.gateway.identity import Caller
from services.gateway.internal import Run, of_run
from services.gateway.lease import Lease
from services.gateway.membership import Member, Membership, TakenOut
from services.gateway.occupancy import Occupancy, Visit
from services.gateway.outcomes import Outcomes
from services.gateway.output_buffer import OutputBuffer
from services.gateway.policy.answers import AnswerCache
from services.gateway.policy.events import Finish
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.parameters import check_parameters, invalid
from services.gateway.policy.pressure import Pressures
from services.gateway.policy.scoring import Scoring
from services.gateway.policy.spec import Identity, Spec
from services.gateway.policy.turnover import jittered
from services.gateway.ports import AdmissionPort, AuditPort, MirrorPort, QuotaPort, RouterPort, SafetyPort, WorkerPort
from services.gateway.prepare import Preparation
from services.gateway.refusals import with_limits
from services.gateway.request import Acquired, Prepared, Progress, Request, Served, broken_off, time_limit
from services.gateway.slow_readers import SlowReaders
from services.gateway.stream import Streaming

log = get_logger(__name__)
SWEEP_SECONDS = 0.5
"""How often `Pipeline.sweep` is to be called."""


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
        channel: Callable[[str, str], grpc.aio.Channel],
        audit: AuditPort,
        outcomes: Outcomes,
        clock: Clock,
        chance: Callable[[], float],
        mirror: Callable[[Pipeline], MirrorPort] | None = None,
    ) -> None:
        """`channel` is that to a worker, by its name and address, for unary calls; `chance` gives numbers in [0, 1):
        for jitter. `mirror` makes what answers mirrored requests."""
        self._settings = settings
        self._catalog = catalog
        self._quota = quota
        self._admission = admission
        self._audit = audit
        self._outcomes = outcomes
        self._clock = clock
        self._chance = chance
        self._lengths = Lengths(beyond=0.05)
        self._tasks: set[asyncio.Task[Served]] = set()
        self.occupancy = Occupancy(settings, clock=clock, chance=chance)
        self.readers = SlowReaders(
            stall=settings.reader_stall_seconds, most_stream=settings.max_unread_stream, most=settings.max_unread
        )
        self._flushing = Flushing(most=settings.flush_max, sweep_seconds=SWEEP_SECONDS, now=clock.monotonic())
        self._membership = Membership(catalog, router)
        self._preparation = Preparation(settings, catalog=catalog, router=router, safety=safety, clock=clock)
        migrating: dict[str, Any] = {
            "router": router,
            "max_migrations": settings.max_migrations,
            "clock": clock,
            "chance": chance,
        }
        answers = AnswerCache(max_bytes=settings.answer_cache_bytes)
        self._acquisition = Acquisition(
            preparation=self._preparation,
            catalog=catalog,
            router=router,
            membership=self._membership,
            answers=answers,
            pressures=Pressures(hold=settings.pressure_seconds),
            patience=settings.decide_timeout,
            clock=clock,
        )
        self._generating = Generating(
            streaming=Streaming(membership=self._membership, safety=safety, **migrating),
            answers=answers,
            scoring=Scoring(settings.scored_per_second),
            workers=workers,
            safety=safety,
            readers=self.readers,
            flushing=self._flushing,
            flush_max=settings.flush_max,
            catalog=catalog,
            mirror=mirror(self) if mirror is not None else None,
            clock=clock,
        )
        self._embedding = Embedding(channel=channel, **migrating)
        self._account = Account(
            catalog=catalog,
            audit=audit,
            outcomes=outcomes,
            lengths=self._lengths,
            clock=clock,
            source=f"{settings.service}/{settings.instance}",
        )

    # ---- for faces -----------------------------------------------------------------------------------------------

    async def open(
        self, spec: Spec, identity: Identity, *, request_id: str, remaining: float | None, traceparent: str
    ) -> OutputBuffer:
        """Begin a generation; returns what its caller reads once it is known who answers.

        `remaining` is the caller's remaining time in seconds, None when it named none.

        :raises WeirError: whatever refused it; nothing is held then.
        """
        buffer: OutputBuffer = await self._begin(spec, identity, request_id, remaining, traceparent)
        return buffer

    async def embed(self, spec: Spec, caller: Caller) -> Embedded:
        """Embed the spec's inputs.

        :raises WeirError: whatever refused it; nothing is held then.
        """
        embedded: Embedded = await self._begin(
            spec, caller.identity, caller.request_id, caller.remaining, caller.traceparent
        )
        return embedded

    async def _begin(
        self, spec: Spec, identity: Identity, request_id: str, remaining: float | None, traceparent: str
    ) -> Any:
        tenant = self._catalog.tenant(identity.tenant)
        request = Request(
            id=request_id,
            spec=spec,
            identity=identity,
            tenant=tenant,
            plan=self._catalog.plan(tenant),
            time=time_limit(tenant, remaining, self._settings.default_deadline, self._clock),
            arrived=self._clock.monotonic(),
            span=span(f"{spec.operation} {self._catalog.told(spec.model)}"[:120], traceparent, kind=SERVER),
        )
        loop = asyncio.get_running_loop()
        face: asyncio.Future[Any] = loop.create_future()
        task = loop.create_task(self.serve(request, face))
        self._tasks.add(task)
        task.add_done_callback(partial(self._over, face))
        try:
            return await face
        except asyncio.CancelledError:
            if face.cancelled():  # nobody has answered yet
                task.cancel()
            elif isinstance(face.result(), OutputBuffer):  # in this very turn of the loop
                face.result().stop(Finish.CANCELLED)
            raise

    # ---- for copies of requests ----------------------------------------------------------------------------------

    async def run(self, run: Run) -> FinalAnswer:
        """Generate for nobody's eyes, to the end. Cancelling it cancels on the worker and gives everything back.

        :raises WeirError: what admission refused or the worker failed with; DEADLINE_EXCEEDED.
        """
        request = await of_run(run, self._catalog, self._clock)
        face: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        end = (await self.serve(request, face)).end
        if end.finish is Finish.DEADLINE:
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed")
        if end.finish is Finish.ERROR:
            raise WeirError(Reason.parse(end.error_reason), end.message)
        return face.result().final(model_version=run.model_version, moved=False)

    async def encode(self, model_version: str, spec: Spec) -> list[int]:
        """The prompt's tokens for a version.

        :raises WeirError: MODEL_NOT_FOUND; see `Preparation.encode`.
        """
        return await self._preparation.encode(await self._catalog.text(self._catalog.version(model_version)), spec)

    # ---- a request -----------------------------------------------------------------------------------------------

    async def serve(self, request: Request, face: asyncio.Future[Any]) -> Served:
        """One request, from its arrival to its record. `face` gets what there is to read.

        :raises WeirError: whatever refused it.
        """
        progress = Progress()
        try:
            with (
                Visit(self.occupancy, request) as visit,
                Lease(self._quota, self._lengths, request) as lease,
                Member(self._membership) as member,
                Grant(self._admission, request) as grant,
            ):
                self._check_may_run(request)
                prepared = progress.prepared = await self._preparation.prepare(request, lease, progress)
                progress.begun = self._account.began(request, prepared)
                held, hand = Held(visit, lease, member, grant), partial(_hand, face)
                acquired = await self._acquire(request, prepared, held, progress)
                if request.spec.inputs:
                    served = await self._embedding.run(request, acquired, held, hand)
                else:
                    served = await self._generating.run(request, acquired, held, hand)
                lease.settle(served.end.usage, served.candidate.route.model_version)
        except WeirError as error:
            self._account.refused(request, progress, error)
            told = with_limits(error, request.identity, request.spec.model, progress.reservation, self._catalog)
            if told is error:
                raise
            raise told from error
        except asyncio.CancelledError:
            if not visit.cut:
                self._account.refused(request, progress, broken_off(request.time.latest, self._clock))
                raise
            cut = self.occupancy.shutting_down()
            self._account.refused(request, progress, cut)
            raise cut from None
        except Exception:  # a fault of ours still leaves its record; the face's interceptor logs it
            self._account.refused(request, progress, WeirError(Reason.INTERNAL, "internal error"))
            raise
        self._account.served(request, progress, served)
        return served

    async def _acquire(self, request: Request, prepared: Prepared, held: Held, progress: Progress) -> Acquired:
        """See `Acquisition.acquire`; a request whose arm is taken out while it waits is routed anew."""
        held.visit.had_place = True
        while True:
            try:
                return await self._acquisition.acquire(request, prepared, held)
            except TakenOut:
                metrics.MOVED.labels("withdrawn").inc()
                prepared = await self._preparation.again(request, prepared, held.lease, progress)
                progress.prepared = prepared

    def _check_may_run(self, request: Request) -> None:
        if request.internal is not None:
            return
        self.occupancy.check(request)
        if self._audit.full and request.tenant.audit_required:
            retry = jittered(5.0, self._chance)
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "this request could not be audited", retry_after=retry)
        if request.deadline.expired(self._clock):
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the request arrived")
        check_parameters(request.spec.parameters)
        inputs = request.spec.inputs
        if len(inputs) > MAX_INPUTS or not all(inputs):
            raise invalid("input", f"must hold 1 to {MAX_INPUTS} inputs, none of them empty")

    # ---- the process ---------------------------------------------------------------------------------------------

    def arms_changed(self) -> None:
        """The catalog has a new snapshot: whoever is on an arm that it has taken out leaves it. Requests that wait are
        routed anew; running streams go on elsewhere where the rollout says so and the tokens allow it."""
        self._membership.changed()

    def sweep(self) -> None:
        """Heartbeats, and readers that do not read; called every `SWEEP_SECONDS`."""
        now = self._clock.monotonic()
        self.occupancy.sweep(now)
        metrics.ACTIVE.set(len(self._generating.active))
        self._account.refusals.flush()
        self.readers.sweep(now)
        self._flushing.sweep(now)
        self._outcomes.sweep()
        for generation in self._generating.active:
            if now - generation.last_activity >= self._settings.heartbeat_seconds:
                generation.last_activity = now
                generation.heartbeat()

    def _over(self, face: asyncio.Future[Any], task: asyncio.Task[Served]) -> None:
        """The request's task is done: whoever waits for it hears of a refusal."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not face.done():
            face.set_exception(error)
        elif not isinstance(error, WeirError):  # it has been handed on, or its caller is gone
            log.error("request_failed", error=type(error).__name__, where=place_of(error))


def _hand(face: asyncio.Future[Any], what: object) -> None:
    if not face.done():  # else its caller has just left, and this task is about to hear of it
        face.set_result(what)
