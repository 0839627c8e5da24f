"""Contestant: this project's torch engine, through the engine port as a worker uses it.

Two kinds of order: a workload (all requests at once), and the interference of a long prompt with running decoders.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

from loadtest.accounting import resident_bytes
from loadtest.engine import child, workloads
from services.worker.engines.port import Engine, FinishReason, SamplingParams, SequenceRequest, StepOutput
from services.worker.engines.torch_engine import TorchSettings
from services.worker.engines.torch_engine.hosting import build

MODEL = "bench@1"


def settings(folder: str, options: dict[str, Any]) -> TorchSettings:
    """The engine's settings for the benchmark; `options` override.

    :raises ValueError: the engine has no such setting.
    """
    known = {field.name for field in dataclasses.fields(TorchSettings)}
    if unknown := set(options) - known:
        raise ValueError(f"the torch engine has no setting {', '.join(sorted(unknown))}")
    return TorchSettings(
        **{"models": {MODEL: Path(folder)}, "threads": child.THREADS, "require_manifest": False, **options}
    )


def request(handle: int, prompt: Sequence[int], output: int) -> SequenceRequest:
    """Greedy, end of sequence ignored."""
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    return SequenceRequest(handle=handle, model=MODEL, prompt=list(prompt), params=params)


class Client:
    """Submits to an engine and notes when each sequence got its tokens, and how little memory was left."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last_handle = 0
        self._stepped = asyncio.Event()
        self._problem = ""
        self.times: dict[int, list[float]] = {}
        """By handle, the arrival time of each token (perf_counter)."""
        self.ended: set[int] = set()
        self.cached = 0
        """Prompt tokens that came from the prefix cache."""
        self.least_free = 1 << 62

    def submit(self, items: Sequence[tuple[Sequence[int], int]]) -> list[int]:
        """Submit (prompt, output tokens) pairs in one call; returns their handles."""
        first = self._last_handle + 1
        self._last_handle += len(items)
        handles = list(range(first, first + len(items)))
        self.times |= {handle: [] for handle in handles}
        self._engine.submit([request(handle, *item) for handle, item in zip(handles, items, strict=True)])
        return handles

    def on_step(self, output: StepOutput) -> None:
        """See `StepSink`."""
        now = time.perf_counter()
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            self.times[handle] += [now] * len(tokens)
            if finish:
                self.ended.add(handle)
            if finish == FinishReason.ERROR:
                self._problem = output.errors.get(handle, "a sequence failed")
        self.cached += sum(output.prompt_tokens_cached.values())
        self.least_free = min(self.least_free, self._engine.capacity().free_blocks)
        self._stepped.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is asked after each step.

        :raises RuntimeError: a sequence ended with an error.
        """
        while not condition():
            self._stepped.clear()
            await self._stepped.wait()
            if self._problem:
                raise RuntimeError(self._problem)

    async def cancel_all(self) -> None:
        """End everything and wait for it."""
        self._engine.cancel([handle for handle in self.times if handle not in self.ended])
        await self.until(lambda: len(self.ended) == len(self.times))


async def run(engine: Engine, client: Client, order: child.Order) -> child.Answer:
    """A workload. With `warm_prefix`, its first tokens are in the prefix cache when the clock starts."""
    items = [(item["prompt"], item["output"]) for item in order["items"]]
    if warm := order.get("warm_prefix", 0):
        handles = client.submit([(items[0][0][:warm], 1)])
        await client.until(lambda: client.ended.issuperset(handles))
    client.cached, client.least_free = 0, engine.info.total_blocks
    start = time.perf_counter()
    handles = client.submit(items)
    await client.until(lambda: client.ended.issuperset(handles))
    seconds = time.perf_counter() - start
    outputs, expected = sum(len(client.times[handle]) for handle in handles), sum(output for _, output in items)
    if outputs != expected:
        raise RuntimeError(f"{outputs} tokens were generated, not {expected}")
    first = [client.times[handle][0] - start for handle in handles]
    return child.outcome(seconds, first, sum(len(prompt) for prompt, _ in items), outputs) | {
        "cached_tokens": client.cached,
        "blocks_total": engine.info.total_blocks,
        "blocks_peak": engine.info.total_blocks - client.least_free,
        "rss_peak": child.peak_rss(),
    }


async def interference(engine: Engine, client: Client, order: child.Order) -> child.Answer:
    """Gaps between tokens of running decoders, from the submission of a long prompt to its first token (`during`) and
    over as many steps before it (`before`), in seconds."""
    rng = random.Random(f"interference {order['repeat']}")

    def prompt(length: int) -> list[int]:
        return workloads.ids(rng, length, order["vocabulary"])

    decoders = client.submit(
        [(prompt(order["decoder_prompt"]), order["decoder_output"]) for _ in range(order["decoders"])]
    )
    await client.until(lambda: all(len(client.times[handle]) >= order["settle"] for handle in decoders))
    submitted = time.perf_counter()
    [long] = client.submit([(prompt(order["prompt"]), 1)])
    await client.until(lambda: bool(client.times[long]))
    answered = client.times[long][0]
    # The step that ends the prompt brings the decoders' next tokens too, at the very same time.
    gaps = [pair for handle in decoders for pair in pairwise(client.times[handle])]
    await client.cancel_all()
    return {
        "before": [end - start for start, end in gaps if end <= submitted],
        "during": [end - start for start, end in gaps if submitted < end <= answered],
        "ttft": answered - submitted,
    }


async def main() -> None:
    """Serve orders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--options", type=json.loads, default={}, help="TorchSettings as JSON")
    out = child.answers()
    arguments = parser.parse_args()
    engine = build(settings(arguments.folder, arguments.options))
    client = Client(engine)
    await engine.start(client.on_step)
    loaded = resident_bytes(os.getpid())
    loop = asyncio.get_running_loop()

    def work(order: child.Order) -> child.Answer:
        kind = {"run": run, "interference": interference}[order["do"]]
        answer = asyncio.run_coroutine_threadsafe(kind(engine, client, order), loop).result()
        return answer | {"rss_loaded": loaded}

    try:
        # Orders are awaited in a thread, so that the loop is free for the engine.
        await asyncio.to_thread(child.serve, out, work)
    finally:
        await engine.stop()


if __name__ == "__main__":
    uvloop.run(main())
