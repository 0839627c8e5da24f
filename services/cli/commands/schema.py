"""`weir api-resources`, `explain`, `schema`: what there is to say, out of the protos and their comments."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from weir.registry.v1 import registry_pb2 as pb

from libs.near import near
from libs.resources.kind import Kind
from libs.resources.kinds import BY_PLURAL, KINDS
from libs.resources.reading import choices
from libs.tables import WIDTH
from services.cli.app import Argument, Json, Option, Output, UsageError
from services.cli.kinds import kind_called
from services.cli.output import print_found, print_json

_SPECIAL: dict[str, tuple[str, dict[str, Any]]] = {
    "google.protobuf.Duration": ("duration", {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?(ms|s|m|h|d)$"}),
    "google.protobuf.Timestamp": ("time", {"type": "string", "format": "date-time"}),
}
_SCALARS: dict[int, tuple[str, dict[str, Any]]] = {
    1: ("number", {"type": "number"}),
    2: ("number", {"type": "number"}),
    3: ("whole number", {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}),
    4: ("whole number", {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}),
    8: ("true or false", {"type": "boolean"}),
    9: ("text", {"type": "string"}),
    12: ("base64", {"type": "string", "contentEncoding": "base64"}),
    13: ("whole number", {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}),
}
"""By protobuf's number of the type, such as TYPE_DOUBLE: in words and as JSON Schema."""


def api_resources(output: Output = "table") -> None:
    """List the kinds of resources: what they are called, and who may change them."""
    rows = [
        {
            "name": kind.plural,
            "short": list(kind.short),
            "kind": kind.name,
            "applied": kind.applied,
            "roles": sorted(role.value for role in kind.change),
            "description": comment(kind.message),
        }
        for kind in KINDS
    ]
    columns = ("NAME", "SHORT", "KIND", "APPLIED", "CHANGED BY", "WHAT")
    cells = [[*list(row.values())[:-1], str(row["description"]).partition(". ")[0]] for row in rows]
    print_found(output, {"kinds": rows}, columns, cells, empty="", extra=("SHORT",))


def explain(
    path: Annotated[str, Argument("KIND, or KIND.FIELD, with dots further in.", complete="kind")], as_json: Json = False
) -> None:
    """Say what a kind or one of its fields means, and what fields are below it."""
    word, *parts = path.split(".")
    kind = kind_called(word)
    below, what, told, hidden = kind.message.DESCRIPTOR, comment(kind.message), kind.name, _hidden(kind)
    if parts[:1] == ["status"] and kind.observed:
        below, parts = BY_PLURAL[kind.observed].message.DESCRIPTOR, parts[1:]
    elif parts[:1] in (["metadata"], ["spec"]):
        below, parts = (pb.Metadata.DESCRIPTOR if parts[0] == "metadata" else below), parts[1:]
    for part in parts:
        fields: Any = below.fields_by_name if below is not None else {}
        if part not in fields:
            raise UsageError(f"{path}: no field {part!r}{near(part, fields)}; see `weir explain {word}`")
        field, hidden = fields[part], ()
        what, told, below = comment(field), type_of(field), _entered(field)
    rows = [
        {"name": each.name, "type": type_of(each), "description": comment(each)}
        for each in (below.fields if below is not None else ())
        if each.name not in hidden
    ]
    if as_json:
        print_json({"path": path, "type": told, "description": what, "fields": rows})
        return
    print(f"{path}  {told}\n\n{textwrap.fill(what, WIDTH)}")
    for row in rows:
        print(f"\n  {row['name']}  {row['type']}")
        print(textwrap.fill(row["description"], WIDTH, initial_indent="    ", subsequent_indent="    "))


def schema(
    kind: Annotated[str, Argument("A kind.", complete="kind")] = "",
    every: Annotated[bool, Option("--all", help="One for files with resources of any kind.")] = False,
) -> None:
    """Print the JSON Schema of a kind's files: editors complete and check by it."""
    if bool(kind) == every:
        raise UsageError("name a kind, or --all")
    print_json(schema_of([each for each in KINDS if each.applied] if every else [kind_called(kind)]))


def schema_of(kinds: list[Kind]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of files with resources of these kinds."""
    shared: dict[str, Any] = {}
    forms = [_form(kind, shared) for kind in kinds]
    root = forms[0] if len(forms) == 1 else {"oneOf": forms}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": shared}


def comment(of: Any) -> str:
    """What the protos say of a message, a field or an enum's value; empty when nothing."""
    return _comments().get(getattr(of, "DESCRIPTOR", of).full_name, "")


def type_of(field: Any) -> str:
    """A field's type in words."""
    if _is_map(field):
        return "map of " + " to ".join(type_of(each) for each in field.message_type.fields)
    if field.enum_type is not None:
        word = "one of " + ", ".join(choices(field.enum_type))
    elif field.message_type is not None:
        word = _SPECIAL.get(field.message_type.full_name, (field.message_type.name,))[0]
    else:
        word = _SCALARS[field.type][0]
    return f"list of {word}" if field.is_repeated else word


def _entered(field: Any) -> Any:
    """The message inside a field; None when there is none to be explained."""
    inside = field.message_type.fields_by_name["value"].message_type if _is_map(field) else field.message_type
    return None if inside is None or inside.full_name in _SPECIAL else inside


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _hidden(kind: Kind) -> Collection[str]:
    """Fields that no file has: they are in the metadata, observed, or computed."""
    return {*kind.key, "revision", kind.namespace, kind.status, *kind.computed}


def _form(kind: Kind, shared: dict[str, Any]) -> dict[str, Any]:
    metadata = {**_object(pb.Metadata.DESCRIPTOR, shared), "required": ["name"]}
    spec = _object(kind.message.DESCRIPTOR, shared, _hidden(kind))
    return {
        "title": kind.name,
        "description": comment(kind.message),
        "type": "object",
        "properties": {"kind": {"const": kind.name}, "metadata": metadata, "spec": spec},
        "required": ["kind", "metadata"],
        "additionalProperties": False,
    }


def _object(message: Any, shared: dict[str, Any], hidden: Collection[str] = ()) -> dict[str, Any]:
    made = {
        each.name: {"description": comment(each), **_value(each, shared)}
        for each in message.fields
        if each.name not in hidden
    }
    return {"type": "object", "properties": made, "additionalProperties": False}


def _value(field: Any, shared: dict[str, Any]) -> dict[str, Any]:
    if _is_map(field):
        return {"type": "object", "additionalProperties": _value(field.message_type.fields_by_name["value"], shared)}
    if field.enum_type is not None:
        made: dict[str, Any] = {"enum": [*choices(field.enum_type), *(each.name for each in field.enum_type.values)]}
    elif field.message_type is None:
        made = dict(_SCALARS[field.type][1])
    elif field.message_type.full_name in _SPECIAL:
        made = dict(_SPECIAL[field.message_type.full_name][1])
    else:
        name = field.message_type.name
        if name not in shared:
            shared[name] = {}
            shared[name] = _object(field.message_type, shared)
        made = {"$ref": f"#/$defs/{name}"}
    return {"type": "array", "items": made} if field.is_repeated else made


@cache
def _comments() -> Mapping[str, str]:
    # Written by `make protos`, beside the generated code.
    found: dict[str, str] = json.loads(Path(pb.__file__).with_name("comments.json").read_text(encoding="utf-8"))
    return found
