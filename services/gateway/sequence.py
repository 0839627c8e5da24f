"""One sequence of a running generation, from tokens to released text.

Tokens → detokenizer → stop scanner → safety filter; what the filter lets go comes back through `on_released`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError
from libs.safety_filter import Restorer
from services.gateway.policy.events import Finish, Logprob
from services.gateway.policy.finals import FinalChoice
from services.gateway.policy.plans import SAFETY_SKIPPED
from services.gateway.policy.spec import BoundParameters, is_json
from services.gateway.policy.stop import StopScanner
from services.gateway.ports import InputCheck, OutputFilter
from services.gateway.text import TextModel


class Owner(Protocol):
    """The generation that a sequence belongs to."""

    tenant: str
    request_id: str
    check: InputCheck
    parameters: BoundParameters
    text: TextModel
    observed: bool
    degraded: list[str]

    @property
    def growth(self) -> object | None:
        """None: it may take what its parameters say."""

    def first_token(self, cached_prompt_tokens: int, after: float) -> None:
        """The worker produced the first token of a sequence, `after` seconds after its submission."""

    def may_take(self, count: int) -> bool:
        """Whether so many more tokens may be taken; if not, it has ended."""

    def cancel_on_worker(self, sequence: OutputSequence) -> None:
        """A sequence needs nothing more."""

    def refused(self, error: WeirError) -> None:
        """The worker did not take a sequence, or gave it back."""

    def worker_lost(self) -> None:
        """The worker is gone."""

    def push(self, sequence: OutputSequence, text: str, logprobs: list[Logprob] | None) -> None:
        """Released output of a sequence, its last when it has a finish."""

    def fail(self, error: WeirError) -> None:
        """End it with an error."""


class OutputSequence:
    """One sequence of a generation."""

    __slots__ = (
        "_consumed",
        "_detokenizer",
        "_fed",
        "_filter",
        "_generation",
        "_hidden",
        "_logprobs",
        "_restorer",
        "_safety",
        "_shift",
        "_stop",
        "_unspelt",
        "ending",
        "finish",
        "handle",
        "index",
        "message",
        "scores",
        "tokens",
    )

    def __init__(self, generation: Owner, index: int, safety: OutputFilter) -> None:
        self._generation = generation
        self._safety = safety
        self._detokenizer = generation.text.detokenizer()
        self._stop = StopScanner(generation.parameters.stop)
        check, json = generation.check, is_json(generation.parameters.structure)
        self._filter = safety.open(
            self, tenant=generation.tenant, policies=check.policies, request_id=generation.request_id, json=json
        )
        self._fed = 0  # characters given to the filter
        self._consumed = 0  # characters it has decided on
        self._shift = 0  # by how many more of them left
        self._logprobs: deque[tuple[int, int, Logprob]] = deque()  # with the characters [begin, end) of each token
        self._unspelt: list[Logprob] = []  # of tokens whose text comes with a later one's
        self._hidden: list[tuple[int, int]] = []  # characters that the filter replaced
        self._restorer = Restorer(check.values, json=json) if check.values else None
        self.index = index
        self.handle = 0
        self.tokens = array("I")  # taken so far, a stop string's included: what is billed, and what a migration replays
        self.scores = array("d") if generation.observed else None  # their log-probabilities, which nobody is shown
        self.ending: Finish | None = None  # decided; the last text is still in the filter
        self.finish: Finish | None = None  # told to the face
        self.message = ""

    def on_first(self, cached_prompt_tokens: int, after: float) -> None:
        """See `RunningSequence`."""
        self._generation.first_token(cached_prompt_tokens, after)

    def on_tokens(self, ids: Sequence[int], logprobs: worker_pb2.SequenceLogprobs | None) -> None:
        """See `RunningSequence`."""
        generation = self._generation
        if self.ending is not None or (generation.growth is not None and not generation.may_take(len(ids))):
            return
        text = self._take(ids) if logprobs is None else self._take_logprobs(ids, logprobs.tokens)
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

    def end_if_whole(self) -> None:
        """End it if its worker owed nothing but the terminal frame."""
        if self.ending is None and len(self.tokens) >= self._generation.parameters.max_tokens:
            self.on_finished(Finish.LENGTH, "")

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
        before, self._shift = self._shift, self._shift + len(text) - (consumed - self._consumed)
        self._consumed = consumed
        if replaced:
            self._hidden.extend(replaced)
        if blocked:
            if self.ending is None:
                self._generation.cancel_on_worker(self)
            self.ending = self.finish = Finish.CONTENT_FILTER
            self.message = f"stopped by the safety policy ({blocked})"
            self._safety.close(self._filter)
        elif last:
            self.finish = self.ending
        if text or self.finish is not None:
            generation = self._generation
            logprobs = None if generation.parameters.logprobs is None else self._released_logprobs(before)
            generation.push(self, text, logprobs)

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

    def shown(self, text: str) -> str:
        """Released text as the caller reads it: with their own words where the model got tokens for them."""
        if self._restorer is None:
            return text
        return self._restorer.feed(text) + (self._restorer.finish() if self.finish is not None else "")

    def _end(self, finish: Finish, text: str) -> None:
        self.ending = finish
        self._fed += len(text)
        self._safety.feed(self._filter, text, last=True)

    def final(self) -> FinalChoice:
        """What it was, once it is over."""
        scores = self.scores
        known = scores is not None and len(scores) == len(self.tokens)
        return FinalChoice(
            tokens=tuple(self.tokens),
            logprobs=tuple(scores) if known and scores is not None else (),
            finish=self.finish or Finish.ERROR,
        )

    def _take(self, ids: Sequence[int]) -> str:
        """The text of these tokens. Where it may end early they are taken one by one: those behind a stop string, which
        the worker made before it heard, are nobody's."""
        if len(ids) == 1 or not self._generation.parameters.stop:
            self.tokens.extend(ids)
            return self._stop.feed(self._detokenizer.feed(ids))
        text = ""
        for token_id in ids:
            self.tokens.append(token_id)
            text += self._stop.feed(self._detokenizer.feed((token_id,)))
            if self._stop.stopped:
                break
        return text

    def _take_logprobs(self, ids: Sequence[int], logprobs: Sequence[worker_pb2.TokenLogprob]) -> str:
        before = len(self.tokens)
        shown = self._generation.parameters.logprobs is not None
        text = self._feed_with_logprobs(ids, logprobs) if shown else self._take(ids)
        if self.scores is not None:
            self.scores.extend([entry.logprob for entry in logprobs[: len(self.tokens) - before]])
        return text

    def _feed_with_logprobs(self, ids: Sequence[int], logprobs: Sequence[worker_pb2.TokenLogprob]) -> str:
        """The text of these tokens, one by one, so that each log-probability is kept until its own text is decided;
        those of a stop string never are."""
        token = self._generation.text.token
        text = ""
        for token_id, entry in zip(ids, logprobs, strict=True):
            self.tokens.append(token_id)
            begin = self._fed + len(text) + self._stop.held
            text += self._stop.feed(self._detokenizer.feed((token_id,)))
            if self._stop.stopped:
                break
            top = tuple((*token(i), p) for i, p in zip(entry.top_ids, entry.top_logprobs, strict=True))
            end = self._fed + len(text) + self._stop.held
            self._unspelt.append(Logprob(*token(token_id), entry.logprob, top, begin))
            if end > begin:  # this token completes what those before it began
                self._logprobs.extend((begin, end, one) for one in self._unspelt)
                self._unspelt.clear()
        return text

    def _released_logprobs(self, shift: int) -> list[Logprob]:
        """Log-probabilities of the tokens whose text is decided and left: they spell the token, so they must neither
        run ahead of the filter nor tell what it replaced. What was replaced before this release moved the text by
        `shift` characters; what is replaced in it moves the tokens behind that."""
        released: list[Logprob] = []
        if self.finish is Finish.CONTENT_FILTER:
            return released
        while self._logprobs and self._logprobs[0][1] <= self._consumed:
            begin, end, one = self._logprobs.popleft()
            if not self._is_hidden(begin, end):
                moved = self._shift if any(behind <= begin for _, behind in self._hidden) else shift
                released.append(replace(one, offset=one.offset + moved) if moved else one)
        if self.finish is not None and not self._logprobs and not self._is_hidden(self._consumed - 1, self._consumed):
            # Such as the token that ended it.
            released += [replace(one, offset=one.offset + self._shift) for one in self._unspelt]
        undecided = self._logprobs[0][0] if self._logprobs else self._consumed
        self._hidden = [span for span in self._hidden if span[1] > undecided]
        return released

    def _is_hidden(self, begin: int, end: int) -> bool:
        return any(first < end and begin < behind for first, behind in self._hidden)
