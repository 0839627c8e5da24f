"""What gates say, when they say nothing, and in which words."""

from dataclasses import replace

import pytest

from loadtest.rollout_traffic import canary_plan
from services.rollout.policy import (
    DEFAULT_GATES,
    PREDICTION_GATES,
    ArmEvidence,
    Burn,
    CostMoments,
    Distribution,
    Gate,
    GateAction,
    GateStatus,
    GoodBad,
    Moments,
    Phase,
    ShadowPlan,
    Situation,
    Stage,
    State,
    Verdict,
    gates_of,
    judge,
)
from services.rollout.policy.gates import Split, improved

CANARY = State(Phase.CANARY, 0, (1000,), 1.0)
SHADOW = State(Phase.SHADOW, 0, (), 1.0)
TIMES = (0.08, 0.1, 0.125, 0.09, 0.11)


def said(gate: Gate, ours: ArmEvidence, theirs: ArmEvidence, state: State = CANARY, **fields: object) -> GateStatus:
    mirrored = state.phase is Phase.SHADOW
    seen = {
        Stage(state.phase, 0, "baseline"): theirs,
        Stage(state.phase, 0, "canary", mirrored): ours,
    }
    plan = canary_plan(1000, gates=(gate,), shadow=ShadowPlan(1000))
    (status,) = judge(plan, state, Situation(1.0, seen, **fields))  # type: ignore[arg-type]
    return status


def times(factor: float, count: int) -> Distribution:
    return Distribution.of(factor * TIMES[n % 5] for n in range(count))


def test_versions_that_predict_are_judged_by_what_predictions_have() -> None:
    plan = canary_plan(1000, predicts=True)
    assert gates_of(plan) == PREDICTION_GATES
    own = (Gate("latency_p95", 0.1),)
    assert gates_of(canary_plan(1000, gates=own, predicts=True)) == own
    same = {"latency": "ttft", "latency_p95": "ttft_p95", "latency_p99": "ttft_p99"}
    same["cost_per_1k_rows"] = "cost_per_1k_tokens"
    renamed = [replace(gate, metric=same.get(gate.metric, gate.metric)) for gate in PREDICTION_GATES]
    streams = ("stream_completion", "itl", "score:mean_logprob")
    assert renamed == [gate for gate in DEFAULT_GATES if gate.metric not in streams]


def test_a_rollout_without_gates_has_the_default_ones() -> None:
    assert gates_of(canary_plan(1000)) == DEFAULT_GATES
    own = (Gate("ttft", 0.1),)
    assert gates_of(canary_plan(1000, gates=own)) == own
    p99 = next(gate for gate in DEFAULT_GATES if gate.metric == "ttft_p99")
    costs = [gate for gate in DEFAULT_GATES if gate.metric == "cost_per_1k_tokens"]
    assert p99.on_breach is GateAction.HOLD
    assert [(gate.on_breach, gate.must_hold) for gate in costs] == [
        (GateAction.HOLD, True),
        (GateAction.ROLL_BACK, False),
    ]


@pytest.mark.parametrize("gates", [(), (Gate("error_rate"),), (Gate("ttft"), Gate("itl")), (Gate("error_rate"),) * 3])
@pytest.mark.parametrize("shadow", [None, ShadowPlan(1000)])
def test_the_parts_of_alpha_add_up_to_no_more_than_alpha(gates: tuple[Gate, ...], shadow: ShadowPlan | None) -> None:
    plan = canary_plan(100, 1000, 5000, gates=gates, shadow=shadow, alpha=0.02)
    split = Split.of(plan)
    each = sum(split.breach(gate.metric) for gate in gates_of(plan)) + split.breach("share")
    stages = 3 + (shadow is not None)
    assert 0.009 < stages * each <= 0.02 + 1e-12
    assert split.holds == 0.02


def test_a_slow_arm_is_told_in_words_with_its_numbers() -> None:
    status = said(Gate("ttft", 0.2), ArmEvidence(24, ttft=times(2.9, 24)), ArmEvidence(210, ttft=times(1.0, 210)))
    assert status.verdict is Verdict.BREACHED
    assert status.difference == pytest.approx(1.9, abs=0.05)
    assert 0.2 < status.low < status.difference < status.high
    assert (status.samples, status.baseline_samples) == (24, 210)
    assert status.text.startswith(
        "TTFT (geometric mean) of canary is 2.89 times the baseline's: 288 ms against 99.8 ms (98.9%: 2."
    )
    assert status.text.endswith("24 and 210 samples), tolerated 1.20")


def priced(price: float, count: int, reference: float = 1.0, output: int = 1) -> CostMoments:
    """Requests of uneven length at a price per token, and at the baseline's."""
    sizes = [float(size) for size in range(1, count + 1)]
    references = [reference * size for size in sizes] if reference else []
    return CostMoments.of([(price * size, output * size) for size in sizes], references)


def cost_gate(ours: CostMoments, theirs: CostMoments) -> GateStatus:
    gate = Gate("cost_per_1k_tokens", 0.02, must_hold=True)
    return said(gate, ArmEvidence(ours.count, cost=ours), ArmEvidence(theirs.count, cost=theirs))


