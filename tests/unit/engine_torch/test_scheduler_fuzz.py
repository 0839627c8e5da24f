"""Random arrivals, cancels, deadlines and preemptions over little memory: outputs stay exact, nothing is lost.

The full suite (tests/oracle) runs the same with ten thousand arrivals.
"""

import pytest
import support_symbolic as symbolic
from hypothesis import given, settings
from hypothesis import strategies as st
from support_symbolic import FUZZED, Fuzz

from services.worker.engines.torch_engine.line import fewest
from services.worker.engines.torch_engine.scheduler import Scheduler


@pytest.mark.parametrize("name", FUZZED)
def test_outputs_are_exact_and_every_block_comes_back(name):
    done = Fuzz(name, 300, **FUZZED[name]).run()
    if name != "plain":
        assert done.scheduler.prefix_counters.hit > 0
    assert done.scheduler.preemptions > 0


@pytest.mark.parametrize("name", FUZZED)
def test_e2_whoever_gives_way_to_an_urgent_sequence_lets_it_in(name, monkeypatch):
    gave_way = 0
    yielding = Scheduler._yield_to_urgent

    def watched(scheduler):
        nonlocal gave_way
        head, before = scheduler._line.head(), scheduler.preemptions
        yielding(scheduler)
        if scheduler.preemptions > before:
            gave_way += 1
            assert scheduler._fits(head, scheduler._growth(scheduler._running.values())), "preempted in vain"

    monkeypatch.setattr(Scheduler, "_yield_to_urgent", watched)
    Fuzz(f"urgent {name}", 400, **FUZZED[name]).run()
    assert gave_way > 0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), total=st.integers(12, 30), host=st.integers(0, 12), disk=st.integers(0, 12),
    swap=st.booleans(), cache=st.booleans(), running=st.integers(1, 8), growth=st.integers(0, 3),
    away=st.sampled_from((0.0, 0.1)), damage=st.sampled_from((0.0, 0.3)), window=st.sampled_from((0, 1, 4, 11)),
)  # fmt: skip
def test_any_configuration_is_exact(seed, total, host, disk, swap, cache, running, growth, away, damage, window):
    Fuzz(
        seed, 40, away=away, total=total, host=host, disk=disk, swap=swap, prefix_cache=cache, max_running=running,
        growth_blocks=growth, damage=damage, window=window,
    ).run()  # fmt: skip


@pytest.mark.parametrize("swap", [False, True])
def test_damaged_disk_blocks_are_computed_anew(swap):
    Fuzz("damage", 300, total=12, disk=20, swap=swap, damage=0.5).run()


def test_many_arrivals_leave_every_block_free():
    done = Fuzz("many", 1_500, total=20, host=8, disk=8, max_running=6).run()
    assert done.scheduler.preemptions > 15
    assert done.scheduler.swaps > 15


def test_a_prompt_may_turn_out_to_need_more_blocks_than_were_counted_on():
    # The first block of its prefix is damaged on disk while the second one is in use: neither saves it a block.
    Fuzz(542212668, 60, total=16, disk=12, swap=False, max_running=3, growth_blocks=3, damage=0.8, owner_cap=6).run()


@pytest.mark.parametrize("swap", [False, True])
def test_the_most_urgent_sequence_never_gives_its_memory_up(swap):
    scheduler, _ = symbolic.make(10, host=12, swap=swap, growth_blocks=0, max_step_tokens=60)
    machine = symbolic.Machine(scheduler)
    # The urgent one comes last and ends first: it must get a token in every turn.
    later = [symbolic.req(handle, [handle] * 8, priority=1, max_tokens=25) for handle in (1, 2)]
    scheduler.add([*later, symbolic.req(3, [3] * 8, priority=0, max_tokens=20)])
    for count in range(1, 21):
        machine.turn()
        assert len(machine.tokens[3]) == count
    machine.run()
    assert scheduler.preemptions > 0
    assert {handle: len(tokens) for handle, tokens in machine.tokens.items()} == {1: 25, 2: 25, 3: 20}


@pytest.mark.parametrize("swap", [False, True])
def test_e2_a_prompt_that_cannot_fit_preempts_nobody(swap):
    """Eight choices share ten blocks; what one urgent sequence holds is not to be had."""
    scheduler, pool = symbolic.make(60, host=60, swap=swap, context=400, max_running=12, max_step_tokens=300)
    machine = symbolic.Machine(scheduler)
    scheduler.add([symbolic.req(1, [5] * 78, max_tokens=40)])
    machine.turn()
    choices = range(2, 10)
    scheduler.add([symbolic.req(each, [6] * 41, group=1, priority=1, max_tokens=10) for each in choices])
    machine.turn()
    machine.turn()
    assert scheduler.running == 9
    scheduler.add([symbolic.req(10, [7] * 200, max_tokens=5)])
    while any(each not in machine.finish for each in choices):
        due = sum(map(len, machine.tokens.values())) + scheduler.running
        machine.turn()
        assert scheduler.preemptions == 0
        assert sum(map(len, machine.tokens.values())) >= due
    machine.run()
    assert scheduler.preemptions == 0
    assert {each: len(tokens) for each, tokens in machine.tokens.items()} == {1: 40, 10: 5} | dict.fromkeys(choices, 10)
    assert pool.free == 60


@given(sizes=st.lists(st.integers(0, 5), max_size=8), needed=st.integers(0, 20))
def test_e2_nobody_leaves_who_need_not(sizes, needed):
    candidates = [[size] for size in sizes]  # told apart by identity, as sequences are
    chosen = [size for [size] in fewest(candidates, lambda some: sum(size for [size] in some) >= needed)]
    assert (sum(chosen) >= needed) is (sum(sizes) >= needed)
    assert all(sum(chosen) - size < needed for size in chosen)
