"""Gates: what each says of an arm, as sure as alpha demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.rollout.policy import comparisons, words
from services.rollout.policy.comparisons import Comparison, Sides
from services.rollout.policy.evidence import ArmEvidence, Evidence, Stage
from services.rollout.policy.footing import Footing, doubt, footing
from services.rollout.policy.intervals import Level
from services.rollout.policy.phases import GateAction, Phase, Verdict
from services.rollout.policy.plan import BASELINE, Burn, Gate, GateStatus, Plan, Situation, State

DEFAULT_GATES = (
    Gate("error_rate", 0.01),
    Gate("stream_completion", 0.01),
    Gate("ttft", 0.2),
    Gate("ttft_p95", 0.25),
    Gate("ttft_p99", 0.3, GateAction.HOLD),
    Gate("itl", 0.2),
    Gate("cost_per_1k_tokens", 0.02, GateAction.HOLD, must_hold=True),
    Gate("cost_per_1k_tokens", 0.25),
    Gate("burn_rate", 1.0),
    Gate("score:mean_logprob", 0.5),
)
"""When a rollout names none. A dearer candidate is not promoted; one that is dearer by more than a quarter is taken
back. Damaged weights show in how unlikely a model finds its own words: half a nat per token is a factor of 1.6."""
PREDICTION_GATES = (
    Gate("error_rate", 0.01),
    Gate("latency", 0.2),
    Gate("latency_p95", 0.25),
    Gate("latency_p99", 0.3, GateAction.HOLD),
    Gate("cost_per_1k_rows", 0.02, GateAction.HOLD, must_hold=True),
    Gate("cost_per_1k_rows", 0.25),
    Gate("burn_rate", 1.0),
)
"""Those of a version that predicts: the same, without what only streams have, and so with more of alpha for each."""
_MIRRORED = frozenset({"error_rate", "cost_per_1k_tokens", "cost_per_1k_rows", "cost_per_request"})


@dataclass(frozen=True, slots=True)
class Split:
    """How the rollout's alpha is divided, so that it holds over all of it."""

    stage: float
    """Of one arm in one phase or step: these add up to alpha."""
    on_errors: int
    """Gates on the error rate, and how many others, the cap on the share being one."""
    others: int
    holds: float
    """All of it, each time: a worse arm is promoted only if the gate that it fails errs in the last step too
    (Berger, "Multiparameter hypothesis testing and acceptance sampling", 1982)."""

    @classmethod
    def of(cls, plan: Plan) -> Split:
        """Evenly over stages and arms."""
        stages = max(len(plan.steps), 1) + (plan.shadow is not None)
        gates = gates_of(plan)
        on_errors = sum(1 for gate in gates if gate.metric == "error_rate")
        return cls(plan.alpha / (stages * len(plan.arms)), on_errors, len(gates) - on_errors + 1, plan.alpha)

    def breach(self, metric: str) -> float:
        """The probability that this gate is ever breached by an arm as good as the baseline: half of the stage's goes
        to errors, the surest sign, the other half evenly to all else."""
        return self.stage / (2.0 * (self.on_errors if metric == "error_rate" else self.others))


def gates_of(plan: Plan) -> tuple[Gate, ...]:
    """The rollout's gates, or the default ones."""
    return plan.gates or (PREDICTION_GATES if plan.predicts else DEFAULT_GATES)


def present(state: State, arm: str, *, mirrored: bool = False) -> Stage:
    """Where the evidence of the present step lies."""
    return Stage(state.phase, state.step, arm, mirrored)


def judged(gate: Gate, phase: Phase) -> bool:
    """The gate has a say in this phase.

    Mirrored copies wait behind everything that users asked for and may be interrupted, so their times and their
    streams' ends say nothing of the candidate; comparisons with the user's answer exist only there.
    """
    if gate.metric.startswith("score:shadow_"):
        return phase is Phase.SHADOW
    return phase is not Phase.SHADOW or gate.metric in _MIRRORED or gate.metric.startswith("score:")


def judge(plan: Plan, state: State, situation: Situation) -> tuple[GateStatus, ...]:
    """Every gate on every arm that gets requests, over the present step; nothing in other phases."""
    if state.phase not in (Phase.SHADOW, Phase.CANARY, Phase.EXPERIMENT):
        return ()
    mirrored = state.phase is Phase.SHADOW
    baseline = _evidence(situation.evidence, present(state, BASELINE))
    split = Split.of(plan)
    found: list[GateStatus] = []
    for index, arm in enumerate(plan.arms):
        if not mirrored and not (index < len(state.weights) and state.weights[index]):
            continue
        evidence = _evidence(situation.evidence, present(state, arm.name, mirrored=mirrored))
        by = footing(plan, state.weights, index, evidence, baseline)
        burns = situation.burns.get(arm.name, ())
        case = _Case(arm.name, evidence, baseline, by, burns, split, plan.least_samples)
        found += (_judge_one(gate, case) for gate in gates_of(plan) if judged(gate, state.phase))
    return tuple(found)


