"""What says in the log that something was erased: who, why, of what, when, and no word of it. Pure.

    {"id":"…","source":"audit/audit-0","time":"…","tombstone":{"actor":"operator:ann","keys_destroyed":3,
     "reason":"subject_request","reference":"TICKET-12","signature":"…","tenant":"acme","upto":812, …}}

A tombstone is signed by the log's key over itself without the signature, and so proves itself outside of the log, in a
backup or an export. It stands in the chain before any key is destroyed: a crash in between leaves an erasure to be
finished, never keys that went nobody knows why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from libs.auditlog.keys import Signer, Verifier
from libs.sealing.scope import KeyName, Scope

REASONS = frozenset({"subject_request", "tenant_left", "legal_order", "mistake", "retention"})
"""Why something is erased: a closed set, for a reason in words may say what must be forgotten."""
MAX_KEYS = 256
"""Keys of one tombstone of a subject, which names each: a year of every class, and more than once over."""
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/#-]{0,63}", re.ASCII)
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)
_DOMAIN = b"weir audit tombstone\0"
_MARK = b'"tombstone":{'


class _Event(msgspec.Struct):
    signature: str
    tenant: str = ""
    subject: str = ""
    data_class: str = ""
    before: str = ""
    upto: int = 0
    keys: list[str] = msgspec.field(default_factory=list)


class _Record(msgspec.Struct):
    tombstone: _Event | None = None


_encode = msgspec.json.Encoder(order="sorted").encode
_read = msgspec.json.Decoder(_Record).decode


class TombstoneError(ValueError):
    """It is no tombstone, or its signature does not hold."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One, where it stands."""

    number: int
    record: bytes
    scope: Scope


class Tombstones:
    """All of one log, by what they cover."""

    def __init__(self, known: Iterable[Tombstone] = ()) -> None:
        self._of_tenant: dict[str, list[Tombstone]] = {}
        self._of_key: dict[str, Tombstone] = {}
        self._of_all: list[Tombstone] = []
        self.count = 0
        for each in known:
            self.add(each)

    def add(self, found: Tombstone) -> None:
        """One more."""
        self.count += 1
        scope = found.scope
        if scope.subject:
            for key in scope.keys:
                self._of_key.setdefault(key, found)
        elif scope.tenant:
            self._of_tenant.setdefault(scope.tenant, []).append(found)
        else:
            self._of_all.append(found)

    def covering(self, key: KeyName) -> Tombstone | None:
        """The first that covers a key."""
        found = [each for each in (*self._of_tenant.get(key.tenant, ()), *self._of_all) if each.scope.covers(key)]
        if named := self._of_key.get(key.id):
            found.append(named)
        return min(found, key=lambda each: each.number, default=None)


def check_request(*, reason: str, reference: str, tenant: str, subject: str, before: str) -> str:
    """What is wrong with an erasure that somebody asks for, the field's name first; "" if nothing is."""
    if reason not in REASONS:
        return f"reason: one of {', '.join(sorted(REASONS))}"
    if reference and not _REFERENCE.fullmatch(reference):
        return "reference: a ticket's number, at most 64 letters, digits and ._/#-"
    if not tenant:
        return "tenant: say whose; a class of data of all tenants goes by retention alone"
    if before and not _MONTH.fullmatch(before):
        return "before: a month, 2026-11"
    if len(subject) > 256:
        return "subject: at most 256 characters"
    return ""


def body_of(
    scope: Scope, *, record_id: str, source: str, time: str, actor: str, reason: str, reference: str, destroyed: int
) -> dict[str, Any]:
    """A tombstone without its signature; unset fields are left out, as everywhere in the log."""
    event: dict[str, Any] = {
        "actor": actor,
        "reason": reason,
        "reference": reference,
        "tenant": scope.tenant,
        "subject": scope.subject,
        "data_class": scope.data_class,
        "before": scope.before,
        "upto": scope.upto,
        "keys": sorted(scope.keys),
        "keys_destroyed": destroyed,
    }
    kept = {name: value for name, value in event.items() if value}
    return {"id": record_id, "source": source, "time": time, "tombstone": kept}


def signed(body: dict[str, Any], sign: Signer) -> bytes:
    """The record of a tombstone."""
    signature = sign(_DOMAIN + _encode(body)).hex()
    return _encode({**body, "tombstone": {**body["tombstone"], "signature": signature}})


def is_tombstone(record: bytes) -> bool:
    """Whether a record may be one: a cheap look."""
    return _MARK in record


def read(number: int, record: bytes, verify: Verifier) -> Tombstone | None:
    """The tombstone in a record; None where there is none.

    :raises TombstoneError: its signature does not hold, or it cannot be read.
    """
    try:
        event = _read(record).tombstone
        if event is None:
            return None
        body = msgspec.json.decode(record, type=dict[str, Any])
        signature = bytes.fromhex(body["tombstone"].pop("signature"))
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise TombstoneError(f"tombstone {number} cannot be read") from error
    if not verify(signature, _DOMAIN + _encode(body)):
        raise TombstoneError(f"tombstone {number} has a bad signature")
    scope = Scope(
        upto=event.upto,
        tenant=event.tenant,
        subject=event.subject,
        data_class=event.data_class,
        before=event.before,
        keys=frozenset(event.keys),
    )
    return Tombstone(number, record, scope)
