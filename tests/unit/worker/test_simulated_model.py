"""The cost model, the batching and the draws of the simulated engine."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from services.worker.engines.port import FinishReason, SamplingParams, SequenceRequest
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.step_costs import StepCosts, StepWork, attended_tokens


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


def test_attention_and_prompts_cost_what_they_attend_to():
    sim = core(max_step_tokens=8, step_per_context_token=1.0, step_per_prompt=1000.0, prefill_per_attended_token=0.001)
    sim.add([request(1, 10)])
    assert sim.plan() == pytest.approx(1000 + 0.036)  # 1 + 2 + … + 8
    sim.apply(0.0)
    assert sim.plan() == pytest.approx(1000 + 0.019)  # 9 + 10
    sim.apply(0.0)
    assert sim.plan() == pytest.approx(11)  # the first token's step: ten of the prompt and itself
    sim.apply(0.0)
    assert sim.plan() == pytest.approx(12)


def test_a_batch_may_cost_as_much_as_if_all_were_as_long_as_the_longest():
    sim = core(step_per_padded_token=1.0)
    sim.add([request(1, 10), request(2, 3), request(3, 5)])
    assert sim.plan() == 0
    sim.apply(0.0)
    assert sim.plan() == 3 * 11


AMOUNTS = st.floats(0, 1e-2)
COSTS = st.builds(
    StepCosts,
    step_base=AMOUNTS,
    step_per_sequence=AMOUNTS,
    step_per_context_token=AMOUNTS,
    step_per_padded_token=AMOUNTS,
    step_per_prompt=AMOUNTS,
    prefill_tokens_per_second=st.floats(1, 1e6) | st.just(math.inf),
    prefill_per_attended_token=AMOUNTS,
)
WORK = st.builds(StepWork, *[st.integers(0, 5000)] * 6)


@given(costs=COSTS, work=WORK, more=WORK)
def test_more_work_never_takes_less_time(costs, work, more):
    both = StepWork(*map(sum, zip(work, more, strict=True)))
    assert 0 <= costs.seconds(work) <= costs.seconds(both)
    # Linear: the work of two steps in one saves one base.
    assert costs.seconds(both) == pytest.approx(costs.seconds(work) + costs.seconds(more) - costs.step_base)


@given(costs=COSTS)
def test_costs_are_free_if_no_work_takes_time(costs):
    assert costs.free == (costs.seconds(StepWork(1, 1, 1, 1, 1, 1)) == 0)


@given(start=st.integers(0, 50), count=st.integers(0, 50))
def test_each_token_attends_to_itself_and_those_before_it(start, count):
    assert attended_tokens(start, count) == sum(position + 1 for position in range(start, start + count))


def test_the_load_tells_smoothed_paces_only_of_steps_that_take_time():
    sim = core()
    sim.add([request(1, 6), request(2, 6)])
    for seconds in (0.5, 0.25, 0.25):
        sim.plan()
        sim.last_step_seconds = seconds
        sim.apply(0.0)
    load = sim.capacity()
    assert load.prefill_tokens_per_second == pytest.approx(12 / 0.5)
    assert load.decode_step_seconds == pytest.approx(0.25)
    assert (load.prefix_queried_total, load.preemptions_total, load.swapped) == (0, 0, 0)
    unpaced = core()
    unpaced.add([request(1)])
    while unpaced.has_work():
        unpaced.plan()
        unpaced.apply(0.0)
    assert unpaced.capacity().decode_step_seconds == unpaced.capacity().prefill_tokens_per_second == 0


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
    sim, now, handles, ended = core(max_step_tokens=16, step_per_context_token=1.0), 0.0, 0, {}
    prompts: dict[int, int] = {}
    produced: dict[int, int] = {}  # of the live ones that have any token

    def step() -> None:
        # One second for each token that a decoding sequence attends to: its prompt and its output so far.
        assert sim.plan() == sum(prompts[handle] + count for handle, count in produced.items())
        output = sim.apply(now)
        for handle, finish in zip(output.handles, output.finish, strict=True):
            assert handle not in ended
            produced[handle] = produced.get(handle, 0) + 1
            if finish:
                ended[handle] = finish
                del produced[handle]
        load = sim.capacity()
        assert 0 <= load.free_blocks <= 40
        unbegun = sum(size for handle, size in prompts.items() if handle not in ended and handle not in produced)
        held = sum(prompts[handle] + count for handle, count in produced.items())
        held += unbegun - load.queued_prefill_tokens
        assert (1 - load.fragmentation) * (40 - load.free_blocks) * 4 == pytest.approx(held)
        assert load.running <= 4
        assert load.waiting >= 0
        assert load.queued_prefill_tokens >= 0

    for action, first, second in actions:
        if action == "add":
            prompts[handles] = first
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
    assert not produced
    assert sorted(ended) == list(range(handles))
    load = sim.capacity()
    assert (load.free_blocks, load.running, load.waiting, load.queued_prefill_tokens) == (40, 0, 0, 0)


def run_out(sim: SimulatedCore, most: int = 400) -> dict[int, list[int]]:
    """Every sequence's tokens; all must end."""
    tokens: dict[int, list[int]] = {}
    for _ in range(most):
        if not sim.has_work():
            break
        sim.plan()
        output = sim.apply(0.0)
        for handle, new in zip(output.handles, output.tokens, strict=True):
            tokens.setdefault(handle, []).extend(new)
    assert not sim.has_work()
    return tokens


