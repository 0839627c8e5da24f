"""What a library that schedules by itself (TensorRT-LLM, vLLM) gives to `FollowedEngine`, and is told by it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.worker.engines.port import Capacity, EngineInfo, FinishReason, SequenceRequest, TokenLogprob


@dataclass(slots=True)
class Delta:
    """What is new in one stream."""

    tokens: list[int]
    finish: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One per token for those who asked."""
    cached: int = 0
    """Prompt tokens found in the prefix cache; read with the first token."""
    message: str = ""
    """For FinishReason.ERROR; fit for the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the follower knows of its sequences."""

    started: int
    """Sequences whose first token has come."""
    unstarted: int
    queued_prefill_tokens: int
    """Prompt tokens of those that have not started."""
    reserved_blocks: int
    """Blocks that all sequences together may grow to."""
    last_step_seconds: float

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self.started + self.unstarted


class RequestRefusedError(Exception):
    """The library refuses this one request; the message is fit for the caller."""


class Library(Protocol):
    """A library behind the port. Called on the event loop only."""

    @property
    def info(self) -> EngineInfo:
        """Constant after `load`."""

    async def load(self, on_failure: Callable[[BaseException], None]) -> None:
        """Load and self-test. `on_failure` may be called later, when the library has broken for good.

        :raises EngineLoadError: see `Engine.start`.
        """

    def problem(self, request: SequenceRequest) -> str:
        """Why this request is impossible here, beyond what `info` tells; empty when it is not."""

    def generate(self, request: SequenceRequest, room: int) -> AsyncGenerator[Delta, None]:
        """The request's stream; `room` is the context left after its prompt, in tokens. Ends after a delta with a
        `finish`. Closing or cancelling it aborts the request; it is closed once the request's memory is given back.

        :raises RequestRefusedError: the library does not take the request.
        """

    def capacity(self, load: Load) -> Capacity:
        """See `Engine.capacity`."""

    async def close(self) -> None:
        """Release the device. Called once, last, also after a failed or cancelled `load`."""


def token_logprobs(
    wanted: int | None, tokens: Sequence[int], entries: Sequence[Mapping[int, Any]]
) -> list[TokenLogprob]:
    """What both libraries give per token, an object with `logprob` by token id, as the port wants it: the chosen
    token's and the `wanted` best, which need not include it."""
    if wanted is None or len(entries) < len(tokens):
        return []
    found = []
    for token, entry in zip(tokens, entries, strict=False):
        best = sorted(((int(each), float(of.logprob)) for each, of in entry.items()), key=lambda pair: -pair[1])
        found.append(TokenLogprob(float(entry[token].logprob), best[:wanted]))
    return found
