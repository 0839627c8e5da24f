"""The worker made of counts does what the simulated engine does, step by step."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engines.port import FinishReason, SamplingParams, SequenceRequest
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.step_costs import StepCosts
from simulation.memory import PreemptiveWorker
from simulation.worker import Sequence, Sizes, Worker

SIZES = Sizes(block_size=16, total_blocks=48, max_running=5, max_step_tokens=40, max_context=256)
COSTS = StepCosts(
    step_base=0.002,
    step_per_sequence=0.0003,
    step_per_context_token=0.00001,
    step_per_padded_token=0.000004,
    step_per_prompt=0.0005,
    prefill_tokens_per_second=9000.0,
    prefill_per_attended_token=0.0000007,
)


@dataclass
class Told:
    """What became of the requests: when, and with how many tokens."""

    first: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    at: float
    prompt: int
    output: int
    cancel_after: float | None
    priority: int = 0


def by_engine(asked: list[Asked], sizes_: Sizes = SIZES, *, preemptive: bool = False) -> tuple[Told, int]:
    """The simulated engine's core under virtual time, as services/worker/engines/simulated.py drives it."""
    fields = {name: getattr(COSTS, name) for name in StepCosts.__dataclass_fields__}
    sizes = {name: getattr(sizes_, name) for name in Sizes.__dataclass_fields__}
    core = SimulatedCore(SimulatedModel(models=("m",), preemptive=preemptive, **fields, **sizes))
    told, events = Told(), inputs(asked)
    step_ends = math.inf
    now = 0.0
    while events or core.has_work():
        if step_ends == math.inf and core.has_work():
            core.last_step_seconds = core.plan()
            step_ends = now + core.last_step_seconds
        if events and events[0][0] <= step_ends:
            now, number, what = heapq.heappop(events)
            if what == "submit":
                each = asked[number]
                params = SamplingParams(max_tokens=each.output, ignore_eos=True)
                core.add(
                    [
                        SequenceRequest(
                            handle=number, model="m", prompt=[1] * each.prompt, params=params, priority=each.priority
                        )
                    ]
                )
            else:
                core.cancel([number])
            continue
        now = step_ends
        step_ends = math.inf
        output = core.apply(now)
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            if tokens:
                told.first.setdefault(handle, now)
                told.tokens[handle] = told.tokens.get(handle, 0) + len(tokens)
            if finish:
                assert finish in (FinishReason.LENGTH, FinishReason.CANCELLED), output.errors
                told.end[handle] = now
    return told, core.capacity().preemptions_total


def by_counts(asked: list[Asked], worker: Worker) -> Told:
    told, events = Told(), inputs(asked)
    held: dict[int, Sequence] = {}
    while events or worker.wake < math.inf:
        if events and events[0][0] <= worker.wake:
            now, number, what = heapq.heappop(events)
            each = asked[number]
            if what == "submit":
                held[number] = worker.submit(number, each.prompt, each.output, each.output, now, priority=each.priority)
            else:
                worker.end_early([held[number]], now)
            continue
        now = worker.wake
        output = worker.advance(now)
        for sequence in output.first:
            told.first[sequence.handle] = now  # type: ignore[index]
        for sequence in (*output.finished, *output.ended):
            told.end[sequence.handle] = now  # type: ignore[index]
            if count := worker.produced(sequence):
                told.tokens[sequence.handle] = count  # type: ignore[index]
    load = worker.load()
    assert (load.free_blocks, load.running, load.waiting, load.queued_prefill_tokens) == (
        worker.sizes.total_blocks, 0, 0, 0,
    )  # fmt: skip
    assert worker.tokens == sum(told.tokens.values())
    return told


def inputs(asked: list[Asked]) -> list[tuple[float, int, str]]:
    events = [(each.at, number, "submit") for number, each in enumerate(asked)]
    events += [
        (each.at + each.cancel_after, number, "zancel")
        for number, each in enumerate(asked)
        if each.cancel_after is not None
    ]
    heapq.heapify(events)
    return events


