"""What a stored record looks like: a header that anybody may read, and a payload that is sealed. Pure.

A record is a JSON object. Sealed, it is the header in canonical JSON, and behind it, in this order and last:

    {"class":"request","id":"…","source":"…","tenant":"acme","time":"…","usage":{…},
     "key":"2026-11/<16 hex digits>","nonce":"<32 of base64>","sealed":"<base64>"}

What is sealed is the rest of the event, canonical JSON, by AES-256-GCM; the associated data is the hash that the record
continues ‖ its number (8 bytes, big-endian) ‖ everything before `,"sealed"`. So a payload opens with its own header, in
its own place of its own log, and nowhere else. The chain's hash is over the record as it stands here, sealed: it holds
whether or not there still is a key.

Records without `sealed` are clear: tombstones and marks, and whatever was written before there were keys.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from libs.apikeys import PSEUDONYM
from libs.sealing.scope import KeyName, Wanted

if TYPE_CHECKING:  # those who only write records need no keys
    from libs.sealing.keyring import Keyring, SealingKey

CLEAR = frozenset({"tombstone", "marks", "gap"})
"""Events that are never sealed: what proves the log must be readable without any key."""
EVENTS = ("request", "admin", "safety", "security", *sorted(CLEAR))
"""Every kind of event is a class of data, with a retention and keys of its own."""
USAGE = frozenset(
    {
        *("model", "model_version", "queue_class", "operation", "outcome", "simulated", "training_allowed"),
        *(
            "prompt_tokens",
            "completion_tokens",
            "cached_prompt_tokens",
            "rows",
            "at_most_rows",
            "at_most_tokens",
            "at_most_microusd",
            "lease",
            "spend_microusd",
            "key_id",
        ),
    }
)
"""Fields of a request that stay in its header: what a tenant's bill is made of must outlive what is erased."""
_SEALED = b',"sealed":"'
_END = b'"}'
_encode = msgspec.json.Encoder(order="sorted").encode


class FrameError(ValueError):
    """A record is not of the form above."""


class Draft(NamedTuple):
    """A record before it has its place in the log."""

    id: str
    header: bytes
    """Canonical JSON; of a clear record, all of it."""
    payload: bytes = b""
    wanted: Wanted | None = None
    """Whose key seals it; None: it stays clear."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A draft with its key."""

    draft: Draft
    key: SealingKey
    keyring: Keyring

    def record(self, prev: bytes, sequence: int) -> bytes:
        """The record for its place in the chain, each time under another nonce."""
        nonce, told = self.keyring.nonce()
        key = self.key
        header = b'%b,"key":"%b/%b","nonce":"%b"' % (
            self.draft.header[:-1],
            key.month.encode(),
            key.id.encode(),
            told,
        )
        sealed = key.aead.encrypt(nonce, self.draft.payload, associated(prev, sequence, header))
        return b"".join((header, _SEALED, base64.b64encode(sealed), _END))


class Parts(NamedTuple):
    """A sealed record, taken apart."""

    header: bytes
    """Everything before `,"sealed"`."""
    sealed: bytes
    """In base64."""


class Header(msgspec.Struct):
    """What a header says to those who have no key."""

    id: str
    source: str = ""
    time: str = ""
    tenant: str = ""
    data_class: str = msgspec.field(name="class", default="")
    key: str = ""
    """"<month>/<id>"; empty of a clear record."""
    nonce: str = ""
    usage: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> KeyName:
        """Its key."""
        month, _, key = self.key.partition("/")
        return KeyName(key, self.tenant, self.data_class, month)


class _Tenant(msgspec.Struct):
    tenant: str = ""


class _Clear(msgspec.Struct):
    """A clear record, as far as its header goes."""

    id: str
    source: str = ""
    time: str = ""
    request: _Tenant | None = None
    admin: _Tenant | None = None
    safety: _Tenant | None = None
    security: _Tenant | None = None
    tombstone: _Tenant | None = None
    marks: _Tenant | None = None
    gap: _Tenant | None = None


_read_header = msgspec.json.Decoder(Header).decode
_read_clear = msgspec.json.Decoder(_Clear).decode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def draft_of(body: dict[str, Any]) -> Draft:
    """A record's draft from its plain values: {"id", "time", "source", …, and one event}."""
    name = next((each for each in EVENTS if each in body), "")
    if not name or name in CLEAR:
        return Draft(body["id"], _encode(body))
    event = dict(body[name])
    tenant = event.pop("tenant", "")
    key = event.get("key_id", "")
    person = key if key.startswith(PSEUDONYM) else ""
    header = {field: value for field, value in body.items() if field != name}
    header["class"] = name
    if tenant:
        header["tenant"] = tenant
    if name == "request":
        kept = USAGE - {"key_id"} if person else USAGE
        header["usage"] = {field: event.pop(field) for field in kept & event.keys()}
    subject = event.get("user") or person
    return Draft(body["id"], _encode(header), _encode(event), Wanted(tenant, subject, name, body["time"][:7]))


def associated(prev: bytes, sequence: int, header: bytes) -> bytes:
    """What is bound to a payload: its place and its header."""
    return b"".join((prev, sequence.to_bytes(8, "big"), header))


def take_apart(record: bytes) -> Parts | None:
    """A sealed record's parts; None of a clear one. Quotes within JSON's strings are escaped, so the mark is found
    where it stands and nowhere else."""
    at = record.rfind(_SEALED)
    if at < 0 or not record.endswith(_END):
        return None
    return Parts(record[:at], record[at + len(_SEALED) : -len(_END)])


def header_of(record: bytes) -> Header:
    """What a record says without any key; of a clear one the same.

    :raises FrameError: it is no record.
    """
    parts = take_apart(record)
    try:
        if parts is not None:
            return _read_header(parts.header + b"}")
        clear = _read_clear(record)
    except msgspec.DecodeError as error:
        raise FrameError("the record cannot be read") from error
    name = next((each for each in EVENTS if getattr(clear, each) is not None), "")
    event = getattr(clear, name) if name else None
    return Header(clear.id, clear.source, clear.time, event.tenant if event else "", name)


def clear_body(record: bytes) -> dict[str, Any]:
    """A record's plain values as far as they are clear, in the form of `draft_of`: what `weir usage` adds up, whether
    or not the rest was erased.

    :raises FrameError: it is no record.
    """
    return opened_body(record, b"{}")


def opened_body(record: bytes, payload: bytes) -> dict[str, Any]:
    """A record's plain values, with what was sealed.

    :raises FrameError: it is no record.
    """
    parts = take_apart(record)
    try:
        if parts is None:
            return _decode(record)
        body = _decode(parts.header + b"}")
        name, event = body.pop("class"), _decode(payload)
    except (msgspec.DecodeError, KeyError) as error:
        raise FrameError("the record cannot be read") from error
    for field in ("key", "nonce"):
        body.pop(field, None)
    event |= body.pop("usage", {})
    if tenant := body.pop("tenant", ""):
        event["tenant"] = tenant
    body[name] = event
    return body


def values(body: Mapping[str, Any]) -> bytes:
    """Canonical JSON."""
    return _encode(body)
