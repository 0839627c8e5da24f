"""The log on disk, as its one writer sees it. Blocking: call it from one thread of its own."""

import contextlib
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from libs.auditlog.base import Base, read_base, write_base
from libs.auditlog.chain import (
    ZERO,
    Checkpoint,
    LineError,
    decode_checkpoint,
    decode_entry,
    encode_checkpoint,
    follow,
    signed_bytes,
)
from libs.auditlog.closed import ClosedSegments, Named, read_name
from libs.auditlog.disk import AppendFile, Disk, sync_directory
from libs.auditlog.group import Group, Incoming, Stored, header_of
from libs.auditlog.keys import Signer, Verifier
from libs.auditlog.layout import CHECKPOINTS_NAME, LOCK_NAME, lines_of, segment_path, segments
from libs.auditlog.marks import Marks

CHECKPOINT_BYTES = 256 * 1024
"""The checkpoint file is cut down to its last `CHECKPOINTS_KEPT` lines when it is longer than this."""
CHECKPOINTS_KEPT = 256
PROBE_BYTES = 64 * 1024
"""A checkpoint alone may still fit into the last block of a full disk; then the log would be taken up, and given up
with the next records, again and again."""
_encode = msgspec.json.Encoder(order="sorted").encode


class LogLockedError(RuntimeError):
    """Another process writes this log."""


class LogDamagedError(RuntimeError):
    """What was acknowledged is not there any more, or not as it was written; nothing is appended to such a log."""


class WriteFailedError(RuntimeError):
    """A commit failed (disk full, write error). Nothing of it counts; the files are put back as they were."""


