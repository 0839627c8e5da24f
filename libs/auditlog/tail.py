"""Reads the newest records, while the log is being written or not."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from libs.auditlog.chain import Entry, LineError, decode_entry
from libs.auditlog.frame import CLEAR, FrameError, header_of, take_apart
from libs.auditlog.layout import lines_of, segments
from libs.auditlog.tombstones import is_tombstone


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log: an entry, or what is wrong with it."""

    sequence: int
    """Where it stands."""
    entry: Entry | None
    damage: str = ""
    """Why there is no entry."""


def read_tail(
    directory: Path, *, limit: int, upto: int, wanted: Callable[[Entry], bool], max_bytes: int = 64 * 2**20
) -> list[Line]:
    """Return the newest `limit` lines up to record `upto` that are `wanted`, oldest first, and among them every line
    that does not hold: what it said, and about whom, nobody knows. `wanted` may raise FrameError.

    At most about `max_bytes` of the log are searched, from its end. A line's own hash is checked, its place in the
    chain is the business of verification.

    Raises:
        OSError: a file cannot be read.
    """
    found: list[Line] = []
    searched = 0
    for first, path in reversed(segments(directory)):
        lines, _ = lines_of(path)
        for line in _backwards(first, lines, upto, wanted):
            found.append(line)
            if len(found) == limit:
                return found[::-1]
        searched += sum(map(len, lines))
        if searched >= max_bytes:
            break
    return found[::-1]


def ever_sealed(directory: Path) -> bool:
    """Whether the newest record that can be is sealed: then there are keys to a log, or they are lost. A line that does
    not hold is the business of verification.

    Raises:
        OSError: a file cannot be read.
    """
    for _, path in reversed(segments(directory)):
        for line in reversed(lines_of(path)[0]):
            with contextlib.suppress(LineError, FrameError):
                record = decode_entry(line).record
                if header_of(record).data_class not in CLEAR:
                    return take_apart(record) is not None
    return False


def tombstones_after(directory: Path, *, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
    """(number, record) of the tombstones behind record `after`, up to record `upto`. A line that does not hold is the
    business of verification.

    Raises:
        OSError: a file cannot be read.
    """
    found = segments(directory)
    for at, (first, path) in enumerate(found):
        if at + 1 < len(found) and found[at + 1][0] <= after + 1:
            continue
        for place, line in enumerate(lines_of(path)[0], first):
            if after < place <= upto and is_tombstone(line):
                with contextlib.suppress(LineError):
                    yield place, decode_entry(line).record


def _backwards(first: int, lines: list[bytes], upto: int, wanted: Callable[[Entry], bool]) -> Iterator[Line]:
    for place in range(min(first + len(lines) - 1, upto), first - 1, -1):
        try:
            entry = decode_entry(lines[place - first])
            if entry.sequence != place:
                raise LineError(f"record {entry.sequence} stands where {place} belongs")
            if wanted(entry):
                yield Line(place, entry)
        except (LineError, FrameError) as error:
            yield Line(place, None, str(error))
