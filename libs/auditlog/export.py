"""Records that leave the log, signed: JSON lines that prove themselves without the log, its keys or any service.

    {"export":"weir-audit-export/1","by":…,"checkpoint":…,"class":…,"first":…,"last":…,"public_key":…,"tenant":…,"time":…}
    {"line":"<the log's own line>","record":{…}}        as often as there are records; `record` is what was opened
    {"erased_by":812,"line":"…","record":{…}}           what is left of one that a tombstone erased
    {"records":2,"sha256":"<of all bytes before>","signature":"<128 hex>"}

A line's own hash shows that it is a record of that chain; the signature, that this service said that these are all
there are of what was asked for, and what their payloads were. Of everybody's records without a gap the chain itself is
followed to the checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from libs.auditlog.chain import LineError, decode_checkpoint, decode_entry
from libs.auditlog.frame import FrameError, header_of

FORMAT = "weir-audit-export/1"
_DOMAIN = b"weir audit export\0"
_encode = msgspec.json.Encoder(order="sorted").encode


class ExportError(ValueError):
    """It is no export, or it does not hold; the message says where."""


class Head(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an export says of itself."""

    export: str = FORMAT
    by: str
    """Who asked for it."""
    time: str
    """RFC 3339."""
    tenant: str = ""
    """Only this one's; empty: all."""
    data_class: str = ""
    """Only this kind; empty: all."""
    first: int
    last: int
    """Records that were looked at."""
    checkpoint: str = ""
    """The log's newest at that time, its line."""
    public_key: str
    """Ed25519, raw, in base64."""


class Item(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One record."""

    line: str
    record: dict[str, Any] | None = None
    erased_by: int = 0
    fault: str = ""
    """Why the payload is missing without having been erased."""


class _Foot(msgspec.Struct, forbid_unknown_fields=True):
    records: int
    sha256: str
    signature: str


class Summary(msgspec.Struct, kw_only=True):
    """What a verified export holds."""

    head: Head
    records: int
    erased: int
    key_fingerprint: str
    """SHA-256 of the public key, hex: what is to be compared with what was noted elsewhere."""
    chained: bool
    """The records follow one another without a gap."""


def write(head: Head, items: Iterable[Item], sign: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """The lines of an export; `sign` is the log's key."""
    hasher, count = hashlib.sha256(), 0
    line = _encode(head) + b"\n"
    hasher.update(line)
    yield line
    for count, item in enumerate(items, 1):  # noqa: B007 - the last one is asked for below
        line = _encode(item) + b"\n"
        hasher.update(line)
        yield line
    digest = hasher.digest()
    yield _encode(_Foot(count, digest.hex(), sign(_DOMAIN + digest).hex())) + b"\n"


def check(lines: Iterable[bytes], *, fingerprint: str = "") -> Summary:
    """Verifies an export, line by line.

    :param fingerprint: of the key that must have signed; empty: any, which proves nothing but that it is whole.
    :raises ExportError: it does not hold.
    """
    hasher, waiting = hashlib.sha256(), b""
    reader: _Reader | None = None
    for number, line in enumerate(lines, 1):
        if reader is None:
            reader = _Reader(_decoded(line, Head, number))
            hasher.update(line)
            continue
        if waiting:
            reader.take(_decoded(waiting, Item, number - 1), number - 1)
            hasher.update(waiting)
        waiting = line
    if reader is None or not waiting:
        raise ExportError("it is cut short")
    foot = _decoded(waiting, _Foot, reader.records + 2)
    return reader.end(foot, hasher.digest(), fingerprint)


class _Reader:
    def __init__(self, head: Head) -> None:
        if head.export != FORMAT:
            raise ExportError(f"its format is {head.export!r}, and {FORMAT!r} is what is known here")
        try:
            self._key = Ed25519PublicKey.from_public_bytes(base64.b64decode(head.public_key, validate=True))
        except ValueError as error:
            raise ExportError("its public key is none") from error
        self.head, self.records, self.erased = head, 0, 0
        self._place, self._prev = head.first - 1, b""
        self._chained = True

    def take(self, item: Item, number: int) -> None:
        try:
            entry = decode_entry(item.line.encode())
            header = header_of(entry.record)
        except (LineError, FrameError) as error:
            raise ExportError(f"line {number}: {error}") from error
        if not self._place < entry.sequence <= self.head.last:
            raise ExportError(f"line {number}: record {entry.sequence} is out of place")
        if self.head.tenant and header.tenant not in ("", self.head.tenant):
            raise ExportError(f"line {number}: record {entry.sequence} is of another tenant")
        follows = entry.sequence == self._place + 1
        if follows and self._prev and entry.prev != self._prev:
            raise ExportError(f"line {number}: record {entry.sequence} does not continue the one before it")
        self._chained = self._chained and follows
        self._place, self._prev = entry.sequence, entry.hash
        self.records += 1
        self.erased += bool(item.erased_by)

    def end(self, foot: _Foot, digest: bytes, pinned: str) -> Summary:
        try:
            self._key.verify(bytes.fromhex(foot.signature), _DOMAIN + digest)
        except (InvalidSignature, ValueError) as error:
            raise ExportError("its signature does not hold: a byte of it was changed, or it was cut short") from error
        if foot.records != self.records or foot.sha256 != digest.hex():
            raise ExportError("it has another number of records than it says")
        found = hashlib.sha256(self._key.public_bytes_raw()).hexdigest()
        if pinned and found != pinned:
            raise ExportError("it was not signed by the key with that fingerprint")
        self._check_checkpoint()
        return Summary(
            head=self.head,
            records=self.records,
            erased=self.erased,
            key_fingerprint=found,
            chained=self._chained and self._place == self.head.last,
        )

    def _check_checkpoint(self) -> None:
        """Where the newest checkpoint's record is the last one here, it is that record."""
        if not self.head.checkpoint:
            return
        try:
            checkpoint = decode_checkpoint(self.head.checkpoint.encode(), self._holds)
        except LineError as error:
            raise ExportError(str(error)) from error
        if checkpoint.count == self._place and checkpoint.hash != self._prev:
            raise ExportError(f"record {self._place} is not the one that was checkpointed")

    def _holds(self, signature: bytes, message: bytes) -> bool:
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


def _decoded(line: bytes, form: type[Any], number: int) -> Any:
    try:
        return msgspec.json.decode(line, type=form)
    except msgspec.DecodeError as error:
        raise ExportError(f"line {number} is not of an export: {error}") from error
