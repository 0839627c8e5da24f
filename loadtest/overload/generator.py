"""The load generator: one process that sends a workload and writes what became of each request, as it happens.

    with Generator(run, out) as generator: … watch … ; generator.join()

Open loops are sent when they are due, whatever the answers are; closed loops send when they have one. The process is a
spawned child, so that what the caller does meanwhile (scraping, printing) does not delay it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import uvloop

from libs.supervisor.leash import end_with
from loadtest.overload.samples import OK, Sample, encode
from loadtest.overload.senders import Answer, Route, Sender
from simulation.workload import Arrival, Client, TenantLoad, Workload

LEAD = 1.5
"""Seconds between the start of the process and the first request: Python's start and the channels' connecting."""
_LINGER = 30.0  # seconds that answers may take beyond the last arrival's own time-out


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A workload and where each of its loads goes. Picklable."""

    loads: tuple[TenantLoad, ...]
    routes: Mapping[str, Route]
    """By the load's label."""
    seconds: float
    """No request is sent after this."""
    seed: int = 1
    model: str = "weir-quality"
    environ: Mapping[str, str] = field(default_factory=dict)
    """Set in the generator's process: GRPC_XDS_BOOTSTRAP for routes over xDS."""
    trace: bool = False
    """Keep the times of all events."""
    header: Mapping[str, Any] = field(default_factory=dict)
    """For the first line of the file, see simulation/README.md."""
    begin: float = 0.0
    """`time.time()` of second 0; 0: LEAD from now on."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What the generator itself used."""

    cpu: float
    """Cores."""
    late_p99: float
    """Seconds between when an open-loop request was due and when it was sent."""


class Generator:
    """A run in a process of its own. Use as a context manager; leaving it ends the process."""

    def __init__(self, run: Run, out: Path) -> None:
        context = multiprocessing.get_context("spawn")
        begin = run.begin or time.time() + LEAD
        self.begin = begin
        """`time.time()` of the run's second 0."""
        self.out = out
        out.write_bytes(b"")
        self._effort = out.with_suffix(".effort")
        arguments = (os.getpid(), run, begin, str(out), str(self._effort))
        self._process = context.Process(target=_main, args=arguments, daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()

    @property
    def now(self) -> float:
        """Seconds since the run's start."""
        return time.time() - self.begin

    @property
    def running(self) -> bool:
        """The process has not ended."""
        return self._process.is_alive()

    def join(self) -> Effort:
        """Wait for the end.

        :raises RuntimeError: the process failed.
        """
        self._process.join()
        if self._process.exitcode != 0:
            raise RuntimeError(f"the load generator ended with {self._process.exitcode}")
        return Effort(**json.loads(self._effort.read_text()))


def _main(parent: int, run: Run, begin: float, out: str, effort: str) -> None:
    end_with(parent)
    os.environ.update(run.environ)
    with open(out, "ab", buffering=0) as file:
        if run.header:
            file.write(json.dumps({"weir": "run", **run.header}).encode() + b"\n")
        uvloop.run(_Driver(run, begin, file).drive())
    Path(effort).write_text(json.dumps(_Driver.effort))


class _Driver:
    effort: dict[str, float] = {}  # noqa: RUF012 - of the one run that this process makes

    def __init__(self, run: Run, begin: float, file: BinaryIO) -> None:
        self._run = run
        self._begin = begin
        self._file = file
        self._late: list[float] = []
        self._labels = {load.tenant + load.queue_class: load.label for load in run.loads}
        self._senders: dict[str, Sender] = {}
        self._chance = random.Random(f"{run.seed}:clients")

    async def drive(self) -> None:
        run = self._run
        self._start = time.perf_counter() + (self._begin - time.time())
        self._senders = {
            load.label: run.routes[load.label].sender(model=run.model, seed=f"{run.seed}:{load.label}")
            for load in run.loads
        }
        await asyncio.gather(*(sender.open() for sender in self._senders.values()))
        cpu = time.process_time()
        workload = Workload(run.loads, run.seconds, run.seed)
        try:
            async with asyncio.TaskGroup() as group:
                for client in workload.clients():
                    group.create_task(self._closed(client))
                for arrival in workload.arrivals():
                    await self._until(arrival.at)
                    self._late.append(self._now() - arrival.at)
                    group.create_task(self._send(arrival))
        finally:
            for sender in self._senders.values():
                await sender.close()
        late = sorted(self._late)
        _Driver.effort = {
            "cpu": (time.process_time() - cpu) / max(1e-9, self._now()),
            "late_p99": late[int(len(late) * 0.99)] if late else 0.0,
        }

    def _now(self) -> float:
        return time.perf_counter() - self._start

    async def _until(self, at: float) -> None:
        if (wait := at - self._now()) > 0:
            await asyncio.sleep(wait)

    async def _closed(self, client: Client) -> None:
        arrival = client.next(0.0)
        while arrival is not None:
            await self._until(arrival.at)
            answer = await self._send(arrival)
            route = self._run.routes[_label(arrival)]
            if answer.outcome != OK and route.pause:
                await asyncio.sleep(self._chance.uniform(0.0, 2.0 * route.pause))
            arrival = client.next(self._now())

    async def _send(self, arrival: Arrival) -> Answer:
        label = _label(arrival)
        at = self._now()
        answer = await self._senders[label].send(arrival, timeout=arrival.timeout)
        events = answer.events
        sample = Sample(
            at=round(at, 5),
            tenant=arrival.tenant,
            prompt_tokens=answer.prompt_tokens or arrival.prompt_tokens,
            output_tokens=arrival.output_tokens,
            max_tokens=arrival.max_tokens,
            outcome=answer.outcome,
            ttft=round(events[0], 5) if events else None,
            e2e=round(answer.ended, 5),
            queue_class=arrival.queue_class,
            weight=arrival.weight,
            timeout=arrival.timeout,
            request_id=arrival.request_id,
            delivered_tokens=answer.tokens,
            retry_after=answer.retry_after,
            load=label,
            status=answer.status,
            late=round(at - arrival.at, 5),
            itl_p95=answer.itl_p95,
            degraded=answer.degraded,
            zone=answer.zone,
            queued=answer.queued,
            counted_prompt=answer.prompt_tokens,
            events=tuple(round(each, 4) for each in events) if self._run.trace else (),
        )
        self._file.write(encode(sample))
        return answer


def _label(arrival: Arrival) -> str:
    """The label of its load: request ids begin with it."""
    return (arrival.client or arrival.request_id).rpartition("-")[0]


def run_to_end(run: Run, out: Path) -> Effort:
    """Run and wait."""
    with Generator(run, out) as generator:
        return generator.join()


def check(effort: Effort) -> None:
    """Say so when the generator was too busy to be trusted."""
    if effort.cpu > 0.5 or effort.late_p99 > 0.05:
        sys.stderr.write(
            f"the load generator used {effort.cpu:.0%} of a core and was up to {effort.late_p99 * 1e3:.0f} ms late "
            "(p99): its figures are doubtful\n"
        )
