"""A caller's question as the ledger's, and the ledger's denial as an error: the same wherever a ledger decides."""

from __future__ import annotations

from typing import Protocol

from libs.errors import Reason, WeirError
from libs.quota.prices import PriceBook
from libs.quota.types import Ask, Denied, LimitKind

REASONS = {
    LimitKind.REQUESTS: Reason.QUOTA_REQUESTS,
    LimitKind.TOKENS: Reason.QUOTA_TOKENS,
    LimitKind.CONCURRENCY: Reason.QUOTA_CONCURRENCY,
    LimitKind.SPEND: Reason.QUOTA_SPEND,
    LimitKind.BUDGET_DAY: Reason.QUOTA_SPEND,
    LimitKind.BUDGET_MONTH: Reason.QUOTA_SPEND,
    LimitKind.MAX_CONTEXT: Reason.CONTEXT_LENGTH_EXCEEDED,
    LimitKind.MAX_OUTPUT: Reason.INVALID_REQUEST,
}
"""Each limit's reason on the wire."""

MOST_TOKENS = 2**32
"""Of one request. More is a fault of the caller, and sums of it would not fit the numbers of the journal."""


class Reserve(Protocol):
    """What is asked for; `weir.quota.v1.Reserve` fits."""

    tenant: str
    model: str
    request_id: str
    tokens: int
    prompt_tokens: int
    max_output_tokens: int
    choices: int
    model_version: str
    over_quota_allowed: bool
    request_counted: bool
    granted: bool
    grows: bool


def ask_of(reserve: Reserve, prices: PriceBook, *, holder: str = "") -> Ask:
    """What a Reserve asks for, priced; never for fewer tokens than its own prompt and outputs need, but where it says
    that it grows: then not for fewer than its prompt.

    A request that names a prompt and no output has none: several prompts, of which it names the longest.

    :raises WeirError: INVALID_REQUEST for more than `MOST_TOKENS`.
    """
    prompt, output = reserve.prompt_tokens, reserve.max_output_tokens
    tokens = max(reserve.tokens, prompt + (0 if reserve.grows else output * (reserve.choices or 1)))
    if tokens > MOST_TOKENS:
        raise WeirError(Reason.INVALID_REQUEST, f"no request has {tokens} tokens", limit="tokens")
    model, version = reserve.model, reserve.model_version
    prompts = tokens if prompt and not output else prompt
    return Ask(
        reserve.tenant,
        model,
        reserve.request_id,
        tokens,
        version,
        prices.of(version, model).cost(tokens, prompts),
        prompt + output,
        output,
        not reserve.request_counted,
        reserve.over_quota_allowed,
        holder,
        reserve.granted,
        reserve.grows,
    )


def error_of(denied: Denied, retry_after_ns: int | None) -> WeirError:
    """The refusal for the caller; `retry_after_ns` as the denial says, or later."""
    return WeirError(
        REASONS[denied.kind],
        denied.message(),
        limit=denied.kind.value,
        retry_after=None if retry_after_ns is None else retry_after_ns / 1_000_000_000,
    )
