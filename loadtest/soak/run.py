"""One soak: a mesh, its undisturbed answers, load and faults, and what is left when both are over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
from weir.client import Tls

from libs.auditlog.chain import decode_entry
from libs.auditlog.frame import clear_body
from libs.auditlog.layout import lines_of, segments
from libs.quota.prices import Price
from loadtest import accounting
from loadtest.rollout.site import make_version
from loadtest.soak import network
from loadtest.soak.book import Entry, Left, Resident, Seen, Slow, Verdict, verdict
from loadtest.soak.faults import DURABLE, SLOW, Fault, faults
from loadtest.soak.inject import Injector, disks
from loadtest.soak.load import MODEL, Clients, Mix, Where, question
from services.cli.mesh.site import locate
from services.cli.mesh.up import Options, make_plan
from tests.support.mesh import ROOT, Mesh

PROFILE = "replicas"
TENANT = "soak"
CAP = 10**9
"""Micro-dollars a day that the tenant may spend: what is left of them tells what the limiter has counted."""
CANDIDATE = "2"
QUIET = 35.0
"""Seconds within which leases, streams and grants must end once nothing is asked any more: a lease's 20 and some."""
LEDGER = 4.0
"""Seconds between two looks at what the limiter has written."""
SHARES = 12.0
"""Seconds after which no gateway holds a share any more."""
_PRICE = Price(input=100_000, output=400_000)
"""Of weir-fast in deploy/seed."""
_ROWS_PRICE = Price(0, 0, row=200_000)
"""Of cancer-gbdt there."""
LOOK = 5.0
"""Seconds between two looks at the memory of processes."""
_SPEND_LEFT = re.compile(r'"spend";r=(\d+)')
_CLOCKS = Path(__file__).with_name("clocks")

Say = Callable[[str], None]
Planned = Callable[[Clients, Injector, Say], Awaitable[Counter[str]]]
"""Does something to a mesh under load, and says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, how much, from which seed."""

    seconds: float
    seed: int
    mix: Mix = field(default_factory=Mix)
    questions: int = 3
    tokens: int = 48
    step: float = 0.04
    """Seconds of an engine's step: slow enough that there is something to cut, and that a small machine is not what is
    measured."""
    rollouts: bool = True
    settings: tuple[str, ...] = ()
    """Overrides of the mesh."""
    every_length: bool = True
    """See `Clients.references`."""
    planned: Planned | None = None
    """What is done in the place of faults at random."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a soak found."""

    verdict: Verdict
    faults: Mapping[str, int]
    """How many of each kind."""
    not_done: Mapping[str, str]
    """Kinds of faults that could not be done here, and why."""


def soak(folder: Path, plan: Plan, say: Say) -> Outcome:
    """Runs one in an empty folder."""
    clocks, state = folder / "clocks", folder / "mesh"
    clocks.mkdir(parents=True)
    if network.inside():
        network.prepare()
    with _environment(WEIR_SOAK_CLOCKS=str(clocks), PYTHONPATH=_first(_CLOCKS)):
        mesh = Mesh(
            state, profile=PROFILE, settings=(f"worker.simulated.step_base={plan.step}", *plan.settings), seconds=240
        )
        services = _services(mesh)
        with disks(state, [name for name, service in services.items() if service in DURABLE]), mesh:
            os.environ["GRPC_XDS_BOOTSTRAP"] = mesh.env["GRPC_XDS_BOOTSTRAP"]
            return asyncio.run(_Soak(mesh, services, Injector(state, clocks), folder, plan, say).run())


def _services(mesh: Mesh) -> dict[str, str]:
    """Service by process of the mesh that will be."""
    plan = make_plan(locate(mesh.environ), Options(profile=PROFILE), root=ROOT)
    return {unit.name: unit.process.service for unit in plan.units}


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _first(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))


