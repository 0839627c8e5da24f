"""The bucket's promises: conservation, exact waits, refunds that never create tokens."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.gcra import MINUTE_NS, NEVER, Bucket

LIMITS = st.integers(1, 2_000_000)
BURSTS = st.integers(1, 5_000)
GAPS = st.integers(0, MINUTE_NS)


@settings(deadline=None)
@given(limit=LIMITS, burst=BURSTS, steps=st.lists(st.tuples(GAPS, st.integers(0, 6_000)), max_size=60))
def test_no_window_admits_more_than_rate_times_time_plus_burst(
    limit: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    bucket = Bucket(limit, burst)
    times = list(accumulate(gap for gap, _ in steps))
    admitted = [(now, cost) for now, (_, cost) in zip(times, steps, strict=True) if bucket.take(cost, now) == 0]
    for first in range(len(admitted)):
        total = 0
        for now, cost in admitted[first:]:
            total += cost
            assert (total - burst) * MINUTE_NS <= limit * (now - admitted[first][0])


@settings(deadline=None)
@given(
    limit=LIMITS,
    burst=BURSTS,
    steps=st.lists(st.tuples(GAPS, st.sampled_from(["take", "charge", "settle"]), st.integers(0, 6_000)), max_size=60),
)
def test_settling_never_creates_tokens(limit: int, burst: int, steps: list[tuple[int, str, int]]) -> None:
    bucket = Bucket(limit, burst)
    now = net = 0
    unsettled: list[int] = []
    for gap, action, amount in steps:
        now += gap
        if action == "settle" and unsettled:
            taken = unsettled.pop()
            bucket.settle(taken, amount, now)
            net += amount - taken
        elif action == "charge":
            bucket.charge(amount, now)
            net += amount
        elif bucket.take(amount, now) == 0:
            unsettled.append(amount)
            net += amount
            # Everything charged and not given back fits the rate since the start plus one burst.
            assert (net - burst) * MINUTE_NS <= limit * now
        assert 0 <= bucket.remaining(now) <= burst


@settings(deadline=None)
@given(limit=LIMITS, burst=BURSTS, drained=st.integers(0, 10_000), cost=st.integers(0, 6_000), start=GAPS)
def test_the_wait_is_exact(limit: int, burst: int, drained: int, cost: int, start: int) -> None:
    bucket = Bucket(limit, burst)
    bucket.charge(drained, start)
    wait = bucket.wait(cost, start)
    if wait == NEVER:
        assert cost > burst
    elif wait:
        assert bucket.take(cost, start + wait - 1) != 0
        assert bucket.take(cost, start + wait) == 0
    else:
        assert bucket.take(cost, start) == 0


@settings(deadline=None)
@given(limit=LIMITS, burst=BURSTS, taken=st.integers(0, 5_000), refunded=st.integers(0, 20_000), gap=GAPS)
def test_a_refund_stops_at_full(limit: int, burst: int, taken: int, refunded: int, gap: int) -> None:
    bucket = Bucket(limit, burst)
    bucket.take(taken, 0)
    bucket.refund(refunded, gap)
    assert bucket.remaining(gap) <= burst
    assert bucket.tat >= gap
    assert bucket.wait(burst + 1, gap) == NEVER


@settings(deadline=None)
@given(limit=LIMITS, burst=BURSTS, cost=st.integers(0, 5_000), gap=GAPS)
def test_taking_and_refunding_at_once_changes_nothing(limit: int, burst: int, cost: int, gap: int) -> None:
    bucket = Bucket(limit, burst)
    bucket.take(burst // 2, 0)
    before = bucket.remaining(gap), bucket.reset(gap)
    if bucket.take(cost, gap) == 0:
        bucket.refund(cost, gap)
    assert (bucket.remaining(gap), bucket.reset(gap)) == before


@settings(deadline=None)
@given(old=LIMITS, new=LIMITS, used=st.integers(0, 2_000_000), gap=GAPS)
def test_a_new_limit_keeps_what_was_consumed(old: int, new: int, used: int, gap: int) -> None:
    bucket = Bucket(old)
    bucket.take(min(used, old), 0)
    consumed = old - bucket.remaining(gap)
    bucket.rescale(new, new, gap)
    # Rounding the interval up twice costs a few units in millions, never gives any.
    assert bucket.remaining(gap) <= max(0, new - consumed + 1 + new // 10_000)
    assert bucket.reset(gap) <= bucket.tau


def test_a_full_bucket_gives_exactly_its_burst() -> None:
    bucket = Bucket(7)
    assert [bucket.take(1, 0) for _ in range(7)] == [0] * 7
    assert bucket.take(1, 0) == bucket.interval
    assert bucket.report(0) == (7, 0, 7 * bucket.interval)


def test_debt_is_waited_out() -> None:
    bucket = Bucket(60, 10)
    assert bucket.take(4, 0) == 0
    bucket.settle(4, 25, 0)
    second = MINUTE_NS // 60
    assert bucket.remaining(0) == 0
    assert bucket.wait(0, 0) == 15 * second
    assert bucket.wait(1, 0) == 16 * second


def test_state_goes_on_after_a_pause_and_survives_a_clock_that_stepped_back() -> None:
    bucket = Bucket(60)
    bucket.take(60, 0)
    state = bucket.state(0)
    later, back = Bucket(60), Bucket(60)
    later.restore(state, MINUTE_NS // 2, 5)
    back.restore(state, -MINUTE_NS, 5)
    assert later.remaining(5) == 30
    assert back.remaining(5) == 0


@pytest.mark.parametrize(("limit", "burst"), [(0, 1), (1, 0), (-5, 1)])
def test_a_bucket_that_could_admit_nothing_is_refused(limit: int, burst: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Bucket(limit, burst)
