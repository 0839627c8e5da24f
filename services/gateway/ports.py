"""What the pipeline and the clients of the services around it (`clients/`) say to one another, where either side has
more than one form."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from weir.worker.v1 import worker_pb2

from libs.callers import Identity
from libs.outcomes import ArmKey
from libs.routing import Route
from services.gateway.policy.events import Finish
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.spec import BoundParameters, Spec


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
        self,
        choice: FilteredChoice,
        *,
        tenant: str,
        policies: Sequence[str],
        request_id: str,
        json: bool = False,
        traceparent: str = "",
    ) -> int:
        """Open an output filter, which keeps these policies; returns its number. `json`: the text is JSON, whose
        strings are looked at as they read. `traceparent`: the request's span, which its first questions hang under."""

    def feed(self, number: int, text: str, *, last: bool) -> None:
        """Add text; it is sent with the step's batch at `flush`."""

    def flush(self) -> None:
        """Send what was fed since the last flush, as one call."""

    def close(self, number: int) -> None:
        """Forget a filter."""


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