class _Soak:
    def __init__(
        self, mesh: Mesh, services: Mapping[str, str], injector: Injector, folder: Path, plan: Plan, say: Say
    ) -> None:
        self._mesh, self._services, self._injector = mesh, services, injector
        self._folder, self._plan, self._say = folder, plan, say
        self._over = asyncio.Event()
        self._stuck: dict[str, float] = {}
        """Slots in use when it was last looked, by process and gauge."""
        self._disturbed: list[Slow] = []
        self._resident: list[Resident] = []

    async def run(self) -> Outcome:
        plan = self._plan
        where = await asyncio.to_thread(self._prepare)
        kinds = self._injector.kinds()
        done: Counter[str] = Counter()
        async with _clients(where, plan) as clients:
            await self._answered(clients)
            references = await clients.references(every_length=plan.every_length)
            self._say(f"{plan.questions} questions answered undisturbed; seed {plan.seed}")
            async with asyncio.TaskGroup() as group:
                group.create_task(clients.run(plan.mix.kinds(), self._over))
                group.create_task(self._look())
                if plan.rollouts:
                    group.create_task(self._roll_out())
                try:
                    if plan.planned is not None:
                        done += await plan.planned(clients, self._injector, self._say)
                    else:
                        await self._disturb(clients, [kind for kind, why in kinds.items() if not why], done)
                finally:
                    self._over.set()
            self._say(f"{clients.now:7.1f} s  the load is over; what is left?")
            left = await self._left(clients)
            entries = await self._entries(clients.seen)
            left = replace(left, spend_off=await self._spend_off(where, entries))
        told = verdict(clients.seen, entries, references, left, self._disturbed, self._resident)
        told.faults.extend(differences := await self._differences())
        told.figures["usage_reconciles"] = int(not differences)
        return Outcome(told, dict(done), {kind: why for kind, why in kinds.items() if why})

    def _prepare(self) -> Where:
        """A tenant of whom all is counted from its first token on, and a version to roll out."""
        weir = self._mesh.weir
        weir("set", "tenants", TENANT, "plan=paid", "max_deadline=600s", "--create", "--reason", "the soak")
        limits = ("requests_per_minute=1000000", "tokens_per_minute=1000000000", "concurrency=1000")
        spend = (f"spend_microusd={CAP}", "spend_window=86400s")
        weir("set", "limits", f"{TENANT}/*", *limits, *spend, "--create", "--reason", "the soak")
        budget = (f"monthly_microusd={CAP}", "enforcement=BUDGET_ENFORCEMENT_SOFT")
        weir("set", "budgets", TENANT, *budget, "--create", "--reason", "the soak")
        key = weir("keys", "create", TENANT, "--scope", "inference", "--scope", "embeddings").stdout.strip()
        if self._plan.rollouts:
            make_version(self._folder / "candidate", {})
            push = ("models", "push", str(self._folder / "candidate"), "--name", MODEL, "--version", CANDIDATE)
            weir(*push, "--pool", "demo", "--tier", "fast", seconds=120)
        env = self._mesh.env
        tls = Tls(ca=env["WEIR_CA"], cert=env["WEIR_CLIENT_CERT"], key=env["WEIR_CLIENT_KEY"])
        return Where(edge=env["WEIR_EDGE_URL"], key=key, tls=tls)

    async def _answered(self, clients: Clients) -> None:
        """Until the new key is known everywhere: answered many times in a row."""
        async with asyncio.timeout(60):
            row = 0
            while row < 8:
                row = row + 1 if await clients.answered() else 0

    async def _disturb(self, clients: Clients, kinds: Collection[str], done: Counter[str]) -> None:
        drawn: Iterator[Fault] = faults(self._plan.seed, self._services, kinds)
        end = clients.now + self._plan.seconds
        while clients.now < end:
            fault = next(drawn)
            await asyncio.sleep(min(fault.pause, max(0.0, end - clients.now)))
            began, failed = clients.now, clients.failed
            try:
                await asyncio.to_thread(self._injector.inflict, fault)
                ended = clients.now
                recovery = await asyncio.to_thread(self._injector.wait_ready)
            except LookupError as error:
                self._say(f"{began:7.1f} s  {fault}: {error}")
                continue
            done[fault.kind] += 1
            slow = self._services[fault.targets[0]] if fault.kind == SLOW else ""
            self._disturbed.append(Slow(began, ended if slow else clients.now, slow))
            failed = clients.failed - failed
            self._say(f"{began:7.1f} s  {fault}; ready {recovery:.1f} s later; {failed} requests failed meanwhile")

    async def _look(self) -> None:
        """At the memory of every process, now and then."""
        while not self._over.is_set():
            self._resident += await asyncio.to_thread(self._injector.resident)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._over.wait()

    async def _roll_out(self) -> None:
        """Rollouts begin and are given up, one after the other."""
        while not self._over.is_set():
            for words in (
                ("start", MODEL, CANDIDATE, "--steps", "10,50", "--step-duration", "5s", "--step-samples", "5"),
                ("abort", MODEL),
            ):
                # Refused while nobody can decide, or because it was rolled back meanwhile: then the next one.
                await asyncio.to_thread(self._mesh.weir, "rollout", *words, "--reason", "the soak", check=False)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(10):
                        await self._over.wait()

    async def _left(self, clients: Clients) -> Left:
        """What the mesh holds when all that ends by itself has ended."""
        ready = True
        try:
            await asyncio.to_thread(self._injector.wait_ready)
        except TimeoutError:
            ready = False
        end = clients.now + QUIET
        while (held := await self._held()) != (0, 0, 0) and clients.now < end:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.5)
        for gauge, value in self._stuck.items():
            self._say(f"  ! {gauge}: {value:g}")
        verified = await asyncio.to_thread(self._mesh.weir, "audit", "verify", check=False, seconds=120)
        return Left(*held, audit_verifies=verified.returncode == 0, all_ready=ready and self._injector.ready())

    async def _held(self) -> tuple[int, int, int]:
        """Slots, KV blocks and leases in use."""
        services = self._mesh.file()["services"]
        pages: dict[str, list[dict[str, float]]] = {}
        self._stuck = {}
        for name, service in self._services.items():
            if service in _HOLDS:
                with contextlib.suppress(OSError):
                    page = await accounting.scrape(services[name]["metrics"])
                    pages.setdefault(service, []).append(page)
                    for gauge, value in page.items():
                        if value and gauge.partition("{")[0] in _HOLDS[service]:
                            self._stuck[f"{name} {gauge}"] = value
        slots = sum(self._stuck.values())
        blocks = sum(map(_blocks_in_use, pages.get("worker", ())))
        # Each limiter knows the leases of all.
        leases = max((page.get(_LEASES, 0.0) for page in pages.get("ratelimit", ())), default=0.0)
        return int(slots), blocks, int(leases)

    async def _entries(self, seen: list[Seen]) -> list[Entry]:
        """The log's records of requests, once all of these are there, or none comes any more."""
        wanted = {request for each in seen for request in each.requests}
        folder = self._mesh.state / "data" / "audit" / "log"
        entries: list[Entry] = []
        for _ in range(40):
            before, entries = len(entries), await asyncio.to_thread(_read, folder)
            if wanted <= {each.request for each in entries} and before == len(entries):
                break
            await asyncio.sleep(0.5)
        return entries

    async def _differences(self) -> list[str]:
        """What `weir usage reconcile` finds once the limiter has written what it knows, which it does every 5 s."""
        lines: list[str] = []
        for _ in range(4):
            done = await asyncio.to_thread(self._mesh.weir, "usage", "reconcile", check=False, seconds=120)
            if not done.returncode:
                return []
            lines = (done.stdout + done.stderr).splitlines()
            await asyncio.sleep(LEDGER)
        return [f"weir usage reconcile: {line}" for line in lines]

    async def _spend_off(self, where: Where, entries: list[Entry]) -> int:
        """Micro-dollars that the limiter has counted beyond what was billed."""
        await asyncio.sleep(SHARES)
        billed = sum(each.cost for each in entries if each.tenant == TENANT)
        headers = {"authorization": f"Bearer {where.key}"}
        body = {"model": MODEL, "input": question(0)}
        async with httpx2.AsyncClient(base_url=where.edge, headers=headers, trust_env=False, timeout=20.0) as http:
            for _ in range(200):  # the edge answers most by itself, which tells no numbers
                answer = await http.post("/v1/embeddings", json=body)
                if found := _SPEND_LEFT.search(answer.headers.get("ratelimit", "")):
                    return CAP - int(found[1]) - billed
        raise RuntimeError(f"the limiter tells nobody what is left: {answer.status_code}")


