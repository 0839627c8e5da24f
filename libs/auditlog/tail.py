"""Reads the newest records, while the log is being written or not."""

from collections.abc import Callable
from pathlib import Path

from libs.auditlog.chain import Entry, LineError, decode_entry
from libs.auditlog.layout import lines_of, segments


def read_tail(
    directory: Path, *, limit: int, upto: int, wanted: Callable[[bytes], bool], max_bytes: int = 64 * 2**20
) -> list[Entry]:
    """Return the newest `limit` records up to number `upto` whose JSON is `wanted`, oldest first.

    At most about `max_bytes` of the log are searched, from its end. Lines that do not hold are passed over: telling of
    them is the business of verification.

    Raises:
        OSError: a file cannot be read.
    """
    found: list[Entry] = []
    searched = 0
    for _, path in reversed(segments(directory)):
        lines, _ = lines_of(path)
        for line in reversed(lines):
            if not wanted(line):
                continue
            try:
                entry = decode_entry(line)
            except LineError:
                continue
            if entry.sequence <= upto:
                found.append(entry)
                if len(found) == limit:
                    return found[::-1]
        searched += sum(map(len, lines))
        if searched >= max_bytes:
            break
    return found[::-1]
