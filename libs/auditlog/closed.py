"""Which records of no journal lie in the segments that are no longer written: what makes a late replay be stored once.

They are few, an operator's changes, and what orders them (the registry's revision) goes back when etcd is restored; of
all others `marks` tells. Every closed segment has an index beside it, `<first>.ids`: the earliest and the latest time
of those records, and an 8-byte hash of each one's id, sorted. A record that comes again is the same record, time
included, so only segments whose times reach over its own are asked: none for what is new, however long the log is. A
hash that is found is confirmed in the segment itself. The files are derived and hold nothing that the segments do not:
a missing or torn one is made anew, and one that was tampered with can at worst let a record be stored twice.
"""

import hashlib
import struct
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from libs.auditlog.chain import LineError, decode_entry
from libs.auditlog.layout import lines_of
from libs.auditlog.marks import Told

_HEADER = struct.Struct("<8sqqQQ")  # magic, earliest, latest, how many records, how many hashes
_MAGIC = b"weirids2"
_HELD = 16
"""Segments whose hashes stay in memory: 320 kB each at 16 MiB, were all their records of no journal."""


class Named(Told):
    """What identifies a record."""

    id: str = ""
    time: datetime | None = None
    """When, by its writer's clock."""

    @property
    def moment(self) -> int:
        """Unix microseconds; 0 without a time."""
        return 0 if self.time is None else int(self.time.timestamp() * 1e6)

    @property
    def by_id(self) -> bool:
        """Its id alone says whether it is there."""
        return self.origin is self.marks is self.gap is None


read_name = msgspec.json.Decoder(Named).decode
"""A record's identity from its JSON; raises msgspec.DecodeError."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A closed segment."""

    path: Path
    earliest: int
    latest: int


class ClosedSegments:
    """The closed segments of one log. Blocking: used by the thread that writes."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._held: OrderedDict[Path, array[int]] = OrderedDict()

    def close(self, path: Path, records: int, names: Iterable[Named]) -> None:
        """A segment is closed; it has so many records, these among them. An index that cannot be written is made anew
        when needed."""
        known = list(names)
        moments = [name.moment for name in known]
        hashes = array("Q", sorted(_hash(name.id) for name in known))
        span = _Span(path, min(moments, default=0), max(moments, default=0))
        self._spans.append(span)
        self._hold(path, hashes)
        partial = _index(path).with_suffix(".new")
        try:
            partial.write_bytes(
                _HEADER.pack(_MAGIC, span.earliest, span.latest, records, len(hashes)) + hashes.tobytes()
            )
            partial.rename(_index(path))
        except OSError:
            return

    def load(self, path: Path) -> int:
        """Learn of a closed segment of a log that is opened; return how many records it holds.

        Raises:
            OSError: it cannot be read.
        """
        read = _read(_index(path))
        if read is None:
            records = list(_records(path))
            self.close(path, len(records), [name for _, name in records if name.by_id])
            return len(records)
        self._spans.append(_Span(path, read.earliest, read.latest))
        return read.records

    def drop(self, path: Path) -> None:
        """A segment is about to be removed."""
        self._spans = [span for span in self._spans if span.path != path]
        self._held.pop(path, None)
        _index(path).unlink(missing_ok=True)

    def find(self, names: Sequence[Named]) -> dict[str, int]:
        """Return the numbers of those records that are stored, by their ids.

        Raises:
            OSError: a segment cannot be read.
        """
        found: dict[str, int] = {}
        for span in self._spans:
            near = [name for name in names if span.earliest <= name.moment <= span.latest]
            if not near:
                continue
            hashes = self._hashes(span.path)
            likely = {name.id for name in near if _holds(hashes, _hash(name.id))}
            if likely:
                found.update(_confirmed(span.path, likely))
        return found

    def _hashes(self, path: Path) -> "array[int]":
        held = self._held.get(path)
        if held is None:
            read = _read(_index(path))
            names = (name for _, name in _records(path) if name.by_id)
            held = read.hashes if read else array("Q", sorted(_hash(name.id) for name in names))
            self._hold(path, held)
        self._held.move_to_end(path)
        return held

    def _hold(self, path: Path, hashes: "array[int]") -> None:
        self._held[path] = hashes
        if len(self._held) > _HELD:
            self._held.popitem(last=False)


def _index(segment: Path) -> Path:
    return segment.with_suffix(".ids")


def _hash(record_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(record_id.encode(), digest_size=8).digest(), "little")


def _holds(hashes: "array[int]", wanted: int) -> bool:
    at = bisect_left(hashes, wanted)
    return at < len(hashes) and hashes[at] == wanted


class _Index(NamedTuple):
    earliest: int
    latest: int
    records: int
    hashes: "array[int]"


def _read(path: Path) -> _Index | None:
    """An index file; None when it is missing or not whole."""
    try:
        data = path.read_bytes()
        magic, earliest, latest, records, count = _HEADER.unpack_from(data)
    except (FileNotFoundError, struct.error):
        return None
    if magic != _MAGIC or len(data) != _HEADER.size + 8 * count:
        return None
    return _Index(earliest, latest, records, array("Q", data[_HEADER.size :]))


def _confirmed(path: Path, wanted: set[str]) -> dict[str, int]:
    return {name.id: sequence for sequence, name in _records(path) if name.by_id and name.id in wanted}


def _records(path: Path) -> Iterable[tuple[int, Named]]:
    for line in lines_of(path)[0]:
        try:
            entry = decode_entry(line)
            yield entry.sequence, read_name(entry.record)
        except (LineError, msgspec.DecodeError):
            continue
