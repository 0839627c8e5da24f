"""The loads of `make bench-mesh`. Each gives plain numbers about one run and refuses to give any when an answer failed.

Tokens are counted where they are made, by the workers' counters, at both ends of a window; that they arrived is checked
against the usage of every answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from typing import Protocol

from loadtest import accounting
from loadtest.accounting import Used
from loadtest.figures import spread, table
from loadtest.http_client import Connection, Reply, post

PATH = "/v1/chat/completions"
# A short question, as in the lower half of conversation traces.
QUESTION = (
    "A weir lets through what the river below can carry and no more. "
    "Explain in a few sentences why a queue needs a bound, and what happens to the work that does not fit."
)
CONNECTIONS, REQUEST_TOKENS = 64, 16
"""Of the closed loop of requests that are not streamed, and the tokens of each."""
FLAT_STREAMS, FLAT_TOKENS = 64, 256
"""Of streams back to back, and the tokens of each."""
WARM_UP = 1.5  # seconds before a closed loop's window
SETTLE = 1.0  # seconds between the last paced stream's first token and the window
IDLE = 2.0  # seconds after which a kept connection is not used again: some servers end them after five
PAUSE = 0.3  # seconds for a mesh to finish what the last load left behind
_TOKENS = "weir_worker_generation_tokens_total"


class LoadError(RuntimeError):
    """An answer failed, so the figures would be wrong."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Where the load goes, as whom, and the processes behind it."""

    host: str
    port: int
    keys: tuple[str, ...]
    """API keys of as many tenants, who take turns."""
    pids: Mapping[str, int]
    worker_metrics: tuple[str, ...]
    """Metrics addresses of the workers."""
    model: str = "weir-fast"
    headers: tuple[tuple[str, str], ...] = ()
    """More headers of every request."""

    def request(self, *, max_tokens: int, stream: bool, turn: int = 0) -> bytes:
        """A request as it goes over the wire, of the tenant whose turn it is."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
        }
        key = self.keys[turn % len(self.keys)]
        return post(self.host, PATH, key, json.dumps(body).encode(), headers=self.headers)

    def connection(self) -> Connection:
        """A new connection, not opened yet."""
        return Connection(self.host, self.port)

    async def tokens_made(self) -> float:
        """Tokens that the workers have generated since their start."""
        return sum([(await accounting.scrape(address))[_TOKENS] for address in self.worker_metrics])

    async def prompt_tokens(self) -> int:
        """Tokens of the question under the model's chat template."""
        connection = self.connection()
        reply = await connection.send(self.request(max_tokens=1, stream=False))
        connection.close()
        if fault := reply.fault(1):
            raise LoadError(fault)
        return int(json.loads(reply.body)["usage"]["prompt_tokens"])


@dataclass(frozen=True, slots=True)
class Cost:
    """What a window of load cost."""

    units: float
    """Requests or tokens."""
    wall: float
    """Seconds."""
    cpu: Mapping[str, float]
    """CPU seconds by process."""
    rss: Mapping[str, int]
    """Resident bytes by process at the window's end."""
    strangers: float = 0.0
    """CPU seconds of processes that are neither the mesh's nor this one."""
    gaps: tuple[float, ...] = ()
    """Paced streams: seconds between events of a stream, inside the window."""
    events: int = 0
    """Streams: JSON events that arrived in the window."""

    @property
    def cpu_per_unit(self) -> float:
        """CPU seconds per unit over all processes."""
        return sum(self.cpu.values()) / self.units

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.units / self.wall


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


@dataclass(slots=True)
class _Tally:
    """Answers of one load; the first bad one is kept."""

    max_tokens: int
    good: int = 0
    bad: int = 0
    fault: str = ""

    def add(self, reply: Reply) -> None:
        fault = reply.fault(self.max_tokens)
        if fault:
            self.fail(fault)
        else:
            self.good += 1

    def fail(self, fault: str) -> None:
        self.bad += 1
        self.fault = self.fault or fault

    def check(self) -> None:
        """:raises LoadError: an answer failed, or none came."""
        if self.bad or not self.good:
            raise LoadError(f"{self.bad} of {self.bad + self.good} answers failed; the first: {self.fault or 'none'}")


async def requests_closed_loop(edge: Edge, *, connections: int, seconds: float, max_tokens: int) -> Cost:
    """Non-streamed requests, each connection sending the next as soon as it has the last. Units: answers."""
    tally = _Tally(max_tokens)
    async with _ClosedLoop(edge, connections, tally, stream=False):
        before, start, done = accounting.read(edge.pids), time.perf_counter(), tally.good
        await asyncio.sleep(seconds)
        after, end = accounting.read(edge.pids), time.perf_counter()
        done = tally.good - done
    tally.check()
    return Cost(done, end - start, after.since(before), after.rss, after.strangers_since(before))


async def tokens_closed_loop(edge: Edge, *, streams: int, seconds: float, max_tokens: int) -> Cost:
    """Streamed requests back to back. Units: tokens made."""
    tally = _Tally(max_tokens)
    async with _ClosedLoop(edge, streams, tally, stream=True) as loop:
        window = await _token_window(edge, seconds)
    tally.check()
    return window.cost(events=sum(window.holds(at) for reply in loop.replies for at in reply.events))


def paced_tokens(seconds: float, interval: float, spare: float = 4.0) -> int:
    """As many as last from the first stream's start to the end of such a window, with some seconds to spare: by so
    much the streams may begin apart."""
    return int((SETTLE + seconds + spare) / interval)


