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
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import uvloop

from loadtest import added_ttft, bench_up, edge_cost, grpc_call, predictors, profiling, stream_search
from loadtest.direct import DirectWorker
from loadtest.figures import medians, needed, percentile, ratios, spread, table
from loadtest.mesh_options import MANY, MOST_KILLS, PACED, PACED_INTERVAL, UNPACED, arguments
from loadtest.overload import output
from loadtest.overload.output import CPUS, progress, say
from loadtest.ready import TENANTS, edge_of, ready
from loadtest.scenarios import (
    CONNECTIONS,
    FLAT_STREAMS,
    REQUEST_TOKENS,
    Cost,
    Edge,
    EdgeSender,
    cost_table,
    requests_closed_loop,
    tokens_closed_loop,
    tokens_paced,
)
from loadtest.worker_loss import Loss, kill_worker
from tests.support.mesh import Mesh

TARGETS = {
    "cpu_ms_per_request_c64": "≤ 2.2",
    "calls_per_request": "≤ 8",
    "requests_per_s": "≥ 800",
    "added_ttft_ms_p50_r50": "≤ 4.5",
    "added_ttft_ms_p99_r50": "≤ 15",
    "cpu_us_per_token_paced": "≤ 95",
    "cpu_us_per_token_flat": "≤ 20",
    "edge_us_known": "≤ 250",
    "edge_us_bad_key": "≤ 120",
    "gateway_lines": "≤ 7500",
    "chat_files": "≤ 12",
    "chat_lines": "≤ 2500",
    "cold_start_s": "≤ 7",
    "idle_cpu_pct": "≤ 4",
    "rss_mib": "≤ 1500",
}
CONTRACT = (*TARGETS, "streams_at_50tps", "grpc_call_us", "tokens_per_s")
"""Figures that docs/performance.md and its readers know by name."""
Figures = dict[str, float]
T = TypeVar("T")


