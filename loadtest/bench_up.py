"""Measures the cold start, from the start of `weir up` to the first token, and what the mesh then takes without work.

    python -m loadtest.bench_up [--repeats 3] [--profile demo] [--idle-seconds 15]

Each start has a fresh state directory. Dependencies are installed and byte code is compiled beforehand, as after
`make setup`; the disk cache is as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from loadtest import accounting, predictors
from loadtest.overload import output
from tests.support.mesh import Mesh

SETTLE = 3.0
"""Seconds after the first token, and after predictors have loaded what is wanted, before a mesh counts as idle."""
TARGETS = {"cold_start_s": "≤ 7", "idle_cpu_pct": "≤ 4", "rss_mib": "≤ 1500"}


def measure(profile: str, *, idle_seconds: float = 0.0) -> dict[str, Any]:
    """One start and stop: what `weir up` wrote to last_up.json, and with `idle_seconds` what `idle` says.

    :raises RuntimeError: the mesh does not come up; with what was printed.
    """
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder, Mesh(Path(folder), profile=profile) as mesh:
        found: dict[str, Any] = json.loads((mesh.state / "last_up.json").read_text(encoding="utf-8"))
        if idle_seconds:
            asyncio.run(predictors.settled(mesh.state))
            found |= idle(int(mesh.weir_json("status")["pid"]), settle=SETTLE, seconds=idle_seconds)
        return found


def idle(supervisor: int, *, settle: float, seconds: float) -> dict[str, float]:
    """What a mesh takes that nobody asks anything, of its supervisor and everything under it: CPU in per cent of one
    core, and memory in MiB. `rss_mib` is resident memory, as `ps` has it: what processes share (the code of Python,
    gRPC and torch, and what forks have in common) counts for each of them. In `pss_mib` it counts once: so much less
    memory would be in use without the mesh."""
    time.sleep(settle)
    tree = [supervisor, *(child.pid for child in psutil.Process(supervisor).children(recursive=True))]
    before, start = sum(map(accounting.cpu_seconds, tree)), time.perf_counter()
    time.sleep(seconds)
    used = sum(map(accounting.cpu_seconds, tree)) - before
    return {
        "idle_cpu_pct": 100 * used / (time.perf_counter() - start),
        "rss_mib": sum(map(accounting.resident_bytes, tree)) / 2**20,
        "pss_mib": sum(map(accounting.proportional_bytes, tree)) / 2**20,
    }


def run(profile: str, *, repeats: int, idle_seconds: float) -> list[dict[str, Any]]:
    """So many starts; at the last one it is seen what the mesh takes when it is idle."""
    return [measure(profile, idle_seconds=idle_seconds if turn == repeats - 1 else 0.0) for turn in range(repeats)]


def figures(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of so many starts."""
    seconds = [run["to_first_token_s"] for run in runs]
    return {
        "cold_start_s": statistics.median(seconds),
        "cold_start_s_max": max(seconds),
        "first_token_ms": statistics.median(run["ttft_ms"] for run in runs),
        "idle_cpu_pct": runs[-1]["idle_cpu_pct"],
        "rss_mib": runs[-1]["rss_mib"],
        "pss_mib": runs[-1]["pss_mib"],
    }


def describe(runs: Sequence[dict[str, Any]]) -> str:
    """A line per start, and one of the idle mesh."""
    lines = []
    for run in runs:
        slowest, ready = max(run["ready_s"].items(), key=lambda item: item[1])
        lines.append(f"first token after {run['to_first_token_s']:.2f} s (last ready: {slowest} at {ready:.2f} s)")
    last = runs[-1]
    memory = f"{last['rss_mib']:.0f} MiB resident, {last['pss_mib']:.0f} where shared pages count once"
    return "\n".join([*lines, f"idle: {last['idle_cpu_pct']:.1f}% of a core, {memory}"])


def main() -> None:
    """Prints every repeat, the medians, and one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench_up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", default="demo")
    parser.add_argument("--idle-seconds", type=float, default=15.0)
    options = parser.parse_args()
    output.begin()
    parts = output.Parts()
    with parts.part("up"):
        runs = run(options.profile, repeats=options.repeats, idle_seconds=options.idle_seconds)
        output.say(describe(runs))
        parts.figures |= figures(runs)
    output.finish("up", parts, TARGETS, {"profile": options.profile})


if __name__ == "__main__":
    main()