_LEASES = "weir_ratelimit_leases"
_HOLDS: Mapping[str, Collection[str]] = {
    "gateway": {"weir_gateway_active_generations"},
    "worker": {
        "weir_worker_num_requests_running",
        "weir_worker_num_requests_waiting",
        "weir_worker_num_requests_swapped",
    },
    "admission": {"weir_admission_held_requests", "weir_admission_queue_depth"},
    "ratelimit": (),
}
"""Gauges of what a request holds, by service."""


@contextlib.asynccontextmanager
async def _clients(where: Where, plan: Plan) -> AsyncIterator[Clients]:
    clients = Clients(where, questions=plan.questions, tokens=plan.tokens, seed=plan.seed)
    try:
        yield clients
    finally:
        await clients.close()


def _blocks_in_use(page: Mapping[str, float]) -> int:
    used, free = page["weir_worker_kv_cache_usage_perc"], page["weir_worker_kv_cache_free_blocks"]
    return round(free * used / (1 - used)) if used < 1 else 1


def _read(folder: Path) -> list[Entry]:
    """Every request's record of the log on the disk."""
    found = []
    for _, path in segments(folder):
        for line in lines_of(path)[0]:
            record = clear_body(decode_entry(line).record)
            if (told := record.get("request")) is None:
                continue
            prompt, tokens = int(told.get("prompt_tokens", 0)), int(told.get("completion_tokens", 0))
            cost = _PRICE.cost(prompt + tokens, prompt, int(told.get("cached_prompt_tokens", 0)))
            rows = int(told.get("rows", 0))
            found.append(
                Entry(
                    *(record["id"], told.get("tenant", ""), told["outcome"], tokens),
                    cost + _ROWS_PRICE.of_rows(rows),
                    rows,
                )
            )
    return found
