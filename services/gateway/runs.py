"""Generations that no user asked for: admission → worker → tokens, without identity, quota, safety filter or audit.

They go the same way as users' requests (`dispatch.py`): moved when a worker is lost, in their own queue class and on
their own deadline. Whoever starts one answers for its quota and its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weir.admission.v1 import admission_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.routing import Route
from libs.telemetry.tracing import INTERNAL, span
from services.gateway.catalog import Catalog
from services.gateway.closing import Closing
from services.gateway.dispatch import Dispatch
from services.gateway.egress import Egress
from services.gateway.generation import Generation
from services.gateway.opening import Opening
from services.gateway.policy.events import Finish
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.plans import Plan
from services.gateway.policy.spec import BoundParameters, Identity, Spec
from services.gateway.ports import AdmissionPort, FilteredChoice, InputCheck
from services.gateway.request import Candidate, Request, TimeLimit, admit_message, with_seed
from services.gateway.structures import check_engine

_ENDLESS = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to generate, and as whom."""

    request_id: str
    """Unique in the mesh: admission and workers know it by this."""
    tenant: str
    """In whose name it stands in admission's queue; also salts its prefixes."""
    model_version: str
    pool: str
    zones: Sequence[str] = ()
    queue_class: admission_pb2.QueueClass
    prompt: Sequence[int]
    """Tokens of the version's own tokenizer, at least one."""
    parameters: BoundParameters
    """A draw without a seed gets one here. `logprobs` need not be set: those of the chosen tokens always come."""
    version_share: float = 0.0
    """See `Admit.version_share`."""
    deadline: Deadline
    traceparent: str = ""


class Runs:
    """One per process; made by the pipeline, with its own dispatch and closing."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        opening: Opening,
        admission: AdmissionPort,
        dispatch: Dispatch,
        closing: Closing,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._opening = opening
        self._admission = admission
        self._dispatch = dispatch
        self._closing = closing
        self._clock = clock
        # Nobody reads what these say, so nothing may be cut for being unread.
        self._egress = Egress(stall=_ENDLESS, most_stream=2**62, most=2**62)

    async def encode(self, model_version: str, spec: Spec) -> list[int]:
        """The prompt's tokens for a version.

        :raises WeirError: MODEL_NOT_FOUND; INVALID_REQUEST when it has no tokens there or no template for it.
        """
        return await self._opening.encode(await self._catalog.text(self._catalog.version(model_version)), spec)

    async def run(self, run: Run) -> FinalAnswer:
        """Generate, to the end. Cancelling it cancels on the worker and gives everything back.

        :raises WeirError: what admission refused or the worker failed with; DEADLINE_EXCEEDED.
        """
        request = await self._request(run)
        with request.span:
            return await self._run(run, request)

    async def _run(self, run: Run, request: Request) -> FinalAnswer:
        candidate = request.candidate
        if candidate is None:
            raise RuntimeError("made without a candidate")
        request.admit = admit_message(request, candidate, None, version_share=run.version_share)
        request.asked = 1
        admit = request.admit
        request.granted = await self._admission.admit(admit, deadline=run.deadline, traceparent=run.traceparent)
        ended: asyncio.Future[FinalAnswer] = asyncio.get_running_loop().create_future()
        try:
            check_engine(candidate.bound.structure, simulated=request.granted.simulated)
            generation = self._generation(request, candidate, ended)
            self._dispatch.submit(request, generation, generation.choices)
        except BaseException:
            self._admission.release(request.admission_id, pool=admit.pool, unused=True)
            raise
        try:
            answer = await ended
        finally:
            generation.stop(Finish.CANCELLED)  # nothing, unless this was cancelled
        if answer.end.finish is Finish.DEADLINE:
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed")
        if answer.end.finish is Finish.ERROR:
            raise WeirError(Reason.parse(answer.end.error_reason), answer.end.message)
        return answer

    async def _request(self, run: Run) -> Request:
        version = self._catalog.version(run.model_version)
        text = await self._catalog.text(version, run.deadline.remaining(self._clock))
        prompt = list(run.prompt)
        request = Request(
            request_id=run.request_id,
            spec=Spec(model=run.model_version, operation="internal", token_ids=tuple(prompt), whole=True),
            identity=Identity(tenant=run.tenant),
            tenant=self._catalog.tenant(run.tenant),
            plan=Plan(),
            time=TimeLimit(run.deadline, latest=_ENDLESS, given=0.0),
            arrived=self._clock.monotonic(),
            trace=span(f"internal {run.model_version}"[:120], run.traceparent, kind=INTERNAL),
        )
        request.queue_class = run.queue_class
        bound = replace(with_seed(run.parameters), logprobs=None)  # only for those who read its text
        route = Route(
            model_version=run.model_version,
            arm="",
            pool=run.pool,
            tier=version.tier,
            zones=tuple(run.zones),
            revision=self._catalog.snapshot.revision,
        )
        request.candidate = Candidate(run.model_version, route, version, text, prompt, bound, InputCheck(None))
        return request

    def _generation(self, request: Request, candidate: Candidate, ended: asyncio.Future[FinalAnswer]) -> Generation:
        generation = Generation(
            request_id=request.id,
            tenant=request.identity.tenant,
            check=candidate.check,
            parameters=candidate.bound,
            text=candidate.text,
            prompt_tokens=len(candidate.prompt),
            safety=Unfiltered(),
            clock=self._clock,
            arrived=request.arrived,
            egress=self._egress,
            keep_text=False,
            observed=True,
            on_worker=self._dispatch.running(request),
            on_end=lambda: self._ended(request, ended),
        )
        request.generation = request.mailbox = generation
        return generation

    def _ended(self, request: Request, ended: asyncio.Future[FinalAnswer]) -> None:
        if request.moving is not None:
            request.moving.cancel()
        generation = request.generation
        if generation is None or generation.end is None:
            raise RuntimeError("ended before it began")
        finish = generation.end.finish
        if request.granted is not None:
            failed = generation.end.error_reason == Reason.ENGINE_ERROR.name
            self._closing.release(request, failed=failed, cut_short=finish not in (Finish.STOP, Finish.LENGTH))
        generation.left()
        request.span.end(generation.end.error_reason if finish is Finish.ERROR else "")
        if not ended.done():
            ended.set_result(generation.final(model_version=request.model_version, moved=False))


class Unfiltered:
    """Implements `OutputFilter` for what no user sees: everything is released as it comes."""

    def __init__(self) -> None:
        self._choices: dict[int, tuple[FilteredChoice, int]] = {}
        self._last = 0

    def open(
        self, choice: FilteredChoice, *, tenant: str, policies: Sequence[str], request_id: str, json: bool = False
    ) -> int:
        """See `OutputFilter`."""
        self._last += 1
        self._choices[self._last] = choice, 0
        return self._last

    def feed(self, number: int, text: str, *, last: bool) -> None:
        """See `OutputFilter`."""
        if number not in self._choices:
            return
        choice, fed = self._choices.pop(number)
        fed += len(text)
        if not last:
            self._choices[number] = choice, fed
        choice.on_released(text, consumed=fed, blocked="", last=last)

    def flush(self) -> None:
        """See `OutputFilter`."""

    def close(self, number: int) -> None:
        """See `OutputFilter`."""
        self._choices.pop(number, None)
