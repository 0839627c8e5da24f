"""How breakers order and thin out a version's zones."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from libs.breaker import BreakerBoard, BreakerOptions, BreakerState

OPTIONS = BreakerOptions(min_volume=10, open_for=5, max_open_for=15, probes=3, slow_start=10)
ZONES = ("a", "b", "c")
M = "m@1"


def board(*broken: str, at: float = 100.0, **more: int) -> BreakerBoard:
    """With breakers that opened."""
    made = BreakerBoard(OPTIONS, **more)
    for zone in broken:
        made.record(M, zone, successes=0, failures=10, now=at)
    return made


def test_an_open_zone_is_left_out_for_its_version_alone() -> None:
    made = board("a")
    assert made.arrange(M, ZONES, 100.0) == ("b", "c")
    assert made.arrange("m@2", ZONES, 100.0) == ZONES
    assert made.states(100.0) == {(M, "a"): BreakerState.OPEN}
    assert BreakerBoard().arrange(M, ZONES, 0.0) == ZONES


def test_with_no_closed_zone_all_stay() -> None:
    assert board(*ZONES).arrange(M, ZONES, 100.0) == ZONES
    assert board("a").arrange(M, ("a",), 100.0) == ("a",)
    assert board("a").arrange(M, (), 100.0) == ()


def test_a_half_open_zone_is_first_for_exactly_its_probes() -> None:
    made = board("c")
    assert [made.arrange(M, ZONES, 105.0) for _ in range(5)] == [("c", "a", "b")] * 3 + [("a", "b")] * 2
    assert made.arrange(M, ZONES, 106.0) == ("c", "a", "b")


def test_zones_are_probed_one_per_request_and_no_probe_is_lost() -> None:
    made = board("a", "b", "c")
    asked = [made.arrange(M, ZONES, 105.0) for _ in range(10)]
    # Three probes each, every one of them at the head of a request's zones; then no zone is closed, so all stay.
    assert asked == [("a",)] * 3 + [("b",)] * 3 + [("c",)] * 3 + [ZONES]


def test_a_zone_that_came_back_takes_a_growing_share_of_its_turns() -> None:
    made = board("a")
    made.record(M, "a", successes=3, failures=0, now=105.0)
    for after, turns in ((0.0, 10), (5.0, 50), (10.0, 100)):
        found = Counter(made.arrange(M, ZONES, 105.0 + after) for _ in range(100))
        assert found[ZONES] == turns
        assert found[ZONES] + found["b", "c", "a"] == 100


def test_the_last_zone_takes_what_the_others_pass() -> None:
    made = board(*ZONES)
    for zone in ZONES:
        made.record(M, zone, successes=3, failures=0, now=105.0)
    found = [made.arrange(M, ZONES, 105.0) for _ in range(100)]
    assert Counter(zones[0] for zones in found) == {"a": 10, "b": 9, "c": 81}
    assert all(sorted(zones) == list(ZONES) for zones in found)


def test_a_board_is_bounded_and_forgets_the_idle_first() -> None:
    made = board("a", max_breakers=2)
    made.record(M, "b", successes=1, failures=0, now=100.0)
    made.record(M, "c", successes=0, failures=10, now=101.0)
    assert set(made.states(101.0)) == {(M, "a"), (M, "b")}
    made.record(M, "c", successes=0, failures=10, now=111.0)
    assert set(made.states(111.0)) == {(M, "a"), (M, "c")}


REPORTS = st.tuples(st.sampled_from(ZONES), st.integers(0, 12), st.integers(0, 12), st.floats(0, 6))


@given(st.lists(REPORTS, max_size=60), st.permutations(ZONES), st.integers(0, 3))
def test_failover_always_leaves_a_zone_and_invents_none(
    reports: list[tuple[str, int, int, float]], order: list[str], given_zones: int
) -> None:
    made, now = BreakerBoard(OPTIONS), 0.0
    zones = tuple(order[:given_zones])
    for zone, successes, failures, pause in reports:
        now += pause
        made.record(M, zone, successes=successes, failures=failures, now=now)
        states = made.states(now)
        arranged = made.arrange(M, zones, now)
        assert len(set(arranged)) == len(arranged)
        assert set(arranged) <= set(zones)
        assert bool(arranged) is bool(zones)
        healthy = [z for z in zones if states.get((M, z), BreakerState.CLOSED) is BreakerState.CLOSED]
        assert set(healthy) <= set(arranged)
        if healthy:
            assert all(states.get((M, z)) is not BreakerState.OPEN for z in arranged)


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=150))
def test_a_half_open_zone_sees_no_more_requests_than_probes(pauses: list[float]) -> None:
    made, now, begins, seen = board("b"), 105.0, float("-inf"), 0
    for pause in pauses:
        now += pause
        arranged = made.arrange(M, ZONES, now)
        if "b" in arranged:
            assert arranged[0] == "b"
            if now >= begins + OPTIONS.probe_interval:
                begins, seen = now, 0
            seen += 1
            assert seen <= OPTIONS.probes


@given(st.lists(REPORTS, max_size=40), st.lists(REPORTS, max_size=40), st.booleans())
def test_boards_of_different_pasts_that_hear_the_same_come_to_agree(
    one: list[tuple[str, int, int, float]], other: list[tuple[str, int, int, float]], works: bool
) -> None:
    """Whatever two routers knew: they agree on a zone that works within the longest time open, and on one that fails
    within the window, each plus one report."""
    boards = [BreakerBoard(OPTIONS), BreakerBoard(OPTIONS)]
    for made, past in zip(boards, (one, other), strict=True):
        now = 0.0
        for zone, successes, failures, pause in past:
            now = min(now + pause, 100.0)
            made.record(M, zone, successes=successes, failures=failures, now=now)
    now = 100.0
    bound = now + (OPTIONS.max_open_for if works else OPTIONS.window) + 0.5
    while now < bound:
        now += 0.5
        for made in boards:
            made.record(M, "a", successes=5 * works, failures=10 * (not works), now=now)
    assert [made.states(now)[M, "a"] is BreakerState.CLOSED for made in boards] == [works] * 2


def test_a_zone_that_came_back_takes_the_same_share_wherever_that_is_followed() -> None:
    made, following = board("a"), BreakerBoard(OPTIONS)
    following.follow(made.standings(101.0), 101.0)
    assert following.states(104.9) == {(M, "a"): BreakerState.OPEN}
    assert following.states(105.1) == {(M, "a"): BreakerState.HALF_OPEN}
    made.record(M, "a", successes=3, failures=0, now=105.0)
    first: Counter[str] = Counter()
    for _ in range(100):  # told again and again, it still counts its turns
        following.follow(made.standings(110.0), 110.0)
        first[following.arrange(M, ZONES, 110.0)[0]] += 1
    assert first == {"a": 50, "b": 50}
    following.follow(made.standings(115.0), 115.0)
    assert following.states(115.0) == {}


@given(st.lists(REPORTS, max_size=60), st.lists(st.floats(0, 12), min_size=1, max_size=10))
def test_a_board_that_follows_another_arranges_as_it_does(
    reports: list[tuple[str, int, int, float]], pauses: list[float]
) -> None:
    """Told of each opening and closing, and of nothing else; but for probes, which are the other's to give out."""
    made, following, now = BreakerBoard(OPTIONS), BreakerBoard(OPTIONS), 0.0
    for zone, successes, failures, pause in reports:
        now += pause
        if made.record(M, zone, successes=successes, failures=failures, now=now):
            following.follow(made.standings(now), now)
    for pause in pauses:
        now += pause
        half_open = BreakerState.HALF_OPEN in made.states(now).values()
        assert following.half_open(M, ZONES, now) is made.half_open(M, ZONES, now) is half_open
        if not half_open:
            turns = [Counter(each.arrange(M, ZONES, now)[0] for _ in range(50)) for each in (made, following)]
            # Each counts its own turns: within one of a zone's share of them, for each zone before it.
            assert all(abs(turns[0][zone] - turns[1][zone]) <= 2 for zone in ZONES)
