"""Which model versions are needed: by workers, in memory; by anybody at all, in the blob store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from weir.registry.v1 import registry_pb2 as pb

from libs.clock.stamps import unix
from libs.deadlines import to_seconds
from libs.registry import RegistrySnapshot
from libs.rollouts.exposure import is_live, phase_of

_KEEP_WARM = 600.0


def warm_until(rollout: pb.Rollout) -> float:
    """Unix seconds until which the old version stays loaded after the rollout's end; 0 while it has not ended."""
    if is_live(rollout):
        return 0.0
    return unix(rollout.state.ended_at) + (
        to_seconds(rollout.keep_warm) if rollout.HasField("keep_warm") else _KEEP_WARM
    )


def desired_versions(snapshot: RegistrySnapshot, pool: str, now: float) -> Mapping[str, tuple[str, ...]]:
    """What workers of the pool shall have ready: registered versions of this pool, each with the reasons why.

    Those that aliases give, those of live rollouts (so the baseline is never unloaded under one), the old version of a
    promoted rollout until `warm_until`, and warm pins. `now`: Unix seconds.
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    for name, alias in snapshot.aliases.items():
        for target in alias.targets:
            wanted[target.model_version].append(f"alias {name}")
    _add_rollouts(wanted, snapshot, now)
    for version, pin in snapshot.pins.items():
        if pin.warm:
            wanted[version].append("pin")
    versions = snapshot.model_versions
    return {
        version: tuple(reasons)
        for version, reasons in wanted.items()
        if version in versions and versions[version].pool == pool
    }


def needed_versions(snapshot: RegistrySnapshot, now: float) -> Mapping[str, tuple[str, ...]]:
    """Versions that must not be removed, each with the reasons why: aliases, rollouts (ended ones until `warm_until`),
    pins, grants of a version by its name, and workers that have or load them. `now`: Unix seconds."""
    needed: dict[str, list[str]] = defaultdict(list)
    for name, alias in snapshot.aliases.items():
        for target in alias.targets:
            needed[target.model_version].append(f"alias {name}")
    _add_rollouts(needed, snapshot, now)
    for version in snapshot.pins:
        needed[version].append("pin")
    for subject, grant in snapshot.model_grants.items():
        for version in grant.models:
            if "@" in version:
                needed[version].append(f"granted to {subject}")
    for (_, instance), endpoint in snapshot.endpoints.items():
        held = {state.model_version for state in endpoint.model_states if state.state != pb.LOAD_STATE_FAILED}
        for version in held | set(endpoint.model_versions):
            needed[version].append(f"worker {instance}")
    # Adapters need what they were made from, and that what it was made from.
    due = list(needed)
    while due:
        known = snapshot.model_versions.get(version := due.pop())
        base = known.provenance.base if known is not None else ""
        if base in snapshot.model_versions:
            if base not in needed:
                due.append(base)
            needed[base].append(f"base of {version}")
    return {version: tuple(reasons) for version, reasons in needed.items()}


def _add_rollouts(wanted: dict[str, list[str]], snapshot: RegistrySnapshot, now: float) -> None:
    for alias, rollout in snapshot.rollouts.items():
        if is_live(rollout):
            for version in (rollout.baseline, *(arm.model_version for arm in rollout.arms)):
                wanted[version].append(f"rollout of {alias}")
        elif phase_of(rollout) == pb.ROLLOUT_PHASE_PROMOTED and now < warm_until(rollout):
            wanted[rollout.baseline].append(f"warm after the rollout of {alias}")
