"""What must not stop a pool's service: absurd figures, workers unlike one another, losses, floods."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace

import pytest
from weir.admission.v1 import admission_pb2 as pb

from libs.clock import ManualClock
from libs.errors import WeirError
from services.admission import convert
from services.admission.coordinator import Coordinator
from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Granted,
    Interrupt,
    QueueClass,
    Queued,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from tests.support.admission_limits import all_ttls, steady

SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 100, 2, 2048)


def request(name: str = "r0", tenant: str = "acme", **more: object) -> Request:
    base = Request(name, tenant, "m@1", 16, 16, 1, deadline=1e6, queue_class=QueueClass.PAID)
    return replace(base, **more)


def pool(*specs: WorkerSpec, limits: Limits | None = None, report: Report | None = None) -> Pool:
    made = Pool("fast", limits or steady(), now=0.0)
    for spec in specs or (SPEC,):
        made.worker_joined(spec, 0.0)
        made.worker_reported(spec.worker, report or Report(spec.total_blocks), 0.0)
    return made


# ---- ejection ----------------------------------------------------------------------------------------------------


def fail(target: Pool, worker: str, times: int = 20) -> None:
    """Requests for m@1 fail on this worker until it is out, or `times`."""
    others = frozenset(target.fleet.workers) - {worker}
    for number in range(times):
        if target.fleet.outliers.ejected(worker, 0.0):
            return
        answer, _ = target.admit(request(f"{worker}-{number}", excluded=others), 0.0)
        assert isinstance(answer, Granted)
        assert answer.worker == worker
        target.release(answer.request.request_id, 0.0, output_tokens=0, failed=True)


def test_the_only_worker_of_another_version_is_not_ejected_for_failures_of_this_one() -> None:
    both = replace(SPEC, model_versions=frozenset({"m@1", "n@1"}))
    target = pool(both, replace(SPEC, worker="w1"), replace(SPEC, worker="w2"))
    fail(target, "w0")
    assert not target.fleet.outliers.ejected("w0", 0.0)
    assert isinstance(target.admit(request("other", model_version="n@1"), 0.0)[0], Granted)


def test_a_worker_is_not_ejected_when_all_others_of_its_version_drain() -> None:
    target = pool(SPEC, replace(SPEC, worker="w1"))
    target.drain_worker("w1")
    fail(target, "w0")
    assert isinstance(target.admit(request("r"), 0.0)[0], Granted)


@pytest.mark.parametrize("asked", [True, False])
def test_an_ejected_worker_comes_back_when_the_last_other_drains(asked: bool) -> None:
    target = pool(SPEC, replace(SPEC, worker="w1"))
    fail(target, "w0")
    assert target.fleet.outliers.ejected("w0", 0.0)
    if asked:
        target.drain_worker("w1")
    else:
        target.worker_reported("w1", Report(100, draining=True), 0.0)
    answer, _ = target.admit(request("r"), 0.0)
    assert isinstance(answer, Granted)
    assert answer.worker == "w0"


# ---- estimates ---------------------------------------------------------------------------------------------------


def test_quick_workers_of_another_version_do_not_make_a_slow_one_too_late_for_ever() -> None:
    slow, quick = SPEC, replace(SPEC, worker="w1", model_versions=frozenset({"n@1"}))
    target = pool(slow, quick)
    target.worker_reported("w0", Report(100, decode_step=0.01, prefill_tokens_per_second=100.0), 0.0)
    target.worker_reported("w1", Report(100, decode_step=0.01, prefill_tokens_per_second=1e6), 0.0)
    answer, _ = target.admit(request(prompt_tokens=400, ttft_by=1.0), 0.0)
    assert isinstance(answer, Granted)  # late, but nobody is quicker and nobody waits


@pytest.mark.parametrize("told", [-1e9, 1e12])
def test_first_tokens_that_cannot_be_do_not_poison_the_estimate(told: float) -> None:
    target = pool()
    for number in range(20):
        now = float(number)
        assert isinstance(target.admit(request(f"r{number}"), now)[0], Granted)
        target.release(f"r{number}", now + 0.5, output_tokens=4, first_token=told)
    assert 0.0 <= target.estimates.first_token(0.0, request(), None, 20.0) <= 0.5


def test_more_output_than_was_granted_is_neither_charged_nor_learned() -> None:
    target = pool()
    for number in range(20):
        target.admit(request(f"r{number}"), 0.0)
        target.release(f"r{number}", 0.0, output_tokens=2**32 - 1)
    for _ in range(44):
        target.estimates.lengths.learn("acme", "m@1", 20)
    assert target.estimates.lengths.high("acme", "m@1") == 20  # they were cut at 16: none of them came so far
    for number in range(2):
        target.admit(request(f"full{number}", "filler"), 0.0)
    target.admit(request("theirs"), 0.0)
    for number in range(21):
        target.admit(request(f"other{number}", "other"), 0.0)
    _, events = target.release("full0", 0.0, output_tokens=4)
    served = [event.request.request_id for event in events if isinstance(event, Granted)]
    for _ in range(20):
        if "theirs" in served:
            break
        _, events = target.release(served[-1], 0.0, output_tokens=16)
        served += [event.request.request_id for event in events if isinstance(event, Granted)]
    assert "theirs" in served


@pytest.mark.parametrize("rate", [math.nan, math.inf, -5.0, 1e-310, 1e308])
def test_absurd_rates_of_a_worker_count_as_none(rate: float) -> None:
    told = pb.CapacityReport(free_blocks=100, prefill_tokens_per_second=rate)
    told.decode_step.seconds = -7
    assert convert.to_report(told) == Report(100)


@pytest.mark.parametrize(("weight", "kept"), [(1e-320, 1e-3), (1e300, 1e6), (2.5, 2.5), (0.0, 1.0)])
def test_weights_that_would_stop_the_counters_are_kept_within_bounds(weight: float, kept: float) -> None:
    admit = pb.Admit(
        request_id="r", tenant="t", pool="p", model_version="m@1", prompt_tokens=1, max_output_tokens=1, choices=1
    )
    admit.queue_class, admit.weight = pb.QUEUE_CLASS_PAID, weight
    assert convert.to_request(admit, deadline=1.0, owner="g", now=0.0).weight == kept
    for absurd in (math.nan, math.inf, -1.0):
        admit.weight = absurd
        with pytest.raises(WeirError):
            convert.to_request(admit, deadline=1.0, owner="g", now=0.0)


def test_a_backlog_of_hours_without_a_grant_does_not_break_the_prediction() -> None:
    target = pool(limits=steady(**all_ttls(1e6)))
    for number in range(2):
        target.admit(request(f"full{number}"), 0.0)
    for number in range(4):
        target.admit(request(f"w{number}", queue_class=QueueClass.FREE), 0.0)
    target.release("full0", 1.0, output_tokens=16)
    for now in range(7000, 7600, 2):
        answer, _ = target.admit(request(f"later{now}", queue_class=QueueClass.FREE), float(now))
        assert isinstance(answer, Queued | Refused)


def test_after_all_workers_were_lost_waits_are_predicted_as_before() -> None:
    target = pool(limits=steady(absence_grace=1e6, **all_ttls(1e6)))
    now, live = 0.0, [f"r{number}" for number in range(2)]
    for number in range(12):
        target.admit(request(f"r{number}"), now)
    for number in range(12, 400):
        now += 0.05
        _, events = target.release(live.pop(0), now, output_tokens=16)
        live += [event.request.request_id for event in events if isinstance(event, Granted)]
        target.admit(request(f"r{number}"), now)
    before = target.estimates.wait(request("next"), target.backlog, target.fleet, now)
    target.worker_left("w0", now)
    for name in live:
        target.release(name, now)
    for _ in range(600):
        now += 0.1
        target.tick(now)
    target.worker_joined(SPEC, now)
    target.worker_reported("w0", Report(100), now)
    after = target.estimates.wait(request("next"), target.backlog, target.fleet, now)
    assert before is not None
    assert after is not None
    assert after < 1.5 * before


# ---- edge shedding -----------------------------------------------------------------------------------------------


def test_a_tenants_first_request_is_not_taken_for_a_flood() -> None:
    target = pool()
    shedding = target.edge_shedding
    now = 0.0
    for number in range(1000):
        now = number * 0.01
        shedding.arrived(request("f", "flood"), 48.0, now)
        if number % 10:
            shedding.refused(request("f", "flood"), 48.0, 1.0, now)
        else:
            shedding.granted(request("f", "flood"), 48.0, now)
    shedding.arrived(request("s", "small"), 48.0, now)
    shedding.refused(request("s", "small"), 48.0, 1.0, now)
    assert [each.tenant for each in shedding.tenants(now + 0.02)] == ["flood"]


# ---- interruptions -----------------------------------------------------------------------------------------------


def test_room_made_for_a_request_that_leaves_is_not_kept_for_it() -> None:
    target = pool()
    for number in range(2):
        target.admit(request(f"batch{number}", queue_class=QueueClass.BATCH), 0.0)
    target.admit(request("lower", queue_class=QueueClass.BATCH), 0.0)
    target.admit(request("paid"), 1.0)
    interrupts = [event for event in target.tick(3.0) if isinstance(event, Interrupt)]
    assert len(interrupts) == 1
    assert target.cancel("paid", 3.1)[0]
    _, events = target.release(interrupts[0].request_ids[0], 3.2, output_tokens=4)
    assert [event.request.request_id for event in events if isinstance(event, Granted)] == ["lower"]


def test_resumed_work_is_left_alone_for_a_while() -> None:
    target = pool(limits=steady(preempt_grace=2.0))
    for number in range(2):
        resumed = request(f"batch{number}", prompt_tokens=32, resumed_tokens=16, queue_class=QueueClass.BATCH)
        assert isinstance(target.admit(resumed, 10.0)[0], Granted)
    target.admit(request("paid"), 10.5)
    assert not target.tick(11.9)
    assert [event for event in target.tick(12.1) if isinstance(event, Interrupt)]


# ---- losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["fair", "fifo"])
def test_what_waits_for_a_worker_that_does_not_come_back_does_not_block_the_others(discipline: str) -> None:
    limits = steady(discipline=discipline, **all_ttls(1e6), absence_grace=5.0)
    target = pool(SPEC, replace(SPEC, worker="w1", zone="zone-b"), limits=limits)
    for number in range(4):
        target.admit(request(f"full{number}"), 0.0)
    target.admit(request("there", zones=("zone-b",)), 0.0)
    target.admit(request("here", zones=("zone-a",)), 0.0)
    target.worker_left("w1", 1.0)
    assert not target.tick(5.0)
    (refused,) = target.tick(7.0)
    assert isinstance(refused, Refused)
    assert (refused.request.request_id, refused.limit) == ("there", "workers")
    served = [event for n in range(4) for event in target.release(f"full{n}", 8.0, output_tokens=4)[1]]
    assert [event.request.request_id for event in served if isinstance(event, Granted)] == ["here"]


def test_who_asks_last_for_a_waiting_request_owns_it_and_its_excludes_count() -> None:
    target = pool(SPEC, replace(SPEC, worker="w1"))
    for number in range(4):
        target.admit(request(f"full{number}"), 0.0)
    target.admit(request("r", owner="g1"), 0.0)
    assert isinstance(target.admit(request("r", owner="g2", excluded=frozenset({"w0"})), 0.0)[0], Queued)
    served = [event for n in range(4) for event in target.release(f"full{n}", 1.0, output_tokens=4)[1]]
    assert [(event.worker, event.request.owner) for event in served if isinstance(event, Granted)] == [("w1", "g2")]
    assert target.abandon("g1", 2.0)[0] == 0
    assert target.abandon("g2", 2.0)[0] == 1


# ---- grants ------------------------------------------------------------------------------------------------------


def test_a_share_for_more_gets_a_grant_of_its_own() -> None:
    async def main() -> None:
        clock = ManualClock()
        rng = random.Random(1)
        target = Coordinator(
            limits=steady(),
            clock=clock,
            random_bytes=rng.randbytes,
            grant_lifetime=5.0,
            worker_heartbeat=3.0,
            gateway_grace=5.0,
        )
        hello = pb.WorkerHello(worker="w0", address="127.0.0.1:1", zone="z", pool="p", model_versions=["m@1"])
        hello.block_size, hello.total_blocks, hello.max_running, hello.max_context = 16, 100, 2, 512
        target.worker_reported(target.worker_joined(hello), pb.CapacityReport(free_blocks=100))
        admit = pb.Admit(request_id="r", tenant="t", pool="p", model_version="m@1", prompt_tokens=16)
        admit.max_output_tokens, admit.choices, admit.queue_class = 16, 1, pb.QUEUE_CLASS_PAID
        deadline = clock.monotonic() + 60.0
        first = target.admit(admit, deadline=deadline, owner="g")
        admit.prompt_tokens = 32
        second = target.admit(admit, deadline=deadline, owner="g")
        assert isinstance(first, pb.AdmissionReply)
        assert isinstance(second, pb.AdmissionReply)
        assert first.granted.grant.grant != second.granted.grant.grant

    asyncio.run(main())
