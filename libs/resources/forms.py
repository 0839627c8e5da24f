"""Resources as people write them: `kind`, `metadata`, `spec`, `status` as plain values, for YAML, JSON and the history.

Proto field names, numbers as numbers, enums by name, times as RFC 3339, durations as "1.5s"; what is unset is left out,
so that a resource has one form. `from_plain` takes also what protobuf's JSON takes, and what `weir get` prints.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.deadlines import to_seconds
from libs.near import near
from libs.resources.checks.faults import Fault
from libs.resources.codec import kind_of, status_part
from libs.resources.kinds import BY_NAME
from libs.resources.reading import read

SPECS = frozenset(field.name for field in pb.Resource.DESCRIPTOR.oneofs_by_name["spec"].fields)
"""Fields of `Resource` that hold a spec; what is of another kind is a status itself."""
_PARTS = ("kind", "metadata", "spec", "status")


class FormError(ValueError):
    """A value is no resource; the message names the fields."""

    def __init__(self, *faults: Fault) -> None:
        """:param faults: all of them; without a field: of the whole."""
        super().__init__("; ".join(f"{each.field}: {each.message}" if each.field else each.message for each in faults))
        self.faults = faults


def to_plain(resource: pb.Resource, *, full: bool = True) -> dict[str, Any]:
    """A resource as plain values.

    :param full: with revision, computed fields and status, which an apply ignores; without, what a file holds.
    :raises ValueError: it is of no kind that this build knows.
    """
    kind = kind_of(resource)
    if kind is None:
        raise ValueError("a resource of no known kind")
    metadata = plain(resource.metadata)
    spec = plain(getattr(resource, kind.part))
    if not full:
        metadata.pop("revision", None)
        for name in kind.computed:
            spec.pop(name, None)
    made = {"kind": kind.name, "metadata": metadata}
    observed = resource.WhichOneof("status")
    if kind.part == observed:
        return made | {"status": spec}
    made["spec"] = spec
    return made | {"status": plain(getattr(resource, observed))} if full and observed else made


def from_plain(data: Any) -> pb.Resource:
    """A resource out of plain values.

    :raises FormError: it is none.
    """
    if not isinstance(data, Mapping):
        raise FormError(Fault("", "a resource has the fields kind, metadata and spec"))
    faults = [
        Fault(str(name), f"no such field; a resource has {', '.join(_PARTS)}") for name in data if name not in _PARTS
    ]
    called = data.get("kind")
    kind = BY_NAME.get(str(called or ""))
    if kind is None:
        raise FormError(Fault("kind", f"no kind {called!r}{near(str(called), sorted(BY_NAME), tell=True)}"), *faults)
    resource = pb.Resource()
    faults += read(data.get("metadata"), resource.metadata, "metadata")
    own = "spec" if kind.part in SPECS else "status"
    for name, part in {"spec": "", "status": status_part(kind), own: kind.part}.items():
        if name in data and not part:
            faults.append(Fault(name, f"a {kind.name} has none"))
        elif name in data or name == own:
            target = getattr(resource, part)
            faults += read(data.get(name), target, name)
            target.SetInParent()
    if faults:
        raise FormError(*faults)
    return resource


def differing(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two plain values differ: field path, before, after; None where there is nothing."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            yield from differing(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        yield path, before, after


def plain(message: Message, *, unset: bool = False) -> dict[str, Any]:
    """The set fields of a message as plain values, in the order of their numbers.

    :param unset: all fields, as answers of services are told to programs: absent messages are None, durations numbers
        of seconds, bytes in hex.
    """
    fields: Any = message.ListFields()
    if unset:
        fields = [(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields]
    return {
        field.name: None
        if unset and field.message_type and not field.is_repeated and not message.HasField(field.name)
        else _value(field, value, unset)
        for field, value in fields
    }


def _value(field: FieldDescriptor, value: Any, unset: bool) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        element = field.message_type.fields_by_name["value"]
        return {str(key): _one(element, value[key], unset) for key in sorted(value)}
    return [_one(field, each, unset) for each in value] if field.is_repeated else _one(field, value, unset)


def _one(field: FieldDescriptor, value: Any, unset: bool) -> Any:
    if field.message_type is not None:
        if unset and field.message_type.full_name == "google.protobuf.Duration":
            return to_seconds(value)
        if field.message_type.file.package == "google.protobuf":
            return json_format.MessageToDict(value)
        return plain(value, unset=unset)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.hex() if unset else base64.b64encode(value).decode()
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return _shortest(value)
    return value


def _shortest(value: float) -> float:
    """The shortest number that is the same 32 bits: 0.7, not 0.699999988."""
    exact = struct.pack("f", value)
    made = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((each for each in made if struct.pack("f", each) == exact), value)
