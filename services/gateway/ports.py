"""What the pipeline needs from the services around it. Adapters: `clients/`; for quota and routes, what any plane
uses, `libs/limiter` and `libs/routes`. Each names its fallback.

The `start_…` methods return futures, so that the pipeline can have several decisions under way without a task each.
Everything else returns at once and never raises: it is called on paths that must not fail (cancellation, the end).
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from weir.admission.v1 import admission_pb2
from weir.audit.v1 import audit_pb2
from weir.worker.v1 import worker_pb2

from libs.callers import Identity
from libs.deadlines import Deadline
from libs.limiter import QuotaClient
from libs.limiter import Reservation as Reservation
from libs.outcomes import ArmKey
from libs.routes import RouterClient
from libs.routing import Route
from services.gateway.policy.events import Finish
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.spec import BoundParameters, Spec

QuotaPort = QuotaClient
RouterPort = RouterClient


class AdmissionPort(Protocol):
    """A worker and a grant. Fallback: a small number of requests without a grant, which workers take only while they
    hear nothing from admission either."""

    async def admit(
        self,
        request: admission_pb2.Admit,
        *,
        deadline: Deadline,
        traceparent: str,
        may_be_local: bool = False,
        patience: float | None = None,
    ) -> admission_pb2.Granted:
        """Wait for a worker. With `may_be_local` the answer may be the fallback's: its grant has no proof. While
        admission is away it waits for `patience` seconds, None: as long as the deadline allows.

        Nothing is held when it raises, cancellation included.

        :raises WeirError: the rejection or eviction; DEPENDENCY_UNAVAILABLE while admission is away.
        """

    def release(
        self,
        request_id: str,
        *,
        pool: str,
        output_tokens: int = 0,
        unused: bool = False,
        failed: bool = False,
        first_token: float | None = None,
        cached_prompt_tokens: int = 0,
        cut_short: bool = False,
    ) -> None:
        """Give the share back, and tell what came of it: tokens generated on this grant, whether it failed through the
        worker's fault, seconds from the grant to the first token (None: there was none), prompt tokens it had cached,
        and whether it was cut short.
        """


@dataclass(frozen=True, slots=True)
class InputCheck:
    """The verdict on an input. `texts` replaces the input when something was redacted or tokenised."""

    texts: tuple[str, ...] | None
    flags: tuple[str, ...] = ()
    skipped: bool = False  # safety is away and the tenant's policy says serve and flag
    asked: tuple[str, ...] = ()  # the policies that it was asked under
    policies: tuple[str, ...] = ()  # those that were in force: the output has the same
    alters_output: bool = True  # they redact or block outputs, or nobody knows
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """What tokens in `texts` stand for: the user's words, for this request's answer and nowhere else."""


class FilteredChoice(Protocol):
    """A choice whose output goes through the safety filter."""

    def on_released(
        self, text: str, *, consumed: int, blocked: str, last: bool, replaced: Sequence[tuple[int, int]] = ()
    ) -> None:
        """`text` may leave; `consumed` characters of what was fed are decided so far; `blocked` names the category
        that ends the choice; `last` echoes the feed's; `replaced` are the parts [begin, end) of what was fed that did
        not leave as they were."""

    def on_filter_skipped(self) -> None:
        """The filter is away and the tenant's policy is serve and flag: the next release is unfiltered."""

    def on_filter_lost(self) -> None:
        """The filter is away and the tenant's policy is fail closed."""

    def on_fault(self) -> None:
        """Handling its text failed here; the reason is logged. Raises nothing."""


class OutputFilter(Protocol):
    """What a generation's text goes through before anybody sees it."""

    def open(
        self, choice: FilteredChoice, *, tenant: str, policies: Sequence[str], request_id: str, json: bool = False
    ) -> int:
        """Open an output filter, which keeps these policies; returns its number. `json`: the text is JSON, whose
        strings are looked at as they read."""

    def feed(self, number: int, text: str, *, last: bool) -> None:
        """Add text; it is sent with the step's batch at `flush`."""

    def flush(self) -> None:
        """Send what was fed since the last flush, as one call."""

    def close(self, number: int) -> None:
        """Forget a filter."""