class AuditFiles:
    """Appends records in groups: one write and one fdatasync for the records, then a signed checkpoint, likewise."""

    def __init__(
        self,
        directory: Path,
        checkpoints: Path,
        *,
        sign: Signer,
        verify: Verifier,
        now: Callable[[], str],
        max_group: int = 2048,
        segment_bytes: int = 16 * 2**20,
        disk: Disk | None = None,
        source: str = "audit",
    ) -> None:
        """`now` gives the time as RFC 3339; `max_group` is the most records of one commit: a crash leaves no more than
        these beyond the last checkpoint. `source` is whose name the log's own records have."""
        self._directory = directory
        self._checkpoint_path = checkpoints / CHECKPOINTS_NAME
        self._sign = sign
        self._verify = verify
        self._now = now
        self._source = source
        self._segment_bytes = segment_bytes
        self._max_group = max_group
        self._disk = disk or Disk()
        self._closed = ClosedSegments()
        self._open: dict[str, tuple[int, Named]] = {}  # of the segment that is written, those of no journal
        self._first = 1  # its first record
        self.marks = Marks()
        """How far every source has come."""
        self._segment: AppendFile | None = None
        self._segment_path = directory
        self._checkpoints: AppendFile | None = None
        self._lock: int | None = None
        self.base = Base()
        """What was truncated: the log begins behind it."""
        self.count = 0
        """Committed records, truncated ones included."""
        self.head = ZERO
        """The last committed record's hash."""
        self.torn_bytes = 0
        """Bytes of an unfinished write that `open` removed."""
        self.recovered = 0
        """Whole records beyond the last checkpoint that `open` found and kept; no checkpoint had vouched for them."""
        self.checkpoint_line = b""
        """The newest checkpoint's line; empty before the first."""

    def open(self) -> None:
        """Lock the log, find its end, remove an unfinished write beyond the last checkpoint, learn which ids it holds.

        Raises:
            LogLockedError: another process has it.
            LogDamagedError: checkpointed records are missing or changed, or there are more records than checkpoints
                vouch for and a crash leaves: nobody but this log's writer may have its history signed.
            OSError: a file cannot be read or written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._checkpoint_path.parent.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        checkpoint = self._read_checkpoints()
        found = self._kept()
        if checkpoint is None and any(path.stat().st_size for _, path in found):
            raise LogDamagedError("there are records but no checkpoint")
        acknowledged = checkpoint.count if checkpoint else 0
        self._read_segments(found, checkpoint)
        if acknowledged > self.count:
            raise LogDamagedError(f"records {self.count + 1} to {acknowledged} were acknowledged and are missing")
        if self.base.count > self.count:
            raise LogDamagedError(f"the log begins after record {self.base.count}, and there are no records behind it")
        self.recovered = self.count - acknowledged
        if self.recovered > self._max_group:
            raise LogDamagedError(f"{self.recovered} records stand beyond the last checkpoint: no crash leaves so many")
        for (first, path), (following, _) in itertools.pairwise(found):
            if first + self._closed.load(path) != following:
                raise LogDamagedError(f"{path.name} does not hold records {first} to {following - 1}")
        self._checkpoints = AppendFile(self._checkpoint_path, self._disk)
        self._first, self._segment_path = found[-1] if found else (1, segment_path(self._directory, 1))
        self._segment = AppendFile(self._segment_path, self._disk)
        sync_directory(self._directory)
        if checkpoint is None or self.recovered:
            self._write_checkpoint(self.count, self.head)

    def sequence_of(self, record_id: str) -> int | None:
        """Return the number of a record of no journal in the segment that is written; of older ones `commit` knows."""
        known = self._open.get(record_id)
        return known[0] if known else None

    def commit(self, records: Sequence[Incoming]) -> list[Stored | None]:
        """Append records, each once ever, and return where they lie; they are on disk then. None is of one that comes
        from a journal of which a later epoch is known: it is not stored. Where sequences are missing before a record,
        a gap is recorded.

        Raises:
            WriteFailedError: they are not.
        """
        if self._segment is None or self._checkpoints is None:
            raise WriteFailedError("the log is not open")
        names = {each.id: read_name(header_of(each.record)) for each in records if each.origin is None}
        group, stored = Group(self.head, self.count, self.marks.copy(), self._own), []
        fresh: dict[str, tuple[int, Named]] = {}
        try:
            known = self._closed.find(list(names.values()))
            begins = bool(self.marks) and not 0 < self._segment.size < self._segment_bytes
            if begins:
                group.add(self._own("marks", self.count + 1, self.marks.event()))
            for each in records:
                if each.origin is not None:
                    stored.append(group.follow(each, each.origin))
                elif each.id in known:
                    stored.append(Stored(known[each.id], duplicate=True))
                else:
                    sequence = group.add(each.record)
                    fresh[each.id] = sequence, names[each.id]
                    stored.append(Stored(sequence))
            if len(group.lines) > begins:
                self._append(group.lines, group.sequence, group.prev)
                self.count, self.head, self.marks = group.sequence, group.prev, group.marks
        except OSError as error:
            self._segment.roll_back()
            raise WriteFailedError(os.strerror(error.errno) if error.errno else "the write failed") from error
        self._open.update(fresh)
        return stored

    def _own(self, kind: str, sequence: int, event: dict[str, Any]) -> bytes:
        """A record of the log's own."""
        return _encode({"id": f"{kind}-{sequence}", "source": self._source, "time": self._now(), kind: event})

    def hash_at(self, count: int) -> bytes:
        """Return the hash of record `count` of the chain that ends in `head`, read from the disk behind it and followed
        to there, a record at a time: a log is compared with its anchors for as long as it is written.

        Raises:
            LogDamagedError: what is on the disk does not lead from that record to `head`.
            OSError: a segment cannot be read.
        """
        if count == self.count:
            return self.head
        # Past the end lies at most what a failed write left there.
        lines, prev, sequence = _between(segments(self._directory), count, self.count), ZERO, 0
        try:
            wanted = decode_entry(begins := next(lines, b"")).prev
            for entry in follow(itertools.chain((begins,), lines), prev=wanted, sequence=count):
                prev, sequence = entry.hash, entry.sequence
        except LineError as error:
            raise LogDamagedError(f"between record {count} and record {self.count}: {error}") from error
        if (sequence, prev) != (self.count, self.head):
            raise LogDamagedError(f"record {count} does not lead to record {self.count}")
        return wanted

    def truncate(self, first: int) -> None:
        """Let the log begin with the segment of record `first`: a signed base says so before older segments go. What a
        crash leaves of them goes at the next start.

        Raises:
            WriteFailedError: nothing, or not all of it, is gone.
        """
        found = segments(self._directory)
        at = next((place for place, (number, _) in enumerate(found) if number == first), 0)
        if not at:
            return
        base = Base(first - 1, _first_prev(found[at][1], lines_of(found[at][1])[0]))
        try:
            write_base(self._checkpoint_path.parent, base, time=self._now(), sign=self._sign, disk=self._disk)
            self.base = base
            self._kept()
        except OSError as error:
            raise WriteFailedError(os.strerror(error.errno) if error.errno else "the write failed") from error

    def probe(self) -> None:
        """Write `PROBE_BYTES` and take them back, and the newest checkpoint once more, to learn whether writing works.

        Raises:
            WriteFailedError: it does not.
        """
        try:
            if self._segment is not None:
                self._segment.restore()
                self._segment.append(bytes(PROBE_BYTES))
                self._segment.restore()
            self._write_checkpoint(self.count, self.head)
        except OSError as error:
            if self._segment is not None:
                self._segment.roll_back()
            raise WriteFailedError(os.strerror(error.errno) if error.errno else "the write failed") from error

    def close(self) -> None:
        """Close the files and give the lock back."""
        for file in (self._segment, self._checkpoints):
            if file is not None:
                file.close()
        self._segment = self._checkpoints = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _kept(self) -> list[tuple[int, Path]]:
        """The segments behind the base; what lies before it is removed, oldest first.

        Raises:
            LogDamagedError: the base does not hold, or the first segment does not begin behind it.
        """
        try:
            self.base = read_base(self._checkpoint_path.parent, self._verify)
        except LineError as error:
            raise LogDamagedError(str(error)) from error
        found = segments(self._directory)
        while found and found[0][0] <= self.base.count:
            _, path = found.pop(0)
            self._closed.drop(path)
            path.unlink()
        if found and found[0][0] != self.base.count + 1:
            raise LogDamagedError(f"{found[0][1].name} does not begin with record {self.base.count + 1}")
        return found

    def _take_lock(self) -> None:
        self._lock = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            self._lock = None
            raise LogLockedError(f"another process writes {self._directory}") from error

    def _read_checkpoints(self) -> Checkpoint | None:
        """Return the newest checkpoint; a torn last line is removed, for it was never relied on."""
        if not self._checkpoint_path.exists():
            return None
        lines, torn = lines_of(self._checkpoint_path)
        if torn:
            os.truncate(self._checkpoint_path, sum(map(len, lines)))
        if not lines:
            return None
        try:
            checkpoint = decode_checkpoint(lines[-1], self._verify)
        except LineError as error:
            raise LogDamagedError(str(error)) from error
        self.checkpoint_line = lines[-1]
        return checkpoint

    def _read_segments(self, found: Sequence[tuple[int, Path]], checkpoint: Checkpoint | None) -> None:
        """Follow the chain from the segment of the last checkpoint to the end."""
        acknowledged = checkpoint.count if checkpoint else 0
        start = _segment_of(found, acknowledged)
        for position, (first, path) in enumerate(found[start:], start):
            lines, torn = lines_of(path)
            if position == start:  # it begins with marks, or is older than all of them
                self.count, self.head = (
                    (first - 1, _first_prev(path, lines)) if start else (self.base.count, self.base.hash)
                )
            if first != self.count + 1:
                raise LogDamagedError(f"{path.name} does not continue after record {self.count}")
            good = 0
            self._open = {}
            fault = f"{len(torn)} bytes of a record cut short" if torn else ""
            try:
                for entry, line in zip(follow(lines, prev=self.head, sequence=self.count), lines, strict=False):
                    self.count, self.head = entry.sequence, entry.hash
                    good += len(line)
                    if checkpoint is not None and entry.sequence == acknowledged and entry.hash != checkpoint.hash:
                        raise LogDamagedError(f"record {acknowledged} is not the one that was checkpointed")
                    name = read_name(entry.record)
                    self.marks.see(name)
                    if name.by_id:
                        self._open[name.id] = (entry.sequence, name)
            except (LineError, msgspec.DecodeError) as error:
                fault = str(error)
            if fault:
                if position < len(found) - 1 or self.count < acknowledged:
                    raise LogDamagedError(f"{path.name}, after record {self.count}: {fault}")
                self.torn_bytes = path.stat().st_size - good
                os.truncate(path, good)

    def _append(self, lines: Sequence[bytes], sequence: int, head: bytes) -> None:
        """Write lines and the checkpoint that vouches for them; nothing of them counts if that fails.

        Raises:
            OSError: it does.
        """
        if self._segment is None:
            raise WriteFailedError("the log is not open")
        self._segment.restore()
        if self._segment.size and self._segment.size >= self._segment_bytes:
            self._rotate(self.count + 1)
        self._segment.append(b"".join(lines))
        self._write_checkpoint(sequence, head)
        self._segment.keep()

    def _rotate(self, first: int) -> None:
        path = segment_path(self._directory, first)
        fresh = AppendFile(path, self._disk)
        sync_directory(self._directory)
        if self._segment is not None:
            self._segment.close()
        self._closed.close(self._segment_path, first - self._first, [name for _, name in self._open.values()])
        self._segment, self._segment_path, self._open, self._first = fresh, path, {}, first

    def _write_checkpoint(self, count: int, digest: bytes) -> None:
        if self._checkpoints is None:
            raise WriteFailedError("the log is not open")
        time = self._now()
        line = encode_checkpoint(Checkpoint(count, digest, time, self._sign(signed_bytes(count, digest, time))))
        self._checkpoints.restore()
        if self._checkpoints.size > CHECKPOINT_BYTES:
            self._shorten()
        try:
            self._checkpoints.append(line)
        except OSError:
            self._checkpoints.roll_back()
            raise
        self._checkpoints.keep()
        self.checkpoint_line = line

    def _shorten(self) -> None:
        """Keep the newest checkpoints: each vouches for everything before it."""
        lines, _ = lines_of(self._checkpoint_path)
        partial = self._checkpoint_path.with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        fresh = AppendFile(partial, self._disk)
        fresh.append(b"".join(lines[-CHECKPOINTS_KEPT:]))
        fresh.close()
        partial.rename(self._checkpoint_path)
        sync_directory(self._checkpoint_path.parent)
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._checkpoints = AppendFile(self._checkpoint_path, self._disk)


def _segment_of(found: Sequence[tuple[int, Path]], sequence: int) -> int:
    """Return the position of the segment that holds a record: the last one that begins no later."""
    return max((at for at, (first, _) in enumerate(found) if first <= sequence), default=0)


def _between(found: Sequence[tuple[int, Path]], after: int, upto: int) -> Iterator[bytes]:
    """The lines behind a record, up to another one."""
    for first, path in found[_segment_of(found, after + 1) :]:
        with path.open("rb") as file:
            yield from itertools.islice(file, max(0, after + 1 - first), max(0, upto + 1 - first))


def _first_prev(path: Path, lines: Sequence[bytes]) -> bytes:
    """Return the hash that a segment in the middle of the log continues."""
    try:
        return decode_entry(lines[0]).prev
    except (IndexError, LineError) as error:
        raise LogDamagedError(f"{path.name} has no good first record") from error
