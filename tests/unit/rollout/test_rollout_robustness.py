"""Whatever gateways report, there is a decision."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.rollout_traffic import canary_plan, ready_workers
from services.rollout.policy import (
    DEFAULT_GATES,
    ArmEvidence,
    Burn,
    CostMoments,
    Distribution,
    Gate,
    GoodBad,
    Moments,
    Phase,
    ShadowPlan,
    Situation,
    Stage,
    State,
    Verdict,
    decide,
)

COUNT = st.integers(0, 10**9)
SIZE = st.floats(0.0, 1e15)
ANY = st.floats(-1e9, 1e9)
GATES = (
    *DEFAULT_GATES,
    Gate("itl_p99", 0.1),
    Gate("cost_per_request", 0.1),
    Gate("score:shadow_exact", at_least=0.9),
    Gate("score:joy", 0.1, lower_is_better=True),
)
PLAN = canary_plan(1000, 5000, shadow=ShadowPlan(1000), gates=GATES, max_share=2000, max_cost=10**12)
WORKERS = ready_workers("weir-fast@1", "weir-fast@2")


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    bins = sorted(draw(st.sets(st.integers(-200, 200), max_size=6)))
    return Distribution(tuple(bins), tuple(draw(COUNT) for _ in bins), draw(ANY), draw(SIZE))


MOMENTS = st.builds(Moments, COUNT, ANY, SIZE)
EVIDENCE = st.builds(
    ArmEvidence,
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    distributions(),
    distributions(),
    st.builds(CostMoments, COUNT, SIZE, SIZE, SIZE, SIZE, SIZE),
    st.dictionaries(st.sampled_from(["mean_logprob", "shadow_exact", "joy"]), MOMENTS),
    st.dictionaries(st.just("availability"), st.builds(GoodBad, COUNT, COUNT)),
)


@settings(max_examples=150)
@given(st.sampled_from([Phase.SHADOW, Phase.CANARY]), EVIDENCE, EVIDENCE, st.integers(0, 100), st.booleans())
def test_there_is_always_a_decision(
    phase: Phase, ours: ArmEvidence, theirs: ArmEvidence, weight: int, alerting: bool
) -> None:
    state = State(phase, 0, (weight,) if phase is Phase.CANARY else (), 1.0)
    seen = {Stage(phase, 0, "baseline"): theirs, Stage(phase, 0, "canary", phase is Phase.SHADOW): ours}
    burns = {"canary": (Burn("availability", alerting, 20.0, 14.4),)}
    found = decide(PLAN, state, Situation(100.0, seen, WORKERS, burns))
    assert found == decide(PLAN, state, Situation(100.0, seen, WORKERS, burns))
    assert found.text
    for status in found.gates:
        assert not math.isnan(status.difference)
        assert not math.isnan(status.low)
        assert not math.isnan(status.high)
        if status.verdict is not Verdict.UNDECIDED:
            assert status.samples >= PLAN.least_samples
