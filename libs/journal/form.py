"""The form of a journal's files, as pure functions over bytes, and what a folder of them says.

Segment  `<epoch, 16 hex>-<first sequence, 20 digits>.seg`: a header (magic, journal id, its first
         sequence under this id, CRC-32), then frames
Frame    CRC-32 of the rest (begun with the epoch's chance, which nobody who has words in a payload knows), length (4
         bytes each), sequence, number of the opening that it ends (8 bytes each; 0: none), payload; padded to 8 bytes
Slots    magic, how many, bytes of each, last acknowledged sequence, last one used; one 8-byte mark per slot; the slots
Slot     CRC-32 of the rest, length (4 bytes each), number of the opening (8 bytes; 0: free), payload

All little-endian. A torn or damaged frame is skipped, wherever it is: the reading goes on at the next 8 bytes where a
whole frame with a later sequence stands, so one that was written whole is found whatever is around it.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from mmap import mmap
from typing import NamedTuple, TypeAlias
from zlib import crc32

MAX_PAYLOAD = 64 * 1024
"""Bytes of one payload at most: a damaged length leads nowhere far."""
SEGMENT_HEAD = 32
SLOTS_HEAD = 64
ACKNOWLEDGED, LAST_USED = 2, 3
"""Where the two sequences are in the header of the slots, in words of 8 bytes."""
_SEGMENT = struct.Struct("<8sQQI4x")
_FRAME = struct.Struct("<IIQQ")
_SLOTS = struct.Struct("<8sII")
_SLOT = struct.Struct("<IIQ")
SLOT_HEAD = _SLOT.size
"""Bytes of a slot before what it holds."""
_CHANCE = 0xFFFFFFFF
Buffer: TypeAlias = "bytes | mmap"
_SEGMENT_MAGIC, _SLOTS_MAGIC = b"WEIRJ\0\0\1", b"WEIRO\0\0\1"


class Frame(NamedTuple):
    """One record in a segment; `end` is where the next one may begin."""

    sequence: int
    opening: int
    payload: bytes
    end: int


class Opening(NamedTuple):
    """Something that was begun and not ended: its slot, what was said of it then, and its mark."""

    slot: int
    number: int
    payload: bytes
    mark: int


class Segment(NamedTuple):
    """A file and its name's meaning."""

    epoch: int
    first: int
    data: bytes


class Identity(NamedTuple):
    """A journal's id, 64 bits, and its first sequence under this id."""

    journal: int = 0
    start: int = 1


class Recovered(NamedTuple):
    """What a folder says. `identity` is None where no header is whole; `last` is the last sequence ever used,
    `kept` the last of a frame."""

    identity: Identity | None
    epoch: int
    last: int
    kept: int
    acknowledged: int
    running: tuple[Opening, ...]
    ends: tuple[int, ...]
    """Where the last whole frame of each segment ends."""


class Geometry(NamedTuple):
    """How many slots there are, and bytes of each."""

    slots: int
    size: int

    @property
    def slots_at(self) -> int:
        """Where the first slot begins; the mark that belongs to no slot is the last one before it."""
        return SLOTS_HEAD + 8 * (self.slots + 1)

    @property
    def total(self) -> int:
        """Bytes of the file."""
        return self.slots_at + self.slots * self.size

    def at(self, slot: int) -> int:
        """Where a slot begins."""
        return self.slots_at + slot * self.size


def segment_head(identity: Identity) -> bytes:
    """A segment's header."""
    return _SEGMENT.pack(_SEGMENT_MAGIC, *identity, crc32(b"%x %x" % identity))


def identity_of(data: bytes) -> Identity | None:
    """What a segment's header says; None where that does not hold."""
    if len(data) < SEGMENT_HEAD:
        return None
    magic, journal, start, crc = _SEGMENT.unpack_from(data)
    return Identity(journal, start) if magic == _SEGMENT_MAGIC and crc == crc32(b"%x %x" % (journal, start)) else None


def segment_name(epoch: int, first: int) -> str:
    """A segment's file name."""
    return f"{epoch:016x}-{first:020d}.seg"


def named(name: str) -> tuple[int, int]:
    """(epoch, first sequence) of a segment's file name.

    :raises ValueError: it is none.
    """
    stem, dot, suffix = name.partition(".")
    epoch, dash, first = stem.partition("-")
    if suffix != "seg" or not dot or not dash or len(epoch) != 16 or len(first) != 20:
        raise ValueError(f"{name} is no segment")
    return int(epoch, 16), int(first)


def frame(epoch: int, sequence: int, opening: int, payload: bytes) -> bytes:
    """A frame; the payload has at most `MAX_PAYLOAD` bytes."""
    rest = _FRAME.pack(0, len(payload), sequence, opening)[4:] + payload
    return crc32(rest, epoch & _CHANCE).to_bytes(4, "little") + rest + bytes(-(4 + len(rest)) % 8)


