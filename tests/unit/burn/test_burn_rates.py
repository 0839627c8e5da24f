"""Windows, burn rates, alerts and budgets."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.burn import PERIOD, WINDOWS, Tally, TallyError, alert_of, burn_rate, burns, consumed, scaled, slo_targets
from libs.burn.tally import Counted

START = 1_700_000_000.0
TARGET = 0.999


def steady(tally: Tally, share: float, seconds: float, *, begin: float = START, per_second: int = 1000) -> float:
    """Feeds a constant share of bad events, every ten seconds; returns when it ended."""
    now = begin
    while now < begin + seconds:
        now += 10.0
        bad = round(share * per_second * 10)
        tally.add(per_second * 10 - bad, bad, now)
    return now


@pytest.mark.parametrize("window", WINDOWS)
def test_a_steady_burn_is_seen_at_its_rate_in_every_window(window) -> None:
    tally = Tally()
    now = steady(tally, 0.0144, window.long, per_second=100_000)
    (said,) = burns(tally, TARGET, now, windows=[window])
    assert said.long == pytest.approx(14.4, rel=0.05)
    assert said.short == pytest.approx(14.4, rel=0.05)


def test_the_first_page_takes_an_hour_of_fast_burn_and_not_a_spike() -> None:
    tally = Tally()
    now = steady(tally, 0.0, 3600)
    # A spike of ten seconds with 60% errors: the short window sees it, the long one does not mind.
    tally.add(4_000, 6_000, now)
    page = burns(tally, TARGET, now)[0]
    assert page.short > page.window.factor > page.long
    assert not page.fires
    now = steady(tally, 0.03, 1900, begin=now)
    assert alert_of(burns(tally, TARGET, now)) == "page"


def test_an_alert_ends_soon_after_the_errors_do() -> None:
    tally = Tally()
    now = steady(tally, 0.05, 3600)
    assert burns(tally, TARGET, now)[0].fires
    now = steady(tally, 0.0, 310, begin=now)
    page = burns(tally, TARGET, now)[0]
    assert page.long > page.window.factor
    assert not page.fires


def test_a_slow_burn_is_a_ticket() -> None:
    tally = Tally()
    now = steady(tally, 0.0035, 86400, per_second=10_000)
    assert alert_of(burns(tally, TARGET, now)) == "ticket"


def test_minutes_of_a_young_service_raise_no_ticket_of_days() -> None:
    tally = Tally()
    tally.add(1_286, 4, 0.0)
    assert alert_of(burns(tally, 0.999, 600.0)) is None
    tally.add(1_286 * 11, 4 * 11, 7_190.0)
    assert alert_of(burns(tally, 0.999, 7_199.0)) is None
    assert alert_of(burns(tally, 0.999, 7_200.0)) == "ticket"
    # What burns fast pages at once, however young.
    young = Tally()
    young.add(900, 100, 0.0)
    assert alert_of(burns(young, 0.999, 60.0)) == "page"


def test_few_events_alert_nobody() -> None:
    tally = Tally()
    for _ in range(9):
        tally.add(0, 1, START)
    assert alert_of(burns(tally, TARGET, START + 1)) is None
    tally.add(0, 1, START)
    assert alert_of(burns(tally, TARGET, START + 1)) == "page"


def test_one_failure_alerts_nobody_however_large_its_share_is() -> None:
    tally = Tally()
    tally.add(16, 1, START)
    assert burns(tally, TARGET, START + 1)[0].short > 14.4
    assert alert_of(burns(tally, TARGET, START + 1)) is None
    tally.add(0, 1, START)
    assert alert_of(burns(tally, TARGET, START + 1)) == "page"


def test_scaled_windows_see_in_seconds_what_takes_hours() -> None:
    scale = 1 / 600
    tally = Tally(scale=scale)
    for tenth in range(70):
        tally.add(97, 3, START + tenth / 10)
    said = burns(tally, TARGET, START + 7.0, windows=scaled(WINDOWS, scale))
    assert said[0].window.long == 6.0
    assert said[0].fires
    assert not burns(tally, TARGET, START + 7.0, windows=scaled(WINDOWS, scale, factor=10))[0].fires


def test_the_budget_of_three_nines_is_43_minutes() -> None:
    tally = Tally()
    tally.add(1, 0, START)
    now = steady(tally, 1.0, 43.2 * 60)
    assert consumed(tally, TARGET, now) == pytest.approx(1.0, rel=0.01)
    # Twenty quiet days later it is as used up, as long as the errors are within the period.
    later = steady(tally, 0.0, 600, begin=now)
    assert consumed(tally, TARGET, later) == pytest.approx(1.0, rel=0.02)


def test_a_budget_comes_back_after_the_period() -> None:
    tally = Tally()
    tally.add(0, 100, START)
    tally.add(100, 0, START + PERIOD + 30_000)
    assert consumed(tally, TARGET, START + PERIOD + 30_000) == 0.0


def test_an_objective_of_one_allows_nothing() -> None:
    assert burn_rate(Counted(10**9, 1), 1.0) == float("inf")
    assert burn_rate(Counted(10**9, 0), 1.0) == 0.0


def test_targets_of_an_slo() -> None:
    slo = pb.Slo(ttft_p95=Duration(seconds=1), e2e_p99=Duration(seconds=9), availability=0.999)
    assert slo_targets(slo) == {"ttft_p95": 0.95, "e2e_p99": 0.99, "availability": 0.999}


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(0, 40_000, allow_nan=False)),
        min_size=1,
        max_size=200,
    )
)
def test_a_tally_counts_what_was_added_and_survives_being_stored(events) -> None:
    tally = Tally()
    now = START
    history = []
    for good, bad, pause in events:
        now += pause
        tally.add(good, bad, now)
        history.append((good, bad, now))
    for window in (300, 3600, 7200, 86400, 3 * 86400):
        counted = tally.count(window, now)
        width = next(
            width for width, slots in ((5, 64), (60, 64), (300, 80), (3600, 80)) if width * (slots - 1) >= window
        )
        surely = [(g, b) for g, b, at in history if at > now - window + width]
        at_most = [(g, b) for g, b, at in history if at > now - window - width]
        assert sum(b for _, b in surely) <= counted.bad <= sum(b for _, b in at_most)
        assert sum(g for g, _ in surely) <= counted.good <= sum(g for g, _ in at_most)
    again = Tally.load(tally.dump())
    assert again.since == tally.since
    assert [again.count(w, now) for w in (300, PERIOD)] == [tally.count(w, now) for w in (300, PERIOD)]
    assert len(tally.dump()) < 20_000


def test_a_clock_that_goes_back_neither_grows_nor_breaks_a_tally() -> None:
    tally = Tally()
    now = steady(tally, 0.5, 3600)
    for second in range(1000):
        tally.add(1, 1, now - 7200 + second)
    assert tally.count(60, now - 7200 + 999).total > 0
    assert len(tally.dump()) < 20_000


@pytest.mark.parametrize("stored", [b"", b"{}", b"[]", b'{"scale": 1, "since": null, "levels": [[1]]}'])
def test_what_is_not_a_tally_is_refused(stored) -> None:
    with pytest.raises(TallyError):
        Tally.load(stored)
