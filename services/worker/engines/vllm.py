"""An `Engine` over vLLM (its V1 engine, `AsyncLLM`), which runs in processes of its own.

Run with vLLM 0.32 on a CPU (`make test-engines`). docs/engines.md says what has been run where and what differs from
the other engines. vLLM brings its own torch, so it lives in an environment of its own (`make vllm-env`); nothing of
it is imported before `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from libs.clock import Clock
from libs.telemetry import get_logger
from services.worker.config import VllmOptions
from services.worker.engines.followed import FollowedEngine
from services.worker.engines.library import Delta, Load, RequestRefusedError
from services.worker.engines.port import Capacity, EngineInfo, EngineLoadError, SamplingParams, SequenceRequest
from services.worker.engines.vllm_files import Checkpoint, adapter_rank, check_adapter, read_checkpoint
from services.worker.engines.vllm_requests import (
    bar,
    begun,
    delta_of,
    salt_text,
    sampling_arguments,
    stop_ids,
    structure_arguments,
)
from services.worker.engines.vllm_stats import SchedulerWatch, stat_logger_factory

log = get_logger(__name__)

_SELF_TEST_TOKENS = 2
_FREE_SECONDS = 1.0
"""Within which vLLM frees what was aborted, or it counts as freed."""


class VllmSettings(VllmOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to load, and the worker's options. One base model and its LoRA adapters: a vLLM instance holds one."""

    model: str
    """"name@version"."""
    folder: str
    """Its checkpoint."""


def build(
    settings: VllmSettings, *, clock: Clock, on_failure: Callable[[BaseException], None] | None = None
) -> FollowedEngine:
    """The engine, not yet started."""
    return FollowedEngine(VllmLibrary(settings, clock=clock), clock=clock, on_failure=on_failure)


def environment(settings: VllmSettings) -> dict[str, str]:
    """The variables that vLLM reads and its processes inherit. What the operator has set goes before these."""
    variables = {
        # Nothing is reported to anybody and nothing is looked up on a hub: models are folders.
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Its processes end by a signal anyway, and a worker that drains has little time left.
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "2",
        # gRPC's threads do not survive a fork.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # Workers on one machine must not all bind themselves to its first cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
        # All sequences of one step reach the loop in one turn, so that they become one frame.
        "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": str(max(128, settings.max_running)),
    }
    if settings.enforce_eager:
        # vLLM's own setting leaves its sampler to be compiled in the first step (20 s on two cores).
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