class Bench:
    """One running mesh and the scenarios on it."""

    def __init__(self, mesh: Mesh, keys: Sequence[str], options: argparse.Namespace) -> None:
        self._mesh = mesh
        self._keys = tuple(keys)
        self._options = options
        self._services: Mapping[str, Any] = mesh.file()["services"]
        self._pki = mesh.state / "pki"
        self._strangers: list[float] = []
        self.per_call: Figures = {}
        """Times in empty mTLS grpc.aio calls, both ends, that were measured around the same windows."""
        self.figures: Figures = {}

    def edge(self) -> Edge:
        """Where to send the load; read anew, since processes may have been replaced."""
        return edge_of(self._mesh, self._keys)

    async def c64(self) -> None:
        """Requests that are not streamed, 64 connections."""

        async def once(seconds: float) -> Cost:
            return await requests_closed_loop(edge, connections=CONNECTIONS, seconds=seconds, max_tokens=REQUEST_TOKENS)

        edge = self.edge()
        costs, calls = await self._costs("c64", once, edge)
        if costs:
            in_calls = self._time("cpu_ms_per_request_c64", [cost.cpu_per_unit * 1e3 for cost in costs], calls, us=1e3)
            self.figures["requests_per_s"] = median(costs, lambda cost: cost.rate)
            self.figures["grpc_call_us"] = statistics.median(calls)
            self.figures["calls_per_request"] = statistics.median(in_calls)
            say(f"\nc64: requests not streamed, {CONNECTIONS} connections closed loop, {REQUEST_TOKENS} tokens each")
            say(cost_table(costs, scale=1e3, unit="CPU ms per request"))
            say(f"  requests/s {spread([cost.rate for cost in costs], 0)}")
            say(f"  CPU µs of an empty mTLS grpc.aio call, both ends {spread(calls, 0)}")
            say(f"  such calls per request, window by window {spread(in_calls)}")

    async def flat(self) -> None:
        """Streams back to back, flat out."""
        tokens = self._options.flat_tokens

        async def once(seconds: float) -> Cost:
            return await tokens_closed_loop(edge, streams=FLAT_STREAMS, seconds=seconds, max_tokens=tokens)

        edge = self.edge()
        costs, calls = await self._costs("flat", once, edge)
        if costs:
            self._time("cpu_us_per_token_flat", [cost.cpu_per_unit * 1e6 for cost in costs], calls)
            self.figures["tokens_per_s"] = median(costs, lambda cost: cost.rate)
            say(f"\nflat: {FLAT_STREAMS} streams back to back, {tokens} tokens each, as fast as they go")
            say(cost_table(costs, scale=1e6, unit="CPU µs per token"))
            say(f"  tokens/s {spread([cost.rate for cost in costs], 0)}")
            say(f"  tokens per event {spread([cost.units / cost.events for cost in costs])}")

    async def edge_alone(self) -> None:
        """What the edge takes for a caller whom it knows, and for one who makes keys up."""
        edge = self.edge()
        for name, load, whom in (
            ("edge_us_known", edge_cost.known, "a known caller, refused by the gateway at first sight"),
            ("edge_us_bad_key", edge_cost.bad_keys, "a random key with every request"),
        ):

            async def once(seconds: float, load: Callable[..., Awaitable[Cost]] = load) -> Cost:
                return await load(edge, seconds=seconds / 2)

            costs, calls = await self._costs(name, once, edge)
            if costs:
                self._time(name, [cost.cpu_per_unit * 1e6 for cost in costs], calls)
                say(f"\nedge: {whom}; {edge_cost.CONNECTIONS} connections closed loop, {', '.join(edge_cost.EDGE)}")
                say(cost_table(costs, scale=1e6, unit="CPU µs per request"))
                say(f"  requests/s {spread([cost.rate for cost in costs], 0)}")

    async def paced(self) -> None:
        """Streams at 20 ms per token."""
        streams, tokens = self._options.paced_streams, self._options.paced_tokens

        async def once(seconds: float) -> Cost:
            return await tokens_paced(edge, streams=streams, seconds=seconds, max_tokens=tokens)

        edge = self.edge()
        costs, calls = await self._costs("paced", once, edge)
        if costs:
            self._time("cpu_us_per_token_paced", [cost.cpu_per_unit * 1e6 for cost in costs], calls)
            self.figures["tokens_per_s_paced"] = median(costs, lambda cost: cost.rate)
            self.figures["itl_ms_p99_paced"] = median(costs, lambda cost: percentile(cost.gaps, 0.99) * 1e3)
            say(f"\npaced: {streams} streams at {PACED_INTERVAL * 1e3:.0f} ms per token, steady state")
            say(cost_table(costs, scale=1e6, unit="CPU µs per token"))
            say(f"  tokens/s {spread([cost.rate for cost in costs], 0)}")
            say(f"  tokens per event {spread([cost.units / cost.events for cost in costs])}")
            for q in (0.5, 0.99):
                gaps = [percentile(cost.gaps, q) * 1e3 for cost in costs]
                say(f"  ms between events of a stream, p{q * 100:.0f} {spread(gaps)}")

    async def streams(self) -> None:
        """The most streams at 20 ms per token that reach their readers in time."""
        edge = self.edge()
        first, seconds, tokens = (
            getattr(self._options, name) for name in ("paced_streams", "probe_seconds", "probe_tokens")
        )

        async def probe(streams: int) -> stream_search.Probe:
            found = await stream_search.probe(
                edge, streams, interval=PACED_INTERVAL, seconds=seconds, max_tokens=tokens
            )
            progress(f"streams: {found}")
            return found

        probes = await stream_search.search(probe, first=first, budget=self._options.search_seconds)
        most = stream_search.most(probes)
        # A smoke run's only probe says nothing of the machine: what counts is that its streams were served.
        served = any(not each.fault for each in probes) if self._options.smoke else most.streams
        needed(served, f"number of streams held; the last tried: {probes[-1]}")
        self.figures["streams_at_50tps"] = most.streams
        self.figures["itl_ms_p99_at_50tps"] = most.itl_p99 * 1e3
        say(
            f"\nstreams: {1 / PACED_INTERVAL:.0f} tokens/s each, events at p99 {stream_search.LIMIT * 1e3:.0f} ms apart"
        )
        say(f"  the most that held: {most}")
        say(f"  tried: {', '.join(str(each.streams) for each in probes)}")

    async def ttft(self) -> None:
        """Time to first token through the mesh and of a worker called directly, one after the other."""
        edge, seconds = self.edge(), self._options.ttft_seconds
        sender = EdgeSender(edge, max_tokens=added_ttft.TOKENS)
        direct = DirectWorker(
            config=self._mesh.state / "config" / "worker-a.json",
            pki=self._pki,
            folder=self._mesh.state / "data" / "worker-direct",
            prompt_tokens=await edge.prompt_tokens(),
            max_tokens=added_ttft.TOKENS,
        )
        ways: dict[str, added_ttft.Call] = {"edge": sender, "direct": direct}

        async def turn(number: int) -> Figures:
            found = added_ttft.row(await added_ttft.round_of(ways, seconds=seconds, turn=number), "edge", "direct")
            progress(f"ttft: added p50 {found['added p50']:.2f} ms, p99 {found['added p99']:.2f} ms")
            return found

        async with direct:
            rows, calls = await self._windows(turn)
        sender.close()
        middle = medians(rows)
        for name in added_ttft.QUANTILES:
            self._time(f"added_ttft_ms_{name}_r50", [row[f"added {name}"] for row in rows], calls, us=1e3)
            self.figures[f"ttft_ms_{name}_r50"] = middle[f"through {name}"]
            self.figures[f"direct_ttft_ms_{name}_r50"] = middle[f"direct {name}"]
        say(f"\nttft: {added_ttft.RATE:.0f} requests/s, Poisson, streamed; through the edge, of a worker directly")
        say(table(("ms", "median (range)"), [(name, spread([row[name] for row in rows])) for name in rows[0]]))

    async def loss(self) -> None:
        """SIGKILL of a worker."""
        losses: list[Loss] = []
        for repeat in range(min(MOST_KILLS, self._options.repeats)):
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
            progress(f"loss: {one.noticed_ms:.1f} ms, {one.failed} failed")
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

    def _time(self, name: str, values: Sequence[float], calls: Sequence[float], *, us: float = 1.0) -> list[float]:
        """A figure of time, in units of so many µs: its median, and that of its ratios to what an empty call cost
        around the same window, which are returned."""
        in_calls = ratios([value * us for value in values], calls)
        self.figures[name], self.per_call[name] = statistics.median(values), statistics.median(in_calls)
        return in_calls

    async def _windows(self, window: Callable[[int], Awaitable[T]]) -> tuple[list[T], list[float]]:
        options = self._options
        return await grpc_call.between(self._pki, window, windows=options.repeats, calls=options.empty_calls)

    async def _costs(
        self, name: str, once: Callable[[float], Awaitable[Cost]], edge: Edge
    ) -> tuple[list[Cost], list[float]]:
        """Repeats of a scenario, and what an empty call cost around each, µs; nothing when it was only profiled."""
        if self._options.profile_with:
            await self._profile(name, once, edge)
            return [], []

        async def window(_: int) -> Cost:
            cost = await once(self._options.seconds)
            self._strangers.append(cost.strangers / (cost.wall * CPUS))
            progress(
                f"{name}: {cost.cpu_per_unit * 1e6:.1f} µs per unit, {cost.rate:.0f} units/s; processes that do not "
                f"belong to the bench used {self._strangers[-1]:.0%} of the machine"
            )
            return cost

        costs, calls = await self._windows(window)
        self.figures["strangers_share_max"] = max(self._strangers)
        for process, resident in costs[-1].rss.items():
            self.figures[f"rss_mib_{process.replace('-', '_')}"] = resident / 2**20
        return costs, calls

    async def _profile(self, name: str, once: Callable[[float], Awaitable[Cost]], edge: Edge) -> None:
        python = {process: pid for process, pid in edge.pids.items() if process not in ("envoy", "etcd", "supervisor")}
        wanted = self._options.processes or sorted(python)
        folder = self._options.profiles / name
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        pids = {process: python[process] for process in wanted}
        say(f"\n{name}: py-spy, raw files in {folder}")
        say(await profiling.under(once, pids, seconds=self._options.seconds, folder=folder))


