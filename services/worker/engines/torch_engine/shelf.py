"""Which models and adapters are in memory, and how they get there.

All checkpoints (checkpoints.py) are verified and compared with their configuration at the start; those that fit the
memory for weights are read at once. The others, models that come later (moving.py) and all adapters are read when they
are asked for, in a thread of their own, so that nobody's tokens wait for a disk. `policy/residency.py` says who stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from libs.clock import Clock
from libs.families import ModelConfig
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine import adapters
from services.worker.engines.torch_engine.adapters import LoraWeights
from services.worker.engines.torch_engine.checkpoints import Checkpoints
from services.worker.engines.torch_engine.loading import Checkpoint, StageTimer
from services.worker.engines.torch_engine.settings import TorchSettings
from services.worker.model_files import ModelFiles
from services.worker.policy.residency import Outcome, Residency

logger = logging.getLogger(__name__)

M = TypeVar("M")

FAULTS = (EngineLoadError, MemoryError, OSError, RuntimeError, ValueError)
"""What a load may end with; what is in memory goes on. Torch's own word for a lack of memory is RuntimeError."""

_RETRY_SECONDS = 30.0
"""After a failed load what asks for the model is refused at once for so long: every attempt reads all of it again and
puts others out of memory."""


@dataclass(slots=True)
class Changes:
    """What became of models and adapters: those that may run now, those that may not, those that cannot, and why."""

    present: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Held:
    """An adapter in memory. It may leave for another one when it has run and is idle, or when its minimum residency is
    over; never before it was offered to the scheduler."""

    until: float
    ran: bool = False
    offered: bool = False

    def may_leave(self, now: float, *, idle: bool) -> bool:
        return (idle and self.ran) or (self.offered and self.until <= now)


