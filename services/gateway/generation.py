"""One running generation: its sequences on workers, what they hand on, and its one end.

Everything here but `turn` runs on the event loop and synchronously: a step frame goes worker link →
`OutputSequence.on_tokens` (`sequence.py`) and comes back through `on_released` into the output buffer, where the face
(native or OpenAI) finds it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2

from libs.catalog.plans import ALTERED, NUMERICS_CHANGED, VERSION_CHANGED
from libs.errors import Reason, WeirError
from libs.limiter import Lease
from services.gateway.internal import READERS, Unfiltered
from services.gateway.output_buffer import OutputBuffer
from services.gateway.parts import Parts
from services.gateway.policy.answers import Answer
from services.gateway.policy.events import Finish, Logprob, Usage, is_given, worst
from services.gateway.policy.finals import FinalAnswer
from services.gateway.policy.resuming import Remainder
from services.gateway.policy.spec import BoundParameters
from services.gateway.request import Prepared, Request
from services.gateway.sequence import OutputSequence

_ENDLESS = float("inf")
# An admission restart makes grants stale that their worker has not seen yet; see docs/adr/0002.
ASK_AGAIN = frozenset({Reason.GRANT_INVALID, Reason.GRANT_EXPIRED, Reason.DRAINING, Reason.REJECTED_NO_CAPACITY})


class Moving(enum.Enum):
    """Why a generation looks for another worker."""

    LOST = "lost"
    """The stream to the worker broke: its fault."""
    REFUSED = "refused"
    """The worker did not take the grant: nobody's fault."""
    ABSENT = "absent"
    """The worker does not have the version any more, which admission has not heard yet: nobody's fault."""
    PREEMPTED = "preempted"
    """Interrupted for a more urgent request; may happen again and again."""
    TAKEN_OUT = "taken_out"
    """Its arm of a rollout is out of force: it goes on with another version."""

    @property
    def counted(self) -> bool:
        """It must not happen again and again."""
        return self in (Moving.LOST, Moving.REFUSED, Moving.ABSENT)


