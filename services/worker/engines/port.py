"""The engine port: the only seam between a worker and the thing that runs a model.

Every engine (torch, simulated, TensorRT-LLM, vLLM) implements `Engine` and passes the same contract suite
(`tests/contract/engines/test_engine_contract.py`). Engines take and return token ids; text never crosses this line.

Threading: every method is called from the worker's event loop and must return without blocking. Steps happen
elsewhere (a thread, a process, a device); their results arrive through the `StepSink`, which the engine calls on the
event loop, once per step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from libs.versions.errors import LoadError


class FinishReason(enum.IntEnum):
    """Why a sequence ended. The numbers equal `weir.worker.v1.FinishReason`."""

    STOP = 1  # a stop token id or end of sequence
    LENGTH = 2  # max_tokens or the context was reached
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5


@dataclass(frozen=True, slots=True)
class Structure:
    """What the whole output must match: `kind` says how `text` is to be read. An output that is complete ends with
    STOP, also when the end of sequence is otherwise ignored."""

    kind: Literal["json_schema", "regex", "grammar"]
    text: str  # a JSON Schema document (`{}` is any JSON value), a regular expression without anchors, a Lark grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose the next token. `temperature=0` is greedy.

    `seed` makes a sequence reproducible whatever else is in the batch; None draws one at submission.
    `logprobs` is the number of top alternatives to return per token; None returns no log-probabilities, 0 returns
    only the chosen token's. `min_tokens`, like `max_tokens` of what is generated here (resumed tokens do not count),
    bars what would end the output before so many tokens. `bad_words` are sequences of tokens that do not come: the last
    of each is barred where the output ends with the others. Where a structure leaves only what is barred, that comes.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    structure: Structure | None = None

    def ends(self, eos: frozenset[int]) -> frozenset[int]:
        """The tokens that end a sequence; `eos` are the model's own. A structured output that is complete ends with one
        of these, whatever the request says about them."""
        ignored = self.ignore_eos and self.structure is None
        return frozenset(self.stop_token_ids if ignored else eos.union(self.stop_token_ids))


SAMPLING_BOUNDS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-10.0, 10.0),
    "frequency_penalty": (-10.0, 10.0),
    "logit_bias": (-100.0, 100.0),
}
"""What every engine can compute with in float32: logits of some thousands, multiplied or divided by these, stay finite
and in order. A `top_p` of 0 is none. Gateways allow less."""

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow."""


