"""Messages for tests: made from others, and of every shape that their types allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from libs.resources.checks.faults import Fault
from libs.resources.snapshot import RegistrySnapshot

M = TypeVar("M", bound=Message)
EMPTY = RegistrySnapshot()

_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
WORDS = ("a", "m@1", "m@2", "acme", "fast", "generate", "shadow", "https://[", "Europe", "Europe/Berlin", "a\0", "(")
"""Texts that mean something somewhere, and some that break what is careless."""


def seconds(value: float) -> timedelta:
    """A Duration's value."""
    return timedelta(seconds=value)


def having(message: M, **values: Any) -> M:
    """A copy with other values, as the constructor takes them; None leaves a field unset."""
    made = type(message)()
    made.CopyFrom(message)
    for name in values:
        made.ClearField(name)
    made.MergeFrom(type(message)(**{name: value for name, value in values.items() if value is not None}))
    return made


def fields_of(check: Callable[[Any, Any], Iterable[Fault]], message: Message, context: Any = EMPTY) -> list[str]:
    """Where a check finds faults, in its order."""
    return [fault.field for fault in check(message, context)]


@st.composite
def messages(draw: st.DrawFn, kind: type[M], depth: int = 4) -> M:
    """Any message of a type: numbers at and beyond every bound, unknown enum numbers, empty oneofs, NaN."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if field.is_repeated:
            _draw_many(draw, getattr(made, field.name), field, depth)
        elif field.message_type is None:
            setattr(made, field.name, draw(_scalars(field)))
        elif depth:
            getattr(made, field.name).CopyFrom(draw(messages(field.message_type._concrete_class, depth - 1)))
    return made


def _draw_many(draw: st.DrawFn, elements: Any, field: FieldDescriptor, depth: int) -> None:
    for _ in range(draw(st.integers(0, 3))):
        if field.message_type is None:
            elements.append(draw(_scalars(field)))
        elif field.message_type.GetOptions().map_entry:
            parts = field.message_type.fields_by_name
            elements[draw(_scalars(parts["key"]))] = draw(_scalars(parts["value"]))
        elif depth:
            elements.append(draw(messages(field.message_type._concrete_class, depth - 1)))


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind in _BITS:
        low, high = _BITS[kind]
        return st.sampled_from([low, high, 0, 1, 2, 100, 9999]) | st.integers(low, high)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        width = 32 if kind == FieldDescriptor.CPPTYPE_FLOAT else 64
        return st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.5]) | st.floats(width=width)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=8)
    return st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
