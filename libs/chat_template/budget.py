"""What a rendering may cost, and what it has cost so far."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import jinja2

MAX_CHARACTERS = 4 << 20
"""Of a rendered conversation and of any text on the way: what the edge lets in, four times over."""
WORK = 64 << 20
"""Units per rendering. A unit stands for about a nanosecond: a character that is made or compared costs one."""
CALL, PART, LOOK = 1000, 30, 250
"""Units of a call, of a part of a list that is passed on or made, and of one that is looked into."""
LARGEST = 1 << 64
"""Numbers are no larger."""

_spent: contextvars.ContextVar[list[int]] = contextvars.ContextVar("spent")


@contextmanager
def rendering() -> Iterator[None]:
    """What is charged inside is charged to one rendering."""
    token = _spent.set([0])
    try:
        yield
    finally:
        _spent.reset(token)


def out_of_bounds() -> NoReturn:
    """It costs more than it may."""
    raise jinja2.TemplateRuntimeError("the chat template makes or does more than is allowed")


def charge(units: int) -> None:
    """So much is about to be done."""
    spent = _spent.get()
    spent[0] += units
    if spent[0] > WORK:
        out_of_bounds()


def made(length: int) -> None:
    """A text of so many characters is about to be made."""
    if length > MAX_CHARACTERS:
        out_of_bounds()
    charge(length)


def size(value: Any, depth: int = 0) -> int:
    """Characters that a value has as text, about; charged while it is counted, since values may share parts."""
    if isinstance(value, str):
        length = len(value)
        if length > MAX_CHARACTERS:
            out_of_bounds()
        return length
    if depth > 32:
        out_of_bounds()
    if isinstance(value, Mapping):
        charge(LOOK * len(value))
        return sum(size(key, depth + 1) + size(each, depth + 1) + 6 for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        charge(LOOK * len(value))
        return sum(size(each, depth + 1) + 2 for each in value)
    return 24


def bounded(value: Any) -> Any:
    """The value, after its text is charged."""
    made(size(value))
    return value


def number(value: Any) -> Any:
    """The value, which is no larger than numbers may be."""
    if isinstance(value, int) and abs(value) > LARGEST:
        out_of_bounds()
    return value
