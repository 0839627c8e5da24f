"""The simulator against the real mesh: `python -m simulation.validate RUN.jsonl [--json]`.

Replays the arrivals of a recorded run (README.md says what its lines hold) and compares. What the run does not say
(the way through the mesh) is what `Delays` says; nothing is fitted to the run, so that the errors are honest.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from simulation import records
from simulation.outcomes import OK, Outcome
from simulation.records import Record
from simulation.report import LABEL, percentile
from simulation.scenario import Cluster, Delays, Objective, Scenario
from simulation.simulator import Simulator
from simulation.workload import CLASSES, Arrival

_LEFT_OUT = ("QUOTA_", "CANCELLED")
"""Ends that the replay knows nothing of: quotas are not in the record, nor why a caller left."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a run; unknown fields are passed over."""

    workers: int = 2
    zones: tuple[str, ...] = ("zone-a",)
    calibration: str = ""
    costs: dict[str, float] = {}
    sizes: dict[str, int] = {}
    slowdown: float = 1.0
    discipline: str = "fair"
    admission: dict[str, Any] = {}
    delays: Delays = Delays()
    ttft_slo: float | None = None
    itl_slo: float | None = None
    e2e_slo: float | None = None
    warmup: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the served and counted requests of one side. Seconds; goodput per second."""

    ttft_p50: float
    ttft_p95: float
    goodput: float
    served: int
    outcomes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides of one run."""

    requests: int
    left_out: int
    real: Figures
    simulated: Figures

    def errors(self) -> dict[str, float]:
        """Simulated over real, minus one, in percent."""
        real, simulated = self.real, self.simulated
        return {
            "sim_ttft_p50_error_pct": _percent(simulated.ttft_p50, real.ttft_p50),
            "sim_ttft_p95_error_pct": _percent(simulated.ttft_p95, real.ttft_p95),
            "sim_goodput_error_pct": _percent(simulated.goodput, real.goodput),
        }


def errors(path: Path) -> dict[str, float]:
    """The three figures for a recorded run.

    :raises ValueError: the run cannot be read or says what cannot be simulated (`ScenarioError` is one).
    """
    return compare(path).errors()


def compare(path: Path) -> Comparison:
    """Replays a recorded run.

    :raises ValueError: as `errors`.
    """
    raw, lines = records.read(path)
    try:
        header = msgspec.convert(raw, Header)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from error
    replayed = [each for each in lines if not each.outcome.startswith(_LEFT_OUT)]
    if not replayed:
        raise ValueError(f"{path} holds no request that can be replayed")
    scenario = scenario_of(header, replayed)
    arrivals = [_arrival(number, each) for number, each in enumerate(replayed)]
    observed = Simulator(scenario, arrivals=arrivals).run()
    counted = {
        arrival.request_id
        for arrival, each in zip(arrivals, replayed, strict=True)
        if not each.warmup and each.at >= header.warmup
    }
    seconds = max(scenario.seconds - header.warmup, 1e-9)
    objective = Objective(ttft=header.ttft_slo, itl=header.itl_slo, e2e=header.e2e_slo)
    pairs = zip(arrivals, replayed, strict=True)
    return Comparison(
        len(counted),
        len(lines) - len(replayed),
        _figures((_real(each) for arrival, each in pairs if arrival.request_id in counted), objective, seconds),
        _figures(
            (_simulated(each) for each in observed.outcomes if each.arrival.request_id in counted), objective, seconds
        ),
    )


def scenario_of(header: Header, lines: Sequence[Record]) -> Scenario:
    """What ran, as the header tells it."""
    objective = Objective(ttft=header.ttft_slo, itl=header.itl_slo, e2e=header.e2e_slo)
    return Scenario(
        name="replay",
        seconds=lines[-1].at + 1e-6,
        warmup=0.0,
        cluster=Cluster(
            workers=header.workers,
            zones=header.zones,
            calibration=header.calibration,
            costs=header.costs,
            sizes=header.sizes,
            slowdown=header.slowdown,
        ),
        delays=header.delays,
        admission={**header.admission, "discipline": header.discipline},
        objectives=dict.fromkeys(CLASSES, objective),
    )


def _arrival(number: int, record: Record) -> Arrival:
    return Arrival(
        at=record.at,
        request_id=f"{number}",
        tenant=record.tenant,
        queue_class=record.queue_class,
        weight=record.weight,
        prompt_tokens=record.prompt_tokens,
        output_tokens=max(1, min(record.output_tokens, record.max_tokens)),
        max_tokens=record.max_tokens,
        timeout=record.timeout,
    )


@dataclass(frozen=True, slots=True)
class _End:
    outcome: str
    ttft: float | None
    e2e: float | None
    tokens: int


def _real(record: Record) -> _End:
    delivered = record.output_tokens if record.delivered_tokens is None else record.delivered_tokens
    return _End(record.outcome, record.ttft, record.e2e, delivered)


def _simulated(outcome: Outcome) -> _End:
    return _End(outcome.outcome, outcome.ttft, outcome.e2e, outcome.delivered)


def _figures(ends: Iterable[_End], objective: Objective, seconds: float) -> Figures:
    every = list(ends)
    served = [end for end in every if end.outcome == OK]
    ttfts = sorted(end.ttft for end in served if end.ttft is not None)
    return Figures(
        percentile(ttfts, 0.5) or math.nan,
        percentile(ttfts, 0.95) or math.nan,
        sum(_met(end, objective) for end in served) / seconds,
        len(served),
        dict(sorted(Counter(end.outcome for end in every).items())),
    )


def _met(end: _End, objective: Objective) -> bool:
    """Within the objective, by the same rule for both sides: the mean gap between tokens stands for all of them."""
    if end.ttft is None or end.e2e is None:
        return False
    gap = (end.e2e - end.ttft) / (end.tokens - 1) if end.tokens > 1 else 0.0
    return (
        (objective.ttft is None or end.ttft <= objective.ttft)
        and (objective.itl is None or gap <= objective.itl)
        and (objective.e2e is None or end.e2e <= objective.e2e)
    )


def _percent(simulated: float, real: float) -> float:
    return (simulated / real - 1.0) * 100.0 if real else (0.0 if not simulated else math.inf)


def render(comparison: Comparison) -> str:
    """Both sides, side by side."""
    real, simulated = comparison.real, comparison.simulated
    rows = [
        ("TTFT p50, ms", real.ttft_p50 * 1e3, simulated.ttft_p50 * 1e3),
        ("TTFT p95, ms", real.ttft_p95 * 1e3, simulated.ttft_p95 * 1e3),
        ("goodput, per s", real.goodput, simulated.goodput),
        ("served", real.served, simulated.served),
    ]
    lines = [f"{'':<16}{'mesh':>10}{LABEL:>12}{'error':>9}"]
    lines += [f"{name:<16}{one:>10.1f}{other:>12.1f}{_percent(other, one):>+8.1f}%" for name, one, other in rows]
    lines.append(f"{comparison.requests} requests; {comparison.left_out} left out (quotas, callers that left)")
    lines.append(f"mesh: {real.outcomes}")
    lines.append(f"{LABEL}: {simulated.outcomes}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulation.validate", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", action="store_true", help="print the three figures as JSON")
    options = parser.parse_args(argv)
    try:
        comparison = compare(options.run)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    found = {"label": LABEL, **comparison.errors()}
    sys.stdout.write((json.dumps(found) if options.json else render(comparison)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
