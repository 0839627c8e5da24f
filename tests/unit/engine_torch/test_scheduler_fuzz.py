"""Random arrivals, cancels, deadlines and preemptions over little memory: outputs stay exact, nothing is lost."""

import random

import pytest
import support_symbolic as symbolic
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engines.port import FinishReason

CONFIGURATIONS = {
    "plain": {"total": 24, "prefix_cache": False, "swap": False},
    "cached": {"total": 24, "swap": False},
    "swapped": {"total": 16, "host": 12, "disk": 10},
    "spilled": {"total": 16, "host": 6, "disk": 20, "swap": False},
    "disk-only": {"total": 16, "disk": 16},
    "shared-out": {"total": 24, "host": 8, "owner_cap": 6, "owner_share": 0.5},
    "tight": {"total": 12, "host": 4, "disk": 4, "max_running": 8, "growth_blocks": 0},
}


def fuzz(seed, arrivals, *, machine_of):
    """Run `arrivals` random requests; returns the machine and the requests by handle."""
    rng = random.Random(seed)
    scheduler, _ = machine_of
    machine = symbolic.Machine(scheduler)
    prompts = [[rng.randrange(1, symbolic.VOCABULARY) for _ in range(40)] for _ in range(4)]
    requests, cancelled = {}, set()
    handle, now = 0, 0.0
    while handle < arrivals or scheduler.has_work():
        if handle < arrivals and rng.random() < 0.5:
            batch = []
            for _ in range(rng.choice((1, 1, 2, 4))):
                handle += 1
                batch.append(symbolic.random_request(rng, handle, prompts))
            if rng.random() < 0.3:  # choices of one prompt
                first = batch[0]
                batch = [
                    symbolic.req(each.handle, first.prompt, model=first.model, salt=first.cache_salt, group=9,
                                 max_tokens=each.params.max_tokens, priority=first.priority)
                    for each in batch
                ]  # fmt: skip
            requests |= {each.handle: each for each in batch}
            scheduler.add(batch)
        if requests and rng.random() < 0.1:
            victim = rng.choice(list(requests))
            scheduler.cancel([victim])
            cancelled.add(victim)
        plan = machine.turn(now, prompt_tokens=rng.choice((None, None, 1, 4)))
        computed = sum(chunk.count for chunks in plan.chunks.values() for chunk in chunks)
        assert computed <= 10
        assert plan.chunks or plan.ended or not scheduler.has_work(), "a turn without progress"
        if rng.random() < 0.02:
            scheduler.check_integrity()
        now += 1.0
    return machine, requests, cancelled


def check(machine, requests, cancelled, scheduler, pool):
    assert machine.finish.keys() == requests.keys()
    for handle, request in requests.items():
        got = machine.tokens.get(handle, [])
        assert got == symbolic.expected(request, len(got))
        if handle not in cancelled:
            assert machine.finish[handle] == FinishReason.LENGTH
            assert len(got) == min(request.params.max_tokens, symbolic.CONTEXT - len(request.prompt))
    scheduler.check_integrity()
    assert pool.free == pool.total
    assert scheduler.queued_prefill_tokens == scheduler.waiting == scheduler.running == scheduler.swapped == 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_outputs_are_exact_and_every_block_comes_back(name):
    scheduler, pool = symbolic.make(**CONFIGURATIONS[name])
    result = fuzz(name, 300, machine_of=(scheduler, pool))
    check(*result, scheduler, pool)
    if name != "plain":
        assert scheduler.prefix_counters.hit > 0
    assert scheduler.preemptions > 0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), total=st.integers(12, 30), host=st.integers(0, 12), disk=st.integers(0, 12),
    swap=st.booleans(), cache=st.booleans(), running=st.integers(1, 8), growth=st.integers(0, 3),
)  # fmt: skip
def test_any_configuration_is_exact(seed, total, host, disk, swap, cache, running, growth):
    scheduler, pool = symbolic.make(
        total, host=host, disk=disk, swap=swap, prefix_cache=cache, max_running=running, growth_blocks=growth
    )
    check(*fuzz(seed, 40, machine_of=(scheduler, pool)), scheduler, pool)


def test_damaged_disk_blocks_are_computed_anew():
    rng = random.Random(5)
    scheduler, pool = symbolic.make(12, disk=20, swap=False, intact=lambda slot: rng.random() < 0.5)
    check(*fuzz("damage", 200, machine_of=(scheduler, pool)), scheduler, pool)


def test_ten_thousand_arrivals_leave_every_block_free():
    scheduler, pool = symbolic.make(20, host=8, disk=8, max_running=6)
    check(*fuzz("ten thousand", 10_000, machine_of=(scheduler, pool)), scheduler, pool)
    assert scheduler.preemptions > 100
    assert scheduler.swaps > 100
