"""The mesh that alerts are drilled in, and load on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import MappingProxyType

import psutil

from libs.registry import EtcdStore
from loadtest import accounting
from loadtest.alerts.shortened import INTERVAL, shortened
from loadtest.alerts.watch import Watch
from loadtest.http_client import Connection, post
from loadtest.overload.senders import PATH, TOKEN_IDS
from loadtest.rollout.site import POOL, make_version
from loadtest.soak import network
from loadtest.soak.inject import Injector, disks
from services.cli.mesh.monitoring import RULES
from tests.support.mesh import ROOT, Mesh, eventually

RULE_FOLDER = ROOT / "deploy" / "alerts"
WATCHED = ("replicas.predictor=0", "replicas.prometheus=1", "replicas.alertmanager=1")
FRAGILE = (
    "replicas.etcd=3",
    # A worker that is soon full, whose sequences hold what they may need; one that preempts instead.
    "worker.simulated.step_base=0.025",
    "worker.simulated.max_running=8",
    "worker.simulated.total_blocks=64",
    "worker-a.simulated.preemptive=true",
    "admission.limits.output_reserve=0.05",
    # As small as it may be.
    "gateway.journal_bytes=8388608",
    # All load comes from one address.
    "controlplane.edge.access_log=false",
    "controlplane.edge.source_parts=1",
    "controlplane.edge.source_requests_per_second=1000000",
)
DURABLE = ("audit", "gateway")
"""Processes that have a small disk of their own, which can be filled."""
_CLOCKS = Path(__file__).parents[1] / "soak" / "clocks"
HASTY, PATIENT = "weir-fast", "weir-quality"
"""The demo models, whose objectives differ."""
_USERS = 64
"""Who ask in turn: rollouts keep each on one arm."""
_PAUSE = 0.05
"""Seconds before a client that was refused asks again."""


@dataclass(frozen=True, slots=True)
class Site:
    """What faults work with."""

    mesh: Mesh
    injector: Injector
    folder: Path
    """For model versions that are pushed."""
    clocks: Path
    """See loadtest/soak/clocks."""
    store: EtcdStore
    """etcd, with its root's rights."""

    async def weir(self, *arguments: str, check: bool = True) -> str:
        """What the operator's command prints."""
        done = await asyncio.to_thread(self.mesh.weir, *arguments, check=check)
        return done.stdout.strip()

    def address(self, process: str, kind: str = "address") -> str:
        """Of a process, or its "metrics"."""
        return str(self.mesh.file()["services"][process][kind])

    def pid(self, process: str) -> int:
        """Of a process that runs."""
        return int(self.mesh.process(process)["pid"])

    async def push(self, name: str, version: str, tier: str, faults: dict[str, float]) -> str:
        """A version of a simulated model with these faults: "name@version"."""
        folder = self.folder / f"{name}@{version}"
        await asyncio.to_thread(make_version, folder, faults)
        await self.weir(
            "models", "push", str(folder), "--name", name, "--version", version, "--pool", POOL, "--tier", tier
        )
        return f"{name}@{version}"

    async def alias(self, name: str, version: str) -> None:
        """Let it point to one version."""
        await self.weir("set", "aliases", name, f"targets=[{{model_version: {version}, weight: 100}}]", "--create")

    async def two_versions(self, model: str, faults: dict[str, float]) -> tuple[str, str]:
        """A good version of a simulated model, which is served under its name, and one with these faults, which is
        not."""
        good = await self.push(model, "1", "fast", {})
        other = await self.push(model, "2", "fast", faults)
        await self.alias(model, good)
        await self.served(model)
        return good, other

    async def page(self, process: str) -> dict[str, float]:
        """A process's metrics, samples by name and labels."""
        return await accounting.scrape(self.address(process, "metrics"))

    @asynccontextmanager
    async def load(
        self,
        model: str,
        clients: int,
        *,
        prompt: int = 16,
        tokens: int = 4,
        stop: Sequence[str] = (),
        key: str = "",
        pause: float = 0.0,
    ) -> AsyncIterator[list[int]]:
        """While the block runs, so many clients ask, each again as soon as it was answered. Yields the statuses that
        they got; 0 for a connection that broke."""
        seen: list[int] = []
        body = {"model": model, "prompt": list(TOKEN_IDS[:prompt]), "max_tokens": tokens, "ignore_eos": True}
        body |= {"stop": list(stop)} if stop else {}
        host, _, port = str(self.address("envoy", "plain_address")).rpartition(":")
        bodies = [json.dumps({**body, "user": f"user-{number}"}).encode() for number in range(_USERS)]
        requests = cycle([post(host, PATH, key or self.mesh.env["WEIR_KEY_ACME"], each) for each in bodies])

        async def client() -> None:
            connection = Connection(host, int(port))
            try:
                while True:
                    try:
                        status = (await connection.send(next(requests))).status
                    except OSError:
                        status = 0
                    seen.append(status)
                    await asyncio.sleep(pause if status == 200 else max(pause, _PAUSE))
            finally:
                connection.close()

        tasks = [asyncio.create_task(client()) for _ in range(clients)]
        try:
            yield seen
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def scraped(self, process: str) -> None:
        """Waits until Prometheus has seen the life that the process lives now.

        :raises TimeoutError: it does not within a minute.
        """
        query = urllib.parse.quote(f'process_start_time_seconds{{instance="{process}"}}')
        url = f"http://{self.address('prometheus')}/api/v1/query?query={query}"
        started = psutil.Process(self.pid(process)).create_time()

        def seen() -> bool:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
            return any(abs(float(each["value"][1]) - started) < 1.0 for each in found)

        await asyncio.to_thread(eventually, seen, seconds=60, what=f"{process} being scraped")

    async def served(self, model: str, key: str = "") -> None:
        """Waits until a model answers.

        :raises TimeoutError: it does not within a minute.
        """
        async with self.load(model, 1, tokens=1, key=key, pause=0.1) as seen:
            await until(lambda: 200 in seen, what=f"{model} answering")


