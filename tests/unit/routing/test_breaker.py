"""Circuit breakers: open on our failures only, probe, close; never on thin evidence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.breaker import Breaker, BreakerBoard, BreakerOptions, BreakerState

OPTIONS = BreakerOptions(window=10, buckets=10, min_volume=10, failure_rate=0.5, open_for=5, max_open_for=15, probes=3)


def opened(now: float = 100.0) -> Breaker:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=0, failures=10, now=now)
    return breaker


def test_it_opens_at_the_rate_with_enough_volume() -> None:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=4, failures=5, now=1.0)
    assert breaker.allow(1.0)
    breaker.record(successes=1, failures=0, now=1.0)
    assert breaker.state(1.0) is BreakerState.OPEN
    assert not breaker.allow(1.0)


def test_it_stays_closed_below_the_rate() -> None:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=60, failures=40, now=1.0)
    assert breaker.state(1.0) is BreakerState.CLOSED


def test_old_outcomes_are_forgotten() -> None:
    breaker = Breaker(OPTIONS)
    breaker.record(successes=0, failures=9, now=1.0)
    breaker.record(successes=0, failures=1, now=12.0)
    assert breaker.state(12.0) is BreakerState.CLOSED


def test_half_open_lets_a_few_probes_through_per_interval() -> None:
    breaker = opened(100.0)
    assert not breaker.allow(104.9)
    assert [breaker.allow(105.0) for _ in range(5)] == [True, True, True, False, False]
    assert not breaker.allow(105.9)
    assert breaker.allow(106.0)


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


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 3)), max_size=60))
def test_it_never_opens_without_failures(steps: list[tuple[int, float]]) -> None:
    breaker, now = Breaker(OPTIONS), 0.0
    for successes, pause in steps:
        now += pause
        breaker.record(successes=successes, failures=0, now=now)
        assert breaker.allow(now)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0, 8)), max_size=80))
def test_an_open_breaker_always_becomes_askable_again(steps: list[tuple[int, int, float]]) -> None:
    breaker, now = Breaker(OPTIONS), 0.0
    for successes, failures, pause in steps:
        now += pause
        breaker.record(successes=successes, failures=failures, now=now)
    later = now + OPTIONS.max_open_for + OPTIONS.probe_interval
    assert breaker.state(later) is not BreakerState.OPEN
    assert breaker.allow(later)


def test_a_board_keeps_pairs_apart_and_is_bounded() -> None:
    board = BreakerBoard(OPTIONS, max_breakers=1)
    board.record("fast", "zone-a", successes=0, failures=10, now=1.0)
    board.record("fast", "zone-b", successes=0, failures=10, now=1.0)
    assert board.is_open("fast", "zone-a", 1.0)
    assert not board.is_open("fast", "zone-b", 1.0)
    assert board.states(1.0) == {("fast", "zone-a"): BreakerState.OPEN}


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"min_volume": 0}, {"failure_rate": 0}, {"open_for": 61}, {"probes": 0}]
)
def test_senseless_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        BreakerOptions(**wrong)  # type: ignore[arg-type]
