"""The second stage: asks admission for a worker, and goes down the plan's ladder instead of refusing; see
`policy/ladder.py`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import msgspec
from msgspec.structs import replace
from weir.admission.v1 import admission_pb2

from libs.clock import Clock
from libs.errors import WeirError
from services.gateway import metrics
from services.gateway.catalog import Catalog
from services.gateway.lease import Lease
from services.gateway.membership import Member, Membership
from services.gateway.messages import admit_message
from services.gateway.occupancy import Visit
from services.gateway.policy.answers import Answer, AnswerCache
from services.gateway.policy.events import Finish
from services.gateway.policy.ladder import OVERLOAD, Offer, ahead, next_step
from services.gateway.policy.objectives import ttft_left
from services.gateway.policy.plans import (
    LADDER_FLAGS,
    CachedAnswer,
    CapOutput,
    CpuFallback,
    DefaultAnswer,
    SmallerModel,
    Step,
)
from services.gateway.policy.pressure import REFUSED, Pressures
from services.gateway.ports import AdmissionPort, RouterPort
from services.gateway.prepare import Preparation
from services.gateway.request import Acquired, Candidate, Prepared, Progress, Request
from services.gateway.structures import check_engine


class Grant:
    """A place on a worker for one request: asked for, used, given back, asked for anew. What is still held when the
    block ends was not used."""

    __slots__ = ("_admission", "_request", "admit", "asked", "granted")

    def __init__(self, admission: AdmissionPort, request: Request) -> None:
        self._admission = admission
        self._request = request
        self.asked = 0
        """Questions so far."""
        self.admit: admission_pb2.Admit | None = None
        """The last one."""
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

    async def ask(self, admit: admission_pb2.Admit, **more: Any) -> admission_pb2.Granted:
        """Wait for a worker; see `AdmissionPort.admit`.

        :raises WeirError: the rejection or eviction; nothing is held then.
        """
        self.asked += 1
        self.admit = admit
        self.granted = await self._admission.admit(
            admit, deadline=self._request.deadline, traceparent=self._request.traceparent, **more
        )
        return self.granted

    def release(self, **brought: Any) -> None:
        """Give it back, and tell what it has brought; see `AdmissionPort.release`. Nothing where none is held."""
        if self.granted is not None and self.admit is not None:
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


class Acquisition:
    """Finds what serves requests. One per process."""

    def __init__(
        self,
        *,
        preparation: Preparation,
        catalog: Catalog,
        router: RouterPort,
        membership: Membership,
        answers: AnswerCache,
        pressures: Pressures,
        patience: float,
        clock: Clock,
    ) -> None:
        """`patience`: seconds that a request with a ladder waits for an admission that is away."""
        self._preparation = preparation
        self._catalog = catalog
        self._router = router
        self._membership = membership
        self._answers = answers
        self._pressures = pressures
        self._patience = patience
        self._clock = clock

    async def acquire(self, request: Request, prepared: Prepared, held: Held) -> Acquired:
        """A grant for what was asked for (of an embedding, for its first part) or, under overload, for less; or an
        answer that needs no worker.

        :raises WeirError: the first refusal, when no step of the ladder helped; whatever is no overload, at once.
        :raises TakenOut: the arm of a candidate is out of force; nothing is held.
        """
        ladder = request.plan.ladder
        candidate, flags = self._ahead(request, prepared) if ladder else (prepared.candidate, prepared.degraded)
        refusal = await self._ask(request, prepared, candidate, held)
        place, step = 0, None
        while refusal is not None:
            if step is not None:
                metrics.LADDER.labels(step.flag, "refused").inc()
            found = next_step(ladder, place, _offer(request, prepared, candidate)) if ladder else None
            if found is None or request.deadline.expired(self._clock):
                raise refusal
            place, step = found[0] + 1, found[1]
            taken = await self._take(step, request, prepared, candidate, held)
            if isinstance(taken, Answer):
                metrics.LADDER.labels(step.flag, "served").inc()
                kept = [flag for flag in flags if flag not in LADDER_FLAGS]
                return Acquired(
                    prepared, prepared.candidate, (*kept, step.flag), taken
                )  # it answers what was asked for
            if taken is None:
                metrics.LADDER.labels(step.flag, "unfit").inc()
                step = None
                continue
            candidate = taken
            if step.flag not in flags:
                flags = (*flags, step.flag)
            if await self._ask(request, prepared, candidate, held) is None:
                refusal = None
        if step is not None:
            metrics.LADDER.labels(step.flag, "served").inc()
        granted = held.grant.granted
        if granted is not None and not granted.grant.mac:  # the fallback's has no proof
            flags = (*flags, "admission_local")
        return Acquired(prepared, candidate, flags)

    async def _ask(self, request: Request, prepared: Prepared, candidate: Candidate, held: Held) -> WeirError | None:
        """Ask for a worker; the refusal, if it is one that less might escape."""
        grant = held.grant
        self._membership.enter(held.member, candidate.model, candidate.route)
        left = None
        if request.internal is not None:
            share = request.internal.version_share
        else:
            share = self._membership.share(candidate.model, candidate.route)
            if not request.spec.batch:
                objectives = self._catalog.objectives(request.route, candidate.version.tier)
                left = ttft_left(objectives, self._clock.monotonic() - request.arrived)
        admit = admit_message(
            request,
            candidate,
            request_id=grant.next_id,
            queue_class=prepared.queue_class,
            version_share=share,
            ttft=left,
        )
        patience = self._patience if request.plan.ladder else None
        try:
            granted = await held.member.wait(grant.ask(admit, may_be_local=request.internal is None, patience=patience))
        except WeirError as error:
            if error.reason not in OVERLOAD:
                raise
            self._note(request, admit, REFUSED)
            return error
        self._note(request, admit, granted.pressure)
        try:
            check_engine(candidate.bound.structure, simulated=granted.simulated)
        except WeirError as error:
            if grant.asked == 1:
                raise
            grant.release(unused=True)  # where the ladder led; what was asked for might have done
            return error
        return None

    def _note(self, request: Request, admit: admission_pb2.Admit, pressure: float) -> None:
        if request.plan.ladder:
            self._pressures.note(admit.pool, admit.queue_class, admit.tenant, pressure, self._clock.monotonic())

    def _ahead(self, request: Request, prepared: Prepared) -> tuple[Candidate, tuple[str, ...]]:
        """What was asked for, capped before anything is refused where the pressure says so."""
        asked, tenant, now = prepared.candidate, request.identity.tenant, self._clock.monotonic()
        pressure = self._pressures.of(asked.route.pool, prepared.queue_class, tenant, now)
        step = ahead(request.plan.ladder, pressure, _offer(request, prepared, asked)) if pressure else None
        if step is None:
            return asked, prepared.degraded
        metrics.LADDER.labels(step.flag, "ahead").inc()
        return _capped(asked, step), (*prepared.degraded, step.flag)

    async def _take(
        self, step: Step, request: Request, prepared: Prepared, candidate: Candidate, held: Held
    ) -> Candidate | Answer | None:
        """What the request becomes by a step; None when the step has nothing for it after all."""
        match step:
            case CapOutput():
                return _capped(candidate, step)
            case SmallerModel():
                return await self._smaller(step, request, candidate, held.lease.room)
            case CachedAnswer():
                return self._answers.get(prepared.answer_key, max_age=step.max_age, now=self._clock.monotonic())
            case DefaultAnswer():
                n = prepared.candidate.bound.n
                return Answer(choices=((step.text, Finish.STOP),) * n, prompt_tokens=0, completion_tokens=0)
            case CpuFallback():
                # No zones: the snapshot knows those of the version's own pool; admission knows this pool's.
                route = dataclasses.replace(candidate.route, pool=step.pools[candidate.route.pool], zones=())
                return replace(candidate, route=route)

    async def _smaller(
        self, step: SmallerModel, request: Request, candidate: Candidate, room: int | None
    ) -> Candidate | None:
        """The other model's own tokens and limits, within what the quota's lease holds and a cap already taken."""
        model = step.models[candidate.model]
        try:
            route, _ = await self._router.start_resolve(
                request.question(self._catalog, model), deadline=request.deadline, traceparent=request.traceparent
            )
            found = await self._preparation.candidate(request, model, route, candidate.check, Progress())
        except WeirError:
            return None  # an operator's mistake, or it does not fit there: the next step may
        most = min(found.bound.max_tokens, candidate.bound.max_tokens)
        if room is not None:
            most = min(most, (room - len(found.prompt)) // found.bound.n)
        return replace(found, bound=replace(found.bound, max_tokens=most)) if most >= 1 else None


def _capped(candidate: Candidate, step: CapOutput) -> Candidate:
    return replace(candidate, bound=replace(candidate.bound, max_tokens=step.max_tokens))


def _offer(request: Request, prepared: Prepared, candidate: Candidate) -> Offer:
    bound = candidate.bound
    return Offer(
        model=candidate.model,
        pool=candidate.route.pool,
        max_tokens=bound.max_tokens,
        # An embedding is no text either, and means nothing to whoever has those of another model.
        structured=bound.structure is not None or bool(candidate.parts),
        tokens_given=request.spec.token_ids is not None or bool(bound.logit_bias) or bool(candidate.parts),
        repeatable=bool(prepared.answer_key),
        logprobs=bound.logprobs is not None,
    )
