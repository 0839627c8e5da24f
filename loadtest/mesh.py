"""What the mesh costs: `make bench-mesh`, or `python -m loadtest.mesh [--repeats N] [--only NAME …] [--seconds S]`.

Starts its own meshes (profile "bench": the simulated engine without step cost, no traces, no access log; everything
else as always, see loadtest/README.md), loads them, prints medians and ranges, and ends with one line of JSON. CPU is
user and system time of every process of the mesh, Envoy and etcd included; the load generator's own is not counted, but
it runs on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import uvloop

from loadtest import accounting, grpc_call, profiling
from loadtest.direct import DirectWorker
from loadtest.figures import medians, percentile, spread, table
from loadtest.machine import machine
from loadtest.overload.samples import Objective
from loadtest.overload.setting import Setting, TenantSpec, prepare, until
from loadtest.scenarios import (
    Cost,
    Edge,
    EdgeSender,
    Sender,
    open_loop,
    requests_closed_loop,
    tokens_closed_loop,
    tokens_paced,
)
from loadtest.worker_loss import Loss, kill_worker
from tests.support.mesh import Mesh

TARGETS = {"cpu_ms_per_request_c64": 2.5, "cpu_us_per_token_paced": 110, "added_ttft_ms_p50_r50": 6}
CONTRACT = (
    *TARGETS,
    "cpu_us_per_token_flat",
    "added_ttft_ms_p99_r50",
    "calls_per_request",
    "grpc_call_us",
    "requests_per_s",
    "tokens_per_s",
)
"""Figures that docs/performance.md and its readers know by name."""
TENANTS = 64
"""Each with a key of its own: one tenant's requests all meet in one place, which hides what many tenants cost."""
EMPTY_CALLS = 400
SCENARIOS = ("c64", "flat", "ttft", "loss", "paced")
CONNECTIONS = 64
REQUEST_TOKENS = 16
FLAT_STREAMS, FLAT_TOKENS = 64, 256
PACED_STREAMS, PACED_INTERVAL = 100, 0.02
TTFT_RATE, TTFT_TOKENS = 50.0, 4
CPUS = len(os.sched_getaffinity(0))
QUIET = 0.05
"""Share of the machine that others may use before the figures carry a warning."""

Figures = dict[str, float]


