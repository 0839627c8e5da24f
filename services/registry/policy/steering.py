"""Where an operator may move a rollout to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Numbers of `weir.registry.v1.RolloutPhase`."""

    PREPARING = 1
    SHADOW = 2
    CANARY = 3
    EXPERIMENT = 4
    PROMOTED = 5
    ROLLED_BACK = 6
    ABORTED = 7


OVER = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ABORTED})
"""Final phases."""


@dataclass(frozen=True, slots=True)
class Place:
    """A phase, and the step in it."""

    phase: Phase
    step: int = 0


def place_after(place: Place, *, steps: int, shadow: bool) -> Place | None:
    """What follows a place if all goes well; None behind an experiment, which an operator must end by an arm's name,
    and behind the end.

    :param steps: the canary's steps; 0 for an experiment.
    :param shadow: a shadow phase is planned.
    """
    first = Place(Phase.CANARY) if steps else Place(Phase.EXPERIMENT)
    match place.phase:
        case Phase.PREPARING:
            return Place(Phase.SHADOW) if shadow else first
        case Phase.SHADOW:
            return first
        case Phase.CANARY if place.step + 1 < steps:
            return Place(Phase.CANARY, place.step + 1)
        case Phase.CANARY:
            return Place(Phase.PROMOTED, place.step)
        case _:
            return None
