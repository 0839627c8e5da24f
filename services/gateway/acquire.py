"""The second stage: asks admission for a worker, and goes down the plan's ladder instead of refusing; see
`policy/ladder.py`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import msgspec
from msgspec.structs import replace
from weir.admission.v1 import admission_pb2

from libs.catalog.plans import (
    LADDER_FLAGS,
    CachedAnswer,
    CapOutput,
    CpuFallback,
    DefaultAnswer,
    SmallerModel,
    Step,
)
from libs.cursor import Origin
from libs.errors import WeirError
from libs.limiter import Lease
from libs.occupancy import Visit
from libs.outcomes.objectives import ttft_left
from services.gateway import metrics
from services.gateway.clients.admission import AdmissionClient
from services.gateway.membership import Member
from services.gateway.messages import admit_message
from services.gateway.parts import Parts
from services.gateway.policy.answers import Answer
from services.gateway.policy.events import Finish
from services.gateway.policy.ladder import OVERLOAD, Offer, ahead, next_step
from services.gateway.policy.parameters import invalid
from services.gateway.policy.pressure import REFUSED
from services.gateway.policy.spec import BoundParameters
from services.gateway.prepare import candidate_for
from services.gateway.request import NO_LIMITS, Accepted, Candidate, Prepared, Progress, Request


class Grant:
    """A place on a worker for one request: asked for, used, given back, asked for anew. What is still held when the
    block ends was not used."""

    __slots__ = ("_admission", "_request", "admit", "asked", "granted")

    admit: admission_pb2.Admit
    """The last question."""

    def __init__(self, admission: AdmissionClient, request: Request) -> None:
        self._admission = admission
        self._request = request
        self.asked = 0
        """Questions so far."""
        self.granted: admission_pb2.Granted | None = None
        """What is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release(unused=True)

    @property
    def next_id(self) -> str:
        """What admission and the worker are to know it by: each question, and so each grant, has an id of its own."""
        return f"{self._request.id}/{self.asked}" if self.asked else self._request.id

    @property
    def held(self) -> admission_pb2.Granted:
        """What is held, where something is."""
        if self.granted is None:
            raise RuntimeError("nothing is granted")
        return self.granted

    async def ask(self, admit: admission_pb2.Admit, **more: Any) -> admission_pb2.Granted:
        """Wait for a worker; see `AdmissionClient.admit`.

        :raises WeirError: the rejection or eviction; nothing is held then.
        """
        self.asked += 1
        self.admit = admit
        self.granted = await self._admission.admit(
            admit, deadline=self._request.deadline, traceparent=self._request.traceparent, **more
        )
        return self.granted

    def release(self, **brought: Any) -> None:
        """Give it back, and tell what it has brought; see `AdmissionClient.release`. Nothing where none is held."""
        if self.granted is not None:
            self.granted = None
            self._admission.release(self.admit.request_id, pool=self.admit.pool, **brought)


class Held(msgspec.Struct, frozen=True):
    """Of one request."""

    visit: Visit
    """Its place in this gateway."""
    lease: Lease
    """Of its tenant's quota."""
    member: Member
    """Among those on an arm of a rollout."""
    grant: Grant
    """On a worker."""
    progress: Progress
    """With its opening in the audit journal."""


def accepted_of(
    request: Request, prepared: Prepared, held: Held, created: float, origin: Origin | None = None
) -> Accepted:
    """What the caller is told, at `created` Unix seconds."""
    candidate, answer = prepared.candidate, prepared.answer
    granted, reservation = held.grant.granted, held.lease.reservation
    return Accepted(
        request_id=request.id,
        trace_id=request.traceparent[3:35],
        model_version=candidate.route.model_version,
        arm=candidate.route.arm,
        prompt_tokens=candidate.prompt_tokens,
        simulated=granted.simulated if granted is not None else answer is not None and answer.simulated,
        zone=granted.zone if granted is not None else "",
        created=int(created),
        degraded=prepared.degraded,
        price=None if request.prices is None else request.prices.of(candidate.route.model_version, request.spec.model),
        origin=origin,
        limits=NO_LIMITS if reservation is None or request.identity.request_counted else reservation,
    )


async def acquire(parts: Parts, request: Request, prepared: Prepared, held: Held) -> Prepared:
    """A grant for what was prepared (of an embedding, for its first part) or, under overload, for less; or an answer
    that needs no worker.

    :raises WeirError: the first refusal, when no step of the ladder helped; whatever is no overload, at once.
    :raises TakenOut: the arm of a candidate is out of force; nothing is held.
    """
    ladder, asked = request.plan.ladder, prepared
    if ladder:
        prepared = _capped_ahead(parts, request, prepared)
    refusal = await _ask(parts, request, prepared, held)
    place, step = 0, None
    while refusal is not None:
        if step is not None:
            metrics.LADDER.labels(step.flag, "refused").inc()
        found = next_step(ladder, place, _offer(request, prepared)) if ladder else None
        if found is None or request.deadline.expired(parts.clock):
            raise refusal
        place, step = found[0] + 1, found[1]
        taken = await _take(parts, step, request, prepared, held)
        if isinstance(taken, Answer):  # of what was asked for
            metrics.LADDER.labels(step.flag, "served").inc()
            kept = [flag for flag in prepared.degraded if flag not in LADDER_FLAGS]
            return replace(asked, degraded=(*kept, step.flag), answer=taken)
        if taken is None:
            metrics.LADDER.labels(step.flag, "unfit").inc()
            step = None
            continue
        prepared = _flagged(replace(prepared, candidate=taken), step.flag)
        if await _ask(parts, request, prepared, held) is None:  # else the first refusal is told
            refusal = None
    if step is not None:
        metrics.LADDER.labels(step.flag, "served").inc()
    return prepared if held.grant.held.grant.mac else _flagged(prepared, "admission_local")  # the fallback has no proof


