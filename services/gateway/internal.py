"""Generations that no user asked for: through the same coroutine, without identity, quota, safety filter or record.

They move when a worker is lost as users' do, in their own queue class and on their own deadline. Whoever starts one
answers for its quota and its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from weir.admission.v1 import admission_pb2

from libs.callers import Identity
from libs.catalog import Catalog, Plan
from libs.clock import Clock
from libs.deadlines import Deadline
from libs.outcomes import ArmKey
from libs.routing import Route
from libs.telemetry import get_logger
from libs.telemetry.tracing import INTERNAL, span
from services.gateway.output_buffer import SlowReaders
from services.gateway.policy.spec import BoundParameters, Spec
from services.gateway.ports import FilteredChoice, InputCheck, Mirrored
from services.gateway.request import Candidate, Internal, Request, TimeLimit, with_texts

log = get_logger(__name__)
_ENDLESS = float("inf")
READERS = SlowReaders(stall=_ENDLESS, most_stream=2**62, most=2**62)
"""Nobody reads what these say, so nothing may be cut for being unread."""


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


async def of_run(run: Run, catalog: Catalog, clock: Clock) -> Request:
    """The request that it is.

    :raises WeirError: MODEL_NOT_FOUND; see `TextStore.load`.
    """
    version = catalog.version(run.model_version)
    text = await catalog.text(version, run.deadline.remaining(clock))
    prompt = list(run.prompt)
    route = Route(
        model_version=run.model_version,
        arm="",
        pool=run.pool,
        tier=version.tier,
        zones=tuple(run.zones),
        revision=catalog.snapshot.revision,
    )
    bound = replace(run.parameters, logprobs=None)  # those are for readers of its text
    candidate = Candidate(run.model_version, route, version, text, prompt, bound, InputCheck(None))
    return Request(
        id=run.request_id,
        spec=Spec(model=run.model_version, operation="internal", token_ids=tuple(prompt), whole=True),
        identity=Identity(tenant=run.tenant, request_counted=True),
        tenant=catalog.tenant(run.tenant),
        plan=Plan(),
        time=TimeLimit(run.deadline, latest=_ENDLESS, given=0.0),
        arrived=clock.monotonic(),
        span=span(f"internal {run.model_version}"[:120], run.traceparent, kind=INTERNAL),
        internal=Internal(candidate, run.queue_class, run.version_share),
    )


def mirrored_of(request: Request, candidate: Candidate, parameters: BoundParameters, arm: ArmKey) -> Mirrored:
    """A user's request that is to be answered a second time."""
    return Mirrored(
        request_id=request.id,
        spec=with_texts(request.spec, candidate.check.texts),
        identity=request.identity,
        prompt=candidate.prompt,
        parameters=parameters,
        route=candidate.route,
        arm=arm,
        traceparent=request.traceparent,
        answer=asyncio.get_running_loop().create_future(),
    )


def mirror_soon(mirror: Callable[[Mirrored], None], mirrored: Mirrored) -> None:
    """Its first text is about to be handed on: once its face has had its turn, have it answered a second time."""

    def now() -> None:
        try:
            mirror(mirrored)
        except Exception as error:  # nothing of a copy may reach the user's request; the text may quote a prompt
            log.error("not_mirrored", request_id=mirrored.request_id, error=type(error).__name__)

    asyncio.get_running_loop().call_soon(now)


class Unfiltered:
    """Implements `OutputFilter` for what no user sees: everything is released as it comes."""

    def __init__(self) -> None:
        self._sequences: dict[int, tuple[FilteredChoice, int]] = {}
        self._last = 0

    def open(
        self,
        choice: FilteredChoice,
        *,
        tenant: str,
        policies: Sequence[str],
        request_id: str,
        json: bool = False,
        traceparent: str = "",
    ) -> int:
        """See `OutputFilter`."""
        self._last += 1
        self._sequences[self._last] = choice, 0
        return self._last

    def feed(self, number: int, text: str, *, last: bool) -> None:
        """See `OutputFilter`."""
        if number not in self._sequences:
            return
        sequence, fed = self._sequences.pop(number)
        fed += len(text)
        if not last:
            self._sequences[number] = sequence, fed
        sequence.on_released(text, consumed=fed, blocked="", last=last)

    def flush(self) -> None:
        """See `OutputFilter`."""

    def close(self, number: int) -> None:
        """See `OutputFilter`."""
        self._sequences.pop(number, None)