class Bench:
    """One running mesh and the scenarios on it."""

    def __init__(self, mesh: Mesh, keys: Sequence[str], options: argparse.Namespace) -> None:
        self._mesh = mesh
        self._keys = tuple(keys)
        self._options = options
        self._services: Mapping[str, Any] = mesh.file()["services"]
        self._pki = mesh.state / "pki"
        self._strangers: list[float] = []
        self._calls: list[float] = []
        self.figures: Figures = {}

    def edge(self) -> Edge:
        """Where to send the load; read anew, since processes may have been replaced."""
        status = self._mesh.weir_json("status")
        pids = {row["name"]: int(row["pid"]) for row in status["processes"]}
        accounting.check_no_children(pids)
        host, _, port = self._services["envoy"]["plain_address"].rpartition(":")
        return Edge(
            host=host,
            port=int(port),
            keys=self._keys,
            pids={**pids, "supervisor": int(status["pid"])},
            worker_metrics=tuple(
                service["metrics"] for service in self._services.values() if service["service"] == "worker"
            ),
        )

    async def c64(self) -> None:
        """Requests that are not streamed, 64 connections."""

        async def once(seconds: float) -> Cost:
            # Before and after the window: the machine is slower at one hour than at another.
            before = await grpc_call.cpu_seconds(self._pki, calls=EMPTY_CALLS)
            cost = await requests_closed_loop(edge, connections=CONNECTIONS, seconds=seconds, max_tokens=REQUEST_TOKENS)
            after = await grpc_call.cpu_seconds(self._pki, calls=EMPTY_CALLS)
            self._calls.append((before + after) / 2 * 1e6)
            return cost

        edge = self.edge()
        if costs := await self._costs("c64", once, edge):
            self.figures["cpu_ms_per_request_c64"] = median(costs, lambda cost: cost.cpu_per_unit * 1e3)
            self.figures["requests_per_s"] = median(costs, lambda cost: cost.rate)
            calls = [cost.cpu_per_unit * 1e6 / call for cost, call in zip(costs, self._calls, strict=True)]
            self.figures["grpc_call_us"] = statistics.median(self._calls)
            self.figures["calls_per_request"] = statistics.median(calls)
            say(f"\nc64: requests not streamed, {CONNECTIONS} connections closed loop, {REQUEST_TOKENS} tokens each")
            say(cost_table(costs, scale=1e3, unit="CPU ms per request"))
            say(f"  requests/s {spread([cost.rate for cost in costs], 0)}")
            say(f"  CPU µs of an empty mTLS grpc.aio call, both ends {spread(self._calls, 0)}")
            say(f"  such calls per request {spread(calls)}")

    async def flat(self) -> None:
        """Streams back to back, flat out."""

        async def once(seconds: float) -> Cost:
            return await tokens_closed_loop(edge, streams=FLAT_STREAMS, seconds=seconds, max_tokens=FLAT_TOKENS)

        edge = self.edge()
        if costs := await self._costs("flat", once, edge):
            self.figures["cpu_us_per_token_flat"] = median(costs, lambda cost: cost.cpu_per_unit * 1e6)
            self.figures["tokens_per_s"] = median(costs, lambda cost: cost.rate)
            say(f"\nflat: {FLAT_STREAMS} streams back to back, {FLAT_TOKENS} tokens each, as fast as they go")
            say(cost_table(costs, scale=1e6, unit="CPU µs per token"))
            say(f"  tokens/s {spread([cost.rate for cost in costs], 0)}")
            say(f"  tokens per event {spread([cost.units / cost.events for cost in costs])}")

    async def paced(self) -> None:
        """Streams at 20 ms per token."""

        async def once(seconds: float) -> Cost:
            return await tokens_paced(edge, streams=PACED_STREAMS, seconds=seconds, interval=PACED_INTERVAL)

        edge = self.edge()
        if costs := await self._costs("paced", once, edge):
            self.figures["cpu_us_per_token_paced"] = median(costs, lambda cost: cost.cpu_per_unit * 1e6)
            self.figures["tokens_per_s_paced"] = median(costs, lambda cost: cost.rate)
            self.figures["itl_ms_p99_paced"] = median(costs, lambda cost: percentile(cost.gaps, 0.99) * 1e3)
            say(f"\npaced: {PACED_STREAMS} streams at {PACED_INTERVAL * 1e3:.0f} ms per token, steady state")
            say(cost_table(costs, scale=1e6, unit="CPU µs per token"))
            say(f"  tokens/s {spread([cost.rate for cost in costs], 0)}")
            say(f"  tokens per event {spread([cost.units / cost.events for cost in costs])}")
            for q in (0.5, 0.99):
                gaps = [percentile(cost.gaps, q) * 1e3 for cost in costs]
                say(f"  ms between events of a stream, p{q * 100:.0f} {spread(gaps)}")

    async def ttft(self) -> None:
        """Time to first token through the mesh and of a worker called directly, one after the other."""
        edge = self.edge()
        rows: list[Figures] = []
        sender = EdgeSender(edge, max_tokens=TTFT_TOKENS)
        direct = DirectWorker(
            config=self._mesh.state / "config" / "worker-a.json",
            pki=self._pki,
            folder=self._mesh.state / "data" / "worker-direct",
            prompt_tokens=await edge.prompt_tokens(),
            max_tokens=TTFT_TOKENS,
        )
        async with direct:
            for repeat in range(self._options.repeats):
                order = (sender, direct) if repeat % 2 else (direct, sender)
                times: dict[Sender, list[float]] = {}
                for call in order:
                    sender.close()  # connections that have been idle for a window are about to be closed by Envoy
                    await open_loop(call, rate=TTFT_RATE, seconds=2.0, seed=0)
                    seconds = self._options.ttft_seconds
                    times[call] = await open_loop(call, rate=TTFT_RATE, seconds=seconds, seed=repeat + 1)
                row: Figures = {}
                for name, q in (("p50", 0.5), ("p99", 0.99)):
                    row[f"edge {name}"] = percentile(times[sender], q) * 1e3
                    row[f"direct {name}"] = percentile(times[direct], q) * 1e3
                    row[f"added {name}"] = row[f"edge {name}"] - row[f"direct {name}"]
                rows.append(row)
                progress("ttft", repeat, f"added p50 {row['added p50']:.2f} ms, p99 {row['added p99']:.2f} ms")
        sender.close()
        for name in ("p50", "p99"):
            self.figures[f"added_ttft_ms_{name}_r50"] = medians(rows)[f"added {name}"]
            self.figures[f"ttft_ms_{name}_r50"] = medians(rows)[f"edge {name}"]
            self.figures[f"direct_ttft_ms_{name}_r50"] = medians(rows)[f"direct {name}"]
        say(
            f"\nttft: {TTFT_RATE:.0f} requests/s, Poisson, streamed; through the edge, of a worker directly, difference"
        )
        say(table(("ms", "median (range)"), [(name, spread([row[name] for row in rows])) for name in rows[0]]))

    async def loss(self) -> None:
        """SIGKILL of a worker."""
        losses: list[Loss] = []
        for repeat in range(self._options.repeats):
            old = self._mesh.process("worker-a")

            async def replaced(old_pid: int = int(old["pid"])) -> float:
                await asyncio.to_thread(self._mesh.wait_back, "worker-a", old_pid)
                return psutil.Process(int(self._mesh.process("worker-a")["pid"])).create_time()

            one = await kill_worker(
                self.edge(),
                pid=int(old["pid"]),
                admission_metrics=self._services["admission"]["metrics"],
                seed=repeat,
                replaced=replaced,
            )
            losses.append(one)
            progress("loss", repeat, f"{one.noticed_ms:.1f} ms, {one.failed} failed")
        self.figures["worker_loss_ms"] = statistics.median(one.noticed_ms for one in losses)
        self.figures["worker_loss_failed_requests"] = sum(one.failed for one in losses)
        say("\nloss: SIGKILL of a worker under 40 requests/s; milliseconds since the kill")
        for name, values in (
            ("no grant names it any more (upper bound)", [one.noticed_ms for one in losses]),
            ("  longest time between two looks", [one.resolution_ms for one in losses]),
            ("last request sent that was given to it", [one.last_answer_ms for one in losses]),
            ("slowest first token around it", [one.slowest_ms for one in losses]),
        ):
            say(f"  {name}: {spread(values, 1)}")
        say(f"  requests that failed: {sum(one.failed for one in losses)}")

    async def _costs(self, name: str, once: Any, edge: Edge) -> list[Cost]:
        """Repeats of a scenario; nothing when it was only profiled."""
        if self._options.profile_with:
            await self._profile(name, once, edge)
            return []
        costs: list[Cost] = []
        for repeat in range(self._options.repeats):
            cost = await once(self._options.seconds)
            costs.append(cost)
            self._strangers.append(cost.strangers / (cost.wall * CPUS))
            progress(
                name,
                repeat,
                f"{cost.cpu_per_unit * 1e6:.1f} µs per unit, {cost.rate:.0f} units/s; "
                f"processes that do not belong to the bench used {self._strangers[-1]:.0%} of the machine",
            )
        self.figures["strangers_share_max"] = max(self._strangers)
        for process, resident in costs[-1].rss.items():
            self.figures[f"rss_mib_{process.replace('-', '_')}"] = resident / 2**20
        return costs

    async def _profile(self, name: str, once: Any, edge: Edge) -> None:
        seconds = self._options.seconds
        python = {process: pid for process, pid in edge.pids.items() if process not in ("envoy", "etcd", "supervisor")}
        wanted = self._options.processes or sorted(python)
        (self._options.profiles / name).mkdir(parents=True, exist_ok=True)
        load = asyncio.create_task(once(seconds + 4.0))
        await asyncio.sleep(4.0)
        profiles = await profiling.record(
            {process: python[process] for process in wanted}, seconds=seconds, folder=self._options.profiles / name
        )
        await load
        say(f"\n{name}: py-spy, raw files in {self._options.profiles / name}")
        for process, profile in sorted(profiles.items(), key=lambda item: -item[1].samples):
            if profile.samples > seconds * profiling.RATE * profiling.IDLE / 100:
                say(profiling.render(process, profile, seconds=seconds))


