"""An `Engine` over TensorRT-LLM's documented LLM API.

Source: https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html (`LLM`, `SamplingParams`, `KvCacheConfig`,
`RequestOutput`). TensorRT-LLM needs an NVIDIA GPU and NVIDIA's own package index; this adapter is held to that
reference by the engine contract suite on a double with the documented signatures, and is not claimed to have run on
a GPU.

TensorRT-LLM schedules by itself, in the order of arrival: it is given no priorities. `followed.py` has what this
adapter shares with other such libraries.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.clock import Clock
from libs.versions.manifest import MANIFEST
from services.worker.engines.followed import FollowedEngine
from services.worker.engines.library import Delta, Load, RequestRefusedError, token_logprobs
from services.worker.engines.port import (
    GREEDY_BELOW,
    Capacity,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SamplingParams,
    SequenceRequest,
)
from services.worker.model_files import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtSettings:
    """What to load. One model: a TensorRT-LLM instance holds one."""

    model: str
    """"name@version"."""
    folder: str
    """Its checkpoint or engine directory."""
    require_manifest: bool = True
    """Refuse a folder whose files are not what its manifest.json says."""
    total_blocks: int = 4096
    block_size: int = 32
    max_running: int = 64
    max_context: int = 8192
    tensor_parallel: int = 1
    enable_block_reuse: bool = True
    health_interval: float = 1.0
    """Seconds between two questions for the library's health."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's ends of sequence; the library, given no tokenizer, does not know them."""


def build(
    settings: TensorrtSettings,
    *,
    clock: Clock,
    on_failure: Callable[[BaseException], None] | None = None,
    load_module: Callable[[], Any] = lambda: importlib.import_module("tensorrt_llm"),
) -> FollowedEngine:
    """The engine, not yet started. `load_module` gives the package `tensorrt_llm`; it is imported at `start`."""
    return FollowedEngine(TensorrtLibrary(settings, load_module=load_module), clock=clock, on_failure=on_failure)


class TensorrtLibrary:
    """TensorRT-LLM as a `Library`."""

    def __init__(self, settings: TensorrtSettings, *, load_module: Callable[[], Any]) -> None:
        self._settings = settings
        self._load_module = load_module
        self._module: Any = None
        self._loading: asyncio.Future[Any] | None = None
        self._llm: Any = None
        self._health = _Health(settings.health_interval)

    @property
    def info(self) -> EngineInfo:
        """See `Library`."""
        settings = self._settings
        return EngineInfo(
            engine="tensorrt_llm",
            simulated=False,
            models=(settings.model,),
            block_size=settings.block_size,
            total_blocks=settings.total_blocks,
            max_running=settings.max_running,
            max_context=settings.max_context,
            device="cuda",
        )

    async def load(self, on_failure: Callable[[BaseException], None]) -> None:
        """Import TensorRT-LLM and build or load the engine, in a thread: it takes minutes. From then on it is asked
        for its health.

        :raises EngineLoadError: the package is missing, or it cannot load the model.
        """
        try:
            self._module = self._load_module()
        except ImportError as error:
            raise EngineLoadError(f"tensorrt_llm is not installed ({error})") from error
        self._loading = asyncio.ensure_future(asyncio.to_thread(self._make))
        try:
            self._llm = await asyncio.shield(self._loading)
        except Exception as error:  # TensorRT-LLM raises many types; each means that the model cannot be served
            raise EngineLoadError(f"{self._settings.folder}: {error}") from error
        self._health.watch(getattr(self._llm, "_check_health", None), on_failure)

    def _make(self) -> Any:
        settings = self._settings
        folder = Path(settings.folder)
        files = ModelFiles.of(folder, settings.model, required=settings.require_manifest)
        seal = files.seal(path.name for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
        llm = self._module.LLM(
            model=settings.folder,
            skip_tokenizer_init=True,  # token ids in, token ids out
            tensor_parallel_size=settings.tensor_parallel,
            max_batch_size=settings.max_running,
            max_seq_len=settings.max_context,
            enable_chunked_prefill=True,
            kv_cache_config=self._module.llmapi.KvCacheConfig(
                enable_block_reuse=settings.enable_block_reuse,
                max_tokens=settings.total_blocks * settings.block_size,
                tokens_per_block=settings.block_size,
            ),
        )
        try:
            seal.require_unbroken()
        except EngineLoadError:
            llm.shutdown()
            raise
        return llm

    def problem(self, request: SequenceRequest) -> str:
        """See `Library`."""
        if request.params.logit_bias:
            return "logit_bias is not offered by this engine"
        if request.params.min_tokens or request.params.bad_words:
            # The library's own minimum bars one end of sequence, and no stop token; its bad words are texts.
            return "min_tokens and bad_words are not offered by this engine"
        if request.params.structure is not None:
            # The library's guided decoding needs a tokenizer, and this adapter loads none.
            return "structured output is not offered by this engine"
        return ""

    async def generate(self, request: SequenceRequest, room: int) -> AsyncGenerator[Delta, None]:
        """See `Library`. The library reports growing outputs and not how much of a prompt it found cached."""
        arguments = sampling_arguments(request.params, room, self._settings.eos_token_ids)
        salt = request.cache_salt
        try:
            sampling = self._module.SamplingParams(**arguments)
        except ValueError as error:
            raise RequestRefusedError("the engine does not take these sampling parameters") from error
        sent, finished = 0, False
        try:
            result = self._llm.generate_async(
                list(request.prompt),
                sampling_params=sampling,
                streaming=True,
                cache_salt=salt.hex() if salt else None,
            )
            try:
                async for output in result:
                    delta = self._delta(request, output.outputs[0], sent)
                    sent += len(delta.tokens)
                    finished = delta.finish is not None
                    yield delta
                    if finished:
                        return
            finally:
                if not finished:
                    result.abort()
        except Exception:
            self._health.doubt()
            raise

    def _delta(self, request: SequenceRequest, completion: Any, sent: int) -> Delta:
        """What is new in `outputs[0]` after the first `sent` tokens."""
        tokens = [int(token) for token in completion.token_ids[sent:]]
        finish = None
        if completion.finish_reason is not None:
            finish = _FINISH.get(completion.finish_reason, FinishReason.ERROR)
            # The reference excludes stop words from the output; the end-of-sequence id may still be its last token.
            ends = {*request.params.stop_token_ids, *self._settings.eos_token_ids}
            if finish is FinishReason.STOP and tokens and tokens[-1] in ends:
                tokens.pop()
        entries = list(completion.logprobs or [])[sent:]
        return Delta(tokens, finish, token_logprobs(request.params.logprobs, tokens, entries))

    def capacity(self, load: Load) -> Capacity:
        """See `Engine`. Blocks are counted by what each sequence may grow to: TensorRT-LLM's own figures come
        asynchronously."""
        return Capacity(
            free_blocks=max(0, self._settings.total_blocks - load.reserved_blocks),
            running=load.started,
            waiting=load.unstarted,
            queued_prefill_tokens=load.queued_prefill_tokens,
            last_step_seconds=load.last_step_seconds,
        )

    async def close(self) -> None:
        """See `Library`."""
        self._health.stop()
        if self._loading is None:
            return
        with contextlib.suppress(Exception):  # a failed load has been reported by `load`
            self._llm = await self._loading
        if (llm := self._llm) is not None:
            self._llm = None
            await asyncio.to_thread(llm.shutdown)


class _Health:
    """Asks the library whether it is alive, every `interval` seconds and whenever that is in doubt.

    What is asked is what trtllm-serve's `/health` asks (`LLM._check_health`); a version of the library that lacks it is
    judged by its errors alone (`supervised.py`). The thread is its own and keeps nobody from ending: nothing says how
    long a library that is broken takes to answer.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._asked = threading.Event()
        self._stopped = False

    def watch(self, is_well: Callable[[], bool] | None, on_failure: Callable[[BaseException], None]) -> None:
        """Call `on_failure` on this loop, once, when `is_well` says no or raises."""
        if is_well is not None:
            arguments = (is_well, on_failure, asyncio.get_running_loop())
            threading.Thread(target=self._run, args=arguments, name="trtllm.health", daemon=True).start()

    def doubt(self) -> None:
        """Ask now."""
        self._asked.set()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped = True
        self._asked.set()

    def _run(
        self,
        is_well: Callable[[], bool],
        on_failure: Callable[[BaseException], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        failure: BaseException | None = None
        while failure is None:
            self._asked.wait(self._interval)
            self._asked.clear()
            if self._stopped:
                return
            try:
                failure = None if is_well() else RuntimeError("TensorRT-LLM says that it is not well")
            except Exception as error:  # whatever it raises, it cannot say that it is well
                failure = error
        with contextlib.suppress(RuntimeError):  # the loop closed without stopping the engine
            loop.call_soon_threadsafe(on_failure, failure)


_FINISH: dict[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "cancelled": FinishReason.CANCELLED,
    "timeout": FinishReason.DEADLINE,
}


def sampling_arguments(params: SamplingParams, room: int, eos: tuple[int, ...] = ()) -> dict[str, Any]:
    """The keyword arguments of `tensorrt_llm.SamplingParams`; `room` is the context left after the prompt.

    A temperature of 0 is asked for as `top_k=1`: the reference wants a positive temperature. What is off here is left
    out, so that the library's own "off" applies.
    """
    arguments: dict[str, Any] = {
        "max_tokens": min(params.max_tokens, room),
        "ignore_eos": params.ignore_eos,
        "detokenize": False,
        "add_special_tokens": False,
    }
    # Without a tokenizer the library demands an end id; -1 is its "none".
    arguments["end_id"] = eos[0] if eos else -1
    stops = [*params.stop_token_ids, *(() if params.ignore_eos else eos[1:])]
    if stops:
        arguments["stop_token_ids"] = stops
    if params.temperature < GREEDY_BELOW:
        arguments["top_k"] = 1
    else:
        arguments["temperature"] = params.temperature
        if params.top_k:
            arguments["top_k"] = params.top_k
        if params.top_p < 1:
            arguments["top_p"] = params.top_p
        if params.min_p:
            arguments["min_p"] = params.min_p
    for name, off in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)):
        if getattr(params, name) != off:
            arguments[name] = getattr(params, name)
    if params.seed is not None:
        arguments["seed"] = params.seed
    if params.logprobs is not None:
        arguments["logprobs"] = params.logprobs
    return arguments
