"""What the rollout controller tells Prometheus. Aliases, arms and gates are few: they come from our own registry."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Gauge
from weir.registry.v1 import registry_pb2

from libs.rollouts import arms_of, phase_of
from services.rollout.policy.plan import GateStatus

LEADER = Gauge("weir_rollout_leader", "1: this replica decides.")
TERMS = Counter("weir_rollout_terms_total", "Times that this replica was elected.")
SOURCES = Gauge("weir_rollout_sources", "Gateways that are heard.")
REPORTS = Counter("weir_rollout_reports_total", "Frames from gateways.")
IGNORED = Gauge("weir_rollout_counts_ignored", "Counts of gateways that found no room.")
DECISIONS = Counter("weir_rollout_decisions_total", "Decisions that were written.", ["alias", "kind"])
FAILURES = Counter("weir_rollout_writes_failed_total", "Decisions that could not be written, by reason.", ["reason"])
SCORES = Counter("weir_rollout_scores_total", "Scores by what became of them.", ["result"])
DECIDE_SECONDS = Counter("weir_rollout_decide_seconds_total", "Time spent deciding, without writing.")
_PHASE = Gauge("weir_rollout_phase", "1 for the phase that an alias's rollout is in.", ["alias", "phase"])
_WEIGHT = Gauge("weir_rollout_weight", "Share of an arm in basis points.", ["alias", "arm", "model_version"])
_GATE = Gauge("weir_rollout_gate", "0 undecided, 1 holds, -1 breached.", ["alias", "arm", "metric"])
_CONSUMED = Gauge("weir_error_budget_consumed", "Share of the budget used up.", ["route", "tier", "objective"])
_BURN = Gauge("weir_burn_rate", "Burn rate over a window.", ["route", "tier", "objective", "window"])
_VERDICTS = {1: 0, 2: 1, 3: -1}
_published: dict[Gauge, set[tuple[str, ...]]] = {}


def publish_rollouts(rollouts: Iterable[registry_pb2.Rollout]) -> None:
    """Sets phases and weights to these; what is no more goes."""
    phases: dict[tuple[str, ...], float] = {}
    weights: dict[tuple[str, ...], float] = {}
    for rollout in rollouts:
        phase = registry_pb2.RolloutPhase.Name(phase_of(rollout)).removeprefix("ROLLOUT_PHASE_").lower()
        phases[rollout.alias, phase] = 1.0
        for arm in arms_of(rollout):
            weights[rollout.alias, arm.name, arm.model_version] = float(arm.weight)
    _publish(_PHASE, phases)
    _publish(_WEIGHT, weights)


def publish_gates(gates: dict[str, tuple[GateStatus, ...]]) -> None:
    """Sets what gates say, by alias."""
    _publish(
        _GATE,
        {
            (alias, each.arm, each.gate.metric): float(_VERDICTS[int(each.verdict)])
            for alias, said in gates.items()
            for each in said
        },
    )


def publish_budgets(budgets: Iterable[registry_pb2.ErrorBudget]) -> None:
    """Sets budgets and burn rates."""
    consumed: dict[tuple[str, ...], float] = {}
    rates: dict[tuple[str, ...], float] = {}
    for budget in budgets:
        for objective in budget.objectives:
            consumed[budget.route, budget.tier, objective.objective] = objective.consumed
            for window, rate in objective.burn_rates.items():
                rates[budget.route, budget.tier, objective.objective, window] = rate
    _publish(_CONSUMED, consumed)
    _publish(_BURN, rates)


def _publish(gauge: Gauge, values: dict[tuple[str, ...], float]) -> None:
    known = _published.setdefault(gauge, set())
    for gone in known - values.keys():
        gauge.remove(*gone)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
    _published[gauge] = set(values)
