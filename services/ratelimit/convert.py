"""What replicas tell one another, and the registry's `Spend`, ⇄ the ledger's values. The rest of `weir.quota.v1` is
`libs.limiter.wire`."""

from __future__ import annotations

import zlib

import msgspec
from google.protobuf.message import DecodeError
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.clock.stamps import timestamp
from libs.errors import Reason, WeirError
from libs.quota import (
    Batch,
    Cursor,
    Logged,
    Piece,
    Record,
    Tally,
)
from libs.registry import keys
from libs.resources.codec import decode, unpack

_MOST_STATE = 16 * 2**20
"""Bytes of a piece of state, unpacked: as much as a message of the mesh could hold as it is."""
_encoder = msgspec.msgpack.Encoder()
_batches = msgspec.msgpack.Decoder(Batch)
_pieces = msgspec.msgpack.Decoder(Piece)
_cursors = msgspec.msgpack.Decoder(Cursor)


# --- kept in the registry ---------------------------------------------------------------------------------------------


def spend_key(tenant: str) -> str:
    """Where a tenant's record lies."""
    return keys.key_of(registry_pb2.Spend(tenant=tenant))


def record_of(spend: registry_pb2.Spend | None) -> Record:
    """What a record says; without one, nothing."""
    if spend is None:
        return Record()
    return Record(
        Tally(spend.day, spend.day_microusd, spend.day_alert_percent),
        Tally(spend.month, spend.month_microusd, spend.month_alert_percent),
    )


def stored_record(value: bytes) -> Record:
    """What a record says as it lies in the store; nothing when it cannot be read."""
    try:
        spend = unpack(decode(value, 0))
    except (DecodeError, ValueError):
        return Record()
    return record_of(spend if isinstance(spend, registry_pb2.Spend) else None)


def spend_of(tenant: str, record: Record, at: float) -> registry_pb2.Spend:
    """The record as it is kept; `at` in Unix seconds."""
    day, month = record
    return registry_pb2.Spend(
        tenant=tenant,
        day=day.key,
        day_microusd=day.microusd,
        day_alert_percent=day.alert_percent,
        month=month.key,
        month_microusd=month.microusd,
        month_alert_percent=month.alert_percent,
        at=timestamp(at),
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


def fill_state(message: quota_pb2.State, piece: Piece) -> None:
    """Writes a piece of the state. Compressed: ids and repeated names are most of it."""
    message.state = zlib.compress(_encoder.encode(piece), 1)
    if piece.next is not None:
        message.cursor = _encoder.encode(piece.next)


def piece_of(message: quota_pb2.State) -> Piece:
    """A piece of another replica's state.

    :raises WeirError: INVALID_REQUEST when it cannot be read (another version of the limiter), or unpacks to more than
        16 MiB.
    """
    unpacking = zlib.decompressobj()
    try:
        state = unpacking.decompress(message.state, _MOST_STATE)
        if unpacking.unconsumed_tail:
            raise WeirError(Reason.INVALID_REQUEST, "the state unpacks to too much", limit="state")
        return _pieces.decode(state)
    except (msgspec.DecodeError, zlib.error) as error:
        raise WeirError(Reason.INVALID_REQUEST, "the state cannot be read", limit="state") from error


def cursor_of(message: quota_pb2.FetchState) -> Cursor:
    """Where the piece begins that is asked for.

    :raises WeirError: INVALID_REQUEST when it cannot be read.
    """
    if not message.cursor:
        return Cursor()
    try:
        return _cursors.decode(message.cursor)
    except msgspec.DecodeError as error:
        raise WeirError(Reason.INVALID_REQUEST, "the cursor cannot be read", limit="cursor") from error
