"""A caller's question as the ledger's, and the ledger's denial as an error: the same wherever a ledger decides."""

from __future__ import annotations

from typing import Protocol

from libs.errors import Reason, WeirError
from libs.quota.prices import PriceBook
from libs.quota.types import ROWS, Ask, Denied, LimitKind
from libs.quota.window import MINUTE_NS

REASONS = {
    LimitKind.REQUESTS: Reason.QUOTA_REQUESTS,
    LimitKind.TOKENS: Reason.QUOTA_TOKENS,
    LimitKind.ROWS: Reason.QUOTA_ROWS,
    LimitKind.CONCURRENCY: Reason.QUOTA_CONCURRENCY,
    LimitKind.SPEND: Reason.QUOTA_SPEND,
    LimitKind.BUDGET_DAY: Reason.QUOTA_SPEND,
    LimitKind.BUDGET_MONTH: Reason.QUOTA_SPEND,
    LimitKind.MAX_CONTEXT: Reason.CONTEXT_LENGTH_EXCEEDED,
    LimitKind.MAX_OUTPUT: Reason.INVALID_REQUEST,
}
"""Each limit's reason on the wire."""

_PER_MINUTE = frozenset({LimitKind.REQUESTS, LimitKind.TOKENS, LimitKind.ROWS})

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
    rows: bool
    requests: int


def ask_of(reserve: Reserve, prices: PriceBook, *, holder: str = "") -> Ask:
    """What a Reserve asks for, priced; never for fewer tokens than its own prompt and outputs need, but where it says
    that it grows: then not for fewer than its prompt.

    A request that names a prompt and no output has none: several prompts, of which it names the longest.

    What counts rows (`rows`) asks for its `tokens` as they are.

    :raises WeirError: INVALID_REQUEST for more than `MOST_TOKENS`.
    """
    if reserve.rows:
        return _ask_of_rows(reserve, prices, holder)
    prompt, output = reserve.prompt_tokens, reserve.max_output_tokens
    tokens = max(reserve.tokens, prompt + (0 if reserve.grows else output * (reserve.choices or 1)))
    _check_most(tokens, "tokens")
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


def _ask_of_rows(reserve: Reserve, prices: PriceBook, holder: str) -> Ask:
    rows, model, version = reserve.tokens, reserve.model, reserve.model_version
    _check_most(rows, "rows")
    return Ask(
        tenant=reserve.tenant,
        model=ROWS + model,
        request_id=reserve.request_id,
        tokens=rows,
        version=version,
        spend=prices.of(version, model).of_rows(rows),
        count_request=not reserve.request_counted,
        over_quota_allowed=reserve.over_quota_allowed,
        holder=holder,
        granted=reserve.granted,
        requests=reserve.requests or 1,
    )


class Settle(Protocol):
    """What was used; `weir.quota.v1.Settle` fits."""

    model: str
    model_version: str
    tokens: int
    prompt_tokens: int
    cached_prompt_tokens: int
    rows: bool


def used_of(settle: Settle, prices: PriceBook) -> tuple[str, int, int]:
    """What a Settle says, as the ledger counts it: the model, the tokens or rows, and the micro-dollars."""
    price, tokens = prices.of(settle.model_version, settle.model), min(settle.tokens, MOST_TOKENS)
    if settle.rows:
        return ROWS + settle.model, tokens, price.of_rows(tokens)
    return settle.model, tokens, price.cost(tokens, settle.prompt_tokens, settle.cached_prompt_tokens)


def _check_most(count: int, unit: str) -> None:
    if count > MOST_TOKENS:
        raise WeirError(Reason.INVALID_REQUEST, f"no request has {count} {unit}", limit=unit)


def error_of(denied: Denied, retry_after_ns: int | None) -> WeirError:
    """The refusal for the caller; `retry_after_ns` as the denial says, or later.

    Of a limit per minute it says a minute at most. A window's slot counts for up to a second too long and jitter comes
    on top, while clients in the field (OpenAI's among them) obey up to 60 s and take what is longer for no word at all.
    """
    if retry_after_ns is not None and denied.kind in _PER_MINUTE:
        retry_after_ns = min(retry_after_ns, MINUTE_NS)
    return WeirError(
        REASONS[denied.kind],
        denied.message(),
        limit=denied.kind.value,
        retry_after=None if retry_after_ns is None else retry_after_ns / 1_000_000_000,
    )
