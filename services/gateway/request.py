"""The stages of a request. Each is frozen and made of the one before it; `serve.py` leads from one to the next.

Request → Prepared (a candidate, whose quota is held; acquired, it has a worker, or an answer that needs none) → Served
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import randbits

import msgspec
from msgspec.structs import replace
from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2

from libs.callers import Identity
from libs.catalog import Catalog, Plan
from libs.clock import Clock
from libs.cursor import Origin
from libs.deadlines import Deadline, to_seconds
from libs.errors import Reason, WeirError
from libs.limiter import Reservation
from libs.outcomes import ArmKey, Begun
from libs.quota import Price, PriceBook
from libs.routing import Route, RouteRequest
from libs.telemetry.tracing import Span
from libs.texts import TextModel
from services.gateway.policy.answers import Answer
from services.gateway.policy.events import End, Usage
from services.gateway.policy.spec import BoundParameters, Spec
from services.gateway.ports import InputCheck

_WAY_BACK, _WAY_BACK_SHARE = 0.2, 0.1
"""Seconds of a caller's time, and the share of a short one, that are kept for the way back."""
_LATE = 1.0
"""Seconds that a worker may come late where nobody else breaks off the call."""
NO_LIMITS = Reservation()
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

    @property
    def most_tokens(self) -> int:
        """What it may come to, its prompt's among them."""
        return self.prompt_tokens + self.bound.max_tokens * self.bound.n


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
    prices: PriceBook | None = None
    """Its tenant wants to be told what it costs, by these."""
    internal: Internal | None = None
    """No caller's: it costs no quota, is not filtered and leaves no record. Whoever asks answers for all that."""
    again: Callable[[WeirError], bool] = lambda _: False
    """Whether it will come once more after this refusal, which then leaves no record."""

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
    """It is to be served with this."""

    candidate: Candidate
    queue_class: admission_pb2.QueueClass
    degraded: tuple[str, ...] = ()
    answer_key: bytes = b""
    """Not empty: the answer is worth keeping."""
    answer: Answer | None = None
    """One that needs no worker."""
    tokenised: float
    decided: float
    """Monotonic seconds."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller is told once it is known who answers."""

    request_id: str
    trace_id: str
    model_version: str
    arm: str
    prompt_tokens: int
    simulated: bool
    zone: str
    created: int
    """Unix seconds."""
    degraded: tuple[str, ...] = ()
    origin: Origin | None = None
    """Enough to compute it anew; None where that is not wanted, or would not give the same."""
    replayed: bool = False
    """Another call with its idempotency key began it."""
    limits: Reservation = NO_LIMITS
    """The state of the caller's limits, where the face has to tell it."""
    price: Price | None = None
    """What its tokens cost, where its tenant wants to be told."""

    def cost(self, usage: Usage) -> int | None:
        """Micro-dollars of an answer, as it is billed; None: nobody is told."""
        if self.price is None:
            return None
        tokens = usage.prompt_tokens + usage.completion_tokens
        return self.price.cost(tokens, usage.prompt_tokens, usage.cached_prompt_tokens)


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
    mean_logprob: float | None = None


class Progress(msgspec.Struct):
    """How far a request came, for whoever accounts for a refusal."""

    route: Route | None = None
    """The last that it was given."""
    policies: tuple[str, ...] = ()
    """Of safety, that its input was last checked under."""
    begun: Begun | None = None
    """Among the requests of an arm."""
    queue_class: str = ""
    """The queue that it waits in, as records have it; empty before that is known."""
    place: int = -1
    """Of its opening in the audit journal; -1: it has none."""


def class_of(queue_class: admission_pb2.QueueClass) -> str:
    """A queue's name, as records have it: "paid", "free" …"""
    return admission_pb2.QueueClass.Name(queue_class).removeprefix("QUEUE_CLASS_").lower()


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
    asked = 1 if spec.messages is None else len(spec.texts())
    if len(texts) != asked:
        raise ValueError(f"safety returned {len(texts)} texts for {asked}")
    if spec.messages is not None:
        new = iter(texts)
        messages = tuple([message.mapped(lambda _: next(new)) for message in spec.messages])
        return replace(spec, messages=messages, chat=spec.chat.mapped(lambda _: next(new)))
    return replace(spec, prompt=texts[0], token_ids=None)


def with_seed(bound: BoundParameters, draw: Callable[[], int] = lambda: randbits(63)) -> BoundParameters:
    """The parameters with a seed if chance plays a part: a stream that moves to another worker goes on with the same
    random numbers."""
    return replace(bound, seed=draw()) if bound.seed is None and bound.temperature > 0 else bound
