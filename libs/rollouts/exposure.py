"""Which arms of which rollout callers may meet now."""

from __future__ import annotations

from dataclasses import dataclass

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot

_CAPACITY_SHARE = 0.5
BASELINE = "baseline"
"""The name of the arm that the alias itself gives."""
SHADOW_TENANT = "shadow"
"""The reserved tenant in whose name, and on whose quota, mirrored requests run."""
WHOLE = 10_000
"""All traffic, in basis points."""

_EXPOSED = frozenset({pb.ROLLOUT_PHASE_CANARY, pb.ROLLOUT_PHASE_EXPERIMENT})
_OVER = frozenset({pb.ROLLOUT_PHASE_PROMOTED, pb.ROLLOUT_PHASE_ROLLED_BACK, pb.ROLLOUT_PHASE_ABORTED})


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm with its share now."""

    name: str
    model_version: str
    weight: int
    """Basis points."""


def phase_of(rollout: pb.Rollout) -> pb.RolloutPhase:
    """The phase; one that was just written down is PREPARING."""
    return rollout.state.phase or pb.ROLLOUT_PHASE_PREPARING


def is_live(rollout: pb.Rollout) -> bool:
    """It has not ended."""
    return phase_of(rollout) not in _OVER


def in_force(snapshot: RegistrySnapshot, alias: str) -> pb.Rollout | None:
    """The alias's rollout, if callers (or mirrored copies) may meet its arms now.

    None when there is none, when it has not begun or has ended, when the kill switch is set, or when the alias does
    not give the rollout's baseline alone: somebody moved it, and what they chose counts.
    """
    rollout = snapshot.rollouts.get(alias)
    if rollout is None or not is_live(rollout) or phase_of(rollout) == pb.ROLLOUT_PHASE_PREPARING:
        return None
    switch = snapshot.switches.get("rollouts")
    if switch is not None and switch.kill:
        return None
    pointed = snapshot.aliases.get(alias)
    if pointed is None or [target.model_version for target in pointed.targets] != [rollout.baseline]:
        return None
    return rollout


def exposed(rollout: pb.Rollout) -> bool:
    """Users meet its arms, not only mirrored copies do."""
    return phase_of(rollout) in _EXPOSED


def arms_of(rollout: pb.Rollout) -> tuple[Arm, ...]:
    """The baseline first, then the others in their order, with the weights that users meet; these sum to 10,000."""
    weights = list(rollout.state.weights) if exposed(rollout) else []
    weights += [0] * (len(rollout.arms) - len(weights))
    others = tuple(Arm(arm.name, arm.model_version, weight) for arm, weight in zip(rollout.arms, weights, strict=False))
    return (Arm(BASELINE, rollout.baseline, WHOLE - sum(arm.weight for arm in others)), *others)


def capacity_share(rollout: pb.Rollout | None) -> float:
    """Most of a pool's KV blocks that an arm may hold, 0 to 1; half of them where the rollout does not say."""
    return (rollout.capacity_share if rollout is not None else 0.0) or _CAPACITY_SHARE
