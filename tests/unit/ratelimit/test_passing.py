"""How many requests may pass the edge without asking."""

import pytest

from libs.quota import MINUTE_NS, UNLIMITED, Admitted, LimitReport
from services.ratelimit.policy.passing import may_pass


def left(remaining: int, limit: int = 1000) -> LimitReport:
    return LimitReport(limit, remaining, 0, MINUTE_NS)


@pytest.mark.parametrize(
    ("state", "passing"),
    [
        (Admitted(), 1000),
        (Admitted(requests=left(960)), 60),
        (Admitted(requests=left(201)), 12),
        (Admitted(requests=left(200)), 0),
        (Admitted(requests=left(0)), 0),
        (Admitted(requests=left(10**9, 10**9)), 1000),
        (Admitted(requests=left(15, 15)), 0),
        (Admitted(tokens=left(201)), 1000),
        (Admitted(tokens=left(200)), 0),
        (Admitted(spend=left(200)), 0),
        (Admitted(requests=left(960), tokens=left(960), spend=left(1)), 0),
        (Admitted(concurrency=LimitReport(4, 0, 0), spend=UNLIMITED), 1000),
    ],
)
def test_many_far_from_every_limit_and_none_near_one(state: Admitted, passing: int) -> None:
    assert may_pass(state) == passing
