"""Random arrivals, cancels, deadlines and preemptions over little memory: outputs stay exact, nothing is lost.

The full suite (tests/oracle) runs the same with ten thousand arrivals.
"""

import pytest
import support_symbolic as symbolic
from hypothesis import given, settings
from hypothesis import strategies as st
from support_symbolic import FUZZED, Fuzz


@pytest.mark.parametrize("name", FUZZED)
def test_outputs_are_exact_and_every_block_comes_back(name):
    done = Fuzz(name, 300, **FUZZED[name]).run()
    if name != "plain":
        assert done.scheduler.prefix_counters.hit > 0
    assert done.scheduler.preemptions > 0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), total=st.integers(12, 30), host=st.integers(0, 12), disk=st.integers(0, 12),
    swap=st.booleans(), cache=st.booleans(), running=st.integers(1, 8), growth=st.integers(0, 3),
    away=st.sampled_from((0.0, 0.1)), damage=st.sampled_from((0.0, 0.3)),
)  # fmt: skip
def test_any_configuration_is_exact(seed, total, host, disk, swap, cache, running, growth, away, damage):
    Fuzz(
        seed, 40, away=away, total=total, host=host, disk=disk, swap=swap, prefix_cache=cache, max_running=running,
        growth_blocks=growth, damage=damage,
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
