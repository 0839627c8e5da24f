"""What a rollout means to those who carry it out: pure functions of a registry snapshot.

Router, gateways, edge, control plane, workers and the garbage collection of models all ask here, so that they agree.
An alias points to its rollout's baseline until the rollout is promoted; the rollout lies over it. Whoever cannot read
the rollout, or must not follow it, serves the alias.
"""

from libs.rollouts.exposure import (
    BASELINE,
    SHADOW_TENANT,
    Arm,
    arms_of,
    capacity_share,
    exposed,
    in_force,
    is_live,
    phase_of,
)
from libs.rollouts.needs import desired_versions, needed_versions, warm_until
from libs.rollouts.traffic import StickyBy, mirrored_share, sticky_by

__all__ = [
    "BASELINE",
    "SHADOW_TENANT",
    "Arm",
    "StickyBy",
    "arms_of",
    "capacity_share",
    "desired_versions",
    "exposed",
    "in_force",
    "is_live",
    "mirrored_share",
    "needed_versions",
    "phase_of",
    "sticky_by",
    "warm_until",
]
