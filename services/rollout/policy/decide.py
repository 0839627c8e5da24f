"""The decision: go on, stay, ease, take back, promote.

Nothing is remembered between two calls but what is stored: the same plan, state and situation give the same decision,
so a controller that dies at any point is followed by one that decides what it would have decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from services.rollout.policy import proportions, words
from services.rollout.policy.decision import Decision
from services.rollout.policy.footing import one_sided
from services.rollout.policy.gates import Split, doubts, improved, judge, judged, present
from services.rollout.policy.intervals import Level
from services.rollout.policy.phases import GateAction, Kind, Phase, Verdict
from services.rollout.policy.plan import BASELINE, WHOLE, GateStatus, Plan, Situation, State
from services.rollout.policy.proportions import Share
from services.rollout.policy.readiness import readiness

_EASED = 0.9
_LEAST_SHARED = 100


def decide(plan: Plan, state: State, situation: Situation) -> Decision:
    """What to do now with this rollout.

    In this order: what protects users (a breached gate, the cost cap, the cap on the share), then what an operator
    wants (pause, kill switch, freeze), then what the evidence advises against, then going on.
    """
    if state.phase.final:
        return _wait(state, "it has ended", ())
    decision = _decide(plan, state, situation)
    if decision.changes and not decision.state.phase.final:
        earlier, _ = _costs(plan, decision.state, situation)
        return replace(decision, state=replace(decision.state, cost=max(decision.state.cost, round(earlier))))
    return decision


def _decide(plan: Plan, state: State, situation: Situation) -> Decision:
    if not state.entered_at:
        return _prepare(plan, state, situation)
    gates = judge(plan, state, situation)
    if state.phase is Phase.PREPARING:
        return (
            _protect_prepared(plan, state, situation)
            or _stay(plan, state, situation, gates)
            or _go_on(plan, state, situation, gates)
        )
    return (
        _protect(plan, state, situation, gates)
        or _stay(plan, state, situation, gates)
        or _advised(plan, state, situation, gates)
        or _go_on(plan, state, situation, gates)
    )


def spent(plan: Plan, state: State, situation: Situation) -> float:
    """What the arms have cost so far, mirrored copies included, in micro-dollars.

    What was stored of earlier steps, or what gateways tell of them, if that is more: an operator who goes on to the
    next step stores nothing, and what a gateway told that died may be stored alone.
    """
    earlier, now = _costs(plan, state, situation)
    return max(state.cost, earlier) + now


def _costs(plan: Plan, state: State, situation: Situation) -> tuple[float, float]:
    """As gateways tell it: of other phases and steps, and of the present one."""
    names = {arm.name for arm in plan.arms}
    costs = {stage: each.cost.cost for stage, each in situation.evidence.items() if stage.arm in names}
    now = sum(cost for stage, cost in costs.items() if (stage.phase, stage.step) == (state.phase, state.step))
    return sum(costs.values()) - now, now


def planned_weights(plan: Plan, phase: Phase, step: int) -> tuple[int, ...]:
    """The arms' weights with which a phase or step begins, in basis points; empty: none."""
    if phase is Phase.CANARY:
        return (plan.steps[step].weight,)
    return tuple(arm.weight for arm in plan.arms) if phase is Phase.EXPERIMENT else ()


# What protects users.


def _protect_prepared(plan: Plan, state: State, situation: Situation) -> Decision | None:
    found = readiness(plan, situation.workers, _next_weights(plan, state))
    if found.failed:
        return _roll_back(plan, state, situation, (), words.listed(found.failed))
    # A wall clock that jumps is no reason to take anything back.
    waited = min(situation.now - state.entered_at, situation.watched)
    if found.missing and waited > plan.prepare_timeout and not state.paused:
        text = f"not ready after {words.span(waited)}: {words.listed(found.missing)}"
        return _roll_back(plan, state, situation, (), text)
    return None


