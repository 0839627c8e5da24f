"""Whether workers can carry a share of the traffic on a version."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from services.rollout.policy.phases import Load
from services.rollout.policy.plan import WHOLE, ArmPlan, Plan, Worker


@dataclass(frozen=True, slots=True)
class Readiness:
    """Of the workers for given weights."""

    missing: tuple[str, ...]
    """What is not there yet, in words; empty: ready."""
    failed: tuple[str, ...]
    """Workers that could not load a candidate's version, and why."""


def readiness(plan: Plan, workers: Sequence[Worker], weights: Sequence[int]) -> Readiness:
    """Can the arms carry these weights (basis points, by arm), and can the baseline take everybody back?

    The baseline must be ready somewhere. An arm needs the share of as many ready workers as the baseline has, rounded
    up, and one in each zone where the baseline has one; but no more than its pool has, in zones where its pool is.
    """
    proven = _ready(workers, plan.baseline)
    missing = [] if proven else [f"no worker has the baseline {plan.baseline} ready"]
    for arm, weight in zip(plan.arms, weights, strict=False):
        if weight and proven:
            missing += _missing(arm, weight, workers, proven)
    failed = (_failure(worker, arm.model_version) for arm in plan.arms for worker in workers)
    return Readiness(tuple(missing), tuple(text for text in failed if text))


def _missing(arm: ArmPlan, weight: int, workers: Sequence[Worker], proven: Sequence[Worker]) -> list[str]:
    version = arm.model_version
    pool = [worker for worker in workers if worker.pool == arm.pool]
    if not pool:
        return [f"pool {arm.pool} of {version} has no workers"]
    ready = _ready(workers, version)
    needed = min(math.ceil(len(proven) * weight / WHOLE), len(pool))
    if len(ready) < needed:
        return [f"{len(ready)} of {needed} workers needed have {version} ready{_progress(pool, version)}"]
    zones = {worker.zone for worker in proven} & {worker.zone for worker in pool}
    bare = sorted(zones - {worker.zone for worker in ready})
    return [f"no worker in zone {zone} has {version} ready{_progress(pool, version)}" for zone in bare]


def _ready(workers: Sequence[Worker], version: str) -> list[Worker]:
    return [worker for worker in workers if version in worker.models and worker.models[version].load is Load.READY]


def _failure(worker: Worker, version: str) -> str:
    found = worker.models.get(version)
    if found is None or found.load is not Load.FAILED:
        return ""
    return f"{worker.name} could not load {version}: {found.detail or 'it gave no reason'}"


def _progress(pool: Sequence[Worker], version: str) -> str:
    loads = Counter(worker.models[version].load for worker in pool if version in worker.models)
    under_way = [f"{loads[load]} {load.name.lower()}" for load in Load if load is not Load.READY and loads[load]]
    return f" ({', '.join(under_way)})" if under_way else ""
