"""How long new work is still sent to a worker that was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from loadtest import accounting
from loadtest.http_client import Reply
from loadtest.scenarios import Edge, EdgeSender, LoadError, open_loop

RATE = 40.0  # requests per second
MAX_TOKENS = 16
_BEFORE = 1.0  # seconds of load before the kill
_AFTER = 2.0  # and after it
_LOST = "weir_admission_workers_lost_total"
_WAIT = 10.0


@dataclass(frozen=True, slots=True)
class Loss:
    """One kill. Milliseconds since the SIGKILL was sent."""

    noticed_ms: float
    """Until admission had dropped the worker from its fleet: no grant names it from here on. Seen by asking
    admission's metrics over and over, so an upper bound by the time of one asking."""
    resolution_ms: float
    """The longest time between two askings."""
    last_answer_ms: float
    """Until the last request was sent that was still given to the killed worker, as the zone in its answer's headers
    tells, its replacement not yet having been started; 0 when there was none."""
    failed: int
    """Requests with a bad answer."""
    slowest_ms: float
    """The slowest time to first token of requests that began within 0.1 s before the kill or after it."""


async def kill_worker(
    edge: Edge, *, pid: int, admission_metrics: str, seed: int, replaced: Callable[[], Awaitable[float]]
) -> Loss:
    """SIGKILL the worker of that pid, in zone-a, under light open-loop load, and watch.

    `replaced` waits until the worker is back and gives the time (seconds since the epoch) at which its new process was
    started.

    :raises LoadError: admission never noticed.
    """
    sender = EdgeSender(edge, max_tokens=MAX_TOKENS)
    replies: list[Reply] = []
    broken = 0

    async def send() -> float:
        nonlocal broken
        try:
            replies.append(await sender.reply())
        except ConnectionError:
            broken += 1
        return 0.0

    async with asyncio.TaskGroup() as group:
        group.create_task(open_loop(send, rate=RATE, seconds=_BEFORE + _AFTER, seed=seed))
        await asyncio.sleep(_BEFORE)
        lost = _losses(await accounting.scrape(admission_metrics))
        killed, killed_at = time.perf_counter(), time.time()
        os.kill(pid, signal.SIGKILL)
        noticed, resolution = await _watch(admission_metrics, lost, killed)
    sender.close()
    if not replies:
        raise LoadError("no request was answered")
    new_process = killed + (await replaced() - killed_at)
    late = [r.started for r in replies if killed < r.started < new_process and r.header("x-weir-zone") == "zone-a"]
    near = [r.events[0] - r.started for r in replies if r.events and r.started > killed - 0.1]
    return Loss(
        noticed_ms=(noticed - killed) * 1e3,
        resolution_ms=resolution * 1e3,
        last_answer_ms=max(((at - killed) * 1e3 for at in late), default=0.0),
        failed=broken + sum(bool(reply.fault(MAX_TOKENS)) for reply in replies),
        slowest_ms=max(near, default=0.0) * 1e3,
    )


async def _watch(address: str, lost: float, since: float) -> tuple[float, float]:
    """When admission had counted one more lost worker, and the longest time between two looks."""
    longest, last = 0.0, since
    while last - since < _WAIT:
        found = _losses(await accounting.scrape(address))
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if found > lost:
            return now, longest
    raise LoadError(f"admission did not notice the loss of its worker within {_WAIT} s")


def _losses(samples: Mapping[str, float]) -> float:
    return sum(value for name, value in samples.items() if name.startswith(_LOST))
