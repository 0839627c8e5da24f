"""How limits are told."""

import pytest

from libs.gcra import Admitted, Denied, LimitKind, LimitReport
from services.ratelimit.policy.headers import duration, limit_headers, replaced, retry_headers

UNLIMITED = LimitReport(0, 0, 0)


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
    assert dict(limit_headers(state, 60)) == {
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
    assert limit_headers(Admitted(UNLIMITED, UNLIMITED, UNLIMITED), 60) == []


def test_retry_after_is_rounded_up_and_absent_when_it_cannot_help() -> None:
    denied = Denied(LimitKind.TOKENS, "*", LimitReport(10, 0, 0), 5, 1_200_000_001)
    assert retry_headers(denied) == [("retry-after", "2"), ("retry-after-ms", "1201")]
    assert retry_headers(Denied(LimitKind.TOKENS, "*", LimitReport(10, 10, 0), 50, None)) == []


def test_the_refusing_limit_speaks_for_itself() -> None:
    denied = Denied(LimitKind.TOKENS, "fast", LimitReport(7, 0, 9), 5, 1)
    state = replaced(Admitted(LimitReport(60, 1, 2), LimitReport(100, 50, 3), UNLIMITED), denied)
    assert state == Admitted(LimitReport(60, 1, 2), LimitReport(7, 0, 9), UNLIMITED)
