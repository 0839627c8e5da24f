"""What is decided on: the rollout as an operator wrote it, where it stands, and what is known around it.

Durations are seconds, times Unix seconds, shares basis points (10,000 is all), money micro-dollars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.rollout.policy.evidence import Evidence
from services.rollout.policy.phases import GateAction, Load, Phase, Verdict

BASELINE = "baseline"
"""The name of the baseline's arm."""
WHOLE = 10_000
"""All traffic, in basis points."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One alternative to the baseline."""

    name: str
    model_version: str
    """"weir-fast@2"."""
    pool: str = ""
    """The pool of workers that serves this version."""
    weight: int = 0
    """For experiments."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of a canary."""

    weight: int
    min_duration: float = 60.0
    max_duration: float = 3600.0
    min_samples: int = 100
    """Requests of the canary."""


@dataclass(frozen=True, slots=True)
class ShadowPlan:
    """Mirrored traffic before the first step."""

    share: int
    min_duration: float = 60.0
    max_duration: float = 3600.0
    min_samples: int = 50
    """Mirrored requests that ended."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing by which arms are judged; `metric` as in `weir.registry.v1.Gate`."""

    metric: str
    tolerance: float = 0.0
    """A share of the baseline's for times and costs, an absolute difference for rates and scores, a factor on the
    threshold for "burn_rate"."""
    on_breach: GateAction = GateAction.ROLL_BACK
    lower_is_better: bool = False
    """For scores."""
    must_hold: bool = False
    at_least: float | None = None
    """For scores: the least mean that is fine (the greatest, where `lower_is_better`); then there is no tolerance."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A rollout."""

    alias: str
    rollout_id: str
    baseline: str
    """The version that the alias gives."""
    baseline_pool: str
    arms: tuple[ArmPlan, ...]
    steps: tuple[StepPlan, ...] = ()
    """Empty: an experiment."""
    shadow: ShadowPlan | None = None
    gates: tuple[Gate, ...] = ()
    """Empty: `DEFAULT_GATES` or `PREDICTION_GATES` of `services.rollout.policy.gates`."""
    predicts: bool = False
    """Its versions answer predictions, and do not generate."""
    alpha: float = 0.01
    max_share: int = 0
    """Of the arms together, as measured; 0 means all."""
    max_cost: int = 0
    """Of the arms together over the whole rollout; 0 means no cap."""
    prepare_timeout: float = 600.0
    least_samples: int = 10
    """Of the arm and of the baseline, before a gate says anything."""
    override: bool = False
    """It goes on although rollouts are frozen or an error budget is exhausted."""
    few_keys: bool = False
    """It is judged, and goes on, with fewer sticky keys than alpha needs."""


@dataclass(frozen=True, slots=True)
class State:
    """Where a rollout stands, as it is stored."""

    phase: Phase = Phase.PREPARING
    step: int = 0
    weights: tuple[int, ...] = ()
    """By arm; empty: none."""
    entered_at: float = 0.0
    """When this step or phase began; 0: not written yet."""
    held: bool = False
    paused: bool = False
    cost: int = 0
    """What the arms had cost at the end of the last step or phase."""


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """A version on a worker."""

    load: Load
    detail: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A live worker."""

    name: str
    zone: str
    pool: str
    models: Mapping[str, WorkerModel] = field(default_factory=dict)
    """By version; what it only lists as ready (`Endpoint.model_versions`) is READY."""


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast an arm uses up the error budget of one objective, over its most urgent pair of windows."""

    objective: str
    """"availability", "ttft_p95" …, as in `ArmEvidence.objectives`."""
    alerting: bool
    """Both windows of the pair are over their threshold."""
    rate: float = 0.0
    """The lower of the pair's burn rates, as a multiple of the rate that uses up the budget just in time."""
    threshold: float = 0.0
    """The pair's, such as 14.4."""
    window: str = ""
    """"1h/5m"."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision needs besides plan and state."""

    now: float
    evidence: Evidence = field(default_factory=dict)
    workers: tuple[Worker, ...] = ()
    burns: Mapping[str, tuple[Burn, ...]] = field(default_factory=dict)
    """By arm."""
    exhausted: tuple[str, ...] = ()
    """Error budgets that are used up and concern this rollout, in words: "generate/standard availability"."""
    frozen: str = ""
    """Why rollouts are frozen; empty: they are not."""
    killed: str = ""
    """Why the kill switch is set; empty: it is not."""
    watched: float = math.inf
    """For how long this controller has seen the rollout in its phase, by a clock that does not jump."""
    recent: tuple[int, int] = (0, 0)
    """Requests of all arms, and of all arms and the baseline, that began since the present weights apply (or since this
    controller looks): the measured share. Without them the present step's are taken, unless its weights were eased."""


@dataclass(frozen=True, slots=True)
class GateStatus:
    """A gate on an arm."""

    gate: Gate
    arm: str
    verdict: Verdict
    difference: float = 0.0
    """From the baseline: relative (0.2: a fifth more) for times and costs, absolute for rates and scores. Where the
    gate has `at_least`: the mean itself. For "burn_rate": the burn rate."""
    low: float = 0.0
    """Lower end of its confidence interval, valid at every look; −inf when nothing is known."""
    high: float = 0.0
    """Upper end; inf when nothing is known."""
    samples: int = 0
    baseline_samples: int = 0
    text: str = ""
    """In words, with its numbers."""
