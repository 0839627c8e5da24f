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
    Batch,
    LedgerState,
    LimitReport,
    Logged,
    ReplicaState,
    Seen,
)

_SECOND = 1_000_000_000
_encoder = msgspec.msgpack.Encoder()
_batches = msgspec.msgpack.Decoder(Batch)
_states = msgspec.msgpack.Decoder(LedgerState)


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
