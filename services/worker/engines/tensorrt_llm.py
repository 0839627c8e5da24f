"""An `Engine` over TensorRT-LLM's documented LLM API.

Source: https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html (`LLM`, `SamplingParams`, `KvCacheConfig`,
`RequestOutput`). TensorRT-LLM needs an NVIDIA GPU and NVIDIA's own package index; this adapter is held to that
reference by the engine contract suite on a double with the documented signatures, and is not claimed to have run on
a GPU.

TensorRT-LLM schedules by itself; the adapter follows each request in a task and gathers what all of them produced
within one turn of the event loop into one step.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libs.clock import Clock
from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SamplingParams,
    SequenceRequest,
    StepOutput,
    StepSink,
    TokenLogprob,
)

logger = logging.getLogger(__name__)

_FAILED = "the engine failed on this sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtSettings:
    """What to load. One model: a TensorRT-LLM instance holds one."""

    model: str
    """"name@version"."""
    folder: str
    """Its checkpoint or engine directory."""
    total_blocks: int = 4096
    block_size: int = 32
    max_running: int = 64
    max_context: int = 8192
    tensor_parallel: int = 1
    enable_block_reuse: bool = True
    eos_token_ids: tuple[int, ...] = ()
    """The model's ends of sequence; the library, given no tokenizer, does not know them."""


@dataclass(slots=True)
class _Running:
    request: SequenceRequest
    blocks: int
    started: bool = False  # its first token has come
    result: Any = None
    task: asyncio.Task[None] | None = None
    ended_by_us: FinishReason | None = None
    sent: int = 0  # output tokens reported


