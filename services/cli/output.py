"""How answers and failures are printed: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.config import NoMeshError

if TYPE_CHECKING:
    from google.protobuf.message import Message

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(data: Any) -> None:
    """Prints a value as JSON."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Prints rows under headings; `empty` when there are none. A narrow terminal or a pipe gets whole cells."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = [[_cell(value) for value in row] for row in rows]
    if not made:
        print(empty)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in made:
        table.add_row(*(Text(cell) for cell in row))
    # The table's own width, whatever the terminal's: a cut cell is of no use, a wrapped line can be read.
    Console(width=Console(width=10_000).measure(table).maximum).print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line."""
    pairs = [(name, _cell(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}")


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON values: every field, numbers as numbers, enum names, times as RFC 3339, durations in seconds.

    Differs from protobuf JSON, which turns 64-bit numbers into strings that no shell tool compares.
    """
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


@contextmanager
def failures() -> Iterator[None]:
    """Turns expected failures into one line on standard error and exit code 1."""
    from libs.errors import WeirError

    try:
        yield
    except WeirError as error:
        where = f" [{error.limit}]" if error.limit else ""
        later = f"; try again in {error.retry_after:g} s" if error.retry_after else ""
        raise failed(f"{error.message}{where} ({error.reason.name}){later}") from error
    except NoMeshError as error:
        raise failed(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def failed(message: str) -> typer.Exit:
    """Prints why and gives the exit to raise."""
    print(f"error: {message}", file=sys.stderr)
    return typer.Exit(1)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "-"
    return str(value)


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        one = _converter(field.message_type.fields_by_name["value"])
        return {key: one(value[key]) for key in sorted(value)}
    one = _converter(field)
    if field.is_repeated:
        return [one(item) for item in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return one(value)


def _converter(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else number
    if field.type == field.TYPE_BYTES:
        return lambda value: value.hex()
    if field.type == field.TYPE_FLOAT:
        # Seven digits are all that a float has; more would print 0.699999988079071.
        return lambda value: float(f"{value:.7g}")
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return timestamp
    if field.message_type.full_name == "google.protobuf.Duration":
        return lambda value: value.seconds + value.nanos / 1e9
    return plain


def timestamp(value: Any) -> str:
    """A Timestamp as RFC 3339 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(value.seconds + value.nanos / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
