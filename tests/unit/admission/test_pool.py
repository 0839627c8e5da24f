"""One pool's admission: grants, queueing, order, refusals, evictions, workers that come and go."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Event,
    Granted,
    Interrupt,
    Outcome,
    QueueClass,
    Queued,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from tests.support.admission_limits import all_ttls, steady

SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 100, 2, 512)


def request(name: str = "r0", tenant: str = "acme", **more: object) -> Request:
    base = Request(name, tenant, "m@1", 16, 16, 1, deadline=1000.0, queue_class=QueueClass.PAID)
    return replace(base, **more)


def pool(*specs: WorkerSpec, limits: Limits | None = None, now: float = 0.0) -> Pool:
    made = Pool("fast", limits or steady(), now=now)
    for spec in specs or (SPEC,):
        made.worker_joined(spec, now)
        made.worker_reported(spec.worker, Report(free_blocks=spec.total_blocks), now)
    return made


def fill(target: Pool, count: int = 2) -> None:
    """Takes all the sequences of the one worker."""
    for number in range(count):
        answer, _ = target.admit(request(f"full{number}", "filler"), 0.0)
        assert isinstance(answer, Granted)


def granted(events: Iterable[Event]) -> list[str]:
    return [event.request.request_id for event in events if isinstance(event, Granted)]


def refused(answer: object, outcome: Outcome) -> Refused:
    assert isinstance(answer, Refused)
    assert answer.outcome is outcome
    return answer


def test_with_room_the_answer_is_immediate() -> None:
    target = pool()
    answer, events = target.admit(request(), 0.0)
    assert isinstance(answer, Granted)
    assert (answer.worker, answer.waited, events) == ("w0", 0.0, [])


def test_without_room_it_waits_until_a_release() -> None:
    target = pool()
    fill(target)
    answer, _ = target.admit(request(), 1.0)
    assert isinstance(answer, Queued)
    known, events = target.release("full0", 3.5, output_tokens=4)
    assert known
    (event,) = events
    assert isinstance(event, Granted)
    assert (event.request.request_id, event.waited) == ("r0", 2.5)
    assert target.release("full0", 4.0) == (False, [])


def test_nobody_who_waits_is_overtaken_by_a_newcomer_of_the_same_shape() -> None:
    target = pool()
    fill(target)
    target.admit(request("first", "a"), 0.0)
    target.fleet.release("full0")
    answer, events = target.admit(request("second", "b"), 0.1)
    assert isinstance(answer, Queued)
    assert granted(events) == ["first"]


def test_classes_are_served_in_order() -> None:
    target = pool()
    fill(target)
    for queue_class in reversed(QueueClass):
        target.admit(request(queue_class.name, queue_class.name, queue_class=queue_class), 0.0)
    served = granted(target.release("full0", 1.0)[1])
    for _ in range(3):
        served += granted(target.release(served[-1], 1.0)[1])
    assert served == ["PAID", "FREE", "OVER_QUOTA", "BATCH"]


def test_tenants_take_turns_whatever_one_of_them_floods() -> None:
    target = pool()
    fill(target)
    for number in range(50):
        target.admit(request(f"flood{number}", "flood"), 0.0)
    for number in range(3):
        target.admit(request(f"calm{number}", "calm"), 0.0)
    served = granted(target.release("full0", 1.0)[1])
    while len(served) < 6:
        served += granted(target.release(served[-1], 1.0, output_tokens=16)[1])
    assert sorted(name[:4] for name in served) == ["calm"] * 3 + ["floo"] * 3


def test_real_output_is_what_counts_between_tenants() -> None:
    target = pool(replace(SPEC, max_running=1))
    served = granted([target.admit(request("a0", "a", max_output_tokens=400), 0.0)[0]])  # type: ignore[list-item]
    for number in range(1, 9):
        target.admit(request(f"a{number}", "a", max_output_tokens=400), 0.0)
        target.admit(request(f"b{number}", "b", max_output_tokens=40), 0.0)
    while len(served) < 12:
        # Both really generate 40 tokens, though a reserves ten times as many.
        served += granted(target.release(served[-1], 1.0, output_tokens=40)[1])
    assert 5 <= sum(name.startswith("a") for name in served) <= 7


def test_c7_cached_prompt_tokens_take_nothing_of_a_tenants_share() -> None:
    target = pool(replace(SPEC, max_running=1))
    served = granted([target.admit(request("a0", "a", prompt_tokens=400), 0.0)[0]])  # type: ignore[list-item]
    for number in range(1, 13):
        target.admit(request(f"a{number}", "a", prompt_tokens=400), 0.0)
        target.admit(request(f"b{number}", "b", prompt_tokens=400), 0.0)
    while len(served) < 16:
        cached = 400 if served[-1].startswith("a") else 0
        served += granted(target.release(served[-1], 1.0, output_tokens=4, cached_prompt_tokens=cached)[1])
    # All of b's prompts are computed, none of a's are: a is served until its outputs cost as much.
    assert sum(name.startswith("b") for name in served) <= 4


def test_a_request_id_is_granted_once_however_often_it_asks() -> None:
    target = pool()
    first, _ = target.admit(request(), 0.0)
    again, _ = target.admit(request(), 1.0)
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.worker == first.worker
    assert target.fleet.workers["w0"].held_sequences == 1
    fill(target, 1)
    assert isinstance(target.admit(request("waits"), 0.0)[0], Queued)
    assert isinstance(target.admit(request("waits"), 0.5)[0], Queued)
    assert len(target.backlog) == 1


def test_another_tenants_request_id_is_refused() -> None:
    target = pool()
    target.admit(request(), 0.0)
    refused(target.admit(request(tenant="thief"), 0.0)[0], Outcome.INVALID_REQUEST)
    assert target.fleet.reservations["r0"].request.tenant == "acme"


def test_a_migrating_request_gets_another_worker_and_frees_the_first() -> None:
    target = pool(SPEC, replace(SPEC, worker="w1"))
    first, _ = target.admit(request(), 0.0)
    assert isinstance(first, Granted)
    moved, _ = target.admit(request(prompt_tokens=20, excluded=frozenset({first.worker})), 1.0)
    assert isinstance(moved, Granted)
    assert moved.worker != first.worker
    assert target.fleet.workers[first.worker].held_sequences == 0


def test_a_lost_worker_gets_no_work_and_its_requests_may_move_at_once() -> None:
    target = pool(SPEC, replace(SPEC, worker="w1"))
    target.admit(request(), 0.0)
    assert target.fleet.reservations["r0"].worker == "w0"
    assert target.worker_left("w0", 1.0)
    assert not target.worker_left("w0", 1.0)
    moved, _ = target.admit(request(), 1.0)
    assert isinstance(moved, Granted)
    assert moved.worker == "w1"


@pytest.mark.parametrize(
    ("asked", "outcome", "limit"),
    [
        ({"prompt_tokens": 500}, Outcome.CONTEXT_LENGTH_EXCEEDED, "max_context"),
        ({"choices": 3}, Outcome.REJECTED_NO_CAPACITY, "kv_blocks"),
        ({"zones": ("zone-x",)}, Outcome.NO_WORKERS, "workers"),
        ({"deadline": 0.0}, Outcome.REJECTED_DEADLINE, "deadline"),
    ],
)
def test_the_impossible_is_refused_at_once(asked: dict[str, object], outcome: Outcome, limit: str) -> None:
    assert refused(pool().admit(request(**asked), 0.0)[0], outcome).limit == limit


def test_without_a_worker_requests_wait_a_little_and_are_then_refused() -> None:
    target = Pool("fast", steady(absence_grace=5.0), now=0.0)
    assert isinstance(target.admit(request("early"), 4.0)[0], Queued)
    refused(target.admit(request("late"), 6.0)[0], Outcome.NO_WORKERS)
    target.worker_joined(SPEC, 7.0)
    assert granted(target.worker_reported("w0", Report(free_blocks=100), 7.0)) == ["early"]
    target.worker_left("w0", 8.0)
    assert isinstance(target.admit(request("blip"), 12.0)[0], Queued)
    refused(target.admit(request("gone"), 14.0)[0], Outcome.NO_WORKERS)


def test_queues_are_bounded_per_tenant_and_per_class() -> None:
    target = pool(limits=steady(max_per_tenant=2, max_per_class=3))
    fill(target)
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        assert isinstance(target.admit(request(name, tenant), 0.0)[0], Queued)
    full = refused(target.admit(request("a3", "a"), 0.0)[0], Outcome.REJECTED_QUEUE_FULL)
    assert full.limit == "queue_per_tenant"
    assert full.retry_after is not None
    full = refused(target.admit(request("b2", "b"), 0.0)[0], Outcome.REJECTED_QUEUE_FULL)
    assert full.limit == "queue_per_class"


def test_when_all_is_full_the_lowest_class_is_shed_for_a_higher_one() -> None:
    target = pool(limits=steady(max_queued=2))
    fill(target)
    target.admit(request("free", queue_class=QueueClass.FREE), 0.0)
    target.admit(request("batch", queue_class=QueueClass.BATCH), 0.0)
    answer, events = target.admit(request("paid"), 1.0)
    assert isinstance(answer, Queued)
    assert refused(events[0], Outcome.EVICTED_SHED).request.request_id == "batch"
    refused(target.admit(request("more", queue_class=QueueClass.BATCH), 1.0)[0], Outcome.REJECTED_QUEUE_FULL)
    assert len(target.backlog) == 2


def test_waiting_too_long_and_missing_the_deadline_are_different_outcomes() -> None:
    target = pool(limits=steady(**all_ttls(10.0)))
    fill(target)
    target.admit(request("ttl"), 0.0)
    target.admit(request("deadline", deadline=5.0), 0.0)
    assert target.tick(4.9) == []
    refused(target.tick(4.96)[0], Outcome.EVICTED_DEADLINE)
    event = refused(target.tick(10.0)[0], Outcome.EVICTED_TTL)
    assert event.waited == 10.0
    assert target.tick(11.0) == []


def test_a_deadline_that_the_queue_cannot_meet_is_refused_with_a_time_to_come_back() -> None:
    target = pool(replace(SPEC, max_running=1))
    served = granted([target.admit(request("s"), 0.0)[0]])  # type: ignore[list-item]
    for number in range(20):
        target.admit(request(f"q{number}", f"t{number % 4}"), 0.0)
    for second in range(1, 6):  # one request of cost 48 per second
        served += granted(target.release(served[-1], float(second), output_tokens=16)[1])
    answer = refused(target.admit(request("late", "new", deadline=8.0), 5.0)[0], Outcome.REJECTED_DEADLINE)
    assert answer.retry_after is not None
    assert 0.1 <= answer.retry_after <= 20
    assert isinstance(target.admit(request("patient", "new", deadline=60.0), 5.0)[0], Queued)


def test_capacity_is_not_left_idle_but_large_requests_are_not_overtaken_for_ever() -> None:
    target = pool(replace(SPEC, total_blocks=40, max_running=40), limits=steady(max_bypass=3))
    target.backlog.queues[QueueClass.PAID].charge("y", 1.0, 10_000)  # so that x comes first in order
    target.admit(request("big0", "x", prompt_tokens=256, max_output_tokens=240), 0.0)  # 31 of 40 blocks
    target.admit(request("big1", "x", prompt_tokens=256, max_output_tokens=240), 0.0)
    served: list[str] = []
    for number in range(5):
        answer, events = target.admit(request(f"small{number}", "y"), 0.0)  # 2 blocks each
        served += granted([answer] if isinstance(answer, Granted) else []) + granted(events)
    assert served == ["small0", "small1", "small2"]
    assert granted(target.release("small0", 1.0)[1]) == []
    assert granted(target.release("big0", 1.0)[1]) == ["big1", "small3", "small4"]


def test_d5_no_class_waits_until_there_is_room_for_a_lower_one() -> None:
    """A batch request has earned its turn, and is too large for what is free: paid requests go on."""
    target = pool(replace(SPEC, total_blocks=40, max_running=40), limits=steady(max_bypass=3, reserved_share=0.5))
    large: dict[str, object] = {"prompt_tokens": 256, "max_output_tokens": 240, "queue_class": QueueClass.BATCH}
    assert isinstance(target.admit(request("runs", "b", **large), 0.0)[0], Granted)  # 31 of 40 blocks
    assert isinstance(target.admit(request("waits", "b", **large), 0.0)[0], Queued)
    for number in range(60):
        now = number * 0.01
        assert isinstance(target.admit(request(f"paid{number}", "p"), now)[0], Granted)
        assert target.release(f"paid{number}", now, output_tokens=16) == (True, [])
    waiting = target.backlog.find("waits")
    assert waiting is not None
    assert next(target.backlog.in_order()) is waiting
    assert waiting.bypassed > 3
    assert granted(target.release("runs", 1.0, output_tokens=1)[1]) == ["waits"]


def test_d5_a_worker_that_is_kept_for_a_request_is_kept_from_lower_classes() -> None:
    target = pool(replace(SPEC, total_blocks=40, max_running=40), limits=steady(max_bypass=1))
    large: dict[str, object] = {"prompt_tokens": 256, "max_output_tokens": 240, "queue_class": QueueClass.FREE}
    assert isinstance(target.admit(request("runs", "a", **large), 0.0)[0], Granted)
    assert isinstance(target.admit(request("waits", "a", **large), 0.0)[0], Queued)
    answers = [
        target.admit(request(f"small{queue_class}", "b", queue_class=queue_class), 0.1)[0]
        for queue_class in (QueueClass.BATCH, QueueClass.OVER_QUOTA, QueueClass.PAID)
    ]
    assert [type(answer) for answer in answers] == [Granted, Queued, Granted]


def test_a_version_without_room_does_not_hold_up_another() -> None:
    other = replace(SPEC, worker="w1", model_versions=frozenset({"m@2"}))
    target = pool(SPEC, other)
    fill(target)
    assert isinstance(target.admit(request("blocked"), 0.0)[0], Queued)
    assert isinstance(target.admit(request("free", model_version="m@2"), 0.0)[0], Granted)


def test_a_queue_for_one_version_does_not_make_another_late() -> None:
    other = replace(SPEC, worker="w1", model_versions=frozenset({"m@2"}))
    target = pool(SPEC, other)
    for worker in ("w0", "w1"):
        report = Report(free_blocks=100, decode_step=0.02, prefill_tokens_per_second=1000.0)
        target.worker_reported(worker, report, 0.0)
    fill(target)
    for number in range(50):
        target.admit(request(f"q{number}"), 0.0)
    refused(target.admit(request("late", ttft_by=0.2), 0.0)[0], Outcome.REJECTED_DEADLINE)
    assert isinstance(target.admit(request("free", model_version="m@2", ttft_by=0.2), 0.0)[0], Granted)


def test_a_cancelled_request_leaves_the_queue_and_lets_others_pass() -> None:
    target = pool(replace(SPEC, total_blocks=33, max_running=4))
    target.admit(request("half", prompt_tokens=256, max_output_tokens=240), 0.0)
    target.admit(request("big", "acme", prompt_tokens=256, max_output_tokens=240), 0.0)
    target.admit(request("small", "acme"), 0.0)
    known, events = target.cancel("big", 1.0)
    assert known
    assert granted(events) == ["small"]
    assert target.cancel("big", 1.0) == (False, [])


def test_releasing_a_waiting_request_takes_it_out_of_the_queue() -> None:
    target = pool()
    fill(target)
    target.admit(request(), 0.0)
    assert target.release("r0", 1.0) == (True, [])
    assert len(target.backlog) == 0


def test_a_gateways_shares_come_back_when_it_is_gone() -> None:
    target = pool()
    for name in ("a", "b"):
        target.admit(request(name, owner="gateway-0"), 0.0)
    target.admit(request("c", owner="gateway-1"), 0.0)
    assert target.abandon("gateway-1", 1.0) == (0, [])
    target.worker_reported("w0", Report(free_blocks=96, running=2), 0.9)
    count, events = target.abandon("gateway-0", 1.0)
    assert (count, events) == (2, [])  # their work still runs, as far as anybody knows
    assert granted(target.worker_reported("w0", Report(free_blocks=100), 1.1)) == ["c"]


def test_a_share_nobody_releases_comes_back_after_the_deadline() -> None:
    target = pool(limits=steady(release_grace=5.0))
    target.admit(request(deadline=10.0), 0.0)
    target.tick(14.9)
    assert "r0" in target.fleet.reservations
    target.tick(16.0)
    assert target.idle


def test_silent_workers_are_named() -> None:
    target = pool()
    assert target.silent_workers(3.0, 3.0) == []
    assert target.silent_workers(3.1, 3.0) == ["w0"]
    target.worker_left("w0", 3.1)
    assert target.silent_workers(9.0, 3.0) == []


def test_draining_sends_everybody_elsewhere() -> None:
    target = pool()
    fill(target)
    target.admit(request("one"), 0.0)
    target.admit(request("two"), 0.0)
    events = target.drain(1.0)
    assert [refused(event, Outcome.DRAINING).request.request_id for event in events] == ["one", "two"]
    refused(target.admit(request("three"), 1.0)[0], Outcome.DRAINING)


_step = st.one_of(
    st.tuples(st.just("admit"), st.integers(1, 60), st.integers(1, 200), st.integers(1, 3)),
    st.tuples(st.just("release"), st.integers(0, 60), st.integers(0, 50), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 60), st.just(0), st.just(0)),
    st.tuples(st.just("report"), st.integers(0, 40), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("leave"), st.integers(0, 1), st.just(0), st.just(0)),
    st.tuples(st.just("join"), st.integers(0, 1), st.just(0), st.just(0)),
    st.tuples(st.just("tick"), st.integers(0, 5), st.just(0), st.just(0)),
    st.tuples(st.just("abandon"), st.integers(0, 2), st.just(0), st.just(0)),
)


@given(st.lists(_step, max_size=80), st.sampled_from(["fair", "fifo"]))
def test_every_request_leaves_exactly_once_and_whatever_is_bounded_stays_within_its_bounds(
    steps: list[tuple[str, int, int, int]], discipline: str
) -> None:
    specs = [replace(SPEC, worker=f"w{n}", total_blocks=40, max_running=3) for n in range(2)]
    specs[1] = replace(specs[1], model_versions=frozenset({"m@1", "n@1"}))
    limits = steady(
        max_per_tenant=4,
        max_per_class=6,
        max_queued=10,
        **all_ttls(8.0),
        discipline=discipline,
        preempt_after=0.2,
    )
    target = pool(*specs, limits=limits)
    waiting: set[str] = set()
    left: set[str] = set()
    now = 0.0

    def leave(name: str) -> None:
        assert name not in left
        left.add(name)
        waiting.discard(name)

    def bounded(answer: object) -> None:
        if isinstance(answer, Refused) and answer.retry_after is not None:
            assert 0.1 <= answer.retry_after <= 60.0
        elif isinstance(answer, Granted):
            assert 0.0 <= answer.pressure < math.inf
            assert 0.0 <= answer.first_token < math.inf

    def follow(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Interrupt):
                assert discipline == "fair"
                for name in event.request_ids:
                    held = target.fleet.reservations[name]
                    assert held.worker == event.worker
                    assert held.request.queue_class > QueueClass.PAID
                continue
            assert event.request.request_id in waiting
            leave(event.request.request_id)
            bounded(event)

    for number, (kind, a, b, c) in enumerate(steps):
        now += 0.1
        if kind == "admit":
            asked = request(
                f"r{number}",
                f"t{a % 3}",
                prompt_tokens=a,
                max_output_tokens=b,
                choices=c,
                deadline=now + a / 4,
                ttft_by=now + b / 20 if b % 3 else math.inf,
                resumed_tokens=a // 2 if b % 5 == 0 else 0,
                kv_share=0.3 if b % 7 == 0 else 0.0,
                queue_class=QueueClass(1 + a % 4),
                owner=f"g{b % 3}",
                model_version="n@1" if b % 11 == 0 else "m@1",
                weight=(1e-3, 1.0, 1e6)[a % 3],
            )
            answer, events = target.admit(asked, now)
            follow(events)
            if isinstance(answer, Queued):
                waiting.add(asked.request_id)
            else:
                leave(asked.request_id)
                bounded(answer)
        elif kind == "release":
            was_waiting = f"r{a}" in waiting
            known, events = target.release(
                f"r{a}", now, output_tokens=b**4, first_token=(b - 9) ** 5, failed=b % 4 == 0
            )
            if was_waiting:
                assert known
                leave(f"r{a}")
            follow(events)
        elif kind == "cancel":
            known, events = target.cancel(f"r{a}", now)
            assert known == (f"r{a}" in waiting)
            if known:
                leave(f"r{a}")
            follow(events)
        elif kind == "report":
            report = Report(free_blocks=a, running=b, decode_step=a / 1000, prefill_tokens_per_second=a * 10.0)
            follow(target.worker_reported(f"w{c}", report, now))
        elif kind == "leave":
            target.worker_left(f"w{a}", now)
        elif kind == "join":
            target.worker_joined(specs[a], now)
        elif kind == "tick":
            now += a
            follow(target.tick(now))
        else:
            follow(target.abandon(f"g{a}", now)[1])
        assert len(target.backlog) == len(waiting) <= 10
        assert target.books.held.keys() == target.fleet.reservations.keys()
        assert sum(target.books.running.values()) == len(target.books.held)
        for worker in target.fleet.workers.values():
            assert worker.held_blocks <= 40
            assert worker.held_sequences <= 3
        for version in ("m@1", "n@1"):
            able = [each.spec.worker for each in target.fleet.serving(version) if each.open()]
            assert not able or not all(target.fleet.outliers.ejected(each, now) for each in able)
    follow(target.tick(now + 100.0))
    follow(target.drain(now + 100.0))
    assert not waiting
    assert len(target.backlog) == 0