async def until(condition: Callable[[], object], *, what: str, within: float = 60.0) -> None:
    """Waits until it holds.

    :raises TimeoutError: it does not come to that.
    """
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come true in {within:g} s")
        await asyncio.sleep(0.1)


@asynccontextmanager
async def drill_site(
    folder: Path, factor: float, settings: Sequence[str] = FRAGILE, *, profile: str = "simulated"
) -> AsyncIterator[Site]:
    """A mesh with rules whose windows are so many times as short (1: as they are), evaluated as much more often."""
    rules, clocks, state = (folder / name for name in ("rules", "clocks", "mesh"))
    for each in (rules, clocks):
        each.mkdir(parents=True)
    for name in RULES:
        (rules / name).write_text(shortened((RULE_FOLDER / name).read_text(), factor))
    if network.inside():
        network.prepare()
    own = (f"prometheus.rules={rules}", f"prometheus.interval={round(INTERVAL / factor * 1e3)}ms")
    mesh = Mesh(state, profile=profile, settings=(*WATCHED, *own, *settings))
    with _environment(WEIR_SOAK_CLOCKS=str(clocks), PYTHONPATH=str(_CLOCKS)), disks(state, list(DURABLE)):
        await asyncio.to_thread(mesh.__enter__)
        members = [each["address"] for each in mesh.file()["services"].values() if each["service"] == "etcd"]
        store = EtcdStore(members, tls=mesh.etcd_root())
        try:
            yield Site(mesh, Injector(state, clocks), folder / "versions", clocks, store)
        finally:
            await store.close()
            await asyncio.to_thread(mesh.__exit__, None, None, None)


@asynccontextmanager
async def watched(site: Site, only: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> AsyncIterator[Watch]:
    """What Alertmanager is told of meanwhile; see `Watch.only`."""
    watch = Watch(site.address("alertmanager"), only)
    looking = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """PYTHONPATH goes before what is there."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        os.environ[name] = os.pathsep.join(filter(None, (value, before[name] if name == "PYTHONPATH" else "")))
    try:
        yield
    finally:
        for name, value in before.items():
            with contextlib.suppress(KeyError):
                del os.environ[name]
            if value is not None:
                os.environ[name] = value


def total(page: dict[str, float], metric: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    named = re.compile(rf"{re.escape(metric)}(\{{|$)")
    return sum(value for name, value in page.items() if named.match(name) and all(each in name for each in wanted))
