"""One sequence of a running generation, from tokens to released text.

Tokens → detokenizer → stop scanner → safety filter; what the filter lets go comes back through `on_released`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from weir.worker.v1 import worker_pb2

from libs.catalog.plans import SAFETY_SKIPPED
from libs.errors import Reason, WeirError
from libs.safety_filter import Restorer
from services.gateway.policy.events import Finish, Logprob
from services.gateway.policy.finals import FinalChoice
from services.gateway.policy.logprobs import HeldLogprobs
from services.gateway.policy.spec import BoundParameters, is_json
from services.gateway.policy.stop import StopScanner
from services.gateway.ports import OutputFilter
from services.gateway.request import Candidate


class Owner(Protocol):
    """The generation that a sequence belongs to."""

    tenant: str
    request_id: str
    traceparent: str
    candidate: Candidate
    parameters: BoundParameters
    observed: bool
    grows: bool
    degraded: list[str]

    def first_token(self, cached_prompt_tokens: int, after: float, numerics: str) -> None:
        """The worker made the first token of a sequence, `after` seconds after its submission, by such numbers."""

    def may_take(self, count: int) -> bool:
        """Asked where it `grows`: whether so many more tokens may be taken; if not, it has ended."""

    def cancel_on_worker(self, sequence: OutputSequence) -> None:
        """A sequence needs nothing more."""

    def refused(self, error: WeirError) -> None:
        """The worker did not take a sequence, or gave it back."""

    def worker_lost(self) -> None:
        """The worker is gone."""

    def push(self, sequence: OutputSequence, text: str, logprobs: list[Logprob] | None) -> None:
        """Output of a sequence that may leave, its last when it has a finish."""

    def fail(self, error: WeirError) -> None:
        """End it with an error."""


class OutputSequence:
    """One sequence of a generation, on a worker (`RunningSequence`) and behind a filter (`FilteredChoice`)."""

    __slots__ = (
        *("_detokenizer", "_fed", "_filter", "_generation", "_held", "_least", "_restorer", "_safety", "_stop"),
        *("ending", "finish", "handle", "index", "message", "scores", "tokens"),
    )

    def __init__(self, generation: Owner, index: int, safety: OutputFilter) -> None:
        self._generation = generation
        self._safety = safety
        check, parameters = generation.candidate.check, generation.parameters
        self._detokenizer = generation.candidate.text.detokenizer()
        self._stop = StopScanner(parameters.stop)
        self._least = parameters.min_tokens  # in so many tokens no stop string is looked for, nor one's beginning
        json = is_json(parameters.structure)
        self._filter = safety.open(
            self,
            tenant=generation.tenant,
            policies=check.policies,
            request_id=generation.request_id,
            json=json,
            traceparent=generation.traceparent,
        )
        self._fed = 0  # characters given to the filter
        self._held = None if parameters.logprobs is None else HeldLogprobs()
        self._restorer = Restorer(check.values, json=json) if check.values else None
        self.index = index
        self.handle = 0
        self.tokens = array("I")  # taken so far, a stop string's included: what is billed, and what a migration replays
        self.scores = array("d") if generation.observed else None  # their log-probabilities, which nobody is shown
        self.ending: Finish | None = None  # decided; the last text is still in the filter
        self.finish: Finish | None = None  # told to the face
        self.message = ""

    def on_first(self, cached_prompt_tokens: int, after: float, numerics: str) -> None:
        """See `RunningSequence`."""
        self._generation.first_token(cached_prompt_tokens, after, numerics)

    def on_tokens(self, ids: Sequence[int], logprobs: worker_pb2.SequenceLogprobs | None) -> None:
        """See `RunningSequence`."""
        generation = self._generation
        if self.ending is not None or (generation.grows and not generation.may_take(len(ids))):
            return
        text = self._take(ids) if logprobs is None else self._take_scored(ids, logprobs.tokens)
        if self._stop.stopped:
            generation.cancel_on_worker(self)
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

    def on_fault(self) -> None:
        """See `RunningSequence` and `FilteredChoice`."""
        self._restorer = None  # perhaps what failed: its end must not ask it again
        self._generation.fail(WeirError(Reason.INTERNAL, "internal error; the trace id finds it"))

    def on_released(
        self, text: str, *, consumed: int, blocked: str, last: bool, replaced: Sequence[tuple[int, int]] = ()
    ) -> None:
        """See `FilteredChoice`."""
        if self.finish is not None:
            return
        if self._held is not None:
            self._held.decide(len(text), consumed, replaced)
        if blocked:
            if self.ending is None:
                self._generation.cancel_on_worker(self)
            self.ending = self.finish = Finish.CONTENT_FILTER
            self.message = f"stopped by the safety policy ({blocked})"
            self._safety.close(self._filter)
        elif last:
            self.finish = self.ending
        if text or self.finish is not None:
            released: list[Logprob] | None = None
            if self._held is not None:
                released = [] if blocked else self._held.release(last=self.finish is not None)
            self._generation.push(self, text, released)

    def on_filter_skipped(self) -> None:
        """See `FilteredChoice`."""
        if SAFETY_SKIPPED not in self._generation.degraded:
            self._generation.degraded.append(SAFETY_SKIPPED)

    def on_filter_lost(self) -> None:
        """See `FilteredChoice`."""
        self._generation.fail(WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the safety service is away"))

    def abandon(self, finish: Finish) -> None:
        """End at once; what the filter holds is dropped."""
        self.ending = self.finish = finish
        self._safety.close(self._filter)

    def shown(self, text: str) -> str:
        """Released text as the caller reads it: with their own words where the model got tokens for them."""
        if self._restorer is None:
            return text
        return self._restorer.feed(text) + (self._restorer.finish() if self.finish is not None else "")

    def final(self) -> FinalChoice:
        """What it was, once it is over."""
        scores = self.scores if self.scores is not None and len(self.scores) == len(self.tokens) else ()
        return FinalChoice(tuple(self.tokens), tuple(scores), self.finish or Finish.ERROR)

    def _end(self, finish: Finish, text: str) -> None:
        self.ending = finish
        self._fed += len(text)
        self._safety.feed(self._filter, text, last=True)

    def _take(self, ids: Sequence[int]) -> str:
        """The text of these tokens. Where it may end early they are taken one by one: those behind a stop string, which
        the worker made before it heard, are nobody's."""
        if len(ids) == 1 or not self._generation.parameters.stop:
            self.tokens.extend(ids)
            text = self._detokenizer.feed(ids)
            return text if len(self.tokens) <= self._least else self._stop.feed(text)
        text = ""
        for token_id in ids:
            self.tokens.append(token_id)
            piece = self._detokenizer.feed((token_id,))
            text += piece if len(self.tokens) <= self._least else self._stop.feed(piece)
            if self._stop.stopped:
                break
        return text

    def _take_scored(self, ids: Sequence[int], logprobs: Sequence[worker_pb2.TokenLogprob]) -> str:
        before = len(self.tokens)
        text = self._take(ids) if self._held is None else self._take_held(self._held, ids, logprobs)
        if self.scores is not None:
            self.scores.extend([entry.logprob for entry in logprobs[: len(self.tokens) - before]])
        return text

    def _take_held(self, held: HeldLogprobs, ids: Sequence[int], logprobs: Sequence[worker_pb2.TokenLogprob]) -> str:
        """The text of these tokens, one by one, so that each log-probability is kept until its own text is decided;
        those of a stop string never are."""
        token = self._generation.candidate.text.token
        text = ""
        for token_id, entry in zip(ids, logprobs, strict=True):
            begin = self._fed + len(text) + self._stop.held
            text += self._take((token_id,))
            if self._stop.stopped:
                break
            top = tuple((*token(i), p) for i, p in zip(entry.top_ids, entry.top_logprobs, strict=True))
            held.add(Logprob(*token(token_id), entry.logprob, top, begin), self._fed + len(text) + self._stop.held)
        return text
