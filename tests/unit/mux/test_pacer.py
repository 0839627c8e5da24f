"""The pacer waits under load, for no longer than it may, and never when the system is idle."""

from hypothesis import given
from hypothesis import strategies as st

from libs.mux.pacer import Pacer

LONGEST = 0.003


def steady(rate: float, seconds: float = 1.0) -> tuple[int, int]:
    """Items come evenly; returns how many items went out in how many messages."""
    pacer = Pacer(longest=LONGEST)
    now, sent, messages = 1.0, 0, 0
    gap = 1 / rate
    arrived = now
    while now < 1.0 + seconds:
        now = max(now, arrived)
        now += pacer.hold(now)
        count = 0
        while arrived <= now:
            arrived += gap
            count += 1
        pacer.wrote(count, now)
        sent += count
        messages += 1
    return sent, messages


def test_at_a_low_rate_every_item_leaves_at_once() -> None:
    sent, messages = steady(rate=200)
    assert messages == sent


def test_at_a_high_rate_items_travel_together() -> None:
    sent, messages = steady(rate=2000)
    assert 4 <= sent / messages <= 8


def test_at_a_very_high_rate_the_target_is_enough() -> None:
    sent, messages = steady(rate=50_000)
    assert sent / messages <= 16


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 0.5, allow_nan=False)), max_size=60))
def test_it_never_waits_longer_than_it_may(messages: list[tuple[int, float]]) -> None:
    pacer = Pacer(longest=LONGEST)
    now = 100.0
    for items, pause in messages:
        now += pause
        hold = pacer.hold(now)
        assert 0.0 <= hold <= LONGEST * 1.000001
        pacer.wrote(items, now)


def test_after_a_pause_the_first_item_does_not_wait() -> None:
    pacer = Pacer(longest=LONGEST)
    now = 1.0
    for _ in range(200):
        now += 0.0005
        pacer.wrote(1, now)
    assert pacer.hold(now) > 0
    assert pacer.hold(now + 1.0) == 0
    pacer.wrote(1, now + 1.0)
    assert pacer.hold(now + 1.0) == 0
