"""Plain values into messages, every fault at once.

What `weir get` prints is read as well: enums by their short names ("paid"), times as "1d", money as "$0.02".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from libs.near import near
from libs.resources.checks.bounds import entry, shown
from libs.resources.checks.faults import Fault
from libs.resources.quantities import microusd_in, seconds_in, short_enum

_WRONG = (json_format.ParseError, TypeError, ValueError, OverflowError)
_WHOLE = "a whole number"
_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: _WHOLE,
    FieldDescriptor.CPPTYPE_INT64: _WHOLE,
    FieldDescriptor.CPPTYPE_UINT32: f"{_WHOLE} from 0",
    FieldDescriptor.CPPTYPE_UINT64: f"{_WHOLE} from 0",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_MESSAGE: "a time, such as 2026-01-31T12:00:00Z",
}


def read(data: Any, message: Message, path: str) -> list[Fault]:
    """Lays fields into an empty message, and says what is wrong with them: "spec.targets[1].weight" and what it must
    be. With any fault the message is of no use.

    :param data: None is no fields.
    :param path: what the message is called in faults.
    """
    if data is None:
        return []
    if not isinstance(data, Mapping):
        return [Fault(path, "must hold fields")]
    try:
        json_format.ParseDict(dict(data), message)
        return []
    except _WRONG:
        message.Clear()
    faults: list[Fault] = []
    made = _fields(type(message).DESCRIPTOR, data, path, faults)
    try:
        if not faults:
            json_format.ParseDict(made, message)
    except _WRONG as error:
        faults.append(Fault(path, str(error).splitlines()[0].rstrip(".")))
    return faults


def choices(enum: Any) -> dict[str, str]:
    """The values of an enum's descriptor by their short names, but for what is unspecified."""
    return {short_enum(enum.name, each.name): each.name for each in enum.values if each.number}


def _fields(of: Any, data: Mapping[str, Any], path: str, faults: list[Fault]) -> dict[str, Any]:
    """The fields of a descriptor as protobuf's JSON has them."""
    known = {name: field for field in of.fields for name in (field.name, field.json_name)}
    made: dict[str, Any] = {}
    chosen: dict[str, str] = {}
    for name, value in data.items():
        at, field = f"{path}.{name}", known.get(name)
        if field is None:
            faults.append(Fault(at, f"no such field{near(str(name), of.fields_by_name.keys(), tell=True)}"))
            continue
        other = chosen.setdefault(field.containing_oneof.name if field.containing_oneof else field.name, name)
        if other != name:
            faults.append(Fault(at, f"cannot stand beside {other}"))
        elif value is not None:
            made[field.name] = _value(field, value, at, faults)
    return made


def _value(field: FieldDescriptor, value: Any, at: str, faults: list[Fault]) -> Any:
    below = field.message_type
    is_map = below is not None and below.GetOptions().map_entry
    if below is not None and is_map:
        if isinstance(value, Mapping):
            element = below.fields_by_name["value"]
            return {key: _one(element, each, entry(at, str(key)), faults) for key, each in value.items()}
    elif not field.is_repeated:
        return _one(field, value, at, faults)
    elif isinstance(value, list):
        return [_one(field, each, f"{at}[{number}]", faults) for number, each in enumerate(value)]
    faults.append(Fault(at, "must hold fields" if is_map else "must be a list"))
    return None


def _one(field: FieldDescriptor, value: Any, at: str, faults: list[Fault]) -> Any:
    try:
        if field.enum_type is not None:
            return _choice(field.enum_type, value)
        if field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
            return value if _exact(value) else f"{seconds_in(str(value)):.9f}".rstrip("0").rstrip(".") + "s"
        if "microusd" in field.name and isinstance(value, str) and value.startswith("$"):
            return microusd_in(value)
    except ValueError as error:
        faults.append(Fault(at, f"must be {error}"))
        return None
    if field.message_type is not None and field.message_type.file.package != "google.protobuf":
        if isinstance(value, Mapping):
            return _fields(field.message_type, value, at, faults)
        faults.append(Fault(at, "must hold fields"))
        return None
    try:
        around: Any = field.containing_type
        alone = GetMessageClass(around)()
        json_format.ParseDict({field.name: [value] if field.is_repeated else value}, alone)
    except _WRONG:
        what = "base64" if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]
        quoted = "; quote it" if what == "text" and isinstance(value, int | float) else ""
        faults.append(Fault(at, f"must be {what}, not {shown(value) if isinstance(value, str) else value}{quoted}"))
    return value


def _exact(value: Any) -> bool:
    """It is a Duration as protobuf has it, whose nanoseconds a float may not hold."""
    try:
        Duration().FromJsonString(value)
    except _WRONG:
        return False
    return True


def _choice(enum: Any, value: Any) -> Any:
    known = choices(enum)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (value in known or value in enum.values_by_name):
        return known.get(value, value)
    raise ValueError(f"one of {', '.join(known)}; not {value!r}")
