"""Capacity: nothing is granted twice, foreign work is seen, workers come and go."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import Report, Request, WorkerSpec
from tests.support.admission_limits import steady

LIMITS = steady()
SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 100, 8, 512)


def request(number: int = 0, prompt: int = 16, output: int = 16, choices: int = 1, **more: object) -> Request:
    return replace(Request(f"r{number}", "acme", "m@1", prompt, output, choices, deadline=100.0), **more)


def fleet_of(*specs: WorkerSpec, limits: Limits = LIMITS) -> Fleet:
    made = Fleet(limits)
    for spec in specs or (SPEC,):
        made.join(spec, 0.0)
        made.workers[spec.worker].heard(Report(free_blocks=spec.total_blocks), 0.0)
    return made


def test_prompts_wait_here_once_a_worker_has_a_quarter_of_a_second_of_them() -> None:
    fleet = fleet_of(limits=steady(max_prefill_wait=0.25))
    for queued, fits in ((200, True), (300, False)):
        report = Report(SPEC.total_blocks, queued_prefill_tokens=queued, prefill_tokens_per_second=1000.0)
        fleet.workers["w0"].heard(report, 0.0)
        assert (fleet.pick(request("r0"), 0.0) is not None) is fits
        assert fleet.workers["w0"].fits(request("r0"), 0.0) is fits


@pytest.mark.parametrize(
    ("prompt", "output", "choices", "blocks"), [(1, 0, 1, 1), (16, 0, 1, 1), (16, 1, 1, 2), (10, 10, 3, 6)]
)
def test_blocks_are_counted_per_choice_and_rounded_up(prompt: int, output: int, choices: int, blocks: int) -> None:
    assert request(prompt=prompt, output=output, choices=choices).blocks(16) == blocks


def test_a_worker_gets_nothing_before_its_first_report() -> None:
    fleet = Fleet(LIMITS)
    fleet.join(SPEC, 0.0)
    assert not fleet.workers["w0"].fits(request(), 0.0)


def test_a_draining_or_lost_worker_gets_nothing() -> None:
    fleet = fleet_of()
    fleet.workers["w0"].heard(Report(free_blocks=100, draining=True), 0.0)
    assert not fleet.workers["w0"].fits(request(), 0.0)
    assert fleet.leave("w0")
    assert not fleet.leave("w0")
    assert fleet.workers == {}


def test_what_is_held_is_held_until_release_whatever_reports_say() -> None:
    fleet = fleet_of()
    fleet.reserve(request(1, prompt=256, output=256), "w0", 0.0)
    fleet.workers["w0"].heard(Report(free_blocks=99), 0.1)
    assert fleet.workers["w0"].free_blocks(0.1) == 100 - 32
    fleet.release("r1")
    assert fleet.workers["w0"].free_blocks(0.1) == 100
    assert fleet.release("r1") is None


def test_work_found_on_joining_counts_until_it_ends_or_its_time_is_over() -> None:
    fleet = Fleet(LIMITS)
    fleet.join(SPEC, 0.0)
    worker = fleet.workers["w0"]
    worker.heard(Report(free_blocks=40, running=3), 0.0)
    assert (worker.free_blocks(0.0), worker.free_sequences(0.0)) == (40, 5)
    fleet.reserve(request(1, prompt=256, output=256), "w0", 0.0)
    assert worker.free_blocks(0.0) == 8
    worker.heard(Report(free_blocks=70, running=2), 1.0)
    assert (worker.free_blocks(1.0), worker.free_sequences(1.0)) == (38, 5)
    worker.heard(Report(free_blocks=80, running=1), 61.0)
    assert (worker.free_blocks(61.0), worker.free_sequences(61.0)) == (68, 7)


def test_what_was_found_on_joining_counts_no_more_after_its_time_without_any_report() -> None:
    fleet = Fleet(msgspec.structs.replace(LIMITS, foreign_ttl=5.0))
    fleet.join(SPEC, 0.0)
    worker = fleet.workers["w0"]
    worker.heard(Report(free_blocks=40, running=3), 0.0)
    worker.heard(Report(free_blocks=40, running=3), 1.0)
    fleet.reserve(request(1, prompt=256, output=256), "w0", 1.0)
    worker.heard(Report(free_blocks=40, running=3), 2.0)
    assert (worker.room(4.9).blocks, worker.room(5.0).blocks) == (8, 100 - 32 - 28)


def test_a_release_that_overtakes_a_report_costs_capacity_only_until_the_next_one() -> None:
    fleet = fleet_of()
    fleet.reserve(request(1, prompt=256, output=256), "w0", 0.0)
    fleet.release("r1")
    worker = fleet.workers["w0"]
    worker.heard(Report(free_blocks=68, running=1), 0.1)
    assert worker.free_blocks(0.1) == 68
    worker.heard(Report(free_blocks=100), 0.2)
    assert worker.free_blocks(0.2) == 100


def test_disowned_work_counts_until_reports_show_it_gone() -> None:
    fleet = fleet_of()
    fleet.reserve(request(1, prompt=256, output=256), "w0", 0.0)
    assert fleet.disown(["r1", "unknown"], 1.0) == 1
    worker = fleet.workers["w0"]
    assert worker.free_blocks(1.0) == 68
    worker.heard(Report(free_blocks=90, running=1), 1.1)
    assert worker.free_blocks(1.1) == 90
    worker.heard(Report(free_blocks=100), 1.2)
    assert worker.free_blocks(1.2) == 100


def test_a_returning_worker_keeps_what_is_held_on_it() -> None:
    fleet = fleet_of()
    fleet.reserve(request(1, prompt=256, output=256), "w0", 0.0)
    fleet.leave("w0")
    assert fleet.serving("m@1") == []
    fleet.join(SPEC, 1.0)
    worker = fleet.workers["w0"]
    worker.heard(Report(free_blocks=90, running=1), 1.0)
    assert worker.free_blocks(1.0) == 68
    fleet.leave("w0")
    fleet.release("r1")
    assert fleet.workers == {}


def test_waiting_prefill_bounds_what_a_worker_is_given_but_never_blocks_an_idle_one() -> None:
    limits = steady(max_queued_prefill=100)
    fleet = fleet_of(replace(SPEC, total_blocks=1000), limits=limits)
    worker = fleet.workers["w0"]
    fleet.reserve(request(1, prompt=300), "w0", 0.0)
    assert not worker.fits(request(2, prompt=1), 0.0)
    worker.heard(Report(free_blocks=980, queued_prefill_tokens=90), 0.5)
    assert worker.fits(request(2, prompt=10), 0.5)
    assert not worker.fits(request(2, prompt=11), 0.5)


def test_the_sum_of_waiting_prefill_settles() -> None:
    fleet = fleet_of(limits=steady(max_queued_prefill=100, prefill_settle=0.1))
    worker = fleet.workers["w0"]
    fleet.reserve(request(1, prompt=100), "w0", 0.0)
    assert not worker.fits(request(2), 0.05)
    assert worker.fits(request(2), 0.2)


def test_a_share_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    fleet = fleet_of()
    with pytest.raises(ValueError, match="does not fit"):
        fleet.reserve(request(1, choices=9), "w0", 0.0)
    fleet.reserve(request(1), "w0", 0.0)
    with pytest.raises(ValueError, match="already"):
        fleet.reserve(request(1), "w0", 0.0)
    assert fleet.workers["w0"].held_sequences == 1


def test_the_first_zone_with_room_wins_then_the_least_loaded_worker() -> None:
    specs = [replace(SPEC, worker=f"w{n}", zone=z) for n, z in enumerate(["zone-a", "zone-a", "zone-b"])]
    fleet = fleet_of(*specs)
    asked = request(9, zones=("zone-a", "zone-b"))

    def picked() -> str:
        found = fleet.pick(asked, 0.0)
        assert found is not None
        return found.spec.worker

    assert picked() == "w0"
    fleet.reserve(request(1), "w0", 0.0)
    assert picked() == "w1"
    fleet.reserve(request(2, choices=8), "w1", 0.0)
    fleet.reserve(request(3, choices=7), "w0", 0.0)
    assert picked() == "w2"
    assert fleet.pick(asked, 0.0, kept={"w2"}) is None


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("admit"), st.integers(1, 300), st.integers(0, 300), st.integers(1, 4)),
            st.tuples(st.just("release"), st.integers(0, 40), st.just(0), st.just(0)),
            st.tuples(st.just("disown"), st.integers(0, 40), st.just(0), st.just(0)),
            st.tuples(st.just("report"), st.integers(0, 100), st.integers(0, 8), st.integers(0, 4)),
        ),
        max_size=60,
    )
)
def test_the_sum_of_what_is_held_never_exceeds_what_the_worker_has(steps: list[tuple[str, int, int, int]]) -> None:
    fleet = fleet_of()
    worker = fleet.workers["w0"]
    for number, (kind, a, b, c) in enumerate(steps):
        now = number * 0.5
        if kind == "admit":
            asked = request(number, prompt=a, output=b, choices=c)
            if worker.fits(asked, now):
                fleet.reserve(asked, "w0", now)
        elif kind == "release":
            fleet.release(f"r{a}")
        elif kind == "disown":
            fleet.disown([f"r{a}"], now)
        else:
            worker.heard(Report(free_blocks=a, running=b, waiting=c), now)
        held = list(fleet.reservations.values())
        assert worker.held_blocks == sum(share.request.blocks(16) for share in held) <= 100
        assert worker.held_sequences == sum(share.request.choices for share in held) <= 8


@pytest.mark.parametrize(("preemptive", "held"), [(False, 4), (True, 3)])
def test_a_preemptive_worker_is_promised_more_than_it_may_come_to_need(preemptive: bool, held: int) -> None:
    fleet = fleet_of(replace(SPEC, preemptive=preemptive), limits=steady(output_reserve=0.5))
    fleet.reserve(request(1, prompt=16, output=48), "w0", 0.0)
    assert fleet.workers["w0"].held_blocks == held


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_the_reserve_for_outputs_is_a_share(share: float) -> None:
    assert Limits(output_reserve=1.0).output_reserve == 1.0
    with pytest.raises(ValueError, match="output_reserve"):
        Limits(output_reserve=share)


def test_the_room_that_a_report_tells_of_shrinks_with_its_age() -> None:
    fleet = fleet_of(limits=steady(report_fresh=1.0, report_stale=3.0))
    worker = fleet.workers["w0"]
    fleet.reserve(request(1, prompt=256, output=64), "w0", 0.0)
    expected = {0.5: (80, 7), 1.0: (80, 7), 1.5: (60, 5), 2.0: (40, 3), 2.9: (4, 0), 3.0: (0, 0), 9.0: (0, 0)}
    for now, room in expected.items():
        assert (worker.free_blocks(now), worker.free_sequences(now)) == room
        assert (worker.room(now).blocks, worker.room(now).sequences) == room
        assert worker.fits(request(2, prompt=16, output=16), now) == (room[1] > 0)
    assert worker.held_blocks == 20
    worker.heard(Report(free_blocks=80, running=1), 9.0)
    assert worker.room(9.0).blocks == 80


def test_a_preemptive_worker_keeps_what_the_output_is_expected_to_be() -> None:
    specs = replace(SPEC, preemptive=True), replace(SPEC, worker="w1")
    fleet = Fleet(steady(output_reserve=0.5), expected_output=_expected)
    for spec in specs:
        fleet.join(spec, 0.0)
        fleet.workers[spec.worker].heard(Report(free_blocks=100), 0.0)
    for number, (tenant, held) in enumerate([("acme", 3), ("globex", 14), ("unknown", 8)]):
        asked = request(number, prompt=16, output=208, tenant=tenant)
        assert fleet.reserve(asked, "w0", 0.0).blocks == held
        fleet.release(asked.request_id)
        assert fleet.reserve(asked, "w1", 0.0).blocks == 14
        fleet.release(asked.request_id)


def _expected(asked: Request, produced: int) -> int | None:
    return {"acme": 20, "globex": 4000}.get(asked.tenant)


@pytest.mark.parametrize(("fresh", "stale"), [(3.0, 3.0), (-1.0, 3.0), (4.0, 3.0)])
def test_reports_grow_stale_after_they_were_fresh(fresh: float, stale: float) -> None:
    with pytest.raises(ValueError, match="report_stale"):
        Limits(report_fresh=fresh, report_stale=stale)
