"""The synchronous core of the torch engine: schedule → execute → apply, one step at a time."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from libs.clock import Clock, SystemClock
from services.worker.engines.driven import DrivenEngine
from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    SequenceRequest,
    StepOutput,
    TokenLogprob,
)
from services.worker.engines.process import ProcessEngine
from services.worker.engines.threaded import ThreadedEngine
from services.worker.engines.torch_engine.blocks import BlockManager
from services.worker.engines.torch_engine.pacing import Pacer
from services.worker.engines.torch_engine.prefix import names_for
from services.worker.engines.torch_engine.scheduler import Scheduler, SchedulerOptions
from services.worker.engines.torch_engine.sequences import FAILED, Advanced, Chunk, ModelLimits, Plan
from services.worker.engines.torch_engine.settings import TorchSettings

if TYPE_CHECKING:
    from services.worker.engines.torch_engine.kv import KvMemory
    from services.worker.engines.torch_engine.runner import ModelRunner
    from services.worker.engines.torch_engine.sampler import Sampled, SequenceSampler


@dataclass(slots=True)
class Timings:
    """Where the seconds of one step went. `forward` holds `prepare` and `sample`."""

    schedule: float = 0.0
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    apply: float = 0.0
    total: float = 0.0


def build(
    settings: TorchSettings,
    *,
    clock: Clock | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
    isolation: Literal["process", "thread"] = "thread",
) -> DrivenEngine:
    """A torch engine in a thread or a process of its own; it loads nothing, nor imports torch, before `start`."""
    make_core = functools.partial(TorchCore, settings, clock=clock or SystemClock())
    if isolation == "process":
        return ProcessEngine(make_core, on_failure=on_failure)
    return ThreadedEngine(make_core(), name="torch-engine", on_failure=on_failure)


class TorchCore:
    """A `SyncEngine` over one or more Llama-family models."""

    def __init__(
        self, settings: TorchSettings, *, clock: Clock, draw_seed: Callable[[], int] = lambda: secrets.randbits(64)
    ) -> None:
        """`draw_seed` gives the seed of a request that brings none."""
        self._settings = settings
        self._clock = clock
        self._draw_seed = draw_seed
        self._pool = BlockManager(settings.total_blocks)
        self._memory: KvMemory | None = None
        self._runners: dict[str, ModelRunner] = {}
        self._samplers: dict[int, SequenceSampler] = {}
        self._scheduler = self._make_scheduler({})
        self._pacer = Pacer(target=settings.itl_target, least=settings.block_size)
        self._steps = 0
        self._last_step_seconds = 0.0
        self.timings = Timings()

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

        from services.worker.engines.torch_engine.config import load_config
        from services.worker.engines.torch_engine.kv import KvMemory, ModelKv, block_bytes
        from services.worker.engines.torch_engine.runner import ModelRunner
        from services.worker.engines.torch_engine.weights import verify_manifest

        settings = self._settings
        torch.set_num_threads(settings.threads)
        configs = {}
        for model, folder in settings.models.items():
            if not folder.is_dir():
                raise EngineLoadError(f"{folder}: no such folder for model {model}")
            if settings.require_manifest:
                verify_manifest(folder, model)
            configs[model] = load_config(folder)
        dtype = torch.float32
        size = max(block_bytes(config, settings.block_size, dtype) for config in configs.values())
        self._memory = KvMemory(
            bytes_per_block=size,
            total_blocks=settings.total_blocks,
            host_blocks=settings.host_bytes // size,
            disk_blocks=settings.disk_bytes // size,
            disk_folder=settings.spill_folder,
        )
        self._pool = BlockManager(
            settings.total_blocks,
            host=settings.host_bytes // size,
            disk=settings.disk_bytes // size,
            owner_cap=int(settings.total_blocks * settings.tenant_share),
            intact=self._memory.intact,
        )
        limits: dict[str, ModelLimits] = {}
        for model, folder in settings.models.items():
            config = configs[model]
            kv = ModelKv(self._memory, config, block_size=settings.block_size, dtype=dtype)
            with torch.inference_mode():
                runner = ModelRunner.load(folder, config, kv)
                runner.self_test(model)
            self._runners[model] = runner
            limits[model] = ModelLimits(
                context=config.context, vocabulary=config.vocabulary, eos_token_ids=frozenset(config.eos_token_ids)
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
        self.timings = timings = Timings()
        plan = self._scheduler.schedule(started, self._pacer.prompt_tokens())
        if self._memory is not None and plan.moves:
            self._memory.carry_out(plan.moves)
        output = self._output(plan)
        timings.schedule = self._clock.monotonic() - started
        for model, chunks in plan.chunks.items():
            self._execute(self._runners[model], chunks, output)
        self._steps += 1
        timings.total = output.step_seconds = self._last_step_seconds = self._clock.monotonic() - started
        self._learn(plan, timings.total)
        if not self._scheduler.has_work():
            self._scheduler.check_integrity()
        return output

    def _learn(self, plan: Plan, seconds: float) -> None:
        decodes = prompt_tokens = 0
        for chunks in plan.chunks.values():
            for chunk in chunks:
                if chunk.count == 1:
                    decodes += 1
                else:
                    prompt_tokens += chunk.count
        self._pacer.observe(decodes=decodes, prompt_tokens=prompt_tokens, seconds=seconds)

    def capacity(self) -> Capacity:
        """See `SyncEngine.capacity`."""
        return Capacity(
            free_blocks=self._pool.free,
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            queued_prefill_tokens=self._scheduler.queued_prefill_tokens,
            last_step_seconds=self._last_step_seconds,
            decode_step_seconds=self._pacer.decode_seconds,
            prefill_tokens_per_second=self._pacer.prompt_tokens_per_second,
            cached_blocks=self._pool.cached,
            swapped=self._scheduler.swapped,
            fragmentation=self._scheduler.fragmentation,
            prefix_queried_total=self._scheduler.prefix_counters.queried,
            prefix_hit_total=self._scheduler.prefix_counters.hit,
            preemptions_total=self._scheduler.preemptions,
            spilled_blocks=self._pool.spilled,
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
        self._pool = BlockManager(self._settings.total_blocks)
        self._scheduler = self._make_scheduler({})
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _make_scheduler(self, limits: Mapping[str, ModelLimits]) -> Scheduler:
        settings = self._settings
        return Scheduler(
            models=limits,
            names=names_for(limits, settings.block_size, {}),
            pool=self._pool,
            options=SchedulerOptions(
                block_size=settings.block_size,
                max_running=settings.max_running,
                max_step_tokens=settings.max_step_tokens,
                prefix_cache=settings.prefix_cache,
                swap=settings.preemption == "swap",
                owner_share=settings.tenant_share,
            ),
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

        began = self._clock.monotonic()
        for chunk in chunks:
            if chunk.samples:
                self._prepare(chunk, output)
        with torch.inference_mode():
            ordered, results = runner.execute(chunks, self._samplers)
            failed = [
                chunk.sequence
                for chunk, result in zip(ordered, results, strict=True)
                if result is not None and result.token is None
            ]
            for sequence in failed:
                self._clear(sequence.blocks)
        computed = self._clock.monotonic()
        self.timings.forward += computed - began
        logprobs = {
            chunk.sequence.request.handle: [result.logprob]
            for chunk, result in zip(ordered, results, strict=True)
            if result is not None and result.logprob is not None
        }
        for advanced in self._scheduler.apply(ordered, [_token(result) for result in results]):
            self._report(advanced, output, logprobs)
        self.timings.apply += self._clock.monotonic() - computed

    def _clear(self, blocks: Sequence[int]) -> None:
        """What a failed sequence wrote must not be read again, not even masked."""
        own = [block for block in blocks if not self._pool.shared(block)]
        self._pool.discard(own)
        if self._memory is not None:
            self._memory.clear(own)

    def _prepare(self, chunk: Chunk, output: StepOutput) -> None:
        """Create a sequence's sampling state before its first token."""
        from services.worker.engines.torch_engine.sampler import SequenceSampler

        request = chunk.sequence.request
        if request.handle not in self._samplers:
            seed = self._draw_seed() if request.params.seed is None else request.params.seed
            self._samplers[request.handle] = SequenceSampler.create(request.params, request.prompt, seed)
            output.prompt_tokens_cached[request.handle] = chunk.sequence.cached or 0

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
