"""What a running generation tells its face (native or OpenAI). Plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from libs.errors import WeirError


class Finish(enum.IntEnum):
    """Why a choice ended; the numbers equal `weir.inference.v1.FinishReason`, the order is not severity."""

    STOP = 1
    LENGTH = 2
    CONTENT_FILTER = 3
    CANCELLED = 4
    DEADLINE = 5
    ERROR = 6

    @property
    def label(self) -> str:
        """As on the wire of the OpenAI facade, in metrics and in the audit log."""
        return self.name.lower()


_SEVERITY = (Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER, Finish.CANCELLED, Finish.DEADLINE, Finish.ERROR)


def worst(reasons: list[Finish]) -> Finish:
    """The request's finish reason out of its choices'."""
    return max(reasons, key=_SEVERITY.index)


def is_given(finish: Finish, *, shown: bool, entire: bool) -> bool:
    """Whether an answer that ended so was given, and so is billed. `shown`: there was text; `entire`: its reader gets
    none of an answer that fails.

    What failed, or was late, before its reader had anything was not. Who leaves pays for what was made until then:
    else leaving at the last moment would make capacity free.
    """
    if finish is Finish.ERROR:
        return shown and not entire
    return shown or finish is not Finish.DEADLINE


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability with its text and bytes, and the top alternatives, best first; `offset` is where its
    text begins in the choice's, in characters."""

    token: str
    raw: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()
    offset: int = 0


@dataclass(slots=True)
class ChoiceUpdate:
    """New output of one choice since the last update that was taken; `finish` is set on its last."""

    index: int
    text: str = ""
    logprobs: list[Logprob] | None = None
    finish: Finish | None = None


@dataclass(slots=True)
class Usage:
    """Tokens to bill: what was delivered; see `is_given`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0


@dataclass(slots=True)
class Breakdown:
    """Seconds per stage, as `weir.inference.v1.Breakdown` has them: all but `decode` add up to `time_to_first_token`,
    all but `release` to `total`."""

    preprocess: float = 0.0
    decide: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    release: float = 0.0
    """Until text may leave: the first part of `decode`."""
    decode: float = 0.0
    time_to_first_token: float = 0.0
    total: float = 0.0


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The one terminal event."""

    finish: Finish
    usage: Usage
    breakdown: Breakdown
    earlier: Usage = msgspec.field(default_factory=Usage)
    """What another request is billed of the same answer, which this one went on with."""
    degraded: tuple[str, ...] = ()
    error: WeirError | None = None
    """What ended it, if neither it nor its caller did so; also for CONTENT_FILTER."""
    choices: list[Finish] = msgspec.field(default_factory=list)

    @property
    def whole_usage(self) -> Usage:
        """Of the whole answer, whoever is billed for which part."""
        now, before = self.usage, self.earlier
        return Usage(
            now.prompt_tokens + before.prompt_tokens,
            now.completion_tokens + before.completion_tokens,
            now.cached_prompt_tokens + before.cached_prompt_tokens,
        )

    @property
    def error_reason(self) -> str:
        """The closed reason's name; empty without an error."""
        return "" if self.error is None else self.error.reason.name
