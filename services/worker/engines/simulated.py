"""The simulated engine: `SimulatedCore` driven by event-loop timers. Always labelled as simulated.

Steps run on the event loop. With zero cost they follow one another as loop callbacks (the loop serves its sockets in
between); with a cost model a step ends when its time is over; with `step_interval` all running sequences get one
token per tick, as on an accelerator that decodes at that pace, and a sequence that finds the engine idle starts at
once.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from libs.clock import Clock
from libs.telemetry import get_logger
from services.worker.engines.port import Capacity, EngineInfo, EngineLoadError, FinishReason, SequenceRequest, StepSink
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.simulated_versions import SOUND, Faults, faults_of, read_files

log = get_logger(__name__)

# Loop timers have a millisecond's resolution; a step that is this late (seconds) still counts as on time, so that short
# steps add up to their true sum.
_CATCH_UP = 0.005
_EMBEDDING_SIZE = 64


class SimulatedEngine:
    """An `Engine` without a model."""

    def __init__(
        self,
        model: SimulatedModel,
        *,
        clock: Clock,
        step_interval: float = 0.0,
        faults: Mapping[str, Mapping[str, Any]] | None = None,
        fixed_vocabulary: bool = False,
        fixed_context: bool = False,
        end_of_sequence: bool = True,
    ) -> None:
        """`step_interval` in seconds; 0 leaves the pace to the cost model. `faults` by the version that they are set
        for. Of models that are loaded while it runs: `fixed_vocabulary` and `fixed_context` keep the model's value
        whatever the folder says, and without `end_of_sequence` none of their draws ends a sequence.

        :raises ValueError: the sizes make no sense.
        """
        self._model = model
        self._core = SimulatedCore(model)
        self._clock = clock
        self._interval = step_interval
        self._info: EngineInfo | None = None  # until models come or go
        self._faults = faults or {}
        self._fixed_vocabulary = fixed_vocabulary
        self._fixed_context = fixed_context
        self._end_of_sequence = end_of_sequence
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._timed = not model.free
        self._sink: StepSink | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._step_started = 0.0
        self._step_ends = -math.inf
        self._stopped = False

    @property
    def info(self) -> EngineInfo:
        """See `Engine`."""
        if self._info is None:
            self._info = self._describe()
        return self._info

    def _describe(self) -> EngineInfo:
        model = self._model
        return EngineInfo(
            engine="simulated",
            simulated=True,
            models=self._core.models,
            block_size=model.block_size,
            total_blocks=model.total_blocks,
            max_running=model.max_running,
            max_context=self._core.max_context,
            preemptive=model.preemptive,
            numerics=dict.fromkeys(self._core.models, "simulated"),
        )

    async def start(self, sink: StepSink) -> None:
        """Ready at once: there is nothing to load."""
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        for name in self._core.models:
            _label(name, self._model.faults.get(name, SOUND))

    async def load(self, model: str, folder: str) -> dict[str, float]:
        """See `Engine`: reads config.json and simulated.json, if there is a folder."""
        if model in self._core.models or model in self._leaving:
            raise EngineLoadError(f"{model} is loaded already, or goes at this moment")
        began = self._clock.monotonic()
        files = await asyncio.to_thread(read_files, folder)
        faults = faults_of(model, folder, files.faults, self._faults.get(model, {}))
        eos = files.eos_token_ids if self._end_of_sequence and folder else None
        try:
            self._core.add_version(
                model,
                vocabulary=0 if self._fixed_vocabulary else files.vocabulary,
                max_context=0 if self._fixed_context else files.max_context,
                eos=eos,
                faults=faults,
            )
        except ValueError as error:
            raise EngineLoadError(f"{folder or model}: {error}") from error
        self._info = None
        _label(model, faults)
        return {"read": self._clock.monotonic() - began}

    async def unload(self, model: str) -> None:
        """See `Engine`."""
        if model in self._core.models:
            self._core.drop_version(model)
            self._info = None
            if self._core.runs(model) and not self._stopped:
                self._leaving[model] = asyncio.get_running_loop().create_future()
        if model in self._leaving:
            await asyncio.shield(self._leaving[model])

    def _part(self) -> None:
        """Tell of models whose last sequence has ended."""
        for model in [model for model in self._leaving if self._stopped or not self._core.runs(model)]:
            self._leaving.pop(model).set_result(None)

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Engine`. After `stop` each is answered ERROR."""
        self._core.add(requests)
        if self._stopped:
            self._publish_end(FinishReason.ERROR, "the engine takes no more work")
        else:
            self._schedule()

    def cancel(self, handles: Sequence[int]) -> None:
        """See `Engine`."""
        self._core.cancel(handles)
        self._schedule()

    def capacity(self) -> Capacity:
        """See `Engine`."""
        return self._core.capacity()

    async def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Vectors that depend on the tokens alone.

        :raises EngineLoadError: the model is unknown.
        :raises ValueError: a prompt is empty.
        """
        if model not in self._core.models:
            raise EngineLoadError(f"model {model} is not loaded here")
        return [_embedding(prompt) for prompt in prompts]

    async def stop(self) -> None:
        """See `Engine`."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._core.has_work():
            self._publish_end(FinishReason.CANCELLED, "")
        self._part()

    def _publish_end(self, reason: FinishReason, message: str) -> None:
        output = self._core.end_all(reason, message)
        if self._sink is not None:
            self._sink(output)

    def _schedule(self) -> None:
        """Arrange the next step unless it is under way."""
        if self._timer is not None or self._stopped or self._loop is None or not self._core.has_work():
            return
        if not self._timed and not self._interval:
            self._timer = self._loop.call_soon(self._step)
            return
        now = self._clock.monotonic()
        # What is a little late starts when it was due; after a longer pause time starts anew.
        on_time = now - self._step_ends < max(self._interval, _CATCH_UP)
        self._step_started = self._step_ends if on_time else now
        if self._interval:
            self._timer = self._after(self._step_started - now)
        else:
            self._step_ends = self._step_started + self._core.plan()
            self._timer = self._after(self._step_ends - now)

    def _after(self, seconds: float) -> asyncio.Handle:
        if self._loop is None:
            raise RuntimeError("the engine was not started")
        if seconds <= 0:
            return self._loop.call_soon(self._step)
        return self._loop.call_later(seconds, self._step)

    def _step(self) -> None:
        """End the step whose time is over and begin the next."""
        self._timer = None
        now = self._clock.monotonic()
        if self._interval:
            self._core.last_step_seconds = max(self._interval, self._core.plan())
            self._step_ends = self._step_started + self._core.last_step_seconds
        elif self._timed:
            self._core.last_step_seconds = self._step_ends - self._step_started
        else:
            self._core.plan()
        output = self._core.apply(now)
        output.step_seconds = self._core.last_step_seconds
        try:
            if self._sink is not None:
                self._sink(output)
        finally:
            if self._leaving:
                self._part()
            self._schedule()


def _label(model: str, faults: Faults) -> None:
    """Say it wherever an engine is bad on purpose."""
    if faults is not SOUND:
        log.warning("simulated_faults", model=model, **asdict(faults))


def _embedding(prompt: Sequence[int]) -> list[float]:
    if not prompt:
        raise ValueError("the prompt is empty")
    digest = hashlib.shake_128(b",".join(b"%d" % token for token in prompt)).digest(_EMBEDDING_SIZE)
    values = [byte - 127.5 for byte in digest]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]
