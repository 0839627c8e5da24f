"""Declared objectives, and which of them a request met.

Whether a request was served at all is not judged here: refusals and errors are counted by outcome and reason. These
tell only how fast those were that were served, so a slow success counts against latency alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.policy.events import Finish

TTFT, ITL, E2E = "ttft", "itl", "e2e"
_LEAST = 0.001
_WHOLE = (Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER)


@dataclass(frozen=True, slots=True)
class Objectives:
    """Seconds; None declares nothing. `itl` is compared with the mean gap of one answer's tokens."""

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None


NOTHING = Objectives()


def ttft_left(objectives: Objectives, spent: float) -> float | None:
    """Seconds that are left for the first token when `spent` have passed since the arrival; a millisecond when it is
    late already: whether it is served then is admission's to say. None when nothing is declared."""
    return None if objectives.ttft is None else max(_LEAST, objectives.ttft - spent)


def judge(
    objectives: Objectives, *, finish: Finish, first: float, decode: float, longest: int, total: float
) -> list[tuple[str, bool]]:
    """(objective, met) for each that can be told.

    `first` is the seconds to the first token (0: there was none), `decode` from the first token to the last, `longest`
    the tokens of the longest choice. A deadline that passed before the first token has missed; a caller who left and
    a request that failed tell nothing about what did not come.
    """
    told: list[tuple[str, bool]] = []
    late = finish is Finish.DEADLINE
    if objectives.ttft is not None:
        if first:
            told.append((TTFT, first <= objectives.ttft))
        elif late and total > objectives.ttft:
            told.append((TTFT, False))
    if objectives.itl is not None and longest > 1 and decode:
        told.append((ITL, decode / (longest - 1) <= objectives.itl))
    if objectives.e2e is not None:
        if finish in _WHOLE:
            told.append((E2E, total <= objectives.e2e))
        elif late and total > objectives.e2e:
            told.append((E2E, False))
    return told
