"""Appending to files so that a failed write leaves no trace."""

import os
from pathlib import Path


class Disk:
    """The two operations that can fail late; tests make them fail."""

    def write(self, descriptor: int, data: bytes) -> int:
        """Write some of `data` and return how much.

        Raises:
            OSError: as `os.write`.
        """
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Bring the file's data to the disk.

        Raises:
            OSError: as `os.fdatasync`.
        """
        os.fdatasync(descriptor)


class AppendFile:
    """A file that only grows, by whole appends. `size` is what counts; more than that is a failed append's rest."""

    def __init__(self, path: Path, disk: Disk) -> None:
        """Open or create.

        Raises:
            OSError: it cannot be opened.
        """
        self._disk = disk
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self.size = os.fstat(self._descriptor).st_size
        self._end = self.size
        self._dirty = False

    def append(self, data: bytes) -> None:
        """Write and sync. It counts once `keep` is called; until then `roll_back` undoes it.

        Raises:
            OSError: it is unknown how much was written; call `roll_back`.
        """
        self._dirty = True
        rest = memoryview(data)
        while rest:
            rest = rest[self._disk.write(self._descriptor, bytes(rest)) :]
        self._disk.sync(self._descriptor)
        self._end = self.size + len(data)

    def keep(self) -> None:
        """Let the last append count."""
        self.size = self._end
        self._dirty = False

    def roll_back(self) -> None:
        """Remove what does not count; where that fails too, `restore` tries again before the next append."""
        self._dirty = True
        try:
            self.restore()
        except OSError:
            return

    def restore(self) -> None:
        """Make the file as long as what counts.

        Raises:
            OSError: that failed.
        """
        if not self._dirty:
            return
        os.ftruncate(self._descriptor, self.size)
        self._disk.sync(self._descriptor)
        self._end = self.size
        self._dirty = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def sync_directory(path: Path) -> None:
    """Bring a directory's entries to the disk, so that new files survive a crash.

    Raises:
        OSError: that failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
