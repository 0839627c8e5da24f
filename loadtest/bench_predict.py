"""What predictions cost and how they stay in time: `make bench-predict`.

One predictor in a process of its own, called over mTLS as the edge calls it, beside the bare libraries and an empty
call in the same minutes: ratios count. Then a whole mesh, whose predictions go through its edge, are counted and
audited. Goodput under overload, and what is begun too late, are of the real batcher in simulated time
(`simulation.batches`), where capacity is exact. Ends with one line of JSON. A figure that is not measured is null: the
peers' need their environments, a rollback's is the drill's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import statistics
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import uvloop

from loadtest import grpc_call
from loadtest.accounting import cpu_seconds
from loadtest.figures import around, percentile, ratios
from loadtest.helper import helper
from loadtest.overload import output
from loadtest.overload.output import progress
from loadtest.predict import edge
from loadtest.predict.load import Infer, Seen, calling, closed, opened, question
from loadtest.predict.models import FEATURES, TREES, Network, seconds_of, trees
from simulation.batches import measure

TARGETS = {
    "pred_cpu_ratio": "≤ 2.0",
    "pred_rps_core": "≥ 2500",
    "edge_cpu_us": "≤ 1500",
    "added_ms_p50": "≤ 2",
    "added_ms_p99": "≤ 8",
    "added_ms_p50_edge": "≤ 5",
    "added_ms_p99_edge": "≤ 20",
    "native_ratio_torch5ms": "≥ 0.9",
    "native_ratio_onnx": "≥ 0.7",
    "ratio_mlserver": "≥ 1.5",
    "ratio_bentoml": "≥ 2",
    "ratio_litserve": "≥ 2",
    "goodput_ratio_2x": "≥ 0.95",
    "goodput_ratio_4x": "≥ 0.95",
    "expired_executed": "= 0",
    "victim_p99_ratio": "≤ 1.25",
    "hol_p99_ratio": "≤ 2",
    "load_stall_ms": "≤ 20",
    "off_ms_p99": "≤ 1000",
    "rss_growth_pct": "≤ 5",
}
ELSEWHERE = ("ratio_mlserver", "ratio_bentoml", "ratio_litserve", "off_ms_p99")
"""What needs the peers' environments, or is the drill's, and is not measured here."""
NETWORKS = {
    "torch5ms": Network("torch5ms", "torch", layers=16),
    "onnx": Network("onnx", "onnx", layers=8),
    "slow100ms": Network("slow100ms", "onnx", layers=24, width=512, tokens=512, max_rows=1),
}
LATE = Network("late", "onnx", layers=24, width=512)
"""Loaded beside traffic."""
CONNECTIONS, RATE = 64, 200.0
PAIRS = 3
"""Of windows, of which a ratio is made each."""


class Bench:
    """A predictor that runs, and who calls it."""

    def __init__(self, root: Path, process: Process, infer: Infer, seconds: float) -> None:
        self._root, self._process, self._infer, self._seconds = root, process, infer, seconds
        self._server = psutil.Process(process.pid)
        row = np.random.default_rng(1).uniform(0, 20, (1, FEATURES)).astype(np.float32)
        self._row, self._asked = row, question("cancer-gbdt", "features", row)

    async def direct(self) -> dict[str, float]:
        """CPU and rate of single rows of trees, and what the predictor adds to the bare model at a moderate rate."""
        progress("direct")
        await closed(self._infer, self._asked, 1, 0.3)

        async def alone(_: int) -> float:
            before = self._cpu()
            seen = await closed(self._infer, self._asked, 1, self._seconds / PAIRS)
            return (sum(self._cpu()) - sum(before)) / len(seen.served().seconds) * 1e6

        calls = max(200, int(400 * self._seconds)) // PAIRS
        spent, empty = await grpc_call.between(self._root / "pki", alone, windows=PAIRS, calls=calls)
        before = self._cpu()
        full = await closed(self._infer, self._asked, CONNECTIONS, self._seconds)
        server = self._cpu()[0] - before[0]
        paced = (await opened(self._infer, self._asked, RATE, 2 * self._seconds)).served()
        bare = statistics.median(seconds_of(trees(), self._row, seconds=0.3))
        return {
            "empty_call_us": statistics.median(empty),
            "pred_cpu_us": statistics.median(spent),
            "pred_cpu_ratio": statistics.median(ratios(spent, empty)),
            "pred_rps_core": len(full.served().seconds) / server,
            "bare_model_us": bare * 1e6,
            "added_ms_p50": (percentile(paced.seconds, 0.5) - bare) * 1e3,
            "added_ms_p99": (percentile(paced.seconds, 0.99) - bare) * 1e3,
        }

    async def native(self, name: str) -> float:
        """Rows per second with single rows from many callers ÷ those of the bare library with its best batch."""
        progress(f"native {name}")
        network = NETWORKS[name]
        run = network.bare(self._root / "models" / name)

        def bare(rows: int) -> float:
            return rows / statistics.median(seconds_of(run, network.rows(rows), seconds=self._seconds / 8))

        best = max((1, 2, 4, 8, 16), key=bare)
        asked = question(name, "x", network.rows(1))
        await closed(self._infer, asked, CONNECTIONS, 0.5)
        alone, served = [bare(best)], []
        for _ in range(PAIRS):
            seen = await closed(self._infer, asked, CONNECTIONS, self._seconds / PAIRS)
            served.append(seen.served().rate)
            alone.append(bare(best))
        return statistics.median(ratios(served, around(alone)))

    async def head_of_line(self) -> float:
        """p99 of the trees beside a slow model ÷ alone."""
        progress("head of line")
        slow = question("slow100ms", "x", NETWORKS["slow100ms"].rows(1))

        async def beside() -> Seen:
            seen, _ = await asyncio.gather(
                opened(self._infer, self._asked, RATE / 2, self._seconds), closed(self._infer, slow, 1, self._seconds)
            )
            return seen

        return await self._p99_ratio(beside, partial(opened, self._infer, self._asked, RATE / 2, self._seconds))

    async def flooded(self) -> float:
        """p99 of a tenant's single rows beside another's 20 times as many rows as it had before ÷ before."""
        progress("flood")
        network = NETWORKS["torch5ms"]
        mine, theirs = question("torch5ms", "x", network.rows(1)), question("torch5ms", "x", network.rows(8))

        async def beside(rate: float) -> Seen:
            seen, _ = await asyncio.gather(
                opened(self._infer, mine, 20, self._seconds),
                opened(self._infer, theirs, rate, self._seconds, tenant="flood", timeout=1.0),
            )
            return seen

        return await self._p99_ratio(partial(beside, 200), partial(beside, 10))

    async def _p99_ratio(self, loud: Callable[[], Awaitable[Seen]], calm: Callable[[], Awaitable[Seen]]) -> float:
        """Of two loads, one after the other in a pair, each pair beginning with another one."""
        found: tuple[list[float], list[float]] = ([], [])
        for pair in range(PAIRS):
            for side in (0, 1) if pair % 2 else (1, 0):
                seen = await (loud, calm)[side]()
                found[side].append(percentile(seen.served().seconds, 0.99))
        return statistics.median(ratios(*found))

    async def stalled(self) -> float:
        """Milliseconds that the longest answer took longer, while a model was loaded, than the longest before."""
        progress("load beside traffic")
        folder = self._root / "late"
        LATE.write(folder)
        calm = await opened(self._infer, self._asked, RATE / 2, self._seconds)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{LATE.name} {folder}\n".encode())
        loading = asyncio.create_task(self._process.stdout.readline())
        worst = 0.0
        while not loading.done():
            beside = await opened(self._infer, self._asked, RATE / 2, 0.5)
            worst = max(worst, *beside.seconds)
        return max(0.0, worst - max(calm.seconds)) * 1e3

    async def grown(self, requests: int) -> float:
        """Percent by which resident memory grew over so many requests, after as many as a tenth of them."""
        progress(f"{requests} requests")
        await self._requests(requests // 10)
        before = self._server.memory_info().rss
        await self._requests(requests)
        return (self._server.memory_info().rss / before - 1) * 100

    async def _requests(self, count: int) -> None:
        done = 0
        while done < count:
            done += len((await closed(self._infer, self._asked, CONNECTIONS, 1.0)).seconds)

    def _cpu(self) -> tuple[float, float]:
        """CPU seconds of the predictor with its children, and of this process."""
        used = 0.0
        for process in (self._server, *self._server.children(recursive=True)):
            with contextlib.suppress(ProcessLookupError):
                used += cpu_seconds(process.pid)
        return used, time.process_time()


@contextlib.asynccontextmanager
async def serving(root: Path) -> AsyncIterator[tuple[Process, str]]:
    """The predictor's process and its address."""
    for network in NETWORKS.values():
        network.write(root / "models" / network.name)
    async with helper("-m", "loadtest.predict.server", str(root), stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise RuntimeError("the predictor did not start")
        yield process, address


async def run(seconds: float, requests: int, parts: output.Parts) -> None:
    """Every figure that one predictor gives."""
    figures = parts.figures
    with parts.part("predictor"), tempfile.TemporaryDirectory(prefix="weir-predict-") as place:
        root = Path(place)
        async with serving(root) as (process, address), calling(address, root / "pki") as infer:
            bench = Bench(root, process, infer, seconds)
            with parts.part("direct"):
                figures |= await bench.direct()
            measures: tuple[tuple[str, Callable[[], Awaitable[float]]], ...] = (
                *((f"native_ratio_{name}", partial(bench.native, name)) for name in ("torch5ms", "onnx")),
                ("hol_p99_ratio", bench.head_of_line),
                ("victim_p99_ratio", bench.flooded),
                ("load_stall_ms", bench.stalled),
                ("rss_growth_pct", partial(bench.grown, requests)),
            )
            for figure, measured in measures:
                with parts.part(figure):
                    figures[figure] = await measured()
    progress("through the edge")
    with parts.part("edge"), tempfile.TemporaryDirectory(prefix="weir-predict-") as place:
        figures |= await edge.through(Path(place) / "mesh", seconds / PAIRS, PAIRS)
    progress("simulated overload")
    with parts.part("simulated"):
        simulated = measure(min(5.0, seconds))
        for times in (2, 4):
            figures[f"goodput_ratio_{times}x"] = simulated[f"goodput_{times}x"]
            figures[f"goodput_fifo_{times}x"] = simulated[f"goodput_{times}x_plain"]
        figures["expired_executed"] = sum(simulated[f"expired_executed_{times}x"] for times in (1, 2, 4))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter windows: figures of little weight")
    parser.add_argument("--smoke", action="store_true", help="does it run? figures of no weight")
    given = parser.parse_args()
    seconds = 0.5 if given.smoke else 2.0 if given.quick else 10.0
    requests = 200 if given.smoke else 20_000 if given.quick else 300_000
    output.begin()
    parts = output.Parts()
    uvloop.run(run(seconds, requests, parts))
    parts.figures |= dict.fromkeys(ELSEWHERE, math.nan)
    conditions = {"seconds": seconds, "requests": requests, "accounted": "through the edge", "trees": TREES.name}
    output.finish("predict", parts, TARGETS, conditions | {"goodput": "simulated"}, left_out=ELSEWHERE)


if __name__ == "__main__":
    main()
