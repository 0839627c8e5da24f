"""Who is interrupted for whom: the shedding order of running work, and what is known to be on its way."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.admission.policy.fleet import Fleet
from services.admission.policy.model import (
    Interrupt,
    QueueClass,
    Report,
    Request,
    WorkerSpec,
)
from tests.support.admission_limits import steady

PAID, FREE, OVER, BATCH = QueueClass.PAID, QueueClass.FREE, QueueClass.OVER_QUOTA, QueueClass.BATCH
SPEC = WorkerSpec("w0", "", "a", frozenset({"m@1"}), 16, 20, 8, 4096)
LIMITS = steady(max_queued_prefill=1 << 30, preempt_grace=2.0)


def request(name: str, blocks: int, queue_class: QueueClass, choices: int = 1, **more: object) -> Request:
    base = Request(name, "acme", "m@1", 8, blocks * 16 - 8, choices, deadline=100.0, queue_class=queue_class)
    return replace(base, **more)


def fleet_of(count: int = 1, **more: object) -> Fleet:
    fleet = Fleet(LIMITS)
    for number in range(count):
        spec = replace(SPEC, worker=f"w{number}", **more)
        fleet.join(spec, 0.0)
        fleet.workers[spec.worker].heard(Report(spec.total_blocks), 0.0)
    return fleet


def run(
    fleet: Fleet, name: str, blocks: int, queue_class: QueueClass, at: float, worker: str = "w0", **more: int
) -> None:
    fleet.reserve(request(name, blocks, queue_class, **more), worker, at)


def test_the_least_urgent_class_goes_first_then_the_latest_started() -> None:
    fleet = fleet_of()
    run(fleet, "free", 5, FREE, 3.0)
    run(fleet, "old", 5, BATCH, 1.0)
    run(fleet, "new", 5, BATCH, 2.0)
    run(fleet, "over", 5, OVER, 2.5)
    assert fleet.victims(request("p", 5, PAID), 9.0) == Interrupt("w0", ("new",))
    assert fleet.victims(request("q", 10, PAID), 9.0) == Interrupt("w0", ("old", "over"))


def test_nobody_is_interrupted_for_an_equal_or_a_lesser() -> None:
    fleet = fleet_of()
    for number in range(4):
        run(fleet, f"f{number}", 5, FREE, 0.0)
    assert fleet.victims(request("f", 5, FREE), 9.0) is None
    assert fleet.victims(request("b", 5, BATCH), 9.0) is None
    assert fleet.victims(request("p", 5, PAID), 9.0) is not None


def test_equals_stay_also_when_the_less_urgent_are_on_their_way_or_too_new() -> None:
    fleet = fleet_of()
    run(fleet, "free", 10, FREE, 0.0)
    run(fleet, "batch", 10, BATCH, 8.95)
    assert fleet.victims(request("f", 5, FREE), 9.0) is None
    assert fleet.victims(request("g", 8, FREE), 9.1) == Interrupt("w0", ("batch",))
    assert fleet.victims(request("h", 5, FREE), 9.1) is None


def test_who_is_not_needed_after_all_stays() -> None:
    fleet = fleet_of()
    run(fleet, "small", 2, BATCH, 1.0)
    run(fleet, "large", 18, OVER, 1.0)
    assert fleet.victims(request("p", 18, PAID), 9.0) == Interrupt("w0", ("large",))


def test_nobody_is_interrupted_for_a_tenant_beyond_its_own_budget() -> None:
    fleet = fleet_of()
    run(fleet, "b", 15, BATCH, 1.0)
    fleet.reserve(request("mine", 5, PAID, tenant="greedy"), "w0", 1.0)
    assert fleet.victims(request("more", 5, PAID, tenant="greedy", kv_share=0.3), 9.0) is None
    assert fleet.victims(request("more", 5, PAID, tenant="greedy", kv_share=0.5), 9.0) == Interrupt("w0", ("b",))


def test_one_large_goes_rather_than_several_small_ones() -> None:
    fleet = fleet_of()
    run(fleet, "large", 12, BATCH, 1.0)
    for number in range(4):
        run(fleet, f"s{number}", 2, BATCH, 2.0 + number)
    assert fleet.victims(request("p", 6, PAID), 9.0) == Interrupt("w0", ("large",))


def test_what_is_on_its_way_is_not_asked_for_again_until_the_grace_is_over() -> None:
    fleet = fleet_of()
    for number in range(4):
        run(fleet, f"b{number}", 5, BATCH, float(number))
    first = request("p", 5, PAID)
    assert fleet.victims(first, 9.0) == Interrupt("w0", ("b3",))
    assert fleet.victims(first, 9.1) is None
    assert fleet.victims(request("q", 5, PAID), 9.1) == Interrupt("w0", ("b2",))
    fleet.release("b3")
    assert fleet.victims(first, 9.2) is None
    assert fleet.victims(request("q", 5, PAID), 9.2) is None
    fleet.reserve(first, "w0", 9.3)
    assert fleet.victims(request("r", 5, PAID), 9.3) == Interrupt("w0", ("b1",))
    assert fleet.victims(request("q", 5, PAID), 11.2) == Interrupt("w0", ("b2",))  # it did not go: asked once more


def test_room_that_is_being_made_is_kept_from_the_less_urgent() -> None:
    fleet = fleet_of()
    run(fleet, "b0", 10, BATCH, 0.0)
    run(fleet, "b1", 6, BATCH, 1.0)
    urgent = request("p", 9, PAID)
    assert fleet.victims(urgent, 9.0) == Interrupt("w0", ("b1",))
    assert fleet.pick(request("small", 2, FREE), 9.0) is None
    assert fleet.pick(request("other", 2, PAID), 9.0) is not None
    fleet.release("b1")
    assert fleet.pick(request("b1", 6, BATCH), 9.1) is None
    picked = fleet.pick(urgent, 9.1)
    assert picked is not None
    fleet.reserve(urgent, picked.spec.worker, 9.1)
    assert fleet.pick(request("one", 1, BATCH), 9.2) is not None
    assert fleet.pick(request("b1", 6, BATCH), 9.2) is None
    again = fleet_of()
    run(again, "b0", 20, BATCH, 0.0)
    again.victims(urgent, 9.0)
    again.release("b0")
    assert again.pick(request("late", 2, BATCH), 10.9) is None
    assert again.pick(request("late", 2, BATCH), 11.0) is not None  # the urgent one never came back


def test_where_there_is_room_nobody_is_interrupted() -> None:
    fleet = fleet_of(2)
    run(fleet, "b0", 20, BATCH, 0.0)
    assert fleet.victims(request("p", 5, PAID), 9.0) is None


def test_the_worker_with_the_least_urgent_then_the_fewest_victims_is_chosen() -> None:
    fleet = fleet_of(3)
    run(fleet, "f", 20, FREE, 1.0, "w0")
    run(fleet, "b1", 10, BATCH, 1.0, "w1")
    run(fleet, "b2", 10, BATCH, 1.0, "w1")
    run(fleet, "b3", 20, BATCH, 0.0, "w2")
    assert fleet.victims(request("p", 15, PAID), 9.0) == Interrupt("w2", ("b3",))


def test_sequences_are_room_too() -> None:
    fleet = fleet_of(max_running=4)
    run(fleet, "two", 2, BATCH, 1.0, choices=2)
    run(fleet, "one", 2, BATCH, 2.0)
    run(fleet, "paid", 2, PAID, 3.0)
    assert fleet.victims(request("p", 2, PAID, 2), 9.0) == Interrupt("w0", ("two",))


def test_what_may_not_have_arrived_yet_a_silent_worker_and_a_draining_one_are_left_alone() -> None:
    fleet = Fleet(msgspec.structs.replace(LIMITS, report_fresh=1.0, report_stale=2.0))
    fleet.join(SPEC, 0.0)
    worker = fleet.workers["w0"]
    worker.heard(Report(20), 9.0)
    run(fleet, "b0", 20, BATCH, 9.0)
    urgent = request("p", 5, PAID)
    assert fleet.victims(urgent, 9.05) is None
    assert fleet.victims(urgent, 10.5) is None
    worker.heard(Report(0, running=1), 10.5)
    worker.draining = True
    assert fleet.victims(urgent, 10.5) is None
    worker.draining = False
    assert fleet.victims(urgent, 10.5) == Interrupt("w0", ("b0",))


CLASSES = st.sampled_from(list(QueueClass))
RUNNING = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 3), CLASSES, st.floats(0, 8), st.integers(0, 2)), max_size=20
)


@given(RUNNING, st.integers(1, 20), st.integers(1, 4), CLASSES)
@settings(deadline=None)
def test_victims_are_less_urgent_enough_and_no_more_than_needed(
    running: list[tuple[int, int, QueueClass, float, int]], blocks: int, choices: int, queue_class: QueueClass
) -> None:
    fleet = fleet_of(3)
    for number, (size, count, of_class, at, worker) in enumerate(running):
        asked = request(f"r{number}", size, of_class, count)
        if fleet.fits(asked, fleet.workers[f"w{worker}"], at):
            fleet.reserve(asked, f"w{worker}", at)
    wanted = request("wanted", max(1, blocks // choices), queue_class, choices)
    found = fleet.victims(wanted, 9.0)
    need = wanted.blocks(16)

    def room(worker: str, gone: set[str]) -> bool:
        left = [each for name, each in fleet.workers[worker].holds.items() if name not in gone]
        free = 20 - sum(each.blocks for each in left), 8 - sum(each.request.choices for each in left)
        return need <= free[0] and choices <= free[1]

    def lower(worker: str, than: QueueClass) -> set[str]:
        holds = fleet.workers[worker].holds
        return {name for name, each in holds.items() if each.request.queue_class > than}

    if found is None:
        possible = [name for name in fleet.workers if room(name, lower(name, queue_class))]
        assert not possible or any(room(name, set()) for name in fleet.workers)
        return
    gone = set(found.request_ids)
    chosen = [fleet.reservations[name] for name in gone]
    assert all(each.request.queue_class > queue_class and each.worker == found.worker for each in chosen)
    assert not any(room(name, set()) for name in fleet.workers)
    assert room(found.worker, gone)
    assert not any(room(found.worker, gone - {name}) for name in gone)
    # No more urgent class is touched than must be, on this worker or any other.
    highest = QueueClass(min(each.request.queue_class for each in chosen))
    assert not any(room(name, lower(name, highest)) for name in fleet.workers)
    assert fleet.victims(wanted, 9.0) is None
    for name in gone:
        fleet.release(name)
    picked = fleet.pick(wanted, 9.0)
    assert picked is not None
    assert picked.spec.worker == found.worker


@given(RUNNING, st.lists(st.tuples(st.integers(1, 10), CLASSES, st.booleans()), max_size=15))
@settings(deadline=None)
def test_nobody_is_asked_twice_within_the_grace(
    running: list[tuple[int, int, QueueClass, float, int]], wanted: list[tuple[int, QueueClass, bool]]
) -> None:
    fleet = fleet_of(3)
    for number, (size, count, of_class, at, worker) in enumerate(running):
        asked = request(f"r{number}", size, of_class, count)
        if fleet.fits(asked, fleet.workers[f"w{worker}"], at):
            fleet.reserve(asked, f"w{worker}", at)
    told: dict[str, float] = {}
    for number, (blocks, queue_class, goes) in enumerate(wanted):
        now = 9.0 + number * 0.5
        found = fleet.victims(request(f"w{number}", blocks, queue_class), now)
        if found is None:
            continue
        for name in found.request_ids:
            assert now - told.get(name, -9.0) >= 2.0
            told[name] = now
            if goes:
                fleet.release(name)
                del told[name]
