"""One running generation: its legs on workers, what its choices hand on, and its one end.

Everything here runs on the event loop and synchronously: a step frame goes worker link → `Choice.on_tokens`
(`choice.py`) and comes back through `Choice.on_released` into the mailbox (`mailbox.py`), where the face (native or
OpenAI) finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger, place_of
from services.gateway.allowance import Allowance
from services.gateway.choice import Choice
from services.gateway.egress import Egress
from services.gateway.mailbox import Mailbox
from services.gateway.moves import Leg, Moving
from services.gateway.policy.answers import Answer
from services.gateway.policy.events import Finish, Logprob, Usage, is_given, worst
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.spec import BoundParameters
from services.gateway.ports import InputCheck, OutputFilter
from services.gateway.text import TextModel

log = get_logger(__name__)
# An admission restart makes grants stale that their worker has not seen yet; see docs/adr/0002.
_ASK_AGAIN = frozenset({Reason.GRANT_INVALID, Reason.GRANT_EXPIRED, Reason.DRAINING, Reason.REJECTED_NO_CAPACITY})


class WorkerEvents(Protocol):
    """What a generation asks of whoever holds its grant."""

    def cancel(self, choice: Choice) -> None:
        """End a choice on its worker."""

    def move(self, moving: Moving) -> None:
        """Run what is left on another grant. Called once per choice; the first call takes them all."""


class Generation(Mailbox):
    """See the module docstring. Created by the pipeline once its prompt is known."""

    def __init__(
        self,
        *,
        request_id: str,
        tenant: str,
        check: InputCheck,
        parameters: BoundParameters,
        text: TextModel,
        prompt_tokens: int,
        safety: OutputFilter,
        clock: Clock,
        arrived: float,
        egress: Egress,
        keep_text: bool,
        on_worker: WorkerEvents,
        on_end: Callable[[], None],
        observed: bool = False,
        entire: bool = False,
        latest: float | None = None,
        on_text: Callable[[], None] | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """`keep_text`: the whole answer is wanted once it is complete; see `answer`. `observed`: the log-probabilities
        of its tokens are wanted; see `final`. `entire`: its reader gets nothing of an answer that fails. At
        `latest` (monotonic seconds) its time is over, whatever its worker does. `on_text` is called once, before the
        first text is handed on. `allowance`: what it may use, where that is less than its parameters say."""
        super().__init__(request_id=request_id, choices=parameters.n, clock=clock, arrived=arrived, egress=egress)
        self.tenant = tenant
        self.check = check
        self.parameters = parameters
        self.text = text
        self.usage = Usage(prompt_tokens=prompt_tokens)
        self.submitted = 0.0
        self.leg = Leg(0)
        self._on_worker = on_worker
        self.observed = observed
        self._on_end = on_end
        self._on_text = on_text
        self._entire = entire
        self._allowance = allowance
        self._latest = latest
        self._timer: asyncio.TimerHandle | None = None
        if latest is not None:
            left = max(0.0, latest - clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(left, self.stop, Finish.DEADLINE)
        self._shown = False  # text was handed on
        self._first = 0.0
        self._kept: list[list[str]] | None = [[] for _ in range(parameters.n)] if keep_text else None
        self.choices = [Choice(self, index, safety) for index in range(parameters.n)]

    @property
    def unfinished(self) -> list[Choice]:
        """Choices that still need a worker."""
        return [choice for choice in self.choices if choice.ending is None]

    @property
    def delivered(self) -> int:
        """Tokens that came from workers so far, over all choices."""
        return sum(choice.completion_tokens for choice in self.choices)

    @property
    def first_after(self) -> float:
        """Seconds from the arrival to the worker's first token; 0 before it."""
        return self._first - self.arrived if self._first else 0.0

    # The worker's side.

    def next_leg(self, now: float) -> None:
        """It is submitted, at `now` (monotonic seconds), on another grant."""
        self.submitted = now
        self.leg = Leg(self.delivered)

    def first_token(self, cached_prompt_tokens: int, after: float) -> None:
        """The worker produced the first token of a choice, `after` seconds after its submission."""
        leg = self.leg
        if not leg.tokens_before:  # on a later one the caller's prompt was computed already, and is charged
            self.usage.cached_prompt_tokens = max(self.usage.cached_prompt_tokens, cached_prompt_tokens)
        leg.cached_prompt_tokens = max(leg.cached_prompt_tokens, cached_prompt_tokens)
        if leg.first_token is None:
            leg.first_token = after
        if not self._first:
            self.breakdown.prefill = after
            self._first = self.submitted + after

    def may_take(self, count: int) -> bool:
        """Whether so many more tokens may be taken; if not, it has ended."""
        if self._allowance is not None:
            try:
                self._allowance.take(count)
            except WeirError as error:
                self.fail(error)
                return False
        return True

    def cancel_on_worker(self, choice: Choice) -> None:
        """A choice needs nothing more."""
        self._on_worker.cancel(choice)

    def worker_lost(self, moving: Moving = Moving.LOST) -> None:
        """The worker is gone, or gave this request back; what is left is moved or failed."""
        if self.end is None:
            self._on_worker.move(moving)

    def refused(self, error: WeirError) -> None:
        """The worker did not take a choice, or gave it back for a more urgent one. A stale grant, a draining worker or
        one that has unloaded the version is no fault of the request: another grant is asked for. Anything else is."""
        if error.reason is Reason.PREEMPTED:
            self.worker_lost(Moving.PREEMPTED)
        elif error.reason is Reason.MODEL_NOT_FOUND:
            self.worker_lost(Moving.ABSENT)
        elif error.reason in _ASK_AGAIN:
            self.worker_lost(Moving.REFUSED)
        else:
            self.fail(error)

    # The filter's side.

    def push(self, choice: Choice, text: str, logprobs: list[Logprob] | None) -> None:
        """Released output of a choice, its last when it has a finish."""
        if text and not self._shown:
            self._shown = True
            self.breakdown.time_to_first_token = self._clock.monotonic() - self.arrived
            if self._on_text is not None:
                self._on_text()
        if text and self._kept is not None:  # with tokens for the caller's words: it may be given to another request
            self._kept[choice.index].append(text)
        self._put(choice.index, choice.shown(text), logprobs, choice.finish)
        if choice.finish is not None and all(c.finish is not None for c in self.choices):
            self._end()
        self._wake()

    # Ends.

    def answer(self, *, simulated: bool) -> Answer | None:
        """The whole answer, if it was kept and came to its own end."""
        if self._kept is None or self.end is None or self.end.finish not in (Finish.STOP, Finish.LENGTH):
            return None
        texts = ["".join(parts) for parts in self._kept]
        return Answer(
            choices=tuple(zip(texts, self.end.choices, strict=True)),
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
            simulated=simulated,
        )

    @property
    def mean_logprob(self) -> float | None:
        """The mean log-probability of the tokens delivered; None where it is not known of all of them."""
        scores = [choice.scores for choice in self.choices]
        known = [
            len(one)
            for choice, one in zip(self.choices, scores, strict=True)
            if one is not None and len(one) == len(choice.tokens)
        ]
        if len(known) < len(scores) or not sum(known):
            return None
        return sum(sum(one) for one in scores if one is not None) / sum(known)

    def final(self, *, model_version: str, moved: bool) -> FinalAnswer:
        """What it was, once it has ended."""
        if self.end is None:
            raise RuntimeError("it has not ended")
        return FinalAnswer(
            model_version=model_version,
            choices=tuple(choice.final() for choice in self.choices),
            end=self.end,
            first_after=self.first_after,
            moved=moved,
        )

    def discard(self) -> None:
        """Let go of the filters of a generation that never ran; nobody is told."""
        self._forget_time()
        for choice in self.choices:
            choice.abandon(Finish.ERROR)

    def stop(self, finish: Finish) -> None:
        """End every open choice now, on the worker too. Does nothing after the end. A call that is broken off when its
        time was over did not leave: it was late."""
        if self.end is not None:
            return
        if finish is Finish.CANCELLED and self._latest is not None and self._clock.monotonic() >= self._latest:
            finish = Finish.DEADLINE
        for choice in self.choices:
            if choice.finish is None:
                if choice.ending is None:
                    self.cancel_on_worker(choice)
                choice.abandon(finish)
                self._put(choice.index, choice.shown(""), None, choice.finish)
        self._end()
        self._wake()

    def _forget_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._forget_time()
        if self._allowance is not None:
            self._allowance.end()
        now = self._clock.monotonic()
        self.breakdown.total = now - self.arrived
        if self._first:
            self.breakdown.decode = now - self._first
        reasons = [choice.finish or Finish.ERROR for choice in self.choices]
        finish = worst(reasons)
        if is_given(finish, shown=self._shown, entire=self._entire):
            self.usage.completion_tokens = self.delivered
        else:
            self.usage = Usage()
        message, reason, retry = "", "", None
        if self.error is not None:
            message, reason, retry = self.error.message, self.error.reason.name, self.error.retry_after
        elif finish is Finish.CONTENT_FILTER:
            message, reason = next(c.message for c in self.choices if c.finish is finish), Reason.CONTENT_FILTER.name
        elif finish is Finish.ERROR:
            message = next((c.message for c in self.choices if c.finish is finish), "") or "the engine failed"
            reason = Reason.ENGINE_ERROR.name
        self._close(finish, reasons, message=message, reason=reason, retry=retry)
        try:
            self._on_end()
        except Exception as error:  # it has ended all the same, and so can whatever is ended next to it
            log.error("closing_failed", request_id=self.request_id, error=type(error).__name__, where=place_of(error))
