"""An engine that is made anew when it fails, while everything around it stays: sessions, registration, capacity.

up ── fails ──▶ down: `on_down` hands its sequences back ──▶ wait, make, start ──▶ up: `on_up`
                  ▲                                            │ fails
                  └────────────────────────────────────────────┘     too often: `on_given_up`
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from libs.clock import Clock
from libs.telemetry import get_logger
from services.worker import metrics
from services.worker.engines.driven import NO_CAPACITY, CoreEndedError, EngineStoppedError, ended_output
from services.worker.engines.port import (
    Capacity,
    Engine,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SequenceRequest,
    StepOutput,
    StepSink,
)
from services.worker.policy.restarts import Restarts

log = get_logger(__name__)

_STOP_SECONDS = 15.0
"""Within which a failed engine must have stopped; its own grace is five seconds."""

MakeEngine = Callable[[Callable[[BaseException], None]], Engine]
"""Makes an engine that is not started yet; what it is given is called, on the loop, when the engine fails."""


class SupervisedEngine:
    """An `Engine` around a succession of engines. `supervise` must run from `start` on.

    From the moment of a failure nothing of the failed engine reaches the sink any more, not even the ends of its
    sequences: `on_down` must end them all, those included that are submitted while it runs. Sequences submitted after
    it, while no engine is up, are answered ERROR.
    """

    def __init__(
        self,
        make: MakeEngine,
        *,
        restarts: Restarts,
        silence: float,
        most_faults: int,
        clock: Clock,
        on_down: Callable[[], Awaitable[None]],
        on_up: Callable[[], None],
        on_given_up: Callable[[BaseException], None],
        on_lost: Callable[[str, EngineLoadError], None] = lambda model, error: None,
    ) -> None:
        """An engine that has sequences and reports no step for `silence` seconds has failed, and so has one that is to
        blame for `most_faults` errors in a row while it makes no token. `on_given_up` gets the
        last failure when there were too many, or when a silent engine cannot be stopped; `supervise` returns then.
        `on_lost` is told of a model that was loaded and that a fresh engine could not load again."""
        self._make = make
        self._restarts = restarts
        self._silence = silence
        self._most_faults = most_faults
        self._faults = 0  # since the last token
        self._last_sign = 0.0  # loop time
        self._clock = clock
        self._on_down = on_down
        self._on_up = on_up
        self._on_given_up = on_given_up
        self._on_lost = on_lost
        self._brought: dict[str, str] = {}  # the models loaded since the start, to their folders
        self._sink: StepSink | None = None
        self._engine: Engine | None = None
        self._info: EngineInfo | None = None
        self._failure: asyncio.Future[BaseException] | None = None
        self._up = False
        self._handing_back = False
        self._stopped = False

    @property
    def current(self) -> Engine:
        """The engine of the moment, sound or not.

        :raises EngineStoppedError: there was none yet.
        """
        if self._engine is None:
            raise EngineStoppedError("the engine has not started")
        return self._engine

    @property
    def up(self) -> bool:
        """Whether it takes work."""
        return self._up

    @property
    def info(self) -> EngineInfo:
        """See `Engine`; while no engine is up, what the last one was.

        :raises EngineStoppedError: none was up yet.
        """
        if self._up:
            self._info = self.current.info
        if self._info is None:
            raise EngineStoppedError("the engine has not started")
        return self._info

    async def start(self, sink: StepSink) -> None:
        """See `Engine`. A failure of the first start is not tried again.

        :raises EngineLoadError: a model cannot be loaded.
        """
        self._sink = sink
        await self._launch()

    async def supervise(self) -> None:
        """Start the engine again whenever it fails; returns when it failed too often."""
        while self._failure is not None:
            error = await self._failed_or_silent(self._failure)
            log.error("engine_down", error=type(error).__name__, reason=_reason(error))
            with metrics.RESTARTING.track_inprogress():
                await self._on_down()
                self._handing_back = False
                if not await self._relaunch(error):
                    return
            log.info("engine_up_again")
            self._on_up()

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Engine` and above."""
        if self._up:
            self.current.submit(requests)
        elif not self._handing_back and self._sink is not None and requests:
            handles = [request.handle for request in requests]
            ended = ended_output(handles, FinishReason.ERROR, "the engine takes no more work")
            asyncio.get_running_loop().call_soon(self._sink, ended)

    def cancel(self, handles: Sequence[int]) -> None:
        """See `Engine`."""
        if self._up:
            self.current.cancel(handles)

    def capacity(self) -> Capacity:
        """See `Engine`; nothing while no engine is up."""
        return self.current.capacity() if self._up else NO_CAPACITY

    async def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine`.

        :raises EngineStoppedError: no engine is up.
        """
        if not self._up:
            raise EngineStoppedError("the engine is not running")
        return await self.current.embed(model, prompts)

    async def load(self, model: str, folder: str) -> dict[str, float]:
        """See `Engine`. A model that is loaded is loaded again by every later engine.

        :raises EngineStoppedError: no engine is up, or it failed meanwhile.
        """
        if not self._up:
            raise EngineStoppedError("the engine is not running")
        engine = self.current
        seconds = await engine.load(model, folder)
        if engine is not self.current or not self._up:
            raise EngineStoppedError("the engine failed while it loaded the model")
        self._brought[model] = folder
        return seconds

    async def unload(self, model: str) -> None:
        """See `Engine`. An engine that fails meanwhile has no such model any more, nor has the one after it."""
        if self._up:
            with contextlib.suppress(EngineStoppedError):
                await self.current.unload(model)
        self._brought.pop(model, None)

    async def stop(self) -> None:
        """See `Engine`."""
        self._stopped = True
        if self._engine is not None:
            await self._engine.stop()
        self._up = False

    async def _relaunch(self, error: BaseException) -> bool:
        """Make an engine that starts, or tell that it is given up."""
        while True:
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await self.current.stop()
            except TimeoutError:  # a thread that hangs cannot be ended, but the process that it runs in can
                self._on_given_up(error)
                return False
            delay = self._restarts.failed(self._clock.monotonic())
            if delay is None:
                self._on_given_up(error)
                return False
            await asyncio.sleep(delay)
            metrics.RESTARTS.inc()
            try:
                await self._launch()
            except Exception as failure:  # whatever kept it from starting counts as one more failure
                log.error("engine_not_started", error=type(failure).__name__, reason=_reason(failure))
                error = failure
            else:
                return True

    async def _launch(self) -> None:
        """Make an engine and start it; it is the current one as soon as it is made, so that `stop` finds it."""
        failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._failure = failure
        self._faults = 0
        engine = self._engine = self._make(lambda error: self._failed(failure, error))

        def deliver(output: StepOutput) -> None:
            self._last_sign = asyncio.get_running_loop().time()
            self._faults = 0 if any(output.tokens) else self._faults + len(output.faults)
            if self._faults >= self._most_faults:  # these, too, are handed back
                self._failed(failure, CoreEndedError(f"the engine failed {self._faults} sequences and made no token"))
            if not failure.done() and self._sink is not None:
                self._sink(output)

        await engine.start(deliver)
        await self._bring_back(engine)
        self._restarts.started(self._clock.monotonic())
        self._info = engine.info
        self._up = not failure.done()

    async def _bring_back(self, engine: Engine) -> None:
        """Load what the engine before had; what cannot be loaded any more is told and forgotten."""
        for model, folder in list(self._brought.items()):
            try:
                await engine.load(model, folder)
            except EngineLoadError as error:
                log.error("model_lost", model=model, reason=str(error))
                self._brought.pop(model, None)
                self._on_lost(model, error)
            else:
                if model not in self._brought:  # unloaded meanwhile
                    await engine.unload(model)

    async def _failed_or_silent(self, failure: asyncio.Future[BaseException]) -> BaseException:
        """What the engine failed of, once it has."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.wait((failure,), timeout=self._silence / 4)
            if failure.done():
                return failure.result()
            load = self.capacity()
            if not load.running + load.waiting:
                self._last_sign = loop.time()
            elif loop.time() - self._last_sign > self._silence:
                self._failed(failure, CoreEndedError(f"the engine was silent for {self._silence:g} s"))

    def _failed(self, failure: asyncio.Future[BaseException], error: BaseException) -> None:
        if failure is self._failure and not failure.done() and not self._stopped:
            failure.set_result(error)
            self._up = False
            self._handing_back = True


def _reason(error: BaseException) -> str:
    """The error's text where it is known to quote nobody's words."""
    return str(error) if isinstance(error, (CoreEndedError, EngineLoadError)) else ""
