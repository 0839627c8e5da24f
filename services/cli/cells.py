"""A resource's row in the table of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libs.deadlines import to_seconds
from libs.resources.kind import Column, Kind
from libs.resources.quantities import short_enum, show_seconds, show_usd
from services.cli.output import timestamp

LAST = ("OWNER", "LABELS", "REVISION")
"""Columns of every kind, of which people want the revision at most."""


def headings(kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All columns, and those that are only shown when asked for."""
    own = tuple(column.heading for column in kind.columns)
    return ("NAME", *own, *LAST), (*(column.heading for column in kind.columns if column.wide), *LAST[:2])


def row(kind: Kind, resource: Any, *, qualified: bool = False) -> list[object]:
    """One line.

    :param qualified: with the kind before the name.
    """
    meta = resource.metadata
    name = f"{kind.plural}/{meta.name}" if qualified else meta.name
    labels = [f"{key}={meta.labels[key]}" for key in sorted(meta.labels)]
    return [name, *(_cell(kind, resource, each) for each in kind.columns), meta.owner, labels, meta.revision or None]


def _cell(kind: Kind, resource: Any, column: Column) -> object:
    path = column.path.split(".")
    part = kind.part
    if path[0] == "status":
        part, path = resource.WhichOneof("status") or "", path[1:]
        if not part:
            return column.unset
    found = list(_values(getattr(resource, part), path))
    return found if len(found) > 1 else found[0] if found else column.unset


def _values(message: Any, path: list[str]) -> Iterator[str]:
    field = message.DESCRIPTOR.fields_by_name[path[0]]
    if not (field.is_repeated or message.HasField(path[0]) if field.has_presence else getattr(message, path[0])):
        return
    found = getattr(message, path[0])
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield from (f"{key}={found[key]}" for key in sorted(found))
        return
    for value in found if field.is_repeated else [found]:
        if len(path) > 1:
            yield from _values(value, path[1:])
        else:
            yield show(field, value)


def show(field: Any, value: Any) -> str:
    """A value as people write it."""
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return short_enum(field.enum_type.name, known.name) if known else str(value)
    if field.message_type is not None:
        match field.message_type.full_name:
            case "google.protobuf.Timestamp":
                return timestamp(value)[:19] + "Z"
            case "google.protobuf.Duration":
                return show_seconds(to_seconds(value)).replace(" ", "")
        return " ".join(each.name for each, _ in value.ListFields())
    if "microusd" in field.name:
        return show_usd(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
