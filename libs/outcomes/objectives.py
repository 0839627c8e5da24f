"""Declared objectives, and which of them a request met.

A slow success counts against latency alone; a failure tells nothing about the latency of what did not come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from weir.registry.v1 import registry_pb2

from libs.deadlines import to_seconds
from libs.errors import WeirError
from libs.outcomes.standing import Standing

AVAILABILITY, STREAM_COMPLETION = "availability", "stream_completion"
TTFT, ITL, E2E_P95, E2E_P99 = "ttft_p95", "itl_p95", "e2e_p95", "e2e_p99"
"""Names as in `weir.rollout.v1.ObjectiveOutcomes` and the registry's Slo."""
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


def objectives_of(message: registry_pb2.Slo) -> Objectives:
    """Declared objectives."""
    return Objectives(
        ttft=to_seconds(message.ttft_p95) if message.HasField("ttft_p95") else None,
        itl=to_seconds(message.itl_p95) if message.HasField("itl_p95") else None,
        e2e_p95=to_seconds(message.e2e_p95) if message.HasField("e2e_p95") else None,
        e2e_p99=to_seconds(message.e2e_p99) if message.HasField("e2e_p99") else None,
        availability=message.availability > 0,
        stream_completion=message.stream_completion > 0,
    )


def ttft_left(objectives: Objectives, spent: float) -> float | None:
    """Seconds that are left for the first token when `spent` have passed since the arrival; a millisecond when it is
    late already: whether it is served then is admission's to say. None when nothing is declared."""
    return None if objectives.ttft is None else max(_LEAST, objectives.ttft - spent)


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A request that ran, once it is over. Times are in seconds."""

    whole: bool
    """It came to its end."""
    late: bool = False
    """Its deadline passed."""
    error: WeirError | None = None
    """What ended it; None: it was served."""
    first: float = 0.0
    """To its first token, or the whole of an answer that comes at once; 0: there was none."""
    itl: float = 0.0
    """Mean between its tokens, of the longest part of the answer; 0: not known."""
    total: float
    model_version: str
    model: str
    """As the caller named it, for its cost."""
    tokens: int = 0
    """Of prompt and output, to bill; of these `prompt_tokens`, and of these `cached_prompt_tokens`."""
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    rows: int = 0
    """Of a prediction, which has no tokens."""
    scores: Sequence[tuple[str, float]] = ()


def judge(objectives: Objectives, standing: Standing, ran: Ran) -> list[tuple[str, bool]]:
    """(objective, met) for each that can be told of a request that ran.

    `standing` says whether it speaks for or against us at all. A deadline that passed before the first token has
    missed; a caller who left and a request that failed tell nothing about what did not come.
    """
    told: list[tuple[str, bool]] = []
    first, total = ran.first, ran.total
    if standing is not Standing.NEITHER:
        if objectives.availability:
            told.append((AVAILABILITY, standing is Standing.GOOD))
        if objectives.stream_completion and first:
            told.append((STREAM_COMPLETION, ran.whole))
    if objectives.ttft is not None:
        if first:
            told.append((TTFT, first <= objectives.ttft))
        elif ran.late and total > objectives.ttft:
            told.append((TTFT, False))
    if objectives.itl is not None and ran.itl:
        told.append((ITL, ran.itl <= objectives.itl))
    for name, e2e in ((E2E_P95, objectives.e2e_p95), (E2E_P99, objectives.e2e_p99)):
        if e2e is not None:
            if ran.whole:
                told.append((name, total <= e2e))
            elif ran.late and total > e2e:
                told.append((name, False))
    return told
