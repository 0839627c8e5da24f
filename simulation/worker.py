"""A worker as counts: the simulated engine's rules and costs (services/worker/engines), without tokens or a clock.

The simulated engine visits every sequence in every step. Here successive steps between which nothing changes (nobody
joins, prefills, ends or is cancelled) are one *run*, whose length in seconds is a sum in closed form; a sequence ends
when the worker's count of decode steps reaches a number that was known when it began. tests/unit/simulation holds this
to `SimulatedCore`, step by step.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from services.worker.engines.step_costs import StepCosts, StepWork, attended_tokens
from services.worker.engines.step_rates import StepRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a worker holds; names as in the calibration files and the worker's settings."""

    block_size: int = 16
    total_blocks: int = 1024
    max_running: int = 32
    max_step_tokens: int = 256
    max_context: int = 1024


WAITING, PREFILLING, DECODING = range(3)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on a worker."""

    handle: object
    """The submitter's."""
    prompt: int
    output: int  # tokens that it will come to
    blocks: int
    order: tuple[int, int]  # priority, then arrival
    tenant: str = ""
    share: float = 0.0  # of the memory; 0: all
    left: int = 0  # tokens not yet prefilled
    live: bool = True
    state: int = WAITING
    had: int = 0  # tokens that it had when it was preempted, which are computed anew with the prompt
    produced_from: int = 0  # the worker's decode step before its first token (since it was preempted)
    ends: int = 0  # the decode step of its last token

    def produced(self, steps: int) -> int:
        """Tokens it has after so many decode steps of its worker."""
        return self.had + (max(0, min(steps, self.ends) - self.produced_from) if self.state == DECODING else 0)


def decodes(sequence: Sequence, ends: int) -> bool:
    """Whether it still is to end with this decode step: it lives, and was not preempted since."""
    return sequence.live and sequence.state == DECODING and sequence.ends == ends


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


@dataclass(slots=True)
class Load:
    """What a worker reports."""

    free_blocks: int
    running: int
    waiting: int
    queued_prefill_tokens: int
    decode_step: float
    prefill_tokens_per_second: float


@dataclass(slots=True)
class Output:
    """What a run has brought, all at its end."""

    first: list[Sequence]
    """They have their first token."""
    finished: list[Sequence]
    """They have their last, which may be the first."""
    ended: list[Sequence]
    """They were cancelled or interrupted; `produced` counts."""
    steps: int
    seconds: float
    decoding: int
    """Sequences that each got a token in each of the steps, first tokens not among them."""


