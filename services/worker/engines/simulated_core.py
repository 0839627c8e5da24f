"""What the simulated engine decides, without a clock or a loop: who runs, what a step costs, which tokens come out.

A step costs what `StepCosts` says of its work. That stands in for an accelerator in load and failure studies; the
costs are measured on a real engine by `weir calibrate`, or made up.
Tokens are drawn uniformly from the vocabulary, reproducibly: a seeded sequence is a function of its seed and the
position, a greedy one of its last token and the position, so that a sequence continued elsewhere (prompt + emitted
tokens) goes on as if it had not moved. Penalties, logit bias and filters (top-p …) do not change the draw; before
`min_tokens` another token stands for one that ends the output. Versions come and go (simulated_versions.py); those of
one vocabulary give the same tokens unless a fault says otherwise.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import insort
from collections.abc import Iterable, Sequence

from services.worker.engines.port import Capacity, FinishReason, SequenceRequest, StepOutput
from services.worker.engines.simulated_model import SimulatedModel, fault_of
from services.worker.engines.simulated_sequences import SimulatedSequence, deadline, logprobs_of, urgency
from services.worker.engines.simulated_versions import DRAWS, SOUND, Faults, SimulatedVersion
from services.worker.engines.step_costs import StepWork, attended_tokens
from services.worker.engines.step_rates import StepRates

_MASK = DRAWS - 1
_ROUNDING = 1e-9  # seconds
_SPREAD = 2_654_435_761  # Knuth's multiplicative hash: neighbouring token ids land far apart


class SimulatedCore:
    """Continuous batching over the cost model. One turn is `plan` → (time passes) → `apply`."""

    def __init__(self, model: SimulatedModel) -> None:
        """:raises ValueError: the vocabulary leaves nothing to draw, or a size is not positive."""
        if min(model.block_size, model.total_blocks, model.max_running) < 1:
            raise ValueError("block_size, total_blocks and max_running must be positive")
        self._model = model
        self._costed = not model.free
        self._rng = random.Random(f"unseeded {model.seed}")
        self._versions: dict[str, SimulatedVersion] = {}
        self._any_slow = False  # of these, since the start
        for name in model.models:
            self.add_version(name, faults=model.faults.get(name, SOUND))
        self._waiting: list[tuple[tuple[int, int], SimulatedSequence]] = []  # a heap by urgency
        self._prefilling: list[SimulatedSequence] = []  # by urgency
        self._decoding: list[SimulatedSequence] = []
        self._planned: list[SimulatedSequence] = []  # prefilled in this step: their first token comes with it
        self._live: dict[int, SimulatedSequence] = {}
        self._cancelled: set[int] = set()
        self._ended: list[tuple[int, FinishReason, str]] = []
        self._arrivals = 0
        self._free_blocks = model.total_blocks
        self._queued_prefill = 0
        self._context = 0  # tokens of the decoding sequences
        self._partial = 0  # tokens computed of the prefilling ones
        self._next_deadline = math.inf
        self._steps = 0
        self._prefilled = 0  # in this step
        self._preemptions = 0
        self._rates = StepRates()
        self.last_step_seconds = 0.0
        """What the present step takes; whoever drives the core sets it between `plan` and `apply`."""

    @property
    def models(self) -> tuple[str, ...]:
        """What is served."""
        return tuple(self._versions)

    @property
    def max_context(self) -> int:
        """The largest of any version's; what the model says when there is none."""
        return max((version.max_context for version in self._versions.values()), default=self._model.max_context)

    def add_version(
        self,
        name: str,
        *,
        vocabulary: int = 0,
        max_context: int = 0,
        eos: frozenset[int] | None = None,
        faults: Faults = SOUND,
    ) -> None:
        """Serve one more version; 0 and None take the model's value.

        :raises ValueError: the vocabulary leaves nothing to draw, or a size is not positive.
        """
        model = self._model
        self._versions[name] = SimulatedVersion(
            name,
            vocabulary=vocabulary or model.vocabulary,
            first_token=model.first_token,
            eos=model.eos_token_ids if eos is None else eos,
            max_context=max_context or model.max_context,
            seed=model.seed,
            faults=faults,
        )
        self._any_slow |= faults.slow

    def drop_version(self, name: str) -> None:
        """Serve it no more; its sequences run to their end."""
        self._versions.pop(name, None)

    def runs(self, name: str) -> bool:
        """Whether any sequence of a version is alive."""
        return any(sequence.request.model == name for sequence in self._live.values())

    def add(self, requests: Iterable[SequenceRequest]) -> None:
        """Queue sequences; an impossible one is answered ERROR by the next step."""
        for request in requests:
            version = self._versions.get(request.model)
            fault = fault_of(request, version, self._model)
            if version is None or fault:
                self._ended.append((request.handle, FinishReason.ERROR, fault))
                continue
            params, prompt = request.params, request.prompt
            limit = min(params.max_tokens, version.max_context - len(prompt))
            stop = frozenset(params.stop_token_ids)
            if not params.ignore_eos:
                stop |= version.eos
            self._arrivals += 1
            order = request.priority, self._arrivals
            blocks = self._model.blocks_for(len(prompt) + limit)
            sequence = SimulatedSequence(request, self._cursor(request), limit, stop, blocks, order, version)
            heapq.heappush(self._waiting, (order, sequence))
            self._live[request.handle] = sequence
            self._queued_prefill += len(prompt)
            if request.deadline is not None and request.deadline < self._next_deadline:
                self._next_deadline = request.deadline

    def cancel(self, handles: Iterable[int]) -> None:
        """Mark live sequences; the next step ends them."""
        self._cancelled.update(handle for handle in handles if handle in self._live)

    def has_work(self) -> bool:
        """Whether a step would do or report anything."""
        return bool(self._live or self._ended)

    def capacity(self) -> Capacity:
        """The present load."""
        return Capacity(
            free_blocks=self._free_blocks,
            running=len(self._decoding) + len(self._prefilling),
            waiting=len(self._live) - len(self._decoding) - len(self._prefilling),
            queued_prefill_tokens=self._queued_prefill,
            last_step_seconds=self.last_step_seconds,
            decode_step_seconds=self._rates.decode_seconds,
            prefill_tokens_per_second=self._rates.prompt_tokens_per_second,
            fragmentation=self._fragmentation(),
            preemptions_total=self._preemptions,
        )

    def plan(self) -> float:
        """Take waiting sequences in, choose what this step computes; returns what it costs, in seconds."""
        model = self._model
        if model.preemptive:
            self._grow()
        self._take_in()
        budget = max(1, model.max_step_tokens - len(self._decoding))
        self._planned = []
        prefilled = prompts = attended = 0
        for sequence in self._prefilling:
            chunk = min(sequence.left, budget - prefilled)
            if chunk <= 0:
                break
            prompts += 1
            attended += attended_tokens(sequence.position - sequence.left, chunk)
            sequence.left -= chunk
            prefilled += chunk
            if not sequence.left:
                self._planned.append(sequence)
        self._queued_prefill -= prefilled
        self._partial += prefilled
        self._prefilled = prefilled
        if not self._costed:
            return 0.0
        # In its step a decoding sequence computes the token that came last and attends to all of them.
        decoding = len(self._decoding)
        longest = 0
        if decoding and model.step_per_padded_token:
            longest = max(sequence.position for sequence in self._decoding)
        return model.seconds(StepWork(decoding, self._context, decoding * longest, prompts, prefilled, attended))

    def apply(self, now: float) -> StepOutput:
        """End what was cancelled or is late, advance the rest by one token each."""
        if self.last_step_seconds:
            self._rates.observe(
                decodes=len(self._decoding), prompt_tokens=self._prefilled, seconds=self.last_step_seconds
            )
        output = self._end_early(now)
        first = [sequence for sequence in self._planned if sequence.request.handle in self._live]
        self._planned = []
        if self._any_slow:
            self._owe_for_prompts()
        if first:
            self._prefilling = [sequence for sequence in self._prefilling if sequence.left]
            self._decoding += first
            for sequence in first:
                self._partial -= sequence.position
                self._context += sequence.position
                sequence.decoding = True
                if not sequence.produced:
                    output.prompt_tokens_cached[sequence.request.handle] = 0
        if self._advance(output):
            self._decoding = [sequence for sequence in self._decoding if sequence.request.handle in self._live]
        self._steps += 1
        return output

    def end_all(self, reason: FinishReason, message: str = "") -> StepOutput:
        """End every sequence at once, with `reason`."""
        output = self._end_early(-math.inf)
        for handle in list(self._live):
            self._release(handle)
            _append(output, handle, [], reason)
            if reason is FinishReason.ERROR:
                output.errors[handle] = message
        self._waiting, self._prefilling, self._decoding, self._planned = [], [], [], []
        return output

    def _fragmentation(self) -> float:
        places = (self._model.total_blocks - self._free_blocks) * self._model.block_size
        return 1.0 - (self._context + self._partial) / places if places else 0.0

    def _cursor(self, request: SequenceRequest) -> int:
        if request.params.temperature == 0:
            return -1 - request.prompt[-1]
        seed = self._rng.getrandbits(32) if request.params.seed is None else request.params.seed
        return (seed * _SPREAD >> 7) & _MASK

    def _end_early(self, now: float) -> StepOutput:
        output = StepOutput(
            step=self._steps, handles=[], tokens=[], finish=[], logprobs={}, errors={}, prompt_tokens_cached={}
        )
        for handle, reason, message in self._ended:
            _append(output, handle, [], reason)
            output.errors[handle] = message
        self._ended = []
        late: list[int] = []
        if now >= self._next_deadline:
            late = [handle for handle, sequence in self._live.items() if deadline(sequence) <= now]
            self._next_deadline = min(
                (at for sequence in self._live.values() if (at := deadline(sequence)) > now), default=math.inf
            )
        if self._cancelled or late:
            for handle in self._cancelled:
                self._release(handle)
                _append(output, handle, [], FinishReason.CANCELLED)
            for handle in late:
                if handle not in self._cancelled:
                    self._release(handle)
                    _append(output, handle, [], FinishReason.DEADLINE)
            self._cancelled = set()
            live = self._live
            self._prefilling = [sequence for sequence in self._prefilling if sequence.request.handle in live]
            self._decoding = [sequence for sequence in self._decoding if sequence.request.handle in live]
            if len(self._waiting) > 2 * len(live) + 64:  # ended ones otherwise stay until they reach the top
                self._waiting = [entry for entry in self._waiting if entry[1].request.handle in live]
                heapq.heapify(self._waiting)
        return output

    def _advance(self, output: StepOutput) -> bool:
        """One token for every decoding sequence; True when any of them ended. The hot loop of every bench."""
        handles, tokens, finish = output.handles, output.tokens, output.finish
        ended = False
        self._context += len(self._decoding)
        for sequence in self._decoding:
            if sequence.faults is not None and self._disturbed(sequence, sequence.faults, output):
                self._context -= 1
                ended = True
                continue
            cursor = sequence.cursor
            if cursor >= 0:
                token = sequence.draws[(cursor + sequence.position) & _MASK]
            else:
                token = sequence.draws[((-1 - cursor) * _SPREAD + sequence.position) & _MASK]
            if sequence.produced < sequence.least and token in sequence.stop:
                token = sequence.other_than_stop(token)
            if cursor < 0:
                sequence.cursor = -1 - token
            sequence.position += 1
            sequence.produced += 1
            handle = sequence.request.handle
            handles.append(handle)
            if sequence.stop and token in sequence.stop:
                tokens.append([])
                finish.append(FinishReason.STOP)
            else:
                tokens.append([token])
                if sequence.request.params.logprobs is not None:
                    output.logprobs[handle] = [logprobs_of(token, sequence)]
                if sequence.produced < sequence.limit:
                    finish.append(0)
                    continue
                finish.append(FinishReason.LENGTH)
            self._release(handle)
            ended = True
        return ended

    def _owe_for_prompts(self) -> None:
        """Prompts of slow versions that this step has worked on: what they take beyond the step, `_disturbed` takes
        the step itself off that is a prompt's last."""
        for sequence in self._prefilling:
            if sequence.version.faults.slow and sequence.left < sequence.position:
                factor = sequence.version.faults.ttft_factor
                sequence.owed += (factor - 1 if sequence.left else factor) * self.last_step_seconds

    def _disturbed(self, sequence: SimulatedSequence, faults: Faults, output: StepOutput) -> bool:
        """Whether its version's faults keep it from getting its token in this step."""
        handle = sequence.request.handle
        output.prompt_tokens_cached.pop(handle, None)
        if faults.slow:
            sequence.owed -= self.last_step_seconds
            if sequence.owed > _ROUNDING:
                return True
            sequence.owed += faults.itl_factor * self.last_step_seconds
        if sequence.produced + 1 != sequence.fails_at:
            if not sequence.produced:
                output.prompt_tokens_cached[handle] = 0
            return False
        output.errors[handle] = "a fault of this version, simulated on purpose"
        _append(output, handle, [], FinishReason.ERROR)
        self._release(handle)
        return True

    def _release(self, handle: int) -> None:
        sequence = self._live.pop(handle)
        self._queued_prefill -= sequence.left
        self._leave(sequence)

    # ---- who runs ------------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Let waiting sequences run, the most urgent first, while the first of them fits."""
        model = self._model
        while self._waiting:
            sequence = self._waiting[0][1]
            if self._live.get(sequence.request.handle) is not sequence:
                heapq.heappop(self._waiting)
                continue
            need = self._model.blocks_for(sequence.position + 1) if model.preemptive else sequence.blocks
            if not self._fits(need) and not (model.preemptive and self._yield_to(sequence, need)):
                return
            heapq.heappop(self._waiting)
            self._free_blocks -= need
            sequence.held = need
            insort(self._prefilling, sequence, key=urgency)

    def _fits(self, need: int) -> bool:
        running = len(self._decoding) + len(self._prefilling)
        # Beside what the running ones will want soon: a sequence that joins to be preempted at once computes in vain.
        growth = running if self._model.preemptive else 0
        return running < self._model.max_running and need + growth <= self._free_blocks

    def _grow(self) -> None:
        """Give every decoding sequence the block of its next token; preempt while there are too few."""
        size = self._model.block_size
        while True:
            growing = [sequence for sequence in self._decoding if sequence.position >= sequence.held * size]
            if len(growing) <= self._free_blocks:
                break
            self._preempt(max((*self._decoding, *self._prefilling), key=urgency))
        for sequence in growing:
            sequence.held += 1
        self._free_blocks -= len(growing)

    def _yield_to(self, urgent: SimulatedSequence, need: int) -> bool:
        """Preempt sequences of a lower priority, if that makes room for the urgent one."""
        running = (*self._decoding, *self._prefilling)
        lower = [sequence for sequence in running if sequence.request.priority > urgent.request.priority]
        if self._free_blocks + sum(sequence.held for sequence in lower) < need + len(running) - len(lower) or not lower:
            return False
        for sequence in sorted(lower, key=urgency, reverse=True):
            self._preempt(sequence)
            if self._fits(need):
                return True
        return False

    def _preempt(self, sequence: SimulatedSequence) -> None:
        """Take a running sequence's memory; it is computed anew later and goes on as if nothing had happened."""
        self._preemptions += 1
        (self._decoding if sequence.decoding else self._prefilling).remove(sequence)
        self._leave(sequence)
        self._queued_prefill += sequence.position - sequence.left
        sequence.left = sequence.position
        heapq.heappush(self._waiting, (sequence.urgency, sequence))

    def _leave(self, sequence: SimulatedSequence) -> None:
        """A sequence runs no more, if it did."""
        self._free_blocks += sequence.held
        if sequence.decoding:
            self._context -= sequence.position
        elif sequence.held:
            self._partial -= sequence.position - sequence.left
        sequence.held = 0
        sequence.decoding = False


def _append(output: StepOutput, handle: int, tokens: Sequence[int], reason: FinishReason) -> None:
    output.handles.append(handle)
    output.tokens.append(list(tokens))
    output.finish.append(reason)
