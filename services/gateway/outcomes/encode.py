"""Counts → `weir.rollout.v1`."""

from __future__ import annotations

from weir.rollout.v1 import rollout_pb2

from services.gateway.outcomes.cohorts import Cohorts
from services.gateway.outcomes.counts import ArmCounts, CostMoments, Distribution
from services.gateway.policy.finals import ArmKey


def arm_outcomes(key: ArmKey, counts: ArmCounts, now: float) -> rollout_pb2.ArmOutcomes:
    """One arm's entry at `now`, Unix seconds."""
    message = rollout_pb2.ArmOutcomes(
        alias=key.alias,
        rollout_id=key.rollout_id,
        phase=key.phase,  # type: ignore[arg-type]
        step=key.step,
        arm=key.arm,
        mirrored=key.mirrored,
        model_version=counts.model_version,
        requests=counts.requests,
        errors=counts.errors,
        streams=counts.streams,
        completed=counts.completed,
        ttft=distribution(counts.ttft),
        itl=distribution(counts.itl),
        cost=_cost(counts.cost),
        route=counts.route,
        tier=counts.tier,
        cohorts=_cohorts(counts.cohorts, now),
    )
    for metric, sums in counts.keys.items():
        by_key = message.keys[metric]
        by_key.counts.extend(sums.counts)
        by_key.sums.extend(sums.sums)
    for metric, moments in counts.scores.items():
        entry = message.scores[metric]
        entry.count, entry.sum, entry.sum2 = moments.count, moments.sum, moments.sum2
    for name, (good, bad) in counts.objectives.items():
        event = message.objectives[name]
        event.good, event.bad = good, bad
    return message


def objective_outcomes(route: str, tier: str, counts: dict[str, list[int]]) -> rollout_pb2.ObjectiveOutcomes:
    """One route and tier's entry."""
    message = rollout_pb2.ObjectiveOutcomes(route=route, tier=tier)
    for name, (good, bad) in counts.items():
        event = message.objectives[name]
        event.good, event.bad = good, bad
    return message


def distribution(found: Distribution) -> rollout_pb2.Distribution:
    """Bins in ascending order."""
    bins = sorted(found.bins)
    return rollout_pb2.Distribution(
        bins=bins, counts=[found.bins[place] for place in bins], sum_log=found.sum_log, sum_log2=found.sum_log2
    )


def _cohorts(found: Cohorts, now: float) -> rollout_pb2.Cohorts:
    cells = list(found.cells())
    return rollout_pb2.Cohorts(
        seconds=list(found.seconds),
        started=[cell.started for cell in cells],
        ended=[cell.ended for cell in cells],
        errors=[cell.errors for cell in cells],
        broken=[cell.broken for cell in cells],
        prompt=[cell.prompt for cell in cells],
        longest=found.longest,
        now=now,
    )


def _cost(found: CostMoments) -> rollout_pb2.CostMoments:
    return rollout_pb2.CostMoments(
        count=found.count,
        cost=found.cost,
        tokens=found.tokens,
        cost2=found.cost2,
        tokens2=found.tokens2,
        cost_tokens=found.cost_tokens,
        reference=found.reference,
        reference2=found.reference2,
        cost_reference=found.cost_reference,
    )
