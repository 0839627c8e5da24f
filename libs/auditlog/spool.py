"""A bounded queue of records on the writer's disk, for the time that the audit service is away.

One record per line: CRC-32 of the payload as 8 hex digits, a space, the payload in base64. A damaged or torn line is
skipped and counted; the others survive it. Records are replayed in order, at least once: after a crash those of the
oldest file may come again, and the audit service stores each id once. Blocking: call it from one thread at a time.
"""

import base64
import binascii
import os
import zlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from libs.auditlog.disk import sync_directory

_FILE_BYTES = 1 << 20


class Spool:
    """Records waiting on disk. `bytes` and `pending` count what waits, `damaged` the lines that could not be read."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Open a directory and find what waits there; it is created at the first append.

        Raises:
            OSError: it cannot be read.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._files: deque[tuple[Path, int, int]] = deque()  # (path, lines, bytes), oldest first
        self._taken = 0  # lines of the oldest file that were acknowledged
        self.bytes = 0
        self.pending = 0
        self.damaged = 0
        self._next = 1
        if directory.exists():
            for path in sorted(directory.glob("*.spool")):
                data = path.read_bytes()
                self._files.append((path, len(data.split(b"\n")) - data.endswith(b"\n") if data else 0, len(data)))
                self._next = int(path.stem) + 1
        self.bytes = sum(size for _, _, size in self._files)
        self.pending = sum(lines for _, lines, _ in self._files)

    @property
    def full(self) -> bool:
        """No further record fits."""
        return self.bytes >= self._max_bytes

    def append(self, record: bytes) -> bool:
        """Append one record; see `append_all`."""
        return self.append_all((record,)) == 1

    def append_all(self, records: Iterable[bytes]) -> int:
        """Append records, synced to disk when this returns; returns how many fitted, from the first on.

        Raises:
            OSError: the disk refuses; how many of them were written is unknown, so they may come twice.
        """
        lines: list[bytes] = []
        room = self._max_bytes - self.bytes
        for record in records:
            line = b"%08x %b\n" % (zlib.crc32(record), base64.b64encode(record))
            if len(line) > room:
                break
            room -= len(line)
            lines.append(line)
        if lines:
            self._write(lines)
        return len(lines)

    def peek(self, limit: int) -> tuple[list[bytes], int]:
        """Return (the oldest records, how many lines they took): at most `limit`, from one file, damaged ones left out.

        Raises:
            OSError: the file cannot be read.
        """
        if not self._files:
            return [], 0
        path, lines, _ = self._files[0]
        taken = path.read_bytes().split(b"\n")[self._taken : min(lines, self._taken + limit)]
        records = []
        for line in taken:
            record = _decode(line)
            if record is not None:
                records.append(record)
        return records, len(taken)

    def acknowledge(self, lines: int, *, damaged: int = 0) -> None:
        """Forget the oldest `lines` lines, as `peek` counted them; `damaged` of them could not be read.

        Raises:
            OSError: a file that is done with cannot be removed.
        """
        if not self._files:
            return
        self.damaged += damaged
        path, total, size = self._files[0]
        self._taken += lines
        self.pending -= lines
        if self._taken < total:
            return
        if len(self._files) == 1:
            self._close_file()
        self._files.popleft()
        self._taken = 0
        self.bytes -= size
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; what waits stays on disk."""
        self._close_file()

    def _write(self, lines: list[bytes]) -> None:
        if self._descriptor is None or self._files[-1][2] >= _FILE_BYTES:
            self._open_file()
        data = b"".join(lines)
        descriptor = self._descriptor
        if descriptor is None:
            raise OSError("the spool's file is not open")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fdatasync(descriptor)
        except OSError:
            # What reached the file is torn: begin a new one, and count what is there.
            self._recount()
            raise
        path, count, size = self._files[-1]
        self._files[-1] = (path, count + len(lines), size + len(data))
        self.bytes += len(data)
        self.pending += len(lines)

    def _recount(self) -> None:
        self._close_file()
        path, count, size = self._files[-1]
        data = path.read_bytes()
        lines = len(data.split(b"\n")) - data.endswith(b"\n") if data else 0
        self._files[-1] = (path, lines, len(data))
        self.bytes += len(data) - size
        self.pending += lines - count

    def _open_file(self) -> None:
        self._close_file()
        made = [each for each in (self._directory, *self._directory.parents) if not each.exists()]
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{self._next:012d}.spool"
        self._next += 1
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # What a file holds survives a crash of the machine only if its name does.
            for entry in (path, *made):
                sync_directory(entry.parent)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self._descriptor = descriptor
        self._files.append((path, 0, 0))

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _decode(line: bytes) -> bytes | None:
    checksum, _, payload = line.partition(b" ")
    try:
        record = base64.b64decode(payload, validate=True)
    except binascii.Error:
        return None
    return record if checksum == b"%08x" % zlib.crc32(record) else None
