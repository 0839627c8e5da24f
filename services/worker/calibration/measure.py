"""Runs a workload on an engine core and notes, step by step, what was computed and how long it took.

Time is the sum of the steps' own durations: requests arrive and tokens come on that clock, so the same loop measures a
real engine and a simulated one, and what happens between steps counts for neither.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.worker.calibration.workloads import Asked
from services.worker.engines.port import Capacity, FinishReason, SamplingParams, SequenceRequest, StepOutput
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.step_costs import StepWork, attended_tokens


class MeasurementError(Exception):
    """The engine did not do what the workload asked of it."""


class Stepper(Protocol):
    """An engine core, driven by hand. A real one is a `SyncEngine` whose steps carry their durations."""

    def add(self, requests: Sequence[SequenceRequest]) -> None:
        """Queue sequences."""

    def step(self) -> StepOutput:
        """Run one step; `step_seconds` says how long it took."""

    def capacity(self) -> Capacity:
        """The load; `queued_prefill_tokens` counts the prompt tokens not yet computed."""


class SimulatedStepper:
    """A `SimulatedCore` whose steps take no real time."""

    def __init__(self, core: SimulatedCore) -> None:
        self._core = core
        self._now = 0.0

    def add(self, requests: Iterable[SequenceRequest]) -> None:
        """See `Stepper`."""
        self._core.add(requests)

    def step(self) -> StepOutput:
        """See `Stepper`."""
        seconds = self._core.last_step_seconds = self._core.plan()
        self._now += seconds
        output = self._core.apply(self._now)
        output.step_seconds = seconds
        return output

    def capacity(self) -> Capacity:
        """See `Stepper`."""
        return self._core.capacity()


class Step(NamedTuple):
    """One measured step."""

    work: StepWork
    seconds: float


@dataclass(slots=True)
class Run:
    """A workload, run. `first` has the seconds from arrival to first token, in the order of the workload."""

    steps: list[Step] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    seconds: float = 0.0


class _Live:
    __slots__ = ("arrived", "index", "left", "produced", "prompt")

    def __init__(self, index: int, prompt: int, arrived: float) -> None:
        self.index = index
        self.prompt = prompt
        self.arrived = arrived
        self.left = prompt  # prompt tokens not yet computed
        self.produced = 0


class Measurement:
    """Runs workloads on one engine. Every prompt is new, so that nothing comes out of a prefix cache."""

    def __init__(self, stepper: Stepper, *, model: str, vocabulary: int, rng: random.Random) -> None:
        """`model` is the version that the engine serves, `vocabulary` the bound of its token ids."""
        self._stepper = stepper
        self._model = model
        self._vocabulary = vocabulary
        self._rng = rng
        self._handle = 0

    def run(self, workload: Sequence[Asked], *, by_steps: bool) -> Run:
        """Run a workload to its end. `by_steps`: it arrives by the number of steps done, not by time.

        :raises MeasurementError: the engine refused a sequence, interrupted one, or computed what nobody asked for.
        """
        order = sorted(range(len(workload)), key=lambda index: workload[index].at)
        pending = deque((index, workload[index]) for index in order)
        live: dict[int, _Live] = {}
        done = Run(first=[0.0] * len(workload))
        before = self._stepper.capacity().preemptions_total
        moment = 0.0  # steps or seconds
        while pending or live:
            if not live:
                moment = max(moment, pending[0][1].at)
                done.seconds = done.seconds if by_steps else moment
            while pending and pending[0][1].at <= moment:
                index, asked = pending.popleft()
                live[self._submit(asked)] = _Live(index, asked.prompt, done.seconds)
            queued = self._stepper.capacity().queued_prefill_tokens
            output = self._stepper.step()
            prefilled = queued - self._stepper.capacity().queued_prefill_tokens
            done.seconds += output.step_seconds
            moment = moment + 1 if by_steps else done.seconds
            work = _account(live, output, prefilled, done)
            if any(work):
                done.steps.append(Step(work, output.step_seconds))
        if self._stepper.capacity().preemptions_total != before:
            raise MeasurementError("the engine ran out of memory and preempted a sequence; give it more blocks")
        return done

    def _submit(self, asked: Asked) -> int:
        self._handle += 1
        prompt = [self._rng.randrange(self._vocabulary) for _ in range(asked.prompt)]
        params = SamplingParams(max_tokens=asked.output, temperature=0.0, ignore_eos=True)
        salt = self._handle.to_bytes(8, "big")
        request = SequenceRequest(handle=self._handle, model=self._model, prompt=prompt, params=params, cache_salt=salt)
        self._stepper.add([request])
        return self._handle


def _account(live: dict[int, _Live], output: StepOutput, prefilled: int, run: Run) -> StepWork:
    """What a step computed, from outside: who got a token, and by how much the queue of prompt tokens shrank."""
    decoding = context = longest = 0
    firsts: list[_Live] = []
    for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
        sequence = live.get(handle)
        if sequence is None or finish not in (0, FinishReason.LENGTH) or not tokens:
            reason = output.errors.get(handle) or f"sequence {handle} ended with {FinishReason(finish).name}"
            raise MeasurementError(f"the engine does not run the workload: {reason}")
        if sequence.produced:
            decoding += 1
            context += sequence.prompt + sequence.produced
            longest = max(longest, sequence.prompt + sequence.produced)
        else:
            firsts.append(sequence)
            run.first[sequence.index] = run.seconds - sequence.arrived
        sequence.produced += len(tokens)
        if finish:
            del live[handle]
    return StepWork(decoding, context, decoding * longest, *_chunks(firsts, live, prefilled))


def _chunks(completed: Sequence[_Live], live: dict[int, _Live], prefilled: int) -> tuple[int, int, int]:
    """Prompts, their tokens computed and what these attended to. Prompts that got their first token were completed;
    the rest went to the others in order of arrival."""
    prompts = attended = 0
    left = prefilled
    others = [each for each in live.values() if not each.produced]
    for sequence in [*completed, *others]:
        count = min(sequence.left, left)
        if count > 0:
            prompts += 1
            attended += attended_tokens(sequence.prompt - sequence.left, count)
            sequence.left -= count
            left -= count
    if left or any(sequence.left for sequence in completed):
        raise MeasurementError("the engine computed other prompt tokens than it was given")
    return prompts, prefilled, attended
