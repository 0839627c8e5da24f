"""The mesh beside other gateways under the same load: `make bench-peers` (`make peers-env` installs them).

A bare Envoy, LiteLLM's proxy and Portkey stand in front of one simulated engine with OpenAI's API, in clear; the mesh,
with everything on, in front of its own simulated engines. All run at once, and each gets the same load in turn:
requests on 64 connections, Poisson arrivals, then streams at 20 ms per token (of a second mesh, whose engines keep
that pace). What the mesh costs beside another is a ratio of each turn, since the machine's speed changes between them.
Prints tables and ends with one line of JSON; what is not installed is left out with a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop

from loadtest import accounting, added_ttft, grpc_call, shortcuts
from loadtest.direct import DirectWorker
from loadtest.figures import medians, needed, ratios, spread, table
from loadtest.overload import output
from loadtest.overload.output import progress, say
from loadtest.peers import upstream
from loadtest.peers.contenders import CONTENDERS, Running, version
from loadtest.ready import TENANTS, edge_of, ready
from loadtest.scenarios import Cost, Edge, EdgeSender, paced_tokens, requests_closed_loop, tokens_paced
from tests.support.mesh import Mesh, free_ports

OURS = "weir"
UPSTREAM = "upstream"
NAMES = (*(name for name in CONTENDERS if name != UPSTREAM), OURS)
CONNECTIONS = 64
REQUEST_TOKENS = 16
EMPTY_CALLS = 400
STREAMS = 20
"""At 20 ms per token: what the slowest of them still passes on in time."""
PACED = (f"worker.simulated.step_interval={upstream.INTERVAL}",)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything. Seconds."""

    seconds: float
    """Of a window of closed loop or paced streams."""
    ttft: float
    repeats: int
    streams: int = STREAMS


FULL, QUICK, SMOKE = Extent(6.0, 10.0, 3), Extent(3.0, 5.0, 3), Extent(0.5, 0.5, 1, streams=4)
PACED_TOKENS = paced_tokens(FULL.seconds, upstream.INTERVAL, spare=8.0)
"""Of a stream, whatever the extent: what would be refused is refused in a smoke run, too. A gateway that is busy with
little else takes seconds until the last stream has begun."""


@dataclass
class Way:
    """A gateway and what was found out about it, turn by turn."""

    name: str
    edge: Callable[[], Edge]
    direct: str
    """The way around it: what its times to first token are compared with."""
    costs: list[Cost] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    paced: list[Cost] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Medians over the turns."""
        found: dict[str, float] = {}
        if self.costs:
            found[f"cpu_ms_per_request_c64_{self.name}"] = statistics.median(each * 1e3 for each in _cpu(self.costs))
            found[f"requests_per_s_{self.name}"] = statistics.median(cost.rate for cost in self.costs)
            found[f"rss_mib_{self.name}"] = sum(self.costs[-1].rss.values()) / 2**20
        for name in added_ttft.QUANTILES if self.rows else ():
            found[f"added_ttft_ms_{name}_r50_{self.name}"] = medians(self.rows)[f"added {name}"]
        if self.paced:
            found[f"cpu_us_per_token_paced_{self.name}"] = statistics.median(each * 1e6 for each in _cpu(self.paced))
            found[f"tokens_per_s_paced_{self.name}"] = statistics.median(cost.rate for cost in self.paced)
        return found

    def cells(self, release: str) -> tuple[str, ...]:
        """Its line of the table."""

        def cell(values: Sequence[float], digits: int = 2) -> str:
            return spread(values, digits) if values else "-"

        return (
            f"{self.name} {release}".strip(),
            cell([each * 1e3 for each in _cpu(self.costs)]),
            cell([cost.rate for cost in self.costs], 0),
            cell([row["added p50"] for row in self.rows]),
            cell([row["added p99"] for row in self.rows]),
            cell([each * 1e6 for each in _cpu(self.paced)], 0),
            f"{sum(self.costs[-1].rss.values()) / 2**20:.0f}" if self.costs else "-",
        )


def _cpu(costs: Sequence[Cost]) -> list[float]:
    return [cost.cpu_per_unit for cost in costs]


def beside(ours: Way, other: Way) -> dict[str, list[float]]:
    """Our CPU over another's, turn by turn, of what both have gone through as often. Pure."""
    found = {}
    for load, mine, theirs in (("c64", ours.costs, other.costs), ("paced", ours.paced, other.paced)):
        if mine and len(mine) == len(theirs):
            found[f"cpu_ratio_{load}_{other.name}"] = ratios(_cpu(mine), _cpu(theirs))
    return found


@contextlib.asynccontextmanager
async def running(name: str, folder: Path, port: int, behind: int) -> AsyncIterator[Running]:
    """A contender that answers."""
    contender = Running(name, folder, port, behind)
    try:
        await contender.answers()
        yield contender
    finally:
        await asyncio.to_thread(contender.stop)


