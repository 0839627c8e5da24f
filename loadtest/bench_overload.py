"""Goodput at and beyond capacity, what refusals and cancelling cost: `make bench-overload`.

Two meshes of the profile overload, one with admission as it is and one with a plain bounded queue
(`admission.limits.discipline = "fifo"`), get the same requests at 1, 1.5, 2 and 4 times the capacity, which is measured
first.
Prints tables and ends with one line of JSON; loadtest/README.md says what each figure is.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadtest.figures import percentile, table
from loadtest.overload import output
from loadtest.overload.meshes import Runner, completed, overload_mesh
from loadtest.overload.output import counts, progress, say
from loadtest.overload.samples import CANCELLED, OK, Summary, refusal_seconds, summarise
from loadtest.overload.senders import Route
from loadtest.overload.setting import (
    CALIBRATION,
    QUALITY,
    Setting,
    Site,
    TenantSpec,
    histogram_quantile,
    run_header,
    total,
)
from simulation import validate
from simulation.lengths import load
from simulation.workload import TenantLoad

FACTORS = (1.0, 1.5, 2.0, 4.0)
NAMES = {1.5: "1_5x", 2.0: "2x", 4.0: "4x"}
MODEL = "weir-quality"
LENGTHS = "azure-conversation"
CONTEXT = 1024
SLOTS = 16
"""Sequences that the pool's two workers run at once."""
FIFO_QUEUE = 128
"""Bound of the plain queue: some ten seconds of work."""
TENANTS = (
    TenantSpec(id="load-a", paid=True),
    TenantSpec(id="load-b", paid=True, weight=2.0),
    TenantSpec(id="load-c", paid=False),
    TenantSpec(id="load-d", paid=False, weight=2.0),
)
SHARES = {"load-a": 0.2, "load-b": 0.2, "load-c": 0.3, "load-d": 0.3}
"""Of all requests: at 2x the paid ones alone come to 80% of the capacity."""
NATIVE = "load-b"
"""The tenant that comes over gRPC past the edge; the others use OpenAI's API through Envoy."""
TIMEOUT = 30.0
"""Seconds until a client gives up."""
TITLES = {
    "fair": "admission as it is",
    "fifo": f"a plain queue of at most {FIFO_QUEUE} requests, first come, first served",
}
TARGETS = {
    "goodput_1x_of_fifo": "≥ 0.97",
    "goodput_ratio_1_5x": "≥ 0.95",
    "goodput_ratio_2x": "≥ 0.95",
    "goodput_ratio_4x": "≥ 0.95",
    "refusal_p99_ms_10x": "≤ 50",
}
CANCEL_STEPS = "weir_worker_cancel_steps"
CANCEL_SECONDS = "weir_worker_cancel_seconds"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each part."""

    capacity: float
    factor: float
    refusals: float
    cancels: float
    arrivals: int = 1
    """Runs at the capacity, each with others: there one cluster of requests decides what a plain queue can do."""
    warm_up: float = 4.0
    """At the start of a run, in no figure."""
    disciplines: tuple[str, ...] = ("fair", "fifo")
    """A mesh for each."""
    limiter: Mapping[str, int] = field(default_factory=dict)
    """Sizes of that bench, where they are not the usual ones."""
    admission: Mapping[str, int] = field(default_factory=dict)
    """Likewise."""


FULL = Times(capacity=22.0, factor=20.0, refusals=14.0, cancels=14.0, arrivals=4)
QUICK = Times(capacity=12.0, factor=11.0, refusals=8.0, cancels=8.0)
SMOKE = Times(
    capacity=5.0,
    factor=3.0,
    refusals=2.0,
    cancels=2.0,
    warm_up=0.5,
    disciplines=("fair",),
    limiter={"decisions": 2_000, "refusals": 640},
    admission={"calls": 1_000, "warm_up": 200},
)
"""Without the plain queue: its mesh differs in settings alone."""


class Bench:
    """One mesh and what is sent to it."""

    def __init__(self, site: Site, discipline: str, folder: Path, times: Times, usage: output.Usage) -> None:
        self._site = site
        self._discipline = discipline
        self._times = times
        self.runner = Runner(
            site,
            folder,
            usage,
            prefix=discipline,
            model=MODEL,
            header=run_header(workers=2, discipline=discipline, warmup=times.warm_up, admission=bounds(discipline)),
        )

    def capacity(self) -> float:
        """Requests per second that the mesh completes when there is always one more to run: a closed loop of a quarter
        more clients than sequences."""
        clients = SLOTS * 5 // 4 // len(TENANTS)
        loads = [replace(base, clients=clients) for base in tenant_loads(0.0)]
        seconds = self._times.capacity
        samples = self.runner.run("capacity", loads, self._routes(pause=0.1), seconds)
        rate = completed(samples, start=self._times.warm_up, end=seconds)
        done = [sample for sample in samples if sample.outcome == OK]
        tokens = statistics.mean(sample.delivered_tokens or 0 for sample in done)
        prompts = statistics.mean(sample.prompt_tokens for sample in done)
        progress(f"capacity {rate:.1f} requests/s of {prompts:.0f} prompt and {tokens:.0f} output tokens on average")
        return rate

    def at(self, factor: float, capacity: float, seed: int = 1) -> Summary:
        """A run at a multiple of the capacity; the same arrivals for the same seed."""
        seconds = self._times.factor + self._times.warm_up
        name = f"{factor:g}x" if seed == 1 else f"{factor:g}x-{seed}"
        samples = self.runner.run(name, tenant_loads(factor * capacity), self._routes(), seconds, seed=seed)
        summary = summarise(samples, QUALITY, start=self._times.warm_up, end=seconds)
        progress(
            f"{self._discipline} {name}: offered {summary.offered:.1f}/s, inside the objective "
            f"{summary.good:.1f}/s; refused: {counts(summary.refusals)}; failed: {counts(summary.failures)}"
        )
        return summary

    def refusals(self, capacity: float) -> dict[str, float]:
        """How long refusals take at ten times the capacity."""
        seconds = self._times.refusals + self._times.warm_up
        samples = self.runner.run("10x", tenant_loads(10 * capacity), self._routes(), seconds)
        waits = refusal_seconds(samples, start=self._times.warm_up, end=seconds)
        summary = summarise(samples, QUALITY, start=self._times.warm_up, end=seconds)
        told = [sample for sample in samples if sample.outcome in summary.refusals and sample.retry_after is not None]
        every = [sample for sample in samples if sample.outcome in summary.refusals]
        say(
            f"\n10x: {summary.offered:.0f} requests/s offered, {summary.good:.1f}/s inside the objective; refused: "
            f"{counts(summary.refusals)}; failed: {counts(summary.failures)}"
        )
        return {
            "refusal_p50_ms_10x": percentile(waits, 0.5) * 1e3 if waits else math.nan,
            "refusal_p99_ms_10x": percentile(waits, 0.99) * 1e3 if waits else math.nan,
            "goodput_10x": summary.good,
            "failed_10x": float(sum(summary.failures.values())),
            "refusals_that_say_when_10x": len(told) / len(every) if every else math.nan,
        }

    def cancels(self, capacity: float) -> dict[str, float]:
        """Half of the clients go away at random moments: from the disconnect to free KV blocks."""
        before = asyncio.run(self._site.scrape("worker"))
        routes = self._routes(abandon=0.5)
        samples = self.runner.run("cancel", tenant_loads(0.8 * capacity), routes, self._times.cancels)
        after = asyncio.run(self._site.scrape("worker"))
        left = sum(sample.outcome == CANCELLED for sample in samples)
        seen = total(after, f"{CANCEL_STEPS}_count") - total(before, f"{CANCEL_STEPS}_count")
        say(f"\ncancel: {left} clients left before their end; the workers cancelled {seen:.0f} sequences that ran")
        return {
            "cancelled": seen,
            "cancel_steps_p50": histogram_quantile(before, after, CANCEL_STEPS, 0.5),
            "cancel_steps_p99": histogram_quantile(before, after, CANCEL_STEPS, 0.99),
            "cancel_ms_p99": histogram_quantile(before, after, CANCEL_SECONDS, 0.99) * 1e3,
        }

    def _routes(self, **options: Any) -> Mapping[str, Route]:
        site = self._site
        return {
            spec.id: (site.natively if spec.id == NATIVE else site.over_edge)(spec.id, **options) for spec in TENANTS
        }


def tenant_loads(rate: float) -> list[TenantLoad]:
    """Every tenant's part of so many requests per second."""
    lengths = load()[LENGTHS].for_context(CONTEXT)
    return [
        TenantLoad(
            spec.id,
            "paid" if spec.paid else "free",
            weight=spec.weight,
            rate=rate * SHARES[spec.id],
            lengths=lengths,
            timeout=TIMEOUT,
            name=spec.id,
        )
        for spec in TENANTS
    ]


