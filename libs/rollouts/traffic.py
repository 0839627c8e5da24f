"""How a rollout spreads callers and copies of their requests."""

from __future__ import annotations

import enum

from weir.registry.v1 import registry_pb2 as pb

from libs.rollouts.exposure import WHOLE, phase_of


class StickyBy(enum.Enum):
    """By what callers keep their arm."""

    TENANT = "tenant"
    USER = "user"
    """A tenant's user; requests without one, as by tenant."""
    SESSION = "session"
    """A session; requests without one, as by user."""


_STICKY = {pb.STICKY_BY_USER: StickyBy.USER, pb.STICKY_BY_SESSION: StickyBy.SESSION}


def sticky_by(rollout: pb.Rollout) -> StickyBy:
    """By what the rollout's callers keep their arm."""
    return _STICKY.get(rollout.sticky, StickyBy.TENANT)


def mirrored_share(rollout: pb.Rollout) -> int:
    """The share of requests that are mirrored now, basis points; 0 outside the shadow phase."""
    return min(rollout.shadow.share, WHOLE) if phase_of(rollout) == pb.ROLLOUT_PHASE_SHADOW else 0
