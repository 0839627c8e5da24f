"""What locust's tables show of an answer, and the figures that are made of them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.figures import percentile, verdict
from loadtest.locust.messages import CHAT, INTERNAL, OPERATOR, Told
from loadtest.locust.rows import Row, bucket, default_targets, figures, is_refusal, parse_target, quantile, rows

SERVED = Told(id=1, seconds=0.3, events=(0.1, 0.12, 0.15), tokens=4, version="m@2")


@dataclass
class Entry:
    """As locust keeps a row."""

    method: str
    name: str
    num_requests: int = 0
    num_failures: int = 0
    total_content_length: int = 0
    response_times: Counter[float] = field(default_factory=Counter)


def shown(*made: Row) -> list[Entry]:
    """The tables after these rows, as locust sums them up."""
    entries: dict[tuple[str, str], Entry] = {}
    for row in made:
        entry = entries.setdefault((row.type, row.name), Entry(row.type, row.name))
        entry.num_requests += 1
        entry.num_failures += bool(row.failure)
        entry.total_content_length += row.tokens
        entry.response_times[bucket(row.ms)] += 1
    return list(entries.values())


def test_a_served_chat_shows_whole_first_token_every_gap_and_who_answered() -> None:
    assert list(rows(CHAT, SERVED)) == [
        Row("SSE", "chat", 300.0, 4, aside=False),
        Row("version", "m@2", 300.0, 4),
        Row("TTFT", "chat", 100.0),
        Row("ITL", "chat", 20.0),
        Row("ITL", "chat", 30.0),
    ]


def test_a_refusal_has_a_row_by_its_reason_and_is_no_failure() -> None:
    told = Told(id=1, outcome="QUOTA_TOKENS", seconds=0.004, retry_after=2.0)
    assert is_refusal(told)
    assert list(rows(INTERNAL, told)) == [Row("refused", "internal QUOTA_TOKENS", 4.0)]


@pytest.mark.parametrize(
    "told",
    [
        Told(id=1, outcome="WORKER_LOST", seconds=0.3, events=(0.1,)),
        Told(id=1, outcome="EVICTED_SHED", seconds=0.3, events=(0.1,)),
        Told(id=1, outcome="UNAUTHENTICATED", seconds=0.3),
    ],
    ids=["broken off", "taken back after its first token", "not admitted"],
)
def test_every_other_end_is_a_failure_that_counts(told: Told) -> None:
    whole = next(iter(rows(CHAT, told)))
    assert not is_refusal(told)
    assert (whole.type, whole.failure, whole.aside) == ("SSE", told.outcome, False)


def test_a_rollout_shows_what_it_reached_and_why_it_failed() -> None:
    reached = Told(id=1, seconds=3.0, steps=(("start", 0.5), ("promoted", 3.0)))
    assert list(rows(OPERATOR, reached)) == [
        Row("operator", "rollout start", 500.0),
        Row("operator", "rollout promoted", 3000.0),
    ]
    failed = Told(id=1, outcome="ROLLED_BACK", seconds=3.0, note="ttft is worse")
    assert [row.failure for row in rows(OPERATOR, failed)] == ["ROLLED_BACK: ttft is worse"]


def test_figures_of_a_run() -> None:
    refused = Told(id=1, outcome="REJECTED_DEADLINE", seconds=0.004)
    lost = Told(id=1, outcome="CONNECTION_LOST", seconds=0.3)
    made = [row for told in (SERVED, SERVED, refused, lost) for row in rows(CHAT, told)]
    made += rows(INTERNAL, refused)
    made += rows(OPERATOR, Told(id=1, steps=(("promoted", 9.0),)))
    found = figures(shown(*made), seconds=2.0)
    assert (found["requests"], found["requests_per_s"], found["tokens_per_s"]) == (5, 2.5, 4.0)
    assert (found["failed_requests"], found["failed_share"], found["refused_share"]) == (1, 0.2, 0.4)
    assert found["refused_rejected_deadline"] == 2, "of both kinds of users"
    assert (found["ttft_ms_chat_p50"], found["itl_ms_chat_p50"], found["itl_ms_chat_p95"]) == (100.0, 20.0, 30.0)
    assert not any("internal" in name for name in found), "nobody of them was served"
    assert (found["rollouts_promoted"], found["rollouts_failed"]) == (1, 0)


def test_a_run_without_an_answer_meets_nothing() -> None:
    found = figures([], seconds=1.0)
    targets = default_targets([CHAT, INTERNAL, OPERATOR])
    assert {verdict(found.get(name, math.nan), target) for name, target in targets.items()} == {"not measured"}


def test_targets_are_of_those_who_take_part() -> None:
    assert set(default_targets([CHAT])) == {"failed_share", "ttft_ms_chat_p95", "itl_ms_chat_p95"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft_ms_chat_p95<=500", ("ttft_ms_chat_p95", "≤ 500")),
        ("requests_per_s ≥ 12.5", ("requests_per_s", "≥ 12.5")),
        ("rollouts_failed=0", ("rollouts_failed", "= 0")),
    ],
)
def test_targets_are_read_as_people_write_them(text: str, expected: tuple[str, str]) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["ttft", "ttft<5", "ttft<=fast"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|could not convert"):
        parse_target(text)


@given(st.floats(1e-3, 1e7))
def test_times_are_counted_to_a_hundredth(ms: float) -> None:
    assert bucket(ms) == pytest.approx(ms, rel=0.01)


def test_times_that_differ_by_less_share_a_bucket() -> None:
    assert (bucket(8.381), bucket(8.384), bucket(0.0)) == (8.38, 8.38, 0.0)


@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_quantiles_of_counts_are_those_of_the_values(values: list[int], q: float) -> None:
    assert quantile(Counter(values), q) == percentile(values, q)
