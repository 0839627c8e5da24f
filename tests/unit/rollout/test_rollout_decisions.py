"""What is decided, phase by phase."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from loadtest.rollout_traffic import canary_plan, ready_workers
from services.rollout.policy import (
    ArmEvidence,
    ArmPlan,
    CostMoments,
    Decision,
    Distribution,
    Gate,
    GateAction,
    Kind,
    Load,
    Moments,
    Phase,
    Plan,
    ShadowPlan,
    Situation,
    Stage,
    State,
    StepPlan,
    Worker,
    WorkerModel,
    decide,
    planned_weights,
    spent,
)
from services.rollout.policy.keys import BUCKETS, KeySums

NEW, OLD = "weir-fast@2", "weir-fast@1"
WORKERS = ready_workers(OLD, NEW)
TOKENS = (100.0, 200.0, 300.0)
FIRST = State(Phase.CANARY, 0, (1000,), 1000.0)
LAST = State(Phase.CANARY, 1, (5000,), 1000.0)
PLAN = canary_plan(1000, 5000)


def served(count: int, errors: int = 0, slower: float = 1.0, price: float = 1.0, joy: float = 0.0) -> ArmEvidence:
    pairs = [(price * tokens, tokens) for tokens in TOKENS]
    each = CostMoments.of(pairs)
    rounds = count // 3
    cost = CostMoments(*(rounds * getattr(each, name) for name in CostMoments.__dataclass_fields__))
    times = Distribution.of(slower * 0.1 * factor for factor in (0.8, 1.0, 1.25) for _ in range(count // 3))
    scores = {"joy": Moments.of(joy + n % 3 for n in range(count))} if joy else {}
    return ArmEvidence(count, errors, count, count, times, times, cost, scores)


def at(state: State, ours: ArmEvidence, theirs: ArmEvidence) -> Mapping[Stage, ArmEvidence]:
    mirrored = state.phase is Phase.SHADOW
    return {
        Stage(state.phase, state.step, "baseline"): theirs,
        Stage(state.phase, state.step, "canary", mirrored): ours,
    }


def decided(state: State, ours: ArmEvidence, plan: Plan = PLAN, after: float = 100.0, **fields: object) -> Decision:
    theirs = fields.pop("theirs", served(9000))
    fields = {"workers": WORKERS, "evidence": at(state, ours, theirs)} | fields  # type: ignore[arg-type]
    return decide(plan, state, Situation(state.entered_at + after, **fields))  # type: ignore[arg-type]


def keyed(evidence: ArmEvidence, buckets: int) -> ArmEvidence:
    """The same, of requests that came from keys in so many buckets."""
    counts = [evidence.requests // buckets if n < buckets else 0 for n in range(BUCKETS)]
    counts[0] += evidence.requests - sum(counts)
    return replace(evidence, keys={"errors": KeySums(tuple(counts), (0.0,) * BUCKETS)})


def prepared(workers: tuple[Worker, ...], plan: Plan = PLAN, after: float = 5.0, **fields: object) -> Decision:
    state = State(entered_at=1000.0, paused=bool(fields.pop("paused", False)))
    return decide(plan, state, Situation(1000.0 + after, workers=workers, **fields))  # type: ignore[arg-type]


def with_model(worker: Worker, version: str, load: Load, detail: str = "") -> Worker:
    return replace(worker, models={**worker.models, version: WorkerModel(load, detail)})


# Preparing.


def test_a_new_rollout_is_prepared_first() -> None:
    found = decide(PLAN, State(), Situation(50.0, workers=WORKERS))
    assert (found.kind, found.state) == (Kind.PREPARE, State(Phase.PREPARING, entered_at=50.0))


def test_ready_workers_begin_the_first_step() -> None:
    found = prepared(WORKERS)
    assert (found.kind, found.state) == (Kind.ADVANCE, State(Phase.CANARY, 0, (1000,), 1005.0))
    assert found.text.startswith("step 1 of 2, 10% of the requests")


def test_or_the_shadow_phase_or_an_experiment() -> None:
    shadowed = prepared(WORKERS, replace(PLAN, shadow=ShadowPlan(2000)))
    assert shadowed.state == State(Phase.SHADOW, 0, (), 1005.0)
    arms = (ArmPlan("a", NEW, "gold", 2000), ArmPlan("b", NEW, "gold", 3000))
    assert prepared(WORKERS, replace(PLAN, steps=(), arms=arms)).state == State(
        Phase.EXPERIMENT, 0, (2000, 3000), 1005.0
    )


def test_workers_that_still_load_are_waited_for() -> None:
    loading = tuple(with_model(worker, NEW, Load.LOADING) for worker in WORKERS)
    found = prepared(loading)
    assert (found.kind, found.text) == (Kind.WAIT, "0 of 1 workers needed have weir-fast@2 ready (4 loading)")
    assert prepared(()).text == "no worker has the baseline weir-fast@1 ready"


def test_each_zone_of_the_baseline_needs_a_ready_worker() -> None:
    halfway = tuple(w if w.zone == "zone-0" else with_model(w, NEW, Load.VERIFYING) for w in WORKERS)
    assert prepared(halfway).text == "no worker in zone zone-1 has weir-fast@2 ready (2 verifying)"


def test_as_many_workers_are_needed_as_the_weight_needs() -> None:
    two = tuple(with_model(worker, NEW, Load.FETCHING) if n > 1 else worker for n, worker in enumerate(WORKERS))
    assert prepared(two, canary_plan(5000)).kind is Kind.ADVANCE
    found = prepared(two, canary_plan(6000))
    assert (found.kind, found.text) == (Kind.WAIT, "2 of 3 workers needed have weir-fast@2 ready (2 fetching)")


def test_a_smaller_pool_of_its_own_needs_to_be_ready_as_a_whole() -> None:
    own = replace(PLAN, steps=(StepPlan(9000),), arms=(ArmPlan("canary", NEW, "big"),))
    old = ready_workers(OLD)
    big = Worker("big-0", "zone-0", "big", {NEW: WorkerModel(Load.READY)})
    assert prepared((*old, big), own).kind is Kind.ADVANCE
    assert prepared(old, own).text == "pool big of weir-fast@2 has no workers"


def test_a_worker_that_cannot_load_it_ends_the_rollout_with_its_reason() -> None:
    failed = (with_model(WORKERS[0], NEW, Load.FAILED, "model.safetensors: digest does not match"), *WORKERS[1:])
    found = prepared(failed)
    assert (found.kind, found.state.phase) == (Kind.ROLL_BACK, Phase.ROLLED_BACK)
    assert found.text == "worker-0 could not load weir-fast@2: model.safetensors: digest does not match"


def test_preparing_does_not_take_for_ever() -> None:
    loading = tuple(with_model(worker, NEW, Load.LOADING) for worker in WORKERS)
    assert prepared(loading, after=599.0).kind is Kind.WAIT
    late = prepared(loading, after=601.0)
    assert late.kind is Kind.ROLL_BACK
    assert late.text.startswith("not ready after 10 min: 0 of 1 workers")
    assert prepared(loading, after=601.0, paused=True).kind is Kind.WAIT


# Steps.


def test_a_step_is_passed_with_time_requests_and_what_must_hold() -> None:
    found = decided(FIRST, served(999))
    assert (found.kind, found.state.phase, found.state.step, found.state.weights) == (
        Kind.ADVANCE,
        Phase.CANARY,
        1,
        (5000,),
    )
    assert found.state.entered_at == 1100.0
    assert "999 requests of canary, no gate breached" in found.text
    assert "cost per 1,000 tokens of canary is 1.000 times the baseline's" in found.text


@pytest.mark.parametrize(
    ("ours", "after", "text"),
    [
        (served(999), 30.0, "30 s of at least 60 s passed"),
        (served(99), 100.0, "canary has 99 of at least 100 requests"),
        (replace(served(999), cost=CostMoments()), 100.0, "cost per 1,000 tokens of canary: no samples yet"),
    ],
)
def test_a_step_that_lacks_something_waits(ours: ArmEvidence, after: float, text: str) -> None:
    found = decided(FIRST, ours, after=after)
    assert (found.kind, found.text, found.state) == (Kind.WAIT, text, FIRST)


def test_a_step_that_stays_undecided_holds_and_goes_on_when_it_is_decided() -> None:
    found = decided(FIRST, served(60), after=3700.0)
    assert (found.kind, found.state) == (Kind.HOLD, replace(FIRST, held=True))
    assert found.text == "undecided after 62 min of at most 60 min: canary has 60 of at least 100 requests"
    assert decided(found.state, served(60), after=3800.0).kind is Kind.WAIT
    later = decided(found.state, served(300), after=3900.0)
    assert (later.kind, later.state.held) == (Kind.ADVANCE, False)


def test_the_last_step_promotes() -> None:
    found = decided(LAST, served(999))
    assert (found.kind, found.state.phase, found.state.weights) == (Kind.PROMOTE, Phase.PROMOTED, ())
    assert found.text.startswith("weir-fast gives weir-fast@2 from now on: 999 requests of canary")
    assert decided(found.state, served(999)).kind is Kind.WAIT


def test_promotion_needs_as_many_ready_workers_as_the_baseline_has() -> None:
    three = (with_model(WORKERS[0], NEW, Load.LOADING), *WORKERS[1:])
    found = decided(LAST, served(999), workers=three)
    assert (found.kind, found.text) == (Kind.WAIT, "3 of 4 workers needed have weir-fast@2 ready (1 loading)")


def test_a_step_holds_while_workers_for_its_weight_are_missing() -> None:
    one = (WORKERS[0], *(with_model(worker, NEW, Load.LOADING) for worker in WORKERS[1:]))
    found = decided(LAST, served(999), workers=one)
    assert (found.kind, found.text) == (Kind.HOLD, "1 of 2 workers needed have weir-fast@2 ready (3 loading)")
    failed = (*WORKERS[:3], with_model(WORKERS[3], NEW, Load.FAILED, "no memory"))
    assert decided(LAST, served(999), workers=failed).kind is Kind.HOLD
    both = (one[0], with_model(WORKERS[1], NEW, Load.FAILED, "no memory"), *one[2:])
    assert decided(LAST, served(999), workers=both).kind is Kind.ROLL_BACK


# Gates.


@pytest.mark.parametrize("bad", [served(30, errors=12), served(60, slower=3.0), served(60, price=2.0)])
def test_a_breached_gate_rolls_back_at_once(bad: ArmEvidence) -> None:
    found = decided(FIRST, bad, after=12.0)
    assert (found.kind, found.state.phase, found.state.weights) == (Kind.ROLL_BACK, Phase.ROLLED_BACK, ())
    assert "of canary is" in found.text
    assert found.state.cost == round(bad.cost.cost)


def test_slightly_dearer_with_healthy_times_is_not_promoted() -> None:
    found = decided(LAST, served(999, price=1.06))
    assert (found.kind, found.state.phase) == (Kind.HOLD, Phase.CANARY)
    assert found.text.startswith("cost per 1,000 tokens of canary is 1.060 times the baseline's")
    assert found.text.endswith("Times and errors are no worse than tolerated; it is dearer all the same")


def test_a_better_score_does_not_outweigh_a_worse_p99() -> None:
    gates = (Gate("ttft_p99", 0.3, GateAction.HOLD), Gate("score:joy", 0.1))
    plan = replace(PLAN, gates=gates)
    found = decided(FIRST, served(9000, slower=2.0, joy=2.0), plan, theirs=served(9000, joy=1.0))
    assert found.kind is Kind.HOLD
    assert found.text.startswith("TTFT p99 of canary is 2.00 times the baseline's")
    assert found.text.endswith("score joy by +1 is better than the baseline's, which does not outweigh it")


def test_a_hold_ends_when_its_reason_is_gone() -> None:
    held = replace(FIRST, held=True)
    found = decided(held, served(99))
    assert (found.kind, found.state) == (Kind.RESUME, FIRST)
    assert found.text == "nothing holds it any more; canary has 99 of at least 100 requests"


def test_an_experiment_only_takes_out_what_is_bad() -> None:
    arms = (ArmPlan("a", NEW, "gold", 2000), ArmPlan("b", "weir-fast@3", "gold", 3000))
    plan = replace(PLAN, steps=(), arms=arms)
    state = State(Phase.EXPERIMENT, 0, (2000, 3000), 1000.0)
    seen = {
        Stage(Phase.EXPERIMENT, 0, "baseline"): served(900),
        Stage(Phase.EXPERIMENT, 0, "a"): served(300, errors=90),
        Stage(Phase.EXPERIMENT, 0, "b"): served(300),
    }
    situation = Situation(1100.0, seen, ready_workers(OLD, NEW, "weir-fast@3"))
    found = decide(plan, state, situation)
    assert (found.kind, found.state.phase, found.state.weights) == (Kind.EASE, Phase.EXPERIMENT, (0, 3000))
    assert found.text.startswith("a taken out: error rate of a is 30.00%")
    calm = decide(plan, found.state, situation)
    assert (calm.kind, calm.text) == (Kind.WAIT, "until an operator ends it")
    alone = decide(plan, replace(state, weights=(2000, 0)), situation)
    assert (alone.kind, alone.state.phase) == (Kind.ROLL_BACK, Phase.ROLLED_BACK)


def test_the_shadow_phase_waits_for_compared_answers_and_their_scores() -> None:
    gate = Gate("score:shadow_exact", at_least=0.9, must_hold=True)
    plan = replace(
        PLAN, shadow=ShadowPlan(2000, min_samples=30), gates=(gate, Gate("cost_per_1k_tokens", 0.02, must_hold=True))
    )
    state = State(Phase.SHADOW, 0, (), 1000.0)
    same, other = ({"shadow_exact": Moments.of(values)} for values in ([1.0] * 300, [1.0, 0.0] * 150))
    assert decided(state, replace(served(300), scores=same), plan).state.phase is Phase.CANARY
    assert decided(state, replace(served(300), scores=other), plan).kind is Kind.ROLL_BACK
    assert decided(state, served(300), plan).text == "score shadow_exact of canary: no samples yet"
    assert decided(state, replace(served(27), scores=same), plan).text == "canary has 27 of at least 30 requests"
    # What must hold of users' requests need not hold of mirrored copies: there are too few.
    dearer = replace(served(300, price=1.0), scores=same, cost=CostMoments())
    assert decided(state, dearer, plan).kind is Kind.ADVANCE


# Caps.


def test_arms_may_cost_no_more_than_their_cap() -> None:
    plan = replace(PLAN, max_cost=300_000)
    state = replace(FIRST, cost=200_000)
    seen = dict(at(state, served(300), served(9000))) | {Stage(Phase.CANARY, 0, "canary", True): served(300)}
    situation = Situation(1010.0, seen, WORKERS)
    assert spent(plan, state, situation) == 200_000 + 2 * 60_000
    found = decide(plan, state, situation)
    assert (found.kind, found.state.cost) == (Kind.ROLL_BACK, 320_000)
    assert found.text == "its arms have cost $0.32; the cap is $0.3"
    assert decided(state, served(300), plan, after=10.0).kind is Kind.WAIT


def test_f6_the_cost_of_a_step_that_an_operator_left_counts_against_the_cap() -> None:
    """Whoever goes on by hand stores no cost: the registry does not know it."""
    plan, by_hand = replace(PLAN, max_cost=100_000), replace(LAST, cost=0)
    seen = dict(at(by_hand, served(300), served(300))) | at(FIRST, served(300), served(9000))
    found = decide(plan, by_hand, Situation(1010.0, seen, WORKERS))
    assert (found.kind, found.state.cost) == (Kind.ROLL_BACK, 120_000)
    assert found.text == "its arms have cost $0.12; the cap is $0.1"
    # What the controller stored is not counted twice.
    assert spent(plan, replace(LAST, cost=60_000), Situation(1010.0, seen, WORKERS)) == 120_000


def test_f6_the_next_decision_stores_what_an_operator_left_unstored() -> None:
    seen = dict(at(LAST, served(300), served(300))) | at(FIRST, served(300), served(9000))
    found = decide(PLAN, LAST, Situation(1010.0, seen, WORKERS, frozen="a holiday"))
    assert (found.kind, found.state.cost) == (Kind.HOLD, 60_000)


def test_costs_add_up_over_steps() -> None:
    found = decided(replace(FIRST, cost=1000), served(300))
    assert (found.kind, found.state.cost) == (Kind.ADVANCE, 61_000)


def test_a_share_above_the_cap_is_eased() -> None:
    plan = replace(PLAN, max_share=1000)
    found = decided(FIRST, served(999), plan, recent=(300, 1000))
    assert (found.kind, found.state) == (Kind.EASE, replace(FIRST, weights=(333,)))
    assert found.text.startswith("arms have 30% of the requests (at least ")
    assert found.text.endswith("; 300 of 1,000); the most is 10%; weight 10% → 3.33%")
    # The new weights have not been measured yet, whatever the step's counts say.
    assert decided(found.state, served(9000), plan, after=10.0).kind is Kind.WAIT
    # Without fresh counts, the step's speak for the weights it began with.
    assert decided(FIRST, served(9000), plan).kind is Kind.EASE
    assert decided(FIRST, served(999), plan, recent=(110, 1000)).kind is Kind.ADVANCE


def test_a_share_that_cannot_be_eased_is_taken_back() -> None:
    plan = replace(PLAN, max_share=1000)
    found = decided(replace(FIRST, weights=(1,)), served(300), plan, recent=(900, 1000))
    assert found.kind is Kind.ROLL_BACK
    assert found.text.endswith("no weight is left to take away")


# Operators.


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"killed": "incident 7"}, "the kill switch is set: incident 7"),
        ({"frozen": "holidays"}, "rollouts are frozen: holidays"),
        ({"exhausted": ("generate/standard availability",)}, "error budget used up: generate/standard availability"),
    ],
)
def test_operators_and_budgets_hold_a_rollout(fields: dict[str, object], text: str) -> None:
    found = decided(FIRST, served(999), **fields)
    assert (found.kind, found.text, found.state.held) == (Kind.HOLD, text, True)
    assert prepared(WORKERS, **fields).kind is Kind.HOLD
    bad = decided(FIRST, served(30, errors=20), **fields)
    assert bad.kind is Kind.ROLL_BACK
    overridden = decided(FIRST, served(999), replace(PLAN, override=True), **fields)
    assert overridden.kind is (Kind.HOLD if "killed" in fields else Kind.ADVANCE)


def test_a_paused_rollout_does_nothing_but_protect() -> None:
    paused = replace(FIRST, paused=True)
    assert decided(paused, served(999)).kind is Kind.WAIT
    assert decided(paused, served(30, errors=20)).kind is Kind.ROLL_BACK


@pytest.mark.parametrize("phase", [Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ABORTED])
def test_nothing_follows_the_end(phase: Phase) -> None:
    ended = State(phase, 0, (), 5.0)
    found = decided(ended, served(30, errors=30))
    assert (found.kind, found.state, found.changes) == (Kind.WAIT, ended, False)


def test_weights_of_phases() -> None:
    assert planned_weights(PLAN, Phase.SHADOW, 0) == ()
    assert planned_weights(PLAN, Phase.CANARY, 1) == (5000,)


def test_a_clock_that_jumps_takes_nothing_back() -> None:
    waiting = State(Phase.PREPARING, 0, (), 1000.0)
    seen = Situation(1000.0 + 3600.0, workers=ready_workers("weir-fast@1"), watched=30.0)
    assert decide(PLAN, waiting, seen).kind is Kind.WAIT
    assert decide(PLAN, waiting, replace(seen, watched=3600.0)).kind is Kind.ROLL_BACK


def test_requests_of_one_key_are_what_keeps_it_and_come_first() -> None:
    one = decided(FIRST, ArmEvidence(), theirs=keyed(served(40), 1), after=10.0)
    assert one.text.startswith(
        "all 40 requests came from one sticky key, and a key keeps its arm: stick by user or session; 10 s of at least "
        "60 s passed; canary has 0 of at least 100 requests"
    )
    few = decided(FIRST, keyed(served(9), 1), theirs=keyed(served(51), 4)).text
    assert few.startswith("all 60 requests came from sticky keys that fill 4 buckets of 64")
    for ours, theirs in ((ArmEvidence(), keyed(served(18), 1)), (ArmEvidence(), keyed(served(900), 60))):
        assert decided(FIRST, ours, theirs=theirs).text.startswith("canary has 0 of at least 100 requests")


def test_whoever_goes_on_with_undecided_gates_is_told_which() -> None:
    found = decided(
        LAST, served(120), canary_plan(1000, 5000, gates=(Gate("error_rate", 0.5), Gate("ttft_p99", 0.001)))
    )
    assert found.kind is Kind.PROMOTE
    assert "no gate breached, 1 of 2 shown to hold, undecided: TTFT p99" in found.text
