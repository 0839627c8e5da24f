"""FIELD=VALUE as it is written on the command line, laid into a resource's plain form."""

from __future__ import annotations

from typing import Any

from libs.near import near
from libs.resources.kind import Kind
from services.cli import files
from services.cli.app import UsageError


def assign(form: dict[str, Any], kind: Kind, text: str, *, labels: bool = False) -> None:
    """Sets the field of "weight=2", "spec.blast_radius.max_tenants=3" or "ladder.0.smaller_model.models.a=b"; "weight="
    takes it away. Values are YAML, and text as it is.

    :raises UsageError: it makes no sense; the message names the field.
    """
    path, equals, raw = text.partition("=")
    if not equals or not path:
        raise UsageError(f"{text!r}: expected FIELD=VALUE")
    parts = path.split(".")
    if labels:
        parts = ["metadata", "labels", path]
    elif parts[0] not in ("spec", "metadata"):
        parts = ["spec", *parts]
    field = None if labels or parts[0] == "metadata" else _field(kind, parts[1:], path)
    at: Any = form
    for part in parts[:-1]:
        at = _inside(at, part, path)
    last = parts[-1]
    if isinstance(at, list):
        _index(at, last, path)
        at[int(last) : int(last) + 1] = [] if raw == "" else [value_of(field, raw, path)]
    elif raw == "":
        at.pop(last, None)
    else:
        at[last] = raw if parts[0] == "metadata" else value_of(field, raw, path)


def value_of(field: Any, raw: str, path: str) -> Any:
    """The plain value that a text stands for in a field; a field of None may be any."""
    if field is None or (field.is_repeated and raw[:1] in "[{"):
        return files.scalar(raw, path)
    if field.is_repeated and field.message_type is None:
        return [value_of_one(field, each.strip(), path) for each in raw.split(",")]
    return value_of_one(field, raw, path)


def value_of_one(field: Any, raw: str, path: str) -> Any:
    """Likewise, of one element."""
    if field.type == field.TYPE_STRING and not (raw[:1] in "\"'" and raw[-1:] == raw[:1]):
        return raw
    return files.scalar(raw, path)


def _field(kind: Kind, parts: list[str], path: str) -> Any:
    """The field that a path leads to; None inside a map."""
    message: Any = kind.message.DESCRIPTOR
    found: Any = None
    for part in parts:
        if found is not None and found.is_repeated and part.isdigit():
            continue
        if message is None or part not in message.fields_by_name:
            known = message.fields_by_name if message is not None else {}
            raise UsageError(f"{path}: no field {part!r}{near(part, known)}; see `weir explain {kind.name}`")
        found = message.fields_by_name[part]
        message = found.message_type
        if message is not None and message.GetOptions().map_entry:
            return None
    return found


def _inside(at: Any, part: str, path: str) -> Any:
    if isinstance(at, list):
        _index(at, part, path)
        return at[int(part)]
    return at.setdefault(part, {})


def _index(at: list[Any], part: str, path: str) -> None:
    if not part.isdigit() or int(part) >= len(at):
        raise UsageError(f"{path}: there are {len(at)} elements, numbered from 0; no {part!r}")
