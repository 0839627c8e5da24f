"""When a refused caller is told to come back."""

from __future__ import annotations

import pytest

from libs.errors import Reason
from libs.quota import DAY_NS, MINUTE_NS, Denied, Ledger, LimitKind, LimitReport, LimitSpec, error_of, retry_headers

SECOND = 1_000_000_000


def told(denied: Denied, after: int | None) -> int:
    """The seconds in `retry-after`."""
    later = error_of(denied, after).retry_after
    assert later is not None
    return int(dict(retry_headers(round(later * SECOND)))["retry-after"])


def test_after_a_burst_nobody_is_told_more_than_the_minute_that_clients_obey() -> None:
    ledger = Ledger()
    ledger.apply_limits({("acme", "*"): LimitSpec(requests_per_minute=2)}, 0)
    outcomes = [ledger.admit_edge("acme", requests=1, tokens=0, spend=0, now=1) for _ in range(3)]
    denied = outcomes[-1]
    assert isinstance(denied, Denied)
    assert denied.retry_after_ns is not None
    assert denied.retry_after_ns > MINUTE_NS, "the use leaves with its slot, which lasts a second longer"
    assert told(denied, denied.retry_after_ns + SECOND) == 60  # a second of jitter


@pytest.mark.parametrize("kind", [LimitKind.REQUESTS, LimitKind.TOKENS, LimitKind.ROWS])
def test_limits_per_minute_say_a_minute_at_most(kind: LimitKind) -> None:
    denied = Denied(kind, "*", LimitReport(7, 0, 9), 1, 90 * SECOND)
    assert told(denied, 90 * SECOND) == 60
    assert told(denied, 59 * SECOND) == 59
    assert error_of(denied, None).retry_after is None


@pytest.mark.parametrize("kind", [LimitKind.SPEND, LimitKind.BUDGET_DAY, LimitKind.BUDGET_MONTH])
def test_longer_limits_say_how_long_it_is(kind: LimitKind) -> None:
    denied = Denied(kind, "*", LimitReport(7, 0, 9, DAY_NS), 1, 3 * DAY_NS)
    assert error_of(denied, 3 * DAY_NS).reason is Reason.QUOTA_SPEND
    assert told(denied, 3 * DAY_NS) == 3 * 86_400
