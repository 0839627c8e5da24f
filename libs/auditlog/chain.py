"""The form of the log, as pure functions over bytes.

One record per line, readable and strict: a line is exactly

    {"hash":"<64 hex>","prev":"<64 hex>","record":<canonical JSON object>,"seq":<number>}\\n

with hash = SHA-256(prev (32 bytes) ‖ seq (8 bytes, big-endian) ‖ the record's bytes). Nothing in a line is outside the
hash or the fixed form, so every changed byte is found. Sequence numbers go from 1; the first line's prev is zeros.

A checkpoint says that the log has at least `count` records and that the hash of that one is `hash`. It is signed
(Ed25519), so that who can write the log but has no key cannot make one.

    {"count":<number>,"hash":"<64 hex>","signature":"<128 hex>","time":"<RFC 3339>"}\\n
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

ZERO = bytes(32)
"""The hash before the first record."""
_HASH_AT = len(b'{"hash":"')
_PREV_AT = _HASH_AT + 64 + len(b'","prev":"')
_RECORD_AT = _PREV_AT + 64 + len(b'","record":')
_TAIL = re.compile(rb',"seq":([1-9][0-9]{0,18})\}\n')
_HEX = re.compile(rb"[0-9a-f]{64}")
_CHECKPOINT = re.compile(
    rb'\{"count":(0|[1-9][0-9]{0,18}),"hash":"([0-9a-f]{64})","signature":"([0-9a-f]{128})","time":"([0-9TZ:.-]{20,30})"\}\n'
)
_DOMAIN = b"weir audit checkpoint\0"


class LineError(ValueError):
    """A line is not of the exact form, or its hash does not hold; the message says which."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in the chain. `record` is its canonical JSON; hashes are 32 bytes."""

    sequence: int
    record: bytes
    prev: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Signed: the log has `count` records and the last one's hash is `hash` (32 bytes)."""

    count: int
    hash: bytes
    time: str
    """RFC 3339, UTC."""
    signature: bytes


def entry_hash(prev: bytes, sequence: int, record: bytes) -> bytes:
    """Return the hash of a record behind `prev`: 32 bytes."""
    return hashlib.sha256(b"".join((prev, sequence.to_bytes(8, "big"), record))).digest()


def encode_entry(prev: bytes, sequence: int, record: bytes) -> tuple[bytes, bytes]:
    """Return (hash, line) for a record; `record` is canonical JSON without a newline.

    Raises:
        ValueError: the record is not an object on one line.
    """
    if not (record.startswith(b"{") and record.endswith(b"}")) or b"\n" in record:
        raise ValueError("a record is a JSON object on one line")
    digest = entry_hash(prev, sequence, record)
    line = b'{"hash":"%b","prev":"%b","record":%b,"seq":%d}\n' % (
        digest.hex().encode(),
        prev.hex().encode(),
        record,
        sequence,
    )
    return digest, line


def decode_entry(line: bytes) -> Entry:
    """Read one line, newline included, and check its form and its own hash (not its place in the chain).

    Raises:
        LineError: the form or the hash does not hold.
    """
    at = line.rfind(b',"seq":')
    tail = _TAIL.fullmatch(line, max(at, 0))
    if tail is None or at < _RECORD_AT:
        raise LineError("the line is malformed")
    digest, prev = line[_HASH_AT : _HASH_AT + 64], line[_PREV_AT : _PREV_AT + 64]
    record, sequence = line[_RECORD_AT:at], int(tail[1])
    if not _HEX.fullmatch(digest) or not _HEX.fullmatch(prev):
        raise LineError("the line is malformed")
    entry = Entry(sequence, record, bytes.fromhex(prev.decode()), bytes.fromhex(digest.decode()))
    try:
        wanted, again = encode_entry(entry.prev, sequence, record)
    except ValueError as error:
        raise LineError("the line is malformed") from error
    if wanted != entry.hash:
        raise LineError("the record does not match its hash")
    if again != line:
        raise LineError("the line is malformed")
    return entry


def follow(lines: Iterable[bytes], *, prev: bytes = ZERO, sequence: int = 0) -> Iterator[Entry]:
    """Read lines that continue the chain after record `sequence` with hash `prev`.

    Raises:
        LineError: at the first line that does not hold, after the good ones were given out.
    """
    for line in lines:
        entry = decode_entry(line)
        if entry.sequence != sequence + 1:
            raise LineError(f"record {entry.sequence} stands where {sequence + 1} belongs")
        if entry.prev != prev:
            raise LineError(f"record {entry.sequence} does not continue the one before it")
        prev, sequence = entry.hash, entry.sequence
        yield entry


def signed_bytes(count: int, digest: bytes, time: str) -> bytes:
    """Return what a checkpoint's signature is over."""
    return b"".join((_DOMAIN, count.to_bytes(8, "big"), digest, time.encode()))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint's line."""
    return b'{"count":%d,"hash":"%b","signature":"%b","time":"%b"}\n' % (
        checkpoint.count,
        checkpoint.hash.hex().encode(),
        checkpoint.signature.hex().encode(),
        checkpoint.time.encode(),
    )


def decode_checkpoint(line: bytes, verify: Callable[[bytes, bytes], bool]) -> Checkpoint:
    """Read a checkpoint's line, newline included. `verify(signature, message)` checks the signature.

    Raises:
        LineError: the form or the signature does not hold.
    """
    match = _CHECKPOINT.fullmatch(line)
    if match is None:
        raise LineError("the checkpoint is malformed")
    checkpoint = Checkpoint(
        count=int(match[1]),
        hash=bytes.fromhex(match[2].decode()),
        time=match[4].decode(),
        signature=bytes.fromhex(match[3].decode()),
    )
    if not verify(checkpoint.signature, signed_bytes(checkpoint.count, checkpoint.hash, checkpoint.time)):
        raise LineError(f"the checkpoint of record {checkpoint.count} has a bad signature")
    return checkpoint
