"""Keeps what a process has loaded what the registry wants of it: fetch → verify → load → ready.

`plan.py` decides, this carries it out. A version that cannot be loaded fails alone, with its reason told in
the registry; the others are served on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import BlobStore
from libs.clock import Clock
from libs.registry import RegistrySnapshot, RegistryView
from libs.rollouts import is_live
from libs.telemetry import get_logger
from libs.versions.errors import LoaderGoneError, LoadError, RefusedError
from libs.versions.fetching import fetch_version
from libs.versions.memory import Memory
from libs.versions.plan import Fault, Held, Plan, Room, State, Wanted, forgotten, next_plan, rank, settled
from libs.versions.turns import Turns
from libs.versions.verification import basis_of, check_version
from libs.versions.weight_cache import WeightCache

log = get_logger(__name__)

_LOOK_AGAIN = 60.0
"""Seconds after which time alone may have changed what is wanted: versions are kept warm for so long and no longer."""
_NO_ROOM = "there is no room for it in memory beside what is asked for; it is loaded when it is asked for"
_CLOCKS = 60.0
"""Seconds by which the clock of whoever lets a key expire may be ahead of ours."""


class Loader(Protocol):
    """Who has versions in memory."""

    async def load(self, model: str, folder: str) -> Mapping[str, float]:
        """Have the version ready whose files are in a folder; seconds by stage. Cancelled, it leaves nothing behind.

        :raises LoadError: it cannot be loaded.
        :raises LoaderGoneError: nothing can at present.
        """

    async def unload(self, model: str) -> None:
        """Offer it no more, let run what runs on it, then free its memory. One that is being loaded is loaded no
        further; an unknown one is fine.

        :raises LoadError: another one rests on it.
        """


class Watcher(Protocol):
    """Who is told what becomes of versions: a process's metrics."""

    def model_state(self, model: str, state: str | None, /) -> None:
        """A version is in this state ("ready") from now on; None: it is nothing to this process."""

    def loaded(self, model: str, stages: Mapping[str, float], /) -> None:
        """A version was loaded; seconds by stage."""

    def unloaded(self, model: str, /) -> None:
        """A version left."""

    def failed(self, reason: str, /) -> None:
        """A version could not be loaded; `Fault`'s values."""


