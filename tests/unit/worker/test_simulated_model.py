"""The cost model, the batching and the draws of the simulated engine."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from services.worker.engines.port import FinishReason, SamplingParams, SequenceRequest
from services.worker.engines.simulated_model import SimulatedCore, SimulatedModel


def core(**changes: Any) -> SimulatedCore:
    sizes = {"models": ("m@1",), "vocabulary": 500, "max_context": 64, "block_size": 4, "total_blocks": 40}
    return SimulatedCore(SimulatedModel(**(sizes | {"max_running": 4} | changes)))


def request(handle: int, size: int = 5, *, deadline: float | None = None, priority: int = 0, **params: Any):
    return SequenceRequest(
        handle=handle,
        model="m@1",
        prompt=[3] * size,
        params=SamplingParams(**({"max_tokens": 4, "seed": 1} | params)),
        deadline=deadline,
        priority=priority,
    )


def test_a_step_costs_its_base_its_batch_and_its_prefill():
    sim = core(step_base=0.01, step_per_sequence=0.001, prefill_tokens_per_second=1000)
    sim.add([request(1, 10), request(2, 20)])
    assert sim.plan() == pytest.approx(0.01 + 30 / 1000)
    assert sim.apply(0.0).handles == [1, 2]
    assert sim.plan() == pytest.approx(0.01 + 2 * 0.001)


def test_long_prompts_are_prefilled_in_chunks_while_others_decode():
    sim = core(max_step_tokens=8)
    sim.add([request(1, 4)])
    sim.plan()
    sim.apply(0.0)
    sim.add([request(2, 20)])
    outputs = []
    for _ in range(3):
        sim.plan()
        outputs.append(sim.apply(0.0).handles)
    assert outputs == [[1], [1], [1, 2]]


def test_tokens_come_from_the_vocabulary_without_ends_of_sequence():
    sim = core(vocabulary=20, first_token=10, eos_token_ids=frozenset({15}))
    sim.add([request(1, max_tokens=50, temperature=1.0)])
    tokens: list[int] = []
    while sim.has_work():
        sim.plan()
        for produced in sim.apply(0.0).tokens:
            tokens += produced
    assert len(tokens) == 50
    assert set(tokens) <= set(range(10, 20)) - {15}


def test_logprobs_are_those_of_a_uniform_draw():
    sim = core(vocabulary=20, first_token=10)
    sim.add([request(1, logprobs=3)])
    sim.plan()
    [entry] = sim.apply(0.0).logprobs[1]
    assert entry.logprob == pytest.approx(-math.log(10))
    assert len(entry.top) == 3


def test_lower_priority_numbers_run_first():
    sim = core(max_running=1)
    sim.add([request(1, priority=5), request(2, priority=1)])
    sim.plan()
    assert sim.apply(0.0).handles == [2]


def test_a_sequence_cancelled_while_its_prompt_is_prefilled_gives_everything_back():
    sim = core(max_step_tokens=2)
    sim.add([request(1, 20), request(2, 20)])
    sim.plan()
    sim.cancel([1, 2])
    output = sim.apply(0.0)
    assert set(output.finish) == {FinishReason.CANCELLED}
    load = sim.capacity()
    assert (load.free_blocks, load.running, load.waiting, load.queued_prefill_tokens) == (40, 0, 0, 0)


@pytest.mark.parametrize("bad", [{"vocabulary": 1}, {"block_size": 0}, {"max_running": 0}, {"vocabulary": 0}])
def test_senseless_sizes_are_refused(bad):
    with pytest.raises(ValueError, match="must be positive"):
        core(**bad)


@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 70), st.integers(1, 20)),
            st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
            st.tuples(st.just("step"), st.just(0), st.just(0)),
            st.tuples(st.just("time"), st.integers(1, 3), st.just(0)),
        ),
        max_size=80,
    )
)
@settings(deadline=None)
def test_memory_is_conserved_and_every_sequence_ends_once(actions):
    sim, now, handles, ended = core(max_step_tokens=16), 0.0, 0, {}

    def step() -> None:
        sim.plan()
        output = sim.apply(now)
        for handle, finish in zip(output.handles, output.finish, strict=True):
            assert handle not in ended
            if finish:
                ended[handle] = finish
        load = sim.capacity()
        assert 0 <= load.free_blocks <= 40
        assert load.running <= 4
        assert load.waiting >= 0
        assert load.queued_prefill_tokens >= 0

    for action, first, second in actions:
        if action == "add":
            sim.add([request(handles, first, max_tokens=second, deadline=now + 2 if second % 3 == 0 else None)])
            handles += 1
        elif action == "cancel":
            sim.cancel([first])
        elif action == "time":
            now += first
        else:
            step()
    while sim.has_work():
        step()
    assert sorted(ended) == list(range(handles))
    load = sim.capacity()
    assert (load.free_blocks, load.running, load.waiting, load.queued_prefill_tokens) == (40, 0, 0, 0)
