"""Asks admission for a worker, and goes down the plan's ladder instead of refusing; see `policy/ladder.py`."""

from __future__ import annotations

from dataclasses import replace

from weir.admission.v1 import admission_pb2

from libs.clock import Clock
from libs.errors import WeirError
from services.gateway import metrics
from services.gateway.arms import Arms
from services.gateway.catalog import Catalog
from services.gateway.opening import Opening
from services.gateway.policy.answers import Answer, AnswerCache
from services.gateway.policy.events import Finish
from services.gateway.policy.ladder import OVERLOAD, Offer, ahead, next_step
from services.gateway.policy.objectives import ttft_left
from services.gateway.policy.plans import (
    LADDER_FLAGS,
    OUTPUT_CAPPED,
    CachedAnswer,
    CapOutput,
    CpuFallback,
    DefaultAnswer,
    SmallerModel,
    Step,
)
from services.gateway.policy.pressure import REFUSED, Pressures
from services.gateway.ports import AdmissionPort, RouterPort
from services.gateway.request import Candidate, Request, admit_message, with_texts
from services.gateway.structures import check_engine


class Ladder:
    """One per process."""

    def __init__(
        self,
        *,
        opening: Opening,
        catalog: Catalog,
        router: RouterPort,
        admission: AdmissionPort,
        arms: Arms,
        answers: AnswerCache,
        pressures: Pressures,
        patience: float,
        clock: Clock,
    ) -> None:
        """`patience`: seconds that a request with a ladder waits for an admission that is away."""
        self._opening = opening
        self._catalog = catalog
        self._router = router
        self._admission = admission
        self._arms = arms
        self._answers = answers
        self._pressures = pressures
        self._patience = patience
        self._clock = clock

    async def find(self, request: Request, asked: Candidate) -> Candidate | Answer:
        """A grant for what was asked for or, under overload, for less; or an answer that needs no worker. The
        request's `candidate`, `granted` and `degraded` say what it became.

        :raises WeirError: the first refusal, when no step of the ladder helped; whatever is no overload, at once.
        :raises TakenOut: the arm of a candidate is out of force; nothing is held.
        """
        ladder = request.plan.ladder
        candidate = self._ahead(request, asked) if ladder else asked
        refusal = await self._ask(request, candidate)
        place, step = 0, None
        while refusal is not None:
            if step is not None:
                metrics.LADDER.labels(step.flag, "refused").inc()
            found = next_step(ladder, place, _offer(request, candidate)) if ladder else None
            if found is None or request.deadline.expired(self._clock):
                request.candidate = asked  # what is told is what became of that
                raise refusal
            place, step = found[0] + 1, found[1]
            taken = await self._take(step, request, asked, candidate)
            if isinstance(taken, Answer):
                request.degraded = [flag for flag in request.degraded if flag not in LADDER_FLAGS] + [step.flag]
                metrics.LADDER.labels(step.flag, "served").inc()
                return taken
            if taken is None:
                metrics.LADDER.labels(step.flag, "unfit").inc()
                step = None
                continue
            candidate = taken
            if step.flag not in request.degraded:
                request.degraded.append(step.flag)
            if await self._ask(request, candidate) is None:
                refusal = None
        if step is not None:
            metrics.LADDER.labels(step.flag, "served").inc()
        return candidate

    async def _ask(self, request: Request, candidate: Candidate) -> WeirError | None:
        """Ask for a worker; the refusal, if it is one that less might escape."""
        request.asked += 1
        self._arms.enter(request, candidate)
        request.candidate = candidate
        now = self._clock.monotonic()
        left = None
        if not request.spec.batch:
            objectives = self._catalog.objectives(request.route, candidate.version.tier)
            left = ttft_left(objectives, now - request.arrived)
        admit = request.admit = admit_message(request, candidate, left, version_share=self._arms.share(candidate))
        try:
            granted = await self._admission.admit(
                admit,
                deadline=request.deadline,
                traceparent=request.span.traceparent,
                may_be_local=True,
                patience=self._patience if request.plan.ladder else None,
            )
        except WeirError as error:
            if error.reason not in OVERLOAD:
                raise
            self._note(request, admit, REFUSED)
            return error
        request.granted = granted
        self._note(request, admit, granted.pressure)
        try:
            check_engine(candidate.bound.structure, simulated=granted.simulated)
        except WeirError as error:
            if request.asked == 1:
                raise
            # Where the ladder led; what was asked for might have done.
            request.granted = None
            self._admission.release(admit.request_id, pool=admit.pool, unused=True)
            return error
        return None

    def _note(self, request: Request, admit: admission_pb2.Admit, pressure: float) -> None:
        if request.plan.ladder:
            self._pressures.note(admit.pool, admit.queue_class, admit.tenant, pressure, self._clock.monotonic())

    def _ahead(self, request: Request, asked: Candidate) -> Candidate:
        """What was asked for, capped before anything is refused where the pressure says so."""
        tenant, now = request.identity.tenant, self._clock.monotonic()
        pressure = self._pressures.of(asked.route.pool, request.queue_class, tenant, now)
        step = ahead(request.plan.ladder, pressure, _offer(request, asked)) if pressure else None
        if step is None:
            return asked
        metrics.LADDER.labels(step.flag, "ahead").inc()
        request.degraded.append(OUTPUT_CAPPED)
        return _capped(asked, step)

    async def _take(
        self, step: Step, request: Request, asked: Candidate, candidate: Candidate
    ) -> Candidate | Answer | None:
        """What the request becomes by a step; None when the step has nothing for it after all."""
        match step:
            case CapOutput():
                return _capped(candidate, step)
            case SmallerModel():
                return await self._smaller(step, request, candidate)
            case CachedAnswer():
                request.candidate = asked  # it answers what was asked for
                return self._answers.get(request.answer_key, max_age=step.max_age, now=self._clock.monotonic())
            case DefaultAnswer():
                request.candidate = asked
                return Answer(choices=((step.text, Finish.STOP),) * asked.bound.n, prompt_tokens=0, completion_tokens=0)
            case CpuFallback():
                # No zones: the snapshot knows those of the version's own pool; admission knows this pool's.
                route = replace(candidate.route, pool=step.pools[candidate.route.pool], zones=())
                return replace(candidate, route=route)

    async def _smaller(self, step: SmallerModel, request: Request, candidate: Candidate) -> Candidate | None:
        """The other model's own tokens and limits, within what the quota's lease holds and a cap already taken."""
        model = step.models[candidate.model]
        try:
            route, _ = await self._router.start_resolve(
                request.question(self._catalog, model),
                deadline=request.deadline,
                traceparent=request.span.traceparent,
            )
            version = self._catalog.version(route.model_version)
            text = await self._catalog.text(version, request.deadline.remaining(self._clock))
            check = await self._opening.vet(request, version, text, candidate.check)
            prompt = await self._opening.encode(text, with_texts(request.spec, check.texts))
            bound = self._opening.bind(request, version, len(prompt))
        except WeirError:
            return None  # an operator's mistake, or it does not fit there: the next step may
        most = min(bound.max_tokens, candidate.bound.max_tokens)
        if not request.grows:
            most = min(most, (request.reserved - len(prompt)) // bound.n)
        if most < 1:
            return None
        arm = self._catalog.arm_key(model, route)
        return Candidate(model, route, version, text, prompt, replace(bound, max_tokens=most), check, arm)


def _capped(candidate: Candidate, step: CapOutput) -> Candidate:
    return replace(candidate, bound=replace(candidate.bound, max_tokens=step.max_tokens))


def _offer(request: Request, candidate: Candidate) -> Offer:
    bound = candidate.bound
    return Offer(
        model=candidate.model,
        pool=candidate.route.pool,
        max_tokens=bound.max_tokens,
        structured=bound.structure is not None,
        tokens_given=request.spec.token_ids is not None or bool(bound.logit_bias),
        repeatable=bool(request.answer_key),
        logprobs=bound.logprobs is not None,
    )


def granted_locally(granted: admission_pb2.Granted) -> bool:
    """The grant is the fallback's: it has no proof."""
    return not granted.grant.mac
