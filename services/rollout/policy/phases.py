"""The closed sets of words that decisions are made of. Numbers equal those of `weir.registry.v1` and
`weir.rollout.v1`, so converting is a cast."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Phase(IntEnum):
    """Where a rollout stands."""

    PREPARING = 1
    SHADOW = 2
    CANARY = 3
    EXPERIMENT = 4
    PROMOTED = 5
    ROLLED_BACK = 6
    ABORTED = 7

    @property
    def final(self) -> bool:
        """It has ended."""
        return self >= Phase.PROMOTED


class GateAction(IntEnum):
    """What to do when a gate is breached."""

    ROLL_BACK = 1
    HOLD = 2


class Verdict(IntEnum):
    """What a gate says of an arm."""

    UNDECIDED = 1
    HOLDS = 2
    """Not worse than tolerated, as sure as alpha says."""
    BREACHED = 3
    """Worse than tolerated, as sure as alpha says."""


class Load(IntEnum):
    """How far a worker is with a version."""

    FETCHING = 1
    VERIFYING = 2
    LOADING = 3
    READY = 4
    FAILED = 5


class Kind(StrEnum):
    """What was decided."""

    WAIT = "wait"
    """Nothing to write: the state is the one that was given."""
    PREPARE = "prepare"
    ADVANCE = "advance"
    """To the next phase or step."""
    HOLD = "hold"
    RESUME = "resume"
    """The reason to hold is gone."""
    EASE = "ease"
    """Less weight, in the same step."""
    ROLL_BACK = "roll_back"
    PROMOTE = "promote"
