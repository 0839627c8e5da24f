"""Records as drafts of the log and back; what a record must have."""

import re
from collections.abc import Callable
from typing import Any

from google.protobuf import duration_pb2, json_format, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from weir.audit.v1 import audit_pb2

from libs.auditlog import Entry, Incoming, Origin
from libs.auditlog.frame import CLEAR, Draft, FrameError, draft_of, header_of, values
from libs.auditlog.tail import Line
from libs.errors import Reason, WeirError
from libs.telemetry.scrub import has_findings, scrub_value
from services.audit.sealing import Opened

MAX_ID = 128
"""Longest record id, in characters."""
_HEX = re.compile("[0-9a-f]{16}")


def incoming_of(batch: audit_pb2.AppendBatch, *, max_bytes: int) -> list[Incoming]:
    """Return what a journal's batch holds; a record that cannot be stored says why instead.

    :raises WeirError: INVALID_REQUEST for a batch without records, or whose names are none.
    """
    for name in ("journal", "epoch"):
        if not _HEX.fullmatch(getattr(batch, name)):
            raise WeirError(Reason.INVALID_REQUEST, f"a batch's {name} has 16 hex digits", limit=name)
    if not batch.records or not 0 < batch.first < 2**63:
        raise WeirError(Reason.INVALID_REQUEST, "a batch has records, the first of them a number", limit="records")
    incoming = []
    for sequence, payload in enumerate(batch.records, batch.first):
        origin = Origin(batch.source, batch.journal, batch.epoch, sequence, batch.start or 1)
        try:
            record = audit_pb2.Record.FromString(payload)
            if record.source != batch.source:
                raise WeirError(Reason.PERMISSION_DENIED, "a journal's records are of its own source", limit="source")
            record.origin.journal, record.origin.epoch, record.origin.sequence = origin[1:4]
            incoming.append(Incoming(record.id, draft_of_record(record, max_bytes=max_bytes), origin))
        except (DecodeError, WeirError) as error:
            reason = error.reason if isinstance(error, WeirError) else Reason.INVALID_REQUEST
            incoming.append(Incoming("", b"", origin, f"refused: {reason.name}"))
    return incoming


def draft_of_record(record: audit_pb2.Record, *, max_bytes: int) -> Draft:
    """Return a record as it will be sealed: canonical JSON, proto field names, unset fields left out.

    Texts in it are scanned for the shapes of secrets and personal data, whatever the field. `training_allowed` is
    always there: no training on customer data is an explicit flag, not an absence.

    :raises WeirError: INVALID_REQUEST for a record without id, time, source or event; PAYLOAD_TOO_LARGE.
    """
    for name, present in (
        ("id", 0 < len(record.id) <= MAX_ID),
        ("time", record.HasField("time") and 0 < record.time.seconds < 253402300800),
        ("source", bool(record.source)),
        ("event", record.WhichOneof("event") not in (None, *CLEAR)),
    ):
        if not present:
            raise WeirError(Reason.INVALID_REQUEST, f"an audit record needs a valid {name}", limit=name)
    body = _plain(record)
    if "request" in body:
        body["request"].setdefault("training_allowed", False)
    encoded = values(body)
    if has_findings(encoded.decode()):
        body = scrub_value(body)
        encoded = values(body)
    if len(encoded) > max_bytes:
        raise WeirError(Reason.PAYLOAD_TOO_LARGE, f"an audit record has at most {max_bytes} bytes", limit="record")
    return draft_of(body)


def shown(line: Line, open_entry: Callable[[Entry], Opened]) -> audit_pb2.StoredRecord:
    """Return a line of the log as operators see it: its record, what is left of one that was erased, or what is wrong
    with it."""
    if line.entry is None:
        return audit_pb2.StoredRecord(sequence=line.sequence, damage=line.damage)
    opened = open_entry(line.entry)
    try:
        if opened.body is None or opened.fault:
            raise FrameError(opened.fault)
        record = json_format.ParseDict(opened.body, audit_pb2.Record(), ignore_unknown_fields=True)
    except (json_format.ParseError, FrameError) as error:
        damage = str(error) if isinstance(error, FrameError) else "the record cannot be read"
        return audit_pb2.StoredRecord(sequence=line.sequence, damage=damage)
    return audit_pb2.StoredRecord(
        sequence=line.sequence, record=record, hash=line.entry.hash.hex(), erased_by=opened.erased_by
    )


def about(tenant: str) -> Callable[[Entry], bool]:
    """Return a test of entries: is it about the tenant (any, when empty)? Operators' changes are about none.

    It raises `FrameError` for a record that is no record.
    """
    if not tenant:
        return lambda _: True
    # A cheap look before the record is parsed; the name may also stand in another field.
    mark = tenant.encode()
    return lambda entry: mark in entry.record and header_of(entry.record).tenant == tenant


def _plain(message: Message) -> dict[str, Any]:
    # About five times faster than json_format.MessageToDict, which is most of an append's cost otherwise.
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        return list(value) if field.is_repeated else value
    if isinstance(value, timestamp_pb2.Timestamp | duration_pb2.Duration):
        return value.ToJsonString()
    return _plain(value)
