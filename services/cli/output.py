"""How answers and failures are printed: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from libs.tables import layout, terminal_width
from services.cli.app import printable, warn

if TYPE_CHECKING:
    from datetime import datetime

_COLOURS = {"created": "32", "changed": "33", "deleted": "31", "pruned": "31", "unchanged": "2", "bold": "1"}
_CHANGED = "it was changed meanwhile: look at it again with `weir get` or `weir diff`, then repeat"
_NEXT = {
    "CONFLICT revision": _CHANGED,
    "CONFLICT guard": _CHANGED,
    "CONFLICT owner": "`--take-over` takes it over",
    "CONFLICT capacity": "`weir workers` says what is loaded where",
    "CONFLICT alias": "`weir rollout abort` ends it",
    "CONFLICT max_cost": "`weir rollout abort` ends it; another may cost more (`--max-cost`)",
    "CONFLICT switch.kill": "`weir rollout kill --off` lifts it",
    "CONFLICT switch.freeze": "`weir rollout freeze --off` lifts it",
    "CONFLICT budget": "`weir slo status` says what is left",
    "NOT_FOUND revision": "`weir history` lists the revisions that are kept",
    "NOT_FOUND alias": "`weir get rollouts` lists them",
    "NOT_FOUND key_id": "`weir get keys` lists them",
    "PERMISSION_DENIED": "`weir get roles` says who may",
    "REVISION_GONE": "`weir history` lists the revisions that are kept",
    "DEADLINE_EXCEEDED": "see `weir status`",
}
"""By reason and by what bound, or by a reason that has one cause: what to do, where the message does not say it."""


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Prints a value as JSON; without `indent` in one line."""
    write(json.dumps(data, indent=indent, ensure_ascii=False) + "\n")


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints objects with the same fields as CSV (RFC 4180), numbers as they are; nothing where there are none."""
    import csv

    if rows:
        made = csv.DictWriter(sys.stdout, rows[0].keys())
        made.writeheader()
        made.writerows(rows)
        sys.stdout.flush()


def write(text: str) -> None:
    """Prints what can be read back: as it is, but for what a terminal would obey."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def paint(text: str, colour: str) -> str:
    """The text in a colour that means something, on a terminal."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


Names = Sequence[str]
"""Headings of columns."""
Rows = Iterable[Sequence[object]]


def print_table(
    columns: Names, rows: Rows, *, empty: str, wide: bool = False, extra: Names = (), least: Names = ()
) -> None:
    """Prints rows under headings; `empty` when there are none. See `table_lines`."""
    made = list(rows)
    print(*(table_lines(columns, made, wide=wide, extra=extra, least=least) if made else (empty,)), sep="\n")


def print_found(
    output: str, told: Any, columns: Names, rows: Rows, *, empty: str, extra: Names = (), least: Names = ()
) -> None:
    """Prints what a command found as its `--output` says: `told` as JSON, else the rows; see `print_table`. As CSV,
    `told` holds one list, of objects with the same fields."""
    if output == "json":
        print_json(told)
    elif output == "csv":
        print_csv(*told.values())
    else:
        print_table(columns, rows, empty=empty, wide=output == "wide", extra=extra, least=least)


def table_lines(columns: Names, rows: Rows, *, wide: bool = False, extra: Names = (), least: Names = ()) -> list[str]:
    """A table; see `libs.tables`.

    :param wide: whole lines, and the columns `extra` too; else it fits the terminal, or 100 columns in a pipe.
    :param least: columns that go first where it does not fit, the least important first.
    """
    shown = [index for index, name in enumerate(columns) if wide or name not in extra]
    made = [[columns[index] for index in shown]]
    made += [[cell(row[index]) for index in shown] for row in rows]
    found = layout(made, None if wide else terminal_width(), least)
    note = [f"(no room for {', '.join(found.gone)}: -o wide)"] if found.gone else []
    return [*(paint(line, "bold") for line in found.headings), *found.body, *note]


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line."""
    pairs = [(name, cell(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}")


def cell(value: object) -> str:
    """A value as people read it, in one line."""
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return printable(" ".join(text.split()) if "\n" in text else text, "")


def timestamp(value: Any) -> str:
    """A Timestamp as RFC 3339 in UTC, to the millisecond."""
    from datetime import UTC, datetime

    return zulu(datetime.fromtimestamp(value.seconds + value.nanos / 1e9, UTC), "milliseconds")


def zulu(moment: datetime, to: str = "seconds") -> str:
    """A time in UTC as RFC 3339, to the second unless said otherwise."""
    return moment.isoformat(timespec=to).replace("+00:00", "Z")


def short(moment: str, *, wide: bool = False) -> str:
    """A time of `timestamp` in a table: today's in seconds, this year's in minutes, else the day; `wide`: the whole."""
    today = time.strftime("%Y-%m-%d", time.gmtime())
    if wide or not moment:
        return moment and moment[:19] + "Z"
    if moment[:10] == today:
        return moment[11:19]
    return moment[5:16].replace("T", " ") if moment[:4] == today[:4] else moment[:10]


def terminal_line(line: str) -> None:
    """Puts a line in the place of the one before, on a terminal alone; an empty one takes that away."""
    if sys.stderr.isatty():
        room = terminal_width() - 1
        print(f"\r\033[K{printable(line, '')[:room]}", end="", file=sys.stderr, flush=True)


def failed(message: str) -> SystemExit:
    """Prints why and gives the exit to raise."""
    warn(f"error: {message}")
    return SystemExit(1)


def print_error(error: Any, where: Mapping[str, Any] | None = None) -> None:
    """A WeirError: one line, and one for each further fault.

    :param where: by resource, the `Place` in a file that it comes from.
    """
    limit = f" [{error.limit}]" if error.limit and error.limit not in error.message else ""
    later = f"; try again in {error.retry_after:g} s" if error.retry_after else ""
    then = _hint(error)
    faults = getattr(error, "faults", ())
    said = f"{len(faults)} faults, nothing was changed" if len(faults) > 1 else f"{error.message}{limit}"
    warn(f"error: {said} ({error.reason.name}){later}" + (f"; {then}" if then else ""))
    for field, message in faults if len(faults) > 1 or where else ():
        what, _, path = field.partition(" ")
        place = f"{where[what].of(path)}: " if where and what in where else ""
        warn(f"  {place}{field}: {message}")


def _hint(error: Any) -> str:
    """What to do about the cause; nothing where that is said already, or not known."""
    reason, limit = error.reason.name, error.limit
    plural, _, name = limit.partition("/")
    if "`" in error.message:
        return ""
    if name and reason == "NOT_FOUND":
        return f"`weir get {plural}` lists them"
    if name and reason == "CONFLICT":
        return _CHANGED if " " in name else f"`weir describe {plural} {name}` says what refers to it"
    return _NEXT.get(f"{reason} {limit}") or _NEXT.get(reason, "")


def would(dry_run: bool) -> str:
    """What stands before an outcome, on every line of a dry run."""
    return "would be " if dry_run else ""


def dry(dry_run: bool) -> None:
    """Says behind a dry run that it was one, on standard error: what it printed is what would be."""
    if dry_run:
        warn("nothing was changed: a dry run")
