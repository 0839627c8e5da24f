"""What became of each request, and what follows from it: goodput, waits, refusals, tokens over time. Pure.

A sample is a `simulation.records.Record` with more to tell, so that `simulation.validate` reads the same file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from loadtest.figures import percentile
from simulation.records import Record

OK = "ok"
CANCELLED = "CANCELLED"
"""The client went away on purpose."""
CLIENT_TIMEOUT = "CLIENT_TIMEOUT"
"""No end came within the client's own deadline."""
CONNECTION_LOST = "CONNECTION_LOST"
"""The connection broke."""
REFUSALS = ("REJECTED_", "EVICTED_", "QUOTA_", "DRAINING")
"""How the reasons of truthful refusals begin; every other end that is not ok is a failure."""


class Sample(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One request as its client saw it. Times in seconds."""

    load: str = ""
    """Which of the run's loads it belongs to."""
    status: int = 0
    """HTTP's, or what the reason maps to; 0 when no answer came."""
    late: float = 0.0
    """How much later than planned it was sent."""
    itl_p95: float | None = None
    """Of the gaps between this answer's events; absent with fewer than two events."""
    degraded: tuple[str, ...] = ()
    """What the answer says was given up."""
    zone: str = ""
    queued: float | None = None
    """How long it waited in admission, as the mesh says."""
    counted_prompt: int = 0
    """Prompt tokens by the answer's usage."""
    events: tuple[float, ...] = ()
    """When the events with text came, after `at`; only kept when a run asks for it."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must meet to count as served well. Seconds."""

    ttft: float
    itl: float = math.inf
    """For 95 of 100 gaps of the request's own."""
    e2e: float = math.inf

    def met(self, sample: Sample) -> bool:
        """Whether this request was served inside the objective."""
        return (
            sample.outcome == OK
            and sample.ttft is not None
            and sample.ttft <= self.ttft
            and (sample.itl_p95 or 0.0) <= self.itl
            and (sample.e2e or 0.0) <= self.e2e
        )


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Sample)


def encode(sample: Sample) -> bytes:
    """One line."""
    return _ENCODER.encode(sample) + b"\n"


def decode(line: bytes) -> Sample:
    """The sample of a line.

    :raises msgspec.DecodeError: it is none.
    """
    return _DECODER.decode(line)


def read(path: Path) -> list[Sample]:
    """All samples of a finished run, in order of time."""
    lines = path.read_bytes().splitlines()
    return sorted((decode(line) for line in lines if b'"weir"' not in line), key=lambda sample: sample.at)


def itl_p95(events: Sequence[float]) -> float | None:
    """The 95th percentile of the gaps between events."""
    gaps = [late - early for early, late in pairwise(events)]
    return percentile(gaps, 0.95) if gaps else None


def refused(sample: Sample) -> bool:
    """It was refused with one of the mesh's own reasons, before anything of it was delivered."""
    return sample.outcome.startswith(REFUSALS) and not sample.delivered_tokens


def failed(sample: Sample) -> bool:
    """It ended otherwise than served, refused or left by its client."""
    return sample.outcome not in (OK, CANCELLED) and not refused(sample)


@dataclass(frozen=True, slots=True)
class Summary:
    """A window of a run. Rates per second, times in seconds."""

    seconds: float
    offered: float
    served: float
    good: float
    """Inside their objective."""
    ttft_p50: float
    ttft_p95: float
    refusals: Counter[str]
    failures: Counter[str]
    degraded: Counter[str]


def summarise(samples: Iterable[Sample], objective: Objective, *, start: float, end: float) -> Summary:
    """Of the requests sent from `start` to `end`, whenever they ended."""
    inside = [sample for sample in samples if start <= sample.at < end]
    served = [sample for sample in inside if sample.outcome == OK]
    first = [sample.ttft for sample in served if sample.ttft is not None]
    seconds = end - start
    return Summary(
        seconds=seconds,
        offered=len(inside) / seconds,
        served=len(served) / seconds,
        good=sum(map(objective.met, inside)) / seconds,
        ttft_p50=percentile(first, 0.5) if first else math.nan,
        ttft_p95=percentile(first, 0.95) if first else math.nan,
        refusals=Counter(sample.outcome for sample in inside if refused(sample)),
        failures=Counter(sample.outcome for sample in inside if failed(sample)),
        degraded=Counter(flag for sample in inside for flag in sample.degraded),
    )


def refusal_seconds(samples: Iterable[Sample], *, start: float, end: float) -> list[float]:
    """From sending to the whole refusal, of requests that were refused without having queued."""
    return [
        sample.e2e
        for sample in samples
        if start <= sample.at < end and refused(sample) and not sample.outcome.startswith("EVICTED_") and sample.e2e
    ]


def deliveries(sample: Sample) -> list[tuple[float, float, float]]:
    """(time since the run's start, prompt tokens, output tokens) as they reached the client: the prompt with the first
    event, the output tokens spread evenly over the events that were seen."""
    output = sample.delivered_tokens if sample.delivered_tokens is not None else sample.output_tokens
    if not sample.events:
        if sample.outcome != OK:
            return []
        return [(sample.at + (sample.e2e or 0.0), float(sample.counted_prompt or sample.prompt_tokens), float(output))]
    each = output / len(sample.events)
    prompt = float(sample.counted_prompt or sample.prompt_tokens)
    return [
        (sample.at + at, prompt if number == 0 else 0.0, each) for number, at in enumerate(sample.events)
    ]  # fmt: skip


def busiest_window(events: Iterable[tuple[float, float]], seconds: float) -> float:
    """The largest sum of amounts in any half-open window of this length, given (time, amount)."""
    ordered = sorted(events)
    most = total = 0.0
    first = 0
    for at, amount in ordered:
        total += amount
        while ordered[first][0] <= at - seconds:
            total -= ordered[first][1]
            first += 1
        most = max(most, total)
    return most


def service_gap(
    one: Iterable[tuple[float, float]],
    other: Iterable[tuple[float, float]],
    *,
    start: float,
    end: float,
) -> float:
    """The largest difference between what two tenants received in any interval inside a time: given (time, amount),
    amounts already divided by the tenants' weights.

    The running difference D(t) is followed; over an interval the gap is |D(t2) - D(t1)|, so the largest is the range.
    """
    changes = sorted([*one, *((at, -amount) for at, amount in other)])
    gap = low = high = 0.0
    for at, amount in changes:
        if start <= at < end:
            gap += amount
            low, high = min(low, gap), max(high, gap)
    return high - low
