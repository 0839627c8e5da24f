"""Declared objectives, and which of them a request met.

A slow success counts against latency alone; a failure tells nothing about the latency of what did not come.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.policy.events import Finish
from services.gateway.policy.standing import Standing

AVAILABILITY, STREAM_COMPLETION = "availability", "stream_completion"
TTFT, ITL, E2E_P95, E2E_P99 = "ttft_p95", "itl_p95", "e2e_p95", "e2e_p99"
"""Names as in `weir.rollout.v1.ObjectiveOutcomes` and the registry's Slo."""
WHOLE = (Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER)
"""The request came to its end."""
_LEAST = 0.001


@dataclass(frozen=True, slots=True)
class Objectives:
    """Seconds; None declares nothing. `itl` is compared with the mean gap of one answer's tokens."""

    ttft: float | None = None
    itl: float | None = None
    e2e_p95: float | None = None
    e2e_p99: float | None = None
    availability: bool = False
    """A share of requests to be served is declared."""
    stream_completion: bool = False
    """A share of begun streams to come to their end is declared."""

    @property
    def patience(self) -> float:
        """Seconds that a caller must give for its passed deadline to speak against us; 0 when nothing is declared."""
        return self.e2e_p95 or self.e2e_p99 or self.ttft or 0.0


NOTHING = Objectives()


def ttft_left(objectives: Objectives, spent: float) -> float | None:
    """Seconds that are left for the first token when `spent` have passed since the arrival; a millisecond when it is
    late already: whether it is served then is admission's to say. None when nothing is declared."""
    return None if objectives.ttft is None else max(_LEAST, objectives.ttft - spent)


def judge(
    objectives: Objectives,
    *,
    standing: Standing,
    finish: Finish,
    first: float,
    decode: float,
    longest: int,
    total: float,
) -> list[tuple[str, bool]]:
    """(objective, met) for each that can be told of a request that ran.

    `standing` says whether it speaks for or against us at all (`policy/standing.py`), `first` is the seconds to the
    first token (0: there was none), `decode` from the first token to the last, `longest` the tokens of the longest
    choice. A deadline that passed before the first token has missed; a caller who left and a request that failed tell
    nothing about what did not come.
    """
    told: list[tuple[str, bool]] = []
    late = finish is Finish.DEADLINE
    if standing is not Standing.NEITHER:
        if objectives.availability:
            told.append((AVAILABILITY, standing is Standing.GOOD))
        if objectives.stream_completion and first:
            told.append((STREAM_COMPLETION, finish in WHOLE))
    if objectives.ttft is not None:
        if first:
            told.append((TTFT, first <= objectives.ttft))
        elif late and total > objectives.ttft:
            told.append((TTFT, False))
    if objectives.itl is not None and longest > 1 and decode:
        told.append((ITL, decode / (longest - 1) <= objectives.itl))
    for name, e2e in ((E2E_P95, objectives.e2e_p95), (E2E_P99, objectives.e2e_p99)):
        if e2e is not None:
            if finish in WHOLE:
                told.append((name, total <= e2e))
            elif late and total > e2e:
                told.append((name, False))
    return told
