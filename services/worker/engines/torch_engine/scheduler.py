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
- **Order.** By priority, then arrival. A sequence that does not fit may be overtaken by a bounded number of smaller
  ones. A waiting sequence preempts running ones of a lower priority, never of its own.
- **Choices of one prompt** (`group`): the first computes the prompt, the others fork from its blocks.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.worker.engines.port import FinishReason, SequenceRequest
from services.worker.engines.torch_engine.blocks import BlockManager
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

logger = logging.getLogger(__name__)

_Entry = tuple[float, int, LiveSequence]


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


@dataclass(slots=True)
class Counters:
    """Totals since the start. Prompt tokens looked up in the prefix cache and found there; sequences preempted."""

    prefix_queried: int = 0
    prefix_hit: int = 0
    preemptions: int = 0
    swaps: int = 0


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
        """`models` may grow while it runs (adapters, models loaded later).

        :raises ValueError: the options contradict one another.
        """
        if options.max_step_tokens < options.max_running:
            raise ValueError("max_step_tokens must allow one token for each of max_running sequences")
        self.counters = Counters()
        self._models = models
        self._names = names
        self._pool = pool
        self._options = options
        self._size = options.block_size
        self._owner_cap = int(pool.total * options.owner_share)
        self._free_rows = list(range(options.max_running - 1, -1, -1))
        self._by_handle: dict[int, LiveSequence] = {}
        self._running: dict[int, LiveSequence] = {}  # by handle, in order of joining
        self._queue: list[_Entry] = []  # heap by (priority, arrival); the dead are skipped
        self._parked: dict[Hashable, list[LiveSequence]] = {}
        self._away: set[str] = set()
        self._deadlines: list[_Entry] = []  # heap by (deadline, arrival); the dead are skipped
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
        """Prompt tokens of all live sequences that are not yet computed."""
        return self._pending_prompt_tokens

    @property
    def fragmentation(self) -> float:
        """Share of the running sequences' token places that hold no token."""
        places = sum(len(sequence.blocks) for sequence in self._running.values()) * self._size
        filled = sum(sequence.computed for sequence in self._running.values())
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
            model: min(sequence.urgency for sequence in self._parked[model] if sequence.alive)
            for model in self._away
            if any(sequence.alive for sequence in self._parked.get(model, ()))
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

    def fail_model(self, model: str, message: str) -> None:
        """End every sequence of a model with an error."""
        handles = [handle for handle, each in self._by_handle.items() if each.request.model == model]
        self.fail(handles, message)

    def set_away(self, model: str) -> None:
        """The model is not in memory: its sequences wait. It must have no running ones (`busy_models`)."""
        self._away.add(model)

    def set_present(self, model: str) -> None:
        """The model is in memory: its sequences may run."""
        self._away.discard(model)
        self._unpark(model)

    # ---- one turn -------------------------------------------------------------------------------------------------

    def schedule(self, now: float, prompt_tokens: int | None = None) -> Plan:
        """What to compute next. `now` is on the clock of the requests' deadlines (seconds). `prompt_tokens` bounds
        the prompt tokens of a step in which others decode: it bounds the time between their tokens."""
        self._expire(now)
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
            budget -= self._plan_chunk(chunks, sequence, budget)
        while budget > 0 and (joined := self._join()):
            budget -= self._plan_chunk(chunks, joined, budget)
        ended, self._ended = self._ended, []
        return Plan(chunks, self._pool.take_moves(), ended)

    def apply(self, chunks: Sequence[Chunk], sampled: Sequence[int | None]) -> list[Advanced]:
        """Account for computed chunks. `sampled[i]` is the token after `chunks[i]`, None where none was wanted, or
        FAILED, which ends the sequence with an error. What needs no word (prompts under way) is left out."""
        advanced: list[Advanced] = []
        for chunk, token in zip(chunks, sampled, strict=True):
            sequence = chunk.sequence
            self._set_computed(sequence, sequence.computed + chunk.count)
            if token == FAILED:
                self._remove(sequence)
                message = "the model produced no finite logits"
                advanced.append(Advanced(sequence, None, FinishReason.ERROR, message))
                continue
            self._seal(sequence)
            if sequence.followers and not sequence.pending_prompt:
                self._release_followers(sequence)
            if token is not None:
                advanced.append(self._advance(sequence, token))
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
            self._claim(sequence, start, start + count)
            chunk = Chunk(sequence, start, count, samples=count == left)
            chunks.setdefault(sequence.request.model, []).append(chunk)
        return count

    def _claim(self, sequence: LiveSequence, start: int, end: int) -> None:
        """Make sure that the tokens `start` … `end-1` have blocks that this sequence alone writes."""
        blocks, first = sequence.blocks, start // self._size
        if first < len(blocks) and self._pool.shared(blocks[first]):
            blocks[first] = self._pool.writable(blocks[first])
        missing = self._blocks_for(end) - len(blocks)
        if missing > 0:
            blocks += self._pool.allocate(missing)

    def _seal(self, sequence: LiveSequence) -> None:
        """Tell the cache of blocks that are now full."""
        full = sequence.computed // self._size
        if not self._options.prefix_cache or full <= sequence.sealed:
            return
        self._name(sequence, full)
        salt = sequence.request.cache_salt
        for index in range(sequence.sealed, full):
            owner = b"" if index < sequence.public else salt
            self._pool.seal(sequence.blocks[index], sequence.chain[index], owner)
        sequence.sealed = full

    def _advance(self, sequence: LiveSequence, token: int) -> Advanced:
        if token in sequence.stop_ids:
            self._remove(sequence)
            return Advanced(sequence, None, FinishReason.STOP)
        sequence.tokens.append(token)
        if sequence.produced >= sequence.limit:
            self._remove(sequence)
            return Advanced(sequence, token, FinishReason.LENGTH)
        return Advanced(sequence, token, 0)

    # ---- who joins ------------------------------------------------------------------------------------------------

    def _join(self) -> LiveSequence | None:
        """Let the most urgent waiting sequence in that fits. One that does not fit may be overtaken a bounded number
        of times: a large sequence would otherwise wait for ever behind small ones."""
        passed: list[_Entry] = []
        joined = None
        while self._queue and self._free_rows and len(passed) <= self._options.lookahead:
            entry = heapq.heappop(self._queue)
            sequence = entry[2]
            if not sequence.alive or self._park(sequence):
                continue
            if self._fits(sequence):
                self._admit(sequence)
                joined = sequence
                break
            passed.append(entry)
            if sequence.overtaken >= self._options.max_overtaken:
                break
        for entry in passed:
            entry[2].overtaken += joined is not None
            heapq.heappush(self._queue, entry)
        return joined

    def _fits(self, sequence: LiveSequence) -> bool:
        """Whether it can join now: a row, and its blocks beside the growth of the running ones."""
        return bool(self._free_rows) and self._cost(sequence) + self._headroom(sequence) <= self._pool.free

    def _cost(self, sequence: LiveSequence) -> int:
        """Free blocks that joining takes."""
        if sequence.state is State.SWAPPED:
            return self._blocks_for(len(sequence.tokens))
        if self._fork_of(sequence) is not None:
            return 1  # the copy of the block that both would write
        needed = self._blocks_for(len(sequence.tokens))
        found, cost = self._pool.probe(self._usable(sequence))
        return needed - found + cost

    def _headroom(self, sequence: LiveSequence) -> int:
        """Blocks kept free for what runs; none for a sequence that would run alone."""
        if not self._running:
            return 0
        return sum(map(self._growth, self._running.values())) + self._growth(sequence)

    def _growth(self, sequence: LiveSequence) -> int:
        """Blocks that it may ask for soon: no more than its longest output needs."""
        most = self._blocks_for(len(sequence.request.prompt) + sequence.limit) - self._blocks_for(len(sequence.tokens))
        return min(self._options.growth_blocks, most)

    def _admit(self, sequence: LiveSequence) -> None:
        pool = self._pool
        leader = self._fork_of(sequence)
        if sequence.state is State.SWAPPED:
            sequence.blocks, sequence.places = pool.swap_in(sequence.places), []
            self._swapped -= 1
        elif leader is not None:
            prompt = len(sequence.request.prompt)
            sequence.blocks = pool.share(leader.blocks[: self._blocks_for(prompt)])
            self._set_computed(sequence, prompt - 1)
        else:
            sequence.blocks = pool.acquire(self._usable(sequence), sequence.request.cache_salt)
            self._set_computed(sequence, len(sequence.blocks) * self._size)
            # The whole prompt's memory at once: a prompt under way is never short of it.
            sequence.blocks += pool.allocate(self._blocks_for(len(sequence.tokens)) - len(sequence.blocks))
        if sequence.cached is None:
            sequence.cached = sequence.computed
            self.counters.prefix_queried += len(sequence.request.prompt)
            self.counters.prefix_hit += sequence.computed
        sequence.sealed = 0 if sequence.state is State.SWAPPED else sequence.computed // self._size
        sequence.state = State.RUNNING
        sequence.row = self._free_rows.pop()
        self._running[sequence.request.handle] = sequence

    def _usable(self, sequence: LiveSequence) -> list[bytes]:
        """Names of the blocks that may come from the cache; at least one token is left to compute."""
        if not self._options.prefix_cache:
            return []
        blocks = (len(sequence.tokens) - 1) // self._size
        self._name(sequence, blocks)
        return sequence.chain[:blocks]

    def _name(self, sequence: LiveSequence, blocks: int) -> None:
        names, request = self._names[sequence.request.model], sequence.request
        if not sequence.chain:
            sequence.public = names.public_blocks(request.prompt)
        names.extend(sequence.chain, sequence.tokens, blocks=blocks, public=sequence.public, salt=request.cache_salt)

    def _fork_of(self, sequence: LiveSequence) -> LiveSequence | None:
        """The running sequence whose prompt it can share, down to the last token."""
        leader = sequence.leader
        if leader is None or leader.state is not State.RUNNING or leader.pending_prompt or sequence.produced:
            return None
        return leader

    # ---- who waits ------------------------------------------------------------------------------------------------

    def _take_in(self, request: SequenceRequest, limits: ModelLimits) -> LiveSequence:
        eos = frozenset[int]() if request.params.ignore_eos else limits.eos_token_ids
        sequence = LiveSequence(
            request=request,
            arrival=self._arrivals,
            limit=min(request.params.max_tokens, self._context(limits) - len(request.prompt)),
            stop_ids=eos.union(request.params.stop_token_ids),
            tokens=list(request.prompt),
        )
        self._arrivals += 1
        self._by_handle[request.handle] = sequence
        self._pending_prompt_tokens += len(request.prompt)
        if request.deadline is not None:
            self._deadlines = _without_dead(self._deadlines, len(self._by_handle))
            heapq.heappush(self._deadlines, (request.deadline, sequence.arrival, sequence))
        return sequence

    def _enqueue(self, sequence: LiveSequence) -> None:
        if sequence.state is not State.SWAPPED:
            sequence.state = State.WAITING
        self._queue = _without_dead(self._queue, self.waiting)
        heapq.heappush(self._queue, (*sequence.urgency, sequence))

    def _park(self, sequence: LiveSequence) -> bool:
        """Put a sequence aside that cannot run until something else happens; whether it was."""
        key: Hashable = sequence.request.model
        if key not in self._away:
            key = sequence.request.cache_salt
            if not self._over_share(sequence):
                return False
        if sequence.state is not State.SWAPPED:
            sequence.state = State.PARKED
        self._parked.setdefault(key, []).append(sequence)
        return True

    def _unpark(self, key: Hashable) -> None:
        for sequence in self._parked.pop(key, ()):
            if sequence.alive:
                self._enqueue(sequence)

    def _over_share(self, sequence: LiveSequence) -> bool:
        """Whether the tenant's running sequences and this one would hold more than a tenant's share."""
        if self._owner_cap >= self._pool.total:
            return False
        salt = sequence.request.cache_salt
        held = sum(len(each.blocks) for each in self._running.values() if each.request.cache_salt == salt)
        return bool(held) and held + self._blocks_for(len(sequence.tokens)) > self._owner_cap

    def _release_followers(self, leader: LiveSequence) -> None:
        """The prompt is computed: its other choices may fork."""
        for sequence in leader.followers:
            if sequence.alive:
                self._enqueue(sequence)
        leader.followers = []

    # ---- who leaves -----------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Preempt until every running sequence can be advanced."""
        while self._running and sum(map(self._lacks, self._running.values())) > self._pool.free:
            self._preempt(max(self._running.values(), key=_urgency))

    def _lacks(self, sequence: LiveSequence) -> int:
        """Blocks it needs to compute its next tokens: for more room, or for its own copy of a shared one."""
        blocks, index = sequence.blocks, sequence.computed // self._size
        return 1 if index >= len(blocks) else int(self._pool.shared(blocks[index]))

    def _yield_to_urgent(self) -> None:
        """Preempt sequences of a lower priority while the first waiting one does not fit."""
        while self._queue and not self._queue[0][2].alive:
            heapq.heappop(self._queue)
        if not self._queue or not self._running:
            return
        head = self._queue[0][2]
        lower = [each for each in self._running.values() if each.request.priority > head.request.priority]
        gain = sum(len(each.blocks) for each in lower)
        hopeless = head.request.model in self._away or self._over_share(head)
        if not lower or hopeless or self._pool.free + gain < self._cost(head):
            return
        for victim in sorted(lower, key=_urgency, reverse=True):
            if self._fits(head):
                return
            self._preempt(victim)

    def _preempt(self, sequence: LiveSequence) -> None:
        """Take a running sequence's memory; it goes on later as if nothing had happened."""
        self.counters.preemptions += 1
        self._leave(sequence)
        places = self._pool.swap_out(sequence.blocks) if self._options.swap and sequence.computed else None
        if places is None:
            self._pool.release(sequence.blocks)
            self._set_computed(sequence, 0)
            sequence.state = State.WAITING
        else:
            sequence.places, sequence.state = places, State.SWAPPED
            self._swapped += 1
            self.counters.swaps += 1
        sequence.blocks = []
        self._enqueue(sequence)

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.alive:
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
        self._pending_prompt_tokens -= sequence.pending_prompt
        if sequence.state is State.RUNNING:
            self._leave(sequence)
            self._pool.release(sequence.blocks)
            sequence.blocks = []
        elif sequence.state is State.SWAPPED:
            self._pool.drop(sequence.places)
            sequence.places = []
            self._swapped -= 1
        sequence.state = State.ENDED
        self._promote(sequence)

    def _leave(self, sequence: LiveSequence) -> None:
        """Give up the row; a tenant's parked sequences may now have room."""
        del self._running[sequence.request.handle]
        self._free_rows.append(sequence.row)
        sequence.row = -1
        if self._parked:
            self._unpark(sequence.request.cache_salt)

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

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._size)


def _urgency(sequence: LiveSequence) -> tuple[int, int]:
    return sequence.urgency


def _same_prompt(one: LiveSequence, other: LiveSequence) -> bool:
    ours, theirs = one.request, other.request
    return (
        ours.model == theirs.model and ours.cache_salt == theirs.cache_salt and list(ours.prompt) == list(theirs.prompt)
    )


def _without_dead(heap: list[_Entry], alive: int) -> list[_Entry]:
    """The heap itself, or one without its dead entries once they outnumber the live ones by far."""
    if len(heap) < 2 * alive + 64:
        return heap
    kept = [entry for entry in heap if entry[2].alive]
    heapq.heapify(kept)
    return kept
