"""Expected lengths of answers: what is learned, from whom, and how much is remembered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.answer_lengths import Lengths
from services.admission.policy.fading import FadingMean, FadingRate
from services.admission.policy.model import Report, Request, WorkerSpec
from services.admission.policy.pool import Pool
from tests.support.admission_limits import steady


def test_nothing_is_said_before_enough_was_seen_and_then_the_nearest_source_counts() -> None:
    lengths = Lengths(min_samples=8)
    for _ in range(7):
        lengths.learn("a", "m@1", 100)
    assert lengths.mean("a", "m@1") is None
    assert lengths.high("a", "m@1") is None
    lengths.learn("b", "m@1", 100)
    assert lengths.mean("a", "m@1") == pytest.approx(100)  # the version's, of 8
    assert lengths.mean("a", "m@2") == pytest.approx(100)  # everybody's
    for _ in range(8):
        lengths.learn("b", "m@2", 20)
    assert lengths.mean("a", "m@2") == pytest.approx(20)
    lengths.learn("a", "m@1", 100)
    lengths.learn("c", "m@1", 1000)
    assert lengths.mean("a", "m@1") == pytest.approx(100)  # its own


def test_the_mean_and_the_quantile_follow_a_change() -> None:
    rng = random.Random(1)
    lengths = Lengths()
    for _ in range(500):
        lengths.learn("a", "m@1", rng.expovariate(1 / 100))
    mean, high = lengths.mean("a", "m@1"), lengths.high("a", "m@1")
    assert mean is not None
    assert high is not None
    assert 60 <= mean <= 140
    assert 140 <= high <= 380  # the exact 0.9 quantile is 230
    for _ in range(500):
        lengths.learn("a", "m@1", rng.expovariate(1 / 10))
    assert (lengths.mean("a", "m@1") or 0) < 20
    assert (lengths.high("a", "m@1") or 0) < 60


def test_about_nine_of_ten_answers_are_below_the_high_quantile() -> None:
    rng = random.Random(2)
    lengths = Lengths()
    below = total = 0
    for _ in range(3000):
        tokens = rng.lognormvariate(4.5, 0.8)
        high = lengths.high("a", "m@1")
        if high is not None:
            total += 1
            below += tokens <= high
        lengths.learn("a", "m@1", tokens)
    assert 0.86 <= below / total <= 0.94


def test_memory_is_bounded() -> None:
    lengths = Lengths(max_tracked=10)
    for number in range(1000):
        lengths.learn(f"t{number}", f"m@{number}", 1)
    assert len(lengths) == 20


@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=100))
def test_estimates_stay_within_what_was_seen(tokens: list[float]) -> None:
    mean = FadingMean(16.0)
    for each in tokens:
        mean.add(each)
    assert min(tokens) - 1e-6 <= mean.mean <= max(tokens) + 1e-6
    assert 0.0 <= mean.deviation <= max(tokens) - min(tokens) + 1e-6


def test_a_fading_rate_is_right_from_the_start_and_forgets() -> None:
    rate = FadingRate(10.0, 0.0)
    assert rate.per_second(0.0) == 0.0
    for second in range(1, 4):
        rate.add(float(second), 5.0)
    assert rate.per_second(3.0) == pytest.approx(5.0, rel=0.25)
    for second in range(4, 100):
        rate.add(float(second), 5.0)
    assert rate.per_second(99.0) == pytest.approx(5.0, rel=0.1)
    assert rate.per_second(150.0) < 0.1


@pytest.mark.parametrize(("how", "expected"), [({}, 10), ({"cut_short": True}, 200), ({"failed": True}, 200)])
def test_only_those_who_ended_by_themselves_teach_their_length(how: dict[str, bool], expected: int) -> None:
    pool = Pool("p", steady(), now=0.0)
    pool.worker_joined(WorkerSpec("w0", "w0", "z", frozenset({"m@1"}), 16, 1000, 10, 4096), 0.0)
    pool.worker_reported("w0", Report(1000), 0.0)
    for number in range(20):
        request = Request(f"r{number}", "a", "m@1", 10, 200, 1, 1e6)
        pool.admit(request, float(number))
        assert pool.release(request.request_id, float(number), output_tokens=10, **how)[0]
    assert pool.estimates.expected_output(Request("next", "a", "m@1", 10, 200, 1, 1e6)) == expected
