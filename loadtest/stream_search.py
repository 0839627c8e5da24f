"""How many paced streams a mesh carries on this machine, generator included: found by doubling, then by halving.

So many streams hold when the engines keep their pace for all of them and 99 of 100 gaps between a stream's events are
at most 100 ms.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise

from loadtest import accounting
from loadtest.figures import percentile
from loadtest.http_client import Connection, Reply
from loadtest.scenarios import SETTLE, Edge, LoadError

LIMIT = 0.1
"""Seconds between a stream's events, at the 99th percentile."""
PACE = 0.95
"""Of the tokens that the engines would make at their pace, how many they must make."""
CLOSE = 1.06
"""How far the largest number that held and the least that did not may be apart."""
_BEGIN = 10.0  # seconds for every stream to begin
_SPARE = 2.0  # seconds that the first to begin goes on for after the last was looked at
_EMPTY = 15.0  # seconds for the workers to be done with streams that their readers left
_RUNNING = ("weir_worker_num_requests_running", "weir_worker_num_requests_waiting")


@dataclass(frozen=True, slots=True)
class Probe:
    """So many streams for a while."""

    streams: int
    itl_p99: float = 0.0
    """Seconds."""
    pace: float = 0.0
    """Tokens made, over those that there should be."""
    fault: str = ""

    @property
    def holds(self) -> bool:
        """The mesh carries them."""
        return not self.fault and self.itl_p99 <= LIMIT and self.pace >= PACE

    def __str__(self) -> str:
        """For a line of progress."""
        found = self.fault or f"ITL p99 {self.itl_p99 * 1e3:.0f} ms, {self.pace:.0%} of the pace"
        return f"{self.streams} streams: {found}"


def next_count(held: int, failed: int | None, first: int) -> int | None:
    """The number to try next; None when the answer is known. Pure.

    :param held: the largest that held, 0 for none; `failed`: the least that did not.
    """
    if failed is None:
        return 2 * held or first
    middle = (held + failed) // 2
    return middle if middle > held and failed > held * CLOSE else None


async def search(
    probe: Callable[[int], Awaitable[Probe]], *, first: int, budget: float, clock: Callable[[], float] = time.monotonic
) -> list[Probe]:
    """Every probe, in order; none begins after `budget` seconds. A number that does not hold is tried once more, since
    a neighbour on the machine can only make it worse."""
    began = clock()
    probes: list[Probe] = []
    held, failed = 0, None
    while (streams := next_count(held, failed, first)) is not None and clock() - began < budget:
        found = await probe(streams)
        probes.append(found)
        if not found.holds and clock() - began < budget:
            found = await probe(streams)
            probes.append(found)
        if found.holds:
            held = streams
        else:
            failed = streams
    return probes


def most(probes: list[Probe]) -> Probe:
    """The largest that held; of 0 streams when none did. Pure."""
    return max((each for each in probes if each.holds), key=lambda each: each.streams, default=Probe(0))


def probe_tokens(seconds: float, interval: float) -> int:
    """What the streams of a probe of so many seconds ask for: they outlast it, however late the last one begins."""
    return int((_BEGIN + SETTLE + seconds + _SPARE) / interval)


async def probe(edge: Edge, streams: int, *, interval: float, seconds: float, max_tokens: int) -> Probe:
    """Run so many streams at once, look at them for a while, and leave them.

    :raises LoadError: they ask for what the mesh refuses whatever its load (400).
    """
    replies = [Reply() for _ in range(streams)]
    begun = [asyncio.Event() for _ in replies]
    connections = [edge.connection() for _ in replies]
    tasks = [
        asyncio.create_task(_run(edge, max_tokens, turn, *each))
        for turn, each in enumerate(zip(connections, begun, replies, strict=True))
    ]
    try:
        async with asyncio.timeout(_BEGIN):
            for event in begun:
                await event.wait()
        await asyncio.sleep(SETTLE)
        made, start = await edge.tokens_made(), time.perf_counter()
        await asyncio.sleep(seconds)
        made, end = await edge.tokens_made() - made, time.perf_counter()
    except TimeoutError:
        late = sum(not event.is_set() for event in begun)
        return Probe(streams, fault=f"{late} had not begun after {_BEGIN:g} s")
    finally:
        for connection in connections:
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _empty(edge)
    if broken := [reply for reply in replies if not reply.events or reply.ended > 0]:
        told = f"{len(broken)} were refused or ended, one with {broken[0].status}: {broken[0].body[-200:]!r}"
        if broken[0].status == 400:
            raise LoadError(told)
        return Probe(streams, fault=told)
    gaps = [late - early for reply in replies for early, late in pairwise(reply.events) if start <= late < end]
    pace = made * interval / (streams * (end - start))
    return Probe(streams, percentile(gaps, 0.99) if gaps else float("inf"), pace)


async def _run(
    edge: Edge, max_tokens: int, turn: int, connection: Connection, first: asyncio.Event, reply: Reply
) -> None:
    try:
        await connection.send(edge.request(max_tokens=max_tokens, stream=True, turn=turn), on_event=first, reply=reply)
    finally:
        first.set()


async def _empty(edge: Edge) -> None:
    """Until the workers have nothing left to do.

    :raises TimeoutError: they never have.
    """
    async with asyncio.timeout(_EMPTY):
        while any([await _running(address) for address in edge.worker_metrics]):  # noqa: ASYNC110 - other processes'
            await asyncio.sleep(0.1)


async def _running(address: str) -> float:
    samples = await accounting.scrape(address)
    return sum(value for name, value in samples.items() if name.partition("{")[0] in _RUNNING)
