"""Messages for tests: made from others, and of every shape that their types allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cache
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


_PRESENT = st.booleans()
_COUNTS = st.integers(0, 3)


@cache  # as are the strategies below: to make one takes Hypothesis longer than to draw from it
def messages(kind: type[M], depth: int = 4) -> st.SearchStrategy[M]:
    """Any message of a type: numbers at and beyond every bound, unknown enum numbers, empty oneofs, NaN."""
    return _messages(kind, depth)


@st.composite
def _messages(draw: st.DrawFn, kind: type[M], depth: int) -> M:
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if not draw(_PRESENT):
            continue
        if field.is_repeated:
            _draw_many(draw, getattr(made, field.name), field, depth)
        elif field.message_type is None:
            setattr(made, field.name, draw(_scalars(field.type)))
        elif depth:
            getattr(made, field.name).CopyFrom(draw(messages(field.message_type._concrete_class, depth - 1)))
    return made


def _draw_many(draw: st.DrawFn, elements: Any, field: FieldDescriptor, depth: int) -> None:
    for _ in range(draw(_COUNTS)):
        if field.message_type is None:
            elements.append(draw(_scalars(field.type)))
        elif field.message_type.GetOptions().map_entry:
            parts = field.message_type.fields_by_name
            elements[draw(_scalars(parts["key"].type))] = draw(_scalars(parts["value"].type))
        elif depth:
            elements.append(draw(messages(field.message_type._concrete_class, depth - 1)))


@cache
def _scalars(kind: int) -> st.SearchStrategy[Any]:
    """Values of a scalar type, one of FieldDescriptor.TYPE_…"""
    number = FieldDescriptor.ProtoTypeToCppProtoType(kind)
    if number in _BITS:
        low, high = _BITS[number]
        return st.sampled_from([low, high, 0, 1, 2, 100, 9999]) | st.integers(low, high)
    if number in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        width = 32 if number == FieldDescriptor.CPPTYPE_FLOAT else 64
        return st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.5]) | st.floats(width=width)
    if number == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=8)
    return st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
