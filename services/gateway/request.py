"""One request on its way through the pipeline, and the messages that it becomes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2
from weir.worker.v1 import worker_pb2

from libs.clock import Clock
from libs.deadlines import Deadline, to_duration, to_seconds
from libs.errors import Reason, WeirError
from libs.routing import Route, RouteRequest
from libs.telemetry.tracing import Span
from services.gateway.catalog import Catalog
from services.gateway.choice import Choice
from services.gateway.generation import Generation
from services.gateway.mailbox import Mailbox
from services.gateway.outcomes.cohorts import Begun
from services.gateway.policy.events import Accepted, Usage
from services.gateway.policy.finals import ArmKey, FinalAnswer
from services.gateway.policy.plans import Plan
from services.gateway.policy.prefix import BLOCK, prefix_hashes
from services.gateway.policy.spec import BoundParameters, ChatMessage, Identity, Spec
from services.gateway.ports import InputCheck, QuotaPort, Reservation
from services.gateway.text import TextModel

_GROUP = 16
"""Tokens per delivery of a request that is not streamed: each spares the mesh that many wake-ups, and an output that
the safety filter stops wastes at most this many on the worker."""
_WAY_BACK, _WAY_BACK_SHARE = 0.2, 0.1
"""Seconds of a caller's time, and the share of a short one, that are kept for the way back."""
_LATE = 1.0
"""Seconds that a worker may come late where nobody else breaks off the call."""
_CLASSES = {
    registry_pb2.PLAN_PAID: admission_pb2.QUEUE_CLASS_PAID,
    registry_pb2.PLAN_FREE: admission_pb2.QUEUE_CLASS_FREE,
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a request would be served with: as it was asked for, or as a step of the ladder left it."""

    model: str
    """As the caller named it, or the plan's smaller one."""
    route: Route
    version: registry_pb2.ModelVersion
    text: TextModel
    prompt: list[int]
    bound: BoundParameters
    check: InputCheck
    """What safety said of the input under this version's policies."""
    arm: ArmKey | None = None
    """Where it counts; None outside rollouts."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The time that a request has."""

    deadline: Deadline
    """For everybody who works for it."""
    latest: float
    """When it is ended here if nobody else has done so (monotonic seconds)."""
    given: float
    """Seconds that its caller gave it, or we did."""


class Request:
    """One request on its way; what the end needs to know of its beginning."""

    __slots__ = (
        "admit",
        "answer_key",
        "arrived",
        "asked",
        "begun",
        "candidate",
        "deadline",
        "degraded",
        "faults",
        "final",
        "generation",
        "given",
        "granted",
        "grows",
        "id",
        "identity",
        "latest",
        "lease",
        "leases",
        "mailbox",
        "moved",
        "moving",
        "pinned",
        "place",
        "plan",
        "queue_class",
        "reservation",
        "reserved",
        "routed",
        "serving",
        "span",
        "spec",
        "tenant",
        "waiting",
        "withdrawn",
    )

    def __init__(
        self,
        *,
        request_id: str,
        spec: Spec,
        identity: Identity,
        tenant: registry_pb2.Tenant,
        plan: Plan,
        time: TimeLimit,
        arrived: float,
        trace: Span,
    ) -> None:
        self.id = request_id
        self.spec = spec
        self.identity = identity
        self.tenant = tenant
        self.plan = plan
        self.deadline = time.deadline
        self.latest = time.latest
        self.given = time.given
        self.arrived = arrived
        self.span = trace
        self.asked = 0  # questions to admission so far
        self.faults = 0  # workers that it lost
        self.degraded: list[str] = []
        self.lease = request_id  # the id of the quota's lease
        self.leases = 0  # taken so far
        self.reserved = 0  # its tokens; 0 while there is none
        self.grows = False  # they are what it is expected to use, and not what it may
        self.reservation: Reservation | None = None
        self.queue_class = queue_class_of(tenant, batch=spec.batch, over_quota=False)
        self.pinned: tuple[str, ...] = ()  # safety policies that its input was last checked under
        self.answer_key = b""  # not empty: the answer is worth keeping
        self.routed: Route | None = None  # the last route that it was given
        self.begun: Begun | None = None  # among the requests of an arm
        self.candidate: Candidate | None = None  # what it is billed as, and counts as
        self.serving: Route | None = None  # the candidate's route, until it was moved to another version
        self.moved = False  # another version gives its rest
        self.place: tuple[str, str, str] | None = None  # among the members of an arm; see `arms.py`
        self.waiting: asyncio.Task[Any] | None = None  # waits for a worker, and may be withdrawn
        self.withdrawn = False
        self.admit: admission_pb2.Admit | None = None
        self.granted: admission_pb2.Granted | None = None
        self.generation: Generation | None = None  # runs on a worker
        self.mailbox: Mailbox | None = None  # what its face reads: that generation, or a replayed answer
        self.moving: asyncio.Task[None] | None = None  # looks for another worker
        self.final: asyncio.Future[FinalAnswer] | None = None  # awaited by whoever answers it a second time

    @property
    def admission_id(self) -> str:
        """The id that admission and the worker know; another one for each question after the first."""
        return f"{self.id}/{self.asked - 1}" if self.asked > 1 else self.id

    @property
    def model_version(self) -> str:
        """What serves it, or would; empty before it was resolved."""
        return self.candidate.route.model_version if self.candidate else ""

    @property
    def policies(self) -> tuple[str, ...]:
        """The safety policies that hold for it; empty before they are known."""
        return self.candidate.check.policies if self.candidate else self.pinned

    @property
    def prompt(self) -> list[int]:
        """The prompt's tokens; empty before they are known."""
        return self.candidate.prompt if self.candidate else []

    def question(self, catalog: Catalog, model: str) -> RouteRequest:
        """What the router is asked about it."""
        spec = self.spec
        return catalog.question(self.identity.tenant, model, user=spec.user, session=spec.session, request_id=self.id)

    @property
    def route(self) -> str:
        """The route whose objectives it has."""
        return "batch" if self.spec.batch else "generate"


def queue_class_of(tenant: registry_pb2.Tenant, *, batch: bool, over_quota: bool) -> admission_pb2.QueueClass:
    """The queue: the plan's, or a lower one. A caller's hint can lower it and never raise it."""
    if batch:
        return admission_pb2.QUEUE_CLASS_BATCH
    if over_quota:
        return admission_pb2.QUEUE_CLASS_OVER_QUOTA
    return _CLASSES.get(tenant.plan, admission_pb2.QUEUE_CLASS_FREE)


def time_limit(tenant: registry_pb2.Tenant, remaining: float | None, default: float, clock: Clock) -> TimeLimit:
    """The `remaining` seconds of its caller (the default where it named none), the tenant's longest time at most.

    Of a caller's own time a little is kept for the way back: it hears from us that it was late, before its own side
    breaks off the call, which would look as if it had left, and would say nothing about who was late.
    """
    given = default if remaining is None else remaining
    back = 0.0 if remaining is None else min(_WAY_BACK, _WAY_BACK_SHARE * remaining)
    seconds, latest = given - back, given - back / 2 if back else given + _LATE
    if tenant.HasField("max_deadline") and (longest := to_seconds(tenant.max_deadline)) < seconds:
        given, seconds, latest = longest, longest, min(latest, longest + _LATE)
    now = clock.monotonic()
    return TimeLimit(Deadline(now + seconds), now + latest, given)


def with_texts(spec: Spec, texts: tuple[str, ...] | None) -> Spec:
    """The spec with redacted or tokenised texts in place of the caller's; None leaves it as it is.

    :raises ValueError: safety returned another number of texts than it was asked about.
    """
    if texts is None:
        return spec
    if spec.messages is not None:
        messages = tuple(ChatMessage(m.role, new) for m, new in zip(spec.messages, texts, strict=True))
        return replace(spec, messages=messages)
    if len(texts) != 1:
        raise ValueError(f"safety returned {len(texts)} texts for one")
    return replace(spec, prompt=texts[0], token_ids=None)


def with_seed(bound: BoundParameters, draw: Callable[[], int] = lambda: secrets.randbits(63)) -> BoundParameters:
    """The parameters with a seed if chance plays a part: a stream that moves to another worker goes on with the same
    random numbers."""
    return replace(bound, seed=draw()) if bound.seed is None and bound.temperature > 0 else bound


def admit_message(
    request: Request, candidate: Candidate, ttft: float | None, *, version_share: float = 0.0
) -> admission_pb2.Admit:
    """What admission is asked; `ttft` is the seconds left for the first token, None without an objective."""
    route, bound, plan = candidate.route, candidate.bound, request.plan
    return admission_pb2.Admit(
        request_id=request.admission_id,
        tenant=request.identity.tenant,
        weight=(request.tenant.weight or 1.0) * plan.weight,
        queue_class=request.queue_class,
        pool=route.pool,
        model_version=route.model_version,
        zones=route.zones,
        prompt_tokens=len(candidate.prompt),
        max_output_tokens=bound.max_tokens,
        choices=bound.n,
        ttft_target=None if ttft is None else to_duration(ttft),
        prefix_hashes=prefix_hashes(request.identity.tenant, route.model_version, candidate.prompt),
        prefix_block=BLOCK,
        kv_share=plan.kv_share,
        version_share=version_share,
    )


def divert_message(admit: admission_pb2.Admit, route: Route, version_share: float) -> admission_pb2.Admit:
    """The question for another version, as a message of its own: the old one may still be under way, and is what takes
    that question back."""
    diverted = admission_pb2.Admit()
    diverted.CopyFrom(admit)
    diverted.pool, diverted.model_version, diverted.version_share = route.pool, route.model_version, version_share
    diverted.zones[:] = route.zones
    del diverted.exclude_workers[:]
    return diverted


def readmit_message(
    request: Request, admit: admission_pb2.Admit, choices: Sequence[Choice], *, max_tokens: int, lost: str
) -> None:
    """Turn the first question into the next one, in place: the prompt grows by what was delivered of the `max_tokens`
    of each choice; a `lost` worker is out (empty: none is).

    The output cap becomes what the choice that has delivered least still needs: with the whole of it, a request that
    fills a context would fit nowhere any more. There is no target for the first token: it was accepted with one, and
    refusing it now would waste what was done.
    """
    admit.request_id = request.admission_id
    longest = max((choice.tokens for choice in choices), key=len, default=())
    shortest = min((len(choice.tokens) for choice in choices), default=0)
    admit.prompt_tokens = len(request.prompt) + len(longest)
    admit.max_output_tokens = max_tokens - shortest
    admit.resumed_tokens = len(longest)
    admit.choices = max(1, len(choices))
    admit.ClearField("ttft_target")
    if longest or request.moved:
        hashes = prefix_hashes(admit.tenant, admit.model_version, [*request.prompt, *longest])
        admit.prefix_hashes[:] = hashes
    if lost:
        admit.exclude_workers.append(lost)


_PRIORITIES: dict[int, int] = {
    admission_pb2.QUEUE_CLASS_PAID: 0,
    admission_pb2.QUEUE_CLASS_FREE: 1,
    admission_pb2.QUEUE_CLASS_OVER_QUOTA: 5,
    admission_pb2.QUEUE_CLASS_BATCH: 10,
    admission_pb2.QUEUE_CLASS_SHADOW: 20,
}
"""By class. Engines serve smaller numbers first, and preempt larger ones for them."""


def submission(
    request: Request, granted: admission_pb2.Granted, bound: BoundParameters, choice: Choice, clock: Clock
) -> worker_pb2.Submit:
    """What the worker is asked for one choice: after a migration, to go on after the tokens already delivered."""
    return worker_pb2.Submit(
        grant=granted.grant,
        request_id=request.admission_id,
        model_version=request.serving.model_version if request.serving else request.model_version,
        prompt=[*request.prompt, *choice.tokens],
        sampling=_sampling(bound, choice),
        remaining=to_duration(request.deadline.timeout(clock)),
        traceparent=request.span.traceparent,
        choice=choice.index,
        resumed_tokens=len(choice.tokens),
        priority=_PRIORITIES[request.queue_class],
        # Text that could end it early (a stop string) is worth looking at after every step.
        group_tokens=_GROUP if request.spec.whole and not bound.stop else 0,
    )


def accepted_of(request: Request, degraded: Sequence[str], created: float, *, simulated: bool = False) -> Accepted:
    """What the caller is told once it is known who answers: a granted worker, or nobody (a replayed answer, which a
    `simulated` engine may have given)."""
    granted, candidate, reservation = request.granted, request.candidate, request.reservation
    told = request.identity.request_counted or reservation is None  # the edge adds the limit headers itself
    return Accepted(
        request_id=request.id,
        trace_id=request.span.traceparent[3:35],
        model_version=request.model_version,
        arm=candidate.route.arm if candidate else "",
        prompt_tokens=len(request.prompt),
        simulated=granted.simulated if granted else simulated,
        zone=granted.zone if granted else "",
        created=int(created),
        degraded=tuple(degraded),
        token_limit=None if told or reservation is None else reservation.tokens,
        request_limit=None if told or reservation is None else reservation.requests,
    )


def settle(quota: QuotaPort, request: Request, usage: Usage) -> None:
    """End the request's lease: this was used."""
    quota.settle(
        tenant=request.identity.tenant,
        model=request.spec.model,
        request_id=request.lease,
        tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        model_version=request.model_version,
    )


def broken_off(latest: float, clock: Clock) -> WeirError:
    """What the end of a call from its caller's side means: that its time was over, or that the caller left."""
    if clock.monotonic() >= latest:
        return WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed")
    return WeirError(Reason.CANCELLED, "the caller cancelled")


def forget(future: asyncio.Future[Any]) -> None:
    """Nobody will await this future: keep its late failure from being reported as unhandled."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def _sampling(bound: BoundParameters, choice: Choice) -> worker_pb2.Sampling:
    sampling = worker_pb2.Sampling(
        max_tokens=bound.max_tokens - len(choice.tokens),
        temperature=bound.temperature,
        top_p=bound.top_p,
        top_k=bound.top_k,
        min_p=bound.min_p,
        repetition_penalty=bound.repetition_penalty,
        presence_penalty=bound.presence_penalty,
        frequency_penalty=bound.frequency_penalty,
        ignore_eos=bound.ignore_eos,
    )
    if bound.logit_bias:
        sampling.logit_bias.update(bound.logit_bias)
    if bound.seed is not None:
        # Choices of one seeded request must differ from each other and stay reproducible.
        sampling.seed = (bound.seed + choice.index) % 2**64
    if bound.logprobs is not None:
        sampling.logprobs = bound.logprobs
    elif choice.scores is not None:
        sampling.logprobs = 0  # the chosen tokens' own, which the caller is not shown
    if bound.structure is not None:
        setattr(sampling.structure, bound.structure.kind, bound.structure.text)
    return sampling
