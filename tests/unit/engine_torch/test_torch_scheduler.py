"""The scheduler alone: no torch, any order of commands."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engines.port import FinishReason, SamplingParams, SequenceRequest
from services.worker.engines.torch_engine.blocks import BlockPool
from services.worker.engines.torch_engine.scheduler import FAILED, ModelLimits, Scheduler

EOS, STOP_ID, CONTEXT, BLOCK = 0, 7, 48, 4


def make(total_blocks=32, max_running=4, max_step_tokens=10):
    pool = BlockPool(total_blocks)
    limits = ModelLimits(context=CONTEXT, vocabulary=50, eos_token_ids=frozenset({EOS}))
    scheduler = Scheduler(
        models={"a@1": limits, "b@1": limits},
        pool=pool,
        block_size=BLOCK,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
    )
    return scheduler, pool


def req(handle, prompt=(1, 2, 3), *, model="a@1", deadline=None, priority=0, max_tokens=5, **params):
    return SequenceRequest(
        handle=handle,
        model=model,
        prompt=prompt,
        params=SamplingParams(max_tokens=max_tokens, **params),
        deadline=deadline,
        priority=priority,
    )


def turn(scheduler, choose=lambda chunk: 9, now=0.0):
    """One schedule → apply; returns the plan and {handle: (token, finish)}."""
    plan = scheduler.schedule(now)
    seen = {ended.handle: (None, ended.reason) for ended in plan.ended}
    for chunks in plan.chunks.values():
        tokens = [choose(chunk) if chunk.samples else None for chunk in chunks]
        for each in scheduler.apply(chunks, tokens):
            seen[each.sequence.request.handle] = (each.token, each.finish)
    return plan, seen


def test_one_sequence_prefills_decodes_and_ends_at_its_limit():
    scheduler, pool = make()
    scheduler.add([req(1, max_tokens=3)])
    assert scheduler.queued_prefill_tokens == 3
    assert [turn(scheduler)[1][1] for _ in range(3)] == [(9, 0), (9, 0), (9, FinishReason.LENGTH)]
    assert not scheduler.has_work()
    assert (pool.free, scheduler.queued_prefill_tokens) == (32, 0)


@pytest.mark.parametrize(
    ("params", "token", "finish"),
    [
        ({}, EOS, FinishReason.STOP),
        ({"ignore_eos": True}, EOS, 0),
        ({"stop_token_ids": (STOP_ID,)}, STOP_ID, FinishReason.STOP),
        ({"stop_token_ids": (STOP_ID,), "ignore_eos": True}, STOP_ID, FinishReason.STOP),
        ({}, FAILED, FinishReason.ERROR),
    ],
)
def test_stop_tokens_are_not_emitted(params, token, finish):
    scheduler, _ = make()
    scheduler.add([req(1, **params)])
    assert turn(scheduler, lambda chunk: token)[1] == {1: (None if finish else token, finish)}


def test_the_context_bounds_the_output():
    scheduler, _ = make()
    scheduler.add([req(1, prompt=[1] * (CONTEXT - 2), max_tokens=100)])
    emitted = []
    while scheduler.has_work():
        emitted += turn(scheduler)[1].values()
    assert emitted == [(9, 0), (9, FinishReason.LENGTH)]


def test_impossible_requests_are_answered_and_leave_the_others_alone():
    scheduler, _ = make()
    bad = [
        req(1, model="c@1"),
        req(2, prompt=[]),
        req(3, prompt=[1] * CONTEXT),
        req(4, prompt=[50]),
        req(5, prompt=[-1]),
        req(6, max_tokens=0),
        req(7, temperature=float("nan")),
        req(8, top_p=0.0),
        req(9, top_k=-1),
        req(10, min_p=1.5),
        req(11, repetition_penalty=0.0),
        req(12, logit_bias={50: 1.0}),
        req(13, logit_bias={1: float("inf")}),
        req(14, logprobs=51),
    ]
    scheduler.add([*bad[:7], req(99), *bad[7:]])
    plan, seen = turn(scheduler)
    assert seen.pop(99) == (9, 0)
    assert seen == {each.handle: (None, FinishReason.ERROR) for each in bad}
    assert all(ended.message for ended in plan.ended)


def test_a_handle_submitted_twice_has_one_outcome():
    scheduler, _ = make()
    scheduler.add([req(1, max_tokens=1), req(1, max_tokens=2)])
    assert turn(scheduler)[1] == {1: (9, FinishReason.LENGTH)}
    assert not scheduler.has_work()


def test_a_deadline_ends_waiting_and_running_sequences_before_they_cost_a_step():
    scheduler, pool = make(max_running=1)
    scheduler.add([req(1, deadline=5.0), req(2, deadline=4.0), req(3)])
    turn(scheduler, now=0.0)
    plan, seen = turn(scheduler, now=5.0)
    assert seen == {1: (None, FinishReason.DEADLINE), 2: (None, FinishReason.DEADLINE), 3: (9, 0)}
    assert [chunk.sequence.request.handle for chunk in plan.chunks["a@1"]] == [3]
    assert pool.free == 32 - 2


def test_cancelling_frees_memory_before_the_next_step():
    scheduler, pool = make()
    scheduler.add([req(1), req(2)])
    turn(scheduler)
    scheduler.cancel([1, 404])
    assert pool.free == 32 - 2
    assert turn(scheduler)[1] == {1: (None, FinishReason.CANCELLED), 2: (9, 0)}


def test_the_first_in_line_is_not_overtaken_by_a_smaller_one():
    scheduler, _ = make(total_blocks=8)
    scheduler.add([req(1, prompt=[1] * 8, max_tokens=12), req(2, prompt=[1] * 8, max_tokens=12), req(3, max_tokens=1)])
    _, seen = turn(scheduler)
    assert seen == {1: (9, 0)}
    assert scheduler.waiting == 2


def test_lower_priority_numbers_run_first():
    scheduler, _ = make(max_running=1)
    scheduler.add(
        [req(1, priority=5, max_tokens=1), req(2, priority=-1, max_tokens=1), req(3, priority=5, max_tokens=1)]
    )
    order = [next(iter(turn(scheduler)[1])) for _ in range(3)]
    assert order == [2, 1, 3]


def test_long_prompts_are_cut_so_that_running_sequences_go_on():
    scheduler, _ = make(max_step_tokens=10)
    scheduler.add([req(1, max_tokens=8)])
    turn(scheduler)
    scheduler.add([req(2, prompt=[1] * 25)])
    counts = []
    for _ in range(3):
        plan, seen = turn(scheduler)
        assert seen[1] == (9, 0)
        counts.append([chunk.count for chunk in plan.chunks["a@1"]])
    assert counts == [[1, 9], [1, 9], [1, 7]]
    assert seen[2] == (9, 0)


COMMANDS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(1, CONTEXT + 2),
            st.integers(0, 30),
            st.sampled_from(["a@1", "b@1", "c@1"]),
            st.sampled_from([None, 3.0, 10.0, 40.0]),
            st.integers(-1, 1),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 40)),
        st.tuples(st.just("step"), st.integers(1, 5)),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(COMMANDS, st.integers(0, 2**32), st.integers(12, 40), st.integers(1, 6), st.integers(6, 40))
def test_any_order_of_commands_keeps_the_promises(commands, seed, total_blocks, max_running, max_step_tokens):
    scheduler, pool = make(total_blocks, max_running, max_step_tokens)
    source = random.Random(seed)
    outcomes, submitted, now = {}, 0, 0.0

    def step():
        before = {handle for handle in range(submitted) if handle not in outcomes}
        plan = scheduler.schedule(now)
        for ended in plan.ended:
            assert ended.handle in before
            assert ended.handle not in outcomes
            outcomes[ended.handle] = ended.reason
        chunks = [chunk for group in plan.chunks.values() for chunk in group]
        assert sum(chunk.count for chunk in chunks) <= max_step_tokens
        rows = [chunk.sequence.row for chunk in chunks]
        assert len(set(rows)) == len(rows)
        assert all(0 <= row < max_running for row in rows)
        owned = [block for chunk in chunks for block in chunk.sequence.blocks]
        assert len(set(owned)) == len(owned)
        for model, group in plan.chunks.items():
            for chunk in group:
                assert chunk.sequence.request.model == model
                assert chunk.start == chunk.sequence.computed
                assert chunk.start + chunk.count <= len(chunk.sequence.blocks) * BLOCK
            tokens = [source.randrange(50) if chunk.samples else None for chunk in group]
            for each in scheduler.apply(group, tokens):
                if each.finish:
                    assert each.sequence.request.handle not in outcomes
                    outcomes[each.sequence.request.handle] = each.finish
        # Work that can run does run: with anything alive, a step computes something.
        assert chunks or not scheduler.has_work()
        assert scheduler.running <= max_running

    for command in commands:
        if command[0] == "add":
            _, length, max_tokens, model, deadline, priority = command
            prompt = [source.randrange(1, 50) for _ in range(length)]
            scheduler.add(
                [req(submitted, prompt, model=model, deadline=deadline, priority=priority, max_tokens=max_tokens)]
            )
            submitted += 1
        elif command[0] == "cancel":
            scheduler.cancel([command[1]])
        else:
            for _ in range(command[1]):
                now += 1.0
                step()
    while scheduler.has_work():
        step()
    assert outcomes.keys() == set(range(submitted))
    assert pool.free == total_blocks
    assert (scheduler.running, scheduler.waiting, scheduler.queued_prefill_tokens) == (0, 0, 0)


def test_the_pool_refuses_what_would_corrupt_it():
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    with pytest.raises(MemoryError):
        pool.allocate(2)
    pool.release(blocks[:1])
    for wrong in (blocks[:1], [blocks[1], blocks[1]], [99]):
        with pytest.raises(ValueError, match="not taken"):
            pool.release(wrong)
    assert pool.free == 2
