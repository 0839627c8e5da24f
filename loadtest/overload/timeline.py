"""A drill as an operator sees it: one line a second, who asked, who was served, who was refused and why, and what the
mesh says of itself. Rows are pure; `Watcher` fills them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weir.registry.v1 import registry_pb2, registry_pb2_grpc

from libs.errors import WeirError
from libs.rpc import make_channel
from loadtest.figures import percentile
from loadtest.overload.generator import Generator
from loadtest.overload.samples import OK, Sample, decode, failed, refused
from loadtest.overload.setting import Site, by_label
from simulation.workload import TenantLoad, Workload

SHORT = {
    "REJECTED_OVERLOAD": "edge",
    "REJECTED_DEADLINE": "late",
    "REJECTED_QUEUE_FULL": "full",
    "REJECTED_NO_CAPACITY": "none",
    "EVICTED_SHED": "shed",
    "EVICTED_TTL": "ttl",
    "EVICTED_DEADLINE": "dead",
    "QUOTA_REQUESTS": "rpm",
    "QUOTA_TOKENS": "tpm",
    "QUOTA_CONCURRENCY": "conc",
    "QUOTA_SPEND": "spend",
    "WORKER_LOST": "lost",
    "NO_WORKERS": "away",
}
"""Reasons in the timeline's own words; the legend explains them."""
LEGEND = """
ask: requests sent in that second; ok: answered whole in it; p95: their time to first token in ms
refused in it, by reason: edge = shed at the edge before it was read; late = its first token would miss the objective;
  full = the queue is; shed = gave way to a higher class; ttl = waited too long; dead = its deadline came meanwhile;
  away = no worker was there; rpm, tpm, conc, spend = the tenant's own limits; FAIL = anything else
q: requests that wait, by class; wait: what the next one would, by class; shed: share of a tenant's requests that the
  edge refuses; pressure: the longest wait over the objective for the first token; workers: those that take work"""


@dataclass(slots=True)
class TenantSecond:
    """One tenant in one second."""

    asked: int = 0
    served: int = 0
    first: list[float] = field(default_factory=list)
    """Times to first token of what was answered in this second, in seconds."""
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Second:
    """The mesh in one second."""

    at: int
    """Seconds since the run's start."""
    tenants: dict[str, TenantSecond] = field(default_factory=dict)
    queued: dict[str, int] = field(default_factory=dict)
    """By class; only those that wait."""
    wait: dict[str, float] = field(default_factory=dict)
    """By class, seconds, as the pool's level says; empty while nothing is shed."""
    shed: dict[str, float] = field(default_factory=dict)
    """By tenant."""
    pressure: float = 0.0
    workers: int = 0
    notes: list[str] = field(default_factory=list)
    """What the drill did."""

    def tenant(self, name: str) -> TenantSecond:
        """Its part, made when it is missing."""
        return self.tenants.setdefault(name, TenantSecond())

    def add(self, sample: Sample) -> None:
        """A request that ended in this second."""
        own = self.tenant(sample.tenant)
        if sample.outcome == OK:
            own.served += 1
            if sample.ttft is not None:
                own.first.append(sample.ttft)
        elif refused(sample):
            own.refused[sample.outcome] += 1
        elif failed(sample):
            own.failed[sample.outcome] += 1
        own.degraded.update(sample.degraded)


def offered(loads: Sequence[TenantLoad], seconds: float, seed: int) -> dict[int, Counter[str]]:
    """How many requests each tenant sends in each second: the run's own arrivals, made again."""
    found: dict[int, Counter[str]] = {}
    for arrival in Workload(loads, seconds, seed).arrivals():
        found.setdefault(int(arrival.at), Counter())[arrival.tenant] += 1
    return found


def header(tenants: Sequence[str]) -> str:
    """The two lines above the timeline."""
    columns = "".join(f" | {name:^{_WIDTH}}" for name in tenants)
    names = "".join(f" | {'ask':>4}{'ok':>4}{'p95':>6}  {'refused':<{_WIDTH - 16}}" for _ in tenants)
    return f"{'':>6}{columns} | mesh\n{'time':>6}{names} | queue, wait, shed, pressure, workers"


def line(second: Second, tenants: Sequence[str]) -> str:
    """One second."""
    cells = "".join(f" | {_cell(second.tenant(name))}" for name in tenants)
    text = f"{second.at:>4} s{cells} | {_mesh(second)}"
    return "\n".join([*(f"{second.at:>4} s ** {note}" for note in second.notes), text])


_WIDTH = 40


