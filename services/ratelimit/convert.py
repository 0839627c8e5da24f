"""`weir.quota.v1` ⇄ the ledger's values."""

from __future__ import annotations

import zlib

import msgspec
from weir.quota.v1 import quota_pb2

from libs.errors import Reason, WeirError
from libs.quota import (
    MINUTE_NS,
    UNLIMITED,
    Admitted,
    Ask,
    Batch,
    Denied,
    LedgerState,
    LimitKind,
    LimitReport,
    Logged,
    PriceBook,
    ReplicaState,
    Seen,
)

_SECOND = 1_000_000_000
_encoder = msgspec.msgpack.Encoder()
_batches = msgspec.msgpack.Decoder(Batch)
_states = msgspec.msgpack.Decoder(LedgerState)

REASONS = {
    LimitKind.REQUESTS: Reason.QUOTA_REQUESTS,
    LimitKind.TOKENS: Reason.QUOTA_TOKENS,
    LimitKind.CONCURRENCY: Reason.QUOTA_CONCURRENCY,
    LimitKind.SPEND: Reason.QUOTA_SPEND,
    LimitKind.MAX_CONTEXT: Reason.CONTEXT_LENGTH_EXCEEDED,
    LimitKind.MAX_OUTPUT: Reason.INVALID_REQUEST,
}
"""Each limit's reason on the wire."""


MOST_TOKENS = 2**32
"""Of one request. More is a fault of the caller, and sums of it would not fit the numbers of the journal."""


def ask_of(reserve: quota_pb2.Reserve, holder: str, prices: PriceBook) -> Ask:
    """What a Reserve asks for, priced; never for fewer tokens than its own prompt and outputs need.

    A request that names a prompt and no output has none: several prompts, of which it names the longest.

    :raises WeirError: INVALID_REQUEST for more than `MOST_TOKENS`.
    """
    prompt, output = reserve.prompt_tokens, reserve.max_output_tokens
    tokens = max(reserve.tokens, prompt + output * (reserve.choices or 1))
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
    )


def fill_reserved(reserved: quota_pb2.Reserved, outcome: Admitted) -> None:
    """Writes what is left of each limit into an answer."""
    reserved.SetInParent()
    if outcome.requests.limit:
        _fill(reserved.requests, outcome.requests)
    if outcome.tokens.limit:
        _fill(reserved.tokens, outcome.tokens)
    if outcome.concurrency.limit:
        _fill(reserved.concurrency, outcome.concurrency)
    if outcome.spend.limit:
        _fill(reserved.spend, outcome.spend)
    if outcome.over_quota:
        reserved.over_quota = True


def admitted_of(reserved: quota_pb2.Reserved, spend: LimitReport) -> Admitted:
    """What another replica answered. `spend` is what is known of it here, since its period is not in the answer."""
    return Admitted(_report(reserved.requests), _report(reserved.tokens), _report(reserved.concurrency), spend)


def _fill(status: quota_pb2.LimitStatus, report: LimitReport) -> None:
    status.limit = report.limit
    status.remaining = report.remaining
    if report.reset_ns:
        reset = status.reset
        reset.seconds, reset.nanos = divmod(report.reset_ns, _SECOND)


def _report(status: quota_pb2.LimitStatus) -> LimitReport:
    if not status.limit:
        return UNLIMITED
    reset = status.reset
    return LimitReport(status.limit, status.remaining, reset.seconds * _SECOND + reset.nanos, MINUTE_NS)


def error_of(denied: Denied, retry_after_ns: int | None) -> WeirError:
    """The refusal for the caller."""
    return WeirError(
        REASONS[denied.kind],
        denied.message(),
        limit=denied.kind.value,
        retry_after=None if retry_after_ns is None else retry_after_ns / _SECOND,
    )


# --- between replicas -------------------------------------------------------------------------------------------------


def replicate_of(logged: Logged) -> quota_pb2.Replicate:
    """A batch for another replica."""
    origin, life = logged.part
    return quota_pb2.Replicate(
        origin=origin, life=life, sequence=logged.sequence, operations=_encoder.encode(logged.batch)
    )


def logged_of(replicate: quota_pb2.Replicate) -> Logged:
    """The batch of another replica.

    :raises WeirError: INVALID_REQUEST when it cannot be read (another version of the limiter).
    """
    try:
        batch = _batches.decode(replicate.operations)
    except msgspec.DecodeError as error:
        raise WeirError(Reason.INVALID_REQUEST, "the operations cannot be read", limit="operations") from error
    return Logged((replicate.origin, replicate.life), replicate.sequence, batch)


def fill_state(message: quota_pb2.State, state: ReplicaState) -> None:
    """Writes a whole state. Compressed: ids and repeated names are most of it."""
    message.state = zlib.compress(_encoder.encode(state.ledger), 1)
    for (origin, life), sequence in state.seen:
        message.seen.add(origin=origin, life=life, sequence=sequence)


def state_of(message: quota_pb2.State) -> ReplicaState:
    """Another replica's whole state.

    :raises WeirError: INVALID_REQUEST when it cannot be read (another version of the limiter).
    """
    try:
        ledger = _states.decode(zlib.decompress(message.state))
    except (msgspec.DecodeError, zlib.error) as error:
        raise WeirError(Reason.INVALID_REQUEST, "the state cannot be read", limit="state") from error
    return ReplicaState(ledger, tuple(Seen((seen.origin, seen.life), seen.sequence) for seen in message.seen))
