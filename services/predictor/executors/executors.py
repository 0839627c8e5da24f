"""The versions that a predictor has loaded, and where each runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module

from weir.registry.v1 import registry_pb2

from libs.batching import Batcher, CostModel, Limits
from libs.clock import Clock
from libs.telemetry import get_logger
from services.predictor.executors import lanes, loading
from services.predictor.executors.dispatcher import Dispatcher, Ran
from services.predictor.executors.lanes import Lane
from services.predictor.executors.loading import Prepared, resident
from services.predictor.executors.process import ModelProcess, Prepare
from services.predictor.executors.processes import Bounds, ProcessExecutor
from services.predictor.executors.threads import Executor, ThreadExecutor
from services.predictor.executors.wire import Loaded
from services.predictor.files import Files
from services.predictor.port import LoadError, Signature, Tensors
from services.predictor.rules import Rules

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """How versions run.

    :ivar queue_rows: that wait at most, for one version.
    :ivar way_back: seconds that an answer needs from an executor to its caller.
    :ivar longest_wait: seconds for which a request may be held back so that others join its batch.
    :ivar bounds: of processes.
    :ivar imports: modules that versions in this process need. Imported before any version is, because it holds the
        interpreter's lock for up to 70 ms at a time.
    :ivar prepare: loads, tests and warms a model; a module's function, because other processes import it.
    """

    queue_rows: int = 4096
    way_back: float = 0.001
    longest_wait: float = 0.005
    bounds: Bounds = field(default_factory=Bounds)
    imports: tuple[str, ...] = tuple(f"services.predictor.formats.{name}" for name in ("onnx", "xgboost", "lightgbm"))
    prepare: Prepare = loading.prepare


class Executors:
    """Loads versions and runs predictions on them."""

    def __init__(self, clock: Clock, settings: Settings, *, absent: Callable[[str], None] = lambda _: None) -> None:
        """`absent` is told of a version that is asked for and not loaded."""
        self._absent = absent
        self.asked: dict[str, float] = {}
        """When each version was asked for last, loaded or not, monotonic seconds."""
        self._memory: dict[str, int] = {}
        self._clock = clock
        self._settings = settings
        self._versions: dict[str, Dispatcher] = {}
        self._rules: dict[str, Rules] = {}
        self._loading = asyncio.Lock()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        for module in settings.imports:
            self._loader.submit(import_module, module)

    def signature(self, version: str) -> Signature:
        """What the version takes and gives.

        :raises KeyError: it is not loaded.
        """
        return self._versions[version].signature

    def ask(self, version: str) -> Signature:
        """The same, for a request: it is asked for.

        :raises KeyError: it is not loaded.
        """
        self.asked[version] = self._clock.monotonic()
        if version not in self._versions:
            self._absent(version)
        return self._versions[version].signature

    def memory(self, version: str) -> int:
        """Bytes that it took when it was loaded: resident ones of its own process, or those by which this one grew. 0:
        it is not loaded."""
        return self._memory.get(version, 0)

    def forget(self, registered: Collection[str]) -> None:
        """Others than these are not asked for any more."""
        for version in self.asked.keys() - set(registered):
            del self.asked[version]

    def rules(self, version: str) -> Rules:
        """What becomes of values that the version was not made for.

        :raises KeyError: it is not loaded.
        """
        return self._rules[version]

    def pids(self, version: str) -> list[int]:
        """The processes that the version runs in, beside this one.

        :raises KeyError: it is not loaded.
        """
        return self._versions[version].pids

    def bars(self, version: str, tenant: str) -> bool:
        """None of the tenant's rows would run on the version now, because they alone ended its processes."""
        dispatcher = self._versions.get(version)
        return dispatcher is not None and dispatcher.bars(tenant)

    async def load(self, version: str, files: Files, spec: registry_pb2.PredictionSpec) -> Signature:
        """Load the version from its verified files, run its golden rows, warm it up and find out what it costs. The
        others go on meanwhile. A version that is loaded already stays as it is.

        :raises LoadError: it cannot be loaded, or does not give what it gave when it was made.
        """
        async with self._loading:
            if version not in self._versions:
                rules = _rules_of(spec)
                self._versions[version] = await self._load(version, files, spec)
                self._rules[version] = rules
        return self.signature(version)

    async def unload(self, version: str) -> None:
        """Take no more requests for the version, wait for those that are here, free its memory."""
        dispatcher = self._versions.pop(version, None)
        self._rules.pop(version, None)
        self._memory.pop(version, None)
        if dispatcher is not None:
            await dispatcher.close()

    async def run(
        self,
        version: str,
        inputs: Tensors,
        *,
        outputs: frozenset[str] | None,
        rows: int,
        tenant: str,
        rank: int,
        deadline: float,
    ) -> Ran:
        """One prediction. Cancelling frees its place; it is not executed then unless it runs already.

        :param inputs: as the signature says; they are not changed, and must not be until this returns.
        :param outputs: names of those wanted; None: all but those on request.
        :param rows: in the inputs' first dimension; 1 where there is none.
        :param rank: its class, 0 before 1.
        :param deadline: on the clock's monotonic seconds.
        :raises libs.batching.Late: it cannot be in time, or the queue is full.
        :raises ModelError: the model refuses the inputs.
        :raises Crashed: the model broke on it.
        :raises Barred: see `bars`.
        :raises KeyError: the version is not loaded.
        """
        return await self._versions[version].run(inputs, outputs, rows, tenant, rank, deadline)

    async def close(self) -> None:
        """Unload everything."""
        for version in list(self._versions):
            await self.unload(version)
        self._loader.shutdown(wait=False)

    async def _load(self, version: str, files: Files, spec: registry_pb2.PredictionSpec) -> Dispatcher:
        """First in a process of its own, whatever the lane: what a version does there, it does not do to this one."""
        wanted, began = lanes.declared(spec.lane), self._clock.monotonic()
        given = self._settings

        async def start() -> tuple[ModelProcess, Loaded]:
            return await ModelProcess.start(files, spec, given.prepare)

        process, loaded = await start()
        lane = lanes.choose(wanted=wanted, native=loaded.native, samples=loaded.samples, stall=loaded.stall)
        signature, samples = loaded.signature, loaded.samples
        executor: Executor
        memory = loaded.rss
        if lane is Lane.PROCESS:
            took = self._clock.monotonic() - began
            executor = ProcessExecutor(process, loaded, start, self._clock, given.bounds, took)
        else:
            await process.close()
            prepared, memory = await self._prepared(files, spec)
            samples = prepared.samples
            own = lanes.OwnCost(samples) if lane is Lane.INLINE else None
            executor = ThreadExecutor(prepared.model, self._clock, own=own)
        cost = CostModel.fitted(samples)
        limits = Limits(1, max(signature.max_rows, 1), given.queue_rows, given.way_back, given.longest_wait)
        line = {"alpha": cost.alpha, "beta": cost.beta}
        log.info("version_loaded", version=version, lane=lane.value, seconds=line, stall=loaded.stall, memory=memory)
        self._memory[version] = memory
        return Dispatcher(signature, Batcher(cost, limits), [executor], self._clock)

    async def _prepared(self, files: Files, spec: registry_pb2.PredictionSpec) -> tuple[Prepared, int]:
        """In the loading thread; with the bytes by which the process grew. What is loaded for nobody is freed."""

        def prepared() -> tuple[Prepared, int]:
            before = resident()
            found = self._settings.prepare(files, spec)
            return found, max(0, resident() - before)

        future = asyncio.get_running_loop().run_in_executor(self._loader, prepared)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_free)
            raise


def _rules_of(spec: registry_pb2.PredictionSpec) -> Rules:
    try:
        return Rules(spec)
    except (ValueError, OverflowError) as error:
        raise LoadError(f"its rules of values do not hold: {error}") from error


def _free(loaded: asyncio.Future[tuple[Prepared, int]]) -> None:
    """What nobody waits for any more."""
    if not loaded.cancelled() and loaded.exception() is None:
        loaded.result()[0].model.close()
