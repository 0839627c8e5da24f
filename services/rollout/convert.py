"""Proto to domain and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb

from libs.clock.stamps import timestamp, unix
from libs.deadlines import to_seconds
from libs.registry import RegistrySnapshot, runners_of
from libs.rollouts import phase_of
from libs.telemetry import get_logger
from services.rollout.outcomes import ArmReport, Place, Rollout
from services.rollout.policy.cohorts import Cell, Cohorts, Prompt
from services.rollout.policy.evidence import ArmEvidence, CostMoments, Distribution, GoodBad, Moments, Stage
from services.rollout.policy.keys import BUCKETS, KeySums
from services.rollout.policy.phases import GateAction, Load, Phase
from services.rollout.policy.plan import (
    ArmPlan,
    Gate,
    GateStatus,
    Plan,
    ShadowPlan,
    State,
    StepPlan,
    Worker,
    WorkerModel,
)

log = get_logger(__name__)
_ALPHA = 0.01
_MINUTE, _HOUR, _PREPARE = 60.0, 3600.0, 600.0
_STEP_SAMPLES, _SHADOW_SAMPLES = 100, 50
_PROMPT_SECONDS = 2
"""As long after its beginning an error is prompt, for gateways."""
_GRACE_SECONDS = 5.0
"""After its deadline a request that has not ended has failed."""
_OLDER_SECONDS = 160.0
"""What gateways do not tell second by second began earlier than so."""


def arm_reports(arms: Iterable[pb.ArmOutcomes]) -> Iterator[ArmReport]:
    """What a gateway counted. Counts of nothing that can be told, and such as cannot be, are left out: one wrong number
    would be in every sum from now on."""
    for each in arms:
        if (
            not each.alias
            or not each.rollout_id
            or not each.arm
            or each.phase not in registry_pb2.RolloutPhase.values()
        ):
            continue
        if not _sound(each):
            log.warning("counts_unsound", alias=each.alias, arm=each.arm)
            continue
        stage = Stage(Phase(each.phase or Phase.PREPARING), each.step, each.arm, each.mirrored)
        place = Place(stage, each.route, each.tier)
        yield ArmReport(Rollout(each.alias, each.rollout_id), place, evidence(each))


def evidence(arm: pb.ArmOutcomes) -> ArmEvidence:
    """One count."""
    return ArmEvidence(
        requests=arm.requests,
        errors=arm.errors,
        streams=arm.streams,
        completed=arm.completed,
        ttft=_distribution(arm.ttft),
        itl=_distribution(arm.itl),
        cost=CostMoments(
            arm.cost.count,
            arm.cost.cost,
            arm.cost.tokens,
            arm.cost.cost2,
            arm.cost.tokens2,
            arm.cost.cost_tokens,
            arm.cost.reference,
            arm.cost.reference2,
            arm.cost.cost_reference,
        ),
        scores={name: Moments(each.count, each.sum, each.sum2) for name, each in arm.scores.items()},
        objectives={name: GoodBad(each.good, each.bad) for name, each in arm.objectives.items()},
        cohorts=_cohorts(arm.cohorts) if arm.HasField("cohorts") else None,
        keys={metric: KeySums(tuple(each.counts), tuple(each.sums)) for metric, each in arm.keys.items()},
    )


def plan(rollout: registry_pb2.Rollout, snapshot: RegistrySnapshot) -> Plan:
    """A rollout as decisions read it."""
    shadow = rollout.shadow if rollout.HasField("shadow") else None
    return Plan(
        alias=rollout.alias,
        rollout_id=rollout.id,
        baseline=rollout.baseline,
        baseline_pool=_pool(rollout.baseline, snapshot),
        arms=tuple(
            ArmPlan(arm.name, arm.model_version, _pool(arm.model_version, snapshot), arm.weight) for arm in rollout.arms
        ),
        steps=tuple(
            StepPlan(
                weight=step.weight,
                min_duration=_seconds(step, "min_duration", _MINUTE),
                max_duration=_seconds(step, "max_duration", _HOUR),
                min_samples=step.min_samples or _STEP_SAMPLES,
            )
            for step in rollout.steps
        ),
        shadow=None
        if shadow is None
        else ShadowPlan(
            share=shadow.share,
            min_duration=_seconds(shadow, "min_duration", _MINUTE),
            max_duration=_seconds(shadow, "max_duration", _HOUR),
            min_samples=shadow.min_samples or _SHADOW_SAMPLES,
        ),
        gates=tuple(gate(each) for each in rollout.gates),
        predicts=_predicts(rollout.baseline, snapshot),
        alpha=rollout.alpha or _ALPHA,
        max_share=rollout.blast_radius.max_share,
        max_cost=rollout.blast_radius.max_cost_microusd,
        prepare_timeout=_seconds(rollout, "prepare_timeout", _PREPARE),
        override=bool(rollout.override_reason),
        few_keys=bool(rollout.few_keys_reason),
    )


def gate(message: registry_pb2.Gate) -> Gate:
    """A gate as decisions read it."""
    return Gate(
        metric=message.metric,
        tolerance=message.tolerance,
        on_breach=GateAction(message.on_breach or GateAction.ROLL_BACK),
        lower_is_better=message.lower_is_better,
        must_hold=message.must_hold,
        at_least=message.at_least if message.HasField("at_least") else None,
    )


def state(rollout: registry_pb2.Rollout) -> State:
    """Where it stands."""
    stored = rollout.state
    return State(
        phase=Phase(phase_of(rollout)),
        step=stored.step,
        weights=tuple(stored.weights),
        entered_at=unix(stored.entered_at),
        held=stored.held,
        paused=stored.paused,
        cost=stored.cost_microusd,
    )


def with_state(rollout: registry_pb2.Rollout, new: State, *, reason: str, by: str, now: float) -> registry_pb2.Rollout:
    """The rollout as it shall be stored after a decision."""
    made = registry_pb2.Rollout()
    made.CopyFrom(rollout)
    stored = made.state
    stored.phase = int(new.phase)  # type: ignore[assignment]
    stored.step = new.step
    stored.weights[:] = new.weights
    stored.entered_at.CopyFrom(timestamp(new.entered_at or now))
    stored.held = new.held
    stored.paused = new.paused
    stored.cost_microusd = new.cost
    stored.reason = reason
    stored.decided_by = by
    if not stored.HasField("started_at"):
        stored.started_at.CopyFrom(timestamp(now))
    if new.phase.final:
        stored.ended_at.CopyFrom(timestamp(now))
    made.ClearField("revision")
    return made


def workers(snapshot: RegistrySnapshot, versions: Iterable[str]) -> tuple[Worker, ...]:
    """Live workers and predictors, with how far they are with these versions."""
    wanted = set(versions)
    return tuple(
        Worker(
            each.instance,
            each.zone,
            each.pool,
            {
                **{name: WorkerModel(Load.READY) for name in each.model_versions if name in wanted},
                **{
                    model.model_version: WorkerModel(Load(model.state), model.detail)
                    for model in each.model_states
                    if model.model_version in wanted and model.state
                },
            },
        )
        for each in runners_of(snapshot)
    )


def gate_status(status: GateStatus) -> pb.GateStatus:
    """What a gate says."""
    made = pb.GateStatus(
        arm=status.arm,
        verdict=int(status.verdict),  # type: ignore[arg-type]
        difference=status.difference,
        low=status.low,
        high=status.high,
        samples=status.samples,
        baseline_samples=status.baseline_samples,
        text=status.text,
    )
    made.gate.metric = status.gate.metric
    made.gate.tolerance = status.gate.tolerance
    made.gate.on_breach = int(status.gate.on_breach)  # type: ignore[assignment]
    made.gate.lower_is_better = status.gate.lower_is_better
    made.gate.must_hold = status.gate.must_hold
    if status.gate.at_least is not None:
        made.gate.at_least = status.gate.at_least
    return made


def _sound(arm: pb.ArmOutcomes) -> bool:
    cost = arm.cost
    sums = [cost.cost, cost.tokens, cost.cost2, cost.tokens2, cost.cost_tokens]
    sums += [cost.reference, cost.reference2, cost.cost_reference]
    for each in (arm.ttft, arm.itl):
        bins = list(each.bins)
        if len(bins) != len(each.counts) or any(low >= high for low, high in pairwise(bins)):
            return False
        sums += [each.sum_log, each.sum_log2]
    for moments in arm.scores.values():
        sums += [moments.sum, moments.sum2]
    for by_key in arm.keys.values():
        if len(by_key.counts) != BUCKETS or len(by_key.sums) != BUCKETS:
            return False
        sums += by_key.sums
    if not (all(map(math.isfinite, sums)) and arm.errors <= arm.requests and arm.completed <= arm.streams):
        return False
    return not arm.HasField("cohorts") or _sound_cohorts(arm.cohorts)


def _sound_cohorts(found: pb.Cohorts) -> bool:
    columns = (found.started, found.ended, found.errors, found.broken, found.prompt)
    if any(len(column) != len(found.seconds) + 1 for column in columns):
        return False
    if not math.isfinite(found.longest) or not math.isfinite(found.now):
        return False
    return all(
        prompt <= errors <= ended <= started and broken <= ended
        for started, ended, errors, broken, prompt in zip(*columns, strict=True)
    )


def _cohorts(found: pb.Cohorts) -> Cohorts:
    """Requests that have not ended though their deadline has passed have failed: whatever they hang on, it is not the
    caller. All by the clock of the gateway: what one that died had open is told by nobody."""
    rows = zip(found.started, found.ended, found.errors, found.broken, strict=True)
    cells = [Cell(*row) for row in rows]
    late = found.now - found.longest - _GRACE_SECONDS - 1.0
    began = [found.now - _OLDER_SECONDS, *found.seconds]
    cells = [_failed(cell) if second < late else cell for second, cell in zip(began, cells, strict=True)]
    told = [second <= found.now - _PROMPT_SECONDS - 1.0 for second in began]
    return Cohorts(
        cells[0],
        tuple(sorted(zip(found.seconds, cells[1:], strict=True))),
        Prompt(
            sum(cell.started for cell, known in zip(cells, told, strict=True) if known),
            sum(errors for errors, known in zip(found.prompt, told, strict=True) if known),
        ),
    )


def _failed(cell: Cell) -> Cell:
    return cell._replace(ended=cell.started, errors=cell.errors + cell.open)


def _distribution(message: pb.Distribution) -> Distribution:
    return Distribution(tuple(message.bins), tuple(message.counts), message.sum_log, message.sum_log2)


def _pool(version: str, snapshot: RegistrySnapshot) -> str:
    known = snapshot.model_versions.get(version)
    return known.pool if known is not None else ""


def _predicts(version: str, snapshot: RegistrySnapshot) -> bool:
    known = snapshot.model_versions.get(version)
    return known is not None and known.HasField("prediction")


def _seconds(
    message: registry_pb2.RolloutStep | registry_pb2.ShadowPlan | registry_pb2.Rollout, name: str, default: float
) -> float:
    return to_seconds(getattr(message, name)) if message.HasField(name) else default  # type: ignore[arg-type]