class Bench:
    """Every gateway, in turn; one whose requests fail is left out from there on."""

    def __init__(self, extent: Extent, parts: output.Parts) -> None:
        self._extent, self._parts = extent, parts
        self._mesh: Mesh | None = None
        self._shares: dict[str, list[dict[str, float]]] = {}
        self.ways: list[Way] = []
        self.gone: list[Way] = []
        """Left out since a part of theirs failed; what was found before stands."""
        self.directs: dict[str, added_ttft.Call] = {}
        self.calls: list[float] = []
        """µs of an empty call around the mesh's windows of the closed loop."""

    @contextlib.asynccontextmanager
    async def beside(self, mesh: Mesh) -> AsyncIterator[Way]:
        """This mesh is ours."""
        keys = await ready(mesh)
        ours = Way(OURS, lambda: edge_of(mesh, keys), "worker")
        for before in (way for way in self.ways if way.name == OURS):
            ours = replace(before, edge=ours.edge)
        self.ways = [*(way for way in self.ways if way.name != OURS), ours]
        self._mesh = mesh
        yield ours
        self._mesh = None

    async def unpaced(self) -> None:
        """Requests in a closed loop, and times to first token."""
        for turn in range(self._extent.repeats):
            for way in self._in_turn(turn):
                async with self._part(way, "c64"):
                    before = await self._empty_call(way)
                    way.costs.append(cost := await cost_of(way.edge(), self._extent.seconds))
                    self.calls += [(before + await self._empty_call(way)) / 2 * 1e6] if way.name == OURS else []
                    progress(f"{way.name}: {cost.cpu_per_unit * 1e3:.2f} ms, {cost.rate:.0f} requests/s")
            senders = {way.name: EdgeSender(way.edge(), max_tokens=added_ttft.TOKENS) for way in self.ways}
            with self._parts.part("ttft"):
                async with self._counted("r50"):
                    times = await added_ttft.round_of(self.directs | senders, seconds=self._extent.ttft, turn=turn)
                for way in self.ways:
                    way.rows.append(added_ttft.row(times, way.name, way.direct))
                    progress(f"{way.name}: added p50 {way.rows[-1]['added p50']:.2f} ms")
            for sender in senders.values():
                sender.close()

    async def paced(self) -> None:
        """Streams at 20 ms per token."""
        streams, seconds = self._extent.streams, self._extent.seconds
        for turn in range(self._extent.repeats):
            for way in self._in_turn(turn):
                async with self._part(way, "paced"):
                    edge = way.edge() if way.name == OURS else replace(way.edge(), model=upstream.PACED)
                    cost = await tokens_paced(edge, streams=streams, seconds=seconds, max_tokens=PACED_TOKENS)
                    way.paced.append(cost)
                    progress(f"{way.name}: {cost.cpu_per_unit * 1e6:.0f} µs per token, {cost.rate:.0f} tokens/s")

    def figures(self) -> dict[str, float]:
        """Of every gateway, and of ours beside each other one."""
        ways = [*self.ways, *self.gone]
        found = {name: value for way in ways for name, value in way.figures().items()}
        for ours in (way for way in ways if way.name == OURS):
            if self.calls:
                found["grpc_call_us"] = statistics.median(self.calls)
                in_calls = ratios([each * 1e6 for each in _cpu(ours.costs)], self.calls)
                found["calls_per_request"] = statistics.median(in_calls)
            for other in ways:
                if other is not ours:
                    found |= {name: statistics.median(each) for name, each in beside(ours, other).items()}
        for load, rows in self._shares.items():
            found |= {f"{name}_{load}": value for name, value in medians(rows).items()}
        return found

    def in_force(self) -> None:
        """:raises NothingFoundError: something that makes the mesh cheap was not used under any load."""
        for name in shortcuts.SHARES if self._shares else ():
            seen = [row[name] for rows in self._shares.values() for row in rows]
            needed(max(filter(math.isfinite, seen), default=0.0), f"use of what {name} is a share of")

    def _in_turn(self, turn: int) -> list[Way]:
        """Each turn begins with another one: none always comes when the machine is slower than before."""
        begin = turn % max(1, len(self.ways))
        return self.ways[begin:] + self.ways[:begin]

    @contextlib.asynccontextmanager
    async def _part(self, way: Way, load: str) -> AsyncIterator[None]:
        part = f"{load} {way.name}"
        with self._parts.part(part):
            if way.name == OURS:
                async with self._counted(load):
                    yield
            else:
                yield
        if part in self._parts.failed:
            self.ways.remove(way)
            self.gone.append(way)

    @contextlib.asynccontextmanager
    async def _counted(self, load: str) -> AsyncIterator[None]:
        """Of our mesh, what it answers without asking."""
        if self._mesh is None:
            yield
            return
        services = self._mesh.file()["services"]
        before = await shortcuts.read(services)
        yield
        self._shares.setdefault(load, []).append(shortcuts.shares(before, await shortcuts.read(services)))

    async def _empty_call(self, way: Way) -> float:
        if way.name != OURS or self._mesh is None:
            return 0.0
        return await grpc_call.cpu_seconds(self._mesh.state / "pki", calls=EMPTY_CALLS)