class SafetyPort(OutputFilter, Protocol):
    """Input check and output filter. Fallback by the tenant's policy: refuse, or serve and flag."""

    def start_check(
        self,
        *,
        tenant: str,
        policies: Sequence[str],
        texts: Sequence[str],
        request_id: str,
        deadline: Deadline,
        traceparent: str,
    ) -> Future[InputCheck]:
        """Check an input under the floor and these policies.

        :raises WeirError: CONTENT_FILTER, or DEPENDENCY_UNAVAILABLE under fail closed (through the future).
        """


class RunningSequence(Protocol):
    """A sequence that runs on a worker."""

    def on_tokens(self, ids: Sequence[int], logprobs: worker_pb2.SequenceLogprobs | None) -> None:
        """New tokens."""

    def on_first(self, cached_prompt_tokens: int, after: float, numerics: str) -> None:
        """There is a first token, `after` seconds after its submission (by the worker's clock); see
        `weir.worker.v1.FirstToken` for `numerics`."""

    def on_finished(self, finish: Finish, message: str) -> None:
        """The worker has ended it."""

    def on_refused(self, refusal: worker_pb2.Refusal) -> None:
        """The worker did not start it."""

    def on_worker_lost(self) -> None:
        """The stream to the worker broke."""

    def on_fault(self) -> None:
        """Handling its tokens failed here; the reason is logged. Raises nothing."""


class WorkerPort(Protocol):
    """Streams to workers."""

    def submit(
        self, granted: admission_pb2.Granted, submissions: Sequence[tuple[worker_pb2.Submit, RunningSequence]]
    ) -> list[int]:
        """Send sequences to the granted worker; returns their handles. A stream that cannot be opened is reported
        through `on_worker_lost`."""

    def cancel(self, worker: str, handles: Sequence[int]) -> None:
        """End sequences; nothing more is reported of them."""


class AuditPort(Protocol):
    """The audit log. Fallback: a bounded journal on disk, which outlives this process as well."""

    @property
    def full(self) -> bool:
        """The journal is full: tenants whose policy demands audit are refused."""

    def open(self, record: audit_pb2.Record) -> int:
        """Say that something begins: as much of its record as is known. Should this process be killed, its next life
        writes that record, with the last `mark`. Returns its place."""

    def mark(self, place: int, number: int) -> None:
        """How far it is: a store of 8 bytes."""

    def release(self, place: int) -> None:
        """What was opened at the place leaves no record: it was opened once more."""

    def write(self, record: audit_pb2.Record, place: int = -1, *, traceparent: str = "") -> None:
        """Append, once; it ends what was opened at the place, if one is named. `traceparent` puts the append into the
        request's trace, or into that of another one with which it travels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A user's request that is to be answered a second time, and the handle on the user's own answer."""

    request_id: str
    """The user's request; the copy needs an id of its own."""
    spec: Spec
    """As checked, with redacted texts in place of the user's where safety redacted any: for another tokenizer or
    chat template. Tokenise it with `Pipeline.encode`."""
    identity: Identity
    """Who asked. Nothing of the copy may count against them."""
    prompt: Sequence[int]
    """The prompt's tokens, as the user's version saw them."""
    parameters: BoundParameters
    """With every default of the user's version and the seed with which the user's answer is being drawn."""
    route: Route
    """The user's; `route.mirror` is set and says where the copy goes."""
    arm: ArmKey
    """Where the user's request counts. The copy counts under the same alias, rollout, phase and step, with
    `route.mirror.arm` and `mirrored`."""
    traceparent: str
    """The user's span: a copy's trace is one of its own, which links to it."""
    answer: Future[FinalAnswer]
    """Done when the user's answer is over, whatever way: look at `end.finish`. Its log-probabilities are asked of the
    worker for every mirrored request. It never fails; cancelling it hurts nobody."""

    @property
    def copy_arm(self) -> ArmKey:
        """Where the copy counts."""
        mirror = self.route.mirror
        if mirror is None:
            raise RuntimeError("made without a mirror")
        return replace(self.arm, arm=mirror.arm, mirrored=True)
