"""The life of a request: `Pipeline.serve`, read from top to bottom.

    prepare → acquire → generate, embed or replay → account

One coroutine per request, in a task of its own, whatever asked for it: a chat, a completion, a native call, an
embedding, or a copy that nobody sees. It waits for decisions and for the end; what comes between is driven by step
frames (`generation.py`). A face gets what there is to read once it is known who answers. A face that leaves ends the
request; the request ends as it must whether or not its face still reads.
"""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import Any

from libs.callers import Caller
from libs.errors import Reason, WeirError
from libs.limiter import Lease
from libs.occupancy import Visit, jittered
from libs.telemetry import get_logger, place_of
from libs.telemetry.tracing import SERVER, span
from services.gateway import account, metrics
from services.gateway.acquire import Grant, Held, acquire
from services.gateway.embed import MAX_INPUTS, Embedded, embed
from services.gateway.generate import generate
from services.gateway.generation import Generation
from services.gateway.internal import Run, of_run
from services.gateway.membership import Member, TakenOut
from services.gateway.output_buffer import OutputBuffer
from services.gateway.parts import Parts
from services.gateway.policy.events import Finish
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.parameters import check_parameters, invalid
from services.gateway.policy.spec import Spec
from services.gateway.prepare import encode, prepare, prepare_again
from services.gateway.refusals import with_limits
from services.gateway.replay import replay
from services.gateway.request import Prepared, Progress, Request, Served, broken_off, time_limit

log = get_logger(__name__)


