"""The mesh beside other gateways under the same load: `make bench-peers` (`make peers-env` installs them).

A bare Envoy, LiteLLM's proxy and Portkey stand in front of one simulated engine with OpenAI's API, in clear; the mesh,
with everything on, in front of its own simulated engines. All run at once, and each gets the same load in turn:
requests on 64 connections, then Poisson arrivals. Prints one table and ends with one line of JSON; what is not
installed is left out with a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from loadtest import accounting, added_ttft, grpc_call
from loadtest.direct import DirectWorker
from loadtest.figures import medians, spread, table
from loadtest.overload import output
from loadtest.overload.output import progress, say
from loadtest.peers.contenders import CONTENDERS, Running, version
from loadtest.ready import TENANTS, edge_of, ready
from loadtest.scenarios import Cost, Edge, EdgeSender, requests_closed_loop
from tests.support.mesh import Mesh, free_ports

OURS = "weir"
UPSTREAM = "upstream"
NAMES = (*(name for name in CONTENDERS if name != UPSTREAM), OURS)
CONNECTIONS = 64
REQUEST_TOKENS = 16
EMPTY_CALLS = 400


@dataclass
class Way:
    """A gateway and what was found out about it."""

    name: str
    edge: Callable[[], Edge]
    direct: str
    """The way around it: what its times to first token are compared with."""
    costs: list[Cost] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Medians over the repeats."""
        ttft = medians(self.rows)
        return {
            f"cpu_ms_per_request_c64_{self.name}": statistics.median(cost.cpu_per_unit * 1e3 for cost in self.costs),
            f"requests_per_s_{self.name}": statistics.median(cost.rate for cost in self.costs),
            f"added_ttft_ms_p50_r50_{self.name}": ttft["added p50"],
            f"added_ttft_ms_p99_r50_{self.name}": ttft["added p99"],
            f"rss_mib_{self.name}": sum(self.costs[-1].rss.values()) / 2**20,
        }

    def cells(self, release: str) -> tuple[str, ...]:
        """Its line of the table."""
        return (
            f"{self.name} {release}".strip(),
            spread([cost.cpu_per_unit * 1e3 for cost in self.costs]),
            spread([cost.rate for cost in self.costs], 0),
            spread([row["added p50"] for row in self.rows]),
            spread([row["added p99"] for row in self.rows]),
            f"{sum(self.costs[-1].rss.values()) / 2**20:.0f}",
        )


@contextlib.asynccontextmanager
async def running(name: str, folder: Path, port: int, behind: int) -> AsyncIterator[Running]:
    """A contender that answers."""
    contender = Running(name, folder, port, behind)
    try:
        await contender.answers()
        yield contender
    finally:
        await asyncio.to_thread(contender.stop)


async def measure(
    names: Sequence[str], mesh: Mesh | None, folder: Path, *, repeats: int, seconds: float, ttft: float
) -> list[Way]:
    """Every gateway of these, in turn. `mesh` is ours, where it is one of them; times in seconds."""
    ways: list[Way] = []
    directs: dict[str, added_ttft.Call] = {}
    async with contextlib.AsyncExitStack() as stack:
        base = stack.enter_context(free_ports())
        others = [name for name in names if name != OURS]
        if others:
            upstream = await stack.enter_async_context(running(UPSTREAM, folder, base, 0))
            directs[UPSTREAM] = EdgeSender(upstream.edge(), max_tokens=added_ttft.TOKENS)
        for number, name in enumerate(others, start=1):
            contender = await stack.enter_async_context(running(name, folder, base + number, base))
            ways.append(Way(name, contender.edge, UPSTREAM))
            progress(f"{name} {version(name)} answers")
        if mesh is not None:
            keys = await ready(mesh)
            ways.append(Way(OURS, lambda: edge_of(mesh, keys), "worker"))
            directs["worker"] = await stack.enter_async_context(await direct_worker(mesh, ways[-1].edge()))
        calls = directs | {way.name: EdgeSender(way.edge(), max_tokens=added_ttft.TOKENS) for way in ways}
        for turn in range(repeats):
            for way in ways:
                way.costs.append(await cost_of(way.edge(), seconds))
                progress(f"{way.name}: {way.costs[-1].cpu_per_unit * 1e3:.2f} ms, {way.costs[-1].rate:.0f} requests/s")
            times = await added_ttft.round_of(calls, seconds=ttft, turn=turn)
            for way in ways:
                way.rows.append(added_ttft.row(times, way.name, way.direct))
                progress(f"{way.name}: added p50 {way.rows[-1]['added p50']:.2f} ms")
        for call in calls.values():
            if isinstance(call, EdgeSender):
                call.close()
    return ways


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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    options = parser.parse_args()
    output.begin(options)
    seconds, ttft = output.extent(options, (6.0, 10.0), (3.0, 5.0), (0.5, 0.5))
    repeats = 1 if options.smoke else options.repeats
    releases = {name: version(name) for name in options.only if name != OURS}
    absent = [name for name, release in releases.items() if not release]
    if absent:
        say(f"left out, since they are not installed (make peers-env): {', '.join(absent)}")
    names = [name for name in options.only if name not in absent]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-peers-")))
        mesh = (
            stack.enter_context(Mesh(folder / "mesh", profile="bench", settings=tuple(options.set)))
            if OURS in names
            else None
        )
        ways = uvloop.run(measure(names, mesh, folder, repeats=repeats, seconds=seconds, ttft=ttft))
        call = uvloop.run(grpc_call.cpu_seconds(mesh.state / "pki", calls=EMPTY_CALLS)) if mesh is not None else 0.0
    header = ("gateway", "CPU ms per request", "requests/s", "added TTFT p50 ms", "p99 ms", "RSS MiB")
    say(f"\n{table(header, [way.cells(releases.get(way.name, '')) for way in ways])}")
    figures = {name: value for way in ways for name, value in way.figures().items()}
    if call:
        figures["grpc_call_us"] = call * 1e6
    conditions = {
        "versions": releases,
        "left_out": absent,
        "load": f"{CONNECTIONS} connections closed loop, {REQUEST_TOKENS} tokens, not streamed; {added_ttft.RATE:g}/s "
        f"Poisson, streamed, {added_ttft.TOKENS} tokens",
        "counted": "CPU of all processes of a gateway: the mesh's with its workers, the others' without what is behind",
        "callers": f"{TENANTS} tenants of the mesh; one key, where a peer knows keys",
    }
    output.finish("peers", figures, {}, conditions)


if __name__ == "__main__":
    main()
