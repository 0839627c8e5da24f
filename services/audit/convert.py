"""Records as canonical JSON and back; what a record must have."""

from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf import duration_pb2, json_format, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from weir.audit.v1 import audit_pb2

from libs.auditlog import Entry
from libs.auditlog.tail import Line
from libs.errors import Reason, WeirError
from libs.telemetry.scrub import has_findings, scrub_value

MAX_ID = 128
"""Longest record id, in characters."""
_encode = msgspec.json.Encoder(order="sorted").encode


def record_json(record: audit_pb2.Record, *, max_bytes: int) -> bytes:
    """Return a record as canonical JSON: sorted keys, proto field names, unset fields left out.

    Texts in it are scanned for the shapes of secrets and personal data, whatever the field. `training_allowed` is
    always there: no training on customer data is an explicit flag, not an absence.

    :raises WeirError: INVALID_REQUEST for a record without id, time, source or event; PAYLOAD_TOO_LARGE.
    """
    for name, present in (
        ("id", 0 < len(record.id) <= MAX_ID),
        ("time", record.HasField("time") and 0 < record.time.seconds < 253402300800),
        ("source", bool(record.source)),
        ("event", record.WhichOneof("event") is not None),
    ):
        if not present:
            raise WeirError(Reason.INVALID_REQUEST, f"an audit record needs a valid {name}", limit=name)
    body = _plain(record)
    if "request" in body:
        body["request"].setdefault("training_allowed", False)
    encoded = _encode(body)
    if has_findings(encoded.decode()):
        encoded = _encode(scrub_value(body))
    if len(encoded) > max_bytes:
        raise WeirError(Reason.PAYLOAD_TOO_LARGE, f"an audit record has at most {max_bytes} bytes", limit="record")
    return encoded


def shown(line: Line) -> audit_pb2.StoredRecord:
    """Return a line of the log as operators see it: its record, or what is wrong with it."""
    if line.entry is None:
        return audit_pb2.StoredRecord(sequence=line.sequence, damage=line.damage)
    try:
        record = json_format.Parse(line.entry.record, audit_pb2.Record(), ignore_unknown_fields=True)
    except json_format.ParseError:
        return audit_pb2.StoredRecord(sequence=line.sequence, damage="the record cannot be read")
    return audit_pb2.StoredRecord(sequence=line.sequence, record=record, hash=line.entry.hash.hex())


def about(tenant: str) -> Callable[[Entry], bool]:
    """Return a test of entries: is it about the tenant (any, when empty)? Operators' changes are about none.

    It raises `msgspec.DecodeError` for a record that is no record.
    """
    if not tenant:
        return lambda _: True
    # A cheap look before the record is parsed; the name may also stand in another field.
    mark = tenant.encode()
    return lambda entry: mark in entry.record and tenant in _read(entry.record).tenants


class _Event(msgspec.Struct):
    tenant: str = ""


class _Record(msgspec.Struct):
    request: _Event | None = None
    safety: _Event | None = None
    security: _Event | None = None

    @property
    def tenants(self) -> list[str]:
        return [event.tenant for event in (self.request, self.safety, self.security) if event]


_read = msgspec.json.Decoder(_Record).decode


def _plain(message: Message) -> dict[str, Any]:
    # About five times faster than json_format.MessageToDict, which is most of an append's cost otherwise.
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        return list(value) if field.is_repeated else value
    if isinstance(value, timestamp_pb2.Timestamp | duration_pb2.Duration):
        return value.ToJsonString()
    return _plain(value)