async def measure(
    names: Sequence[str], folder: Path, extent: Extent, settings: Sequence[str], parts: output.Parts, *, smoke: bool
) -> Bench:
    """Every gateway of these, in turn; in a smoke run one mesh has both loads."""
    bench = Bench(extent, parts)
    async with contextlib.AsyncExitStack() as stack:
        base = stack.enter_context(free_ports())
        others = [name for name in names if name != OURS]
        if others:
            behind = await stack.enter_async_context(running(UPSTREAM, folder, base, 0))
            bench.directs[UPSTREAM] = sender = EdgeSender(behind.edge(), max_tokens=added_ttft.TOKENS)
            stack.callback(sender.close)
        for number, name in enumerate(others, start=1):
            with parts.part(name):
                contender = await stack.enter_async_context(running(name, folder, base + number, base))
                bench.ways.append(Way(name, contender.edge, UPSTREAM))
                progress(f"{name} {version(name)} answers")
        async with contextlib.AsyncExitStack() as meshes:
            if OURS in names:
                mesh = meshes.enter_context(_mesh(folder / "mesh", PACED if smoke else (), settings))
                ours = await meshes.enter_async_context(bench.beside(mesh))
                bench.directs["worker"] = await meshes.enter_async_context(await direct_worker(mesh, ours.edge()))
            await bench.unpaced()
            if smoke:
                await bench.paced()
        if not smoke:
            async with contextlib.AsyncExitStack() as meshes:
                if any(way.name == OURS for way in bench.ways):
                    mesh = meshes.enter_context(_mesh(folder / "paced", PACED, settings))
                    await meshes.enter_async_context(bench.beside(mesh))
                await bench.paced()
    return bench


def _mesh(state: Path, settings: Sequence[str], more: Sequence[str]) -> Mesh:
    return Mesh(state, profile="bench", settings=(*settings, *more))


async def cost_of(edge: Edge, seconds: float) -> Cost:
    """The closed loop.

    :raises RuntimeError: a process came meanwhile that was not counted.
    """
    cost = await requests_closed_loop(edge, connections=CONNECTIONS, seconds=seconds, max_tokens=REQUEST_TOKENS)
    accounting.check_no_children(edge.pids)
    return cost


async def direct_worker(mesh: Mesh, edge: Edge) -> DirectWorker:
    """The way around our mesh."""
    return DirectWorker(
        config=mesh.state / "config" / "worker-a.json",
        pki=mesh.state / "pki",
        folder=mesh.state / "data" / "worker-direct",
        prompt_tokens=await edge.prompt_tokens(),
        max_tokens=added_ttft.TOKENS,
    )


def main() -> None:
    """Measure and print."""
    parser = output.options(__doc__, smoke=True)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    options = parser.parse_args()
    output.begin(options.nice)
    extent = output.extent(options, FULL, QUICK, SMOKE)
    extent = replace(extent, repeats=options.repeats or extent.repeats)
    releases = {name: version(name) for name in options.only if name != OURS}
    absent = [name for name, release in releases.items() if not release]
    if absent:
        say(f"left out, since they are not installed (make peers-env): {', '.join(absent)}")
    names = [name for name in options.only if name not in absent]
    parts = output.Parts()
    with parts.part("peers"), tempfile.TemporaryDirectory(prefix="weir-peers-") as place:
        bench = uvloop.run(measure(names, Path(place), extent, options.set, parts, smoke=options.smoke))
        header = (
            "gateway",
            "CPU ms per request",
            "requests/s",
            "added TTFT p50 ms",
            "p99 ms",
            "CPU µs per token",
            "RSS MiB",
        )
        say(f"\n{table(header, [way.cells(releases.get(way.name, '')) for way in (*bench.ways, *bench.gone)])}")
        parts.figures |= bench.figures()
        bench.in_force()
    conditions = {
        "versions": releases,
        "left_out": absent,
        "load": f"{CONNECTIONS} connections closed loop, {REQUEST_TOKENS} tokens, not streamed; {added_ttft.RATE:g}/s "
        f"Poisson, streamed, {added_ttft.TOKENS} tokens; {extent.streams} streams of a token each "
        f"{upstream.INTERVAL:g} s",
        "counted": "CPU of all processes of a gateway: the mesh's with its workers, the others' without what is behind",
        "callers": f"{TENANTS} tenants of the mesh; one key, where a peer knows keys",
        "ratios": "cpu_ratio_*: the mesh's over the other's, medians of each turn's",
        "shares": "of the mesh's requests: known at the edge, out of an allowance, on a credit",
    }
    output.finish("peers", parts, {}, conditions)


if __name__ == "__main__":
    main()