def test_prompts_are_computed_in_order_of_priority():
    sim = core(max_step_tokens=10)
    sim.add([request(1, 30, priority=10)])
    sim.plan()
    sim.apply(0.0)
    sim.add([request(2, 8, priority=0)])
    sim.plan()
    assert sim.apply(0.0).handles == [2]


def test_a_preemptive_engine_holds_what_its_sequences_have_and_no_more():
    sim = core(preemptive=True, total_blocks=20)
    sim.add([request(1, 5, max_tokens=40)])
    sim.plan()
    sim.apply(0.0)
    assert sim.capacity().free_blocks == 20 - 2
    for _ in range(3):
        sim.plan()
        sim.apply(0.0)
    assert sim.capacity().free_blocks == 20 - 3  # five of the prompt and four made: the ninth token opened a block


def test_urgent_work_takes_the_memory_of_less_urgent_work_which_loses_nothing():
    quiet = core(preemptive=True, total_blocks=13)
    quiet.add([request(1, 5, max_tokens=30, priority=10)])
    expected = run_out(quiet)[1]
    sim = core(preemptive=True, total_blocks=13)
    sim.add([request(1, 5, max_tokens=30, priority=10)])
    tokens: list[int] = []
    for _ in range(10):
        sim.plan()
        tokens += sim.apply(0.0).tokens[0]
    sim.add([request(2, 40, max_tokens=2, priority=0)])
    sim.plan()
    assert sim.apply(0.0).handles == [2]
    load = sim.capacity()
    assert (load.preemptions_total, load.waiting, load.queued_prefill_tokens) == (1, 1, 15)
    assert tokens + run_out(sim)[1] == expected
    assert sim.capacity().free_blocks == 13


def test_equals_are_not_preempted_for_one_another():
    sim = core(preemptive=True, total_blocks=12)
    sim.add([request(1, 30, max_tokens=10)])
    sim.plan()
    sim.apply(0.0)
    sim.add([request(2, 30)])
    sim.plan()
    assert sim.apply(0.0).handles == [1]
    assert sim.capacity().preemptions_total == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 24), st.sampled_from([0, 1, 5, 10]), st.integers(0, 6)),
        min_size=1,
        max_size=12,
    ),
    st.integers(16, 40),
    st.sets(st.integers(0, 11), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_preemption_keeps_every_token_and_every_block(shapes, blocks, cancelled):
    """Whatever is preempted, each sequence makes the tokens that it makes alone, and all memory comes back."""

    def made(sequences: list[SequenceRequest], delays: list[int], drop: set[int]) -> dict[int, list[int]]:
        sim = core(preemptive=True, total_blocks=blocks, max_step_tokens=16)
        tokens: dict[int, list[int]] = {each.handle: [] for each in sequences}
        for step in range(2000):
            sim.add([each for each, delay in zip(sequences, delays, strict=True) if delay == step])
            if step == 8:
                sim.cancel(drop)
            if not sim.has_work() and step > 10:
                break
            sim.plan()
            for handle, new in zip(*(lambda out: (out.handles, out.tokens))(sim.apply(0.0)), strict=True):
                tokens[handle].extend(new)
            load = sim.capacity()
            assert 0 <= load.free_blocks <= blocks
            assert 0 <= load.fragmentation <= 1
        assert not sim.has_work()
        assert (sim.capacity().free_blocks, sim.capacity().queued_prefill_tokens) == (blocks, 0)
        return tokens

    requests = [
        request(number, size, max_tokens=most, priority=priority)
        for number, (size, most, priority, _) in enumerate(shapes)
    ]
    together = made(requests, [delay for *_, delay in shapes], cancelled)
    for each in requests:
        alone = made([each], [0], set())[each.handle]
        if each.handle in cancelled:
            assert together[each.handle] == alone[: len(together[each.handle])]
        else:
            assert together[each.handle] == alone


def test_a_small_prompt_beside_decoding_sequences_claims_no_slow_prefill():
    sim = core()
    sim.add([request(1, max_tokens=30)])
    for seconds, more in [(0.1, []), (0.04, []), (0.04, [request(2, 4)]), (0.04, [])]:
        sim.add(more)
        sim.plan()
        sim.last_step_seconds = seconds + 0.01 * bool(more)
        sim.apply(0.0)
    # 5 tokens in 0.1 s, then 4 in the 0.01 s that the step took longer than one that only decodes.
    assert sim.capacity().prefill_tokens_per_second == pytest.approx(1 / (0.02 + 0.1 * (0.0025 - 0.02)))