def median(costs: Sequence[Cost], value: Any) -> float:
    """The median of a value over repeats."""
    return statistics.median(value(cost) for cost in costs)


def run(options: argparse.Namespace, folder: Path, parts: output.Parts) -> Figures:
    """Every wanted scenario, each kind of mesh started once: figures go to `parts`; those of time in empty calls."""
    figures, per_call = parts.figures, Figures()
    paced = (f"worker.simulated.step_interval={PACED_INTERVAL}", *MANY)
    plans: list[tuple[str, Sequence[str], tuple[str, ...]]] = [("unpaced", UNPACED, ()), ("paced", PACED, paced)]
    if options.smoke:
        plans = [("smoke", (*UNPACED, *PACED), paced)]
    for kind, names, settings in plans:
        wanted = [name for name in names if name in options.only]
        if not wanted:
            continue
        with (
            parts.part(f"mesh {kind}"),
            Mesh(folder / kind, profile="bench", settings=(*settings, *options.set)) as mesh,
        ):
            up = json.loads((mesh.state / "last_up.json").read_text())
            progress(f"mesh {kind}: up, first token after {up['to_first_token_s']:.1f} s")
            if options.smoke and "start" in options.only:
                asyncio.run(predictors.settled(mesh.state))
                supervisor = int(mesh.weir_json("status")["pid"])
                figures |= started([up | bench_up.idle(supervisor, settle=0.0, seconds=options.idle_seconds)])
            bench = uvloop.run(_scenarios(mesh, options, wanted, parts))
            strangers = max(found.get("strangers_share_max", 0.0) for found in (figures, bench.figures))
            figures |= bench.figures | {"strangers_share_max": strangers}
            per_call |= bench.per_call
    if "start" in options.only and not options.smoke:
        with parts.part("start"):
            figures |= started(bench_up.run("demo", repeats=options.starts, idle_seconds=options.idle_seconds))
    if "code" in options.only:
        with parts.part("code"):
            figures |= output.measured("loadtest.way")
    return per_call


