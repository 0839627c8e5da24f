"""Order, back-off and giving up: pure decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.supervisor.policy import (
    LivenessPolicy,
    OrderError,
    RestartPolicy,
    Silence,
    StartupPolicy,
    gives_up,
    levels,
    next_restart,
    patience,
)


def test_levels_put_dependencies_first_and_independent_names_together() -> None:
    after = {"envoy": ["xds"], "etcd": [], "xds": ["etcd"], "router": ["etcd"], "collector": []}
    assert levels(after) == [["etcd", "collector"], ["xds", "router"], ["envoy"]]


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_levels_respect_every_edge_of_any_acyclic_graph(graph: tuple[int, set[tuple[int, int]]]) -> None:
    size, pairs = graph
    after = {str(i): [str(a) for a, b in pairs if b == i and a < b] for i in range(size)}
    place = {name: number for number, level in enumerate(levels(after)) for name in level}
    assert set(place) == set(after)
    assert all(place[needed] < place[name] for name, wanted in after.items() for needed in wanted)


def test_unknown_and_circular_dependencies_are_named() -> None:
    with pytest.raises(OrderError, match="a depends on x"):
        levels({"a": ["x"]})
    with pytest.raises(OrderError, match="circle: a, b"):
        levels({"a": ["b"], "b": ["a"], "c": []})


def delays(policy: RestartPolicy, runs: list[float], unit: float = 0.5) -> list[float]:
    failures, seen = 0, []
    for ran_for in runs:
        failures, delay = next_restart(policy, failures, ran_for=ran_for, unit=unit)
        seen.append(delay)
    return seen


def test_backoff_doubles_up_to_its_maximum() -> None:
    policy = RestartPolicy(initial=1, factor=2, maximum=5, reset_after=100)
    assert delays(policy, [0] * 5) == [1, 2, 4, 5, 5]


def test_a_stable_run_resets_the_backoff() -> None:
    policy = RestartPolicy(initial=1, factor=2, maximum=60, reset_after=20)
    assert delays(policy, [0, 0, 0, 20, 19.9]) == [1, 2, 4, 1, 2]


@given(st.integers(0, 10**6), st.floats(0, 0.999999))
def test_jitter_stays_within_its_share_and_never_overflows(failures: int, unit: float) -> None:
    policy = RestartPolicy(initial=0.25, factor=2, maximum=10, jitter=0.2)
    count, delay = next_restart(policy, failures, ran_for=0, unit=unit)
    base = min(0.25 * 2 ** min(failures, 60), 10)
    assert count == failures + 1
    assert base * 0.8 <= delay <= base * 1.2


@pytest.mark.parametrize(
    ("exits", "was_ready", "expected"), [(1, False, True), (1, True, False), (2, True, False), (3, True, True)]
)
def test_startup_gives_up_at_once_before_readiness_and_later_after_it(
    exits: int, was_ready: bool, expected: bool
) -> None:
    assert gives_up(StartupPolicy(), exits=exits, was_ready=was_ready) is expected


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=10), st.integers(1, 4), st.integers(0, 40))
def test_f7_what_hangs_has_answered_no_look_for_so_long(
    looks: list[tuple[int, bool]], least: int, seconds: int
) -> None:
    silence, now, unanswered = Silence(), 0, list[int]()
    for passed, answered in looks:
        now += passed
        unanswered = [] if answered else [*unanswered, now]
        silence.note(answered=answered, now=now)
        expected = len(unanswered) >= least and now - unanswered[0] >= seconds
        assert silence.hangs(LivenessPolicy(looks=least), seconds=seconds, now=now) == expected


def test_f7_a_start_that_was_too_slow_gets_longer_each_time() -> None:
    policy = LivenessPolicy(seconds=30)

    def borne(failures: int) -> float:
        return patience(policy, was_ready=False, ready_timeout=60, failures=failures)

    assert patience(policy, was_ready=True, ready_timeout=60, failures=4) == 30
    assert [borne(failures) for failures in (0, 1, 4)] == [60, 120, 300]
