"""How operators write and read times and money."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.deadlines import to_duration, to_seconds
from libs.resources.quantities import show_seconds, show_usd
from services.cli.app import UsageError
from services.cli.quantities import parse_microusd, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("0", 0.0, "0 s"),
        ("2", 2.0, "2 s"),
        ("500ms", 0.5, "500 ms"),
        ("0.5ms", 0.0005, "0.5 ms"),
        ("1.5s", 1.5, "1.5 s"),
        ("10s", 10.0, "10 s"),
        ("100", 100.0, "100 s"),
        ("5m", 300.0, "5 m"),
        ("24h", 86400.0, "1 d"),
        ("30d", 2592000.0, "30 d"),
    ],
)
def test_times(text: str, seconds: float, shown: str) -> None:
    assert parse_seconds(text, "--x") == pytest.approx(seconds)
    assert show_seconds(seconds) == shown
    assert to_seconds(to_duration(seconds)) == pytest.approx(seconds)


@given(st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000))
def test_times_are_read_back_as_they_are_shown(seconds: float) -> None:
    assert parse_seconds(show_seconds(seconds).replace(" ", ""), "--x") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 s", "1y", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_seconds(text, "--x")


@pytest.mark.parametrize(
    ("text", "micro", "shown"),
    [("0", 0, "$0.00"), ("$0.02", 20000, "$0.02"), ("1.500001", 1500001, "$1.500001"), ("12.3", 12300000, "$12.30")],
)
def test_money(text: str, micro: int, shown: str) -> None:
    assert parse_microusd(text, "--x") == micro
    assert show_usd(micro) == shown


@given(st.integers(0, 10**18))
def test_money_is_read_back_as_it_is_shown(micro: int) -> None:
    assert parse_microusd(show_usd(micro), "--x") == micro


@pytest.mark.parametrize("text", ["", "free", "-1", "0.0000001", "inf", "nan"])
def test_what_is_no_money_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_microusd(text, "--x")