def started(runs: Sequence[dict[str, Any]]) -> Figures:
    """What it takes to start a mesh and to leave it alone."""
    say(f"\nstart\n{bench_up.describe(runs)}")
    return bench_up.figures(runs)


async def _scenarios(mesh: Mesh, options: argparse.Namespace, names: Sequence[str], parts: output.Parts) -> Bench:
    bench = Bench(mesh, await ready(mesh), options)
    methods = {"edge": bench.edge_alone}
    for name in names:
        with parts.part(name):
            await (methods.get(name) or getattr(bench, name))()
    return bench


def rank(name: str) -> int:
    """Contracted figures before the others, memory last."""
    return 0 if name in CONTRACT else 2 if name.startswith("rss_") else 1


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__)
    output.begin(options.nice)
    parts = output.Parts()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        per_call = run(options, Path(folder), parts)
    if options.profile_with:
        sys.exit(bool(parts.failed))
    parts.figures = {name: parts.figures[name] for name in sorted(parts.figures, key=lambda name: (rank(name), name))}
    conditions: dict[str, Any] = {"repeats": options.repeats, "seconds": options.seconds, "tenants": TENANTS}
    if per_call:
        conditions["per_call"] = {name: round(value, 3) for name, value in per_call.items()}
    output.finish("mesh", parts, {name: TARGETS[name] for name in TARGETS if name in parts.figures}, conditions)


if __name__ == "__main__":
    main()
