"""The scheduler alone: no torch, any order of commands."""

import gc
import random

import pytest
import support_symbolic as symbolic
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engines.port import FinishReason
from services.worker.engines.torch_engine.blocks import BlockManager, IntegrityError
from services.worker.engines.torch_engine.sequences import FAILED, LiveSequence

EOS, STOP_ID, CONTEXT, BLOCK = symbolic.EOS, 7, symbolic.CONTEXT, symbolic.BLOCK
make = symbolic.make


def req(handle, prompt=(1, 2, 3), **params):
    """A request that heeds the end of sequence unless told otherwise."""
    return symbolic.req(handle, prompt, **{"ignore_eos": False} | params)


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
        req(15, stop_token_ids=(50,)),
        req(16, bad_words=((1, 50),)),
        req(17, bad_words=((),)),
        req(18, min_tokens=99),
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
    assert pool.free == 32 - 1


def test_cancelling_frees_memory_before_the_next_step():
    scheduler, pool = make()
    scheduler.add([req(1), req(2)])
    turn(scheduler)
    assert pool.free == 32 - 2
    scheduler.cancel([1, 404])
    assert pool.free == 32 - 1
    assert turn(scheduler)[1] == {1: (None, FinishReason.CANCELLED), 2: (9, 0)}


def test_small_sequences_overtake_a_large_one_a_bounded_number_of_times():
    scheduler, _ = make(total=8, max_running=8, max_step_tokens=40, max_overtaken=3, growth_blocks=0)
    scheduler.add([req(1, prompt=[1] * 16, max_tokens=12), req(2, prompt=[2] * 20, max_tokens=1)])
    scheduler.add([req(handle, [handle], max_tokens=1) for handle in range(3, 13)])
    ended = []
    while scheduler.has_work():
        ended += [handle for handle, (_, finish) in turn(scheduler)[1].items() if finish]
    # Three small ones pass while the large one lacks memory; then nobody does until it has had its turn.
    assert ended == [3, 4, 5, 1, 2, 6, 7, 8, 9, 10, 11, 12]


def test_a_waiting_sequence_preempts_only_lower_priorities():
    scheduler, _ = make(max_running=2)
    scheduler.add([req(1, [1] * 4, priority=1, max_tokens=9), req(2, [2] * 4, priority=0, max_tokens=9)])
    turn(scheduler)
    scheduler.add([req(3, [3] * 4, priority=0, max_tokens=1)])
    assert turn(scheduler)[1] == {2: (9, 0), 3: (9, FinishReason.LENGTH)}
    assert turn(scheduler)[1].keys() == {2, 1}
    scheduler.add([req(4, [4] * 4, priority=1)])
    assert turn(scheduler)[1].keys() == {2, 1}
    assert scheduler.preemptions == 1


def test_nobody_is_preempted_for_a_sequence_that_would_not_fit_all_the_same():
    scheduler, _ = make(8, max_running=4, max_step_tokens=40)
    scheduler.add([req(1, [1] * 16, max_tokens=12), req(2, [2] * 4, priority=1, max_tokens=4)])
    turn(scheduler)
    # It needs three blocks: there would be, but for the room that the running ones of its priority may grow into.
    scheduler.add([req(3, [3] * 12, max_tokens=8)])
    assert turn(scheduler)[1].keys() == {1, 2}
    assert scheduler.preemptions == 0


def test_an_urgent_prompt_does_not_wait_for_a_long_one_under_way():
    scheduler, _ = make(max_step_tokens=10)
    scheduler.add([req(1, [1] * 40, priority=1)])
    turn(scheduler)
    scheduler.add([req(2, [2] * 6, priority=1), req(3, [3] * 6, priority=0)])
    plan, seen = turn(scheduler)
    assert [(chunk.sequence.request.handle, chunk.count) for chunk in plan.chunks["a@1"]] == [(3, 6), (1, 4)]
    assert seen == {3: (9, 0)}


