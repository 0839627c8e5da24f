"""Decides what each engine step computes. Pure: no torch, no clock, no randomness, no threads.

One turn is schedule → execute → apply: `schedule(now)` says which tokens of which sequences to compute, somebody
computes them, `apply` takes the sampled tokens and says which sequences ended. Sequences join and leave only between
turns. Every running sequence that has one token left to compute is advanced in every step (decode); what is left of
the step's token budget goes to prompts, oldest first, in chunks.

Memory: a sequence gets the blocks for its prompt and all the output it may produce when it joins, so a running
sequence never lacks memory and is never preempted.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.worker.engines.port import FinishReason, SamplingParams, SequenceRequest
from services.worker.engines.torch_engine.blocks import BlockPool

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the scheduler knows of a model: `context` tokens of prompt + output, token ids below `vocabulary`."""

    context: int
    vocabulary: int
    eos_token_ids: frozenset[int]


@dataclass(slots=True, eq=False)
class Running:
    """A live sequence. `tokens` is prompt + output; the first `computed` of them have keys and values in `blocks`.

    `row` is its place among the running sequences (0 … max_running-1), -1 while it waits; `limit` the most output
    tokens it may produce.
    """

    request: SequenceRequest
    arrival: int
    limit: int
    stop_ids: frozenset[int]
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    row: int = -1
    alive: bool = True

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def pending_prompt(self) -> int:
        """Prompt tokens not yet computed."""
        return max(0, len(self.request.prompt) - self.computed)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute tokens `start` … `start+count-1` of a sequence; `samples` says that its next token is wanted."""

    sequence: Running
    start: int
    count: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that ended without a new token."""

    handle: int
    reason: FinishReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's work, by model, and the sequences that ended since the step before."""

    chunks: dict[str, list[Chunk]]
    ended: list[Ended]


FAILED = -1
"""In place of a token: the model gave no usable numbers for a chunk."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a sampled token led to. `token` is None when it was a stop token or the sequence failed."""

    sequence: Running
    token: int | None
    finish: int
    message: str = ""


_Entry = tuple[float, int, Running]


