"""Deadlines are moments on a local clock and durations on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.clock import ManualClock, SystemClock
from libs.deadlines import Deadline, to_duration, to_seconds

seconds = st.floats(0, 1e6, allow_nan=False)


def test_a_deadline_runs_down_and_stays_passed() -> None:
    clock = ManualClock(start=100.0)
    deadline = Deadline.after(2.0, clock)
    assert (deadline.at, deadline.remaining(clock), deadline.expired(clock)) == (102.0, 2.0, False)
    clock.advance(2.0)
    assert deadline.expired(clock)
    clock.advance(1.0)
    # Passed is its own state: the remaining time goes below zero instead of looking urgent.
    assert (deadline.remaining(clock), deadline.timeout(clock)) == (-1.0, 0.0)


def test_no_time_at_all_is_already_passed() -> None:
    clock = ManualClock()
    assert Deadline.after(0.0, clock).expired(clock)


def test_the_stricter_binds() -> None:
    near, far = Deadline(1.0), Deadline(2.0)
    assert near.earlier(far) == far.earlier(near) == near
    assert near.earlier(None) == near
    assert near < far


@given(seconds)
def test_durations_keep_a_nanosecond(value: float) -> None:
    wire = to_duration(value)
    assert 0 <= wire.nanos < 1_000_000_000
    assert to_seconds(wire) == pytest.approx(value, abs=1e-9, rel=1e-15)
    assert to_seconds(wire) <= value + 1e-9  # never more time than there was


@given(st.lists(seconds.filter(lambda s: s < 1000), max_size=10))
def test_a_manual_clock_moves_both_times_alike(steps: list[float]) -> None:
    clock = ManualClock(start=5.0, epoch=1000.0)
    for step in steps:
        clock.advance(step)
    assert clock.monotonic() == pytest.approx(5.0 + sum(steps))
    assert clock.time() == pytest.approx(1000.0 + sum(steps))


def test_time_cannot_go_back() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="back"):
        clock.advance(-0.1)
    assert clock.monotonic() == 0.0


def test_the_system_clock_is_monotonic_and_civil() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    assert clock.monotonic() >= before
    assert clock.time() > 1_700_000_000