def test_a_model_is_wanted_even_while_every_row_is_taken():
    scheduler, _ = make(max_running=1)
    scheduler.set_away("b@1")
    scheduler.add([req(1, priority=2)])
    turn(scheduler)
    scheduler.add([req(2, model="b@1"), req(3, priority=1, max_tokens=1)])
    assert turn(scheduler)[1].keys() == {1}
    assert scheduler.wanted_models() == ["b@1"]
    # Nor does it keep the one behind it from taking the row.
    assert turn(scheduler)[1] == {3: (9, FinishReason.LENGTH)}


def test_a_swapped_sequence_costs_no_token_twice():
    scheduler, _ = make(8, host=8, max_running=2, max_step_tokens=16, growth_blocks=0)
    scheduler.add([req(1, [1] * 12, max_tokens=20), req(2, [2] * 12, max_tokens=12)])
    computed = 0
    while scheduler.has_work():
        plan, _ = turn(scheduler)
        computed += sum(chunk.count for chunks in plan.chunks.values() for chunk in chunks)
    assert scheduler.swaps > 0
    assert computed == 12 + 19 + 12 + 11


def test_a_tight_time_bound_leaves_prompts_the_rest_and_decodes_untouched():
    scheduler, _ = make(max_step_tokens=20)
    scheduler.add([req(1, max_tokens=9)])
    turn(scheduler)
    scheduler.add([req(2, [5] * 20)])
    counts = []
    for bound in (4, 1, None):
        plan = scheduler.schedule(0.0, bound)
        counts.append([chunk.count for chunk in plan.chunks["a@1"]])
        scheduler.apply(plan.chunks["a@1"], [9 if chunk.samples else None for chunk in plan.chunks["a@1"]])
    assert counts == [[1, 4], [1, 1], [1, 15]]


def hits(scheduler):
    return scheduler.prefix_counters.hit


def test_a_prompt_seen_before_is_found_but_for_its_end():
    scheduler, _ = make()
    machine = symbolic.Machine(scheduler)
    for handle in (1, 2):
        scheduler.add([symbolic.req(handle, [7] * 16, salt=b"t")])
        machine.run()
    assert hits(scheduler) == 12  # whole blocks, and at least one token to compute
    assert machine.tokens[1] == machine.tokens[2] == symbolic.expected(symbolic.req(1, [7] * 16), 5)


@pytest.mark.parametrize(("first", "second"), [(b"one", b"two"), (b"", b"two"), (b"one", b"")])
def test_tenants_never_share_private_prefixes(first, second):
    scheduler, _ = make()
    machine = symbolic.Machine(scheduler)
    for handle, salt in enumerate((first, second)):
        scheduler.add([symbolic.req(handle, [7] * 16, salt=salt)])
        machine.run()
    assert hits(scheduler) == 0


def test_tenants_share_whole_blocks_of_public_prefixes_and_nothing_behind_them():
    scheduler, _ = make(public={"a@1": [[7] * 10]})
    machine = symbolic.Machine(scheduler)
    for handle, salt in enumerate((b"one", b"two")):
        scheduler.add([symbolic.req(handle, [7] * 20, salt=salt)])
        machine.run()
    assert hits(scheduler) == 8  # of the ten public tokens, two blocks of four
    scheduler.add([symbolic.req(5, [7] * 9 + [8] * 8, salt=b"three", model="b@1")])
    machine.run()
    assert hits(scheduler) == 8  # public for the other model only


def test_choices_of_one_prompt_compute_it_once_and_copy_on_write():
    scheduler, pool = make(max_step_tokens=40, max_running=6)
    machine = symbolic.Machine(scheduler)
    scheduler.add([symbolic.req(handle, list(range(1, 12)), group=3, max_tokens=6) for handle in range(5)])
    first = machine.turn()
    assert [chunk.count for chunk in first.chunks["a@1"]] == [11]
    second = machine.turn()
    assert sorted(chunk.count for chunk in second.chunks["a@1"]) == [1] * 5
    assert sum(move.source[0] == move.target[0] for move in second.moves) == 4
    assert pool.total - pool.free == 2 + 5
    machine.run()
    assert {tuple(tokens) for tokens in machine.tokens.values()} == {tuple(machine.tokens[0])}
    assert pool.free == pool.total


