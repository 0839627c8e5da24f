"""Bounds that fields of several kinds have. In all of these the last part of `field` is the name in `message`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from dataclasses import dataclass

from google.protobuf.message import Message

from libs.deadlines import to_seconds
from libs.resources.checks.faults import Fault, check_text

DAY = 86400.0
NANOSECOND = 1e-9
"""The shortest time that is one."""
MAX_REASON = 500
MAX_WEIGHT = 1000
"""Of a tenant or a plan; beyond this a tenant would starve the others rather than outweigh them."""
MAX_MICROUSD = 10**15
"""A thousand million dollars."""
MAX_PER_MINUTE = 10**12
_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Span:
    """Times that a field may hold, in seconds."""

    shortest: float
    longest: float
    words: str
    """Behind "must be "."""


UP_TO_A_DAY = Span(NANOSECOND, DAY, "positive and at most a day")


def shown(value: str) -> str:
    """A name in a message for people: its beginning, quoted."""
    return repr(value[:_SHOWN])


def entry(field: str, key: str) -> str:
    """The path of a map's entry: "spec.offline_metrics[loss]"."""
    return f"{field}[{shown(key)[1:-1]}]"


def check_range(field: str, message: Message, low: float, high: float) -> Iterator[Fault]:
    """A number, from `low` to `high`; NaN is none."""
    if not low <= _value(field, message) <= high:
        yield Fault(field, f"must be between {low} and {high}")


def check_not_negative(field: str, message: Message) -> Iterator[Fault]:
    """A finite number, 0 or more."""
    value = _value(field, message)
    if not (math.isfinite(value) and value >= 0.0):
        yield Fault(field, "must be a number, and not negative")


def check_duration(field: str, message: Message, span: Span) -> Iterator[Fault]:
    """A time within the span, or none at all."""
    seconds = seconds_of(message, _name(field))
    if seconds is not None and not span.shortest <= seconds <= span.longest:
        yield Fault(field, f"must be {span.words}")


def check_enum(field: str, message: Message) -> Iterator[Fault]:
    """A value that this version knows."""
    known = message.DESCRIPTOR.fields_by_name[_name(field)].enum_type
    value = _value(field, message)
    if known is None or value not in known.values_by_number:
        yield Fault(field, f"{value} is not known")


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> Iterator[Fault]:
    """One of several words."""
    if value not in choices:
        yield Fault(field, f"must be one of {', '.join(choices)}")


def check_count(field: str, elements: Sized, most: int, least: int = 0) -> Iterator[Fault]:
    """So many elements; whoever looks at each looks at the first `most`."""
    if not least <= len(elements) <= most:
        yield Fault(field, f"must have between {least} and {most} elements" if least else f"at most {most} elements")


def check_required(field: str, value: str) -> Iterator[Fault]:
    """A text that must not be empty."""
    if not value:
        yield Fault(field, "is required")


def check_reason(field: str, value: str) -> Iterator[Fault]:
    """Why somebody decides something."""
    yield from check_required(field, value)
    yield from check_text(field, value, MAX_REASON)


def seconds_of(message: Message, name: str) -> float | None:
    """A Duration field; None when it is unset."""
    return to_seconds(getattr(message, name)) if message.HasField(name) else None


def _value(field: str, message: Message) -> float:
    return getattr(message, _name(field))


def _name(field: str) -> str:
    return field.rpartition(".")[2]