class TensorrtEngine:
    """See the module docstring."""

    def __init__(
        self,
        settings: TensorrtSettings,
        *,
        clock: Clock,
        load_module: Callable[[], Any] = lambda: importlib.import_module("tensorrt_llm"),
    ) -> None:
        """`load_module` gives the package `tensorrt_llm`; it is imported at `start`, not before."""
        self._settings = settings
        self._clock = clock
        self._load_module = load_module
        self._module: Any = None
        self._llm: Any = None
        self._sink: StepSink | None = None
        self._live: dict[int, _Running] = {}
        self._free_blocks = settings.total_blocks
        self._pending: StepOutput | None = None
        self._steps = 0
        self._last_step_at = 0.0
        self._last_step_seconds = 0.0
        self._stopped = False
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def info(self) -> EngineInfo:
        """See `Engine`."""
        settings = self._settings
        return EngineInfo(
            engine="tensorrt_llm",
            simulated=False,
            models=(settings.model,),
            block_size=settings.block_size,
            total_blocks=settings.total_blocks,
            max_running=settings.max_running,
            max_context=settings.max_context,
        )

    async def start(self, sink: StepSink) -> None:
        """Import TensorRT-LLM and build or load the engine, in a thread: it takes minutes.

        :raises EngineLoadError: the package is missing, or it cannot load the model.
        """
        self._sink = sink
        try:
            self._module = self._load_module()
        except ImportError as error:
            raise EngineLoadError(f"tensorrt_llm is not installed ({error})") from error
        try:
            self._llm = await asyncio.to_thread(self._load)
        except Exception as error:  # TensorRT-LLM raises many types; each means that the model cannot be served
            raise EngineLoadError(f"{self._settings.folder}: {error}") from error

    def _load(self) -> Any:
        settings = self._settings
        return self._module.LLM(
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

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Engine`."""
        for request in requests:
            problem = self._problem(request)
            if problem:
                self._report(request.handle, [], FinishReason.ERROR, problem)
                continue
            tokens = min(len(request.prompt) + request.params.max_tokens, self._settings.max_context)
            running = _Running(request, blocks=-(-tokens // self._settings.block_size))
            self._live[request.handle] = running
            self._free_blocks -= running.blocks
            running.task = asyncio.get_running_loop().create_task(self._follow(running))
        self._arm_deadlines()

    def cancel(self, handles: Sequence[int]) -> None:
        """See `Engine`."""
        for handle in handles:
            self._abort(handle, FinishReason.CANCELLED)

    def capacity(self) -> Capacity:
        """See `Engine`. Blocks are counted here, by what each sequence may grow to: TensorRT-LLM's own figures come
        asynchronously."""
        waiting = [running for running in self._live.values() if not running.started]
        return Capacity(
            free_blocks=max(0, self._free_blocks),
            running=len(self._live) - len(waiting),
            waiting=len(waiting),
            queued_prefill_tokens=sum(len(running.request.prompt) for running in waiting),
            last_step_seconds=self._last_step_seconds,
        )

    async def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """:raises EngineLoadError: always; the LLM API returns no hidden states of generation models."""
        raise EngineLoadError(f"the TensorRT-LLM engine offers no embeddings of {model}")

    async def stop(self) -> None:
        """See `Engine`."""
        self._stopped = True
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        tasks = [running.task for running in self._live.values() if running.task is not None]
        self.cancel(list(self._live))
        await asyncio.gather(*tasks, return_exceptions=True)
        self._flush()
        if (llm := self._llm) is not None:
            self._llm = None
            await asyncio.to_thread(llm.shutdown)

    def _problem(self, request: SequenceRequest) -> str:
        if self._stopped or self._llm is None:
            return "the engine takes no more work"
        if request.model != self._settings.model:
            return f"model {request.model} is not served here"
        if not request.prompt:
            return "the prompt is empty"
        if len(request.prompt) >= self._settings.max_context:
            return f"the prompt has {len(request.prompt)} tokens; the context is {self._settings.max_context}"
        if request.params.max_tokens < 1:
            return "max_tokens must be at least 1"
        if request.params.logit_bias:
            return "logit_bias is not offered by this engine"
        return ""

    def _sampling(self, request: SequenceRequest) -> Any:
        room = self._settings.max_context - len(request.prompt)
        return self._module.SamplingParams(**sampling_arguments(request.params, room, self._settings.eos_token_ids))

    async def _follow(self, running: _Running) -> None:
        """Report a request's tokens as they come, and its end."""
        handle = running.request.handle
        message = _FAILED
        try:
            salt = running.request.cache_salt
            running.result = self._llm.generate_async(
                list(running.request.prompt),
                sampling_params=self._sampling(running.request),
                streaming=True,
                cache_salt=salt.hex() if salt else None,
            )
            async for output in running.result:
                if running.ended_by_us is not None:
                    break
                if self._on_output(running, output.outputs[0]):
                    return
            if running.ended_by_us is None:
                message = "the engine ended the sequence without a reason"
        except asyncio.CancelledError:
            if running.ended_by_us is None:
                raise
        except Exception as error:  # one request's failure, of whatever type, must not reach the others
            logger.error("tensorrt_llm request failed: %s", type(error).__name__)
        self._end(handle, [], running.ended_by_us or FinishReason.ERROR, message)

    def _on_output(self, running: _Running, completion: Any) -> bool:
        """Report what is new in `outputs[0]`; True when it was the last."""
        handle = running.request.handle
        tokens = [int(token) for token in completion.token_ids[running.sent :]]
        entries = list(completion.logprobs or [])[running.sent : running.sent + len(tokens)]
        running.sent += len(tokens)
        if tokens and not running.started:
            running.started = True
            self._step().prompt_tokens_cached[handle] = 0
        if completion.finish_reason is None:
            self._report(handle, tokens, None, logprobs=self._logprobs(running, tokens, entries))
            return False
        finish = _FINISH.get(completion.finish_reason, FinishReason.ERROR)
        # The reference excludes stop words from the output; the end-of-sequence id may still be its last token.
        ends = {*running.request.params.stop_token_ids, *self._settings.eos_token_ids}
        if finish is FinishReason.STOP and tokens and tokens[-1] in ends:
            tokens.pop()
        logprobs = self._logprobs(running, tokens, entries[: len(tokens)])
        self._end(handle, tokens, finish, _FAILED, logprobs=logprobs)
        return True

    def _logprobs(
        self, running: _Running, tokens: Sequence[int], entries: Sequence[Mapping[int, Any]]
    ) -> list[TokenLogprob]:
        wanted = running.request.params.logprobs
        if wanted is None or len(entries) != len(tokens):
            return []
        return [
            TokenLogprob(float(entry[token].logprob), _best(entry, wanted))
            for token, entry in zip(tokens, entries, strict=True)
        ]

    def _abort(self, handle: int, reason: FinishReason) -> None:
        running = self._live.get(handle)
        if running is None:
            return
        running.ended_by_us = reason
        if running.result is not None:
            running.result.abort()
        # The task may be waiting for an output that an aborted request never gives.
        if running.task is not None:
            running.task.cancel()
        self._end(handle, [], reason, "")

    def _end(
        self,
        handle: int,
        tokens: Sequence[int],
        finish: FinishReason,
        message: str,
        *,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        running = self._live.pop(handle, None)
        if running is None:
            return  # ended before, by a cancel
        self._free_blocks += running.blocks
        self._report(handle, tokens, finish, message, logprobs=logprobs)

    # ---- deadlines -----------------------------------------------------------------------------------------------

    def _arm_deadlines(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        nearest = min((r.request.deadline or math.inf for r in self._live.values()), default=math.inf)
        if nearest != math.inf:
            delay = max(0.0, nearest - self._clock.monotonic())
            self._deadline_timer = asyncio.get_running_loop().call_later(delay, self._end_late)

    def _end_late(self) -> None:
        now = self._clock.monotonic()
        for handle, running in list(self._live.items()):
            if running.request.deadline is not None and running.request.deadline <= now:
                self._abort(handle, FinishReason.DEADLINE)
        self._arm_deadlines()

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _step(self) -> StepOutput:
        """The step being gathered; it is handed out at the end of this turn of the loop."""
        if self._pending is None:
            self._pending = StepOutput(
                step=self._steps, handles=[], tokens=[], finish=[], logprobs={}, errors={}, prompt_tokens_cached={}
            )
            self._steps += 1
            asyncio.get_running_loop().call_soon(self._flush)
        return self._pending

    def _report(
        self,
        handle: int,
        tokens: Sequence[int],
        finish: FinishReason | None,
        message: str = "",
        *,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        step = self._step()
        if handle not in step.handles:
            step.handles.append(handle)
            step.tokens.append([])
            step.finish.append(0)
        at = step.handles.index(handle)
        step.tokens[at].extend(tokens)
        step.finish[at] = finish or 0
        if logprobs:
            step.logprobs.setdefault(handle, []).extend(logprobs)
        if finish is FinishReason.ERROR:
            step.errors[handle] = message

    def _flush(self) -> None:
        output, self._pending = self._pending, None
        if output is None or self._sink is None:
            return
        before, self._last_step_at = self._last_step_at, self._clock.monotonic()
        if before:
            output.step_seconds = self._last_step_seconds = self._last_step_at - before
        self._sink(output)


_FINISH: dict[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "cancelled": FinishReason.CANCELLED,
    "timeout": FinishReason.DEADLINE,
}


def sampling_arguments(params: SamplingParams, room: int, eos: tuple[int, ...] = ()) -> dict[str, Any]:
    """The keyword arguments of `tensorrt_llm.SamplingParams`; `room` is the context left after the prompt.

    `temperature=0` is asked for as `top_k=1`: the reference wants a positive temperature. What is off here is left
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
    if params.temperature == 0:
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


def _best(entry: Mapping[int, Any], count: int) -> list[tuple[int, float]]:
    return sorted(((int(token), float(each.logprob)) for token, each in entry.items()), key=lambda p: -p[1])[:count]
