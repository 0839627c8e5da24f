"""The engine in a thread of its worker against the engine in a process of its own.

    python -m loadtest.isolation_bench [--repeats 8] [--steps 100] [--model models/demo/fast]

1. The torch engine decodes a batch while the event loop it reports to is quiet, or busy half of the time with callbacks
   of 1 ms: how long its steps take, the CPU of both processes per step (of a busy loop, its callbacks included), how
   many tokens per second come out, and how late the loop's timers are.
2. A whole worker (gRPC, hub, outboxes) around a core without cost that gives every sequence a token each 5 ms: CPU of
   the worker and of its engine's process, per token that arrived at a gateway.

Both variants run in one go, in alternating order, so that what else the machine does hits both. Figures are medians
over the repeats; `least_…` is the repeat with the least time, the nearest to a machine without other work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import uvloop
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.deadlines import to_duration
from libs.rpc import make_channel
from loadtest.accounting import cpu_seconds, machine_cpu_seconds
from loadtest.figures import medians, percentile, spread, table
from loadtest.free_core import MODEL
from loadtest.helper import helper
from loadtest.overload import output
from services.worker.engines.port import Engine, SamplingParams, SequenceRequest, StepOutput
from services.worker.engines.process import ProcessEngine
from services.worker.engines.torch_engine import TorchSettings
from services.worker.engines.torch_engine.hosting import build

Isolation = Literal["thread", "process"]
VARIANTS: tuple[Isolation, Isolation] = ("thread", "process")
BUSY = 0.001  # seconds of each callback, and as long a pause after it
PROBE = 0.002  # seconds between two timers of the probe
PACE = 0.005  # seconds per step of the core without cost
_WINDOW_SECONDS = 60.0  # for a batch to end, most of them in PACE times its steps
LEAST = ("step_ms_p50", "step_ms_p99", "loop_late_ms_p99", "cpu_ms_per_step", "cpu_us_per_token")
Figures = dict[str, float]


class Decoding:
    """A step sink: the durations of steps that decode the whole batch."""

    def __init__(self, batch: int, steps: int) -> None:
        self.seconds: list[float] = []
        self.began = self.ended = 0.0
        self.enough = asyncio.Event()
        self.idle = asyncio.Event()
        self._batch = batch
        self._steps = steps
        self._started: set[int] = set()
        self._finished = 0

    def __call__(self, output: StepOutput) -> None:
        self._finished += sum(map(bool, output.finish))
        if self._finished == self._batch:
            self.idle.set()
        whole = len(self._started) == self._batch
        self._started.update(output.handles)
        if not whole or self.enough.is_set():
            return
        now = time.monotonic()
        self.began = self.began or now - output.step_seconds
        self.ended = now
        self.seconds.append(output.step_seconds)
        if len(self.seconds) == self._steps:
            self.enough.set()


class Relay:
    """The sink an engine keeps; each window puts its own behind it."""

    def __init__(self) -> None:
        self.to: Callable[[StepOutput], None] = lambda output: None
        self.handles = 0

    def __call__(self, output: StepOutput) -> None:
        self.to(output)


@contextlib.asynccontextmanager
async def busy_loop(on: bool) -> AsyncIterator[None]:
    """Keep the event loop busy half of the time."""
    loop = asyncio.get_running_loop()
    running = on

    def burn() -> None:
        end = time.perf_counter() + BUSY
        while time.perf_counter() < end:
            pass
        if running:
            loop.call_later(BUSY, burn)

    if on:
        burn()
    yield
    running = False


@contextlib.asynccontextmanager
async def probe(late: list[float]) -> AsyncIterator[None]:
    """Note how late timers are."""
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while True:
            due = time.perf_counter() + PROBE
            await asyncio.sleep(PROBE)
            late.append(time.perf_counter() - due)

    task = loop.create_task(watch())
    yield
    task.cancel()
    await asyncio.wait((task,))


async def decode(engine: Engine, relay: Relay, *, batch: int, steps: int, busy: bool) -> Figures:
    """One window."""
    sink = relay.to = Decoding(batch, steps)
    handles = range(relay.handles + 1, relay.handles + batch + 1)
    relay.handles += batch
    params = SamplingParams(max_tokens=steps + 200, temperature=0.0, ignore_eos=True)
    [model] = engine.info.models
    late: list[float] = []
    pids = [os.getpid(), *([engine.pid] if isinstance(engine, ProcessEngine) and engine.pid else [])]
    before = sum(map(cpu_seconds, pids))
    async with busy_loop(busy):
        engine.submit(
            [SequenceRequest(handle=h, model=model, prompt=[7, 8, 9, h % 512], params=params) for h in handles]
        )
        async with probe(late):
            await sink.enough.wait()
        used = sum(map(cpu_seconds, pids)) - before
    engine.cancel(list(handles))
    await sink.idle.wait()
    return {
        "step_ms_p50": percentile(sink.seconds, 0.5) * 1e3,
        "step_ms_p99": percentile(sink.seconds, 0.99) * 1e3,
        "cpu_ms_per_step": used / len(sink.seconds) * 1e3,
        "tokens_per_s": batch * len(sink.seconds) / (sink.ended - sink.began),
        "loop_late_ms_p50": percentile(late, 0.5) * 1e3,
        "loop_late_ms_p99": percentile(late, 0.99) * 1e3,
    }


async def torch_part(model: Path, *, repeats: int, steps: int) -> dict[str, list[Figures]]:
    """Rows of figures by "variant_batch_loop"."""
    rows: dict[str, list[Figures]] = {}
    manifest = json.loads((model / "manifest.json").read_bytes())
    version = f"{manifest['name']}@{manifest['version']}"
    settings = TorchSettings(models={version: model}, max_running=32)
    engines: dict[str, tuple[Engine, Relay]] = {}
    try:
        for variant in VARIANTS:
            engines[variant] = build(settings, isolation=variant), Relay()
            engine, relay = engines[variant]
            await engine.start(relay)
            await decode(engine, relay, batch=32, steps=50, busy=False)
        for repeat in range(repeats):
            for batch in (8, 32):
                for busy in (False, True):
                    for variant in _order(repeat):
                        engine, relay = engines[variant]
                        figures = await decode(engine, relay, batch=batch, steps=steps, busy=busy)
                        rows.setdefault(f"{variant}_b{batch}_{'busy' if busy else 'quiet'}", []).append(figures)
    finally:
        for engine, _ in engines.values():
            await engine.stop()
    return rows


@contextlib.asynccontextmanager
async def worker(variant: Isolation) -> AsyncIterator[tuple[int, list[int]]]:
    """A worker process; its port and the pids to account for."""
    words = ("-m", "loadtest.isolation_worker", variant, str(PACE))
    async with helper(*words, stdout=asyncio.subprocess.PIPE) as process:
        if process.stdout is None:
            raise RuntimeError("the worker has no output")
        port, engine = map(int, (await process.stdout.readline()).split())
        yield port, [process.pid, *([engine] if engine else [])]


def submissions(batch: int, tokens: int, first: int) -> worker_pb2.SessionRequest:
    """One frame of sequences."""
    items = [
        worker_pb2.Submit(
            handle=first + number,
            request_id=f"r{first + number}",
            model_version=MODEL,
            prompt=[7] * 100,
            remaining=to_duration(600),
            sampling=worker_pb2.Sampling(max_tokens=tokens),
        )
        for number in range(batch)
    ]
    return worker_pb2.SessionRequest(submissions=worker_pb2.Submissions(items=items))


async def read(rpc: Any, batch: int) -> tuple[int, int]:
    """(tokens, frames) until the whole batch has ended."""
    tokens = frames = 0
    while batch:
        step = (await rpc.read()).step
        frames += 1
        tokens += len(step.tokens)
        batch -= len(step.finished)
    return tokens, frames


async def paced(rpc: Any, pids: list[int], *, batch: int, steps: int, first: int) -> Figures:
    """One window of a worker around the core without cost."""
    before = [cpu_seconds(pid) for pid in pids]
    async with asyncio.timeout(_WINDOW_SECONDS):
        await rpc.write(submissions(batch, steps, first))
        tokens, frames = await read(rpc, batch)
    used = [cpu_seconds(pid) - begun for pid, begun in zip(pids, before, strict=True)]
    return {
        "cpu_us_per_token": sum(used) / tokens * 1e6,
        "cpu_us_per_token_engine_process": sum(used[1:]) / tokens * 1e6,
        "frames_per_step": frames / steps,
    }


async def worker_part(*, repeats: int, steps: int) -> dict[str, list[Figures]]:
    """Rows of figures by "variant_batch"."""
    rows: dict[str, list[Figures]] = {}
    async with contextlib.AsyncExitStack() as stack:
        ends: dict[str, tuple[grpc.aio.StreamStreamCall, list[int]]] = {}
        for variant in VARIANTS:
            port, pids = await stack.enter_async_context(worker(variant))
            channel = await stack.enter_async_context(make_channel(f"127.0.0.1:{port}", tls=None))
            rpc = worker_pb2_grpc.WorkerServiceStub(channel).Session()
            await rpc.write(worker_pb2.SessionRequest(hello=mux_pb2.Hello(service="gateway", instance="bench")))
            await rpc.read()
            ends[variant] = rpc, pids
            await paced(rpc, pids, batch=8, steps=40, first=1)
        first = 1000
        for repeat in range(repeats):
            for batch in (8, 32, 64):
                for variant in _order(repeat):
                    rpc, pids = ends[variant]
                    figures = await paced(rpc, pids, batch=batch, steps=steps, first=first)
                    first += batch
                    rows.setdefault(f"{variant}_b{batch}", []).append(figures)
        for rpc, _ in ends.values():
            rpc.cancel()
    return rows


def _order(repeat: int) -> Iterator[Isolation]:
    return iter(VARIANTS if repeat % 2 == 0 else VARIANTS[::-1])


def show(rows: dict[str, list[Figures]]) -> None:
    """A table of medians and ranges."""
    names = list(next(iter(rows.values()))[0])
    lines = [[key, *(spread([row[name] for row in found]) for name in names)] for key, found in rows.items()]
    sys.stdout.write(table(["", *names], lines) + "\n\n")


async def main(model: Path, parts: output.Parts, *, repeats: int, steps: int) -> None:
    """Measure and print tables."""
    busy, began = machine_cpu_seconds(), time.monotonic()
    for part, measured in (
        ("torch", functools.partial(torch_part, model, repeats=repeats, steps=steps)),
        ("worker", functools.partial(worker_part, repeats=repeats, steps=steps)),
    ):
        with parts.part(part):
            rows = await measured()
            show(rows)
            for key, found in rows.items():
                parts.figures |= {f"{name}_{key}": value for name, value in medians(found).items()}
                least = {name: min(row[name] for row in found) for name in found[0] if name in LEAST}
                parts.figures |= {f"least_{name}_{key}": value for name, value in least.items()}
    parts.figures["machine_cpus_busy"] = (machine_cpu_seconds() - busy) / (time.monotonic() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--model", type=Path, default=Path("models/demo/fast"))
    options = parser.parse_args()
    output.begin()
    parts = output.Parts()
    uvloop.run(main(options.model, parts, repeats=options.repeats, steps=options.steps))
    output.finish("isolation", parts, {})