class Generation(OutputBuffer):
    """See the module docstring. In a block: what is left of it at the end is cancelled on the worker, its filters
    closed."""

    def __init__(
        self,
        parts: Parts,
        request: Request,
        prepared: Prepared,
        parameters: BoundParameters,
        lease: Lease,
        *,
        observed: bool,
        flush_most: float,
        on_text: Callable[[], None] | None,
    ) -> None:
        """`parameters` are the candidate's, with a seed where chance plays a part. `observed`: the log-probabilities of
        its tokens are wanted; see `final`. `on_text` is called once, before the first text is handed on."""
        self.candidate = candidate = prepared.candidate
        super().__init__(
            request_id=request.id,
            choices=parameters.n,
            clock=parts.clock,
            arrived=request.arrived,
            readers=READERS if request.internal is not None else parts.readers,
            flushing=None if request.spec.whole else parts.flushing,
            flush_most=flush_most,
        )
        self.tenant = request.identity.tenant
        self.traceparent = request.traceparent
        self.parameters = parameters
        self.usage = Usage(prompt_tokens=len(candidate.prompt))
        self.degraded = list(prepared.degraded)
        self.observed = observed
        self.grows = lease.grows
        self._lease = lease
        self.granted: admission_pb2.Granted | None = None
        """Where it runs; None while it looks for a worker."""
        self.on_end: Callable[[], None] | None = None
        """Called at its end when nobody waits in `turn`."""
        self._workers = parts.workers
        self._on_text = on_text
        self._entire = request.spec.entire
        self._resumed = request.spec.resumed
        self._remainder = None if self._resumed is None else Remainder(self._resumed.cursor.positions)
        self._awaited: asyncio.Future[None] | None = None
        self._moving: Moving | None = None
        self._latest = request.time.latest
        self._timer: asyncio.TimerHandle | None = None
        if self._latest < _ENDLESS:
            left = max(0.0, self._latest - parts.clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(left, self.stop, Finish.DEADLINE)
        self._submitted = 0.0
        self._began = 0.0  # the first submission
        self._decided = prepared.decided
        self._before = 0  # tokens that came on earlier grants
        self._cached = 0  # of the prompt, that the present grant's worker had cached
        self._first_after: float | None = None  # seconds after the present submission
        self._first = 0.0  # monotonic seconds
        self._numerics = ("", "")  # the worker that made the latest first token, and what its numbers are known by
        self._shown = False  # text was handed on
        keep = bool(prepared.answer_key) and not ALTERED & {*prepared.degraded}
        self._kept: list[list[str]] | None = [[] for _ in range(parameters.n)] if keep else None
        safety = Unfiltered() if request.internal is not None else parts.safety
        self.sequences = [OutputSequence(self, index, safety) for index in range(parameters.n)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop(Finish.CANCELLED)

    @property
    def unfinished(self) -> list[OutputSequence]:
        """Sequences that still need a worker."""
        return [sequence for sequence in self.sequences if sequence.ending is None]

    @property
    def delivered(self) -> int:
        """Tokens that came from workers so far, over all sequences."""
        return sum([len(sequence.tokens) for sequence in self.sequences])

    @property
    def progress(self) -> int:
        """See `OutputBuffer`. What another version went on with does not come again."""
        return -1 if VERSION_CHANGED in self.degraded else self.delivered

    @property
    def first_after(self) -> float:
        """Seconds from the arrival to the worker's first token; 0 before it."""
        return self._first - self.arrived if self._first else 0.0

    # What `generate.py` does with it.

    def submit(self, granted: admission_pb2.Granted, messages: Sequence[worker_pb2.Submit]) -> None:
        """Run the unfinished sequences on the worker that was granted."""
        self.granted = granted
        self._submitted = self._clock.monotonic()
        if not self._began:
            self._began = self._submitted
            self.breakdown.queue = self._began - self._decided
        self._before, self._cached, self._first_after = self.delivered, 0, None
        waiting = self.unfinished
        handles = self._workers.submit(granted, list(zip(messages, waiting, strict=True)))
        for sequence, handle in zip(waiting, handles, strict=True):
            sequence.handle = handle

    async def turn(self) -> Moving | None:
        """Wait until it has to go to another worker, and why; None: it has ended."""
        if self.end is None and self._moving is None:
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited
        moving, self._moving = self._moving, None
        return None if self.end is not None else moving

    def move(self, moving: Moving) -> None:
        """Have it go to another worker, unless it has ended or goes already."""
        if self.end is None and self.granted is not None and self._moving is None:
            self._moving = moving
            self._next_turn()

    def leave_worker(self) -> None:
        """Nothing more is wanted of the present worker. Sequences to which it owed nothing but the terminal frame end.
        After a refusal others may run there: they end there before they go on elsewhere."""
        if self.granted is not None:
            self._workers.cancel(self.granted.worker, [one.handle for one in self.sequences if one.handle])
        self.granted = None
        for sequence in self.sequences:
            sequence.handle = 0
            if sequence.ending is None and len(sequence.tokens) >= self.parameters.max_tokens:
                sequence.on_finished(Finish.LENGTH, "")

    def brought(self) -> dict[str, Any]:
        """What the present or last grant has brought, as `AdmissionClient.release` is told."""
        return {
            "output_tokens": self.delivered - self._before,
            "first_token": self._first_after,
            "cached_prompt_tokens": self._cached,
        }

    # What its sequences tell it.

    def first_token(self, cached_prompt_tokens: int, after: float, numerics: str) -> None:
        """See `Owner`."""
        self._know(numerics)
        if not self._before:  # on a later one the caller's prompt was computed already, and is charged
            self.usage.cached_prompt_tokens = max(self.usage.cached_prompt_tokens, cached_prompt_tokens)
        self._cached = max(self._cached, cached_prompt_tokens)
        if self._first_after is None:
            self._first_after = after
        if not self._first:
            self._first = self._submitted + after
            self.breakdown.prefill = self._first - self._began  # on workers that it lost, too

    def _know(self, numerics: str) -> None:
        """Flag an answer that goes on on a worker that is not known to compute as the one before did."""
        worker, before = self._numerics
        present = self.granted.worker if self.granted is not None else worker
        alike = bool(numerics) and numerics == before
        if (
            self._before
            and not alike
            and present != worker
            and not {NUMERICS_CHANGED, VERSION_CHANGED} & {*self.degraded}
        ):
            self.degraded.append(NUMERICS_CHANGED)
        self._numerics = (present, numerics)

    def may_take(self, count: int) -> bool:
        """See `Owner`."""
        try:
            self._lease.take(count)
        except WeirError as error:
            self.fail(error)
            return False
        return True

    def worker_lost(self) -> None:
        """See `Owner`."""
        self.move(Moving.LOST)

    def cancel_on_worker(self, sequence: OutputSequence) -> None:
        """See `Owner`."""
        if self.granted is not None and sequence.handle:
            self._workers.cancel(self.granted.worker, [sequence.handle])
            sequence.handle = 0

    def refused(self, error: WeirError) -> None:
        """See `Owner`. A stale grant, a draining worker or one that has unloaded the version is no fault of the
        request: another grant is asked for. Anything else is."""
        if error.reason is Reason.PREEMPTED:
            self.move(Moving.PREEMPTED)
        elif error.reason is Reason.MODEL_NOT_FOUND:
            self.move(Moving.ABSENT)
        elif error.reason in ASK_AGAIN:
            self.move(Moving.REFUSED)
        else:
            self.fail(error)

    def push(self, sequence: OutputSequence, text: str, logprobs: list[Logprob] | None) -> None:
        """See `Owner`."""
        shown, news = sequence.shown(text), True
        if self._remainder is not None:
            try:
                shown, logprobs, news = self._remainder.cut(sequence.index, shown, logprobs, sequence.finish)
            except WeirError as error:
                if sequence.finish is not None:
                    sequence.finish = Finish.ERROR
                    self._put(sequence.index, "", None, Finish.ERROR)
                self.fail(error)
                return
        if shown and not self._shown:
            self._shown = True
            now = self._clock.monotonic()
            self.breakdown.time_to_first_token = now - self.arrived
            self.breakdown.release = max(0.0, now - (self._first or now))
            if self._on_text is not None:
                self._on_text()
        if text and self._kept is not None:  # with tokens for the caller's words: it may be given to another request
            self._kept[sequence.index].append(text)
        if news:
            self._put(sequence.index, shown, logprobs, sequence.finish)
        if sequence.finish is not None and all(one.finish is not None for one in self.sequences):
            self._end()
        if news or self.end is not None:
            self._news()

    # Ends.

    def answer(self, *, simulated: bool) -> Answer | None:
        """The whole answer, if it was kept, came to its own end, and nothing altered it."""
        ended = self.ended
        if self._kept is None or ended.finish not in (Finish.STOP, Finish.LENGTH) or ALTERED & {*self.degraded}:
            return None
        return Answer(
            choices=tuple(zip(map("".join, self._kept), ended.choices, strict=True)),
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
            simulated=simulated,
        )

    def final(self, *, model_version: str, moved: bool) -> FinalAnswer:
        """What it was, once it has ended."""
        choices = tuple([sequence.final() for sequence in self.sequences])
        return FinalAnswer(
            model_version=model_version, choices=choices, end=self.ended, first_after=self.first_after, moved=moved
        )

    def stop(self, finish: Finish) -> None:
        """End every open sequence now, on the worker too. Does nothing after the end. A call that is broken off when
        its time was over did not leave: it was late."""
        if self.end is not None:
            return
        if finish is Finish.CANCELLED and self._clock.monotonic() >= self._latest:
            finish = Finish.DEADLINE
        for sequence in self.sequences:
            if sequence.finish is None:
                if sequence.ending is None:
                    self.cancel_on_worker(sequence)
                sequence.abandon(finish)
                rest = sequence.shown("") if self._remainder is None else ""
                self._put(sequence.index, rest, None, sequence.finish)
        self._end()
        self._wake()

    def _take_off(self) -> None:
        """What an earlier request is billed is not billed again, and what is not the same was not given."""
        if self._resumed is None:
            return
        if self.error is not None and self.error.reason is Reason.CURSOR_GONE:
            self.usage = Usage()
        elif self._resumed.billed is not None:
            made, billed = self.usage.completion_tokens, min(self.usage.completion_tokens, self._resumed.billed)
            self.earlier = replace(self.usage, completion_tokens=billed)
            self.usage = Usage(completion_tokens=made - billed)

    def _next_turn(self) -> None:
        waiter, self._awaited = self._awaited, None
        if waiter is None:
            if self.end is not None and self.on_end is not None:
                self.on_end()
        elif not waiter.done():
            waiter.set_result(None)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._lease.stop_growing()
        now = self._clock.monotonic()
        self.breakdown.total = now - self.arrived
        if self._first:
            self.breakdown.decode = now - self._first
        finish = worst([sequence.finish or Finish.ERROR for sequence in self.sequences])
        if is_given(finish, shown=self._shown, entire=self._entire):
            self.usage.completion_tokens = self.delivered
        else:
            self.usage = Usage()
        self._take_off()
        error = self.error
        if error is None and finish in (Finish.CONTENT_FILTER, Finish.ERROR):
            reason = Reason.CONTENT_FILTER if finish is Finish.CONTENT_FILTER else Reason.ENGINE_ERROR
            message = next((one.message for one in self.sequences if one.finish is finish), "")
            error = WeirError(reason, message or "the engine failed")
        self._close(finish, [sequence.finish or Finish.ERROR for sequence in self.sequences], error)
        self._next_turn()