def bounds(discipline: str) -> dict[str, int]:
    """Admission's settings of the queue's length, where they are not the usual ones."""
    return dict.fromkeys(("max_queued", "max_per_class", "max_per_tenant"), FIFO_QUEUE) if discipline == "fifo" else {}


def settings(discipline: str) -> list[str]:
    """What `weir up` is told about the queue."""
    lengths = [f"admission.limits.{name}={value}" for name, value in bounds(discipline).items()]
    return [f"admission.limits.discipline={discipline}", *lengths]


def ratios(good: Mapping[float, float], prefix: str) -> dict[str, float]:
    """Goodput at each multiple over that at the capacity."""
    whole = good[1.0] or math.nan
    return {f"{prefix}goodput_ratio_{name}": good[factor] / whole for factor, name in NAMES.items()}


def show(title: str, rows: Mapping[float, Summary]) -> None:
    """A table of runs."""
    header = ("load", "offered/s", "served/s", "in SLO/s", "TTFT p50 ms", "p95 ms", "refused", "failed")
    cells = [
        (
            f"{factor:g}x",
            f"{each.offered:.1f}",
            f"{each.served:.1f}",
            f"{each.good:.1f}",
            f"{each.ttft_p50 * 1e3:.0f}",
            f"{each.ttft_p95 * 1e3:.0f}",
            str(sum(each.refusals.values())),
            str(sum(each.failures.values())),
        )
        for factor, each in rows.items()
    ]
    say(f"\n{title}\n{table(header, cells)}")


