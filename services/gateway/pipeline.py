"""The life of a request, top to bottom.

validate → template + tokenise → in parallel: safety, quota, route → admission → worker → step frames → the end.

`Pipeline.open` does everything up to the submission and returns a running `Generation`; what follows is driven by step
frames (generation.py) and ends in `_on_end`, whatever way the generation ended. Cancellation of `open` gives back what
was taken; cancellation later is `Generation.stop`.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from typing import Any

from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.routing import Route
from libs.telemetry import get_logger
from libs.telemetry.tracing import SERVER, span
from services.gateway import metrics
from services.gateway.catalog import Catalog
from services.gateway.closing import Closing
from services.gateway.config import Settings
from services.gateway.generation import SAFETY_SKIPPED, Choice, Generation
from services.gateway.policy.events import Finish
from services.gateway.policy.parameters import bind_parameters, check_parameters
from services.gateway.policy.spec import BoundParameters, Identity, Spec
from services.gateway.ports import (
    AdmissionPort,
    AuditPort,
    InputCheck,
    QuotaPort,
    Reservation,
    RouterPort,
    SafetyPort,
    WorkerPort,
)
from services.gateway.request import (
    Request,
    accepted_of,
    admit_message,
    deadline_of,
    forget,
    readmit_message,
    submission,
    with_seed,
    with_texts,
)
from services.gateway.structures import StructureChecks, check_engine
from services.gateway.text import TextModel

log = get_logger(__name__)
_MESSAGE_CHARS = 32
"""What rendering one more message costs, in characters to tokenise."""


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
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._quota = quota
        self._router = router
        self._admission = admission
        self._safety = safety
        self._workers = workers
        self._audit = audit
        self._clock = clock
        self._structures = StructureChecks()
        self._closing = Closing(
            quota=quota,
            admission=admission,
            router=router,
            audit=audit,
            clock=clock,
            source=f"{settings.service}/{settings.instance}",
        )
        self._entered = 0  # requests that are on their way or run
        self._active: dict[Generation, Request] = {}
        self._migrations: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def active(self) -> int:
        """Generations that run."""
        return len(self._active)

    async def open(
        self, spec: Spec, identity: Identity, *, request_id: str, remaining: float | None, traceparent: str
    ) -> Generation:
        """Run a request up to its submission to a worker.

        `remaining` is the caller's remaining time in seconds, None when it named none.

        :raises WeirError: whatever refused it; nothing is held then.
        """
        arrived = self._clock.monotonic()
        tenant = self._catalog.tenant(identity.tenant)
        trace = span(f"{spec.operation} {spec.model}"[:120], traceparent, kind=SERVER)
        request = Request(
            request_id=request_id,
            spec=spec,
            identity=identity,
            tenant=tenant,
            deadline=deadline_of(tenant, remaining, self._settings.default_deadline, self._clock),
            arrived=arrived,
            trace=trace,
        )
        self._entered += 1
        self._idle.clear()
        try:
            self._check_may_run(request)
            return await self._open(request)
        except WeirError as error:
            self._rejected(request, error)
            raise
        except asyncio.CancelledError:
            self._rejected(request, WeirError(Reason.CANCELLED, "the caller cancelled"))
            raise
        except Exception:  # a fault of ours still leaves its record; the face's interceptor logs it
            self._rejected(request, WeirError(Reason.INTERNAL, "internal error"))
            raise

    async def drain(self) -> None:
        """Refuse new requests and return once the running ones have ended."""
        self.draining = True
        await self._idle.wait()

    def cut(self) -> None:
        """End whatever still runs: each gets its terminal event, is settled and recorded."""
        for generation in list(self._active):
            generation.fail(WeirError(Reason.DRAINING, "this gateway is shutting down", retry_after=1.0))

    def sweep(self) -> None:
        """Heartbeats, and a backstop behind the worker's own deadline; called about once a second."""
        now = self._clock.monotonic()
        for generation, request in list(self._active.items()):
            if now >= request.deadline.at + 1.0:
                generation.stop(Finish.DEADLINE)
            elif now - generation.last_activity >= self._settings.heartbeat_seconds:
                generation.last_activity = now
                generation.heartbeat()

    # ---- up to the submission ------------------------------------------------------------------------------------

    def _check_may_run(self, request: Request) -> None:
        if self.draining:
            raise WeirError(Reason.DRAINING, "this gateway is shutting down", retry_after=1.0)
        if self._entered > self._settings.max_active:
            raise WeirError(Reason.REJECTED_QUEUE_FULL, "the gateway is full", limit="max_active", retry_after=1.0)
        if self._audit.full and request.tenant.audit_required:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "this request could not be audited", retry_after=5.0)
        if request.deadline.expired(self._clock):
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the request arrived")
        check_parameters(request.spec.parameters)

    async def _open(self, request: Request) -> Generation:
        spec, identity = request.spec, request.identity
        traceparent = request.span.traceparent
        checking: Future[InputCheck] | None = None
        routing: Future[tuple[Route, bool]] | None = None
        reserving: Future[Reservation] | None = None
        admitted = False
        await self._structures.check(spec.parameters.structure)
        try:
            if spec.token_ids is None:
                checking = self._check(request, spec.texts())
            routing = self._router.start_resolve(
                tenant=identity.tenant,
                model=spec.model,
                sticky_key=spec.sticky_key,
                deadline=request.deadline,
                traceparent=traceparent,
            )
            # The tokenizer is needed before the router has answered; the same pure function says which.
            guess = self._catalog.resolve(tenant=identity.tenant, model=spec.model, sticky_key=spec.sticky_key)
            version = self._catalog.version(guess.model_version)
            text = await self._catalog.text(version)
            prompt = await self.encode(text, spec)
            bound = self._bind(request, version, len(prompt))
            if checking is None:  # token ids are checked as the text that they spell
                checking = self._check(request, [text.decode(prompt)])
            tokenised = self._clock.monotonic()
            reserving = self._quota.start_reserve(
                tenant=identity.tenant,
                model=spec.model,
                request_id=request.id,
                tokens=len(prompt) + bound.max_tokens * bound.n,
                request_counted=identity.request_counted,
                deadline=request.deadline,
                traceparent=traceparent,
            )
            check = await checking
            route, routed_locally = await routing
            reservation = await reserving
            if route.model_version != guess.model_version or check.texts is not None:
                version = self._catalog.version(route.model_version)
                text = await self._catalog.text(version)
                prompt = await self.encode(text, with_texts(spec, check.texts))
                bound = self._bind(request, version, len(prompt))
            decided = self._clock.monotonic()
            request.model_version, request.prompt = route.model_version, prompt
            request.admit = admit_message(request, route, bound)
            admitted = True
            request.granted = await self._admission.admit(
                request.admit, deadline=request.deadline, traceparent=traceparent, may_be_local=True
            )
            check_engine(bound.structure, simulated=request.granted.simulated)
            generation = self._start(request, text, version, bound)
        except BaseException:
            # Also on cancellation: whatever was asked for may have been granted by now, and giving back is idempotent.
            for future in (checking, routing, reserving):
                if future is not None:
                    forget(future)
            if request.generation is not None:  # made, and could not be submitted
                self._active.pop(request.generation, None)
                request.generation.discard()
            if reserving is not None:
                self._quota.settle(tenant=identity.tenant, model=spec.model, request_id=request.id, tokens=0)
            if admitted and request.admit is not None:
                self._admission.release(request.id, pool=request.admit.pool, output_tokens=0, unused=True)
            raise
        generation.breakdown.preprocess = tokenised - request.arrived
        generation.breakdown.decide = decided - tokenised
        generation.breakdown.queue = generation.submitted - decided
        flags = (
            ("router_local", routed_locally),
            ("quota_local", reservation.local),
            ("admission_local", not request.granted.grant.mac),
            (SAFETY_SKIPPED, check.skipped),
        )
        generation.degraded += [name for name, on in flags if on]
        generation.accepted = accepted_of(request, route.arm, reservation, generation.degraded, self._clock.time())
        return generation

    def _check(self, request: Request, texts: Sequence[str]) -> Future[InputCheck]:
        return self._safety.start_check(
            tenant=request.identity.tenant,
            policy=request.tenant.safety_policy,
            texts=texts,
            request_id=request.id,
            deadline=request.deadline,
            traceparent=request.span.traceparent,
        )

    async def encode(self, text: TextModel, spec: Spec) -> list[int]:
        """The prompt's tokens; long inputs are tokenised in a thread.

        :raises WeirError: INVALID_REQUEST when there are none, or ids outside the vocabulary.
        """
        if spec.token_ids is not None:
            if max(spec.token_ids) >= text.vocabulary_size:
                raise WeirError(Reason.INVALID_REQUEST, "prompt: a token id is outside the vocabulary", limit="prompt")
            return list(spec.token_ids)
        texts = spec.texts()
        long = sum(map(len, texts)) + _MESSAGE_CHARS * len(texts) > self._settings.encode_inline_chars
        if spec.messages is not None:
            encode: Any = text.encode_chat
            given: Any = spec.messages
        else:
            encode, given = text.encode, spec.prompt
        ids: list[int] = await asyncio.to_thread(encode, given) if long else encode(given)
        if not ids:
            raise WeirError(Reason.INVALID_REQUEST, "prompt: is empty", limit="prompt")
        return ids

    def _bind(self, request: Request, version: registry_pb2.ModelVersion, prompt_tokens: int) -> BoundParameters:
        limits = self._catalog.limits(request.identity.tenant, request.spec.model, version)
        return bind_parameters(request.spec.parameters, limits, prompt_tokens)

    def _start(
        self, request: Request, text: TextModel, version: registry_pb2.ModelVersion, bound: BoundParameters
    ) -> Generation:
        generation = Generation(
            request_id=request.id,
            tenant=request.identity.tenant,
            policy=version.safety_policy or request.tenant.safety_policy,
            parameters=with_seed(bound),
            text=text,
            prompt_tokens=len(request.prompt),
            safety=self._safety,
            clock=self._clock,
            arrived=request.arrived,
            cancel_on_worker=lambda choice: self._cancel(request, choice),
            on_worker_lost=lambda gone: self._migrate(request, gone=gone),
            on_end=lambda _: self._on_end(request),
        )
        request.generation = generation
        self._active[generation] = request
        metrics.ACTIVE.set(len(self._active))
        self._submit(request, generation.choices)
        return generation

    def _submit(self, request: Request, choices: Sequence[Choice]) -> None:
        granted, generation = request.granted, request.generation
        if granted is None or generation is None:
            raise RuntimeError("submitted before it was granted")
        generation.submitted = self._clock.monotonic()
        submissions = [
            (submission(request, granted, generation.parameters, choice, self._clock), choice) for choice in choices
        ]
        for choice, handle in zip(choices, self._workers.submit(granted, submissions), strict=True):
            choice.handle = handle

    # ---- while it runs -------------------------------------------------------------------------------------------

    def _cancel(self, request: Request, choice: Choice) -> None:
        if request.granted is not None and choice.handle:
            self._workers.cancel(request.granted.worker, [choice.handle])
            choice.handle = 0

    def _migrate(self, request: Request, *, gone: bool) -> None:
        """A worker is gone or refused a grant: run what is left of the request on another grant. Called once per lost
        choice; the first call takes them all."""
        generation = request.generation
        if generation is None or generation.end is not None or request.granted is None:
            return
        lost, request.granted = request.granted, None
        # After a refusal, other choices may run on that worker: they end there before they go on elsewhere.
        self._workers.cancel(lost.worker, [choice.handle for choice in generation.choices if choice.handle])
        for choice in generation.choices:
            choice.handle = 0
            choice.end_if_whole()
        if gone:
            self._closing.outcome(request, lost.zone, ok=False)
        if all(choice.ending is not None for choice in generation.choices):
            return
        if request.attempt >= self._settings.max_migrations:
            metrics.MIGRATIONS.labels("exhausted").inc()
            generation.fail(WeirError(Reason.WORKER_LOST, "the worker was lost", retry_after=1.0))
            return
        task = asyncio.get_running_loop().create_task(self._move(request, generation, lost.worker if gone else ""))
        request.moving = task
        self._migrations.add(task)
        task.add_done_callback(self._migrations.discard)

    async def _move(self, request: Request, generation: Generation, lost: str) -> None:
        admit = request.admit
        if admit is None:
            raise RuntimeError("migrated before it was admitted")
        self._admission.release(request.admission_id, pool=admit.pool, output_tokens=0)
        request.attempt += 1
        waiting = generation.unfinished
        readmit_message(request, admit, waiting, lost)
        log.warning("migrating", request_id=request.id, lost_worker=lost, choices=len(waiting))
        try:
            granted = await self._admission.admit(
                admit, deadline=request.deadline, traceparent=request.span.traceparent
            )
        except asyncio.CancelledError:  # the generation has ended; what was asked for may have been granted by now
            self._admission.release(request.admission_id, pool=admit.pool, output_tokens=0, unused=True)
            raise
        except WeirError as error:
            metrics.MIGRATIONS.labels("failed").inc()
            generation.fail(WeirError(Reason.WORKER_LOST, f"the worker was lost and {error.message}", retry_after=1.0))
            return
        request.granted = granted
        metrics.MIGRATIONS.labels("moved").inc()
        self._submit(request, generation.unfinished)  # the filter may have stopped some meanwhile

    # ---- the end -------------------------------------------------------------------------------------------------

    def _on_end(self, request: Request) -> None:
        if request.moving is not None:
            request.moving.cancel()
        if request.generation is not None:
            self._active.pop(request.generation, None)
        metrics.ACTIVE.set(len(self._active))
        self._left()
        self._closing.ended(request)

    def _rejected(self, request: Request, error: WeirError) -> None:
        self._left()
        self._closing.rejected(request, error)

    def _left(self) -> None:
        self._entered -= 1
        if not self._entered:
            self._idle.set()
