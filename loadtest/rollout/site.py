"""A mesh of the profile rollout, operated as an operator would: by the command `weir`, watched through the registry."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import EtcdStore, RegistrySnapshot, RegistryView
from libs.rollouts import phase_of
from loadtest.rollout.traffic import Traffic
from tests.support.mesh import ROOT, Mesh

PROFILE = "rollout"
POOL = "demo"
_MODEL = ROOT / "models" / "demo" / "fast"
_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_WATCHING = 30.0
"""Seconds until the registry must be in view."""
ENDED = frozenset({pb.ROLLOUT_PHASE_PROMOTED, pb.ROLLOUT_PHASE_ROLLED_BACK, pb.ROLLOUT_PHASE_ABORTED})

Faults = Mapping[str, float]
"""What is wrong with a simulated version: see the worker's settings `simulated.versions`."""


@dataclass(frozen=True, slots=True)
class Change:
    """A state of a rollout, as this process learnt it from the registry."""

    at: float
    """Unix seconds."""
    rollout: pb.Rollout


@dataclass(slots=True)
class Log:
    """Every state of every rollout, in order."""

    changes: list[Change] = field(default_factory=list)

    def of(self, alias: str, rollout_id: str = "") -> list[Change]:
        """Of one alias, or of one rollout of it."""
        return [each for each in self.changes if each.rollout.alias == alias and rollout_id in ("", each.rollout.id)]


class RolloutSite:
    """The mesh under a bench or drill."""

    def __init__(self, mesh: Mesh, view: RegistryView, folder: Path) -> None:
        self.mesh = mesh
        self.view = view
        self.log = Log()
        self.folder = folder
        self._known: dict[str, int] = {}
        view.on_change(self._note)

    def _note(self, snapshot: RegistrySnapshot) -> None:
        for alias, rollout in snapshot.rollouts.items():
            if self._known.get(alias) != rollout.revision:
                self._known[alias] = rollout.revision
                self.log.changes.append(Change(time.time(), rollout))

    async def weir(self, *arguments: str) -> Any:
        """The operator's command; its answer as JSON.

        :raises RuntimeError: it failed; the message is what it said.
        """
        done = await asyncio.to_thread(self.mesh.weir, *arguments, "--json", check=False)
        if done.returncode != 0:
            raise RuntimeError(f"weir {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    async def push(self, name: str, version: str, faults: Faults | None = None) -> str:
        """A new version of a simulated model, with these faults; returns "name@version"."""
        folder = self.folder / f"{name}@{version}"
        await asyncio.to_thread(make_version, folder, faults or {})
        return await self.push_folder(folder, name, version)

    async def push_folder(self, folder: Path, name: str, version: str) -> str:
        """A model folder as a version of the fast tier; returns "name@version"."""
        await self.weir(
            *("models", "push", str(folder), "--name", name, "--version", version, "--pool", POOL, "--tier", "fast")
        )
        return f"{name}@{version}"

    async def price(self, version: str, cost: float) -> None:
        """A price for a version, and what its tokens cost us, as a multiple of a dollar in and three out."""
        await self.weir(
            *("set", "prices", version, "--create"),
            *("input_microusd_per_million=$1", "output_microusd_per_million=$3"),
            *(
                f"input_cost_microusd_per_million={cost * 1e6:.0f}",
                f"output_cost_microusd_per_million={cost * 3e6:.0f}",
            ),
        )

    async def alias(self, name: str, version: str) -> None:
        """Point an alias at one version."""
        await self.weir("set", "aliases", name, f"targets=[{{model_version: {version}, weight: 100}}]", "--create")

    async def start(self, alias: str, version: str, *options: str, reason: str) -> str:
        """Begin a rollout; returns its id."""
        started = await self.weir("rollout", "start", alias, version, "--reason", reason, *options)
        return str(started["spec"]["id"])

    async def reach(
        self, alias: str, rollout_id: str, condition: Callable[[pb.Rollout], bool], *, seconds: float, what: str
    ) -> pb.Rollout:
        """The rollout once the condition holds.

        :raises TimeoutError: it did not come to that; the message has the last state.
        """

        def holds(snapshot: RegistrySnapshot) -> bool:
            found = snapshot.rollouts.get(alias)
            return found is not None and found.id == rollout_id and condition(found)

        try:
            async with asyncio.timeout(seconds):
                return (await self.view.wait_until(holds)).rollouts[alias]
        except TimeoutError:
            last = self.view.snapshot.rollouts.get(alias)
            raise TimeoutError(f"{alias}: {what} did not come in {seconds} s; it is at {last}") from None

    async def ended(self, alias: str, rollout_id: str, *, seconds: float) -> pb.Rollout:
        """The rollout once it is over."""
        return await self.reach(
            alias, rollout_id, lambda found: phase_of(found) in ENDED, seconds=seconds, what="its end"
        )

    @property
    def address(self) -> str:
        """The edge, "host:port", without TLS."""
        return str(self.mesh.file()["services"]["envoy"]["plain_address"])

    def traffic(self, alias: str, *, rate: float, users: int, seed: int) -> Traffic:
        """Callers of an alias, with the key of the tenant acme."""
        return Traffic(
            address=self.address,
            key=self.mesh.env["WEIR_KEY_ACME"],
            alias=alias,
            rate=rate,
            users=users,
            seed=seed,
        )

    async def answered(self, aliases: Sequence[str]) -> None:
        """Wait until every alias answers a caller.

        :raises TimeoutError: one does not.
        """
        for alias in aliases:
            traffic = self.traffic(alias, rate=5.0, users=1, seed=0)
            served = asyncio.Event()
            traffic.on_answer = lambda seen, served=served: served.set() if seen.version else None  # type: ignore[misc]
            task = asyncio.create_task(traffic.run())
            try:
                async with asyncio.timeout(60.0):
                    await served.wait()
            finally:
                task.cancel()


@asynccontextmanager
async def rollout_site(folder: Path, *, settings: Sequence[str] = ()) -> AsyncIterator[RolloutSite]:
    """A mesh of its own, with its registry in view."""
    mesh = Mesh(folder / "mesh", profile=PROFILE, settings=tuple(settings))
    await asyncio.to_thread(mesh.__enter__)
    try:
        async with site_of(mesh, folder / "versions") as site:
            yield site
    finally:
        await asyncio.to_thread(mesh.__exit__, None, None, None)


@asynccontextmanager
async def site_of(mesh: Mesh, folder: Path) -> AsyncIterator[RolloutSite]:
    """A mesh that runs already, with its registry in view. Model folders are made under `folder`."""
    store = EtcdStore([mesh.file()["services"]["etcd"]["address"]], tls=mesh.etcd_root())
    view = RegistryView(store)
    follow = asyncio.create_task(view.run())
    try:
        async with asyncio.timeout(_WATCHING):
            await view.wait_ready()
        yield RolloutSite(mesh, view, folder)
    finally:
        follow.cancel()
        await asyncio.gather(follow, return_exceptions=True)
        await store.close()


def make_version(folder: Path, faults: Faults) -> None:
    """A model folder for the simulated engine: the demo model's tokenizer and configuration, no weights, and what is
    wrong with it."""
    folder.mkdir(parents=True)
    for file in _FILES:
        shutil.copyfile(_MODEL / file, folder / file)
    # Versions differ in this file at least: equal content is one version to a worker's cache, and should be.
    (folder / "simulated.json").write_text(json.dumps(faults))