class Pipeline:
    """Orchestrates; decides nothing itself. One per process."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        metrics.ACTIVE.set_function(lambda: len(parts.active))
        self._tasks: set[asyncio.Task[Served]] = set()

    # ---- for faces -----------------------------------------------------------------------------------------------

    async def open(self, spec: Spec, caller: Caller, **more: Any) -> OutputBuffer:
        """Begin a generation; returns what its caller reads once it is known who answers. `more` of its `Request`.

        :raises WeirError: whatever refused it; nothing is held then.
        """
        buffer: OutputBuffer = await self._begin(spec, caller, **more)
        return buffer

    async def embed(self, spec: Spec, caller: Caller) -> Embedded:
        """Embed the spec's inputs.

        :raises WeirError: whatever refused it; nothing is held then.
        """
        embedded: Embedded = await self._begin(spec, caller)
        return embedded

    async def _begin(self, spec: Spec, caller: Caller, **more: Any) -> Any:
        parts, identity = self.parts, caller.identity
        if edge := caller.edge(parts.clock.time()):
            metrics.EDGE.observe(edge)
        spec = spec.hinted(caller.user, caller.session)
        tenant = parts.catalog.tenant(identity.tenant)
        plan = parts.catalog.plan(tenant)
        request = Request(
            id=caller.request_id,
            spec=spec,
            identity=identity,
            tenant=tenant,
            # Where a stream goes on, nothing else can be given instead.
            plan=plan if spec.resumed is None else dataclasses.replace(plan, ladder=()),
            time=time_limit(tenant, caller.remaining, parts.settings.default_deadline, parts.clock),
            arrived=parts.clock.monotonic(),
            prices=parts.catalog.prices if tenant.tell_cost else None,
            span=span(f"{spec.operation} {parts.catalog.told(spec.model)}"[:120], caller.traceparent, kind=SERVER),
            **more,
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
            elif face.exception() is None and isinstance(face.result(), OutputBuffer):  # in this very turn of the loop
                face.result().stop(Finish.CANCELLED)
            raise  # also where it was refused in this turn: its caller has left, and must not go on

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

    # ---- for copies of requests ----------------------------------------------------------------------------------

    async def run(self, run: Run) -> FinalAnswer:
        """Generate for nobody's eyes, to the end. Cancelling it cancels on the worker and gives everything back.

        :raises WeirError: what admission refused or the worker failed with; DEADLINE_EXCEEDED.
        """
        request = await of_run(run, self.parts.catalog, self.parts.clock)
        face: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        end = (await self.serve(request, face)).end
        if end.finish is Finish.DEADLINE:
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed")
        if end.error is not None:
            raise end.error
        return face.result().final(model_version=run.model_version, moved=False)

    async def encode(self, model_version: str, spec: Spec) -> list[int]:
        """The prompt's tokens for a version.

        :raises WeirError: MODEL_NOT_FOUND; see `prepare.encode`.
        """
        catalog = self.parts.catalog
        text = await catalog.text(catalog.version(model_version))
        return await encode(text, spec, self.parts.settings.encode_inline_chars)

    # ---- a request -----------------------------------------------------------------------------------------------

    async def serve(self, request: Request, face: asyncio.Future[Any]) -> Served:
        """One request, from its arrival to its record. `face` gets what there is to read.

        :raises WeirError: whatever refused it.
        """
        parts, progress = self.parts, Progress()
        lease = Lease(
            parts.quota,
            tenant=request.identity.tenant,
            model=request.spec.model,
            # Envoy may send a request of a gateway that died to another one, under the same id: each holds its own.
            request_id=f"{request.id}/{int(parts.chance() * 2**32):08x}",
            request_counted=request.identity.request_counted,
            deadline=request.deadline,
            traceparent=request.traceparent,
            fates=metrics.GROWN,
        )
        visit = Visit(parts.occupancy if request.internal is None else None, request.identity.tenant)
        try:
            with visit, lease, Member(parts.membership) as member, Grant(parts.admission, request) as grant:
                self._check_may_run(request)
                prepared = await prepare(parts, request, lease, progress)
                progress.begun = account.began(parts, request, prepared)
                account.opened(parts, request, progress, prepared, lease.id)
                held, hand = Held(visit, lease, member, grant, progress), partial(self._hand, request, progress, face)
                acquired = await self._acquire(request, prepared, held, progress)
                if acquired is not prepared:  # a smaller model, another arm, less of it
                    account.opened(parts, request, progress, acquired, lease.id)
                last_step = replay if acquired.answer is not None else embed if request.spec.inputs else generate
                served = await last_step(parts, request, acquired, held, hand)
                used, version = served.end.usage, served.candidate.route.model_version
                lease.settle(used.prompt_tokens, used.completion_tokens, used.cached_prompt_tokens, version)
        except WeirError as error:
            account.refused(parts, request, progress, lease.reservation, error)
            told = with_limits(error, request.identity, request.spec.model, lease.reservation, parts.catalog)
            if told is error:
                raise
            raise told from error
        except asyncio.CancelledError:
            cut = parts.occupancy.shutting_down() if visit.cut else broken_off(request.time.latest, parts.clock)
            account.refused(parts, request, progress, lease.reservation, cut)
            if visit.cut:
                raise cut from None
            raise
        except Exception:  # a fault of ours still leaves its record; the face's interceptor logs it
            fault = WeirError(Reason.INTERNAL, "internal error")
            account.refused(parts, request, progress, lease.reservation, fault)
            raise
        account.served(parts, request, progress, served)
        return served

    async def _acquire(self, request: Request, prepared: Prepared, held: Held, progress: Progress) -> Prepared:
        """See `acquire`; a request whose arm is taken out while it waits is routed anew."""
        held.visit.had_place = True
        while True:
            try:
                return await acquire(self.parts, request, prepared, held)
            except TakenOut:
                metrics.MOVED.labels("withdrawn").inc()
                prepared = await prepare_again(self.parts, request, prepared, held.lease, progress)

    def _hand(self, request: Request, progress: Progress, face: asyncio.Future[Any], what: object) -> None:
        if isinstance(what, OutputBuffer) and progress.place >= 0 and not request.spec.whole:
            mark = self.parts.audit.mark
            what.on_taken = lambda delivered: mark(progress.place, delivered)  # the place may change with its version
        if not face.done():  # else its caller has just left, and this task is about to hear of it
            face.set_result(what)

    def _check_may_run(self, request: Request) -> None:
        if request.internal is not None:
            return
        parts = self.parts
        parts.occupancy.check(request.identity.tenant)
        if parts.audit.full and request.tenant.audit_required:
            retry = jittered(5.0, parts.chance)
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "this request could not be audited", retry_after=retry)
        if request.deadline.expired(parts.clock):
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the request arrived")
        check_parameters(request.spec.parameters)
        inputs = request.spec.inputs
        if len(inputs) > MAX_INPUTS or not all(inputs):
            raise invalid("input", f"must hold 1 to {MAX_INPUTS} inputs, none of them empty")

    # ---- the process ---------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Heartbeats, and readers that do not read; called every `SWEEP_SECONDS`."""
        parts, now = self.parts, self.parts.clock.monotonic()
        parts.occupancy.sweep(now)
        parts.ends.flush()
        parts.readers.sweep(now)
        parts.flushing.sweep(now)
        parts.outcomes.sweep()
        metrics.ROLLOUT_ARMS.set(len(parts.outcomes.table))
        for buffer in parts.active:
            if now - buffer.last_activity >= parts.settings.heartbeat_seconds:
                buffer.last_activity = now
                buffer.heartbeat()
