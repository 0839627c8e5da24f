"""Workers that fail their requests get none for a while, and come back carefully."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Ejection
from services.admission.policy.model import Report, Request, WorkerSpec
from services.admission.policy.outliers import Outliers
from tests.support.admission_limits import steady

SPEC = WorkerSpec("w0", "", "a", frozenset({"m@1"}), 16, 1000, 32, 4096)
NAMES = ["w0", "w1", "w2"]
LIMITS = Ejection(failures=3, seconds=10.0, max_seconds=25.0, probes=2, min_outcomes=10.0, margin=0.3)


def outliers(**changes: object) -> Outliers:
    return Outliers(Ejection(**({name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__} | changes)))


def fail(target: Outliers, worker: str, now: float, times: int = 3, names: list[str] = NAMES) -> bool:
    return [target.outcome(worker, now, failed=True, workers=names) for _ in range(times)][-1]


def test_failures_in_a_row_eject_for_a_time_and_successes_break_the_row() -> None:
    target = outliers()
    assert not fail(target, "w0", 0.0, 2)
    target.outcome("w0", 0.0, failed=False, workers=NAMES)
    assert not fail(target, "w0", 0.0, 2)
    assert fail(target, "w0", 0.0, 1)
    assert target.room("w0", 5.0) == (0, 10.0)
    assert target.room("w1", 5.0) == (None, float("inf"))


def test_it_comes_back_with_a_few_requests_and_stays_if_they_succeed() -> None:
    target = outliers()
    fail(target, "w0", 0.0)
    assert target.room("w0", 10.0) == (2, float("inf"))
    assert target.granted("w0", 10.0)
    assert target.granted("w0", 10.0)
    assert target.room("w0", 10.0)[0] == 0
    target.outcome("w0", 11.0, failed=False, workers=NAMES)
    target.probed("w0", 1)
    assert target.room("w0", 11.0)[0] == 1
    target.outcome("w0", 11.0, failed=False, workers=NAMES)
    assert target.room("w0", 11.0) == (None, float("inf"))
    assert not target.granted("w0", 11.0)


def test_one_failure_of_a_probe_ejects_again_for_longer_up_to_a_bound() -> None:
    target = outliers()
    fail(target, "w0", 0.0)
    assert fail(target, "w0", 12.0, 1)
    assert target.room("w0", 12.0) == (0, 32.0)
    assert fail(target, "w0", 33.0, 1)
    assert target.room("w0", 33.0) == (0, 58.0)
    late = 58.0 + 10 * 25.0
    for _ in range(2):
        target.outcome("w0", late, failed=False, workers=NAMES)
    fail(target, "w0", late)
    assert target.room("w0", late) == (0, late + 10.0)


def test_a_rate_well_above_the_others_ejects_and_a_common_one_does_not() -> None:
    target = outliers(failures=1000)
    for number in range(30):
        for name in NAMES:
            bad = number % 2 == 0 if name == "w0" else number % 10 == 0
            target.outcome(name, 0.0, failed=bad, workers=NAMES)
    assert [target.ejected(name, 0.0) for name in NAMES] == [True, False, False]
    common = outliers(failures=1000)
    for number in range(30):
        for name in NAMES:
            common.outcome(name, 0.0, failed=number % 2 == 0, workers=NAMES)
    assert not any(common.ejected(name, 0.0) for name in NAMES)


def test_old_failures_fade() -> None:
    target = outliers(failures=1000)
    for _ in range(9):
        target.outcome("w0", 0.0, failed=True, workers=NAMES)
    for _ in range(20):
        target.outcome("w0", 120.0, failed=False, workers=NAMES)
    assert not fail(target, "w0", 120.0, 1)


@given(
    st.integers(1, 8),
    st.sampled_from([0.0, 0.2, 0.34, 1.0]),
    st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.floats(0, 3)), max_size=120),
)
def test_never_more_than_the_share_is_out_and_never_the_last(
    count: int, share: float, events: list[tuple[int, bool, float]]
) -> None:
    names = [f"w{number}" for number in range(count)]
    target, now = outliers(share=share, failures=2), 0.0
    for worker, failed, later in events:
        now += later
        target.outcome(names[worker % count], now, failed=failed, workers=names)
        out = sum(target.ejected(name, now) for name in names)
        assert out <= min(count - 1, max(1, int(share * count)) if share else 0)


# ---- in the fleet ---------------------------------------------------------------------------------------------------


def request(number: int) -> Request:
    return Request(f"r{number}", "acme", "m@1", 16, 16, 1, deadline=1000.0)


def run(fleet: Fleet, number: int, worker: str, now: float, *, failed: bool, tokens: int = 5) -> None:
    fleet.reserve(request(number), worker, now)
    fleet.ended(f"r{number}", now, output_tokens=tokens, failed=failed, cached_prompt_tokens=0)
    fleet.release(f"r{number}")


def fleet_of(count: int) -> Fleet:
    fleet = Fleet(steady(ejection=LIMITS))
    for number in range(count):
        spec = replace(SPEC, worker=f"w{number}")
        fleet.join(spec, 0.0)
        fleet.workers[spec.worker].heard(Report(1000), 0.0)
    return fleet


def test_an_ejected_worker_gets_nothing_is_kept_for_nobody_and_returns_with_probes() -> None:
    fleet = fleet_of(2)
    for number in range(3):
        run(fleet, number, "w0", 0.0, failed=True)
    worker = fleet.workers["w0"]
    assert not worker.fits(request(9), 1.0)
    kept = fleet.to_keep(request(9), 1.0)
    assert kept is not None
    assert kept.spec.worker == "w1"
    for number in (10, 11):
        fleet.reserve(request(number), "w0", 10.0)
    assert not worker.fits(request(12), 10.0)
    fleet.release("r10")  # never submitted: says nothing, makes room for another probe
    assert worker.fits(request(12), 10.0)
    fleet.ended("r11", 10.0, output_tokens=1, failed=False, cached_prompt_tokens=0)
    fleet.release("r11")
    run(fleet, 13, "w0", 10.0, failed=False)
    for number in range(20, 25):
        fleet.reserve(request(number), "w0", 10.0)


def test_d6_streams_of_before_the_ejection_neither_prolong_it_nor_end_it() -> None:
    fleet = fleet_of(3)
    for number in range(20):
        fleet.reserve(request(number), "w0", 0.0)

    def end(number: int, now: float, *, failed: bool) -> None:
        fleet.ended(f"r{number}", now, output_tokens=5, failed=failed, cached_prompt_tokens=0)
        fleet.release(f"r{number}")

    for number in range(4):  # the fourth comes while it is out
        end(number, 1.0, failed=True)
    assert fleet.outliers.room("w0", 1.0) == (0, 11.0)
    for number, failed in ((4, True), (5, False), (6, False)):  # half open
        end(number, 11.0, failed=failed)
    assert fleet.outliers.room("w0", 11.0) == (2, float("inf"))
    for number in (30, 31):
        run(fleet, number, "w0", 12.0, failed=False)
    for number in range(7, 20):  # in use again
        end(number, 13.0, failed=True)
    assert fleet.outliers.room("w0", 13.0) == (None, float("inf"))


def test_d6_a_probe_of_an_earlier_probation_makes_no_room_in_this_one() -> None:
    fleet = fleet_of(3)
    for number in range(3):
        run(fleet, number, "w0", 0.0, failed=True)
    fleet.reserve(request(10), "w0", 10.0)
    run(fleet, 11, "w0", 10.0, failed=True)
    for number in (20, 21):
        fleet.reserve(request(number), "w0", 30.0)
    fleet.release("r10")
    assert fleet.outliers.room("w0", 30.0)[0] == 0


def test_what_neither_failed_nor_gave_a_token_is_no_outcome() -> None:
    fleet = fleet_of(2)
    for number in range(2):
        run(fleet, number, "w0", 0.0, failed=True)
    run(fleet, 2, "w0", 0.0, failed=False, tokens=0)  # a client that went away breaks no row of failures
    run(fleet, 3, "w0", 0.0, failed=True)
    assert fleet.outliers.ejected("w0", 0.0)
    fleet.ended("unknown", 0.0, output_tokens=1, failed=True, cached_prompt_tokens=0)


def test_the_last_worker_of_a_version_is_in_use_whatever_it_did() -> None:
    fleet = fleet_of(2)
    for number in range(3):
        run(fleet, number, "w0", 0.0, failed=True)
    assert not fleet.workers["w0"].fits(request(9), 1.0)
    fleet.reserve(request(8), "w1", 1.0)
    fleet.leave("w1")
    assert fleet.workers["w0"].fits(request(9), 1.0)
    fleet.ended("r8", 1.0, output_tokens=0, failed=True, cached_prompt_tokens=0)  # of a worker that is gone
    alone = fleet_of(1)
    for number in range(9):
        run(alone, number, "w0", 0.0, failed=True)
    assert alone.workers["w0"].fits(request(9), 0.0)


def test_a_worker_that_left_and_came_back_starts_anew() -> None:
    fleet = fleet_of(2)
    for number in range(3):
        run(fleet, number, "w0", 0.0, failed=True)
    fleet.leave("w0")
    fleet.join(SPEC, 1.0)
    fleet.workers["w0"].heard(Report(1000), 1.0)
    assert fleet.workers["w0"].fits(request(9), 1.0)


@pytest.mark.parametrize(
    "bad", [{"failures": 0}, {"share": 1.5}, {"seconds": 10.0, "max_seconds": 5.0}, {"window": 0.0}]
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="ejection"):
        Ejection(**bad)  # type: ignore[arg-type]
