"""Requests by sticky key: what arms are judged by, and when they are not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadtest.rollout_traffic import canary_plan, ready_workers
from services.rollout.policy import (
    ArmEvidence,
    Distribution,
    Evidence,
    Gate,
    Kind,
    Phase,
    Plan,
    Situation,
    Stage,
    State,
    Verdict,
    decide,
    judge,
)
from services.rollout.policy.cohorts import Cell, Cohorts, Prompt
from services.rollout.policy.intervals import Level
from services.rollout.policy.keys import BUCKETS, KeySums, design_effect, few, numbers, room, surely_few

STATE = State(Phase.CANARY, 0, (5000,), 1.0)
WORKERS = ready_workers("weir-fast@1", "weir-fast@2")


def sums(counts: list[int], totals: list[float]) -> KeySums:
    rest = BUCKETS - len(counts)
    return KeySums((*counts, *[0] * rest), (*totals, *[0.0] * rest))


def side(counts: list[int], errors: list[int], ttft: float = 0.1) -> ArmEvidence:
    """Requests and errors by bucket; what did not fail had this time to the first token."""
    started, failed = sum(counts), sum(errors)
    served = started - failed
    good = [n - e for n, e in zip(counts, errors, strict=True)]
    return ArmEvidence(
        started,
        failed,
        served,
        served,
        ttft=Distribution.of([ttft] * served),
        cohorts=Cohorts(Cell(started, started, failed, 0), prompt=Prompt(started, failed)),
        keys={
            "errors": sums(counts, [float(e) for e in errors]),
            "broken": sums(counts, [0.0] * len(counts)),
            "ttft": sums(good, [n * math.log(ttft) for n in good]),
        },
    )


def seen(canary: ArmEvidence, baseline: ArmEvidence) -> Evidence:
    return {Stage(Phase.CANARY, 0, "canary"): canary, Stage(Phase.CANARY, 0, "baseline"): baseline}


def plan(metric: str = "error_rate", tolerance: float = 0.01, **fields: object) -> Plan:
    return canary_plan(5000, gates=(Gate(metric, tolerance),), **fields)


def verdict(canary: ArmEvidence, baseline: ArmEvidence, made: Plan) -> Verdict:
    (status,) = judge(made, STATE, Situation(1.0, seen(canary, baseline)))
    return status.verdict


def test_f5_one_failing_tenant_among_many_is_no_worse_version() -> None:
    baseline = side([50] * 40, [0] * 40)
    one = side([50] * 40, [40, *[0] * 39])
    spread = side([50] * 40, [1] * 40)
    assert one.errors == spread.errors
    tight = plan(tolerance=0.005)
    assert verdict(spread, baseline, tight) is Verdict.BREACHED
    assert verdict(one, baseline, tight) is Verdict.UNDECIDED


def test_f5_the_keys_of_an_arm_may_be_slower_and_its_version_not() -> None:
    rng = np.random.default_rng(3)

    def times(apart: float, shift: float) -> ArmEvidence:
        logs = rng.normal(math.log(0.1) + shift, apart, 30)
        requests = [float(log) for log in np.repeat(logs, 100) + rng.normal(0.0, 0.3, 3000)]
        by_key = sums([100] * 30, [float(sum(requests[100 * n : 100 * n + 100])) for n in range(30)])
        made = side([100] * 30, [0] * 30)
        values = Distribution.of(map(math.exp, requests))
        return replace(made, ttft=values, keys={**made.keys, "ttft": by_key})

    slow = plan("ttft", 0.2)
    for _ in range(5):
        assert verdict(times(0.6, 0.3), times(0.6, 0.0), slow) is not Verdict.BREACHED
        assert verdict(times(0.05, 0.35), times(0.05, 0.0), slow) is Verdict.BREACHED


def test_f5_few_keys_are_judged_with_room_and_go_nowhere_without_an_override() -> None:
    few_keys, many = side([50] * 5, [5] * 5), side([50] * 40, [0] * 40)
    assert verdict(few_keys, many, plan()) is Verdict.UNDECIDED
    assert verdict(few_keys, many, plan(few_keys=True)) is Verdict.BREACHED
    fine, short = side([50] * 5, [0] * 5), plan("error_rate", 0.5)
    late = Situation(1e6, seen(fine, many), WORKERS)
    held = decide(short, STATE, late)
    assert held.kind is Kind.HOLD
    assert "canary has 250 requests of so few keys that they fill 5 buckets of 64" in held.text
    assert decide(replace(short, few_keys=True), STATE, late).kind is Kind.PROMOTE
    assert decide(short, STATE, Situation(1e6, seen(many, many), WORKERS)).kind is Kind.PROMOTE


def test_f5_a_broken_version_is_taken_back_however_few_the_keys() -> None:
    assert verdict(side([30], [30]), side([50] * 9, [0] * 9), plan()) is Verdict.BREACHED


def test_f5_few_requests_are_not_few_keys() -> None:
    assert not few(sums([1] * 12, [0.0] * 12))
    assert few(sums([2] * 12, [0.0] * 12))
    assert not surely_few(sums([2] * 12, [0.0] * 12))
    assert surely_few(sums([5] * 12, [0.0] * 12))
    assert not few(sums([50] * 20, [0.0] * 20))
    young = seen(side([1] * 15, [1] * 8 + [0] * 7), side([3] * 45, [0] * 45))
    assert decide(plan(), replace(STATE, weights=(1000,)), Situation(2.0, young, WORKERS)).kind is Kind.ROLL_BACK


def test_f5_the_design_effect_is_one_of_independent_requests_and_the_size_of_keys_that_are_alike() -> None:
    rng = np.random.default_rng(5)
    found = [design_effect(sums([100] * 60, rng.binomial(100, 0.1, 60).astype(float).tolist())) for _ in range(200)]
    assert sum(found) / 200 < 1.25
    alike = sums([100] * 60, [100.0 if n < 6 else 0.0 for n in range(60)])
    assert design_effect(alike) > 100
    one_large = sums([3000, *[50] * 59], [300.0, *[0.0] * 59])
    assert design_effect(one_large) > 500
    assert design_effect(sums([100] * 60, [0.0] * 60)) == design_effect(sums([100] * 60, [100.0] * 60)) == 1.0


def test_f5_every_bucket_is_as_heavy_as_any_other() -> None:
    large = sums([10_000, *[10] * 29], [10_000.0, *[0.0] * 29])
    zero = sums([10] * 30, [0.0] * 30)
    found = numbers(large, zero, Level.of(0.01, 0.01), least_spread=0.05)
    assert found.estimate == pytest.approx(1 / 30)
    assert found.low < 0.0


def test_room_shrinks_with_keys_and_grows_with_certainty() -> None:
    def of(keys: int, budget: float) -> float:
        return room(0.3, sums([9] * keys, [0.0] * keys), sums([9] * 60, [0.0] * 60), budget)

    assert of(1, 9.0) > of(5, 9.0) > of(20, 9.0)
    assert of(5, 12.0) > of(5, 9.0)
    # 4.2 standard errors of a difference between one key and 60.
    assert of(1, 9.0) == pytest.approx(0.3 * math.sqrt(18.0 * (1 + 1 / 60)))


def test_f5_a_split_that_is_not_the_assigned_one_stops_judging_and_says_so() -> None:
    lost, whole = side([25] * 60, [2] * 60), side([50] * 60, [0] * 60)
    assert verdict(whole, whole, plan()) is Verdict.HOLDS
    assert verdict(lost, whole, plan(tolerance=0.06)) is Verdict.UNDECIDED
    decision = decide(plan(tolerance=0.06), STATE, Situation(1e6, seen(lost, whole), WORKERS))
    assert decision.kind is Kind.HOLD
    assert "33.33%, where 50.00% were assigned" in decision.text
    # Weights that were eased: requests of the step began under others.
    eased = replace(STATE, weights=(4000,))
    assert "assigned" not in decide(plan(tolerance=0.06), eased, Situation(1e6, seen(lost, whole), WORKERS)).text


def test_f5_large_keys_on_one_arm_are_no_wrong_split() -> None:
    """The share of the requests is far off; the share of the keys is not."""
    rng = np.random.default_rng(7)
    for _ in range(300):
        sizes = 2000 / np.arange(1, 201)
        arm, bucket = rng.random(200) < 0.1, rng.integers(0, BUCKETS, 200)
        counts = [np.bincount(bucket[which], sizes[which], BUCKETS).round().astype(int) for which in (arm, ~arm)]
        canary, baseline = (side(each.tolist(), [0] * BUCKETS) for each in counts)
        state = replace(STATE, weights=(1000,))
        made = canary_plan(1000, gates=(Gate("error_rate", 0.9),))
        assert "assigned" not in decide(made, state, Situation(1e6, seen(canary, baseline), WORKERS)).text


def test_f5_a_failing_arm_whose_callers_try_again_is_still_taken_back() -> None:
    again, whole = side([90] * 60, [40] * 60), side([50] * 60, [0] * 60)
    assert decide(plan(), STATE, Situation(2.0, seen(again, whole), WORKERS)).kind is Kind.ROLL_BACK
