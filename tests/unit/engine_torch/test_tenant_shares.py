"""Who gives way when a tenant holds more of the memory than its share: `kv_share`, kept by the scheduler."""

from __future__ import annotations

import pytest
import support_symbolic as symbolic
from support_symbolic import Fuzz, Machine, req


def greedy(count, *, first=1, salt=b"greedy", share=0.25, tokens=12, **more):
    """Requests of 4 blocks at their end, which may hold a quarter of 16."""
    return [
        req(first + n, [1 + n, 2, 3, 4], salt=salt, kv_share=share, max_tokens=tokens, **more) for n in range(count)
    ]


def make(total=16, **more):
    scheduler, pool = symbolic.make(total, **{"max_running": 8, "max_step_tokens": 64, "growth_blocks": 0} | more)
    return scheduler, pool, Machine(scheduler)


def running(scheduler, salt):
    return [each for each in scheduler._running.values() if each.request.cache_salt == salt]


def held(scheduler, salt):
    return sum(len(each.blocks) for each in running(scheduler, salt))


def test_d2_memory_that_nobody_else_wants_is_used_beyond_a_share():
    scheduler, _, machine = make()
    scheduler.add(greedy(6))
    most = 0
    while scheduler.has_work():
        machine.turn()
        most = max(most, held(scheduler, b"greedy"))
    assert most > 12


@pytest.mark.parametrize("swap", [False, True])
def test_d2_whoever_is_beyond_its_share_gives_way_at_once_to_a_tenant_that_is_not(swap):
    scheduler, _, machine = make(host=16, swap=swap)
    scheduler.add(greedy(8, tokens=40))
    while held(scheduler, b"greedy") < 15:
        machine.turn()
    scheduler.add([req(20, range(1, 29), salt=b"modest", max_tokens=8)])  # 7 blocks, 9 at its end
    machine.turn()
    assert len(running(scheduler, b"modest")) == 1
    while 20 not in machine.finish:
        assert len(running(scheduler, b"modest")) == 1  # and is not preempted for those that were there before
        assert running(scheduler, b"greedy")  # one sequence goes on
        machine.turn()
    machine.run()
    assert len(machine.finish) == 9


def test_d2_it_gets_nothing_new_while_another_waits_and_everything_when_nobody_does():
    scheduler, _, machine = make(max_running=3)
    scheduler.add(greedy(2, share=0.1, tokens=20))
    scheduler.add([req(20, salt=b"modest", max_tokens=20)])
    machine.turn()
    scheduler.add(greedy(2, first=3, share=0.1, tokens=4))
    scheduler.add([req(21, salt=b"modest", max_tokens=4)])
    scheduler.cancel([2])  # a row is free: the greedy one's next came before, and waits all the same
    machine.turn()
    assert {each.request.handle for each in scheduler._running.values()} == {1, 20, 21}
    while 21 not in machine.finish:
        machine.turn()
    machine.turn()
    assert {each.request.handle for each in scheduler._running.values()} == {1, 20, 3}  # nobody else wants the row


def test_d2_two_tenants_beyond_their_shares_do_not_take_the_room_from_each_other():
    scheduler, _, machine = make()
    scheduler.add(greedy(4, share=0.1, tokens=24))
    scheduler.add(greedy(4, first=11, salt=b"other", share=0.1, tokens=24))
    machine.run()
    assert len(machine.finish) == 8
    assert scheduler.preemptions <= 16  # 31, if they did


def test_d2_prompts_that_wait_beyond_a_share_are_no_queue_to_others():
    scheduler, _, machine = make(max_running=3)
    scheduler.add(greedy(2, share=0.1, tokens=20))
    scheduler.add([req(20, salt=b"modest", max_tokens=20)])
    machine.turn()
    scheduler.add(greedy(2, first=3, share=0.1))
    assert scheduler.queued_prefill_tokens == 0
    scheduler.add([req(21, [1, 2, 3, 4, 5], salt=b"modest")])
    assert scheduler.queued_prefill_tokens == 5


def test_classes_go_before_shares():
    scheduler, _, machine = make()
    scheduler.add(greedy(8, tokens=40, priority=0))
    while held(scheduler, b"greedy") < 15:
        machine.turn()
    before = len(running(scheduler, b"greedy"))
    scheduler.add([req(20, range(1, 29), salt=b"modest", max_tokens=8, priority=5)])
    machine.turn()
    assert not running(scheduler, b"modest")
    assert len(running(scheduler, b"greedy")) == before


def test_what_ended_leaves_nothing_behind():
    scheduler, _, machine = make()
    scheduler.add([*greedy(5), req(20, salt=b"modest"), req(21, salt=b"plain", kv_share=1.0)])
    machine.run()
    shares = scheduler._shares
    assert (shares._live, shares._shares, shares._kept) == ({}, {}, set())


@pytest.mark.parametrize("share", [0.01, 0.3])
@pytest.mark.parametrize("swap", [False, True])
def test_outputs_are_exact_and_nothing_is_lost_when_shares_are_held(share, swap):
    done = Fuzz(f"shares {share}", 300, total=20, host=8, max_running=6, swap=swap, kv_share=share).run()
    assert done.scheduler.preemptions > 0