def test_a_dear_arm_is_told_in_dollars_for_the_same_tokens() -> None:
    # Its mix is cheaper: beside the baseline's own cost per token it would look cheap.
    status = cost_gate(priced(1.5, 40, output=4), priced(1.0, 90))
    assert status.verdict is Verdict.BREACHED
    assert "is 1.50 times the baseline's for the same tokens: $0.000375 against $0.00025 (" in status.text


def test_where_nothing_has_a_price_nothing_is_dearer() -> None:
    assert cost_gate(priced(0.0, 40, 0.0), priced(0.0, 90, 0.0)).verdict is Verdict.HOLDS
    assert cost_gate(priced(0.0, 9, 0.0), priced(0.0, 90, 0.0)).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(("ours", "theirs", "reference"), [(1.0, 0.0, 0.0), (0.0, 1.0, 1.0)])
def test_without_a_price_of_either_it_says_what_is_missing(ours: float, theirs: float, reference: float) -> None:
    status = cost_gate(priced(ours, 40, reference), priced(theirs, 90, reference))
    assert status.verdict is Verdict.UNDECIDED
    assert "one has no price, so they cannot be compared (weir get prices)" in status.text


def test_a_price_that_changes_for_both_while_a_step_runs_is_no_difference() -> None:
    # The books change at another moment of each arm's requests; every request is beside its own reference.
    ours, theirs = priced(1.0, 40) + priced(3.0, 10, 3.0), priced(1.0, 20) + priced(3.0, 90, 3.0)
    status = cost_gate(ours, theirs)
    assert (status.verdict, status.difference) == (Verdict.HOLDS, pytest.approx(0.0))


@pytest.mark.parametrize("count", [0, 1, 9])
def test_nothing_is_said_before_ten_samples(count: int) -> None:
    bad = ArmEvidence(count, count, ttft=times(50.0, count), cost=CostMoments.of([(9.0, 1.0)] * count))
    good = ArmEvidence(5000, 0, ttft=times(1.0, 5000), cost=CostMoments.of([(1.0, 1.0)] * 5000))
    for metric in ("error_rate", "ttft", "ttft_p95", "cost_per_1k_tokens"):
        assert said(Gate(metric, 0.01), bad, good).verdict is Verdict.UNDECIDED
        assert said(Gate(metric, 0.01), good, bad).verdict is Verdict.UNDECIDED


def test_one_error_of_ten_is_no_breach() -> None:
    status = said(Gate("error_rate", 0.01), ArmEvidence(10, 1), ArmEvidence(90, 0))
    assert status.verdict is Verdict.UNDECIDED
    assert "more samples would decide" in status.text


def test_stream_completion_is_worse_when_it_is_less() -> None:
    ours, theirs = ArmEvidence(300, streams=300, completed=200), ArmEvidence(900, streams=900, completed=898)
    worse = said(Gate("stream_completion", 0.01), ours, theirs)
    assert (worse.verdict, worse.difference) == (Verdict.BREACHED, pytest.approx(200 / 300 - 898 / 900))
    assert worse.low < worse.difference < worse.high < -0.01
    assert said(Gate("stream_completion", 0.01), theirs, ours).verdict is Verdict.HOLDS


def test_the_same_price_for_every_token_holds_with_the_least_number_of_samples() -> None:
    cost = [CostMoments.of((0.5 * tokens, tokens) for tokens in range(100, 100 + count)) for count in (40, 360)]
    ours, theirs = (ArmEvidence(each.count, cost=each) for each in cost)
    assert said(Gate("cost_per_1k_tokens", 0.02), ours, theirs).verdict is Verdict.HOLDS


def test_scores_go_either_way() -> None:
    low = ArmEvidence(100, scores={"joy": Moments.of([1.0, 2.0, 3.0] * 33)})
    high = ArmEvidence(100, scores={"joy": Moments.of([4.0, 5.0, 6.0] * 33)})
    joy, grief = Gate("score:joy", 0.5), Gate("score:joy", 0.5, lower_is_better=True)
    assert said(joy, low, high).verdict is Verdict.BREACHED
    assert said(joy, high, low).verdict is Verdict.HOLDS
    assert said(grief, high, low).verdict is Verdict.BREACHED
    assert said(grief, low, high).verdict is Verdict.HOLDS
    assert improved(said(joy, high, low))
    assert improved(said(grief, low, high))
    assert not improved(said(joy, low, high))
    assert said(joy, low, high).difference == pytest.approx(-3.0)