def frames(data: Buffer, epoch: int, *, after: int, start: int = SEGMENT_HEAD, stop: int) -> Iterator[Frame]:
    """The whole frames of a segment from byte `start` to `stop`, with sequences behind `after` that only grow."""
    seed, at = epoch & _CHANCE, start
    while at + _FRAME.size <= stop:
        crc, length, sequence, opening = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        if sequence > after and length <= MAX_PAYLOAD and end <= stop and crc32(data[at + 4 : end], seed) == crc:
            at = end + -end % 8
            yield Frame(sequence, opening, bytes(data[end - length : end]), at)
            after = sequence
        else:
            at += 8


def slots_head(geometry: Geometry) -> bytes:
    """The header of the slots' file; both sequences are 0."""
    return _SLOTS.pack(_SLOTS_MAGIC, *geometry)


def geometry_of(data: bytes) -> Geometry | None:
    """How a slots' file is laid out; None where it is not whole."""
    if len(data) < SLOTS_HEAD:
        return None
    magic, count, size = _SLOTS.unpack_from(data)
    geometry = Geometry(count, size)
    return geometry if magic == _SLOTS_MAGIC and size > _SLOT.size and geometry.total == len(data) else None


def geometry_for(wanted: Geometry, running: Sequence[Opening]) -> Geometry:
    """As it is wanted, or larger where what runs has no room there."""
    longest = max((len(each.payload) + _SLOT.size for each in running), default=0)
    return Geometry(max(wanted.slots, len(running)), max(wanted.size, longest))


def lay_out(data: mmap, geometry: Geometry, running: Sequence[Opening]) -> None:
    """Write the slots' file of this geometry into `data`, whose header's sequences stay and whose rest is zeros."""
    data[: _SLOTS.size] = _SLOTS.pack(_SLOTS_MAGIC, *geometry)
    for each in running:
        written, at = slot(each.number, each.payload), geometry.at(each.slot)
        data[at : at + len(written)] = written
        mark_at = SLOTS_HEAD + 8 * each.slot
        data[mark_at : mark_at + 8] = each.mark.to_bytes(8, "little")


def slot(number: int, payload: bytes) -> bytes:
    """A slot that is taken."""
    rest = _SLOT.pack(0, len(payload), number)[4:] + payload
    return crc32(rest).to_bytes(4, "little") + rest


def openings(data: bytes, geometry: Geometry, ended: Container[int]) -> Iterator[Opening]:
    """What stands in the slots whole, and was not ended."""
    for place in range(geometry.slots):
        at = geometry.at(place)
        crc, length, number = _SLOT.unpack_from(data, at)
        end = at + _SLOT.size + length
        if not number or number in ended or end > at + geometry.size or crc32(data[at + 4 : end]) != crc:
            continue
        yield Opening(place, number, bytes(data[end - length : end]), word(data, SLOTS_HEAD // 8 + place))


def word(data: bytes, place: int) -> int:
    """The 8 bytes at a place, as a number."""
    return int.from_bytes(data[8 * place : 8 * place + 8], "little")


def recover(segments: Sequence[Segment], slots: bytes) -> Recovered:
    """What a former life left: a fold over its segments, oldest first, and its slots (b"" where there are none)."""
    identity, epoch, last, kept = None, 0, 0, 0
    ended: set[int] = set()
    ends = []
    for each in segments:
        identity, epoch, last = identity_of(each.data) or identity, max(epoch, each.epoch), max(last, each.first - 1)
        end = SEGMENT_HEAD
        for found in frames(each.data, each.epoch, after=each.first - 1, stop=_written(each.data)):
            kept, end = max(kept, found.sequence), found.end
            ended.add(found.opening)
        ends.append(end)
    geometry = geometry_of(slots)
    if geometry is None:
        return Recovered(identity, epoch, max(last, kept), kept, 0, (), tuple(ends))
    acknowledged = word(slots, ACKNOWLEDGED)
    last = max(last, kept, acknowledged, word(slots, LAST_USED))
    return Recovered(identity, epoch, last, kept, acknowledged, tuple(openings(slots, geometry, ended)), tuple(ends))


def _written(data: bytes) -> int:
    """How far there may be frames: zeros behind the last one are none, but for what a payload and its padding end
    with, which is searched as well."""
    return min(len(data), len(data.rstrip(b"\0")) + _FRAME.size + MAX_PAYLOAD)


def next_epoch(epoch: int, chance: int) -> int:
    """An epoch behind `epoch`: a number that grows, and 32 bits by chance, so that a folder that was copied or put
    back does not come to the same one as the folder that it was taken from."""
    return ((epoch >> 32) + 1) << 32 | chance & _CHANCE


def run_of(found: Iterable[Frame], limit: int, max_bytes: int) -> list[Frame]:
    """The first frames that follow each other without a gap, so many and so long at most, but one at least."""
    taken: list[Frame] = []
    size = 0
    for each in found:
        size += len(each.payload)
        if taken and (len(taken) == limit or size > max_bytes or each.sequence != taken[-1].sequence + 1):
            break
        taken.append(each)
    return taken