def _protect(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> Decision | None:
    breached = _breached(gates, GateAction.ROLL_BACK)
    if breached:
        return _take_out(plan, state, situation, gates, breached)
    found = readiness(plan, situation.workers, _carried(plan, state))
    if found.failed and found.missing:
        return _roll_back(plan, state, situation, gates, words.listed([*found.failed, *found.missing]))
    cost = spent(plan, state, situation)
    if plan.max_cost and cost >= plan.max_cost:
        text = f"its arms have cost {words.dollars(cost)}; the cap is {words.dollars(plan.max_cost)}"
        return _roll_back(plan, state, situation, gates, text)
    return _ease(plan, state, situation, gates)


def _take_out(
    plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus], breached: Sequence[GateStatus]
) -> Decision:
    text = words.listed([status.text for status in breached])
    bad = {status.arm for status in breached}
    left = tuple(0 if arm.name in bad else weight for arm, weight in zip(plan.arms, state.weights, strict=False))
    if state.phase is Phase.EXPERIMENT and any(left):
        out = ", ".join(sorted(bad))
        return Decision(Kind.EASE, f"{out} taken out: {text}", replace(state, weights=left), tuple(gates))
    return _roll_back(plan, state, situation, gates, text)


def _ease(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> Decision | None:
    """Fewer basis points when the arms have more of the requests than they may: sticky keys are of different size."""
    if not plan.max_share or state.phase not in (Phase.CANARY, Phase.EXPERIMENT):
        return None
    ours, every = situation.recent
    if not every and state.weights == planned_weights(plan, state.phase, state.step):
        ours, every = _step_share(plan, state, situation)
    if every < _LEAST_SHARED:
        return None
    alpha = Split.of(plan).breach("share")
    found = proportions.mean(Share(ours, every), Level.of(alpha, alpha))
    most = plan.max_share / WHOLE
    if found.low <= most:
        return None
    measured = (
        f"arms have {words.share(WHOLE * found.estimate)} of the requests (at least {words.share(WHOLE * found.low)}; "
        f"{ours:,} of {every:,}); the most is {words.share(plan.max_share)}"
    )
    if sum(state.weights) <= sum(1 for weight in state.weights if weight):
        return _roll_back(plan, state, situation, gates, f"{measured}, and no weight is left to take away")
    factor = min(most / found.estimate, _EASED)
    weights = tuple(max(math.floor(weight * factor), 1) if weight else 0 for weight in state.weights)
    text = f"{measured}; weight {words.share(sum(state.weights))} → {words.share(sum(weights))}"
    return Decision(Kind.EASE, text, replace(state, weights=weights), tuple(gates))


def _step_share(plan: Plan, state: State, situation: Situation) -> tuple[int, int]:
    counts = [
        situation.evidence[stage].started if stage in situation.evidence else 0
        for stage in (present(state, name) for name in (BASELINE, *(arm.name for arm in plan.arms)))
    ]
    return sum(counts[1:]), sum(counts)


# What an operator wants, and what keeps a rollout where it is.


def _stay(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> Decision | None:
    if state.paused:
        return _wait(state, "paused by an operator; gates still roll back", gates)
    if situation.killed:
        return _hold(state, f"the kill switch is set: {situation.killed}", gates)
    if situation.frozen and not plan.override:
        return _hold(state, f"rollouts are frozen: {situation.frozen}", gates)
    if situation.exhausted and not plan.override:
        return _hold(state, f"error budget used up: {words.listed(situation.exhausted)}", gates)
    return None


def _advised(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> Decision | None:
    breached = _breached(gates, GateAction.HOLD)
    if breached:
        return _hold(state, words.listed([status.text for status in breached]) + _nevertheless(gates, breached), gates)
    unsure = doubts(plan, state, situation) if state.phase is not Phase.SHADOW else []
    if unsure:
        return _hold(state, words.listed(unsure), gates)
    found = readiness(plan, situation.workers, _carried(plan, state))
    if found.failed or found.missing:
        return _hold(state, words.listed([*found.failed, *found.missing]), gates)
    return None


def _nevertheless(gates: Sequence[GateStatus], breached: Sequence[GateStatus]) -> str:
    """What else the numbers say, and why it does not help."""
    arms = {status.arm for status in breached}
    better = [status for status in gates if status.arm in arms and improved(status)]
    said = ""
    if better:
        gains = words.listed([f"{words.metric_name(s.gate.metric)} by {s.difference:+.3g}" for s in better])
        said = f". {gains} is better than the baseline's, which does not outweigh it"
    times = [s for s in gates if s.arm in arms and s.gate.metric.startswith(("ttft", "itl", "latency", "error_rate"))]
    costly = all(status.gate.metric.startswith("cost") for status in breached)
    if costly and times and not any(status.verdict is Verdict.BREACHED for status in times):
        said += ". Times and errors are no worse than tolerated; it is dearer all the same"
    return said


# Going on.


def _go_on(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> Decision:
    wanting = _wanting(plan, state, situation, gates)
    if not wanting and state.phase is not Phase.EXPERIMENT:
        return _advance(plan, state, situation, gates)
    longest = _longest(plan, state)
    lasted = situation.now - state.entered_at
    if wanting and lasted > longest:
        text = f"undecided after {words.span(lasted)} of at most {words.span(longest)}: {words.listed(wanting)}"
        return _hold(state, text, gates)
    text = words.listed(wanting) or "until an operator ends it"
    if state.held:
        return Decision(Kind.RESUME, f"nothing holds it any more; {text}", replace(state, held=False), tuple(gates))
    return _wait(state, text, gates)


def _wanting(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> list[str]:
    """What the present phase or step still lacks before the next one, in words."""
    if state.phase is Phase.EXPERIMENT:
        return []
    found = readiness(plan, situation.workers, _next_weights(plan, state))
    wanting = list(found.missing)
    if state.phase is Phase.PREPARING:
        return wanting
    stage = plan.shadow if state.phase is Phase.SHADOW else plan.steps[state.step]
    if stage is None:
        return wanting
    lasted = situation.now - state.entered_at
    if lasted < stage.min_duration:
        wanting.append(f"{words.span(lasted)} of at least {words.span(stage.min_duration)} passed")
    least = max(stage.min_samples, plan.least_samples)
    stages = [present(state, name) for name in (BASELINE, *(arm.name for arm in plan.arms))]
    tied = one_sided([situation.evidence[each] for each in stages if each in situation.evidence])
    short = []
    for arm in plan.arms:
        at = present(state, arm.name, mirrored=state.phase is Phase.SHADOW)
        requests = situation.evidence[at].requests if at in situation.evidence else 0
        if requests < least:
            short.append(f"{arm.name} has {requests:,} of at least {least:,} requests")
    # Why no requests come goes before how many are missing.
    wanting = [*([tied] if short and tied else []), *wanting, *short]
    wanting += (status.text for status in gates if _must_hold(status, state.phase) and status.verdict < Verdict.HOLDS)
    return wanting


def _must_hold(status: GateStatus, phase: Phase) -> bool:
    """Scores of mirrored answers must hold in the shadow phase, everything else with users' requests."""
    gate = status.gate
    return gate.must_hold and judged(gate, phase) and (phase is not Phase.SHADOW or gate.metric.startswith("score:"))


def _advance(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> Decision:
    phase, step = _next(plan, state)
    cost = round(spent(plan, state, situation))
    weights = planned_weights(plan, phase, step)
    if phase is Phase.PROMOTED:
        arm = plan.arms[0]
        text = f"{plan.alias} gives {arm.model_version} from now on: {_passed(plan, state, situation, gates)}"
        return Decision(Kind.PROMOTE, text, State(phase, state.step, (), situation.now, cost=cost), tuple(gates))
    text = f"{_entered(plan, phase, step, weights)}: {_passed(plan, state, situation, gates)}"
    return Decision(Kind.ADVANCE, text, State(phase, step, weights, situation.now, cost=cost), tuple(gates))


def _next(plan: Plan, state: State) -> tuple[Phase, int]:
    if state.phase is Phase.PREPARING and plan.shadow is not None:
        return Phase.SHADOW, 0
    if state.phase in (Phase.PREPARING, Phase.SHADOW):
        return (Phase.CANARY if plan.steps else Phase.EXPERIMENT), 0
    return (Phase.CANARY, state.step + 1) if state.step + 1 < len(plan.steps) else (Phase.PROMOTED, state.step)


def _carried(plan: Plan, state: State) -> tuple[int, ...]:
    """What the arms must be able to carry now."""
    if state.phase is Phase.SHADOW and plan.shadow is not None:
        return tuple(plan.shadow.share for _ in plan.arms)
    return state.weights


def _next_weights(plan: Plan, state: State) -> tuple[int, ...]:
    """What the arms must be able to carry next; mirrored copies need as much as they are."""
    phase, step = _next(plan, state)
    if phase is Phase.SHADOW:
        return _carried(plan, replace(state, phase=phase))
    if phase is Phase.PROMOTED:
        return (WHOLE,)
    return planned_weights(plan, phase, step)


def _longest(plan: Plan, state: State) -> float:
    if state.phase is Phase.SHADOW and plan.shadow is not None:
        return plan.shadow.max_duration
    return plan.steps[state.step].max_duration if state.phase is Phase.CANARY else math.inf


def _entered(plan: Plan, phase: Phase, step: int, weights: Sequence[int]) -> str:
    if phase is Phase.SHADOW and plan.shadow is not None:
        return f"mirroring {words.share(plan.shadow.share)} of the requests"
    if phase is Phase.CANARY:
        return f"step {step + 1} of {len(plan.steps)}, {words.share(weights[0])} of the requests"
    given = zip(plan.arms, weights, strict=True)
    return "experiment with " + ", ".join(f"{arm.name} {words.share(weight)}" for arm, weight in given)


def _passed(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus]) -> str:
    if state.phase is Phase.PREPARING:
        return "workers are ready, and the baseline is"
    mirrored = state.phase is Phase.SHADOW
    counts = [
        f"{situation.evidence[at].requests:,}{' mirrored' if mirrored else ''} requests of {arm.name}"
        for arm in plan.arms
        if (at := present(state, arm.name, mirrored=mirrored)) in situation.evidence
    ]
    held = sum(1 for status in gates if status.verdict is Verdict.HOLDS)
    firm = [status.text for status in gates if _must_hold(status, state.phase)]
    requests = ", ".join(counts) or "no requests"
    open_ = dict.fromkeys(words.metric_name(each.gate.metric) for each in gates if each.verdict is Verdict.UNDECIDED)
    undecided = f", undecided: {', '.join(open_)}" if open_ else ""
    return "; ".join([f"{requests}, no gate breached, {held} of {len(gates)} shown to hold{undecided}", *firm])


# The decisions themselves.


def _prepare(plan: Plan, state: State, situation: Situation) -> Decision:
    versions = ", ".join(arm.model_version for arm in plan.arms)
    text = f"workers load {versions}; {plan.baseline} stays ready"
    return Decision(Kind.PREPARE, text, replace(state, phase=Phase.PREPARING, entered_at=situation.now))


def _wait(state: State, text: str, gates: Sequence[GateStatus]) -> Decision:
    return Decision(Kind.WAIT, text, state, tuple(gates))


def _hold(state: State, text: str, gates: Sequence[GateStatus]) -> Decision:
    kind = Kind.WAIT if state.held else Kind.HOLD
    return Decision(kind, text, replace(state, held=True), tuple(gates))


def _roll_back(plan: Plan, state: State, situation: Situation, gates: Sequence[GateStatus], text: str) -> Decision:
    ended = State(
        Phase.ROLLED_BACK, state.step, (), situation.now, cost=round(spent(plan, state, situation)), paused=state.paused
    )
    return Decision(Kind.ROLL_BACK, text, ended, tuple(gates))


def _breached(gates: Sequence[GateStatus], action: GateAction) -> list[GateStatus]:
    return [status for status in gates if status.verdict is Verdict.BREACHED and status.gate.on_breach is action]