@pytest.mark.parametrize(
    ("gate", "good", "bad"),
    [
        (Gate("score:shadow_exact", at_least=0.9), [1.0] * 200, [1.0, 0.0] * 100),
        (Gate("score:shadow_exact", 0.1), [1.0] * 200, [1.0, 0.0] * 100),
        (Gate("score:shadow_length", at_least=0.7), [0.95, 0.9] * 100, [0.3, 0.4] * 100),
        (Gate("score:shadow_logprob", 0.2), [0.01, 0.02] * 100, [0.9, 1.5] * 100),
        (Gate("score:shadow_logprob", at_least=0.2), [0.01, 0.02] * 100, [0.9, 1.5] * 100),
        (Gate("score:shadow_flips", 0.05), [0.0] * 200, [0.0, 0.5] * 100),
        (Gate("score:shadow_distance", 0.1), [0.01, 0.02] * 100, [0.4, 0.5] * 100),
        (Gate("score:shadow_scores", 0.2), [0.02, 0.04] * 100, [0.5, 0.6] * 100),
    ],
)
def test_compared_answers_are_measured_against_a_bar(gate: Gate, good: list[float], bad: list[float]) -> None:
    metric = gate.metric.removeprefix("score:")
    found = [said(gate, ArmEvidence(200, scores={metric: Moments.of(v)}), ArmEvidence(9), SHADOW) for v in (good, bad)]
    assert [status.verdict for status in found] == [Verdict.HOLDS, Verdict.BREACHED]
    assert found[0].difference == pytest.approx(sum(good) / 200)
    assert "the bar is" in found[0].text


@pytest.mark.parametrize(
    ("of_predictions", "counted_as"),
    [
        ("latency", "ttft"),
        ("latency_p95", "ttft_p95"),
        ("latency_p99", "ttft_p99"),
        ("cost_per_1k_rows", "cost_per_1k_tokens"),
    ],
)
def test_predictions_are_judged_by_names_of_their_own(of_predictions: str, counted_as: str) -> None:
    def times(factor: float) -> Distribution:
        return Distribution.of([factor * each for each in TIMES] * 1000)

    ours = ArmEvidence(5000, streams=5000, completed=5000, ttft=times(3.0), cost=CostMoments.of([(9.0, 3.0)] * 5000))
    theirs = ArmEvidence(5000, streams=5000, completed=5000, ttft=times(1.0), cost=CostMoments.of([(3.0, 3.0)] * 5000))
    found = said(Gate(of_predictions, 0.2), ours, theirs)
    same = said(Gate(counted_as, 0.2), ours, theirs)
    assert found.verdict is same.verdict is Verdict.BREACHED
    assert (found.difference, found.low) == (same.difference, same.low)
    assert "TTFT" not in found.text
    assert "tokens" not in found.text


def test_mirrored_copies_are_not_judged_by_their_times() -> None:
    plan = canary_plan(1000, shadow=ShadowPlan(1000))
    judged = {status.gate.metric for status in judge(plan, SHADOW, Situation(1.0))}
    assert judged == {"error_rate", "cost_per_1k_tokens", "score:mean_logprob"}
    assert judge(plan, State(Phase.PREPARING), Situation(1.0)) == ()


def test_an_unknown_metric_is_never_decided() -> None:
    assert said(Gate("ttft_p97", 0.1), ArmEvidence(5), ArmEvidence(5)).verdict is Verdict.UNDECIDED
    assert said(Gate("luck"), ArmEvidence(5), ArmEvidence(5)).text == "luck is not known here"


BURNING = Burn("availability", True, 52.0, 14.4, "1h/5m")


def burns(ours: GoodBad, theirs: GoodBad, burn: Burn, tolerance: float = 1.0) -> GateStatus:
    arms = (ArmEvidence(ours.good + ours.bad, objectives={"availability": ours}) for ours in (ours, theirs))
    return said(Gate("burn_rate", tolerance), *arms, burns={"canary": (burn,)})


def test_an_arm_that_burns_the_budget_by_its_own_fault_breaches() -> None:
    status = burns(GoodBad(60, 20), GoodBad(900, 1), BURNING)
    assert (status.verdict, status.difference) == (Verdict.BREACHED, 52.0)
    assert status.text.startswith(
        "canary burns the error budget of availability 52.0 times as fast as allowed over 1h/5m"
    )


def test_a_burn_that_the_baseline_shares_is_no_fault_of_the_arm() -> None:
    assert burns(GoodBad(60, 20), GoodBad(600, 200), BURNING).verdict is Verdict.UNDECIDED
    assert burns(GoodBad(9, 1), GoodBad(90, 0), BURNING).verdict is Verdict.UNDECIDED


def test_the_factor_moves_the_threshold_of_burns() -> None:
    ours, theirs = GoodBad(60, 20), GoodBad(900, 1)
    assert burns(ours, theirs, BURNING, tolerance=4.0).verdict is Verdict.HOLDS
    assert burns(ours, theirs, BURNING, tolerance=2.0).verdict is Verdict.BREACHED
    calm = replace(BURNING, alerting=False, rate=8.0)
    assert burns(ours, theirs, calm).verdict is Verdict.HOLDS
    assert burns(ours, theirs, calm, tolerance=0.5).verdict is Verdict.BREACHED
    assert said(Gate("burn_rate"), ArmEvidence(9), ArmEvidence(9)).verdict is Verdict.UNDECIDED
