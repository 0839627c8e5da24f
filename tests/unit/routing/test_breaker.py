"""Circuit breakers: open on our failures only, probe, close slowly; never on thin evidence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.breaker import FAULTS, Breaker, BreakerOptions, BreakerState, is_fault
from libs.errors import Reason

OPTIONS = BreakerOptions(
    window=10, buckets=10, min_volume=10, failure_rate=0.5, open_for=5, max_open_for=15, probes=3, slow_start=10
)
STEPS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0, 8)), max_size=80)


def opened(now: float = 100.0) -> Breaker:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=0, failures=10, now=now)
    return breaker


def closed_again(now: float = 105.0) -> Breaker:
    breaker = opened(now - 5.0)
    breaker.record(successes=3, failures=0, now=now)
    assert breaker.state(now) is BreakerState.CLOSED
    return breaker


def probes(breaker: Breaker, now: float, tries: int = 10) -> int:
    """Probes that are let through at once."""
    taken = 0
    for _ in range(tries):
        if breaker.can_probe(now):
            breaker.take_probe(now)
            taken += 1
    return taken


def test_it_opens_at_the_rate_with_enough_volume() -> None:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=4, failures=5, now=1.0)
    assert breaker.state(1.0) is BreakerState.CLOSED
    breaker.record(successes=1, failures=0, now=1.0)
    assert breaker.state(1.0) is BreakerState.OPEN


def test_it_stays_closed_below_the_rate() -> None:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=60, failures=40, now=1.0)
    assert breaker.state(1.0) is BreakerState.CLOSED


def test_old_outcomes_are_forgotten() -> None:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=0, failures=9, now=1.0)
    breaker.record(successes=0, failures=1, now=12.0)
    assert breaker.state(12.0) is BreakerState.CLOSED
    assert not breaker.idle(12.0)
    assert breaker.idle(23.0)


def test_half_open_lets_a_few_probes_through_per_interval() -> None:
    breaker = opened(100.0)
    assert probes(breaker, 104.9) == 0
    assert probes(breaker, 105.0) == 3
    assert probes(breaker, 105.9) == 0
    assert probes(breaker, 106.0, tries=1) == 1
    with pytest.raises(RuntimeError):
        opened(100.0).take_probe(104.9)


def test_asking_uses_up_nothing() -> None:
    breaker = opened(100.0)
    assert all(breaker.can_probe(105.0) for _ in range(20))
    assert probes(breaker, 105.0) == 3


def test_probe_successes_close_it_and_start_a_clean_window() -> None:
    breaker = opened(100.0)
    breaker.record(successes=2, failures=0, now=105.0)
    assert breaker.state(105.0) is BreakerState.HALF_OPEN
    breaker.record(successes=1, failures=0, now=105.0)
    assert breaker.state(105.0) is BreakerState.CLOSED
    breaker.record(successes=0, failures=9, now=105.0)
    assert breaker.state(105.0) is BreakerState.CLOSED


def test_a_failed_probe_opens_it_for_longer_up_to_the_longest() -> None:
    breaker = opened(100.0)
    now = 105.0
    for seconds in (10.0, 15.0, 15.0):
        breaker.record(successes=2, failures=1, now=now)
        assert breaker.state(now + seconds - 0.1) is BreakerState.OPEN
        now += seconds
        assert breaker.state(now) is BreakerState.HALF_OPEN
    breaker.record(successes=3, failures=0, now=now)
    breaker.record(successes=0, failures=10, now=now)
    assert breaker.state(now + 5.0) is BreakerState.HALF_OPEN  # closing resets the time to the first one


def test_stragglers_while_open_change_nothing() -> None:
    breaker = opened(100.0)
    breaker.record(successes=50, failures=50, now=103.0)
    assert breaker.state(104.9) is BreakerState.OPEN
    assert breaker.state(105.0) is BreakerState.HALF_OPEN


def test_after_closing_its_share_grows_to_all() -> None:
    breaker = closed_again(105.0)
    assert [breaker.share(105.0 + after) for after in (0.0, 0.5, 5.0, 9.0, 10.0, 99.0)] == [0.1, 0.1, 0.5, 0.9, 1, 1]
    assert sum(breaker.take_turn(105.0) for _ in range(100)) == 10
    assert all(breaker.take_turn(115.0) for _ in range(100))
    assert Breaker(OPTIONS).share(0.0) == 1.0
    assert opened(100.0).share(105.0) == 0.0


@given(st.lists(st.floats(0, 0.5), max_size=200))
def test_turns_taken_are_within_one_of_the_sum_of_the_shares(pauses: list[float]) -> None:
    breaker, now, taken, due = closed_again(105.0), 105.0, 0, 0.0
    for pause in pauses:
        now += pause
        if breaker.share(now) == 1.0:
            break
        due += breaker.share(now)
        taken += breaker.take_turn(now)
        assert -1e-6 <= due - taken < 1 + 1e-6


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 3)), max_size=60))
def test_it_never_opens_without_failures(steps: list[tuple[int, float]]) -> None:
    breaker, now = Breaker(OPTIONS), 0.0
    for successes, pause in steps:
        now += pause
        breaker.record(successes=successes, failures=0, now=now)
        assert breaker.state(now) is BreakerState.CLOSED


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 8)), max_size=80))
def test_it_never_opens_below_the_least_volume(steps: list[tuple[int, int, float]]) -> None:
    breaker, now = Breaker(OPTIONS), 0.0
    seen: list[tuple[float, int]] = []
    for successes, failures, pause in steps:
        now += pause
        breaker.record(successes=successes, failures=failures, now=now)
        seen.append((now, successes + failures))
        if breaker.state(now) is not BreakerState.CLOSED:
            assert sum(count for at, count in seen if at > now - OPTIONS.window) >= OPTIONS.min_volume
            return


@given(STEPS)
def test_an_open_breaker_always_becomes_askable_again(steps: list[tuple[int, int, float]]) -> None:
    breaker, now = Breaker(OPTIONS), 0.0
    for successes, failures, pause in steps:
        now += pause
        breaker.record(successes=successes, failures=failures, now=now)
    later = now + OPTIONS.max_open_for + OPTIONS.probe_interval
    assert breaker.state(later) is not BreakerState.OPEN
    assert breaker.state(later) is BreakerState.CLOSED or breaker.can_probe(later)


@given(st.lists(st.floats(0, 0.4), max_size=200))
def test_probes_are_bounded_per_interval(pauses: list[float]) -> None:
    breaker, now = opened(100.0), 105.0
    taken: list[float] = []
    for pause in pauses:
        now += pause
        taken += [now] * probes(breaker, now, tries=2)
    begins = -math.inf
    in_interval = 0
    for at in taken:
        if at >= begins + OPTIONS.probe_interval:
            begins, in_interval = at, 0
        in_interval += 1
        assert in_interval <= OPTIONS.probes


@pytest.mark.parametrize("reason", Reason)
def test_only_what_a_zone_does_wrong_counts(reason: Reason) -> None:
    assert is_fault(reason) is (reason in FAULTS)
    theirs = ("INVALID", "QUOTA", "REJECTED", "EVICTED", "CANCELLED", "DEADLINE", "SLOW", "PREEMPTED", "DRAINING")
    if reason.name.startswith(theirs):
        assert not is_fault(reason)


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"min_volume": 0},
        {"failure_rate": 0},
        {"open_for": 61},
        {"probes": 0},
        {"probe_interval": 0},
        {"slow_start": -1},
        {"slow_start_share": 0},
    ],
)
def test_senseless_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        BreakerOptions(**wrong)  # type: ignore[arg-type]