def _cell(own: TenantSecond) -> str:
    p95 = f"{percentile(own.first, 0.95) * 1e3:.0f}" if own.first else "-"
    refusals = " ".join(f"{SHORT.get(name, name.lower())} {n}" for name, n in own.refused.most_common())
    if own.failed:
        refusals = f"{refusals} FAIL {sum(own.failed.values())} ({own.failed.most_common(1)[0][0].lower()})".strip()
    return f"{own.asked:>4}{own.served:>4}{p95:>6}  {refusals:<{_WIDTH - 16}}"


def _mesh(second: Second) -> str:
    parts = [f"q {_pairs(second.queued)}"]
    if second.wait:
        parts.append("wait " + " ".join(f"{name} {seconds:.1f}s" for name, seconds in second.wait.items()))
    if second.shed:
        parts.append("shed " + " ".join(f"{tenant} {share:.0%}" for tenant, share in second.shed.items()))
    parts.append(f"pressure {second.pressure:.1f}")
    degraded: Counter[str] = Counter()
    for own in second.tenants.values():
        degraded.update(own.degraded)
    if degraded:
        parts.append("degraded " + _pairs(degraded))
    parts.append(f"workers {second.workers}")
    return ", ".join(parts)


def _pairs(values: Mapping[str, int]) -> str:
    return " ".join(f"{name} {n}" for name, n in values.items()) or "0"


class Watcher:
    """Follows a run while it happens and prints its timeline."""

    def __init__(
        self,
        site: Site,
        loads: Sequence[TenantLoad],
        *,
        seconds: float,
        seed: int,
        ttft: float,
        say: Callable[[str], None],
        events: Mapping[int, Callable[[], str]] | None = None,
    ) -> None:
        """`ttft` is the objective in seconds. `events`: what the drill does at which second; each says what it did."""
        self._site = site
        self._tenants = list(dict.fromkeys(load.tenant for load in loads))
        self._offered = offered(loads, seconds, seed)
        self._seconds = seconds
        self._ttft = ttft
        self._say = say
        self._events = dict(events or {})
        self.rows: list[Second] = []

    def __call__(self, generator: Generator) -> None:
        """Watch until the generator has ended."""
        asyncio.run(self._watch(generator))

    async def _watch(self, generator: Generator) -> None:
        file = self._site.mesh.file()
        tls = self._site.mesh.operator()
        registry = file["services"]["registry"]["address"]
        self._say(header(self._tenants))
        tail = Tail(generator.out)
        channel = make_channel(registry, tls=tls, server_name="registry.weir.internal", translate_errors=True)
        async with channel:
            stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
            while generator.running:
                number = len(self.rows)
                row = Second(number)
                if (event := self._events.get(number)) is not None:
                    await asyncio.sleep(max(0.0, number - generator.now))
                    row.notes.append(await asyncio.to_thread(event))
                await asyncio.sleep(max(0.0, number + 1 - generator.now))
                for tenant, asked in self._offered.get(number, Counter()).items():
                    row.tenant(tenant).asked = asked
                for sample in tail.new():
                    row.add(sample)
                await self._ask(row, stub)
                self.rows.append(row)
                self._say(line(row, self._tenants))

    async def _ask(self, row: Second, stub: Any) -> None:
        admission = await self._site.scrape("admission")
        queued = by_label(admission, "weir_admission_queue_depth", "queue_class")
        row.queued = {name: int(n) for name, n in queued.items() if n}
        live = by_label(admission, "weir_admission_worker_free_sequences", "worker")
        row.workers = len(live)
        try:
            answer = await stub.List(registry_pb2.ListRequest(kinds=["PoolLevel"]), timeout=1.0)
        except WeirError:
            row.notes.append("the registry did not answer")
            return
        for level in (each.level for each in answer.resources):
            for each in level.classes:
                row.wait[each.queue_class] = each.wait.seconds + each.wait.nanos / 1e9
            for tenant in level.tenants:
                row.shed[tenant.tenant] = tenant.shed
        row.pressure = max(row.wait.values(), default=0.0) / self._ttft


class Tail:
    """The samples that were written to a file since it was asked last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""

    def new(self) -> list[Sample]:
        """All whole lines that are new, the header left out."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [decode(each) for each in lines if b'"weir"' not in each]


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation of a drill."""

    what: str
    found: str
    held: bool
    timed: bool = False
    """It hangs on how fast this machine is, not on decisions alone."""


def verdict(checks: Iterable[Check]) -> tuple[str, bool]:
    """The last lines of a drill, and whether everything held."""
    checks = list(checks)
    lines = [f"  {'held' if check.held else 'MISSED':<7}{check.what}: {check.found}" for check in checks]
    held = all(check.held for check in checks)
    lines.append("verdict: as expected" if held else "verdict: NOT as expected")
    return "\n".join(lines), held