def sampling_fault(params: SamplingParams) -> tuple[str, str] | None:
    """The first field that no engine can use, and what is wrong with it, fit for the caller."""
    if params.max_tokens < 1:
        return "max_tokens", "max_tokens must be at least 1"
    if not 0 <= params.min_tokens <= params.max_tokens:
        return "min_tokens", "min_tokens must be from 0 to max_tokens"
    if not all(params.bad_words):
        return "bad_words", "bad_words holds a word of no tokens"
    for field_name, (low, high) in SAMPLING_BOUNDS.items():
        value = getattr(params, field_name)
        # NaN fails every comparison, so the check is written to hold for good values.
        if not all(low <= each <= high for each in (value.values() if isinstance(value, dict) else (value,))):
            return field_name, f"{field_name} must be from {low:g} to {high:g}"
    return None if params.top_p else ("top_p", "top_p must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """One sequence to generate. `handle` is unique among the engine's live sequences (the worker's own number)."""

    handle: int
    model: str  # "name@version", one of EngineInfo.models
    prompt: Sequence[int]
    params: SamplingParams
    deadline: float | None = None  # clock.monotonic() seconds; past it the sequence ends with DEADLINE
    priority: int = 0  # lower runs first
    cache_salt: bytes = b""  # tenant salt for prefix caching: prompts share memory only under equal salts
    resumed: int = 0  # so many of the prompt's last tokens are output, generated before the sequence moved here
    group: int = 0  # sequences submitted together under one number (not 0) are choices of one prompt
    kv_share: float = 0.0  # most of the blocks that its salt may hold while others want them, 0 to 1; 0: all


@dataclass(slots=True)
class TokenLogprob:
    """The chosen token's natural-log probability and the top alternatives `(token id, logprob)`, best first."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class StepOutput:
    """All that one engine step produced, in parallel arrays (index i belongs to sequence `handles[i]`).

    A sequence appears at most once per step. `finish[i]` is 0 while it goes on. A sequence that ends without a new
    token (cancelled, deadline, error) has an empty `tokens[i]`. After its finish a handle never appears again.
    `tokens[i]` excludes the stop token that ended the sequence.
    """

    step: int
    handles: list[int]
    tokens: list[list[int]]
    finish: list[int]  # 0 or FinishReason
    logprobs: dict[int, list[TokenLogprob]]  # by handle, only for sequences that asked
    errors: dict[int, str]  # by handle, for FinishReason.ERROR: a message fit for the caller
    prompt_tokens_cached: dict[int, int]  # by handle, reported once with the first token
    step_seconds: float = 0.0
    faults: list[int] = field(default_factory=list)
    """Those of `errors` that the engine is to blame for, not the request."""
    ended_before: bool = False
    """What was cancelled gave its memory back before this step began, not at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What the engine is and what it can hold. `simulated` is shown to every caller."""

    engine: str  # "torch" | "simulated" | "tensorrt_llm" | "vllm"
    simulated: bool
    models: tuple[str, ...]
    block_size: int  # tokens per KV block
    total_blocks: int
    max_running: int  # sequences that may decode at once
    max_context: int  # tokens, prompt + output
    device: str = "cpu"  # "cpu", "cuda"
    preemptive: bool = False  # it preempts sequences when blocks run out, and resumes them
    holds_shares: bool = False  # it keeps tenants within `SequenceRequest.kv_share`
    load_seconds: dict[str, dict[str, float]] = field(default_factory=dict)  # by model and stage, of its last load
    weight_cache_files: dict[str, int] = field(default_factory=dict)  # by outcome ("hit", "miss", "corrupted"), ditto
    numerics: dict[str, str] = field(default_factory=dict)
    """By model, what its numbers are known by: workers of the same one give a seeded sequence the same tokens, alone,
    in any batch and after a move. Missing where they depend on the batch, where nobody knows, and of models that did
    not fit in memory at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The engine's present load and its counters; cheap to read at any time.

    The counters (`…_total`, tokens or sequences since the start) let whoever reads twice compute rates.
    """

    free_blocks: int  # blocks that a new sequence may take, those that hold only cached prefixes included
    running: int
    waiting: int  # sequences that hold no device memory, swapped ones included
    queued_prefill_tokens: int
    last_step_seconds: float
    decode_step_seconds: float = 0.0  # smoothed duration of steps that only decode
    prefill_tokens_per_second: float = 0.0  # smoothed
    cached_blocks: int = 0  # of the free ones, those that hold reusable prefixes
    swapped: int = 0  # sequences preempted to host memory or disk
    fragmentation: float = 0.0  # share of the used blocks' token places that hold no token, 0 to 1
    prefix_queried_total: int = 0  # prompt tokens looked up
    prefix_hit_total: int = 0  # prompt tokens found
    preemptions_total: int = 0
    spilled_blocks: int = 0  # blocks kept in host memory and on disk
    resident: tuple[str, ...] | None = None  # models and adapters in memory; None: all that it serves


StepSink = Callable[[StepOutput], None]


class Engine(Protocol):
    """A model runner. See the module docstring for its threading rule."""

    @property
    def info(self) -> EngineInfo:
        """Replaced as a whole when models come and go, and then only: its models, their times, the largest context and,
        for an engine that had no model yet, its sizes."""

    async def start(self, sink: StepSink) -> None:
        """Load, warm up and self-test; returns when ready to take work.

        :raises EngineLoadError: a weight, tokenizer or configuration file is missing, corrupted or unsupported; the
            message names the file.
        """

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """Queue sequences. An impossible one (unknown model, prompt past the context, empty prompt) is answered
        through the sink with FinishReason.ERROR; the others are not touched by it."""

    def cancel(self, handles: Sequence[int]) -> None:
        """End sequences; each is reported CANCELLED and its memory is free within one step. Unknown handles are
        ignored: they have finished already."""

    async def load(self, model: str, folder: str) -> dict[str, float]:
        """Serve one more model while the others run on: read, verify and convert its files beside the steps, warm it up
        over representative shapes, test it. Returns the seconds of each stage; `info.models` names the model then.
        Cancelled, it leaves nothing behind.

        :raises EngineLoadError: a file is missing, corrupted or unsupported, there is no room for it, it is served
            already or this engine serves what it was started with alone; the message names the file and the reason.
        """

    async def unload(self, model: str) -> None:
        """Take a model out: from this call on `info.models` lacks it, what was submitted before runs to its end, and
        then its memory is free and this returns. A model that is being loaded is loaded no further; an unknown one is
        fine.

        :raises EngineLoadError: this engine serves what it was started with alone, or another model rests on this one.
        """

    def capacity(self) -> Capacity:
        """A snapshot of the load."""

    async def embed(self, model: str, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Mean-pooled, L2-normalised last hidden states, one vector per prompt. A model that is not in memory is read
        first. Cancelling it ends the work.

        :raises EngineLoadError: the model is unknown or cannot be read.
        :raises ValueError: a prompt is empty, too long or holds an unknown token id.
        """

    async def stop(self) -> None:
        """End every sequence with CANCELLED, release the device, join the thread. Idempotent."""


EngineLoadError = LoadError
"""The engine could not load a model; the message names the file or the model and the reason."""