def test_when_the_first_choice_is_cancelled_the_next_one_computes_the_prompt():
    scheduler, pool = make()
    machine = symbolic.Machine(scheduler)
    scheduler.add([symbolic.req(handle, list(range(1, 25)), group=3) for handle in range(3)])
    machine.turn()
    scheduler.cancel([0])
    machine.run()
    assert machine.finish == {0: FinishReason.CANCELLED, 1: FinishReason.LENGTH, 2: FinishReason.LENGTH}
    assert pool.free == pool.total


def test_a_model_that_is_away_holds_back_its_own_sequences_alone():
    scheduler, _ = make()
    scheduler.set_away("b@1")
    scheduler.add([req(1, model="b@1"), req(2, max_tokens=1)])
    assert turn(scheduler)[1].keys() == {2}
    assert scheduler.wanted_models() == ["b@1"]
    assert turn(scheduler)[1] == {}
    scheduler.set_present("b@1")
    assert turn(scheduler)[1].keys() == {1}
    scheduler.set_away("a@1")
    scheduler.add([req(3)])
    turn(scheduler)
    scheduler.fail_model("a@1", "cannot be read")
    assert turn(scheduler)[1][3] == (None, FinishReason.ERROR)


def test_what_waited_in_vain_for_a_model_is_forgotten():
    scheduler, _ = make()
    scheduler.set_away("b@1")
    for handle in range(7000, 7010):
        scheduler.add([req(handle, model="b@1")])
        turn(scheduler)
        assert scheduler.wanted_models() == ["b@1"]
        scheduler.fail_model("b@1", "cannot be read")
        turn(scheduler)
        assert scheduler.wanted_models() == []
    kept = [each for each in gc.get_objects() if type(each) is LiveSequence and each.request.handle >= 7000]
    assert kept == []


def test_one_tenant_does_not_take_all_memory_while_others_wait():
    scheduler, _ = make(16, max_running=8, max_step_tokens=64, owner_share=0.5, growth_blocks=0)
    scheduler.add([req(handle, [handle] * 12, salt=b"greedy", max_tokens=4) for handle in range(1, 6)])
    scheduler.add([req(9, [9] * 12, salt=b"modest", max_tokens=4)])
    _, seen = turn(scheduler)
    assert seen.keys() == {1, 2, 9}  # six of its eight blocks, and room left for the other
    ended = set()
    while scheduler.has_work():
        ended |= {handle for handle, (_, finish) in turn(scheduler)[1].items() if finish}
    assert ended == {1, 2, 3, 4, 5, 9}


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
    scheduler, pool = make(total_blocks, max_running=max_running, max_step_tokens=max_step_tokens)
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
    pool = BlockManager(4)
    blocks = pool.allocate(3)
    with pytest.raises(MemoryError):
        pool.allocate(2)
    pool.release(blocks[:1])
    for wrong in (blocks[:1], [3]):
        with pytest.raises(IntegrityError, match="not used"):
            pool.release(wrong)
    with pytest.raises(IntegrityError, match="not used"):
        pool.share([3])
    pool.check_integrity([blocks[1:]])
    with pytest.raises(IntegrityError, match="used other"):
        pool.check_integrity([blocks])
    assert pool.free == 2


def test_what_no_layer_sees_any_more_is_given_back_and_may_be_found_again():
    scheduler, pool = make(total=20, window=9)
    machine, asked = symbolic.Machine(scheduler), symbolic.req(1, tuple(range(1, 31)), max_tokens=15)
    scheduler.add([asked])
    used = []
    while scheduler.has_work():
        machine.turn()
        used.append(pool.total - pool.free)
    assert used[0] == 8  # its prompt's memory at once
    assert max(used[2:]) == 3  # nine tokens and the one before them, in blocks of four
    assert machine.tokens[1] == symbolic.expected(asked, 15)
    scheduler.add([symbolic.req(2, tuple(range(1, 31)), max_tokens=15)])
    machine.run()
    assert machine.tokens[2] == machine.tokens[1]
    assert scheduler.prefix_counters.hit == 28
