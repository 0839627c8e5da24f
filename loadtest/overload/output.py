"""What benches print: progress on standard error, tables and one line of JSON on standard output."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from loadtest import accounting
from loadtest.figures import faults, number, verdict
from loadtest.machine import machine
from loadtest.overload.generator import Effort

_T = TypeVar("_T")
CPUS = len(os.sched_getaffinity(0))
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_SAID = 500  # characters of a fault in the last line
QUIET = 0.1
"""Share of the machine that others may use before figures carry a warning."""


def say(text: str = "") -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def progress(text: str) -> None:
    """One line on standard error, with the time."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def counts(counted: Mapping[str, int]) -> str:
    """ "REJECTED_DEADLINE 12, QUOTA_TOKENS 3", the most frequent first; "-" for none."""
    return ", ".join(f"{name} {n}" for name, n in sorted(counted.items(), key=lambda item: -item[1])) or "-"


class Parts:
    """What a bench found, part by part; a part that found nothing, or whose requests were refused, does not end the
    others, and makes the bench end red."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        """By part, why."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Whatever goes wrong in the block is told, and kept for the last line."""
        try:
            yield
        except Exception as error:  # none is lost: the bench ends red by it
            traceback.print_exc()
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            self.failed[name] = f"{type(error).__name__}: {error}"[:_SAID]


def finish(
    bench: str,
    parts: Parts,
    targets: Mapping[str, str],
    conditions: Mapping[str, Any] | None = None,
    *,
    left_out: Collection[str] = (),
) -> None:
    """Targets beside what was measured, then the last line; the process ends with status 1 where `figures.faults` has
    something to say, which stands in the line. `targets` are like "≤ 50", "≥ 0.95" or "= 0"."""
    figures = parts.figures
    wrong = faults(figures, targets, parts.failed, left_out)
    say()
    for name, target in targets.items():
        value = figures.get(name, math.nan)
        say(f"  {name} = {value:.4g}, target {target}: {verdict(value, target)}")
    for name in ("strangers_share_max", "mesh_cores_max", "generator_cores_max"):
        if name in figures:
            say(f"  {name} = {figures[name]:.2f}")
    if figures.get("strangers_share_max", 0.0) > QUIET:
        say("  other processes were busy on this machine: latencies and capacity are worse than they should be")
    for name, reason in wrong.items():
        say(f"  {name}: {reason}")
    result = {
        "bench": bench,
        "figures": {name: number(value) for name, value in figures.items()},
        "targets": dict(targets),
        **({"conditions": dict(conditions)} if conditions else {}),
        **({"faults": wrong} if wrong else {}),
        "machine": machine(),
    }
    say(json.dumps(result))
    if wrong:
        sys.exit(1)


class Usage:
    """CPU of the mesh, of its generators and of strangers over a bench's windows; the largest values count."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    @contextmanager
    def window(self, pids: Mapping[str, int]) -> Iterator[None]:
        """Measure around a block. Processes that were replaced meanwhile are left out."""
        before, start = _used(pids), time.perf_counter()
        yield
        after, wall = _used(pids), time.perf_counter() - start
        mesh = sum(after[name] - before[name] for name in after.keys() & before.keys() if name not in _OWN)
        self._most("mesh_cores_max", mesh / wall)
        self._machine = (after["machine"] - before["machine"]) / wall, mesh / wall

    def generator(self, effort: Effort) -> None:
        """What the load generator of the last window used."""
        self._most("generator_cores_max", effort.cpu)
        self._most("generator_late_p99_ms_max", effort.late_p99 * 1e3)
        whole, mesh = self._machine
        self._most("strangers_share_max", max(0.0, whole - mesh - effort.cpu) / CPUS)

    def _most(self, name: str, value: float) -> None:
        self.figures[name] = max(self.figures.get(name, 0.0), value)


_OWN = {"machine"}


def _used(pids: Mapping[str, int]) -> dict[str, float]:
    used = {"machine": accounting.machine_cpu_seconds()}
    for name, pid in pids.items():
        try:
            used[name] = accounting.cpu_seconds(pid)
        except ProcessLookupError:
            continue
    return used


def measured(module: str, **sizes: int) -> dict[str, float]:
    """The figures of a bench with `async def measure()`, which starts what it needs by itself; `sizes`: how much of
    everything, where it is not the usual."""
    measure: Callable[..., Awaitable[dict[str, float]]] = importlib.import_module(module).measure

    async def run() -> dict[str, float]:
        return await measure(**sizes)

    return asyncio.run(run())


def options(description: str | None, *, smoke: bool = False) -> argparse.ArgumentParser:
    """The command line that all of these benches share; `smoke`: and a way to run it for its own sake."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short windows: figures of little weight")
    if smoke:
        parser.add_argument("--smoke", action="store_true", help="hardly any windows: figures of no weight")
    parser.add_argument("--nice", type=int, default=0, help="scheduling priority of bench and mesh, -20 to 19")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the recorded runs there")
    parser.add_argument("--set", action="append", default=[], help="passed on to `weir up`")
    return parser


def extent(parsed: argparse.Namespace, full: _T, quick: _T, smoke: _T | None = None) -> _T:
    """That of the run that was asked for; `smoke` where `options` knows of it."""
    if smoke is not None and parsed.smoke:
        return smoke
    return quick if parsed.quick else full


def begin(nice: int = 0) -> None:
    """Signals end the bench as exceptions do, so that its meshes are stopped; what is started inherits the priority."""

    def end(*_: object) -> None:
        for each in _ENDS:
            signal.signal(each, signal.SIG_IGN)  # what is under way is what the first one asked for
        sys.exit(1)

    for each in _ENDS:
        signal.signal(each, end)
    os.nice(nice)
