"""A double of `tensorrt_llm` with the documented signatures; anything undocumented is a TypeError.

Recorded from https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html (LLM, SamplingParams, KvCacheConfig,
RequestOutput). It generates tokens from the last one, at one token per turn of the loop, for at most max_batch_size
requests at once, in the order of arrival.
"""

from __future__ import annotations

import asyncio
import types
from dataclasses import dataclass, field
from typing import Any

EOS = 2


@dataclass
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    exclude_input_from_output: bool = True
    guided_decoding: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self):
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError("temperature must be positive")


@dataclass
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    tokens_per_block: int = 32


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None


class RequestOutput:
    """Async iterable of itself, growing; `abort()` ends it."""

    def __init__(self, prompt: list[int], params: SamplingParams, batch: list[RequestOutput], size: int) -> None:
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput()]
        self.finished = False
        self._params = params
        self._aborted = False
        self._batch = batch
        self._size = size
        batch.append(self)

    def abort(self) -> None:
        self._aborted = True
        if self in self._batch:
            self._batch.remove(self)

    def _end(self, reason: str) -> RequestOutput:
        self.finished, self.outputs[0].finish_reason = True, reason
        if self in self._batch:
            self._batch.remove(self)
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        while not self._aborted and self not in self._batch[: self._size]:  # noqa: ASYNC110 - its steps are turns
            await asyncio.sleep(0)
        params, out = self._params, self.outputs[0]
        if self._aborted:
            return self._end("cancelled")
        position = len(self.prompt_token_ids) + len(out.token_ids)
        last = out.token_ids[-1] if out.token_ids else self.prompt_token_ids[-1]
        seed = 0 if params.top_k == 1 else (params.seed or 0)
        token = (last * 31 + position * 7 + seed * 13) % 90 + 5
        stops = set(params.stop_token_ids or ())
        if not params.ignore_eos and params.end_id is not None:
            stops.add(params.end_id)
        if token in stops:
            return self._end("stop")
        out.token_ids.append(token)
        if params.logprobs is not None:
            entry = {token: Logprob(-0.5, 1), 3: Logprob(-1.5, 2), 4: Logprob(-2.5, 3)}
            out.logprobs.append(dict(list(entry.items())[: max(1, params.logprobs)]))
        if len(out.token_ids) >= params.max_tokens:
            return self._end("length")
        return self


class LLM:
    def __init__(
        self,
        model,
        tokenizer=None,
        tokenizer_mode="auto",
        skip_tokenizer_init=False,
        trust_remote_code=False,
        tensor_parallel_size=1,
        dtype="auto",
        revision=None,
        tokenizer_revision=None,
        *,
        kv_cache_config=None,
        max_batch_size=None,
        max_seq_len=None,
        max_num_tokens=None,
        enable_chunked_prefill=False,
    ) -> None:
        if "missing" in str(model):
            raise RuntimeError("no such checkpoint")
        self.kv_cache_config = kv_cache_config
        self._batch: list[RequestOutput] = []
        self._size = max_batch_size
        self.is_down = False
        self.well: bool | Exception = True
        self.broken: Exception | None = None

    def _check_health(self) -> bool:
        """What trtllm-serve's /health asks (tensorrt_llm/serve/openai_server.py)."""
        if isinstance(self.well, Exception):
            raise self.well
        return self.well

    def generate_async(
        self,
        inputs,
        sampling_params=None,
        lora_request=None,
        prompt_adapter_request=None,
        streaming=False,
        kv_cache_retention_config=None,
        disaggregated_params=None,
        cache_salt=None,
    ):
        if self.broken is not None:
            raise self.broken
        assert isinstance(inputs, list)
        assert all(type(token) is int for token in inputs)
        if sampling_params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        return RequestOutput(inputs, sampling_params, self._batch, self._size)

    def shutdown(self) -> None:
        self.is_down = True


def module() -> Any:
    """What `import tensorrt_llm` would give."""
    double = types.ModuleType("tensorrt_llm")
    double.LLM, double.SamplingParams = LLM, SamplingParams
    double.llmapi = types.SimpleNamespace(KvCacheConfig=KvCacheConfig)
    return double