def doubts(plan: Plan, state: State, situation: Situation) -> list[str]:
    """Why arms cannot be judged as they should be, in words."""
    baseline = _evidence(situation.evidence, present(state, BASELINE))
    pairs = ((index, _evidence(situation.evidence, present(state, arm.name))) for index, arm in enumerate(plan.arms))
    found = (doubt(plan, state.weights, index, evidence, baseline) for index, evidence in pairs)
    return [text for text in found if text]


def improved(status: GateStatus) -> bool:
    """The arm's score is better than the baseline's, as sure as alpha says."""
    gate = status.gate
    if not gate.metric.startswith("score:") or comparisons.bar(gate) is not None:
        return False
    return status.high < 0.0 if gate.lower_is_better else status.low > 0.0


@dataclass(frozen=True, slots=True)
class _Case:
    """What there is to judge one arm by."""

    arm: str
    ours: ArmEvidence
    theirs: ArmEvidence
    by: Footing
    burns: Sequence[Burn]
    split: Split
    least: int
    """Requests of each side below which nothing is decided."""

    def sides(self, level: Level) -> Sides:
        """Both sides, as sure as `level`."""
        return Sides(self.ours, self.theirs, level, self.by)


def _judge_one(gate: Gate, case: _Case) -> GateStatus:
    if gate.metric == "burn_rate":
        return _judge_burns(gate, case)
    level = Level.of(case.split.breach(gate.metric), case.split.holds)
    found = comparisons.compare(gate, case.sides(level))
    if found is None:
        return GateStatus(gate, case.arm, Verdict.UNDECIDED, text=f"{gate.metric} is not known here")
    verdict = _verdict(found, case.least)
    shown = found.shown
    return GateStatus(
        gate,
        case.arm,
        verdict,
        shown.estimate,
        shown.low,
        shown.high,
        found.samples,
        found.baseline_samples,
        words.of_comparison(gate, case.arm, found, verdict, level) + _ROOM * (case.by is Footing.ROOM),
    )


def _verdict(found: Comparison, least: int) -> Verdict:
    if found.samples < least or (found.baseline_samples < least and found.bar is None):
        return Verdict.UNDECIDED
    if found.worse.low > found.tolerated:
        return Verdict.BREACHED
    return Verdict.HOLDS if found.worse.high <= found.tolerated else Verdict.UNDECIDED


_ROOM = ", with room for what keys differ by"


def _judge_burns(gate: Gate, case: _Case) -> GateStatus:
    """Breached when an objective burns faster than allowed and the arm, not the day, is to blame for it: its share of
    bad events exceeds the baseline's beyond doubt. A burn rate alone would take one failure of ten requests for a
    catastrophe."""
    arm, burns, factor = case.arm, case.burns, gate.tolerance or 1.0
    hot = [burn for burn in burns if (burn.alerting and factor <= 1.0) or 0.0 < factor * burn.threshold <= burn.rate]
    fastest = max(burns, key=lambda burn: burn.rate, default=None)
    rate = fastest.rate if fastest else 0.0
    level = Level.of(case.split.breach(gate.metric) / max(len(burns), 1), case.split.holds)
    for burn in hot:
        found = comparisons.of_objective(burn.objective, case.sides(level))
        if min(found.samples, found.baseline_samples) >= case.least and found.worse.low > 0.0:
            text = words.of_burn(arm, burn, found, level)
            at, counts = (burn.rate, burn.rate, burn.rate), (found.samples, found.baseline_samples)
            return GateStatus(gate, arm, Verdict.BREACHED, *at, *counts, text)
    verdict = Verdict.HOLDS if burns and not hot else Verdict.UNDECIDED
    text = words.of_calm(arm, fastest, [burn.objective for burn in hot])
    return GateStatus(gate, arm, verdict, rate, rate, rate, case.ours.requests, case.theirs.requests, text)


def _evidence(evidence: Evidence, stage: Stage) -> ArmEvidence:
    return evidence.get(stage, _NONE)


_NONE = ArmEvidence()