class DesiredState:
    """Run `run()` once the loader is there for the first time; `states` tells how far each version is."""

    def __init__(
        self,
        *,
        wanted: Callable[[RegistrySnapshot, float], Collection[str]],
        view: RegistryView,
        loader: Loader,
        busy: Callable[[], frozenset[str]],
        blobs: BlobStore,
        cache: WeightCache,
        clock: Clock,
        require_signatures: bool,
        min_residency: float,
        watcher: Watcher,
        on_change: Callable[[], None],
        memory: Memory | None = None,
    ) -> None:
        """`wanted` names the versions that a snapshot wants here at a time (Unix seconds), `busy` those that run
        something; `on_change` is called whenever `states` changed."""
        self._wanted_of = wanted
        self._watcher = watcher
        self._view = view
        self._loader = loader
        self._busy = busy
        self._blobs = blobs
        self._cache = cache
        self._clock = clock
        self._require_signatures = require_signatures
        self._min_residency = min_residency
        self._on_change = on_change
        self._memory = memory or Memory(clock=clock)
        self._held: dict[str, Held] = {}
        self._folders: dict[str, Path] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._coming: dict[str, tuple[str, asyncio.Task[None]]] = {}  # by model: the digest that is wanted
        self._turns = Turns()  # at the loader
        self._served: set[str] = set()  # digests
        self._ended = False
        self._news = asyncio.Event()
        self.settled = asyncio.Event()
        """Set once the process may say that it is there; see `plan.settled`."""

    @property
    def states(self) -> list[pb.ModelState]:
        """How far each version is, by name."""
        return [
            # The numbers are the proto's.
            pb.ModelState(
                model_version=name,
                state=int(each.state),  # type: ignore[arg-type]
                detail=each.detail,
                digest=each.digest,
                memory_bytes=each.memory if each.state is State.READY else 0,
            )
            for name, each in sorted(self._held.items())
        ]

    def has(self, models: Mapping[str, str]) -> None:
        """These are served from the start and stay, whatever the registry wants: version → digest, "" if unknown."""
        for model, digest in models.items():
            self._put(Held(model, State.READY, digest, since=self._clock.monotonic(), fixed=True))

    def lost(self, model: str, error: LoadError) -> None:
        """A fresh loader could not load what the one before had."""
        held = self._held.get(model)
        if held is not None and held.state is State.READY and not held.fixed:
            self._give_back(model)
            self._fail(held, Fault.LOAD, str(error))
            self._news.set()

    def asked(self, model: str) -> None:
        """Somebody asks for a version that is not loaded: there may be room for it now."""
        held = self._held.get(model)
        if held is not None and held.state is State.UNLOADED and self._memory.look(model):
            self._news.set()

    async def run(self) -> None:
        """Go on until cancelled."""
        stop = self._view.on_change(lambda _: self._news.set())
        try:
            while True:
                self._news.clear()
                wanted = self._look()
                self._give_up(wanted)
                plan = next_plan(
                    [each for each in wanted if each.model not in self._leaving],
                    {name: held for name, held in self._held.items() if name not in self._leaving},
                    now=self._clock.monotonic(),
                    busy=self._busy(),
                    min_residency=self._min_residency,
                    room=self._room(),
                )
                if settled(wanted, self._held):
                    self.settled.set()
                for each in plan.bring:
                    self._begin(each)
                for model in (*plan.unload, *plan.evict):
                    leaving = self._take_out(model, evicted=model in plan.evict)
                    self._leaving[model] = asyncio.create_task(leaving, name=f"unload.{model}")
                for each in plan.defer:
                    self._put(Held(each.model, State.UNLOADED, each.digest, detail=_NO_ROOM))
                for each in plan.refuse:
                    self._refuse(each)
                if plan.rests:
                    await self._wait(plan)
        finally:
            stop()
            self._ended = True
            tasks = [*self._leaving.values(), *(task for _, task in self._coming.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _look(self) -> list[Wanted]:
        """What is wanted now. Old failures are forgotten, and what is served and no longer trusted leaves at once, also
        while another version is loaded."""
        snapshot = self._view.snapshot
        wanted = self._wanted(snapshot)
        self._memory.want(wanted)
        for model in forgotten(wanted, self._held):
            if model not in self._leaving:
                self._drop(model)
        for want in wanted:
            held = self._held.get(want.model)
            if held is None:
                continue
            held = self._held[want.model] = replace(held, wanted_until=self._clock.monotonic())
            ready = held.state is State.READY and not held.fixed and want.model not in self._leaving
            if ready and held.digest == want.digest and held.basis != want.basis:
                self._recheck(replace(held, basis=want.basis), snapshot.model_versions[want.model])
        return wanted

    def _room(self) -> Room | None:
        leaving = sum(self._held[model].memory for model in self._leaving if model in self._held)
        return self._memory.room(quiet=self._min_residency, leaving=leaving)

    def _refuse(self, wanted: Wanted) -> None:
        """There will never be room for it."""
        held = Held(wanted.model, State.FAILED, wanted.digest, wanted.basis)
        self._fail(held, Fault.MEMORY, self._memory.too_much(wanted.model, wanted.memory))

    def _recheck(self, held: Held, version: pb.ModelVersion) -> None:
        """Something changed that the decision to load a version rested on: its signature may not hold any more. Time
        alone takes nothing out that is served: a date that nobody remembers must not end a whole fleet in a minute."""
        self._held[held.model] = held
        try:
            self._check(version, leeway=_CLOCKS)
        except RefusedError as error:
            if error.fault in (Fault.SIGNATURE, Fault.DIGEST):
                self._leaving[held.model] = asyncio.create_task(
                    self._take_out(held.model, refused=True), name=f"unload.{held.model}"
                )
                self._fail(held, error.fault, f"it is no longer served: {error}")

    def _wanted(self, snapshot: RegistrySnapshot) -> list[Wanted]:
        given = Counter(target.model_version for alias in snapshot.aliases.values() for target in alias.targets)
        asking: dict[str, list[str]] = defaultdict(list)
        for rollout in snapshot.rollouts.values():
            for arm in rollout.arms if is_live(rollout) else ():
                asking[arm.model_version].append(rollout.id)
        return [
            Wanted(
                model=name,
                digest=snapshot.model_versions[name].digest,
                # A new rollout is a new wish: what failed for an earlier one is tried anew.
                basis=" ".join((basis_of(snapshot.model_versions[name], snapshot), *sorted(asking[name]))),
                first=name in given,
                served=snapshot.model_versions[name].digest in self._served,
                wishes=given[name] + len(asking[name]),
                memory=self._memory.takes(snapshot.model_versions[name]),
            )
            for name in self._wanted_of(snapshot, self._clock.time())
        ]

    async def _wait(self, plan: Plan) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(plan.wait, _LOOK_AGAIN)):
                await self._news.wait()

    def _begin(self, wanted: Wanted) -> None:
        """Begin to fetch and load a version."""
        before = self._held.get(wanted.model)
        # Of a version that was deleted and made anew with other content the old one must go first.
        attempts = before.attempts if before else 0
        held = Held(wanted.model, State.FETCHING, wanted.digest, wanted.basis, attempts=attempts, memory=wanted.memory)
        self._put(held)
        place = rank(wanted, held)
        task = asyncio.create_task(self._bring(held, place), name=f"load.{wanted.model}")
        self._coming[wanted.model] = wanted.digest, task
        task.add_done_callback(lambda _: self._news.set())

    def _give_up(self, wanted: Sequence[Wanted]) -> None:
        """Load no further what stopped being wanted meanwhile, and forget loads that have ended."""
        now = {each.model: each.digest for each in wanted}
        for model, (digest, task) in [*self._coming.items()]:
            if task.done():
                del self._coming[model]
                task.result()
            elif now.get(model) != digest and not task.cancelling():
                log.info("model_not_wanted_any_more", model=model)
                task.cancel()

    async def _bring(self, held: Held, place: tuple[object, ...]) -> None:
        try:
            await self._load(held, place)
        except asyncio.CancelledError:
            if self._ended:
                raise
            # The loader may have been about to be done with it.
            await self._loader.unload(held.model)
            self._give_back(held.model)
            self._drop(held.model)

    async def _load(self, held: Held, place: tuple[object, ...]) -> None:
        model = held.model
        began = self._clock.monotonic()
        try:
            version = self._view.snapshot.model_versions[model]
            self._check(version)
            folder = self._folders[model] = await fetch_version(version, self._blobs, self._cache)
            fetched = self._clock.monotonic()
            async with self._turns.taken(place):
                began_check = self._clock.monotonic()
                held = self._put(replace(held, state=State.VERIFYING))
                # Once more: who is trusted may have changed while the files came.
                digest = await asyncio.to_thread(self._check, version)
                verified = self._clock.monotonic()
                held = self._put(replace(held, state=State.LOADING, digest=digest))
                seconds = await self._loader.load(model, str(folder))
                held = await self._measured(held, version)
        except RefusedError as error:
            self._give_back(model)
            self._fail(held, error.fault, str(error))
        except LoadError as error:
            self._give_back(model)
            self._fail(held, Fault.LOAD, str(error))
        except LoaderGoneError as error:
            self._give_back(model)
            self._fail(held, Fault.ENGINE, f"{model}: {error}")
        except OSError as error:
            self._give_back(model)
            self._fail(held, Fault.FETCH, f"{model}: {error.strerror or type(error).__name__}")
        except Exception as error:  # a fault of ours must not end the versions that are served
            log.error("model_load_broke", model=model, exc_info=error)
            self._give_back(model)
            self._fail(held, Fault.ENGINE, f"{model}: {type(error).__name__}")
        else:
            stages = {"fetch": fetched - began, "signature": verified - began_check, **seconds}
            self._watcher.loaded(model, stages)
            log.info("model_ready", model=model, digest=digest, seconds=round(self._clock.monotonic() - began, 3))
            self._served.add(digest)
            self._put(replace(held, state=State.READY, since=self._clock.monotonic(), detail="", attempts=0))

    async def _measured(self, held: Held, version: pb.ModelVersion) -> Held:
        """With the memory that it takes; what takes too much is unloaded and refused."""
        try:
            return replace(held, memory=self._memory.measured(held.model, version))
        except RefusedError:
            await self._loader.unload(held.model)
            raise

    def _check(self, version: pb.ModelVersion, *, leeway: float = 0.0) -> str:
        now = self._clock.time() + leeway
        return check_version(version, self._view.snapshot, now=now, required=self._require_signatures)

    async def _take_out(self, model: str, *, refused: bool = False, evicted: bool = False) -> None:
        """Unload a version, which is offered no more from now on; what runs on it still runs to its end. The failure of
        one that is `refused` stays known, and that one is `evicted`."""
        log.info("model_unloaded", model=model)
        try:
            await self._loader.unload(model)
        except LoadError as error:  # an adapter rests on it
            log.warning("model_stays", model=model, reason=str(error))
            self._put(replace(self._held[model], fixed=True))
        else:
            self._give_back(model)
            if refused:
                self._on_change()
            elif evicted:
                self._put(Held(model, State.UNLOADED, self._held[model].digest, detail=_NO_ROOM))
            else:
                self._drop(model)
            self._watcher.unloaded(model)
            # There is room now for what the loader refused before.
            for held in list(self._held.values()):
                if held.fault is Fault.LOAD and held.state is State.FAILED:
                    self._held[held.model] = replace(held, basis="")
        finally:
            self._leaving.pop(model, None)
            self._news.set()

    def _fail(self, held: Held, fault: Fault, detail: str) -> None:
        log.error("model_failed", model=held.model, fault=fault.value, reason=detail)
        self._watcher.failed(fault.value)
        self._put(
            replace(
                held,
                state=State.FAILED,
                since=self._clock.monotonic(),
                fault=fault,
                detail=detail,
                attempts=held.attempts + 1,
            )
        )

    def _put(self, held: Held) -> Held:
        self._held[held.model] = held
        self._watcher.model_state(held.model, held.state.name.lower())
        self._on_change()
        return held

    def _drop(self, model: str) -> None:
        if self._held.pop(model, None) is not None:
            self._watcher.model_state(model, None)
            self._on_change()

    def _give_back(self, model: str) -> None:
        folder = self._folders.pop(model, None)
        if folder is not None:
            self._cache.release(folder)
