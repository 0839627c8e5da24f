"""Shares of the requests that began: whatever takes how long."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.rollout.v1 import rollout_pb2 as pb

from loadtest.rollout_traffic import canary_plan, ready_workers
from services.rollout import convert
from services.rollout.policy import ArmEvidence, Gate, Kind, Phase, Situation, Stage, State, Verdict, decide, judge
from services.rollout.policy.cohorts import Cell, Cohorts, Prompt, prefixes
from services.rollout.policy.keys import BUCKETS, KeySums

STATE = State(Phase.CANARY, 0, (5000,), 1.0)


def told(
    *,
    cells: dict[int, tuple[int, int, int]],
    now: float,
    longest: float = 60.0,
    older: tuple[int, int, int] = (0, 0, 0),
) -> pb.ArmOutcomes:
    """A report: second → (began, ended, failed), all failures prompt."""
    rows = [older, *cells.values()]
    return pb.ArmOutcomes(
        alias="weir-fast",
        rollout_id="r1",
        phase=3,
        arm="canary",
        requests=sum(row[1] for row in rows),
        errors=sum(row[2] for row in rows),
        cohorts=pb.Cohorts(
            seconds=list(cells),
            started=[row[0] for row in rows],
            ended=[row[1] for row in rows],
            errors=[row[2] for row in rows],
            broken=[0 for _ in rows],
            prompt=[row[2] for row in rows],
            longest=longest,
            now=now,
        ),
    )


def of(cohorts: Cohorts) -> ArmEvidence:
    return ArmEvidence(cohorts.every.ended, cohorts.every.errors, cohorts=cohorts)


def verdict(canary: Cohorts, baseline: Cohorts, metric: str = "error_rate") -> Verdict:
    plan = canary_plan(5000, gates=(Gate(metric, 0.01),))
    seen = {Stage(Phase.CANARY, 0, "canary"): of(canary), Stage(Phase.CANARY, 0, "baseline"): of(baseline)}
    (status,) = judge(plan, STATE, Situation(1.0, seen))
    return status.verdict


def test_f4_failures_that_come_before_answers_are_no_sign_of_more_of_them() -> None:
    """Both arms fail in one of a hundred; the baseline's answers are there, the canary's take longer."""
    baseline = Cohorts(Cell(2000, 2000, 20, 0), prompt=Prompt(2000, 20))
    canary = Cohorts(Cell(2000, 20, 20, 0), prompt=Prompt(2000, 20))
    assert verdict(canary, baseline) is not Verdict.BREACHED
    ended = (ArmEvidence(20, 20), ArmEvidence(2000, 20))
    plan = canary_plan(5000, gates=(Gate("error_rate", 0.01),))
    seen = {Stage(Phase.CANARY, 0, name): each for name, each in zip(("canary", "baseline"), ended, strict=True)}
    (status,) = judge(plan, STATE, Situation(1.0, seen))
    assert status.verdict is Verdict.BREACHED  # what ended would have said so


def test_f4_open_requests_of_the_baseline_may_still_fail() -> None:
    """The canary fails soon and the baseline late, equally often."""
    canary = Cohorts(Cell(500, 500, 50, 0))
    assert verdict(canary, Cohorts(Cell(500, 400, 0, 0))) is not Verdict.BREACHED
    assert verdict(canary, Cohorts(Cell(500, 500, 0, 0))) is Verdict.BREACHED


def test_f4_cohorts_that_had_time_to_end_are_judged_while_others_are_open() -> None:
    baseline = Cohorts(Cell(), ((100, Cell(500, 500, 5, 0)), (110, Cell(5000, 0, 0, 0))))
    canary = Cohorts(Cell(), ((100, Cell(500, 500, 150, 0)), (110, Cell(5000, 0, 0, 0))))
    assert verdict(canary, baseline) is Verdict.BREACHED


def test_f4_while_answers_take_minutes_prompt_failures_show() -> None:
    baseline = Cohorts(Cell(500, 5, 5, 0), prompt=Prompt(450, 5))
    assert verdict(Cohorts(Cell(500, 200, 200, 0), prompt=Prompt(450, 190)), baseline) is Verdict.BREACHED
    assert verdict(Cohorts(Cell(500, 200, 200, 0), prompt=Prompt(450, 5)), baseline) is not Verdict.BREACHED


def test_f4_broken_streams_are_of_those_that_began() -> None:
    baseline = Cohorts(Cell(1000, 1000, 0, 10))
    assert verdict(Cohorts(Cell(1000, 10, 0, 10)), baseline, "stream_completion") is not Verdict.BREACHED
    assert verdict(Cohorts(Cell(1000, 900, 0, 300)), baseline, "stream_completion") is Verdict.BREACHED


def test_f4_a_hanging_canary_has_failed_once_its_deadline_has_passed() -> None:
    began = {1000 + second: (10, 0, 0) for second in range(20)}
    young = convert.evidence(told(now=1070.0, cells=began))
    old = convert.evidence(told(now=1000.0 + 60.0 + 5.0 + 21.1, cells=began))
    assert young.cohorts is not None
    assert old.cohorts is not None
    # 1000 … 1003 are due: 60 s were given, 5 s are grace, and the cohort lasts a second.
    assert (young.cohorts.every.errors, young.cohorts.every.open) == (40, 160)
    assert (old.cohorts.every.errors, old.cohorts.every.open) == (200, 0)
    assert verdict(old.cohorts, Cohorts(Cell(200, 200, 0, 0))) is Verdict.BREACHED
    plan = canary_plan(5000, gates=(Gate("error_rate", 0.01),))
    fine = ArmEvidence(200, 0, cohorts=Cohorts(Cell(200, 200, 0, 0)))
    seen = {Stage(Phase.CANARY, 0, "canary"): old, Stage(Phase.CANARY, 0, "baseline"): fine}
    workers = ready_workers("weir-fast@1", "weir-fast@2")
    assert decide(plan, STATE, Situation(2.0, seen, workers)).kind is Kind.ROLL_BACK


def test_f4_what_is_no_longer_told_second_by_second_is_due_only_if_no_later_deadline_is_possible() -> None:
    short = convert.evidence(told(now=2000.0, longest=100.0, older=(5, 3, 0), cells={}))
    long = convert.evidence(told(now=2000.0, longest=600.0, older=(5, 3, 0), cells={}))
    assert short.cohorts is not None
    assert long.cohorts is not None
    assert (short.cohorts.every.errors, long.cohorts.every.errors) == (2, 0)


def test_f4_only_what_is_two_seconds_old_can_be_prompt() -> None:
    found = convert.evidence(told(now=1004.0, cells={1000: (4, 4, 1), 1001: (4, 4, 2), 1002: (4, 4, 4)}))
    assert found.cohorts is not None
    assert found.cohorts.prompt == Prompt(8, 3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda arm: arm.cohorts.started.append(1),
        lambda arm: arm.cohorts.errors.__setitem__(1, 9),
        lambda arm: arm.cohorts.prompt.__setitem__(1, 3),
        lambda arm: arm.cohorts.broken.__setitem__(1, 9),
        lambda arm: arm.cohorts.ended.__setitem__(1, 9),
        lambda arm: setattr(arm.cohorts, "longest", float("nan")),
        lambda arm: setattr(arm.cohorts, "now", float("inf")),
        lambda arm: arm.keys["errors"].counts.extend([1] * (BUCKETS - 1)),
        lambda arm: arm.keys["errors"].sums.extend([float("nan")] * BUCKETS),
    ],
)
def test_counts_that_cannot_be_are_left_out(spoil: Callable[[pb.ArmOutcomes], None]) -> None:
    arm = told(now=1010.0, cells={1000: (5, 4, 2)})
    assert len(list(convert.arm_reports([arm]))) == 1
    if "keys" in (spoil.__code__.co_names):
        arm.keys["errors"].SetInParent()
    spoil(arm)
    assert not list(convert.arm_reports([arm]))


cells = st.builds(lambda s, e, f: Cell(s + e + f, e + f, f, 0), *(st.integers(0, 5) for _ in range(3)))
cohorts = st.builds(
    lambda older, seconds, s, e: Cohorts(older, tuple(sorted(seconds.items())), Prompt(s + e, e)),
    cells,
    st.dictionaries(st.integers(0, 200), cells, max_size=20),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(cohorts, cohorts, cohorts)
def test_gateways_cohorts_add_in_any_order(one: Cohorts, other: Cohorts, third: Cohorts) -> None:
    assert one + other == other + one
    assert (one + other) + third == one + (other + third)
    assert (one + other).every == one.every.plus(other.every)


@given(cohorts, cohorts)
def test_prefixes_end_at_the_same_moments_and_shrink(one: Cohorts, other: Cohorts) -> None:
    found = list(prefixes(one, other))
    if one.every.started and other.every.started:
        assert found[0] == (one.every, other.every)
    for (ours, theirs), (less, less_there) in pairwise(found):
        assert less.started <= ours.started
        assert less_there.started <= theirs.started


def test_keys_of_gateways_add() -> None:
    one = KeySums((1,) * BUCKETS, (0.5,) * BUCKETS)
    assert one + one == KeySums((2,) * BUCKETS, (1.0,) * BUCKETS)
