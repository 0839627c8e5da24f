"""What a submission must satisfy before it costs a grant or touches the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.errors import Reason, WeirError
from services.worker.engines.port import EngineInfo, SamplingParams, sampling_fault


@dataclass(frozen=True, slots=True)
class Asked:
    """One sequence as submitted, but for its prompt's content."""

    number: int
    """The gateway's own."""
    request_id: str
    model: str
    choice: int
    prompt_tokens: int
    remaining: float
    """Seconds to its deadline; 0 when none was given."""
    params: SamplingParams
    resumed: int = 0
    """So many of the prompt's last tokens are output."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a group of choices asks of its grant."""

    prompt_tokens: int
    max_output_tokens: int
    choices: int


def check_group(group: Sequence[Asked], info: EngineInfo) -> Demand:
    """What the choices of one request, submitted together under one grant, ask for.

    :raises WeirError: INVALID_REQUEST, MODEL_NOT_FOUND, CONTEXT_LENGTH_EXCEEDED, DEADLINE_EXCEEDED.
    """
    first = group[0]
    if first.model not in info.models:
        raise WeirError(Reason.MODEL_NOT_FOUND, f"{first.model} is not served by this worker")
    if len({asked.choice for asked in group}) != len(group):
        raise WeirError(Reason.INVALID_REQUEST, "two sequences of one request have the same choice", limit="choice")
    for asked in group:
        _check_one(asked, first, info)
    return Demand(
        prompt_tokens=max(asked.prompt_tokens for asked in group),
        max_output_tokens=max(asked.params.max_tokens for asked in group),
        choices=len(group),
    )


def _check_one(asked: Asked, first: Asked, info: EngineInfo) -> None:
    if asked.model != first.model:
        raise WeirError(Reason.INVALID_REQUEST, "the choices of one request share a model", limit="model_version")
    if asked.remaining <= 0:
        raise WeirError(Reason.DEADLINE_EXCEEDED, "no time is left", limit="remaining")
    if asked.prompt_tokens < 1:
        raise WeirError(Reason.INVALID_REQUEST, "the prompt is empty", limit="prompt")
    if asked.resumed >= asked.prompt_tokens:
        raise WeirError(Reason.INVALID_REQUEST, "more tokens are resumed than came", limit="resumed_tokens")
    if asked.params.structure is not None and info.simulated:
        raise WeirError(
            Reason.INVALID_REQUEST,
            "structured output is not offered by a simulated engine: its tokens come from no model",
            limit="structured_output",
        )
    if asked.params.bad_words and info.simulated:
        raise WeirError(
            Reason.INVALID_REQUEST,
            "bad words are not offered by a simulated engine: its tokens come from no model",
            limit="bad_words",
        )
    if asked.prompt_tokens >= info.max_context:
        raise WeirError(
            Reason.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {asked.prompt_tokens} tokens; the context is {info.max_context}",
            limit="context",
        )
    if (fault := sampling_fault(asked.params)) is not None:
        field, message = fault
        raise WeirError(Reason.INVALID_REQUEST, message, limit=field)
