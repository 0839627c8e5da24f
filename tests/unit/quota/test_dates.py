"""Days and months where clocks are put forward and back, and where midnight is not what one thinks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.quota.dates import Zone

HOUR = 3_600_000_000_000
ZONES = [
    "",
    "America/Havana",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Pacific/Marquesas",
]


def at(text: str) -> int:
    """Unix nanoseconds of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000_000


@pytest.mark.parametrize(
    ("zone", "when", "day", "hours", "month", "days"),
    [
        ("", "2026-11-23T23:59:59", "2026-11-23", 24, "2026-11", 30),
        ("", "2028-02-29T12:00", "2028-02-29", 24, "2028-02", 29),
        ("", "2026-02-28T12:00", "2026-02-28", 24, "2026-02", 28),
        ("", "2100-02-28T12:00", "2100-02-28", 24, "2100-02", 28),
        ("", "2026-12-31T23:59:59", "2026-12-31", 24, "2026-12", 31),
        ("Pacific/Kiritimati", "2026-12-31T10:00", "2027-01-01", 24, "2027-01", 31),
        ("Pacific/Marquesas", "2027-01-01T09:29:59", "2026-12-31", 24, "2026-12", 31),
        ("Asia/Kathmandu", "2026-11-30T18:15", "2026-12-01", 24, "2026-12", 31),
        ("Europe/Berlin", "2026-03-28T23:00", "2026-03-29", 23, "2026-03", 31 - 1 / 24),
        ("Europe/Berlin", "2026-10-25T22:59:59", "2026-10-25", 25, "2026-10", 31 + 1 / 24),
        ("Australia/Lord_Howe", "2026-10-03T20:00", "2026-10-04", 23.5, "2026-10", 31 - 0.5 / 24),
        # Midnight did not come on that day; it came twice; a minute after it, the evening came again.
        ("America/Sao_Paulo", "2018-11-04T12:00", "2018-11-04", 23, "2018-11", 30 - 1 / 24),
        ("America/Havana", "2026-11-01T12:00", "2026-11-01", 25, "2026-11", 30 + 1 / 24),
        ("America/St_Johns", "2010-11-07T12:00", "2010-11-07", 24, "2010-11", 30 + 1 / 24),
        # The day before the 31st was the 29th.
        ("Pacific/Apia", "2011-12-30T09:59:59", "2011-12-29", 24, "2011-12", 30),
        ("Pacific/Apia", "2011-12-30T10:00", "2011-12-31", 24, "2011-12", 30),
    ],
)
def test_days_and_months_are_those_of_the_zone(
    zone: str, when: str, day: str, hours: float, month: str, days: float
) -> None:
    known, wall = Zone(zone), at(when)
    today, this_month = known.day(wall), known.month(wall)
    assert (today.key, this_month.key) == (day, month)
    assert today.begins <= wall < today.ends
    assert today.ends - today.begins == pytest.approx(hours * HOUR, abs=61e9 if zone == "America/St_Johns" else 0)
    assert (this_month.ends - this_month.begins) / HOUR == pytest.approx(days * 24)


@settings(deadline=None)
@given(zone=st.sampled_from(ZONES), wall=st.integers(at("2009-01-01"), at("2030-01-01")))
def test_the_next_period_begins_where_one_ends(zone: str, wall: int) -> None:
    known = Zone(zone)
    for period in (known.day, known.month):
        now = period(wall)
        assert now.begins <= wall < now.ends
        assert period(now.ends - 1) == now
        assert period(now.begins) == now
        following = period(now.ends)
        assert following.begins == now.ends
        assert following.key > now.key


@pytest.mark.parametrize("name", ["Mars/Olympus", "America", "../../etc/passwd", "/etc/localtime", "a" * 300, "\0"])
def test_a_zone_that_nobody_knows_is_utc_and_says_so(name: str) -> None:
    zone = Zone(name)
    assert not zone.known
    assert zone.day(at("2026-11-23T23:00")).key == "2026-11-23"
    assert Zone("").known