class Scheduler:
    """Owns the queue of waiting sequences, the running ones and the block pool."""

    def __init__(
        self,
        *,
        models: Mapping[str, ModelLimits],
        pool: BlockPool,
        block_size: int,
        max_running: int,
        max_step_tokens: int,
    ) -> None:
        if max_step_tokens < max_running:
            raise ValueError("max_step_tokens must allow one token for each of max_running sequences")
        self._models = models
        self._pool = pool
        self._block_size = block_size
        self._max_step_tokens = max_step_tokens
        self._free_rows = list(range(max_running - 1, -1, -1))
        self._by_handle: dict[int, Running] = {}
        self._running: dict[int, Running] = {}  # by handle, in order of joining
        self._queue: list[_Entry] = []  # heap by (priority, arrival); the dead are skipped
        self._deadlines: list[_Entry] = []  # heap by (deadline, arrival); the dead are skipped
        self._ended: list[Ended] = []
        self._arrivals = 0
        self._pending_prompt_tokens = 0

    # ---- load -----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences that hold memory."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that hold none yet."""
        return len(self._by_handle) - len(self._running)

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens of all live sequences that are not yet computed."""
        return self._pending_prompt_tokens

    def has_work(self) -> bool:
        """Whether a step would compute or report anything."""
        return bool(self._by_handle or self._ended)

    # ---- commands -------------------------------------------------------------------------------------------------

    def add(self, requests: Iterable[SequenceRequest]) -> None:
        """Queue sequences; an impossible one is reported by the next plan with FinishReason.ERROR."""
        for request in requests:
            if request.handle in self._by_handle:
                # Two outcomes for one handle would be worse than none for the second request.
                logger.error("handle submitted twice", extra={"handle": request.handle})
                continue
            fault = self._fault(request)
            if fault:
                self._ended.append(Ended(request.handle, FinishReason.ERROR, fault))
            else:
                self._enqueue(request)

    def cancel(self, handles: Iterable[int]) -> None:
        """End sequences and free their memory now; the next plan reports them."""
        for handle in handles:
            sequence = self._by_handle.get(handle)
            if sequence is not None:
                self._end(sequence, FinishReason.CANCELLED)

    def fail(self, handles: Iterable[int], message: str) -> None:
        """End sequences with an error, as `cancel` does with a cancellation."""
        for handle in handles:
            sequence = self._by_handle.get(handle)
            if sequence is not None:
                self._end(sequence, FinishReason.ERROR, message)

    # ---- one turn -------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Plan:
        """What to compute next. `now` is on the clock of the requests' deadlines (seconds)."""
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.alive:
                self._end(sequence, FinishReason.DEADLINE)
        chunks: dict[str, list[Chunk]] = {}
        budget = self._max_step_tokens
        prompts: list[Running] = []
        for sequence in self._running.values():
            if len(sequence.tokens) - sequence.computed == 1:
                budget -= self._plan_chunk(chunks, sequence, 1)
            else:
                prompts.append(sequence)
        for sequence in prompts:
            budget -= self._plan_chunk(chunks, sequence, budget)
        while budget > 0 and (joined := self._join()):
            budget -= self._plan_chunk(chunks, joined, budget)
        ended, self._ended = self._ended, []
        return Plan(chunks, ended)

    def apply(self, chunks: Sequence[Chunk], sampled: Sequence[int | None]) -> list[Advanced]:
        """Account for computed chunks. `sampled[i]` is the token after `chunks[i]`, None where none was wanted, or
        FAILED, which ends the sequence with an error. What needs no word (prompts under way) is left out."""
        advanced: list[Advanced] = []
        for chunk, token in zip(chunks, sampled, strict=True):
            sequence = chunk.sequence
            pending = sequence.pending_prompt
            sequence.computed += chunk.count
            self._pending_prompt_tokens -= pending - sequence.pending_prompt
            if token is not None:
                advanced.append(self._advance(sequence, token))
        return advanced

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _plan_chunk(self, chunks: dict[str, list[Chunk]], sequence: Running, budget: int) -> int:
        left = len(sequence.tokens) - sequence.computed
        count = min(left, budget)
        if count > 0:
            chunk = Chunk(sequence, sequence.computed, count, samples=count == left)
            chunks.setdefault(sequence.request.model, []).append(chunk)
        return count

    def _join(self) -> Running | None:
        """Let the first waiting sequence in if there is a row and memory for it. Nobody overtakes it: a large
        sequence would otherwise wait for ever behind small ones."""
        while self._queue and not self._queue[0][2].alive:
            heapq.heappop(self._queue)
        if not self._queue or not self._free_rows:
            return None
        sequence = self._queue[0][2]
        needed = self._blocks_for(len(sequence.tokens) + sequence.limit)
        if not self._pool.can_allocate(needed):
            return None
        heapq.heappop(self._queue)
        sequence.blocks = self._pool.allocate(needed)
        sequence.row = self._free_rows.pop()
        self._running[sequence.request.handle] = sequence
        return sequence

    def _advance(self, sequence: Running, token: int) -> Advanced:
        if token == FAILED:
            self._remove(sequence)
            return Advanced(sequence, None, FinishReason.ERROR, "the model produced no finite logits")
        if token in sequence.stop_ids:
            self._remove(sequence)
            return Advanced(sequence, None, FinishReason.STOP)
        sequence.tokens.append(token)
        if sequence.produced >= sequence.limit:
            self._remove(sequence)
            return Advanced(sequence, token, FinishReason.LENGTH)
        return Advanced(sequence, token, 0)

    def _enqueue(self, request: SequenceRequest) -> None:
        limits = self._models[request.model]
        eos = frozenset[int]() if request.params.ignore_eos else limits.eos_token_ids
        sequence = Running(
            request=request,
            arrival=self._arrivals,
            limit=min(request.params.max_tokens, self._context(limits) - len(request.prompt)),
            stop_ids=eos.union(request.params.stop_token_ids),
            tokens=list(request.prompt),
        )
        self._arrivals += 1
        self._by_handle[request.handle] = sequence
        self._pending_prompt_tokens += len(request.prompt)
        self._queue = _without_dead(self._queue, self.waiting)
        heapq.heappush(self._queue, (request.priority, sequence.arrival, sequence))
        if request.deadline is not None:
            self._deadlines = _without_dead(self._deadlines, len(self._by_handle))
            heapq.heappush(self._deadlines, (request.deadline, sequence.arrival, sequence))

    def _end(self, sequence: Running, reason: FinishReason, message: str = "") -> None:
        self._remove(sequence)
        self._ended.append(Ended(sequence.request.handle, reason, message))

    def _remove(self, sequence: Running) -> None:
        sequence.alive = False
        del self._by_handle[sequence.request.handle]
        self._pending_prompt_tokens -= sequence.pending_prompt
        if self._running.pop(sequence.request.handle, None) is not None:
            self._pool.release(sequence.blocks)
            self._free_rows.append(sequence.row)
            sequence.blocks = []

    def _context(self, limits: ModelLimits) -> int:
        return min(limits.context, self._pool.total * self._block_size)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _fault(self, request: SequenceRequest) -> str:
        """Why this request cannot be served, "" if it can."""
        limits = self._models.get(request.model)
        if limits is None:
            return f"model {request.model} is not loaded here"
        if not request.prompt:
            return "the prompt is empty"
        context = self._context(limits)
        if len(request.prompt) >= context:
            return f"the prompt has {len(request.prompt)} tokens and the context only {context}"
        if not 0 <= min(request.prompt) <= max(request.prompt) < limits.vocabulary:
            return f"the prompt holds a token id outside 0 … {limits.vocabulary - 1}"
        return sampling_fault(request.params, limits.vocabulary)


def _without_dead(heap: list[_Entry], alive: int) -> list[_Entry]:
    """The heap itself, or one without its dead entries once they outnumber the live ones by far."""
    if len(heap) < 2 * alive + 64:
        return heap
    kept = [entry for entry in heap if entry[2].alive]
    heapq.heapify(kept)
    return kept


def sampling_fault(params: SamplingParams, vocabulary: int) -> str:
    """What is wrong with sampling parameters, "" if nothing is."""
    checks = (
        (params.max_tokens >= 1, "max_tokens must be at least 1"),
        (0 <= params.temperature < math.inf, "temperature must be a number from 0 up"),
        (0 < params.top_p <= 1, "top_p must be above 0 and at most 1"),
        (params.top_k >= 0, "top_k must not be negative"),
        (0 <= params.min_p <= 1, "min_p must be from 0 to 1"),
        (0 < params.repetition_penalty < math.inf, "repetition_penalty must be above 0"),
        (math.isfinite(params.presence_penalty), "presence_penalty must be a number"),
        (math.isfinite(params.frequency_penalty), "frequency_penalty must be a number"),
        (all(0 <= token < vocabulary for token in params.logit_bias), "logit_bias names an unknown token id"),
        (all(map(math.isfinite, params.logit_bias.values())), "logit_bias must hold numbers"),
        (params.logprobs is None or 0 <= params.logprobs <= vocabulary, "logprobs is out of range"),
    )
    return next((message for holds, message in checks if not holds), "")
