"""The decisions of a rollout: pure functions of what was planned, where it stands, and what became of requests.

`decide` is the whole of it; `judge` is the part that compares arms with the baseline. See README.md for the formulas.
"""

from services.rollout.policy.decide import decide, planned_weights, spent
from services.rollout.policy.decision import Decision
from services.rollout.policy.evidence import (
    ArmEvidence,
    CostMoments,
    Distribution,
    Evidence,
    GoodBad,
    Moments,
    Stage,
    clip_score,
    merge,
    score_bounds,
)
from services.rollout.policy.gates import DEFAULT_GATES, PREDICTION_GATES, gates_of, judge
from services.rollout.policy.phases import GateAction, Kind, Load, Phase, Verdict
from services.rollout.policy.plan import (
    BASELINE,
    ArmPlan,
    Burn,
    Gate,
    GateStatus,
    Plan,
    ShadowPlan,
    Situation,
    State,
    StepPlan,
    Worker,
    WorkerModel,
)

__all__ = [
    "BASELINE",
    "DEFAULT_GATES",
    "PREDICTION_GATES",
    "ArmEvidence",
    "ArmPlan",
    "Burn",
    "CostMoments",
    "Decision",
    "Distribution",
    "Evidence",
    "Gate",
    "GateAction",
    "GateStatus",
    "GoodBad",
    "Kind",
    "Load",
    "Moments",
    "Phase",
    "Plan",
    "ShadowPlan",
    "Situation",
    "Stage",
    "State",
    "StepPlan",
    "Verdict",
    "Worker",
    "WorkerModel",
    "clip_score",
    "decide",
    "gates_of",
    "judge",
    "merge",
    "planned_weights",
    "score_bounds",
    "spent",
]
