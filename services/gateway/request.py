"""The stages of a request. Each is frozen and made of the one before it; `serve.py` leads from one to the next.

Request → Prepared (a candidate; its quota is held) → Acquired (a worker was granted, or an answer that needs none)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import randbits

import msgspec
from msgspec.structs import replace
from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.deadlines import Deadline, to_seconds
from libs.errors import Reason, WeirError
from libs.routing import Route, RouteRequest
from libs.telemetry.tracing import Span
from services.gateway.catalog import Catalog
from services.gateway.outcomes.cohorts import Begun
from services.gateway.policy.answers import Answer
from services.gateway.policy.events import Accepted, End
from services.gateway.policy.finals import ArmKey
from services.gateway.policy.plans import Plan
from services.gateway.policy.spec import BoundParameters, ChatMessage, Identity, Spec
from services.gateway.ports import InputCheck, Reservation
from services.gateway.text import TextModel

_WAY_BACK, _WAY_BACK_SHARE = 0.2, 0.1
"""Seconds of a caller's time, and the share of a short one, that are kept for the way back."""
_LATE = 1.0
"""Seconds that a worker may come late where nobody else breaks off the call."""
_CLASSES = {
    registry_pb2.PLAN_PAID: admission_pb2.QUEUE_CLASS_PAID,
    registry_pb2.PLAN_FREE: admission_pb2.QUEUE_CLASS_FREE,
}


class TimeLimit(msgspec.Struct, frozen=True):
    """The time that a request has."""

    deadline: Deadline
    """For everybody who works for it."""
    latest: float
    """When it is ended here if nobody else has done so (monotonic seconds)."""
    given: float
    """Seconds that its caller gave it, or we did."""


class Candidate(msgspec.Struct, frozen=True):
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
    parts: Sequence[Sequence[list[int]]] = ()
    """Of an embedding, instead of the prompt: its inputs, as many in a part as one grant is for."""

    @property
    def prompt_tokens(self) -> int:
        """What is read of it."""
        return sum(map(tokens_in, self.parts)) if self.parts else len(self.prompt)


class Request(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Who asks for what, and until when."""

    id: str
    spec: Spec
    identity: Identity
    tenant: registry_pb2.Tenant
    plan: Plan
    time: TimeLimit
    arrived: float
    """Monotonic seconds."""
    span: Span
    internal: Internal | None = None
    """No caller's: it costs no quota, is not filtered and leaves no record. Whoever asks answers for all that."""

    @property
    def deadline(self) -> Deadline:
        """For everybody who works for it."""
        return self.time.deadline

    @property
    def traceparent(self) -> str:
        """Of its span."""
        return self.span.traceparent

    @property
    def route(self) -> str:
        """The route whose objectives it has."""
        if self.spec.inputs:
            return "embed"
        return "batch" if self.spec.batch else "generate"

    def question(self, catalog: Catalog, model: str) -> RouteRequest:
        """What the router is asked about it."""
        spec = self.spec
        return catalog.question(self.identity.tenant, model, user=spec.user, session=spec.session, request_id=self.id)


class Internal(msgspec.Struct, frozen=True):
    """What holds for a request that is no caller's."""

    candidate: Candidate
    queue_class: admission_pb2.QueueClass
    version_share: float


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """It can be served with this, and its quota is held."""

    candidate: Candidate
    queue_class: admission_pb2.QueueClass
    degraded: tuple[str, ...] = ()
    answer_key: bytes = b""
    """Not empty: the answer is worth keeping."""
    tokenised: float
    decided: float
    """Monotonic seconds."""


class Acquired(msgspec.Struct, frozen=True):
    """It is served with this: by the worker that was granted, or by an `answer` that needs none."""

    prepared: Prepared
    candidate: Candidate
    degraded: tuple[str, ...]
    answer: Answer | None = None


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """It is over, and what it was."""

    candidate: Candidate
    """What it is billed as, and counts as."""
    accepted: Accepted
    end: End
    ran: bool = True
    """A worker gave it."""
    worker: str = ""
    """The last."""
    lengths: Sequence[tuple[int, bool]] = ()
    """Tokens of each sequence that ran, and whether it was as long as it wanted to be."""
    first: float = 0.0
    """Seconds to what its caller waits for first; 0: there was none."""
    error: WeirError | None = None
    """What ended it, if a fault of this gateway's side did."""
    mean_logprob: float | None = None


class Progress(msgspec.Struct):
    """How far a request came, for whoever accounts for a refusal."""

    route: Route | None = None
    """The last that it was given."""
    policies: tuple[str, ...] = ()
    """Of safety, that its input was last checked under."""
    prepared: Prepared | None = None
    begun: Begun | None = None
    """Among the requests of an arm."""
    reservation: Reservation | None = None


def tokens_in(inputs: Sequence[Sequence[int]]) -> int:
    """How many there are."""
    return sum(map(len, inputs))


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


def broken_off(latest: float, clock: Clock) -> WeirError:
    """What the end of a call from its caller's side means: that its time was over, or that the caller left."""
    if clock.monotonic() >= latest:
        return WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed")
    return WeirError(Reason.CANCELLED, "the caller cancelled")


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


def with_seed(bound: BoundParameters, draw: Callable[[], int] = lambda: randbits(63)) -> BoundParameters:
    """The parameters with a seed if chance plays a part: a stream that moves to another worker goes on with the same
    random numbers."""
    return replace(bound, seed=draw()) if bound.seed is None and bound.temperature > 0 else bound


def accepted_of(
    request: Request,
    acquired: Acquired,
    reservation: Reservation | None,
    granted: admission_pb2.Granted | None,
    created: float,
) -> Accepted:
    """What the caller is told once it is known who answers."""
    candidate, answer = acquired.candidate, acquired.answer
    if request.identity.request_counted:  # the edge adds the limit headers itself
        reservation = None
    return Accepted(
        request_id=request.id,
        trace_id=request.traceparent[3:35],
        model_version=candidate.route.model_version,
        arm=candidate.route.arm,
        prompt_tokens=candidate.prompt_tokens,
        simulated=granted.simulated if granted is not None else answer is not None and answer.simulated,
        zone=granted.zone if granted is not None else "",
        created=int(created),
        degraded=acquired.degraded,
        token_limit=None if reservation is None else reservation.tokens,
        request_limit=None if reservation is None else reservation.requests,
    )
