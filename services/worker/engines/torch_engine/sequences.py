"""The values that the scheduler works on: live sequences, a step's plan, and what a step led to. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from services.worker.engines.port import FinishReason, SequenceRequest, sampling_fault
from services.worker.engines.torch_engine.blocks import Move, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the scheduler knows of a model: `context` tokens of prompt + output, token ids below `vocabulary`. No layer
    sees more than `window` tokens, 0 if one sees all."""

    context: int
    vocabulary: int
    eos_token_ids: frozenset[int]
    window: int = 0


class State(enum.Enum):
    """Where a sequence stands. Only RUNNING ones hold device memory."""

    HELD = "held"  # waits for the choice that computes the common prompt
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"  # preempted; keys and values lie in lower tiers
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class LiveSequence:
    """`tokens` is prompt + output; the first `computed` of them have keys and values in `blocks` (while swapped: in
    `places`), but for those of the first `slid` blocks, which no layer will see again and which were given back.
    `chain` names its leading whole blocks, `sealed` of which the cache knows.

    `row` is its place among the running sequences (0 … max_running-1), -1 while it does not run; `limit` the most
    output tokens it may produce; `cached` how many prompt tokens were found in the prefix cache.
    """

    request: SequenceRequest
    arrival: int
    limit: int
    stop_ids: frozenset[int]
    window: int
    tokens: list[int]
    state: State = State.WAITING
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    chain: list[bytes] = field(default_factory=list)
    public: int = 0
    sealed: int = 0
    slid: int = 0
    cached: int | None = None
    version: int = 0  # changes whenever `blocks` does
    row: int = -1
    overtaken: int = 0
    leader: LiveSequence | None = None
    followers: list[LiveSequence] = field(default_factory=list)

    @property
    def urgency(self) -> tuple[int, int]:
        """Smaller is served first."""
        return self.request.priority, self.arrival

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def left(self) -> int:
        """Tokens whose keys and values are still to be computed before the next token is known."""
        return len(self.tokens) - self.computed

    @property
    def pending_prompt(self) -> int:
        """Prompt tokens not yet computed."""
        return max(0, len(self.request.prompt) - self.computed)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.state is not State.ENDED


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute tokens `start` … `start+count-1` of a sequence; `samples` says that its next token is wanted."""

    sequence: LiveSequence
    start: int
    count: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that ended without a new token."""

    handle: int
    reason: FinishReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's work by model, the copies between blocks that must come first, in order, and the sequences that
    ended since the step before."""

    chunks: dict[str, list[Chunk]]
    moves: list[Move]
    ended: list[Ended]


FAILED = -1
"""In place of a token: the model gave no usable numbers for a chunk."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a sampled token led to. `token` is None when it was a stop token or the sequence failed."""

    sequence: LiveSequence
    token: int | None
    finish: int  # 0 while the sequence goes on, or FinishReason
    message: str = ""


def request_fault(request: SequenceRequest, limits: ModelLimits | None, context: int) -> str:
    """Why a request cannot be served by a model with `limits` within `context` tokens, "" if it can."""
    if limits is None:
        return f"model {request.model} is not loaded here"
    if not request.prompt:
        return "the prompt is empty"
    if len(request.prompt) >= context:
        return f"the prompt has {len(request.prompt)} tokens and the context only {context}"
    if not 0 <= min(request.prompt) <= max(request.prompt) < limits.vocabulary:
        return f"the prompt holds a token id outside 0 … {limits.vocabulary - 1}"
    if not 0 <= request.resumed <= len(request.prompt):
        return "resumed is more than the prompt holds"
    if (fault := sampling_fault(request.params)) is not None:
        return fault[1]
    if not all(0 <= token < limits.vocabulary for token in request.params.logit_bias):
        return "logit_bias names an unknown token id"
    if not all(0 <= token < limits.vocabulary for token in request.params.stop_token_ids):
        return "stop_token_ids names an unknown token id"
    if not all(0 <= token < limits.vocabulary for word in request.params.bad_words for token in word):
        return "bad_words holds an unknown token id"
    if request.params.logprobs is not None and not 0 <= request.params.logprobs <= limits.vocabulary:
        return "logprobs is out of range"
    return ""