requests = st.builds(
    Asked,
    at=st.floats(0.0, 0.5),
    prompt=st.integers(1, 120),
    output=st.integers(1, 100),
    cancel_after=st.none() | st.none() | st.floats(0.0, 0.4),
    priority=st.sampled_from((0, 0, 1)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(requests, min_size=1, max_size=24))
def test_counts_do_as_the_simulated_engine_does(asked: list[Asked]) -> None:
    same(by_engine(asked)[0], by_counts(asked, Worker("w", COSTS, SIZES)))


@settings(max_examples=150, deadline=None)
@given(st.lists(requests, min_size=1, max_size=24), st.integers(14, 30))
def test_a_worker_that_preempts_for_memory_does_too(asked: list[Asked], blocks: int) -> None:
    sizes = replace(SIZES, total_blocks=blocks)
    worker = PreemptiveWorker("w", COSTS, sizes, holds_shares=False)
    expected, preemptions = by_engine(asked, sizes, preemptive=True)
    same(expected, by_counts(asked, worker))
    assert worker.preemptions == preemptions


def test_sequences_that_outgrow_the_memory_are_preempted_and_go_on() -> None:
    asked = [Asked(0.01 * number, 20, 100, None) for number in range(5)]
    sizes = replace(SIZES, total_blocks=20)
    worker = PreemptiveWorker("w", COSTS, sizes, holds_shares=False)
    told = by_counts(asked, worker)
    assert told.tokens == dict.fromkeys(range(5), 100)
    assert worker.preemptions > 2


@pytest.mark.parametrize("holds_shares", [False, True])
def test_a_tenant_beyond_its_share_gives_way_where_that_is_held(holds_shares: bool) -> None:
    worker = PreemptiveWorker("w", COSTS, replace(SIZES, total_blocks=40, max_running=8), holds_shares=holds_shares)
    for number in range(6):
        worker.submit(f"greedy{number}", 16, 200, 200, 0.0, tenant="greedy", share=0.25)
    while worker.load().free_blocks > 3:
        worker.advance(worker.wake)
    came = worker.wake
    modest = worker.submit("modest", 100, 20, 20, came, tenant="modest", share=0.25)
    first = 0.0
    while modest.live:
        now = worker.wake
        if modest in worker.advance(now).first:
            first = now
    assert (first - came < 0.1) is holds_shares
    finished = sum(len(worker.advance(worker.wake).finished) for _ in iter(lambda: worker.wake < math.inf, False))
    assert 0 < finished <= 6
    assert (worker.load().free_blocks, worker.load().waiting) == (40, 0)  # whoever gave way came to its end


def same(expected: Told, told: Told) -> None:
    assert told.first == pytest.approx(expected.first, abs=1e-9)
    assert told.end == pytest.approx(expected.end, abs=1e-9)
    assert told.tokens == expected.tokens


def test_a_run_of_many_steps_is_one_event() -> None:
    worker = Worker("w", COSTS, SIZES)
    worker.submit("a", 16, 100, 100, 0.0)
    worker.advance(worker.wake)
    output = worker.advance(worker.wake)
    assert output.steps == 99
    assert [each.handle for each in output.finished] == ["a"]
    assert worker.wake == math.inf
    # Steps of one sequence with 17, 18, … 115 tokens, after one of a prompt of 16.
    steps = 99 * (COSTS.step_base + COSTS.step_per_sequence) + 1.4e-5 * sum(range(17, 116))
    prefill = 0.002 + 0.0005 + 16 / 9000 + 0.0000007 * 136
    assert worker.busy_seconds == pytest.approx(prefill + steps)


def test_what_comes_meanwhile_joins_after_the_step_under_way() -> None:
    worker = Worker("w", COSTS, SIZES)
    worker.submit("a", 16, 100, 100, 0.0)
    worker.advance(worker.wake)
    began = worker.wake
    assert began > 0.05
    worker.submit("b", 16, 10, 10, 0.05)
    assert 0.05 <= worker.wake <= 0.05 + 0.004
    output = worker.advance(worker.wake)
    assert output.finished == []
    assert worker.load().running == 2


def test_a_killed_worker_loses_all_and_begins_anew() -> None:
    worker = Worker("w", COSTS, SIZES)
    for name in "abcdefg":
        worker.submit(name, 40, 20, 20, 0.0)
    worker.advance(worker.wake)
    worker.advance(worker.wake)
    assert sorted(str(each.handle) for each in worker.kill()) == list("abcdefg")
    assert worker.wake == math.inf
    assert worker.load().free_blocks == SIZES.total_blocks
    worker.submit("h", 10, 1, 1, 1.0)
    assert [each.handle for each in worker.advance(worker.wake).finished] == ["h"]


def test_what_can_never_fit_is_an_error_of_the_caller() -> None:
    worker = Worker("w", COSTS, SIZES)
    with pytest.raises(ValueError, match="fit no worker"):
        worker.submit("a", 256, 1, 1, 0.0)