def cost_table(costs: Sequence[Cost], *, scale: float, unit: str) -> str:
    """Median and range of each process's CPU per unit, and its resident memory, most CPU first."""
    per_process = {name: [cost.cpu[name] / cost.units * scale for cost in costs] for name in costs[0].cpu}
    names = sorted(per_process, key=lambda name: -statistics.median(per_process[name]))
    rows = [(name, spread(per_process[name]), f"{costs[-1].rss[name] / 2**20:.0f}") for name in names]
    rows.append(
        (
            "total",
            spread([cost.cpu_per_unit * scale for cost in costs]),
            f"{sum(costs[-1].rss.values()) / 2**20:.0f}",
        )
    )
    return table((unit, "median (range)", "RSS MiB"), rows)


def median(costs: Sequence[Cost], value: Any) -> float:
    """The median of a value over repeats."""
    return statistics.median(value(cost) for cost in costs)


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def progress(name: str, repeat: int, text: str) -> None:
    """One line per repeat, on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {name} {repeat + 1}: {text}\n")


def run(options: argparse.Namespace, folder: Path) -> Figures:
    """Every wanted scenario, each kind of mesh started once."""
    figures: Figures = {}
    starts: list[float] = []
    plans: tuple[tuple[str, Sequence[str], tuple[str, ...]], ...] = (
        ("unpaced", [name for name in SCENARIOS if name != "paced"], ()),
        ("paced", ["paced"], (f"worker.simulated.step_interval={PACED_INTERVAL}",)),
    )
    for kind, names, settings in plans:
        wanted = [name for name in names if name in options.only]
        if not wanted:
            continue
        mesh = Mesh(folder / kind, profile="bench", settings=(*settings, *options.set))
        with mesh:
            starts.append(json.loads((mesh.state / "last_up.json").read_text())["to_first_token_s"])
            progress(f"mesh {kind}", 0, f"up, first token after {starts[-1]:.1f} s")
            bench = uvloop.run(_scenarios(mesh, options, wanted))
            strangers = max(figures.get("strangers_share_max", 0.0), bench.figures.get("strangers_share_max", 0.0))
            figures = bench.figures | figures | {"strangers_share_max": strangers}
    figures["cold_start_s"] = statistics.median(starts)
    return figures


async def _scenarios(mesh: Mesh, options: argparse.Namespace, names: Sequence[str]) -> Bench:
    tenants = [TenantSpec(id=f"load-{number}") for number in range(TENANTS)]
    # Costs are measured, also where the machine cannot serve every first token in time: nobody is refused for that.
    objectives = {"fast": Objective(ttft=math.inf)}
    site = await prepare(mesh, Setting(tenants=tenants, plans=(), objectives=objectives))
    bench = Bench(mesh, list(site.keys.values()), options)
    edge = bench.edge()

    async def known(turn: int) -> None:
        """Until the new tenant is known everywhere; the first requests open streams and fill caches, too."""
        connection = edge.connection()
        request = edge.request(max_tokens=REQUEST_TOKENS, stream=False, turn=turn)

        async def answered() -> bool:
            return not (await connection.send(request)).fault(REQUEST_TOKENS)

        try:
            await until(answered, seconds=20.0, what=f"an answer to tenant {turn}")
        finally:
            connection.close()

    await asyncio.gather(*map(known, range(TENANTS)))
    for name in names:
        await getattr(bench, name)()
    return bench


def rank(name: str) -> int:
    """Contracted figures before the others, memory last."""
    return 2 if name.startswith("rss_") else 0 if name in CONTRACT else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window")
    parser.add_argument("--ttft-seconds", type=float, default=15.0, help="length of a TTFT run")
    parser.add_argument("--set", action="append", default=[], help="passed on to `weir up`")
    parser.add_argument("--nice", type=int, default=0, help="scheduling priority of bench and mesh, -20 to 19")
    parser.add_argument("--profile-with", choices=("py-spy",), help="profile c64, flat and paced; no figures")
    parser.add_argument("--processes", nargs="+", default=[], help="processes to profile; else every Python process")
    parser.add_argument("--profiles", type=Path, default=Path("build/profiles"), help="where raw profiles go")
    options = parser.parse_args()
    if options.profile_with:
        options.only = [name for name in options.only if name in ("c64", "flat", "paced")]
    return options


def main() -> None:
    """Measure and print."""
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # as an exception, so that the meshes are stopped
    os.nice(options.nice)  # what is started from here inherits it
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        figures = run(options, Path(folder))
    if options.profile_with:
        return
    if figures["strangers_share_max"] > QUIET:
        say(
            f"\nother processes used up to {figures['strangers_share_max']:.0%} of the machine in a window: contention "
            "costs the mesh CPU too, so these figures are too high"
        )
    say(f"\ntargets: {', '.join(f'{name} ≤ {target}' for name, target in TARGETS.items())}")
    result = {
        "bench": "mesh",
        "figures": {name: round(figures[name], 3) for name in sorted(figures, key=lambda name: (rank(name), name))},
        "targets": TARGETS,
        "machine": machine(),
    }
    say(json.dumps(result))


if __name__ == "__main__":
    main()
