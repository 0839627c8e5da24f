"""Predictions: before anything was measured, under load, and how they are put right; targets and interruptions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from services.admission.policy.first_tokens import FirstTokens
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
from tests.support.admission_limits import steady

SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 10_000, 10, 4096, preemptive=True)
LOAD = Report(10_000, decode_step=0.02, prefill_tokens_per_second=5_000.0)


def request(name: str, tenant: str = "acme", **more: object) -> Request:
    return replace(Request(name, tenant, "m@1", 100, 200, 1, 1e6, QueueClass.PAID), **more)


def pool(report: Report = LOAD, *, limits: Limits | None = None, spec: WorkerSpec = SPEC) -> Pool:
    made = Pool("fast", limits or steady(), now=0.0)
    made.worker_joined(spec, 0.0)
    made.worker_reported(spec.worker, report, 0.0)
    return made


def fill(target: Pool, count: int = 10, **more: object) -> None:
    for number in range(count):
        answer, _ = target.admit(request(f"full{number}", "filler", **more), 0.0)
        assert isinstance(answer, Granted)


def granted(events: Iterable[Event]) -> list[str]:
    return [event.request.request_id for event in events if isinstance(event, Granted)]


def test_before_any_backlog_the_wait_is_told_from_what_workers_report() -> None:
    target = pool()
    fill(target)
    # Alone on a sequence, 100 prompt tokens take 20 ms and 200 output tokens a tenth of 200 steps of 20 ms: 0.42 s.
    answer, _ = target.admit(request("impatient", deadline=0.4), 0.0)
    assert isinstance(answer, Refused)
    assert (answer.outcome, answer.limit) == (Outcome.REJECTED_DEADLINE, "deadline")
    assert isinstance(target.admit(request("patient", deadline=0.7), 0.0)[0], Queued)


def test_without_reports_of_speed_nothing_is_foretold() -> None:
    target = pool(Report(10_000))
    fill(target)
    assert isinstance(target.admit(request("r", deadline=0.2), 0.0)[0], Queued)


def test_expected_lengths_make_waits_shorter_than_caps_say() -> None:
    target = pool()
    for number in range(200):
        target.admit(request(f"short{number}"), 0.2 * number)
        target.release(f"short{number}", 0.2 * number, output_tokens=10)
    for number in range(10):
        target.admit(request(f"full{number}", "filler"), 40.0)
    assert isinstance(target.admit(request("r", deadline=40.4), 40.2)[0], Queued)  # 20 output tokens, not 200


def test_a_target_that_the_queue_cannot_meet_is_refused_at_once() -> None:
    target = pool()
    fill(target)
    target.admit(request("first"), 0.0)
    answer, _ = target.admit(request("second", ttft_by=0.5), 0.0)
    assert isinstance(answer, Refused)
    assert (answer.outcome, answer.limit) == (Outcome.REJECTED_DEADLINE, "ttft_target")
    assert answer.retry_after is not None
    assert isinstance(target.admit(request("third", ttft_by=5.0), 0.0)[0], Queued)


def test_a_wait_that_takes_most_of_the_time_is_allowed_until_such_waits_end_in_vain() -> None:
    """Whatever is foretold near the capacity comes in time; beyond it those told at once need not wait in vain."""
    target = pool()
    fill(target)
    target.admit(request("first"), 0.0)  # 0.84 s for the next one
    assert isinstance(target.admit(request("second", ttft_by=1.2), 0.0)[0], Queued)
    timeliness = target._timeliness
    assert timeliness.allowed_share == 1.0
    assert [event.request.request_id for event in target.tick(1.2) if isinstance(event, Refused)] == ["second"]
    assert timeliness.allowed_share == 0.9
    for _ in range(9):
        timeliness.waited(in_vain=True)
    assert timeliness.allowed_share == target.limits.wait_caution
    again = pool()
    fill(again)
    again.admit(request("first"), 0.0)
    again._timeliness.allowed_share = timeliness.allowed_share
    refused, _ = again.admit(request("second", ttft_by=1.2), 0.0)
    assert isinstance(refused, Refused)
    assert (refused.outcome, refused.limit) == (Outcome.REJECTED_DEADLINE, "ttft_target")
    again.release("full0", 0.1, output_tokens=200)  # "first" goes
    assert again._timeliness.allowed_share > timeliness.allowed_share


def test_waits_that_an_outage_ends_say_nothing_of_predictions() -> None:
    target = pool()
    fill(target)
    target.admit(request("first"), 0.0)
    assert isinstance(target.admit(request("second", ttft_by=1.2), 0.0)[0], Queued)
    target.worker_left("w0", 0.1)
    assert [event.request.request_id for event in target.tick(1.2) if isinstance(event, Refused)] == ["second"]
    assert target._timeliness.allowed_share == 1.0


def test_a_target_that_no_worker_could_meet_is_served_while_nobody_waits() -> None:
    target = pool()
    slow = request("long", prompt_tokens=3000, ttft_by=0.1)  # its prefill alone takes 0.6 s
    assert isinstance(target.admit(slow, 0.0)[0], Granted)
    fill(target, 9)
    assert isinstance(target.admit(replace(slow, request_id="again"), 0.0)[0], Refused)


def test_a_worker_with_too_much_prefill_before_it_is_not_in_time() -> None:
    target = pool(replace(LOAD, queued_prefill_tokens=5000))
    answer, _ = target.admit(request("r", ttft_by=0.5), 0.0)
    assert not isinstance(answer, Granted)
    assert isinstance(target.admit(request("s"), 0.0)[0], Granted)


def test_a_waiting_request_leaves_when_its_target_is_out_of_reach() -> None:
    target = pool(Report(10_000))
    fill(target)
    assert isinstance(target.admit(request("r", ttft_by=1.0), 0.0)[0], Queued)
    assert target.tick(0.9) == []
    (event,) = target.tick(1.01)
    assert isinstance(event, Refused)
    assert (event.outcome, event.limit, event.waited) == (Outcome.EVICTED_TTL, "ttft_target", 1.01)


def test_first_tokens_that_come_late_move_the_prediction() -> None:
    target = pool()
    for number in range(50):
        target.admit(request(f"r{number}"), float(number))
        target.release(f"r{number}", number + 0.5, output_tokens=5, first_token=0.3)
    answer, _ = target.admit(request("next"), 50.0)
    assert isinstance(answer, Granted)
    assert answer.first_token == pytest.approx(0.3, abs=0.01)
    predictions = target.books.take_predictions()
    assert len(predictions) == 50
    assert predictions[-1][0] == pytest.approx(0.3, abs=0.01)
    assert predictions[-1][1] == 0.3
    assert target.books.take_predictions() == []


def test_one_first_token_that_took_a_minute_does_not_make_the_pool_slow_but_many_do() -> None:
    learned = FirstTokens()
    for number in range(20):
        learned.learn(request("r"), "w0", 0.1, 0.1 * number)
    learned.learn(request("r"), "w0", 59.9, 2.0)
    assert learned.beyond(request("r"), "w0", 2.0).at_worst < 0.2
    for number in range(300):
        learned.learn(request("r"), "w0", 1.9, 2.0 + 0.1 * number)
    assert learned.beyond(request("r"), "w0", 32.0).mean == pytest.approx(1.9, abs=0.3)


def test_d3_who_is_served_quickly_is_not_refused_for_what_another_tenants_requests_take() -> None:
    target = pool()
    for number in range(200):
        slow = number % 2 == 0
        asked = request(f"r{number}", "slow" if slow else "fast")
        target.admit(asked, 0.1 * number)
        target.release(asked.request_id, 0.1 * number + 3.0, output_tokens=5, first_token=3.0 if slow else 0.04)
    for number in range(10):
        target.admit(request(f"full{number}", "filler"), 23.0)
    target.admit(request("waits", "filler"), 23.0)  # from now on predictions decide
    refused = target.admit(request("slow", "slow", ttft_by=25.0), 23.0)[0]
    assert isinstance(refused, Refused)
    assert refused.limit == "ttft_target"
    assert isinstance(target.admit(request("fast", "fast", ttft_by=25.0), 23.0)[0], Queued)


def test_d3_a_slow_worker_makes_neither_the_others_nor_another_version_look_slow() -> None:
    learned = FirstTokens()
    for number in range(30):
        learned.learn(request("r"), "w0", 3.0, 0.1 * number)
        learned.learn(request("r"), "w1", 0.01, 0.1 * number)
    newcomer = request("r", "newcomer")
    assert learned.beyond(newcomer, "w0", 3.0).mean == pytest.approx(3.0, abs=0.1)
    assert learned.beyond(newcomer, "w1", 3.0).at_worst < 0.1
    assert learned.beyond(newcomer, None, 3.0).at_worst < 0.1  # it need not go to the slow one
    assert learned.beyond(replace(newcomer, model_version="m@2"), "w0", 3.0) == (0.0, 0.0)


def test_d3_what_was_learned_of_first_tokens_is_forgotten_with_time_and_bounded() -> None:
    learned = FirstTokens()
    for number in range(300):
        learned.learn(request("r"), "w0", 3.0, 0.1 * number)
    for each in (request("r"), request("r", "newcomer")):
        assert learned.beyond(each, "w0", 39.0).mean == pytest.approx(3.0)
        assert learned.beyond(each, "w0", 90.0).at_worst < 0.05
    assert learned.slowness("w0", 39.0) == pytest.approx(3.0, abs=0.1)
    assert learned.slowness("w0", 90.0) == 0.0
    for number in range(5000):
        learned.learn(request("r", f"t{number}"), f"w{number}", 0.0, 100.0)
    assert len(learned._cells) == len(learned._tenants) == len(learned._workers) == 4096


def test_d3_a_worker_whose_first_tokens_come_late_gets_its_requests_after_the_others() -> None:
    target = pool()
    target.worker_joined(replace(SPEC, worker="w1"), 0.0)
    target.worker_reported("w1", LOAD, 0.0)
    went: list[str] = []
    for number in range(60):
        now = 0.2 * number
        answer, _ = target.admit(request(f"r{number}"), now)
        assert isinstance(answer, Granted)
        went.append(answer.worker)
        first = 1.0 if answer.worker == "w0" else 0.05
        target.release(f"r{number}", now + first + 0.05, output_tokens=5, first_token=first)
    assert went.count("w0") == 1
    assert target.fleet.workers["w0"].room(12.0).score > 0.5
    assert target.fleet.workers["w0"].room(90.0).score < 0.1  # it gets another chance


def test_pressure_grows_with_the_queue_and_is_nothing_without_one() -> None:
    target = pool()
    answer, _ = target.admit(request("first", ttft_by=2.0), 0.0)
    assert isinstance(answer, Granted)
    assert answer.pressure == 0.0
    fill(target, 9)
    told = []
    for number in range(4):
        target.admit(request(f"q{number}", ttft_by=4.0), 0.0)
    for name in ("first", "full0", "full1", "full2"):
        (event,) = target.release(name, 0.1, output_tokens=200)[1]
        assert isinstance(event, Granted)
        told.append(event.pressure)
    assert told == sorted(told, reverse=True)
    assert 0.0 < told[0] < 1.5
    assert told[-1] == 0.0


def test_urgent_requests_have_batch_work_interrupted_not_themselves_refused() -> None:
    target = pool()
    fill(target, queue_class=QueueClass.BATCH)
    target.tick(1.0)
    answer, events = target.admit(request("urgent", ttft_by=1.3), 1.0)
    assert isinstance(answer, Queued)
    (event,) = events
    assert isinstance(event, Interrupt)
    assert (event.worker, len(event.request_ids)) == ("w0", 1)
    assert granted(target.release(event.request_ids[0], 1.05, output_tokens=3)[1]) == ["urgent"]


def test_interruptions_are_spaced_and_no_request_is_asked_twice() -> None:
    target = pool()
    fill(target, queue_class=QueueClass.BATCH)
    victims: list[str] = []
    for number in range(6):
        _, events = target.admit(request(f"urgent{number}", ttft_by=1.3), 1.0)
        victims += [name for event in events if isinstance(event, Interrupt) for name in event.request_ids]
    assert len(victims) == 1  # of one moment
    for step in range(1, 10):
        for event in target.tick(1.0 + step * 0.025):
            if isinstance(event, Interrupt):
                victims += event.request_ids
    assert len(victims) == len(set(victims)) == 6


@pytest.mark.parametrize("queue_class", [QueueClass.BATCH, QueueClass.OVER_QUOTA])
def test_nobody_is_interrupted_for_batch_work_or_for_equals(queue_class: QueueClass) -> None:
    target = pool()
    fill(target, queue_class=queue_class)
    events = target.admit(request("r", queue_class=QueueClass(max(queue_class, 3)), deadline=500.0), 1.0)[1]
    for step in range(1, 200):
        events += target.tick(1.0 + step * 0.05)
    assert not [event for event in events if isinstance(event, Interrupt)]


def test_a_request_without_a_target_is_patient_before_it_interrupts() -> None:
    target = pool(limits=steady(preempt_after=1.0))
    fill(target, queue_class=QueueClass.BATCH)
    assert isinstance(target.admit(request("r"), 1.0)[0], Queued)
    assert target.tick(1.9) == []
    assert [type(event) for event in target.tick(2.1)] == [Interrupt]


def test_a_resumed_request_has_no_target_any_more_and_costs_its_tenant_no_second_prefill() -> None:
    target = pool()
    resumed = request("r", resumed_tokens=40, ttft_by=-5.0)
    assert isinstance(target.admit(resumed, 0.0)[0], Granted)
    fill(target, 9)
    assert isinstance(target.admit(replace(resumed, request_id="waits"), 0.0)[0], Queued)
    assert target.limits.cost_of(resumed) == 400.0
    assert target.limits.cost_of(request("new")) == 500.0


def test_what_an_interrupted_request_had_generated_teaches_nothing_of_lengths() -> None:
    target = pool()
    fill(target, queue_class=QueueClass.BATCH)
    _, events = target.admit(request("urgent", ttft_by=1.3), 1.0)
    (event,) = events
    assert isinstance(event, Interrupt)
    target.release(event.request_ids[0], 1.05, output_tokens=1)
    lengths = target.estimates.lengths
    assert lengths.seen == 0
    target.release("urgent", 1.1, output_tokens=7)
    assert lengths.seen == 1


def test_the_plain_discipline_foretells_and_interrupts_nothing() -> None:
    target = pool(limits=steady(discipline="fifo"))
    fill(target, queue_class=QueueClass.BATCH)
    assert isinstance(target.admit(request("r", ttft_by=0.1, deadline=0.4), 0.0)[0], Queued)
    assert isinstance(target.admit(request("s", queue_class=QueueClass.BATCH), 0.0)[0], Queued)
    assert target.tick(0.3) == []
    (event,) = target.tick(0.4)
    assert isinstance(event, Refused)
    assert event.outcome is Outcome.EVICTED_DEADLINE
    assert granted(target.release("full0", 5.0, output_tokens=1)[1]) == ["s"]


def test_a_tenant_at_its_kv_budget_holds_nobody_up() -> None:
    target = pool(spec=replace(SPEC, total_blocks=100))
    share = {"kv_share": 0.2, "prompt_tokens": 160, "max_output_tokens": 160}  # 20 of 100 blocks at most
    assert isinstance(target.admit(request("a0", "a", **share), 0.0)[0], Granted)
    for number in range(1, 4):
        assert isinstance(target.admit(request(f"a{number}", "a", **share), 0.0)[0], Queued)
    for number in range(4):
        assert isinstance(target.admit(request(f"b{number}", "b", prompt_tokens=16), 0.1)[0], Granted)
    item = target.backlog.find("a1")
    assert item is not None
    assert item.bypassed == 0
    assert granted(target.release("a0", 0.2, output_tokens=160)[1]) == ["a1"]


def test_a_class_that_a_prediction_refuses_gets_another_chance() -> None:
    target = pool()
    factor = target.estimates._of_class[QueueClass.PAID]
    for _ in range(200):
        factor.learn(0.1, 10.0, 0.0)
    assert factor.now(0.0) == 4.0
    assert factor.now(30.0) == pytest.approx(1.0, abs=0.2)
    assert math.isclose(factor.now(1000.0), 1.0)