class Worker:
    """One engine. Times are absolute seconds; `wake` is when to call `advance`, infinity while idle."""

    def __init__(self, name: str, costs: StepCosts, sizes: Sizes, *, zone: str = "") -> None:
        self.name = name
        self.zone = zone
        self.costs = costs
        self.sizes = sizes
        self.wake = math.inf
        self.tokens = 0
        """Tokens generated so far."""
        self.prefilled = 0
        """Prompt tokens computed so far."""
        self.busy_seconds = 0.0
        """Time spent in steps."""
        self.steps = 0
        """Engine steps so far."""
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []  # a heap
        self._n_waiting = 0  # live ones of them
        self._prefilling: list[Sequence] = []
        self._ending: list[tuple[int, int, Sequence]] = []  # by the decode step of their last token
        self._order = 0
        self._decoding = 0
        self._context = 0  # positions of the decoding sequences, summed
        self._decode_steps = 0
        self._free_blocks = sizes.total_blocks
        self._queued_prefill = 0
        self._early: list[Sequence] = []  # to be ended at the next boundary
        self._started = 0.0
        self._run = 0  # steps in the present run; 0: none
        self._planned: list[Sequence] = []
        self._planned_prefill = 0
        self._first_seconds = 0.0  # of the present run: its first step
        self._growth = 0.0  # and what each step takes longer than the one before
        self._rates = StepRates()
        self._per_context = costs.step_per_context_token
        self._per_padded = costs.step_per_padded_token

    # ---- from outside --------------------------------------------------------------------------------------------

    def submit(
        self,
        handle: object,
        prompt: int,
        output: int,
        longest: int,
        now: float,
        *,
        priority: int = 0,
        tenant: str = "",
        share: float = 0.0,
        cached: int = 0,
    ) -> Sequence:
        """Takes a request that will come to `output` tokens and for which blocks of `longest` are kept. A lower
        `priority` runs first; `share` is its tenant's of the memory (0: all), where that is held. `cached`
        tokens of the prompt need not be computed, but the last one is.

        :raises ValueError: it fits not even an empty worker; admission must not have granted it.
        """
        sizes = self.sizes
        longest = min(longest, sizes.max_context - prompt)
        blocks = -(-(prompt + longest) // sizes.block_size)
        if longest < 1 or blocks > sizes.total_blocks:
            raise ValueError(f"{prompt} + {longest} tokens fit no worker of {sizes}")
        self._order += 1
        order = priority, self._order
        sequence = Sequence(handle, prompt, min(output, longest), blocks, order, tenant, share)
        sequence.left = prompt - min(cached, prompt - 1)
        heapq.heappush(self._waiting, (sequence.order, sequence))
        self._n_waiting += 1
        self._queued_prefill += sequence.left
        if not self._run:
            self._plan(now)
        elif self._may_join():
            self._shorten(now)
        return sequence

    def end_early(self, sequences: Iterable[Sequence], now: float) -> None:
        """Cancels or interrupts: they end with the step under way."""
        before = len(self._early)
        self._early += [sequence for sequence in sequences if sequence.live]
        if len(self._early) > before and self._run:
            self._shorten(now)

    def kill(self) -> list[Sequence]:
        """All is lost, at once: the sequences that were alive. The worker is as new. Ask for `produced` before."""
        alive = [
            each
            for each in dict.fromkeys(
                (*(w[1] for w in self._waiting), *self._prefilling, *(e[2] for e in self._ending))
            )
            if each.live
        ]
        for sequence in alive:
            sequence.live = False
        self._waiting.clear()
        self._prefilling, self._ending, self._planned, self._early = [], [], [], []
        self._n_waiting = self._decoding = self._context = self._queued_prefill = self._run = 0
        self._free_blocks = self.sizes.total_blocks
        self.wake = math.inf
        return alive

    def load(self) -> Load:
        """The present load, between steps or within one."""
        return Load(
            self._free_blocks,
            self._decoding + len(self._prefilling),
            self._n_waiting,
            self._queued_prefill,
            self._rates.decode_seconds,
            self._rates.prompt_tokens_per_second,
        )

    def produced(self, sequence: Sequence, now: float = -math.inf) -> int:
        """Tokens that the sequence has by `now`, within the present run too; else as of the last `advance`."""
        done = 0
        if self._run and sequence.live and now > self._started:
            done = self._steps_by(now - self._started)
            done -= done > 0 and self._seconds(done) > now - self._started
        return sequence.produced(self._decode_steps + done)

    # ---- time ----------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> Output:
        """Ends the run whose time is over (`now` is `wake`) and begins the next."""
        steps, seconds, decoding = self._run, now - self._started, self._decoding
        self._run = 0
        self.steps += steps
        self.busy_seconds += seconds
        self._observe(steps, seconds)
        # What is ended early gets no token of the run's last step.
        self._decode_steps += steps - 1
        self._context += decoding * (steps - 1)
        ended = self._end_early()
        self._decode_steps += 1
        self._context += self._decoding
        self.tokens += decoding * (steps - 1) + self._decoding
        first = self._first_tokens()
        finished = self._finished()
        self._plan(now)
        return Output(first, finished, ended, steps, seconds, decoding)

    def _end_early(self) -> list[Sequence]:
        if not self._early:
            return []
        ended = [sequence for sequence in dict.fromkeys(self._early) if sequence.live]
        self._early = []
        for sequence in ended:
            sequence.live = False
            if sequence.state == WAITING:
                self._n_waiting -= 1
                self._queued_prefill -= sequence.left
                continue
            self._free_blocks += self._held(sequence, 1)
            if sequence.state == DECODING:
                sequence.ends = self._decode_steps
                self._decoding -= 1
                self._context -= sequence.prompt + sequence.produced(self._decode_steps)
            else:
                self._queued_prefill -= sequence.left
        if ended:
            self._prefilling = [sequence for sequence in self._prefilling if sequence.live]
        return ended

    def _first_tokens(self) -> list[Sequence]:
        first = [sequence for sequence in self._planned if sequence.live]
        if self._planned:
            self._planned = []
            self._prefilling = [sequence for sequence in self._prefilling if sequence.left]
        for sequence in first:
            sequence.state = DECODING
            sequence.produced_from = self._decode_steps - 1
            sequence.ends = sequence.produced_from + sequence.output - sequence.had
            self._order += 1
            heapq.heappush(self._ending, (sequence.ends, self._order, sequence))
            self._decoding += 1
            self._context += sequence.prompt + sequence.had + 1
        self.tokens += len(first)
        return [sequence for sequence in first if not sequence.had]

    def _finished(self) -> list[Sequence]:
        finished: list[Sequence] = []
        ending = self._ending
        while ending and ending[0][0] <= self._decode_steps:
            ends, _, sequence = heapq.heappop(ending)
            if decodes(sequence, ends):
                sequence.live = False
                self._decoding -= 1
                self._context -= sequence.prompt + sequence.output
                self._free_blocks += self._held(sequence, 0)
                finished.append(sequence)
        return finished

    def _first_waiting(self) -> Sequence | None:
        waiting = self._waiting
        while waiting and not waiting[0][1].live:
            heapq.heappop(waiting)
        return waiting[0][1] if waiting else None

    def _may_join(self) -> bool:
        """Would the first that waits run in the next step?"""
        first = self._first_waiting()
        return (
            first is not None
            and self._decoding + len(self._prefilling) < self.sizes.max_running
            and first.blocks <= self._free_blocks
        )

    def _held(self, sequence: Sequence, coming: int) -> int:
        """Blocks that a running sequence holds; `coming` tokens of the step that it was in did not come."""
        return sequence.blocks

    def _take_in(self) -> None:
        """Lets those that wait run, in order, while they fit."""
        while self._may_join():
            sequence = heapq.heappop(self._waiting)[1]
            self._free_blocks -= sequence.blocks
            self._join(sequence)

    def _join(self, sequence: Sequence) -> None:
        self._n_waiting -= 1
        sequence.state = PREFILLING
        insort(self._prefilling, sequence, key=_order)

    def _plan(self, now: float) -> None:
        """Begins a run: one step while prompts are computed, else as many as nothing changes in."""
        self._take_in()
        decoding = self._decoding
        if not decoding and not self._prefilling:
            self.wake = math.inf
            return
        prompts = prefilled = attended = 0
        if self._prefilling:
            budget = max(1, self.sizes.max_step_tokens - decoding)
            for sequence in self._prefilling:
                chunk = min(sequence.left, budget - prefilled)
                if chunk <= 0:
                    break
                prompts += 1
                attended += attended_tokens(sequence.prompt + sequence.had - sequence.left, chunk)
                sequence.left -= chunk
                prefilled += chunk
                if not sequence.left:
                    self._planned.append(sequence)
            self._queued_prefill -= prefilled
            self.prefilled += prefilled
        self._planned_prefill = prefilled
        padded = decoding * self._longest() if decoding and self._per_padded else 0
        work = StepWork(decoding, self._context, padded, prompts, prefilled, attended)
        self._first_seconds = self.costs.seconds(work)
        # Every step lets each of the sequences attend to one token more.
        self._growth = decoding * (self._per_context + self._per_padded)
        self._started = now
        self._run = 1 if self._prefilling else self._steps_ahead()
        if self._early:
            self._run = 1
        self.wake = now + self._seconds(self._run)

    def _steps_ahead(self) -> int:
        """How many steps nothing changes in: until the next one ends."""
        ending = self._ending
        while not decodes(ending[0][2], ending[0][0]):
            heapq.heappop(ending)
        return ending[0][0] - self._decode_steps

    def _longest(self) -> int:
        """The most tokens that any decoding sequence attends to."""
        steps = self._decode_steps
        return max(s.prompt + s.had + steps - s.produced_from for ends, _, s in self._ending if decodes(s, ends))

    def _seconds(self, steps: int) -> float:
        return steps * self._first_seconds + self._growth * (steps * (steps - 1) // 2)

    def _shorten(self, now: float) -> None:
        """Lets the present run end with the step that is under way at `now`."""
        if self._run == 1:
            return
        self._run = self._steps_by(now - self._started)
        self.wake = self._started + self._seconds(self._run)

    def _steps_by(self, past: float) -> int:
        """The step, counted from 1, that is under way so many seconds after the run's start."""
        if self._growth:
            # The positive root of growth/2·k² + (first - growth/2)·k = past, from which rounding may stray by one.
            half = self._first_seconds - self._growth / 2
            root = (math.sqrt(half * half + 2 * self._growth * past) - half) / self._growth
        else:
            root = past / self._first_seconds if self._first_seconds else 0.0
        steps = max(1, min(self._run, math.ceil(root)))
        while steps > 1 and self._seconds(steps - 1) >= past:
            steps -= 1
        while steps < self._run and self._seconds(steps) < past:
            steps += 1
        return steps

    def _observe(self, steps: int, seconds: float) -> None:
        if not seconds:
            return
        self._rates.observe(decodes=self._decoding, prompt_tokens=self._planned_prefill, seconds=seconds, steps=steps)
