"""CPU per streamed token between a worker and one reader, each in a process of its own, the engine's share taken off.

    .venv/bin/python -m loadtest.worker_bench [--batches 8 32 64] [--tokens 200] [--interval 0.02] [--repeats 3]

The worker runs the simulated engine: with an interval every sequence gets a token per interval, so a frame carries one
step; without one steps follow one another at no cost and travel together. What that engine itself uses is measured
without a worker around it and subtracted. The reader stands for a gateway's end of the stream: it decodes every frame
and does nothing with it. Measured while all sequences decode: submissions and ends lie outside the window.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvloop
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import to_duration
from libs.rpc import make_channel
from libs.service import serve
from loadtest.accounting import cpu_seconds
from loadtest.figures import medians, table
from loadtest.helper import helper
from services.worker.app import build
from services.worker.config import Settings, SimulatedOptions
from services.worker.engines.catalogue import create
from services.worker.engines.port import SamplingParams, SequenceRequest, StepOutput

MODEL = "m@1"
PROMPT = [7] * 100
MARGIN = 10
"""Tokens of each sequence before and after the window."""
BATCHES = (8, 32, 64)
PACE = 0.02


@dataclass(frozen=True, slots=True)
class Window:
    """CPU seconds of both ends, tokens and frames while all sequences decode; `worker` includes its engine."""

    worker: float
    reader: float
    tokens: int
    frames: int


def settings(interval: float) -> Settings:
    """A worker that takes everything."""
    return Settings(
        service="worker",
        instance="bench",
        engine="simulated",
        models={MODEL: ""},
        simulated=SimulatedOptions(step_interval=interval, total_blocks=1 << 20, max_running=1024, max_context=100_000),
        require_grants=False,
    )


async def run_worker(interval: float) -> None:
    """The worker's process: print the port, serve until it is killed."""
    configured = settings(interval)
    async with serve(await build(configured), configured) as running:
        await running.ready.wait()
        sys.stdout.write(f"{running.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


@asynccontextmanager
async def worker(interval: float) -> AsyncIterator[tuple[int, int]]:
    """A worker process: its pid and port."""
    async with helper("-m", "loadtest.worker_bench", "--serve", "--interval", str(interval), stdout=PIPE) as process:
        if process.stdout is None:
            raise RuntimeError("the worker has no output")
        yield process.pid, int(await process.stdout.readline())


def submissions(count: int, tokens: int, first: int) -> worker_pb2.SessionRequest:
    """One frame of sequences."""
    items = [
        worker_pb2.Submit(
            handle=first + number,
            request_id=f"r{first + number}",
            model_version=MODEL,
            prompt=PROMPT,
            remaining=to_duration(600),
            sampling=worker_pb2.Sampling(max_tokens=tokens, temperature=1.0),
        )
        for number in range(count)
    ]
    return worker_pb2.SessionRequest(submissions=worker_pb2.Submissions(items=items))


class Reader:
    """Reads frames and counts."""

    def __init__(self, rpc: object) -> None:
        self._rpc = rpc
        self.tokens = self.frames = self.finished = 0

    async def until(self, tokens: int = 0, finished: int = 0) -> None:
        """Read until so many tokens came and so many sequences ended, since the start."""
        while self.tokens < tokens or self.finished < finished:
            step = (await self._rpc.read()).step  # type: ignore[attr-defined]
            self.frames += 1
            self.tokens += len(list(step.tokens))
            self.finished += len(step.finished)


async def window(rpc: object, pid: int, *, sequences: int, tokens: int, first: int) -> Window:
    """Run a batch and measure its middle."""
    reader = Reader(rpc)
    await rpc.write(submissions(sequences, tokens, first))  # type: ignore[attr-defined]
    await reader.until(tokens=sequences * MARGIN)
    received, frames = reader.tokens, reader.frames
    used, own = cpu_seconds(pid), time.process_time()
    await reader.until(tokens=sequences * (tokens - MARGIN))
    used, own = cpu_seconds(pid) - used, time.process_time() - own
    received, frames = reader.tokens - received, reader.frames - frames
    await reader.until(finished=sequences)
    return Window(used, own, received, frames)


async def engine_alone(*, sequences: int, tokens: int, interval: float) -> float:
    """CPU seconds per token of the simulated engine with a sink that drops everything, in this process."""
    engine = create(settings(interval), clock=SystemClock())
    ended = asyncio.Event()
    live = sequences
    produced = 0

    def sink(output: StepOutput) -> None:
        nonlocal live, produced
        produced += sum(map(len, output.tokens))
        live -= sum(map(bool, output.finish))
        if not live:
            ended.set()

    await engine.start(sink)
    params = SamplingParams(max_tokens=tokens)
    engine.submit(
        [
            SequenceRequest(handle=number, model=MODEL, prompt=PROMPT, params=params)
            for number in range(1, sequences + 1)
        ]
    )
    own = time.process_time()
    await ended.wait()
    own = time.process_time() - own
    await engine.stop()
    return own / produced


async def measure(batch: int, *, tokens: int, interval: float, repeats: int) -> dict[str, float]:
    """Medians: CPU µs per token of the worker without its engine, of the reader and of the engine; tokens per frame."""
    rows = []
    async with worker(interval) as (pid, port), make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        rpc = worker_pb2_grpc.WorkerServiceStub(channel).Session()
        await rpc.write(worker_pb2.SessionRequest(hello=mux_pb2.Hello(service="gateway", instance="bench")))
        await rpc.read()
        await window(rpc, pid, sequences=batch, tokens=4 * MARGIN, first=1)
        for repeat in range(1, repeats + 1):
            engine = await engine_alone(sequences=batch, tokens=tokens, interval=interval)
            found = await window(rpc, pid, sequences=batch, tokens=tokens, first=repeat * 10_000)
            rows.append(
                {
                    "worker": (found.worker / found.tokens - engine) * 1e6,
                    "reader": found.reader / found.tokens * 1e6,
                    "engine": engine * 1e6,
                    "tokens_per_frame": found.tokens / found.frames,
                }
            )
        rpc.cancel()
    return medians(rows)


async def figures(*, batches: tuple[int, ...] = BATCHES, tokens: int = 100, repeats: int = 3) -> dict[str, float]:
    """`worker_us_per_token_bN` and `reader_us_per_token_bN`, paced, and the same `_flat`."""
    found = {}
    for batch in batches:
        for suffix, interval, length in (("", PACE, tokens), ("_flat", 0.0, 20 * tokens)):
            row = await measure(batch, tokens=length, interval=interval, repeats=repeats)
            found |= {f"{side}_us_per_token_b{batch}{suffix}": row[side] for side in ("worker", "reader")}
    return found


async def main(options: argparse.Namespace) -> None:
    """Print a table."""
    rows = []
    for batch in options.batches:
        row = await measure(batch, tokens=options.tokens, interval=options.interval, repeats=options.repeats)
        rows.append((str(batch), *(f"{row[name]:.2f}" for name in ("worker", "reader", "engine", "tokens_per_frame"))))
    header = ("batch", "worker µs/token", "reader µs/token", "engine µs/token (taken off)", "tokens/frame")
    sys.stdout.write(table(header, rows) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--tokens", type=int, default=200, help="output tokens of each sequence")
    parser.add_argument("--interval", type=float, default=PACE, help="seconds per token; 0: as fast as it goes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    uvloop.run(run_worker(chosen.interval) if chosen.serve else main(chosen))
