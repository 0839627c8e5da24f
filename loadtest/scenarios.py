"""The loads of `make bench-mesh`: each returns plain numbers about one run."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.accounting import Used, read
from loadtest.http_client import Connection, Reply

PATH = "/v1/chat/completions"
# About 60 tokens of the demo tokenizer: a short question, as in the conversation traces' lower half.
QUESTION = (
    "A weir lets through what the river below can carry and no more. "
    "Explain in a few sentences why a queue needs a bound, and what happens to the work that does not fit."
)


@dataclass(frozen=True, slots=True)
class Edge:
    """Where the load goes and as whom."""

    host: str
    port: int
    key: str
    pids: Mapping[str, int]
    model: str = "weir-fast"

    def body(self, *, max_tokens: int, stream: bool) -> bytes:
        """A request body."""
        return json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": QUESTION}],
                "max_tokens": max_tokens,
                "stream": stream,
                "temperature": 0,
                "ignore_eos": True,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class Cost:
    """What a window of load cost: units of work (requests or tokens), wall seconds, CPU seconds by process."""

    units: int
    wall: float
    cpu: Mapping[str, float]
    errors: int
    rss: Mapping[str, int]

    @property
    def cpu_per_unit(self) -> float:
        """CPU seconds per unit over all processes."""
        return sum(self.cpu.values()) / self.units

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.units / self.wall


async def requests_closed_loop(edge: Edge, *, connections: int, seconds: float, max_tokens: int) -> Cost:
    """Non-streamed requests, each connection sending the next as soon as it has the last; `seconds` after a warm-up."""
    body = edge.body(max_tokens=max_tokens, stream=False)
    return await _closed_loop(edge, body, connections, seconds, lambda reply: 1)


async def tokens_closed_loop(edge: Edge, *, streams: int, seconds: float, max_tokens: int) -> Cost:
    """Streamed requests back to back; units are token events received."""
    body = edge.body(max_tokens=max_tokens, stream=True)
    return await _closed_loop(edge, body, streams, seconds, lambda reply: len(reply.events))


async def tokens_paced(edge: Edge, *, streams: int, seconds: float, max_tokens: int) -> Cost:
    """One long stream per connection on an engine that paces its steps; measured while all of them run."""
    body = edge.body(max_tokens=max_tokens, stream=True)
    connections = [Connection(edge.host, edge.port, edge.key) for _ in range(streams)]
    begun = [asyncio.Event() for _ in connections]
    replies: list[Reply] = []

    async def run(connection: Connection, first: asyncio.Event) -> None:
        try:
            replies.append(await connection.post(PATH, body, on_event=first))
        finally:
            first.set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(c, e)) for c, e in zip(connections, begun, strict=True)]
        for event in begun:
            await event.wait()
        before, start = read(edge.pids), time.perf_counter()
        await asyncio.sleep(seconds)
        after, end = read(edge.pids), time.perf_counter()
        if any(task.done() for task in tasks):
            raise RuntimeError("a stream ended inside the measured window: raise max_tokens or shorten the window")
    for connection in connections:
        connection.close()
    units = sum(1 for reply in replies for at in reply.events if start <= at < end)
    errors = sum(reply.status != 200 for reply in replies)
    return Cost(units, end - start, after.since(before), errors, after.rss)


async def open_loop(
    send: Callable[[], Awaitable[float]], *, rate: float, seconds: float, rng: random.Random
) -> list[float]:
    """Poisson arrivals at `rate` per second; returns what each `send` returned (seconds to first token)."""
    results: list[float] = []

    async def one() -> None:
        results.append(await send())

    async with asyncio.TaskGroup() as group:
        end = time.perf_counter() + seconds
        due = time.perf_counter()
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one())
            due += rng.expovariate(rate)
    return results


class EdgeSender:
    """Sends one streamed request over a pool of keep-alive connections; returns seconds to its first event."""

    def __init__(self, edge: Edge, *, max_tokens: int) -> None:
        self._edge = edge
        self._body = edge.body(max_tokens=max_tokens, stream=True)
        self._idle: list[Connection] = []

    async def __call__(self) -> float:
        connection = self._idle.pop() if self._idle else Connection(self._edge.host, self._edge.port, self._edge.key)
        reply = await connection.post(PATH, self._body)
        self._idle.append(connection)
        if reply.status != 200 or not reply.events:
            raise RuntimeError(f"status {reply.status}: {reply.body[:200]!r}")
        return reply.events[0] - reply.started


def percentile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0..1), nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def spread(values: Sequence[float]) -> str:
    """Median and range as text."""
    return f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


async def _closed_loop(
    edge: Edge, body: bytes, connections: int, seconds: float, units_of: Callable[[Reply], int]
) -> Cost:
    counting = asyncio.Event()
    stop = asyncio.Event()
    units = 0
    errors = 0

    async def run(connection: Connection) -> None:
        nonlocal units, errors
        while not stop.is_set():
            reply = await connection.post(PATH, body)
            if reply.status != 200:
                errors += 1
            elif counting.is_set():
                units += units_of(reply)
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(run(Connection(edge.host, edge.port, edge.key)))
        await asyncio.sleep(1.5)  # warm-up
        counting.set()
        before, start = read(edge.pids), time.perf_counter()
        await asyncio.sleep(seconds)
        after, end = read(edge.pids), time.perf_counter()
        counting.clear()
        stop.set()
    return Cost(units, end - start, Used.since(after, before), errors, after.rss)