async def _ask(parts: Parts, request: Request, prepared: Prepared, held: Held) -> WeirError | None:
    """Ask for a worker; the refusal, if it is one that less might escape."""
    grant, candidate, ladder = held.grant, prepared.candidate, request.plan.ladder
    parts.membership.enter(held.member, candidate.model, candidate.route)
    left = None
    if request.internal is not None:
        share = request.internal.version_share
    else:
        share = parts.membership.share(candidate.model, candidate.route)
        if not request.spec.batch:
            objectives = parts.catalog.objectives(request.route, candidate.version.tier)
            left = ttft_left(objectives, parts.clock.monotonic() - request.arrived)
    admit = admit_message(request, prepared, request_id=grant.next_id, version_share=share, ttft=left)
    patience = parts.settings.decide_timeout if ladder else None
    pressure, refusal, granted = REFUSED, None, None
    try:
        granted = await held.member.wait(grant.ask(admit, may_be_local=request.internal is None, patience=patience))
        pressure = granted.pressure
    except WeirError as error:
        if error.reason not in OVERLOAD:
            raise
        refusal = error
    if ladder:
        parts.pressures.note(admit.pool, admit.queue_class, admit.tenant, pressure, parts.clock.monotonic())
    unoffered = _unoffered_simulated(candidate.bound)
    if granted is not None and granted.simulated and unoffered is not None:
        refusal = unoffered
        if grant.asked == 1:
            raise refusal
        grant.release(unused=True)  # where the ladder led; what was asked for might have done
    return refusal


def _unoffered_simulated(bound: BoundParameters) -> WeirError | None:
    """What is said where only a simulated worker would run it; None where that can."""
    if bound.structure is not None:
        return invalid(bound.structure.field, "a simulated engine offers no structured output")
    return invalid("bad_words", "a simulated engine offers no bad words") if bound.bad_words else None


def _capped_ahead(parts: Parts, request: Request, prepared: Prepared) -> Prepared:
    """What was asked for, capped before anything is refused where the pressure says so."""
    pool, tenant, now = prepared.candidate.route.pool, request.identity.tenant, parts.clock.monotonic()
    pressure = parts.pressures.of(pool, prepared.queue_class, tenant, now)
    step = ahead(request.plan.ladder, pressure, _offer(request, prepared)) if pressure else None
    if step is None:
        return prepared
    metrics.LADDER.labels(step.flag, "ahead").inc()
    return _flagged(replace(prepared, candidate=_capped(prepared.candidate, step.max_tokens)), step.flag)


async def _take(
    parts: Parts, step: Step, request: Request, prepared: Prepared, held: Held
) -> Candidate | Answer | None:
    """What the request becomes by a step; None when the step has nothing for it after all."""
    candidate = prepared.candidate
    match step:
        case CapOutput():
            return _capped(candidate, step.max_tokens)
        case SmallerModel():
            return await _smaller(parts, step.models[candidate.model], request, candidate, held.lease.room)
        case CachedAnswer():
            return parts.answers.get(prepared.answer_key, max_age=step.max_age, now=parts.clock.monotonic())
        case DefaultAnswer():
            n = candidate.bound.n
            return Answer(choices=((step.text, Finish.STOP),) * n, prompt_tokens=0, completion_tokens=0)
        case CpuFallback():
            # Mostly no zones: the route's are those of the version's own pool; admission knows this pool's.
            pool = step.pools[candidate.route.pool]
            try:
                zones = parts.catalog.elsewhere(request.identity.tenant, pool)
            except WeirError:
                return None
            return replace(candidate, route=dataclasses.replace(candidate.route, pool=pool, zones=zones))


async def _smaller(
    parts: Parts, model: str, request: Request, candidate: Candidate, room: int | None
) -> Candidate | None:
    """The other model's own tokens and limits, within what the quota's lease holds and a cap already taken."""
    try:
        route, _ = await parts.router.start_resolve(
            request.question(parts.catalog, model), deadline=request.deadline, traceparent=request.traceparent
        )
        found = await candidate_for(parts, request, model, route, candidate.check, Progress())
    except WeirError:
        return None  # an operator's mistake, or it does not fit there: the next step may
    most = min(found.bound.max_tokens, candidate.bound.max_tokens)
    if room is not None:
        most = min(most, (room - len(found.prompt)) // found.bound.n)
    return _capped(found, most) if most >= 1 else None


def _capped(candidate: Candidate, max_tokens: int) -> Candidate:
    return replace(candidate, bound=replace(candidate.bound, max_tokens=max_tokens))


def _flagged(prepared: Prepared, flag: str) -> Prepared:
    return prepared if flag in prepared.degraded else replace(prepared, degraded=(*prepared.degraded, flag))


def _offer(request: Request, prepared: Prepared) -> Offer:
    candidate = prepared.candidate
    bound, embeds = candidate.bound, bool(candidate.parts)  # which is no text, and means nothing in another model
    return Offer(
        model=candidate.model,
        pool=candidate.route.pool,
        max_tokens=bound.max_tokens,
        structured=bound.structure is not None or embeds,
        tokens_given=request.spec.token_ids is not None or bool(bound.logit_bias or bound.stop_token_ids) or embeds,
        repeatable=bool(prepared.answer_key),
        logprobs=bound.logprobs is not None,
    )