async def tokens_paced(edge: Edge, *, streams: int, seconds: float, max_tokens: int) -> Cost:
    """One long stream per connection on engines that pace their steps; the window lies where all of them run and none
    begins or ends. Units: tokens made, or where no worker counts them, events: one each."""
    connections = [edge.connection() for _ in range(streams)]
    begun = [asyncio.Event() for _ in connections]
    tally = _Tally(max_tokens)
    replies: list[Reply] = []

    async def run(turn: int, connection: Connection, first: asyncio.Event) -> None:
        try:
            request = edge.request(max_tokens=max_tokens, stream=True, turn=turn)
            reply = await connection.send(request, on_event=first)
            replies.append(reply)
            tally.add(reply)
        finally:
            first.set()
            connection.close()

    async with asyncio.TaskGroup() as group:
        for turn, (connection, event) in enumerate(zip(connections, begun, strict=True)):
            group.create_task(run(turn, connection, event))
        for event in begun:
            await event.wait()
        await asyncio.sleep(SETTLE)
        window = await _token_window(edge, seconds)
        ended = len(replies)
    tally.check()
    if ended:
        raise LoadError(f"{ended} streams ended inside the window: the streams began too far apart")
    inside = [[at for at in reply.events if window.holds(at)] for reply in replies]
    gaps = [late - early for events in inside for early, late in pairwise(events)]
    await asyncio.sleep(PAUSE)
    events = sum(map(len, inside))
    return replace(window, tokens=window.tokens if edge.worker_metrics else events).cost(events=events, gaps=gaps)


@dataclass(frozen=True, slots=True)
class _Window:
    """Counters at both ends of a window over running streams."""

    before: Used
    after: Used
    start: float
    end: float
    tokens: float

    def holds(self, at: float) -> bool:
        return self.start <= at < self.end

    def cost(self, *, events: int, gaps: list[float] | None = None) -> Cost:
        return Cost(
            units=self.tokens,
            wall=self.end - self.start,
            cpu=self.after.since(self.before),
            rss=self.after.rss,
            strangers=self.after.strangers_since(self.before),
            gaps=tuple(gaps or ()),
            events=events,
        )


async def _token_window(edge: Edge, seconds: float) -> _Window:
    # The workers are asked right before the window and right after it, so that being asked costs nothing in it.
    made, asked = await edge.tokens_made(), time.perf_counter()
    before, start = accounting.read(edge.pids), time.perf_counter()
    await asyncio.sleep(seconds)
    after, end = accounting.read(edge.pids), time.perf_counter()
    tokens, told = await edge.tokens_made() - made, time.perf_counter()
    return _Window(before, after, start, end, tokens * (end - start) / (told - asked))


class _ClosedLoop:
    """Runs a closed loop around a block that measures it: warmed up at the block's start, stopped at its end."""

    def __init__(self, edge: Edge, connections: int, tally: _Tally, *, stream: bool) -> None:
        self._edge = edge
        self._stream = stream
        self._count = connections
        self._tally = tally
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self.replies: list[Reply] = []
        """Streamed answers."""

    async def __aenter__(self) -> _ClosedLoop:
        self._tasks = [asyncio.create_task(self._run(turn)) for turn in range(self._count)]
        await asyncio.sleep(WARM_UP)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)
        await asyncio.sleep(PAUSE)

    async def _run(self, turn: int) -> None:
        connection = self._edge.connection()
        request = self._edge.request(max_tokens=self._tally.max_tokens, stream=self._stream, turn=turn)
        while not self._stopped:
            try:
                reply = await connection.send(request)
            except ConnectionError as error:
                self._tally.fail(str(error))
                break
            self._tally.add(reply)
            if reply.streamed:
                self.replies.append(reply)
            if self._tally.bad:
                break
        connection.close()


class Sender(Protocol):
    """Sends one request and returns the seconds to its first token."""

    def __call__(self) -> Awaitable[float]: ...


async def open_loop(send: Callable[[], Awaitable[float]], *, rate: float, seconds: float, seed: int) -> list[float]:
    """Poisson arrivals at `rate` per second, the same ones for the same seed; what each `send` returned."""
    rng = random.Random(seed)
    results: list[float] = []

    async def one() -> None:
        results.append(await send())

    async with asyncio.TaskGroup() as group:
        due = time.perf_counter()
        end = due + seconds
        while (due := due + rng.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one())
    return results


@dataclass(slots=True, eq=False)
class EdgeSender:
    """Sends one streamed request over a pool of keep-alive connections; returns seconds to its first event."""

    edge: Edge
    max_tokens: int
    _requests: Iterator[bytes] = field(init=False)
    _idle: list[tuple[Connection, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        turns = range(len(self.edge.keys))
        self._requests = cycle([self.edge.request(max_tokens=self.max_tokens, stream=True, turn=n) for n in turns])

    async def reply(self) -> Reply:
        """Send one request and give its answer, good or bad."""
        connection = self._connection()
        reply = await connection.send(next(self._requests))
        self._idle.append((connection, time.monotonic()))
        return reply

    def _connection(self) -> Connection:
        """The one that was used last; servers end those that nobody uses, and may do so at this very moment."""
        if self._idle:
            connection, used = self._idle.pop()
            if time.monotonic() - used < IDLE:
                return connection
            connection.close()
            self.close()
        return self.edge.connection()

    async def __call__(self) -> float:
        reply = await self.reply()
        if fault := reply.fault(self.max_tokens):
            raise LoadError(fault)
        return reply.events[0] - reply.started

    def close(self) -> None:
        """Drop the connections."""
        for connection, _ in self._idle:
            connection.close()
        self._idle.clear()
