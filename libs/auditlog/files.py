"""The log on disk, as its one writer sees it. Blocking: call it from one thread of its own."""

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from libs.auditlog.chain import (
    ZERO,
    Checkpoint,
    LineError,
    decode_checkpoint,
    decode_entry,
    encode_checkpoint,
    encode_entry,
    follow,
    signed_bytes,
)
from libs.auditlog.disk import AppendFile, Disk, sync_directory
from libs.auditlog.keys import Signer, Verifier
from libs.auditlog.layout import CHECKPOINTS_NAME, LOCK_NAME, lines_of, segment_path, segments

CHECKPOINT_BYTES = 256 * 1024
"""The checkpoint file is cut down to its last `CHECKPOINTS_KEPT` lines when it is longer than this."""
CHECKPOINTS_KEPT = 256


class LogLockedError(RuntimeError):
    """Another process writes this log."""


class LogDamagedError(RuntimeError):
    """What was acknowledged is not there any more, or not as it was written; nothing is appended to such a log."""


class WriteFailedError(RuntimeError):
    """A commit failed (disk full, write error). Nothing of it counts; the files are put back as they were."""


class _Named(msgspec.Struct):
    id: str


_read_id = msgspec.json.Decoder(_Named).decode


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
        segment_bytes: int = 16 * 2**20,
        dedupe_records: int = 100_000,
        disk: Disk | None = None,
    ) -> None:
        """`now` gives the time as RFC 3339; `dedupe_records` is how many of the newest record ids are known."""
        self._directory = directory
        self._checkpoint_path = checkpoints / CHECKPOINTS_NAME
        self._sign = sign
        self._verify = verify
        self._now = now
        self._segment_bytes = segment_bytes
        self._dedupe_records = dedupe_records
        self._disk = disk or Disk()
        self._ids: OrderedDict[str, int] = OrderedDict()
        self._segment: AppendFile | None = None
        self._checkpoints: AppendFile | None = None
        self._lock: int | None = None
        self.count = 0
        """Committed records."""
        self.head = ZERO
        """The last committed record's hash."""
        self.torn_bytes = 0
        """Bytes of an unfinished write that `open` removed."""
        self.checkpoint_line = b""
        """The newest checkpoint's line; empty before the first."""

    def open(self) -> None:
        """Lock the log, find its end, remove an unfinished write beyond the last checkpoint, rebuild the id index.

        Raises:
            LogLockedError: another process has it.
            LogDamagedError: checkpointed records are missing or changed.
            OSError: a file cannot be read or written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._checkpoint_path.parent.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        checkpoint = self._read_checkpoints()
        self._read_segments(checkpoint)
        if checkpoint is not None and checkpoint.count > self.count:
            raise LogDamagedError(f"records {self.count + 1} to {checkpoint.count} were acknowledged and are missing")
        self._checkpoints = AppendFile(self._checkpoint_path, self._disk)
        last = segments(self._directory)
        self._segment = AppendFile(last[-1][1] if last else segment_path(self._directory, 1), self._disk)
        sync_directory(self._directory)
        if self.count > (checkpoint.count if checkpoint else 0):
            # Written before a crash and never acknowledged, but whole: they count from here on.
            self._write_checkpoint(self.count, self.head)

    def sequence_of(self, record_id: str) -> int | None:
        """Return the number of a record that is stored already, or None if it is not (or is too old to know)."""
        return self._ids.get(record_id)

    def commit(self, records: Sequence[tuple[str, bytes]]) -> int:
        """Append (id, canonical JSON) records and return the first one's number; they are on disk then.

        Raises:
            WriteFailedError: they are not.
        """
        if self._segment is None or self._checkpoints is None:
            raise WriteFailedError("the log is not open")
        first = self.count + 1
        prev, sequence, lines = self.head, self.count, []
        for _, record in records:
            sequence += 1
            prev, line = encode_entry(prev, sequence, record)
            lines.append(line)
        try:
            self._segment.restore()
            if self._segment.size and self._segment.size >= self._segment_bytes:
                self._rotate(first)
            self._segment.append(b"".join(lines))
            self._write_checkpoint(sequence, prev)
        except OSError as error:
            self._segment.roll_back()
            raise WriteFailedError(os.strerror(error.errno) if error.errno else "the write failed") from error
        self._segment.keep()
        self.count, self.head = sequence, prev
        for number, (record_id, _) in enumerate(records, first):
            self._remember(record_id, number)
        return first

    def probe(self) -> None:
        """Write the newest checkpoint once more, to learn whether writing works.

        Raises:
            WriteFailedError: it does not.
        """
        try:
            if self._segment is not None:
                self._segment.restore()
            self._write_checkpoint(self.count, self.head)
        except OSError as error:
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

    def _read_segments(self, checkpoint: Checkpoint | None) -> None:
        """Follow the chain through the newest segments, as many as the id index needs."""
        found = segments(self._directory)
        acknowledged = checkpoint.count if checkpoint else 0
        if not found:
            return
        skip = max(
            (at for at, (first, _) in enumerate(found) if first <= found[-1][0] - self._dedupe_records), default=0
        )
        for position, (first, path) in enumerate(found[skip:], skip):
            lines, torn = lines_of(path)
            if position == skip and skip:
                self.count, self.head = first - 1, _first_prev(path, lines)
            if first != self.count + 1:
                raise LogDamagedError(f"{path.name} does not continue after record {self.count}")
            good = 0
            fault = f"{len(torn)} bytes of a record cut short" if torn else ""
            try:
                for entry, line in zip(follow(lines, prev=self.head, sequence=self.count), lines, strict=False):
                    self.count, self.head = entry.sequence, entry.hash
                    good += len(line)
                    if checkpoint is not None and entry.sequence == acknowledged and entry.hash != checkpoint.hash:
                        raise LogDamagedError(f"record {acknowledged} is not the one that was checkpointed")
                    self._remember(_read_id(entry.record).id, entry.sequence)
            except (LineError, msgspec.DecodeError) as error:
                fault = str(error)
            if fault:
                if position < len(found) - 1 or self.count < acknowledged:
                    raise LogDamagedError(f"{path.name}, after record {self.count}: {fault}")
                self.torn_bytes = path.stat().st_size - good
                os.truncate(path, good)

    def _rotate(self, first: int) -> None:
        fresh = AppendFile(segment_path(self._directory, first), self._disk)
        sync_directory(self._directory)
        if self._segment is not None:
            self._segment.close()
        self._segment = fresh

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

    def _remember(self, record_id: str, sequence: int) -> None:
        self._ids[record_id] = sequence
        if len(self._ids) > self._dedupe_records:
            self._ids.popitem(last=False)


def _first_prev(path: Path, lines: Sequence[bytes]) -> bytes:
    """Return the hash that a segment in the middle of the log continues."""
    try:
        return decode_entry(lines[0]).prev
    except (IndexError, LineError) as error:
        raise LogDamagedError(f"{path.name} has no good first record") from error
