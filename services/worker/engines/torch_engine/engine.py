"""The synchronous core of the torch engine: schedule → execute → apply, one step at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from libs.clock import Clock, SystemClock
from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    SequenceRequest,
    StepOutput,
    TokenLogprob,
)
from services.worker.engines.threaded import ThreadedEngine
from services.worker.engines.torch_engine.blocks import BlockPool
from services.worker.engines.torch_engine.scheduler import FAILED, Advanced, Chunk, ModelLimits, Plan, Scheduler

if TYPE_CHECKING:
    from services.worker.engines.torch_engine.runner import ModelRunner
    from services.worker.engines.torch_engine.sampler import Sampled, SequenceSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """What to load and how much to hold.

    `models` maps "name@version" to the folder of its checkpoint. The blocks of `total_blocks` are shared by all
    models; every model has its own memory behind them. `max_step_tokens` bounds what one step computes: it limits how
    long running sequences wait for a new one's prompt. `threads` are torch's threads for one operation.
    `require_manifest` refuses folders whose manifest.json is missing or does not match.
    """

    models: Mapping[str, Path]
    block_size: int = 16
    total_blocks: int = 1024
    max_running: int = 32
    max_step_tokens: int = 256
    threads: int = 1
    require_manifest: bool = True


def build(
    settings: TorchSettings,
    *,
    clock: Clock | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
) -> ThreadedEngine:
    """A torch engine that runs in its own thread; it loads nothing before `start`."""
    return ThreadedEngine(TorchCore(settings, clock=clock or SystemClock()), name="torch-engine", on_failure=on_failure)


class TorchCore:
    """A `SyncEngine` over one or more Llama-family models."""

    def __init__(
        self, settings: TorchSettings, *, clock: Clock, draw_seed: Callable[[], int] = lambda: secrets.randbits(64)
    ) -> None:
        """`draw_seed` gives the seed of a request that brings none."""
        self._settings = settings
        self._clock = clock
        self._draw_seed = draw_seed
        self._pool = BlockPool(settings.total_blocks)
        self._runners: dict[str, ModelRunner] = {}
        self._samplers: dict[int, SequenceSampler] = {}
        self._scheduler = self._make_scheduler({})
        self._steps = 0
        self._last_step_seconds = 0.0

    @property
    def info(self) -> EngineInfo:
        """The models named in the settings; `max_context` is the largest of theirs."""
        capacity = self._settings.total_blocks * self._settings.block_size
        contexts = [min(runner.config.context, capacity) for runner in self._runners.values()]
        return EngineInfo(
            engine="torch",
            simulated=False,
            models=tuple(self._settings.models),
            block_size=self._settings.block_size,
            total_blocks=self._settings.total_blocks,
            max_running=self._settings.max_running,
            max_context=max(contexts, default=0),
        )

    def load(self) -> None:
        """Verify, read and self-test every model.

        :raises EngineLoadError: one of them cannot be used; the message names the file.
        """
        import torch

        from services.worker.engines.torch_engine.runner import ModelRunner
        from services.worker.engines.torch_engine.weights import verify_manifest

        torch.set_num_threads(self._settings.threads)
        limits: dict[str, ModelLimits] = {}
        for model, folder in self._settings.models.items():
            if not folder.is_dir():
                raise EngineLoadError(f"{folder}: no such folder for model {model}")
            if self._settings.require_manifest:
                verify_manifest(folder, model)
            with torch.inference_mode():
                runner = ModelRunner.load(
                    folder,
                    total_blocks=self._settings.total_blocks,
                    block_size=self._settings.block_size,
                    max_running=self._settings.max_running,
                )
                runner.self_test(model)
            self._runners[model] = runner
            limits[model] = ModelLimits(
                context=runner.config.context,
                vocabulary=runner.config.vocabulary,
                eos_token_ids=frozenset(runner.config.eos_token_ids),
            )
        self._scheduler = self._make_scheduler(limits)

    def add(self, requests: Sequence[SequenceRequest]) -> None:
        """See `SyncEngine.add`."""
        self._scheduler.add(requests)

    def cancel(self, handles: Sequence[int]) -> None:
        """See `SyncEngine.cancel`; the memory is free at once."""
        self._scheduler.cancel(handles)

    def has_work(self) -> bool:
        """See `SyncEngine.has_work`."""
        return self._scheduler.has_work()

    def step(self) -> StepOutput:
        """See `SyncEngine.step`."""
        started = self._clock.monotonic()
        plan = self._scheduler.schedule(started)
        output = self._output(plan)
        for model, chunks in plan.chunks.items():
            self._execute(self._runners[model], chunks, output)
        self._steps += 1
        output.step_seconds = self._last_step_seconds = self._clock.monotonic() - started
        return output

    def capacity(self) -> Capacity:
        """See `SyncEngine.capacity`."""
        return Capacity(
            free_blocks=self._pool.free,
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            queued_prefill_tokens=self._scheduler.queued_prefill_tokens,
            last_step_seconds=self._last_step_seconds,
        )

    def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.embed`.

        :raises EngineLoadError: the model is unknown.
        :raises ValueError: a prompt is empty, too long or holds an unknown token id.
        """
        import torch

        runner = self._runners.get(model)
        if runner is None:
            raise EngineLoadError(f"model {model} is not loaded here")
        with torch.inference_mode():
            return runner.embed(prompts)

    def close(self) -> None:
        """Drop the models and every sequence."""
        self._runners.clear()
        self._samplers.clear()
        self._pool = BlockPool(self._settings.total_blocks)
        self._scheduler = self._make_scheduler({})

    def _make_scheduler(self, limits: Mapping[str, ModelLimits]) -> Scheduler:
        return Scheduler(
            models=limits,
            pool=self._pool,
            block_size=self._settings.block_size,
            max_running=self._settings.max_running,
            max_step_tokens=self._settings.max_step_tokens,
        )

    def _output(self, plan: Plan) -> StepOutput:
        """The step's output so far: what ended before it."""
        output = StepOutput(
            step=self._steps,
            handles=[],
            tokens=[],
            finish=[],
            logprobs={},
            errors={},
            prompt_tokens_cached={},
        )
        for ended in plan.ended:
            _append(output, ended.handle, None, ended.reason, ended.message)
            self._samplers.pop(ended.handle, None)
        return output

    def _execute(self, runner: ModelRunner, chunks: Sequence[Chunk], output: StepOutput) -> None:
        import torch

        for chunk in chunks:
            if chunk.samples:
                self._prepare(chunk, output)
        with torch.inference_mode():
            for chunk in chunks:
                if chunk.start == 0:
                    runner.join(chunk.sequence)
            ordered, results = runner.execute(chunks, self._samplers)
            for chunk, result in zip(ordered, results, strict=True):
                if result is not None and result.token is None:
                    runner.forget(chunk.sequence)
        logprobs = {
            chunk.sequence.request.handle: [result.logprob]
            for chunk, result in zip(ordered, results, strict=True)
            if result is not None and result.logprob is not None
        }
        for advanced in self._scheduler.apply(ordered, [_token(result) for result in results]):
            self._report(advanced, output, logprobs)

    def _prepare(self, chunk: Chunk, output: StepOutput) -> None:
        """Create a sequence's sampling state before its first token."""
        from services.worker.engines.torch_engine.sampler import SequenceSampler

        request = chunk.sequence.request
        if request.handle not in self._samplers:
            seed = self._draw_seed() if request.params.seed is None else request.params.seed
            self._samplers[request.handle] = SequenceSampler.create(request.params, request.prompt, seed)
            output.prompt_tokens_cached[request.handle] = 0

    def _report(self, advanced: Advanced, output: StepOutput, logprobs: Mapping[int, list[TokenLogprob]]) -> None:
        handle = advanced.sequence.request.handle
        _append(output, handle, advanced.token, advanced.finish, advanced.message)
        if advanced.token is not None and handle in logprobs:
            output.logprobs[handle] = logprobs[handle]
        if advanced.finish:
            self._samplers.pop(handle, None)


def _token(result: Sampled | None) -> int | None:
    if result is None:
        return None
    return FAILED if result.token is None else result.token


def _append(output: StepOutput, handle: int, token: int | None, finish: int, message: str) -> None:
    output.handles.append(handle)
    output.tokens.append([] if token is None else [token])
    output.finish.append(int(finish))
    if message:
        output.errors[handle] = message
