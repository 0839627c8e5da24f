"""Expected lengths that a tenant teaches: what short answers say of long ones, and what is held when they err."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.answer_lengths import Lengths
from services.admission.policy.fleet import Fleet
from services.admission.policy.model import (
    Granted,
    Queued,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from tests.support.admission_limits import steady

SPEC = WorkerSpec("w0", "w0", "z", frozenset({"m@1"}), 16, 1000, 64, 8192, preemptive=True, holds_shares=True)
LONG = Request("", "teacher", "m@1", 16, 4000, 1, 1e6, kv_share=0.1)  # 251 blocks; its tenant may hold 100


def taught(spec: WorkerSpec, cap: int) -> tuple[Pool, list[str]]:
    """A pool after a hundred answers of one token, and the long requests that it granted then."""
    pool = Pool("p", steady(), now=0.0)
    pool.worker_joined(spec, 0.0)
    pool.worker_reported("w0", Report(1000), 0.0)
    for number in range(100):
        asked = replace(LONG, request_id=f"short{number}", max_output_tokens=cap)
        assert isinstance(pool.admit(asked, 0.1 * number)[0], Granted)
        pool.release(asked.request_id, 0.1 * number, output_tokens=1)
    names = [f"long{number}" for number in range(60)]
    return pool, [n for n in names if isinstance(pool.admit(replace(LONG, request_id=n), 11.0)[0], Granted)]


def test_d2_answers_that_were_cut_after_a_token_teach_nothing_of_what_comes_after_it() -> None:
    pool, granted = taught(SPEC, cap=1)
    assert len(granted) == 1  # one it may always have
    assert pool.fleet.workers["w0"].held_blocks == 251


@pytest.mark.parametrize("cut_short", [False, True])
def test_d2_a_callers_hanging_up_is_not_the_end_of_an_answer(cut_short: bool) -> None:
    pool = Pool("p", steady(), now=0.0)
    pool.worker_joined(SPEC, 0.0)
    pool.worker_reported("w0", Report(1000), 0.0)
    for number in range(20):
        pool.admit(replace(LONG, request_id=f"r{number}"), 0.1 * number)
        pool.release(f"r{number}", 0.1 * number, output_tokens=1, cut_short=cut_short)
    assert pool.estimates.high_output(LONG) == (4000 if cut_short else 1)


@pytest.mark.parametrize("holds_shares", [True, False])
def test_d2_what_outgrows_its_expectation_is_counted_by_what_it_may_still_need(holds_shares: bool) -> None:
    pool, granted = taught(replace(SPEC, holds_shares=holds_shares), cap=4000)
    worker = pool.fleet.workers["w0"]
    assert (len(granted), worker.held_blocks) == (50, 100)  # short answers are what it really gave until now
    pool.worker_reported("w0", Report(900, running=50, progress=tuple((name, 16) for name in granted)), 11.5)
    assert worker.held_blocks == 50 * 251
    # Its tenant has had its share, and others have what its growth takes beyond that share where the worker sees to it.
    for number in range(3):
        answer, _ = pool.admit(replace(LONG, request_id=f"more{number}"), 11.6)
        assert isinstance(answer, Queued)
    other, _ = pool.admit(replace(LONG, request_id="other", tenant="other", max_output_tokens=64), 11.6)
    assert isinstance(other, Granted) is holds_shares
    for name in granted:
        pool.release(name, 12.0, output_tokens=4000)
    assert worker.held_blocks + worker.beyond_shares <= 1000
    assert pool.fleet.budgets.tenants["teacher"] <= 251


def test_d2_long_answers_are_expected_again_after_the_first_of_them() -> None:
    pool, granted = taught(SPEC, cap=4000)
    assert pool.estimates.high_output(LONG) == 1
    for name in granted[:10]:
        pool.release(name, 20.0, output_tokens=4000)
    assert pool.estimates.high_output(LONG) == 4000


def test_what_was_told_of_a_request_elsewhere_or_unknown_changes_nothing() -> None:
    fleet = Fleet(steady())
    for name in ("w0", "w1"):
        fleet.join(replace(SPEC, worker=name), 0.0)
        fleet.heard(name, Report(1000), 0.0)
    held = fleet.reserve(replace(LONG, request_id="r"), "w0", 0.0)
    before = held.blocks
    fleet.heard("w1", Report(1000, progress=(("r", 3000), ("nobody", 3000))), 1.0)
    assert held.blocks == before
    fleet.heard("w0", Report(1000, progress=(("r", 2**32 - 1),)), 1.0)
    assert held.blocks == 251  # never more than was granted


REQUESTS = st.tuples(st.just("admit"), st.integers(1, 400), st.integers(0, 400), st.integers(1, 3))
STEPS = st.lists(
    st.one_of(
        REQUESTS,
        st.tuples(st.just("release"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("disown"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("progress"), st.integers(0, 30), st.integers(0, 500), st.just(0)),
        st.tuples(st.just("join"), st.integers(50, 150), st.booleans(), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([0.0, 0.1, 0.5]))
def test_what_is_granted_fits_and_what_grows_is_counted_once(
    steps: list[tuple[str, int, int, int]], share: float
) -> None:
    fleet = Fleet(steady(), expected_output=lambda asked, produced: produced + 20)
    fleet.join(SPEC, 0.0)
    worker = fleet.workers["w0"]
    worker.heard(Report(1000), 0.0)
    told: dict[str, int] = {}
    for number, (kind, a, b, c) in enumerate(steps):
        name = f"r{a}"
        if kind == "admit":
            asked = replace(LONG, request_id=f"r{number}", tenant=f"t{a % 3}", prompt_tokens=a, max_output_tokens=b)
            asked = replace(asked, choices=c, kv_share=share)
            if fleet.fits(asked, worker, 0.0):
                fleet.reserve(asked, "w0", 0.0)
        elif kind == "release":
            fleet.release(name)
        elif kind == "disown":
            fleet.disown([name], 0.0)
        elif kind == "progress":
            fleet.heard("w0", Report(1000, progress=((name, b),)), 0.0)
            if name in fleet.reservations:
                told[name] = max(b, told.get(name, 0))
        else:
            fleet.join(replace(SPEC, total_blocks=max(10 * a, 1000), holds_shares=bool(b)), 0.0)
            worker.heard(Report(1000), 0.0)
        held = list(fleet.reservations.values())
        assert worker.held_blocks == sum(each.blocks for each in held) == sum(fleet.budgets.tenants.values())
        assert sum(each.blocks - each.grown for each in held) <= 1500
        assert worker.held_by_class.get(LONG.queue_class, (0, 0))[0] == worker.held_blocks
        assert 0 <= worker.beyond_shares <= sum(each.grown for each in held)
        if not share:
            assert worker.beyond_shares == 0
        for each in held:
            tokens = min(told.get(each.request.request_id, 0), each.request.max_output_tokens)
            assert each.blocks >= each.request.choices * -(-(each.request.prompt_tokens + tokens) // 16)
    for name in list(fleet.reservations):
        fleet.release(name)
    assert (worker.held_blocks, worker.beyond_shares, worker._tenants) == (0, 0, {})


# ---- the estimator ---------------------------------------------------------------------------------------------------


def lengths_of(*answers: tuple[int, bool]) -> Lengths:
    lengths = Lengths(min_samples=1)
    for tokens, cut in answers:
        lengths.learn("a", "m@1", tokens, cut=cut)
    return lengths


def test_the_product_limit_estimate_of_a_small_sample() -> None:
    # Of five: 2 ended, 3 was cut, 4 ended, 6 was cut, 8 ended: S = 4/5, 4/5 × 2/3, then 0.
    lengths = lengths_of((2, False), (3, True), (4, False), (6, True), (8, False))
    assert lengths.mean("a", "m@1") == pytest.approx(2 + 2 * 4 / 5 + 4 * 8 / 15)
    assert lengths.mean("a", "m@1", most=3) == pytest.approx(2 + 4 / 5)
    assert lengths.mean("a", "m@1", after=4) == pytest.approx(4)  # who outlived 4 comes to 8
    assert lengths.mean("a", "m@1", after=8, most=50) == 50  # nobody is known to
    assert lengths.high("a", "m@1") == 8
    assert lengths.high("a", "m@1", after=8) == math.inf
    assert lengths_of((2, False), (9, True)).high("a", "m@1") == math.inf


ANSWERS = st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=64)


@given(ANSWERS, st.integers(0, 300), st.integers(1, 400))
def test_the_estimate_is_the_definition_whatever_came(answers: list[tuple[int, bool]], after: int, most: int) -> None:
    lengths = lengths_of(*answers)

    def share(x: float) -> float:
        product = 1.0
        for end in sorted({tokens for tokens, cut in answers if not cut and tokens <= x}):
            ended = sum(tokens == end and not cut for tokens, cut in answers)
            product *= 1.0 - ended / sum(tokens >= end for tokens, _ in answers)
        return product

    going = share(after)
    mean, high = lengths.mean("a", "m@1", after=after, most=most), lengths.high("a", "m@1", after=after)
    if going < 1e-9:
        assert (mean, high) == (most, math.inf)
        return
    assert mean == pytest.approx(sum(share(x) for x in range(after, after + most)) / going, abs=1e-6)
    ends = [x for x in range(after, 301) if share(x) <= 0.1 * going + 1e-9]
    assert high == (ends[0] if ends else math.inf)


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=65, max_size=200))
def test_only_the_last_answers_count(answers: list[tuple[int, bool]]) -> None:
    all_of_them, last = lengths_of(*answers), lengths_of(*answers[-64:])
    assert all_of_them.mean("a", "m@1", most=99) == last.mean("a", "m@1", most=99)
    assert all_of_them.high("a", "m@1") == last.high("a", "m@1")


@given(ANSWERS, st.integers(0, 300))
def test_to_be_cut_never_makes_answers_look_shorter(answers: list[tuple[int, bool]], which: int) -> None:
    which %= len(answers)
    ended = lengths_of(*answers[:which], (answers[which][0], False), *answers[which + 1 :])
    cut = lengths_of(*answers[:which], (answers[which][0], True), *answers[which + 1 :])
    assert (cut.high("a", "m@1") or 0) >= (ended.high("a", "m@1") or 0)
    assert (cut.mean("a", "m@1", most=500) or 0) >= (ended.mean("a", "m@1", most=500) or 0) - 1e-9
