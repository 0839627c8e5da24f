"""How refusals are worded and when the caller is told to come back."""

from __future__ import annotations

from collections.abc import Sequence

from services.admission.policy.ledger import Worker
from services.admission.policy.model import Outcome, Refused, Request

MIN_RETRY_AFTER = 0.1
"""Seconds; coming back sooner finds the same queue."""
MAX_RETRY_AFTER = 60.0
"""Seconds; an estimate beyond is no better than this."""


def refuse(
    request: Request,
    outcome: Outcome,
    message: str,
    *,
    limit: str = "",
    retry_after: float | None = None,
    waited: float = 0.0,
) -> Refused:
    """A refusal whose `retry_after` (seconds) is kept within bounds."""
    if retry_after is not None:
        retry_after = min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, retry_after))
    return Refused(request, outcome, message, limit, retry_after, waited)


def never_fits(request: Request, candidates: Sequence[Worker]) -> Refused:
    """Why the request fits none of these workers (at least one) even when they are empty."""
    tokens = request.prompt_tokens + request.max_output_tokens
    context = max(worker.spec.max_context for worker in candidates)
    if tokens > context:
        return refuse(
            request,
            Outcome.CONTEXT_LENGTH_EXCEEDED,
            f"Prompt and output of {tokens} tokens exceed the context of {context}.",
            limit="max_context",
        )
    return refuse(
        request,
        Outcome.REJECTED_NO_CAPACITY,
        f"{request.choices} choices of {tokens} tokens fit no worker of {request.model_version}, even an empty one.",
        limit="kv_blocks",
    )