class Shelf(Generic[M]):
    """`M` is a model ready to run, made by `make`. All methods but `make` run in the engine's thread.

    `size(config)` is how many bytes a model will take. `make(model, checkpoint, timer)` builds, warms up and tests;
    `admit(base, name, weights)` takes an adapter in and says which other adapters it pushed out; both may raise
    EngineLoadError.
    """

    def __init__(
        self,
        settings: TorchSettings,
        *,
        clock: Clock,
        size: Callable[[ModelConfig], int],
        make: Callable[[str, Checkpoint, StageTimer], M],
        admit: Callable[[M, str, LoraWeights], Sequence[str]],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._bytes_of = size
        self._make = make
        self._admit = admit
        self._checkpoints = Checkpoints(settings, clock=clock)
        self._loaded: dict[str, M] = {}
        self._wake: Callable[[], None] = lambda: None
        self.reasons: dict[str, str] = {}
        """Why models and adapters could not be read the last time, in full; callers are told less."""
        self._new: dict[str, set[str]] = {}  # models that have not had a step, and the adapters they wait for
        self._adapters: dict[str, _Held] = {}  # the oldest first
        self._contents: dict[str, str] = {}  # of adapters, by name, as they were first read
        self._failures: dict[str, float] = {}  # when the latest load failed
        self._giving_way: frozenset[str] = frozenset()
        self._told: frozenset[str] = frozenset()
        self._residency = self._make_residency()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torch-loader")
        self._loading: dict[str, Future[M]] = {}
        self._reading: dict[str, Future[LoraWeights]] = {}

    # ---- questions ------------------------------------------------------------------------------------------------

    @property
    def configs(self) -> Mapping[str, ModelConfig]:
        """The configuration of every model and adapter, in memory or not."""
        return self._checkpoints.configs

    @property
    def load_seconds(self) -> dict[str, dict[str, float]]:
        """How long the stages of each model's latest load took."""
        return self._checkpoints.load_seconds

    @property
    def cache_outcomes(self) -> dict[str, int]:
        """Files looked up in the local weight cache, by outcome; empty without one."""
        return self._checkpoints.cache_outcomes

    @property
    def runnable(self) -> frozenset[str]:
        """Models and adapters that may start sequences: in memory, and not giving way to others."""
        yielding = self._residency.yielding | self._giving_way
        return frozenset(
            name for name in (*self._loaded, *self._adapters) if not yielding.intersection((name, self.base(name)))
        )

    def base(self, name: str) -> str:
        """The model whose weights serve `name`: itself, or an adapter's base."""
        source = self._settings.adapters.get(name)
        return source.base if source else name

    def peek(self, base: str) -> M | None:
        """A model, where it is in memory."""
        return self._loaded.get(base)

    def loaded(self, name: str) -> M:
        """The model in memory that serves `name`.

        :raises EngineLoadError: it, or the adapter of that name, is unknown or not in memory.
        """
        model = self._loaded.get(self.base(name))
        adapters = self._settings.adapters
        if model is None or (name in adapters and name not in self._adapters):
            known = name in self._checkpoints or name in adapters
            raise EngineLoadError(f"model {name} is not {'in memory now' if known else 'loaded here'}")
        return model

    def files(self, model: str) -> ModelFiles:
        """The files of a model."""
        return self._checkpoints[model].files

    def all_loaded(self) -> Iterable[M]:
        """Every model in memory."""
        return self._loaded.values()

    def is_coming(self, model: str) -> bool:
        """Whether a model is being read."""
        return model in self._loading

    def adapters_of(self, model: str) -> list[str]:
        """The adapters that rest on a model."""
        return [name for name, source in self._settings.adapters.items() if source.base == model]

    # ---- at the start ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Verify every checkpoint's files and compare them with its configuration.

        :raises EngineLoadError: one of them cannot be used; the message names the file.
        """
        self._checkpoints.open()

    def fill(self) -> None:
        """Read models, pinned ones first, until the memory for weights is full.

        :raises EngineLoadError: one of them cannot be read, or a pinned one does not fit.
        """
        pinned = [model for model in self._settings.models if model in self._settings.pinned]
        for model in [*pinned, *(each for each in self._settings.models if each not in pinned)]:
            size = self._size(model)
            if size > self._residency.free_bytes and model not in pinned:
                continue
            decision = self._residency.want(model, size, self._clock.monotonic(), set())
            if not decision.load:
                raise EngineLoadError(f"weight_bytes: {decision.reason}")
            self._loaded[model] = self._make(model, self._checkpoints[model], self._checkpoints.timer(model))
            self._residency.loaded(model, self._clock.monotonic())
        self._told = self.runnable

    # ---- models that come and go ----------------------------------------------------------------------------------

    def open_one(self, model: str, folder: Path, wake: Callable[[], None]) -> Future[Checkpoint]:
        """Verify the files of a further model and compare them with its configuration, in the loading thread. `wake` is
        called from there whenever something that concerns models has been done."""
        self._wake = wake
        self._failures.pop(model, None)
        future = self._thread.submit(self._checkpoints.reading(model, folder))
        future.add_done_callback(lambda _: wake())
        return future

    def add(self, model: str, checkpoint: Checkpoint) -> None:
        """Know a model from now on; it is read once it is wanted."""
        self._checkpoints.add(model, checkpoint)

    def remove(self, model: str) -> None:
        """Know a model no more; it must not be coming."""
        if model in self._loaded:
            self._drop(model)
            self._residency.failed(model)
        self._residency.forget(model)
        self._told -= {model}
        self._new.pop(model, None)
        self._checkpoints.remove(model)

    def release(self, files: ModelFiles) -> None:
        """A model's files are needed no more."""
        self._checkpoints.release(files)

    # ---- while it runs --------------------------------------------------------------------------------------------

    def turn(self, *, used: Set[str], wanted: Sequence[str], busy: Callable[[], Set[str]]) -> Changes:
        """Take in what has been read, read what is wanted. `used` ran in the last step, `wanted` has sequences waiting
        for it (the longest waiting first), `busy()` have running sequences; names of models or adapters."""
        changes = Changes()
        now = self._clock.monotonic()
        for name in used:
            self._residency.used(self.base(name), now)
            if name in self._adapters:
                self._adapters[name].ran = True
        for held in self._adapters.values():
            held.offered = True
        self._book_new_models(now)
        arrived = self._take_in_models(changes)
        self._take_in_adapters(changes)
        self._giving_way = frozenset()
        if wanted or self._residency.waiting:
            self._serve(wanted, busy(), changes)
        elif self._settings.standby and not self._loading:
            self._warm_up(now)
        for model in arrived:
            self._new[model] = {name for name in self._reading if self.base(name) == model}
        runnable = self.runnable
        changes.present, changes.away = sorted(runnable - self._told), sorted(self._told - runnable)
        self._told = runnable
        return changes

    def wait(self, seconds: float) -> None:
        """Return once something has been read, at the latest after `seconds`."""
        futures: list[Future[Any]] = [*self._loading.values(), *self._reading.values()]
        if futures:
            wait(futures, timeout=seconds, return_when="FIRST_COMPLETED")
        else:
            time.sleep(seconds)

    def close(self) -> None:
        """Drop everything."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._loaded.clear()
        self._adapters.clear()
        self._checkpoints.close()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _serve(self, wanted: Sequence[str], busy: Set[str], changes: Changes) -> None:
        now = self._clock.monotonic()
        wanted = [name for name in wanted if not self._refused(name, now, changes)]
        busy_models = {self.base(name) for name in busy}
        bases = list(dict.fromkeys(self.base(name) for name in wanted))
        for model in self._residency.waiting:
            if model not in bases:
                self._residency.forget(model)
        for model in bases:
            decision = self._residency.want(model, self._size(model), now, busy_models)
            for victim in decision.evict:
                self._drop(victim)
            if decision.load:
                self._read_model(model, decision.reason)
            elif decision.outcome is Outcome.REFUSED:
                changes.failed[model] = self.reasons[model] = f"weight_bytes: {decision.reason}"
        needed: dict[str, list[str]] = {}
        for name in wanted:
            if name in self._settings.adapters and name not in self._adapters and self.base(name) in self._loaded:
                needed.setdefault(self.base(name), []).append(name)
        self._giving_way = frozenset(way for base in needed for way in self._serve_adapters(base, needed[base], busy))

    def _serve_adapters(self, base: str, needed: Sequence[str], busy: Set[str]) -> list[str]:
        """Read those of the `needed` adapters for which there is room; name those that take no new work, so that
        there will be room for the others."""
        now = self._clock.monotonic()
        held = [name for name in self._adapters if self.base(name) == base]
        idle = [name for name in held if name not in busy and self._adapters[name].may_leave(now, idle=True)]
        done = [name for name in held if name in busy and self._adapters[name].may_leave(now, idle=False)]
        room = self._settings.max_adapters - len(held)
        for name in needed[: room + len(idle)]:
            if name not in self._reading:
                self._read_adapter(name)
        return [*idle, *done][: max(0, len(needed) - room)]

    def _refused(self, name: str, now: float, changes: Changes) -> bool:
        failed = next((each for each in (self.base(name), name) if self._failed_lately(each, now)), None)
        if failed is not None:
            changes.failed[failed] = f"{failed} cannot be loaded"
        return failed is not None

    def _failed_lately(self, name: str, now: float) -> bool:
        return name in self._failures and now < self._failures[name] + _RETRY_SECONDS

    def _warm_up(self, now: float) -> None:
        standby = self._settings.standby
        sizes = {model: self._size(model) for model in standby if not self._failed_lately(model, now)}
        model = self._residency.warm_up_next(sizes, now)
        if model is not None:
            self._read_model(model, "there is room for a standby")

    def _read_model(self, model: str, reason: str) -> None:
        logger.info("model is read", extra={"model": model, "because": reason})
        checkpoint, timer = self._checkpoints[model], self._checkpoints.timer(model)
        self._loading[model] = self._thread.submit(self._make, model, checkpoint, timer)
        self._loading[model].add_done_callback(lambda _: self._wake())

    def _read_adapter(self, name: str) -> None:
        self._reading[name] = self._thread.submit(self._load_adapter, name)

    def _load_adapter(self, name: str) -> LoraWeights:
        """In the loading thread. Read anew each time, an adapter is verified each time; its keys and values may lie in
        the cache from the first time on, so it must still be the same."""
        source = self._settings.adapters[name]
        files = ModelFiles.of(source.folder, name, required=self._settings.require_manifest)
        weights = adapters.load_adapter(files, self._checkpoints[source.base].config)
        if self._contents.setdefault(name, files.key) != files.key:
            raise EngineLoadError(f"{source.folder}: {name} is not what it was when it was first read")
        return weights

    def _book_new_models(self, now: float) -> None:
        """Say of models that have had a step, and of which the adapters that they were read for have had one, that
        they are there. Models that may leave before they have run push one another out for ever."""
        for model, waited_for in [*self._new.items()]:
            offered = {name for name in waited_for if name not in self._adapters or self._adapters[name].offered}
            waited_for -= offered - self._reading.keys()
            if not waited_for:
                del self._new[model]
                self._residency.loaded(model, now)

    def _take_in_models(self, changes: Changes) -> list[str]:
        arrived = []
        for model, future in [*self._loading.items()]:
            if not future.done():
                continue
            del self._loading[model]
            try:
                self._loaded[model] = future.result()
            except FAULTS as error:
                self._residency.failed(model)
                self._fail(model, error, changes)
            else:
                arrived.append(model)
        return arrived

    def _take_in_adapters(self, changes: Changes) -> None:
        for name, future in [*self._reading.items()]:
            if not future.done():
                continue
            del self._reading[name]
            model = self._loaded.get(self.base(name))
            try:
                weights = future.result()
                pushed_out = self._admit(model, name, weights) if model is not None else [name]
            except FAULTS as error:
                self._fail(name, error, changes)
                continue
            self._adapters[name] = _Held(self._clock.monotonic() + self._settings.min_residency)
            for gone in pushed_out:
                self._adapters.pop(gone, None)

    def _drop(self, model: str) -> None:
        logger.info("model is dropped", extra={"model": model})
        del self._loaded[model]
        self._adapters = {name: held for name, held in self._adapters.items() if self.base(name) != model}

    def _fail(self, name: str, error: Exception, changes: Changes) -> None:
        logger.error("model cannot be read", extra={"model": name, "reason": str(error)})
        self.reasons[name] = str(error)
        changes.failed[name] = f"{name} cannot be loaded"
        self._failures[name] = self._clock.monotonic()

    def _size(self, model: str) -> int:
        """Bytes of a model's weights in memory."""
        return self._bytes_of(self._checkpoints[model].config)

    def _make_residency(self) -> Residency:
        settings = self._settings
        return Residency(
            settings.weight_bytes or 1 << 62,
            settings.min_residency,
            settings.pinned,
            standby=settings.standby,
        )
