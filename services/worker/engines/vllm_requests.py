"""Between the port and vLLM's request types: pure, and without vLLM itself."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from libs.structured_output import unforced
from services.worker.engines.library import Delta, RequestRefusedError, token_logprobs
from services.worker.engines.port import FinishReason, SamplingParams

_SEED_BITS = 2**63 - 1
_BAD_WORDS = "_bad_words_token_ids"
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.CANCELLED}


def stop_ids(params: SamplingParams, eos: frozenset[int], tokenizer_eos: int | None) -> frozenset[int]:
    """The tokens that end a sequence. vLLM is told all of them and none are left to what it finds in the model's
    folder, so that a model ends alike on every engine.

    A structured output that is complete can only go on with the tokenizer's end of sequence, whatever the request
    says about it.
    """
    ends = params.ends(eos)
    return ends if params.structure is None or tokenizer_eos is None else ends | {tokenizer_eos}


def sampling_arguments(params: SamplingParams, *, room: int, stops: AbstractSet[int]) -> dict[str, Any]:
    """The keyword arguments of `vllm.SamplingParams`, but for `structured_outputs` and `output_kind`, which take
    types of vLLM's, and for bad words, which it takes as text. `room` is the context left after the prompt, in
    tokens."""
    most = min(params.max_tokens, room)
    return {
        "max_tokens": most,
        "min_tokens": min(params.min_tokens, most),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "logit_bias": params.logit_bias or None,
        # vLLM reads -1 as "no seed".
        "seed": None if params.seed is None else params.seed & _SEED_BITS,
        "stop_token_ids": sorted(stops),
        "ignore_eos": True,  # see stop_ids
        "logprobs": params.logprobs,
        "detokenize": False,
    }


def structure_arguments(params: SamplingParams) -> dict[str, str] | None:
    """The keyword arguments of `vllm.sampling_params.StructuredOutputsParams`; None without a structure."""
    if params.structure is None:
        return None
    kind, text = params.structure.kind, params.structure.text
    return {"json" if kind == "json_schema" else kind: unforced(text) if kind == "grammar" else text}


def bar(sampling: Any, words: Sequence[Sequence[int]]) -> None:
    """Give a `vllm.SamplingParams` its bad words as tokens: where it keeps what it makes of texts, which it does not
    touch without texts.

    :raises RequestRefusedError: this vLLM keeps them elsewhere.
    """
    if not hasattr(sampling, _BAD_WORDS):
        raise RequestRefusedError("bad_words is not offered by this version of vLLM")
    setattr(sampling, _BAD_WORDS, [list(word) for word in words])


def begun(words: Sequence[Sequence[int]], output: Sequence[int]) -> bool:
    """Whether the output ends within a bad word: vLLM looks for its beginning only in what it has generated itself."""
    tail = list(output)
    return any(tail[-count:] == list(word[:count]) for word in words for count in range(1, len(word)))


def salt_text(salt: bytes) -> str | None:
    """vLLM's salt is a text and must not be empty; None shares with whoever else has none."""
    return salt.hex() if salt else None


def delta_of(output: Any, params: SamplingParams, stops: AbstractSet[int]) -> Delta:
    """One `vllm.RequestOutput` of kind DELTA."""
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    finish = None
    if output.finished:
        finish = _FINISH.get(completion.finish_reason, FinishReason.ERROR)
        if finish is FinishReason.STOP and tokens and tokens[-1] in stops:
            tokens.pop()
    return Delta(
        tokens,
        finish,
        token_logprobs(params.logprobs, tokens, completion.logprobs or ()),
        cached=output.num_cached_tokens or 0,
    )
