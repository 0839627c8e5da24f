"""How limits are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.quota import DAY_NS, MINUTE_NS, Admitted, Denied, LimitKind, LimitReport, retry_headers
from libs.quota.headers import Header, duration, limit_headers
from services.ratelimit.policy.headers import jittered, replaced

UNLIMITED = LimitReport(0, 0, 0)


def told_of(outcome: Admitted) -> list[Header]:
    return limit_headers(outcome.requests, outcome.tokens, outcome.spend)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (20_000_000, "20ms"),
        (999_999_999, "1s"),
        (1_000_000_000, "1s"),
        (1_000_000_001, "2s"),
        (59_000_000_000, "59s"),
        (360_000_000_000, "6m0s"),
    ],
)
def test_times_are_written_as_openai_does_and_rounded_up(nanoseconds: int, text: str) -> None:
    assert duration(nanoseconds) == text


def test_both_families_of_headers() -> None:
    state = Admitted(LimitReport(60, 59, 1_000_000_000), LimitReport(1000, 100, 54_000_000_000), UNLIMITED)
    assert dict(told_of(state)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "54s",
        "ratelimit": '"requests";r=59;t=1, "tokens";r=100;t=54',
        "ratelimit-policy": '"requests";q=60;w=60, "tokens";q=1000;w=60',
    }


def test_unlimited_is_not_told() -> None:
    assert told_of(Admitted()) == []


def test_spend_is_told_in_the_headers_that_have_a_word_for_it() -> None:
    spend = LimitReport(5_000_000, 1_250_000, DAY_NS, DAY_NS)
    told = dict(told_of(Admitted(LimitReport(60, 59, 0, MINUTE_NS), spend=spend)))
    assert told["ratelimit"] == '"requests";r=59;t=0, "spend";r=1250000;t=86400'
    assert told["ratelimit-policy"] == '"requests";q=60;w=60, "spend";q=5000000;w=86400'
    assert not any(name.endswith("-spend") for name in told)


def test_retry_after_is_rounded_up_and_absent_when_it_cannot_help() -> None:
    assert retry_headers(1_200_000_001) == [("retry-after", "2"), ("retry-after-ms", "1201")]
    assert retry_headers(0) == [("retry-after", "1"), ("retry-after-ms", "1")]
    assert retry_headers(None) == []


@given(wait=st.integers(1, 10**14), chance=st.floats(0, 1))
def test_jitter_is_upward_and_little(wait: int, chance: float) -> None:
    later = jittered(wait, chance)
    assert later is not None
    assert wait <= later <= wait + max(wait // 10, 100_000_000)
    assert later <= wait + 60_000_000_000
    assert jittered(None, chance) is None


def test_the_refusing_limit_speaks_for_itself() -> None:
    denied = Denied(LimitKind.TOKENS, "fast", LimitReport(7, 0, 9), 5, 1)
    state = replaced(Admitted(LimitReport(60, 1, 2), LimitReport(100, 50, 3), UNLIMITED), denied)
    assert state == Admitted(LimitReport(60, 1, 2), LimitReport(7, 0, 9), UNLIMITED)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (LimitKind.REQUESTS, "requests"),
        (LimitKind.CONCURRENCY, "concurrency"),
        (LimitKind.SPEND, "spend"),
        (LimitKind.BUDGET_DAY, "spend"),
        (LimitKind.BUDGET_MONTH, "spend"),
    ],
)
def test_each_limit_has_its_place(kind: LimitKind, field: str) -> None:
    report = LimitReport(7, 0, 9)
    assert getattr(replaced(Admitted(), Denied(kind, "*", report, 1, 1)), field) == report


def test_limits_of_single_requests_are_no_state() -> None:
    denied = Denied(LimitKind.MAX_OUTPUT, "*", LimitReport(7, 7, 0), 9, None)
    assert replaced(Admitted(), denied) == Admitted()
