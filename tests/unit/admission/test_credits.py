"""Credits: when they are given, that they are capacity like any other, used once, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.admission.policy.limits import Credits, Limits
from services.admission.policy.model import Event, Granted, Interrupt, QueueClass, Report, Request, WorkerSpec
from services.admission.policy.pool import Pool
from tests.support.admission_limits import steady

SPEC = WorkerSpec("w0", "w0:1", "zone-a", frozenset({"m@1"}), 16, 256, 16, 512, takes_credits=True)
ASKED = Request("r0", "acme", "m@1", 20, 12, 1, deadline=60.0, queue_class=QueueClass.PAID, owner="gateway-0")
IDS = [f"c{number}" for number in range(20)]


def pool(*specs: WorkerSpec, limits: Limits | None = None) -> Pool:
    made = Pool("fast", limits or steady(), now=0.0)
    for spec in specs or (SPEC,):
        made.worker_joined(spec, 0.0)
        made.worker_reported(spec.worker, Report(spec.total_blocks, prefill_tokens_per_second=20_000.0), 0.0)
    return made


def admitted(target: Pool, request: Request, now: float = 0.0) -> None:
    answer, _ = target.admit(request, now)
    assert isinstance(answer, Granted)


def names(given: Iterable[Granted]) -> list[str]:
    return [each.request.request_id for each in given]


def test_a_credit_holds_what_it_may_come_to_need_and_a_request_takes_its_place() -> None:
    target = pool()
    worker = target.fleet.workers["w0"]
    (credit,) = target.give(ASKED, ["c0"], 0.0)
    assert (credit.request.prompt_tokens, credit.request.max_output_tokens, credit.request.tenant) == (32, 12, "")
    assert (worker.held_sequences, worker.held_blocks, worker.credits, worker.credit_blocks) == (1, 3, 1, 3)
    answer = target.use("c0", ASKED, 0.3)
    assert answer is not None
    assert (answer.worker, answer.request) == ("w0", ASKED)
    assert (worker.held_sequences, worker.held_blocks, worker.credits, worker.credit_blocks) == (1, 2, 0, 0)
    assert target.release("r0", 1.0, output_tokens=5) == (True, [])
    assert target.idle


def test_a_credit_keeps_room_for_all_output_even_where_others_keep_less() -> None:
    target = pool(replace(SPEC, preemptive=True))
    asked = replace(ASKED, max_output_tokens=160)
    admitted(target, asked)
    target.give(asked, ["c0"], 0.0)
    assert [held.blocks for held in target.fleet.reservations.values()] == [7, 12]
    assert target.use("c0", replace(asked, request_id="r1"), 0.0) is not None
    assert [held.blocks for held in target.fleet.reservations.values()] == [7, 7]


def test_whoever_runs_on_one_is_charged_and_settled_like_everybody() -> None:
    ledger = []
    for on_credit in (False, True):
        target = pool()
        if on_credit:
            target.give(ASKED, ["c0"], 0.0)
            assert target.backlog.queue_of(ASKED).level_of("acme") == 0.0
            target.use("c0", ASKED, 0.0)
        else:
            admitted(target, ASKED)
        charged = target.backlog.queue_of(ASKED).level_of("acme")
        target.release("r0", 1.0, output_tokens=5)
        ledger.append((charged, target.backlog.queue_of(ASKED).level_of("acme")))
    assert ledger[0] == ledger[1]
    assert ledger[0][0] > ledger[0][1] > 0.0


def test_a_credit_is_used_once_and_by_what_it_covers() -> None:
    target = pool()
    target.give(ASKED, ["c0"], 0.0)
    assert target.use("c0", replace(ASKED, prompt_tokens=33), 0.0) is None
    assert target.use("c0", replace(ASKED, model_version="m@2"), 0.0) is None
    assert target.use("c0", ASKED, 0.0) is not None
    assert target.use("c0", replace(ASKED, request_id="r1"), 0.0) is None
    assert target.use("r0", replace(ASKED, request_id="r1"), 0.0) is None, "a request's share is no credit"
    assert target.use("c9", ASKED, 0.0) is None
    assert target.fleet.workers["w0"].held_sequences == 1


def test_what_is_not_used_in_time_is_taken_back_and_serves_who_waits() -> None:
    target = pool(replace(SPEC, max_running=8), limits=steady(run_ahead=0))
    target.give(ASKED, ["c0"], 0.0)
    for number in range(7):
        admitted(target, replace(ASKED, request_id=f"full{number}"))
    target.admit(replace(ASKED, request_id="waits"), 0.1)
    assert target.waiting("waits") is not None
    assert target.tick(2.2) == []
    (event,) = target.tick(2.3)
    assert isinstance(event, Granted)
    assert event.request.request_id == "waits"
    assert target.use("c0", ASKED, 2.3) is None


def test_a_credit_that_goes_back_serves_who_waits() -> None:
    target = pool(replace(SPEC, max_running=8))
    target.give(ASKED, ["c0"], 0.0)
    for number in range(7):
        admitted(target, replace(ASKED, request_id=f"full{number}"))
    target.admit(replace(ASKED, request_id="waits"), 0.1)
    known, events = target.release("c0", 0.2)
    assert known
    assert [event.request.request_id for event in events if isinstance(event, Granted)] == ["waits"]


def test_none_are_given_while_anybody_waits() -> None:
    target = pool(replace(SPEC, worker="big"), replace(SPEC, worker="w1", model_versions=frozenset({"m@2"})))
    assert names(target.give(ASKED, ["c0"], 0.0)) == ["c0"]
    for number in range(17):
        target.admit(replace(ASKED, request_id=f"full{number}", model_version="m@2"), 0.0)
    assert len(target.backlog) == 1
    assert target.give(ASKED, ["c1"], 0.0) == []


@pytest.mark.parametrize(
    "request_",
    [
        replace(ASKED, queue_class=QueueClass.OVER_QUOTA),
        replace(ASKED, queue_class=QueueClass.BATCH),
        replace(ASKED, queue_class=QueueClass.SHADOW),
        replace(ASKED, choices=2),
        replace(ASKED, resumed_tokens=3),
        replace(ASKED, excluded=frozenset({"w9"})),
        replace(ASKED, kv_share=0.5),
        replace(ASKED, version_share=0.5),
    ],
    ids=lambda request: f"{request.queue_class.name} {request.choices} {request.kv_share}",
)
def test_none_are_given_where_only_the_owner_may_decide(request_: Request) -> None:
    assert pool().give(request_, IDS, 0.0) == []


def test_none_are_given_for_workers_that_do_not_know_them_or_are_on_probation() -> None:
    assert pool(replace(SPEC, takes_credits=False)).give(ASKED, IDS, 0.0) == []
    target = pool(SPEC, replace(SPEC, worker="w1"))
    for number in range(5):
        failing = replace(ASKED, request_id=f"f{number}", excluded=frozenset({"w1"}))
        admitted(target, failing)
        target.release(failing.request_id, 0.0, output_tokens=0, failed=True)
    assert target.fleet.outliers.watched("w0")
    target.worker_left("w1", 6.0)
    assert target.fleet.pick(ASKED, 6.0) is not None
    assert target.give(ASKED, IDS, 6.0) == []


def test_a_draining_process_gives_none() -> None:
    target = pool()
    target.drain(0.0)
    assert target.give(ASKED, IDS, 0.0) == []


def test_they_hold_at_most_their_share_of_a_worker_and_none_of_a_busy_one() -> None:
    assert len(pool().give(ASKED, IDS, 0.0)) == 2  # an eighth of 16 sequences
    blocks = pool(replace(SPEC, total_blocks=64)).give(replace(ASKED, prompt_tokens=64, max_output_tokens=16), IDS, 0.0)
    assert len(blocks) == 1  # 5 blocks each, of at most 8
    busy = pool()
    for number in range(9):
        admitted(busy, replace(ASKED, request_id=f"r{number}"))
    assert busy.give(ASKED, IDS, 0.0) == []


def test_they_can_be_switched_off() -> None:
    assert pool(limits=steady(credits=Credits(most=0))).give(ASKED, IDS, 0.0) == []


def test_a_gateway_that_is_gone_for_good_takes_its_credits_along() -> None:
    target = pool()
    target.give(ASKED, ["c0"], 0.0)
    target.abandon("gateway-0", 0.1)
    assert target.fleet.workers["w0"].credits == 0
    assert target.fleet.workers["w0"].unheld_sequences(0.1) == 16


def test_a_use_that_is_told_after_its_worker_was_lost_is_held_and_released_as_ever() -> None:
    target = pool()
    target.give(ASKED, ["c0"], 0.0)
    target.worker_left("w0", 0.1)
    assert target.use("c0", ASKED, 0.2) is not None
    assert target.release("r0", 0.3, output_tokens=0, failed=True)[0]
    assert "w0" not in target.fleet.workers


def test_nobody_interrupts_a_credit() -> None:
    target = pool(replace(SPEC, max_running=8))
    target.give(replace(ASKED, queue_class=QueueClass.FREE), ["c0"], 0.0)
    for number in range(7):
        admitted(target, replace(ASKED, request_id=f"full{number}", queue_class=QueueClass.BATCH))
    target.admit(replace(ASKED, request_id="urgent"), 0.1)
    interrupts = [event for event in target.tick(2.0) if isinstance(event, Interrupt)]
    interrupted = {name for event in interrupts for name in event.request_ids}
    assert "c0" not in interrupted


steps = st.lists(
    st.tuples(
        st.sampled_from(("admit", "give", "use", "back", "release", "tick", "report", "leave", "join")),
        st.integers(0, 7),
        st.sampled_from((0.0, 0.01, 0.2, 0.9)),
        st.sampled_from(("a", "b")),
        st.sampled_from((1, 16, 60, 200)),
        st.sampled_from((QueueClass.PAID, QueueClass.FREE, QueueClass.BATCH)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.booleans())
def test_whatever_happens_no_more_is_held_than_there_is(history: list[tuple], preemptive: bool) -> None:
    specs = [replace(SPEC, worker=name, max_running=8, total_blocks=64, preemptive=preemptive) for name in ("w0", "w1")]
    target = pool(*specs, limits=steady(credits=Credits(share=0.5), burst_seconds=0.0))
    numbers, now = count(), 0.0
    out: dict[str, Request] = {}  # credits that may be used
    running: list[str] = []

    def follow(events: Iterable[Event]) -> None:
        running.extend(event.request.request_id for event in events if isinstance(event, Granted))

    for what, choice, later, tenant, size, queue_class in history:
        now += later
        request = replace(
            ASKED,
            request_id=f"r{next(numbers)}",
            tenant=tenant,
            prompt_tokens=size,
            queue_class=queue_class,
            deadline=now + 50.0,
        )
        if what == "admit":
            answer, events = target.admit(request, now)
            follow(events)
            if isinstance(answer, Granted):
                running.append(request.request_id)
        elif what == "give":
            waited = len(target.backlog)
            given = target.give(request, (f"c{next(numbers)}" for _ in range(choice)), now)
            assert not (waited and given)
            out |= {each.request.request_id: each.request for each in given}
        elif what == "use" and out:
            name = sorted(out)[choice % len(out)]
            used = target.use(name, request, now)
            if used is not None:
                covered = out.pop(name)
                assert covered.covers(request)
                running.append(request.request_id)
                assert target.use(name, replace(request, request_id="again"), now) is None
        elif what == "back" and out:
            name = sorted(out)[choice % len(out)]
            del out[name]
            follow(target.release(name, now)[1])
        elif what == "release" and running:
            follow(target.release(running.pop(choice % len(running)), now, output_tokens=3)[1])
        elif what == "leave":
            target.worker_left(f"w{choice % 2}", now)
        elif what == "join":
            spec = specs[choice % 2]
            live = target.fleet.workers.get(spec.worker)
            if live is None or not live.live:
                target.worker_joined(spec, now)
                target.worker_reported(spec.worker, Report(64), now)
        elif what == "report":
            follow(target.worker_reported(f"w{choice % 2}", Report(64), now))
        follow(target.tick(now))
        for worker in target.fleet.workers.values():
            held = worker.holds.values()
            credits = [each for each in held if each.request.credit]
            assert worker.held_blocks == sum(each.blocks for each in held) <= worker.spec.total_blocks
            assert worker.held_sequences == sum(each.request.choices for each in held) <= worker.most_sequences
            assert (worker.credits, worker.credit_blocks) == (len(credits), sum(each.blocks for each in credits))
            assert worker.credits <= 0.5 * worker.most_sequences
        assert sum(target.fleet.budgets.tenants.values()) == sum(
            each.blocks for each in target.fleet.reservations.values()
        )
    target.tick(now + 2.25)
    assert not any(worker.credits for worker in target.fleet.workers.values())
