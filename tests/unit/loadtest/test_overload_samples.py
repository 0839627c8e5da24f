"""What is made of records: goodput, refusals, deliveries, windows and gaps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.bench_fairness import HEAVY, LIGHT, shares
from loadtest.figures import NothingFoundError
from loadtest.overload.meshes import completed
from loadtest.overload.samples import (
    Objective,
    Sample,
    busiest_window,
    decode,
    deliveries,
    encode,
    failed,
    itl_p95,
    read,
    refusal_seconds,
    refused,
    service_gap,
    summarise,
)
from simulation import records

OBJECTIVE = Objective(ttft=1.0, itl=0.1, e2e=5.0)


def sample(**fields: object) -> Sample:
    base: dict[str, object] = {
        "at": 1.0,
        "tenant": "a",
        "prompt_tokens": 10,
        "output_tokens": 4,
        "max_tokens": 4,
        "outcome": "ok",
        "ttft": 0.5,
        "e2e": 2.0,
        "delivered_tokens": 4,
    }
    return Sample(**(base | fields))  # type: ignore[arg-type]


def test_a_request_is_good_when_every_part_of_the_objective_is_met() -> None:
    assert OBJECTIVE.met(sample(ttft=1.0, itl_p95=0.1, e2e=5.0))
    assert not OBJECTIVE.met(sample(ttft=1.01))
    assert not OBJECTIVE.met(sample(itl_p95=0.11))
    assert not OBJECTIVE.met(sample(e2e=5.1))
    assert not OBJECTIVE.met(sample(ttft=None))
    assert not OBJECTIVE.met(sample(outcome="REJECTED_DEADLINE", ttft=None))


def test_every_end_is_served_refused_left_or_failed() -> None:
    assert refused(sample(outcome="REJECTED_OVERLOAD", ttft=None, delivered_tokens=0))
    assert refused(sample(outcome="QUOTA_TOKENS", ttft=None, delivered_tokens=0))
    cut = sample(outcome="EVICTED_DEADLINE", delivered_tokens=2)
    assert not refused(cut)
    assert failed(cut), "what was begun and not ended is no refusal"
    assert failed(sample(outcome="WORKER_LOST"))
    assert not failed(sample(outcome="CANCELLED"))
    assert not failed(sample())


def test_a_summary_counts_what_was_sent_in_its_window() -> None:
    samples = [
        sample(at=0.5),
        sample(at=1.0, ttft=0.2),
        sample(at=2.0, ttft=3.0),
        sample(at=2.5, outcome="REJECTED_DEADLINE", ttft=None, delivered_tokens=0),
        sample(at=2.9, outcome="INTERNAL", ttft=None, delivered_tokens=0, degraded=("x",)),
        sample(at=3.0),
    ]
    found = summarise(samples, OBJECTIVE, start=1.0, end=3.0)
    assert (found.offered, found.served, found.good) == (2.0, 1.0, 0.5)
    assert (found.ttft_p50, found.ttft_p95) == (0.2, 3.0)
    assert dict(found.refusals) == {"REJECTED_DEADLINE": 1}
    assert dict(found.failures) == {"INTERNAL": 1}
    assert dict(found.degraded) == {"x": 1}
    assert math.isnan(summarise([], OBJECTIVE, start=0.0, end=1.0).ttft_p95)


def test_refusals_are_timed_only_when_they_never_queued() -> None:
    samples = [
        sample(outcome="REJECTED_DEADLINE", ttft=None, delivered_tokens=0, e2e=0.01),
        sample(outcome="EVICTED_TTL", ttft=None, delivered_tokens=0, e2e=2.0),
        sample(e2e=0.3),
    ]
    assert refusal_seconds(samples, start=0.0, end=2.0) == [0.01]


def test_tokens_are_delivered_with_their_events() -> None:
    traced = sample(at=2.0, events=(0.5, 1.0), delivered_tokens=6, counted_prompt=9)
    assert deliveries(traced) == [(2.5, 9.0, 3.0), (3.0, 0.0, 3.0)]
    assert deliveries(sample(at=2.0, e2e=2.0)) == [(4.0, 10.0, 4.0)], "without a trace all counts at the end"
    assert deliveries(sample(outcome="QUOTA_TOKENS", ttft=None, delivered_tokens=0)) == []


def test_a_request_that_broke_counts_what_arrived() -> None:
    broken = sample(at=0.0, outcome="CONNECTION_LOST", events=(0.1, 0.2), delivered_tokens=2)
    assert sum(prompt + output for _, prompt, output in deliveries(broken)) == 12.0


amounts = st.lists(st.tuples(st.integers(0, 300).map(lambda n: n / 2), st.integers(1, 50)), max_size=40)


@given(events=amounts)
def test_the_busiest_window_is_that_of_a_plain_search(events: list[tuple[float, int]]) -> None:
    plain = max((sum(n for at, n in events if end - 60 < at <= end) for end, _ in events), default=0)
    assert busiest_window(events, 60.0) == plain


@given(one=amounts, other=amounts)
def test_the_service_gap_is_that_of_the_worst_interval(
    one: list[tuple[float, int]], other: list[tuple[float, int]]
) -> None:
    changes = sorted([*one, *((at, -n) for at, n in other)])
    sums = [0.0]
    for _, amount in changes:
        sums.append(sums[-1] + amount)
    plain = max(abs(b - a) for a in sums for b in sums)
    assert service_gap(one, other, start=0.0, end=1000.0) == pytest.approx(plain)


def test_gaps_between_events() -> None:
    assert itl_p95((1.0,)) is None
    assert itl_p95((0.0, 0.1, 0.3)) == pytest.approx(0.2)


def test_a_recorded_run_is_read_by_the_simulation_too(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    late, early = sample(at=2.0, zone="zone-a", degraded=("output_capped",)), sample(at=1.0)
    path.write_bytes(b'{"weir": "run", "workers": 2}\n' + encode(late) + encode(early))
    assert read(path) == [early, late]
    assert decode(encode(late)) == late
    header, seen = records.read(path)
    assert header["workers"] == 2
    assert [each.at for each in seen] == [1.0, 2.0]


def test_a_capacity_is_of_what_ended_in_the_window_and_of_all_where_nothing_did() -> None:
    served = [sample(at=float(at), e2e=1.0) for at in range(10)]
    assert completed(served, start=2.0, end=6.0) == 1.0
    assert completed(served, start=20.0, end=30.0) == 1.0, "ten in the ten seconds that they took"
    with pytest.raises(NothingFoundError, match="no request was served: QUOTA_TOKENS 2"):
        completed([sample(outcome="QUOTA_TOKENS")] * 2, start=0.0, end=1.0)


def test_two_tenants_of_whom_one_got_nothing_have_no_ratio_and_an_unserved_one_is_red() -> None:
    both = [sample(tenant=HEAVY.id, at=0.0), sample(tenant=LIGHT.id, at=0.0)]
    late = shares(both, start=1000.0, end=1010.0)
    assert (late.ratio, late.error) == (math.inf, math.inf)
    with pytest.raises(NothingFoundError, match="no token for light"):
        shares(both[:1], start=0.0, end=1.0)
