"""When a failed engine is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.worker.policy.restarts import Restarts


def restarts(limit: int = 3) -> Restarts:
    return Restarts(limit=limit, window=60.0, first_delay=0.25, max_delay=0.75)


def test_the_delay_doubles_up_to_its_bound_and_then_it_is_given_up():
    policy = restarts()
    assert [policy.failed(at) for at in (0.0, 1.0, 2.0, 3.0)] == [0.25, 0.5, 0.75, None]


def test_failures_outside_the_window_are_forgotten():
    policy = restarts()
    delays = []
    for at in (0.0, 60.0, 61.0, 121.0):
        delays.append(policy.failed(at))
        policy.started(at)
    assert delays == [0.25, 0.25, 0.5, 0.25]


def test_starts_that_fail_slowly_are_given_up_too():
    policy = restarts()
    policy.started(0.0)
    assert [policy.failed(at) for at in (10.0, 100.0, 200.0, 300.0)] == [0.25, 0.5, 0.75, None]


def test_the_time_of_a_start_is_no_quiet_time():
    policy = restarts()
    delays = []
    for at in (0.0, 100.0, 200.0, 300.0):
        policy.started(at + 90.0)
        delays.append(policy.failed(at + 100.0))
    assert delays == [0.25, 0.5, 0.75, None]


def test_a_limit_of_none_never_restarts():
    assert restarts(limit=0).failed(0.0) is None


@given(st.lists(st.floats(0.0, 100.0), max_size=40), st.integers(1, 5))
def test_there_are_never_more_than_the_limit_in_a_window(pauses, limit):
    policy, now, started = restarts(limit), 0.0, []
    for pause in pauses:
        now += pause
        if policy.failed(now) is not None:
            started.append(now)
        policy.started(now)
        assert sum(at > now - 60.0 + 1e-6 for at in started) <= limit  # sums of floats
