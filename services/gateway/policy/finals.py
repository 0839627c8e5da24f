"""What a generation was once it is over, token by token: for whoever compares answers or scores them. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from libs.errors import Reason, WeirError
from libs.outcomes import Ran
from libs.outcomes.standing import RUNNING
from services.gateway.policy.events import End, Finish

MEAN_LOGPROB = "mean_logprob"
WHOLE = (Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER)
"""The request came to its end."""


@dataclass(frozen=True, slots=True)
class FinalChoice:
    """One sequence as the worker gave it, a stop string's tokens included. `logprobs` are the natural logarithms of the
    tokens' probabilities, one per token; empty when the engine told none, or not all."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalAnswer:
    """A whole answer, however it ended (`end.finish`)."""

    model_version: str
    """What gave it, or its first part; see `moved`."""
    choices: tuple[FinalChoice, ...]
    end: End
    first_after: float
    """Seconds from the arrival to the worker's first token; 0 when there was none."""
    moved: bool = False
    """Another version gave its rest: no version can be judged by it."""

    @property
    def mean_logprob(self) -> float | None:
        """Of its own tokens; None when it has none, when the engine told none, or when two versions gave them."""
        scores = [logprob for choice in self.choices for logprob in choice.logprobs]
        if not scores or self.moved or any(choice.tokens and not choice.logprobs for choice in self.choices):
            return None
        return sum(scores) / len(scores)


def ran(
    end: End,
    *,
    first: float,
    longest: int,
    model_version: str,
    model: str,
    mean_logprob: float | None = None,
) -> Ran:
    """A request that ran.

    :param first: seconds to its first token; 0: there was none.
    :param longest: tokens of its longest choice.
    :param model: as the caller named it.
    """
    usage, decode = end.usage, end.breakdown.decode
    return Ran(
        whole=end.finish in WHOLE,
        late=end.finish is Finish.DEADLINE,
        error=_error_of(end),
        first=first,
        itl=decode / (longest - 1) if longest > 1 and decode > 0 else 0.0,
        total=end.breakdown.total,
        model_version=model_version,
        model=model,
        tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        scores=() if mean_logprob is None else ((MEAN_LOGPROB, mean_logprob),),
    )


def _error_of(end: End) -> WeirError | None:
    """What ended it; None where it came to its end."""
    if end.finish in WHOLE:
        return None
    if end.finish is Finish.CANCELLED:
        return WeirError(Reason.CANCELLED, "")
    if end.finish is Finish.DEADLINE:
        return WeirError(Reason.DEADLINE_EXCEEDED, "", limit=RUNNING)
    return end.error or WeirError(Reason.INTERNAL, "")


def answered(answer: FinalAnswer, model: str) -> Ran:
    """A copy that was answered."""
    longest = max((len(choice.tokens) for choice in answer.choices), default=0)
    return ran(
        answer.end,
        first=answer.first_after,
        longest=longest,
        model_version=answer.model_version,
        model=model,
        mean_logprob=answer.mean_logprob,
    )
