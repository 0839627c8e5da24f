"""Decides what each engine step computes. Pure: no torch, no clock, no randomness, no threads.

One turn is schedule → execute → apply: `schedule(now)` says which tokens of which sequences to compute and which
blocks to copy first, somebody does that, `apply` takes the sampled tokens and says which sequences ended. Sequences
join and leave only between turns.

- **Steps.** Every running sequence with one token left to compute is advanced in every step (decode); what is left of
  the step's token budget goes to prompts, most urgent first, in chunks (Sarathi-Serve's chunked prefill), so decoding
  is never starved by prompts, and a prompt always gets at least one token.
- **Memory.** A sequence joins when its tokens fit beside the growth that the running ones may need soon. When memory
  runs out all the same, the least urgent sequence is preempted: swapped to a lower tier, or dropped and computed anew
  (most of it from the prefix cache, if that still has it). The most urgent sequence always gets what it needs.
- **Shares.** Among equals whoever holds more than its share of the memory gives way first: see shares.py.
- **Order.** By priority, then arrival. A sequence that does not fit may be overtaken by a bounded number of smaller
  ones. A waiting sequence preempts running ones of a lower priority, never of its own.
- **Choices of one prompt** (`group`): the first computes the prompt, the others fork from its blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.worker.engines.port import FinishReason, SequenceRequest
from services.worker.engines.torch_engine.blocks import BlockManager
from services.worker.engines.torch_engine.holdings import Holdings, PrefixCounters
from services.worker.engines.torch_engine.line import Line, fewest
from services.worker.engines.torch_engine.prefix import PrefixNames
from services.worker.engines.torch_engine.sequences import (
    FAILED,
    Advanced,
    Chunk,
    Ended,
    LiveSequence,
    ModelLimits,
    Plan,
    State,
    request_fault,
)
from services.worker.engines.torch_engine.shares import Shares

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """`max_step_tokens` bounds what one step computes. `growth_blocks` is how many blocks of growth are kept free for
    each running sequence when another wants to join. A sequence that does not fit may be overtaken by `lookahead`
    others at a time and `max_overtaken` in all. `owner_share` is the share of all blocks that one salt's running
    sequences may hold while it has more than one."""

    block_size: int
    max_running: int
    max_step_tokens: int
    prefix_cache: bool = True
    swap: bool = True
    growth_blocks: int = 2
    lookahead: int = 8
    max_overtaken: int = 32
    owner_share: float = 1.0


class Scheduler:
    """Owns the sequences: those that wait, those that run, and through the pool their memory."""

    def __init__(
        self,
        *,
        models: Mapping[str, ModelLimits],
        names: Mapping[str, PrefixNames],
        pool: BlockManager,
        options: SchedulerOptions,
    ) -> None:
        """`models` and `names` are those of the start; see `add_model`.

        :raises ValueError: the options contradict one another.
        """
        if options.max_step_tokens < options.max_running:
            raise ValueError("max_step_tokens must allow one token for each of max_running sequences")
        self.preemptions = 0
        """Sequences preempted since the start."""
        self.swaps = 0
        """Of these, those whose memory was swapped out."""
        self._models = dict(models)
        self._names = dict(names)
        self._holdings = Holdings(
            pool=pool, names=self._names, block_size=options.block_size, caching=options.prefix_cache
        )
        self._pool = pool
        self._options = options
        self._size = options.block_size
        self._shares = Shares(pool.total, options.owner_share)
        self._free_rows = list(range(options.max_running - 1, -1, -1))
        self._by_handle: dict[int, LiveSequence] = {}
        self._running: dict[int, LiveSequence] = {}  # by handle, in order of joining
        self._line = Line(lookahead=options.lookahead, max_overtaken=options.max_overtaken)
        self._away: set[str] = set()
        self._ended: list[Ended] = []
        self._arrivals = 0
        self._pending_prompt_tokens = 0
        self._swapped = 0

    # ---- load -----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences that hold device memory."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that hold none."""
        return len(self._by_handle) - len(self._running)

    @property
    def swapped(self) -> int:
        """Of the waiting, those whose keys and values lie in lower tiers."""
        return self._swapped

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens of live sequences that are not yet computed, but for those beyond their tenants' shares."""
        return self._pending_prompt_tokens - self._shares.prompts_beyond(self._by_handle.values(), self._size)

    @property
    def prefix_counters(self) -> PrefixCounters:
        """Hits and misses of the prefix cache."""
        return self._holdings.counters

    @property
    def fragmentation(self) -> float:
        """Share of the running sequences' token places that hold no token."""
        places = sum(len(sequence.blocks) for sequence in self._running.values()) * self._size
        filled = sum(sequence.computed - sequence.slid * self._size for sequence in self._running.values())
        return 1.0 - filled / places if places else 0.0

    def has_work(self) -> bool:
        """Whether a step would compute or report anything."""
        return bool(self._by_handle or self._ended)

    def busy_models(self) -> set[str]:
        """Models with running sequences."""
        return {sequence.request.model for sequence in self._running.values()}

    def wanted_models(self) -> list[str]:
        """Models that are away and have sequences waiting for them, the longest waiting first."""
        first = {
            model: sequence.urgency for model in self._away if (sequence := self._line.first_aside(model)) is not None
        }
        return sorted(first, key=first.__getitem__)

    # ---- commands -------------------------------------------------------------------------------------------------

    def add(self, requests: Iterable[SequenceRequest]) -> None:
        """Queue sequences; an impossible one is reported by the next plan with FinishReason.ERROR."""
        leaders: dict[int, LiveSequence] = {}
        for request in requests:
            if request.handle in self._by_handle:
                # Two outcomes for one handle would be worse than none for the second request.
                logger.error("handle submitted twice", extra={"handle": request.handle})
                continue
            limits = self._models.get(request.model)
            fault = request_fault(request, limits, self._context(limits))
            if limits is None or fault:
                self._ended.append(Ended(request.handle, FinishReason.ERROR, fault))
                continue
            sequence = self._take_in(request, limits)
            leader = leaders.get(request.group) if request.group else None
            if leader is not None and _same_prompt(leader, sequence):
                sequence.leader, sequence.state = leader, State.HELD
                leader.followers.append(sequence)
            else:
                leaders[request.group] = sequence
                self._enqueue(sequence)

    def cancel(self, handles: Iterable[int]) -> None:
        """End sequences and free their memory now; the next plan reports them."""
        self._end_all(handles, FinishReason.CANCELLED, "")

    def fail(self, handles: Iterable[int], message: str) -> None:
        """End sequences with an error, as `cancel` does with a cancellation."""
        self._end_all(handles, FinishReason.ERROR, message)

    def __contains__(self, handle: int) -> bool:
        """Whether a sequence of this handle is alive."""
        return handle in self._by_handle

    def report(self, handle: int, reason: FinishReason, message: str = "") -> None:
        """Let the next plan tell of a sequence that ended before it was added."""
        self._ended.append(Ended(handle, reason, message))

    def fail_model(self, model: str, message: str) -> None:
        """End every sequence of a model with an error."""
        handles = [handle for handle, each in self._by_handle.items() if each.request.model == model]
        self.fail(handles, message)

    def add_model(self, model: str, limits: ModelLimits, names: PrefixNames) -> None:
        """Take sequences of a further model, which is away at first."""
        self._models[model], self._names[model] = limits, names
        self.set_away(model)

    def remove_model(self, model: str) -> None:
        """Take none of a model any more; none may be alive (see `uses`). What only it could find in the cache goes."""
        self.set_present(model)
        self._models.pop(model, None)
        names = self._names.pop(model, None)
        if names is not None and all(names.tag != each.tag for each in self._names.values()):
            self._holdings.purge(names)

    def uses(self, model: str) -> bool:
        """Whether any sequence of a model is alive."""
        return any(each.request.model == model for each in self._by_handle.values())

    def set_away(self, model: str) -> None:
        """The model is not in memory or about to leave it: its waiting sequences wait, running ones go on."""
        self._away.add(model)

    def set_present(self, model: str) -> None:
        """The model is in memory: its sequences may run."""
        self._away.discard(model)
        self._line.bring_back(model)

    # ---- one turn -------------------------------------------------------------------------------------------------

    def schedule(self, now: float, prompt_tokens: int | None = None) -> Plan:
        """What to compute next. `now` is on the clock of the requests' deadlines (seconds). `prompt_tokens` bounds
        the prompt tokens of a step in which others decode: it bounds the time between their tokens."""
        self._expire(now)
        for salt in self._shares.let_in(self._running.values()):
            self._line.bring_back(salt)
        self._yield_to_urgent()
        self._make_room()
        chunks: dict[str, list[Chunk]] = {}
        budget = self._options.max_step_tokens
        prompts: list[LiveSequence] = []
        for sequence in self._running.values():
            if sequence.left == 1:
                budget -= self._plan_chunk(chunks, sequence, 1)
            else:
                prompts.append(sequence)
        if prompt_tokens is not None and chunks:
            budget = min(budget, max(1, prompt_tokens))
        for sequence in sorted(prompts, key=_urgency):
            while budget > 0 and (joined := self._join(before=sequence)):
                budget -= self._plan_chunk(chunks, joined, budget)
            budget -= self._plan_chunk(chunks, sequence, budget)
        while budget > 0 and (joined := self._join()):
            budget -= self._plan_chunk(chunks, joined, budget)
        ended, self._ended = self._ended, []
        return Plan(chunks, self._pool.take_moves(), ended)

    def apply(
        self, chunks: Sequence[Chunk], sampled: Sequence[int | None], *, complete: Container[int] = ()
    ) -> list[Advanced]:
        """Account for computed chunks. `sampled[i]` is the token after `chunks[i]`, None where none was wanted, or
        FAILED, which ends the sequence with an error. `complete` are the handles whose structured output this token
        completes. What needs no word (prompts under way) is left out."""
        advanced: list[Advanced] = []
        for chunk, token in zip(chunks, sampled, strict=True):
            sequence = chunk.sequence
            self._set_computed(sequence, sequence.computed + chunk.count)
            if token == FAILED:
                self._remove(sequence)
                message = "the model produced no finite logits"
                advanced.append(Advanced(sequence, None, FinishReason.ERROR, message))
                continue
            self._holdings.seal(sequence)
            self._holdings.slide(sequence)
            if sequence.followers and not sequence.pending_prompt:
                self._release_followers(sequence)
            if token is not None:
                advanced.append(self._advance(sequence, token, sequence.request.handle in complete))
        return advanced

    def check_integrity(self) -> None:
        """Compare the pool with the live sequences; see `BlockManager.check_integrity`.

        :raises IntegrityError: something does not add up.
        """
        live = self._by_handle.values()
        self._pool.check_integrity([each.blocks for each in live], [each.places for each in live])

    # ---- what a step computes -------------------------------------------------------------------------------------

    def _plan_chunk(self, chunks: dict[str, list[Chunk]], sequence: LiveSequence, budget: int) -> int:
        left, start = sequence.left, sequence.computed
        count = min(left, budget)
        if count > 0:
            self._holdings.claim(sequence, start, start + count)
            chunk = Chunk(sequence, start, count, samples=count == left)
            chunks.setdefault(sequence.request.model, []).append(chunk)
        return count

    def _advance(self, sequence: LiveSequence, token: int, complete: bool) -> Advanced:
        if token in sequence.stop_ids:
            self._remove(sequence)
            return Advanced(sequence, None, FinishReason.STOP)
        sequence.tokens.append(token)
        if complete:
            self._remove(sequence)
            return Advanced(sequence, token, FinishReason.STOP)
        if sequence.produced >= sequence.limit:
            self._remove(sequence)
            return Advanced(sequence, token, FinishReason.LENGTH)
        return Advanced(sequence, token, 0)

    # ---- who joins ------------------------------------------------------------------------------------------------

    def _join(self, before: LiveSequence | None = None) -> LiveSequence | None:
        """Let the most urgent waiting sequence in that fits; only one more urgent than `before`, if that is given."""
        head = self._line.head()
        if head is None or (before is not None and head.urgency > before.urgency):
            return None
        if not self._free_rows and not self._away:  # models that are away become wanted even while all rows are taken
            return None
        kept = self._growth(self._running.values())
        sequence = self._line.pick(
            lambda each: (before is None or each.urgency < before.urgency) and self._fits(each, kept), self._blocker
        )
        return sequence if sequence is not None and self._admit(sequence) else None

    def _blocker(self, sequence: LiveSequence) -> Hashable | None:
        """What must happen before it can run: its model loaded, or another of its tenant's sequences ended."""
        if sequence.request.model in self._away:
            return sequence.request.model
        blocks = self._holdings.blocks_for(len(sequence.tokens))
        kept = self._shares.keeps_out(sequence, blocks, self._running.values())
        return sequence.request.cache_salt if kept else None

    def _fits(self, sequence: LiveSequence, kept: int, leaving: Collection[LiveSequence] = ()) -> bool:
        """Whether it can join now, or once those `leaving` have left: a row, and its blocks beside the `kept` ones for
        the growth of those that stay; a sequence that would run alone needs no room for growth."""
        if not self._free_rows and not leaving:
            return False
        free, cost = self._holdings.spare(sequence, leaving)
        room = free - (kept + self._growth([sequence]) if len(self._running) > len(leaving) else 0)
        return room > 0 and cost <= room

    def _growth(self, sequences: Iterable[LiveSequence]) -> int:
        """Blocks kept free for running sequences."""
        return sum(self._holdings.growth(each, self._options.growth_blocks) for each in sequences)

    def _admit(self, sequence: LiveSequence) -> bool:
        """Let it run; False, and it waits on, when it turns out to need more than there is."""
        computed = self._holdings.take(sequence)
        self._swapped -= sequence.state is State.SWAPPED
        self._set_computed(sequence, computed or 0)
        if computed is None:
            self._enqueue(sequence)
            return False
        sequence.state = State.RUNNING
        sequence.row = self._free_rows.pop()
        self._running[sequence.request.handle] = sequence
        return True

    # ---- who waits ------------------------------------------------------------------------------------------------

    def _take_in(self, request: SequenceRequest, limits: ModelLimits) -> LiveSequence:
        sequence = LiveSequence(
            request=request,
            arrival=self._arrivals,
            limit=min(request.params.max_tokens, self._context(limits) - len(request.prompt)),
            stop_ids=request.params.ends(limits.eos_token_ids),
            window=limits.window,
            tokens=list(request.prompt),
        )
        self._arrivals += 1
        self._by_handle[request.handle] = sequence
        self._shares.joined(sequence)
        self._pending_prompt_tokens += len(request.prompt)
        if request.deadline is not None:
            self._line.watch(sequence, request.deadline)
        self._line.tidy(len(self._by_handle))
        return sequence

    def _enqueue(self, sequence: LiveSequence) -> None:
        sequence.state = State.WAITING
        self._line.push(sequence)

    def _release_followers(self, leader: LiveSequence) -> None:
        """The prompt is computed: its other choices may fork."""
        for sequence in leader.followers:
            if sequence.alive:
                self._enqueue(sequence)
        leader.followers = []

    # ---- who leaves -----------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Preempt until every running sequence can be advanced."""
        lacks = self._holdings.lacks
        while self._running and sum(map(lacks, self._running.values())) > self._holdings.free:
            excess = self._shares.excess(self._running.values())
            self._preempt(max(self._running.values(), key=lambda each: _yielding(each, excess)))

    def _yield_to_urgent(self) -> None:
        """Preempt sequences of a lower priority, or of its own that are beyond their tenant's share, if that lets the
        first waiting one in, and no more than it takes."""
        head = self._line.head()
        if head is None:
            return
        running = self._running.values()
        excess = self._shares.excess(running, head, self._holdings.blocks_for(len(head.tokens)))
        own = head.request.priority, False
        lower = [each for each in running if _yielding(each, excess)[:2] > own and each is not head.leader]
        if not lower or self._blocker(head) is not None:
            return

        def suffices(leaving: Collection[LiveSequence]) -> bool:
            stay = [each for each in running if each not in leaving]
            return self._fits(head, self._growth(stay), leaving)

        victims = sorted(lower, key=lambda each: _yielding(each, excess), reverse=True)
        for victim in fewest(victims, suffices):
            self._preempt(victim)

    def _preempt(self, sequence: LiveSequence) -> None:
        """Take a running sequence's memory; it goes on later as if nothing had happened."""
        self.preemptions += 1
        self._leave(sequence)
        if self._options.swap and sequence.computed and self._holdings.swap_out(sequence):
            sequence.state = State.SWAPPED
            self._swapped += 1
            self.swaps += 1
        else:
            self._holdings.release(sequence)
            self._set_computed(sequence, 0)
            sequence.state = State.WAITING
        self._line.push(sequence)

    def _expire(self, now: float) -> None:
        for sequence in self._line.expired(now):
            self._end(sequence, FinishReason.DEADLINE)

    def _end_all(self, handles: Iterable[int], reason: FinishReason, message: str) -> None:
        for handle in handles:
            sequence = self._by_handle.get(handle)
            if sequence is not None:
                self._end(sequence, reason, message)

    def _end(self, sequence: LiveSequence, reason: FinishReason, message: str = "") -> None:
        self._remove(sequence)
        self._ended.append(Ended(sequence.request.handle, reason, message))

    def _remove(self, sequence: LiveSequence) -> None:
        del self._by_handle[sequence.request.handle]
        self._shares.ended(sequence)
        self._pending_prompt_tokens -= sequence.pending_prompt
        if sequence.state is State.RUNNING:
            self._leave(sequence)
        self._swapped -= sequence.state is State.SWAPPED
        self._holdings.release(sequence)
        sequence.state = State.ENDED
        self._promote(sequence)

    def _leave(self, sequence: LiveSequence) -> None:
        """Give up the row; a tenant's parked sequences may now have room."""
        del self._running[sequence.request.handle]
        self._free_rows.append(sequence.row)
        sequence.row = -1
        if self._line.any_aside:
            self._line.bring_back(sequence.request.cache_salt)

    def _promote(self, ended: LiveSequence) -> None:
        """The first choice ended before the prompt was computed: the next one computes it."""
        followers = [sequence for sequence in ended.followers if sequence.alive]
        ended.followers = []
        if not followers:
            return
        first, *others = followers
        first.leader, first.followers = None, others
        for sequence in others:
            sequence.leader = first
        self._enqueue(first)

    # ---- small things ---------------------------------------------------------------------------------------------

    def _set_computed(self, sequence: LiveSequence, computed: int) -> None:
        before = sequence.pending_prompt
        sequence.computed = computed
        self._pending_prompt_tokens += sequence.pending_prompt - before

    def _context(self, limits: ModelLimits | None) -> int:
        capacity = self._pool.total * self._size
        return min(limits.context, capacity) if limits else capacity


def _urgency(sequence: LiveSequence) -> tuple[int, int]:
    return sequence.urgency


def _yielding(sequence: LiveSequence, excess: Container[int]) -> tuple[int, bool, int]:
    """The largest is preempted first."""
    return sequence.request.priority, sequence.request.handle in excess, sequence.arrival


def _same_prompt(one: LiveSequence, other: LiveSequence) -> bool:
    ours, theirs = one.request, other.request
    return (
        ours.model == theirs.model and ours.cache_salt == theirs.cache_salt and list(ours.prompt) == list(theirs.prompt)
    )
