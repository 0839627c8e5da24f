"""Log lines for people: JSON lines become one readable line, prefixes are coloured."""

from __future__ import annotations

import json

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