class VllmLibrary:
    """vLLM as a `Library`."""

    def __init__(self, settings: VllmSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._watch = SchedulerWatch(clock=clock)
        self._checkpoint = Checkpoint(eos=frozenset(), has_tokenizer=False)
        self._tokenizer_eos: int | None = None
        self._vllm: Any = None  # the names used of the package
        self._loading: asyncio.Future[Any] | None = None
        self._llm: Any = None
        self._max_context = settings.max_context
        self._device = "cpu"
        self._requests = 0
        self._adapters: dict[str, Any] = {}  # LoRARequest by model
        self._adapter_loads: dict[str, asyncio.Task[Any]] = {}

    @property
    def info(self) -> EngineInfo:
        """See `Library`."""
        settings = self._settings
        return EngineInfo(
            engine="vllm",
            simulated=False,
            models=(settings.model, *settings.adapters),
            block_size=settings.block_size,
            total_blocks=self._watch.total_blocks,
            max_running=settings.max_running,
            max_context=self._max_context,
            device=self._device,
            preemptive=True,
        )

    # ---- life ----------------------------------------------------------------------------------------------------

    async def load(self, on_failure: Callable[[BaseException], None]) -> None:
        """Check the files, import vLLM, start its processes (in a thread: it takes a while) and run a few tokens.

        :raises EngineLoadError: the package is missing, a file is missing or wrong, or vLLM cannot load the model.
        """
        self._loading = asyncio.ensure_future(asyncio.to_thread(self._make))
        try:
            self._llm = await asyncio.shield(self._loading)
        except EngineLoadError:
            raise
        except Exception as error:  # vLLM raises many types; each means that the model cannot be served
            raise EngineLoadError(f"{self._settings.folder}: vLLM cannot load it ({error}); see its log") from error
        config = self._llm.vllm_config
        self._watch.total_blocks = config.cache_config.num_gpu_blocks - 1  # vLLM keeps one for itself
        self._max_context = config.model_config.max_model_len
        self._device = str(config.device_config.device_type)
        await self._self_test()
        self._llm.output_handler.add_done_callback(lambda handler: self._on_handler_end(handler, on_failure))

    def _make(self) -> Any:
        settings = self._settings
        self._checkpoint = read_checkpoint(
            Path(settings.folder), settings.model, require_manifest=settings.require_manifest
        )
        lora = _lora_arguments(settings)
        for name, value in environment(settings).items():
            os.environ.setdefault(name, value)
        try:
            self._vllm = _Names()
        except ImportError as error:
            raise EngineLoadError(f"vLLM is not installed in this environment ({error}): `make vllm-env`") from error
        self._adapters = {
            model: self._vllm.LoRARequest(lora_name=model, lora_int_id=number, lora_path=folder)
            for number, (model, folder) in enumerate(settings.adapters.items(), start=1)
        }
        arguments = engine_arguments(settings, self._checkpoint) | lora
        llm = self._vllm.AsyncLLM.from_engine_args(
            self._vllm.AsyncEngineArgs(**arguments),
            stat_loggers=[stat_logger_factory(self._vllm.StatLoggerBase, self._watch.record)],
        )
        try:
            self._checkpoint.seal.require_unbroken()
        except EngineLoadError:
            llm.shutdown()
            raise
        if llm.tokenizer is not None:
            self._tokenizer_eos = llm.tokenizer.eos_token_id
        return llm

    async def _self_test(self) -> None:
        params = SamplingParams(max_tokens=_SELF_TEST_TOKENS, temperature=0.0, ignore_eos=True)
        request = SequenceRequest(handle=0, model=self._settings.model, prompt=[0], params=params)
        found: list[int] = []
        try:
            async for delta in self.generate(request, self._max_context - 1):
                found += delta.tokens
        except Exception as error:
            raise EngineLoadError(f"{self._settings.folder}: the self-test failed ({type(error).__name__})") from error
        if len(found) != _SELF_TEST_TOKENS:
            raise EngineLoadError(f"{self._settings.folder}: the self-test gave {len(found)} tokens")

    def _on_handler_end(self, handler: asyncio.Future[None], on_failure: Callable[[BaseException], None]) -> None:
        """vLLM's reader of results ends when its processes have died, and never before `close`."""
        error = None if handler.cancelled() else handler.exception()
        on_failure(error or RuntimeError("vLLM's processes have ended"))

    async def close(self) -> None:
        """See `Library`."""
        if self._loading is None:
            return
        with contextlib.suppress(Exception):  # a failed load has been reported by `load`
            self._llm = await self._loading
        for task in self._adapter_loads.values():
            task.cancel()
        self._loading = None
        if (llm := self._llm) is not None:
            self._llm = None
            await asyncio.to_thread(llm.shutdown)
            # Its destructor does so again, and complains of modules that are gone at the interpreter's end.
            llm.shutdown = lambda timeout=None: None

    # ---- requests ------------------------------------------------------------------------------------------------

    def problem(self, request: SequenceRequest) -> str:
        """See `Library`. What else vLLM refuses it says itself, when it is given the request."""
        if request.params.structure is not None and not self._checkpoint.has_tokenizer:
            return "structured output needs a tokenizer.json in the model's folder"
        if request.params.structure is not None and request.resumed:
            return "this engine cannot continue a structured output that was begun elsewhere"
        if request.params.structure is not None and request.params.min_tokens:
            # It would bar the end of sequence where that alone is left, and then no token is.
            return "this engine offers no min_tokens beside a structured output"
        if request.resumed and begun(request.params.bad_words, request.prompt[-request.resumed :]):
            return "this engine cannot continue an output that was begun elsewhere and ends within a bad word"
        return ""

    async def generate(self, request: SequenceRequest, room: int) -> AsyncGenerator[Delta, None]:
        """See `Library`."""
        vllm, params = self._vllm, request.params
        stops = stop_ids(params, self._checkpoint.eos, self._tokenizer_eos)
        salt = salt_text(request.cache_salt)
        self._requests += 1
        adapter = await self._adapter(request.model)
        self._watch.begin()
        try:
            sampling = self._sampling(params, room, stops)
            # Checking a structure compiles it, which takes long enough to do it in a thread; vLLM does so for prompts
            # that it has yet to prepare.
            prompt = vllm.TokensPrompt if params.structure is not None else vllm.tokens_input
            salted = {"cache_salt": salt} if salt else {}
            stream = self._llm.generate(
                prompt(prompt_token_ids=list(request.prompt), **salted),
                sampling,
                f"{request.handle}-{self._requests}",
                lora_request=adapter,
                priority=request.priority,
            )
            async with contextlib.aclosing(stream):
                async for output in stream:
                    yield delta_of(output, params, stops)
        except (asyncio.CancelledError, GeneratorExit):
            # vLLM was told, in a message that nobody answers.
            await self._watch.settled(_FREE_SECONDS)
            raise
        except (vllm.VLLMClientError, ValueError) as error:  # its words for a request that it does not take
            raise RequestRefusedError(_one_line(error)) from error

    def _sampling(self, params: SamplingParams, room: int, stops: frozenset[int]) -> Any:
        structure = structure_arguments(params)
        sampling = self._vllm.SamplingParams(
            **sampling_arguments(params, room=room, stops=stops),
            structured_outputs=self._vllm.StructuredOutputsParams(**structure) if structure else None,
            output_kind=self._vllm.RequestOutputKind.DELTA,
        )
        if params.bad_words:
            bar(sampling, params.bad_words)
        return sampling

    async def _adapter(self, model: str) -> Any:
        """The LoRA adapter of this name, loaded; None for the base model.

        vLLM would load an adapter by itself in the step that first needs it, and one that cannot be loaded would end
        the whole engine there; loaded beforehand, it fails its own requests alone.
        """
        adapter = self._adapters.get(model)
        if adapter is None:
            return None
        load = self._adapter_loads.get(model)
        if load is None or (load.done() and (load.cancelled() or load.exception() is not None)):
            load = self._adapter_loads[model] = asyncio.ensure_future(self._load_adapter(model, adapter))
        try:
            await asyncio.shield(load)
        except Exception as error:
            reason = str(error) if isinstance(error, EngineLoadError) else type(error).__name__
            log.warning("adapter_not_loaded", model=model, reason=reason)
            raise RequestRefusedError(f"the adapter {model} cannot be loaded") from error
        return adapter

    async def _load_adapter(self, model: str, adapter: Any) -> None:
        settings = self._settings
        folder = Path(settings.adapters[model])
        seal = await asyncio.to_thread(check_adapter, folder, model, require_manifest=settings.require_manifest)
        await self._llm.add_lora(adapter)
        seal.require_unbroken()

    def capacity(self, load: Load) -> Capacity:
        """See `Engine`: vLLM's own figures, as of its last step."""
        return self._watch.capacity(load)


class _Names:
    """What is used of vLLM, imported on construction."""

    def __init__(self) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.metrics.loggers import StatLoggerBase

        self.AsyncEngineArgs, self.AsyncLLM, self.LoRARequest = AsyncEngineArgs, AsyncLLM, LoRARequest
        self.RequestOutputKind, self.SamplingParams = RequestOutputKind, SamplingParams
        self.StatLoggerBase, self.StructuredOutputsParams = StatLoggerBase, StructuredOutputsParams
        self.TokensPrompt, self.VLLMClientError, self.tokens_input = TokensPrompt, VLLMClientError, tokens_input


def engine_arguments(settings: VllmSettings, checkpoint: Checkpoint) -> dict[str, Any]:
    """The keyword arguments of `AsyncEngineArgs`, without those for adapters."""
    arguments: dict[str, Any] = {
        "model": settings.folder,
        "dtype": settings.dtype,
        "block_size": settings.block_size,
        "max_num_seqs": settings.max_running,
        "max_num_batched_tokens": settings.max_step_tokens,
        "max_logprobs": settings.max_logprobs,
        "logprobs_mode": "raw_logprobs",
        "tensor_parallel_size": settings.tensor_parallel,
        "enforce_eager": settings.enforce_eager,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "scheduling_policy": "priority",
        "skip_tokenizer_init": not checkpoint.has_tokenizer,
        "trust_remote_code": False,
        "load_format": "safetensors",
        "disable_log_stats": True,
        # The library that the torch engine uses too. A weak model under a grammar that allows any whitespace fills its
        # output with it.
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
        "gpu_memory_utilization": settings.memory_share,
    }
    if settings.max_context:
        arguments["max_model_len"] = settings.max_context
    if settings.total_blocks:
        arguments["num_gpu_blocks_override"] = settings.total_blocks + 1  # vLLM keeps one for itself
    if settings.kv_cache_bytes:
        arguments["kv_cache_memory_bytes"] = settings.kv_cache_bytes
    return arguments


def _lora_arguments(settings: VllmSettings) -> dict[str, Any]:
    if not settings.adapters:
        return {}
    return {
        "enable_lora": True,
        "max_lora_rank": adapter_rank(dict(settings.adapters)),
        "max_loras": settings.max_adapters,
        "max_cpu_loras": max(settings.max_adapters, len(settings.adapters)),
    }


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."
