"""One running generation: its choices, the mailbox its face reads from, and its one end.

Everything here runs on the event loop and synchronously: a step frame goes worker link → `Choice.on_tokens` →
detokenizer → stop scanner → safety filter, and comes back through `Choice.on_released` into the mailbox. The face
(native or OpenAI) awaits `Generation.take`; while it is slow, updates merge, so memory is bounded by the output's cap.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from weir.worker.v1 import worker_pb2

from libs.clock import Clock
from libs.errors import Reason, WeirError
from services.gateway.policy.events import (
    Accepted,
    Breakdown,
    ChoiceUpdate,
    End,
    Finish,
    Logprob,
    Usage,
    worst,
)
from services.gateway.policy.spec import BoundParameters
from services.gateway.policy.stop import StopScanner
from services.gateway.ports import SafetyPort
from services.gateway.text import TextModel

_FINISH = {
    worker_pb2.FINISH_REASON_STOP: Finish.STOP,
    worker_pb2.FINISH_REASON_LENGTH: Finish.LENGTH,
    worker_pb2.FINISH_REASON_CANCELLED: Finish.CANCELLED,
    worker_pb2.FINISH_REASON_DEADLINE: Finish.DEADLINE,
    worker_pb2.FINISH_REASON_ERROR: Finish.ERROR,
}
SAFETY_SKIPPED = "safety_skipped"
"""The degradation of a request that left without its safety filter."""
# An admission restart makes grants stale that their worker has not seen yet; see docs/adr/0002.
_ASK_AGAIN = frozenset({Reason.GRANT_INVALID, Reason.GRANT_EXPIRED, Reason.DRAINING, Reason.REJECTED_NO_CAPACITY})


class Choice:
    """One sequence of a generation, from tokens to released text."""

    __slots__ = (
        "_consumed",
        "_detokenizer",
        "_fed",
        "_filter",
        "_generation",
        "_logprobs",
        "_safety",
        "_stop",
        "completion_tokens",
        "ending",
        "finish",
        "handle",
        "index",
        "message",
        "tokens",
    )

    def __init__(self, generation: Generation, index: int, safety: SafetyPort) -> None:
        self._generation = generation
        self._safety = safety
        self._detokenizer = generation.text.detokenizer()
        self._stop = StopScanner(generation.parameters.stop)
        self._filter = safety.open(
            self, tenant=generation.tenant, policy=generation.policy, request_id=generation.request_id
        )
        self._fed = 0  # characters given to the filter
        self._consumed = 0  # characters it has decided on
        self._logprobs: deque[tuple[int, Logprob]] = deque()  # with the character each token ends at
        self.index = index
        self.handle = 0
        self.tokens = array("I")  # delivered so far: what a migration replays
        self.completion_tokens = 0
        self.ending: Finish | None = None  # decided; the last text is still in the filter
        self.finish: Finish | None = None  # told to the face
        self.message = ""

    def on_first(self, cached_prompt_tokens: int, after: float) -> None:
        """See `RunningSequence`."""
        self._generation.first_token(cached_prompt_tokens, after)

    def on_tokens(self, ids: Sequence[int], logprobs: worker_pb2.SequenceLogprobs | None) -> None:
        """See `RunningSequence`."""
        if self.ending is not None:
            return
        self.tokens.extend(ids)
        self.completion_tokens += len(ids)
        if logprobs is None:
            text = self._stop.feed(self._detokenizer.feed(ids))
        else:
            text = self._feed_with_logprobs(ids, logprobs.tokens)
        if self._stop.stopped:
            self._generation.cancel_on_worker(self)
            self._end(Finish.STOP, text)
        elif text:
            self._fed += len(text)
            self._safety.feed(self._filter, text, last=False)

    def on_finished(self, finish: Finish, message: str) -> None:
        """See `RunningSequence`."""
        if self.ending is None:
            self.message = message
            tail = self._stop.feed(self._detokenizer.flush()) + self._stop.flush()
            self._end(Finish.STOP if self._stop.stopped else finish, tail)

    def on_refused(self, refusal: worker_pb2.Refusal) -> None:
        """See `RunningSequence`."""
        if self.ending is None:
            self._generation.refused(WeirError.from_rejection(refusal.rejection))

    def on_worker_lost(self) -> None:
        """See `RunningSequence`."""
        if self.ending is None:
            self._generation.worker_lost()

    def end_if_whole(self) -> None:
        """End it if its worker owed nothing but the terminal frame."""
        if self.ending is None and len(self.tokens) >= self._generation.parameters.max_tokens:
            self.on_finished(Finish.LENGTH, "")

    def on_fault(self) -> None:
        """See `RunningSequence`."""
        self._generation.fail(WeirError(Reason.INTERNAL, "internal error; the trace id finds it"))

    def on_released(self, text: str, *, consumed: int, blocked: str, last: bool) -> None:
        """See `FilteredChoice`."""
        if self.finish is not None:
            return
        self._consumed = consumed
        if blocked:
            if self.ending is None:
                self._generation.cancel_on_worker(self)
            self.ending = self.finish = Finish.CONTENT_FILTER
            self.message = f"stopped by the safety policy ({blocked})"
            self._safety.close(self._filter)
        elif last:
            self.finish = self.ending
        if text or self.finish is not None:
            self._generation.push(self, text, self._released_logprobs())

    def on_filter_skipped(self) -> None:
        """See `FilteredChoice`."""
        if SAFETY_SKIPPED not in self._generation.degraded:
            self._generation.degraded.append(SAFETY_SKIPPED)

    def on_filter_lost(self) -> None:
        """See `FilteredChoice`."""
        self._generation.fail(WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the safety service is away"))

    def abandon(self, finish: Finish) -> None:
        """End at once; what the filter holds is dropped."""
        if self.finish is None:
            self.ending = self.finish = finish
            self._safety.close(self._filter)

    def _end(self, finish: Finish, text: str) -> None:
        self.ending = finish
        self._fed += len(text)
        self._safety.feed(self._filter, text, last=True)

    def _feed_with_logprobs(self, ids: Sequence[int], logprobs: Sequence[worker_pb2.TokenLogprob]) -> str:
        """The text of these tokens, one by one, so that each log-probability is kept until its own text is decided;
        those of a stop string never are."""
        token = self._generation.text.token
        text = ""
        for token_id, entry in zip(ids, logprobs, strict=True):
            text += self._stop.feed(self._detokenizer.feed((token_id,)))
            if self._stop.stopped:
                break
            top = tuple((*token(i), p) for i, p in zip(entry.top_ids, entry.top_logprobs, strict=True))
            end = self._fed + len(text) + self._stop.held
            self._logprobs.append((end, Logprob(*token(token_id), entry.logprob, top)))
        return text

    def _released_logprobs(self) -> list[Logprob] | None:
        """Log-probabilities of the tokens whose text is decided: they spell the token, so they must not run ahead of
        the filter."""
        if self._generation.parameters.logprobs is None:
            return None
        released: list[Logprob] = []
        if self.finish is Finish.CONTENT_FILTER:
            return released
        while self._logprobs and (self._logprobs[0][0] <= self._consumed):
            released.append(self._logprobs.popleft()[1])
        return released


class Generation:
    """See the module docstring. Created by the pipeline once its prompt is known."""

    def __init__(
        self,
        *,
        request_id: str,
        tenant: str,
        policy: str,
        parameters: BoundParameters,
        text: TextModel,
        prompt_tokens: int,
        safety: SafetyPort,
        clock: Clock,
        arrived: float,
        cancel_on_worker: Callable[[Choice], None],
        on_worker_lost: Callable[[bool], None],
        on_end: Callable[[Generation], None],
    ) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.policy = policy
        self.parameters = parameters
        self.text = text
        self.usage = Usage(prompt_tokens=prompt_tokens)
        self.breakdown = Breakdown()
        self.accepted: Accepted | None = None
        self.degraded: list[str] = []
        self.end: End | None = None
        self.error: WeirError | None = None
        self.arrived = arrived
        self.submitted = 0.0
        self.last_activity = arrived
        self.cancel_on_worker = cancel_on_worker
        self._clock = clock
        self._on_worker_lost = on_worker_lost
        self._on_end = on_end
        self._first: float = 0.0
        self._pending: dict[int, ChoiceUpdate] = {}
        self._heartbeat = False
        self._waiter: asyncio.Future[None] | None = None
        self.choices = [Choice(self, index, safety) for index in range(parameters.n)]

    @property
    def unfinished(self) -> list[Choice]:
        """Choices that still need a worker."""
        return [choice for choice in self.choices if choice.ending is None]

    # The worker's side.

    def first_token(self, cached_prompt_tokens: int, after: float) -> None:
        """The worker produced the first token of a choice, `after` seconds after its submission."""
        self.usage.cached_prompt_tokens = max(self.usage.cached_prompt_tokens, cached_prompt_tokens)
        if not self._first:
            self.breakdown.prefill = after
            self._first = self.submitted + after

    def worker_lost(self, *, gone: bool = True) -> None:
        """The worker is gone, or will not take this request; the pipeline moves or fails what is left."""
        if self.end is None:
            self._on_worker_lost(gone)

    def refused(self, error: WeirError) -> None:
        """The worker did not take a choice. A stale grant or a draining worker is no fault of the request: another
        grant is asked for. Anything else is."""
        if error.reason in _ASK_AGAIN:
            self.worker_lost(gone=False)
        else:
            self.fail(error)

    # The filter's side.

    def push(self, choice: Choice, text: str, logprobs: list[Logprob] | None) -> None:
        """Released output of a choice, its last when it has a finish."""
        if text and not self.breakdown.time_to_first_token:
            self.breakdown.time_to_first_token = self._clock.monotonic() - self.arrived
        update = self._pending.get(choice.index)
        if update is None:
            self._pending[choice.index] = ChoiceUpdate(choice.index, text, logprobs, choice.finish)
        else:
            update.text += text
            update.finish = choice.finish
            if logprobs:
                update.logprobs = update.logprobs or []
                update.logprobs += logprobs
        if choice.finish is not None and all(c.finish is not None for c in self.choices):
            self._close()
        self._wake()

    # Ends.

    def discard(self) -> None:
        """Let go of the filters of a generation that never ran; nobody is told."""
        for choice in self.choices:
            choice.abandon(Finish.ERROR)

    def fail(self, error: WeirError) -> None:
        """End with an error; what was delivered stays."""
        self.error = error
        self.stop(Finish.DEADLINE if error.reason is Reason.DEADLINE_EXCEEDED else Finish.ERROR)

    def stop(self, finish: Finish) -> None:
        """End every open choice now, on the worker too. Does nothing after the end."""
        if self.end is not None:
            return
        for choice in self.choices:
            if choice.finish is None:
                if choice.ending is None:
                    self.cancel_on_worker(choice)
                choice.abandon(finish)
                self._merge_finish(choice)
        self._close()
        self._wake()

    def _merge_finish(self, choice: Choice) -> None:
        update = self._pending.setdefault(choice.index, ChoiceUpdate(choice.index))
        update.finish = choice.finish

    def _close(self) -> None:
        now = self._clock.monotonic()
        self.breakdown.total = now - self.arrived
        if self._first:
            self.breakdown.decode = now - self._first
        self.usage.completion_tokens = sum(choice.completion_tokens for choice in self.choices)
        reasons = [choice.finish or Finish.ERROR for choice in self.choices]
        finish = worst(reasons)
        message, reason = "", ""
        if self.error is not None:
            message, reason = self.error.message, self.error.reason.name
        elif finish is Finish.CONTENT_FILTER:
            message, reason = next(c.message for c in self.choices if c.finish is finish), Reason.CONTENT_FILTER.name
        elif finish is Finish.ERROR:
            message = next((c.message for c in self.choices if c.finish is finish), "") or "the engine failed"
            reason = Reason.ENGINE_ERROR.name
        self.end = End(
            finish=finish,
            usage=self.usage,
            breakdown=self.breakdown,
            degraded=tuple(self.degraded),
            message=message,
            error_reason=reason,
            choices=reasons,
        )
        self._on_end(self)

    # The face's side.

    def heartbeat(self) -> None:
        """Nothing flowed for a while; tell the face so."""
        self._heartbeat = True
        self._wake()

    async def take(self) -> tuple[list[ChoiceUpdate], bool, End | None]:
        """Wait for news: updates (merged per choice since the last call), whether a heartbeat is due, and the end once
        everything before it was taken."""
        while not self._pending and not self._heartbeat and self.end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        updates = list(self._pending.values())
        self._pending = {}
        heartbeat, self._heartbeat = self._heartbeat, False
        self.last_activity = self._clock.monotonic()
        return updates, heartbeat, self.end

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def finish_of(reason: int) -> Finish:
    """A worker's finish reason as ours."""
    return _FINISH.get(reason, Finish.ERROR)  # type: ignore[call-overload]
