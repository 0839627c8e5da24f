"""Log lines of child processes: split, kept in bounded files, prefixed in one stream."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from libs.supervisor.spec import LogLimits

ALL = "mesh"
"""Name of the log that holds every process's lines, prefixed."""

_MAX_LINE = 64 * 2**10
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


def log_path(state_dir: Path | str, name: str = ALL) -> Path:
    """Where the log of a process is."""
    return Path(state_dir) / "logs" / f"{name}.log"


def colour(name: str) -> int:
    """The ANSI colour code of a process's prefix, the same in every run."""
    return _COLOURS[sum(name.encode()) % len(_COLOURS)]


class LineSplitter:
    """Cuts a byte stream into lines. A line longer than 64 KiB is cut, so that memory stays bounded."""

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(line)
        while len(self._rest) >= _MAX_LINE:
            self._on_line(self._rest[:_MAX_LINE])
            self._rest = self._rest[_MAX_LINE:]

    def close(self) -> None:
        """Gives out an unfinished last line."""
        if self._rest:
            self._on_line(self._rest)
            self._rest = b""


class RotatingFile:
    """Appends to `path`; past `max_bytes` it becomes `path.1`, that `path.2` and so on, `backups` of them kept.

    What cannot be written, on a full disk say, is dropped and counted; a line tells of it as soon as one can be.
    """

    def __init__(self, path: Path, *, max_bytes: int, backups: int) -> None:
        self._path = path
        self._max = max_bytes
        self._backups = backups
        self._file: FileIO | None = None
        self._size = 0
        self._untold = 0
        self._torn = False
        """The file ends within a line."""
        self.dropped = 0
        """Lines in all."""

    def write(self, data: bytes) -> None:
        """Appends whole lines; rotates first when they would not fit."""
        told = b"... %d lines could not be written\n" % self._untold if self._untold else b""
        try:
            self._append(b"\n" * self._torn + told + data)
        except OSError:
            lines = data.count(b"\n")
            self.dropped += lines
            self._untold += lines
            self.close()
        else:
            self._untold = 0

    def _append(self, data: bytes) -> None:
        file = self._file or self._open("ab")
        if self._size and self._size + len(data) > self._max:
            file = self._rotate()
        rest = memoryview(data)
        while rest:
            written = file.write(rest)
            self._size += written
            self._torn = written < len(rest)
            rest = rest[written:]

    def _open(self, mode: str) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = file = FileIO(self._path, mode)
        self._size = file.tell()
        return file

    def _rotate(self) -> FileIO:
        self.close()
        for number in range(self._backups, 0, -1):
            older = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number}"))
        return self._open("wb")

    def close(self) -> None:
        """Closes the file; the next line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


class LogSink:
    """Receives every line of every process, and fails for none."""

    def __init__(self, state_dir: Path, limits: LogLimits, *, echo: BinaryIO | None = None) -> None:
        """`echo` also gets the prefixed stream, coloured: the terminal of a supervisor in the foreground."""
        self._state_dir = state_dir
        self._limits = limits
        self._echo = echo
        self._width = 12
        self._tails: dict[str, deque[bytes]] = {}
        self._files: dict[str, RotatingFile] = {}
        self._all = self._file(ALL)

    @property
    def dropped(self) -> int:
        """Lines that could not be written, each counted in every file where it is missing."""
        return sum(file.dropped for file in (*self._files.values(), self._all))

    def _file(self, name: str) -> RotatingFile:
        limits = self._limits
        return RotatingFile(log_path(self._state_dir, name), max_bytes=limits.max_bytes, backups=limits.backups)

    def line(self, name: str, line: bytes) -> None:
        """Takes one line without its newline."""
        if name not in self._files:
            self._files[name] = self._file(name)
            self._tails[name] = deque(maxlen=self._limits.tail_lines)
        self._tails[name].append(line)
        self._files[name].write(line + b"\n")
        prefix = name.ljust(self._width).encode()
        self._all.write(b"%s | %s\n" % (prefix, line))
        if self._echo is not None:
            with suppress(OSError):  # a terminal that is gone
                self._echo.write(b"\x1b[%dm%s |\x1b[0m %s\n" % (colour(name), prefix, line))
                self._echo.flush()

    def tail(self, name: str) -> list[str]:
        """The last lines of a process in this run."""
        return [line.decode("utf-8", "replace") for line in self._tails.get(name, ())]

    def close(self) -> None:
        """Closes every file."""
        for file in (*self._files.values(), self._all):
            file.close()


def terminal() -> BinaryIO:
    """Standard output as bytes."""
    return sys.stdout.buffer
