"""Log lines for people: JSON lines become one readable line, prefixes are coloured."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from libs.supervisor.logs import colour
from services.cli.app import printable

_FIRST = ("time", "level", "event", "service", "instance", "logger")
_LEVELS = {"warning": 33, "error": 31, "critical": 31}


def readable(line: str, *, coloured: bool) -> str:
    """A line of the merged stream ("name | line") or of one service's log, for a terminal."""
    name, bar, rest = line.partition(" | ")
    if not bar or "{" in name or not name.isprintable():
        return _event(line, coloured=coloured)
    prefix = f"\x1b[{colour(name.strip())}m{name} |\x1b[0m" if coloured else f"{name} |"
    return f"{prefix} {_event(rest, coloured=coloured)}"


def _event(line: str, *, coloured: bool) -> str:
    try:
        fields = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        fields = {}
    if "event" not in fields:
        return printable(line)
    exception = fields.pop("exception", "")
    level = str(fields.get("level", ""))
    shown = f"\x1b[{_LEVELS[level]}m{level:7}\x1b[0m" if coloured and level in _LEVELS else f"{printable(level):7}"
    clock = printable(str(fields.get("time", ""))[11:23])
    rest = " ".join(f"{key}={_plain(value)}" for key, value in fields.items() if key not in _FIRST)
    text = f"{clock} {shown} " + printable(f"{fields['event']} {rest}", "")
    return "\n".join(filter(None, (text.rstrip(), printable(exception))))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a file; at most its last 256 KiB are read."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 256 * 1024))
        return file.read().decode("utf-8", "replace").splitlines()[-count:]


def follow(path: Path, *, interval: float = 0.2) -> Iterator[str]:
    """Lines that are appended from now on, for ever; survives rotation."""
    file = open(path, "rb")  # noqa: SIM115 - replaced on rotation
    try:
        file.seek(0, os.SEEK_END)
        rest = b""
        while True:
            data = file.read()
            if not data:
                if not _rotated(file.fileno(), path):
                    time.sleep(interval)
                    continue
                data = file.read()  # what came between the two looks
                file.close()
                file = open(path, "rb")  # noqa: SIM115 - replaced on rotation
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
    finally:
        file.close()


def _rotated(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