def validation(recorded: Path) -> dict[str, float]:
    """The simulator's errors on a recorded run, in per cent."""
    comparison = validate.compare(recorded)
    say(f"\nthe run at 1.5x, replayed\n{validate.render(comparison)}")
    return comparison.errors()


def measure(times: Times, folder: Path, extra: Sequence[str], parts: output.Parts) -> None:
    """Every figure."""
    figures, usage = parts.figures, output.Usage()
    at_capacity: dict[str, list[float]] = {}
    for discipline in times.disciplines:
        setting = Setting(tenants=TENANTS, objectives={"quality": QUALITY})
        words = (*settings(discipline), *extra)
        with (
            parts.part(discipline),
            overload_mesh(folder, discipline, setting, settings=words, native=(NATIVE,)) as site,
        ):
            bench = Bench(site, discipline, folder / "runs", times, usage)
            if discipline == "fair":
                figures["capacity"] = bench.capacity()
            rows = {factor: bench.at(factor, figures["capacity"]) for factor in FACTORS}
            show(f"{TITLES[discipline]}; capacity {figures['capacity']:.1f} requests/s", rows)
            prefix = "" if discipline == "fair" else "fifo_"
            more = [bench.at(1.0, figures["capacity"], seed).good for seed in range(2, times.arrivals + 1)]
            at_capacity[discipline] = [rows[1.0].good, *more]
            figures[f"{prefix}goodput_1x"] = statistics.mean(at_capacity[discipline])
            figures |= ratios({factor: each.good for factor, each in rows.items()}, prefix)
            if discipline == "fair":
                figures |= {f"ttft_p95_s_{factor:g}x".replace(".", "_"): each.ttft_p95 for factor, each in rows.items()}
                figures |= bench.refusals(figures["capacity"])
                figures |= bench.cancels(figures["capacity"])
                figures |= validation(bench.runner.file("1.5x"))
    if len(at_capacity) == 2:
        pairs = list(zip(at_capacity["fair"], at_capacity["fifo"], strict=True))
        served = [fair / fifo for fair, fifo in pairs if fifo]
        say(f"\nat the capacity, in SLO/s beside the plain queue's: {', '.join(f'{a:.1f}/{b:.1f}' for a, b in pairs)}")
        figures["goodput_1x_of_fifo"] = statistics.median(served) if served else math.nan
    for module, name, sizes in (
        ("loadtest.limiter_bench", "refusal_cpu_us_edge", times.limiter),
        ("loadtest.admission_bench", "refusal_cpu_us_admission", times.admission),
    ):
        with parts.part(name):
            figures[name] = output.measured(module, **sizes)[name]
    figures |= usage.figures


def main() -> None:
    """Measure and print."""
    options = output.options(__doc__, smoke=True).parse_args()
    output.begin(options.nice)
    times = output.extent(options, FULL, QUICK, SMOKE)
    parts = output.Parts()
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-overload-")))
        measure(times, folder, options.set, parts)
    conditions = {
        "engine": f"simulated, {CALIBRATION}, 2 workers of {SLOTS // 2} sequences",
        "lengths": f"{LENGTHS}, scaled so that the 99th percentile of prompt + output is {CONTEXT} tokens; max_tokens "
        "is what comes out",
        "arrivals": f"Poisson, shares {SHARES}; {NATIVE} natively over xDS, the others through Envoy; 2 gateways, 2 "
        "limiters, 2 admission processes",
        "objective": f"TTFT {QUALITY.ttft} s, ITL p95 {QUALITY.itl} s, end to end {QUALITY.e2e} s, per request",
        "fifo": f"one queue of at most {FIFO_QUEUE} requests in order of arrival, no prediction",
        "seconds": f"{times.factor:g} per load after {times.warm_up:g} of warm-up",
    }
    # How many were served in time hangs on the machine; in a smoke run's few seconds that may be none.
    targets = {name: target for name, target in TARGETS.items() if name in parts.figures} if options.smoke else TARGETS
    output.finish("overload", parts, targets, conditions, left_out=TARGETS if options.smoke else ())


if __name__ == "__main__":
    main()
