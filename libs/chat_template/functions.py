"""What templates call: strings' methods, filters, tests and globals, which look at what they would make first."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
from jinja2.filters import do_round
from jinja2.utils import Cycler, Joiner, Namespace

from libs.chat_template.budget import CALL, MAX_CHARACTERS, PART, bounded, charge, made, out_of_bounds, size

_WIDEST = 1000
"""Of a format's widths and precisions, and of indentation."""
_LONGEST_LIST = 10_000
_PER_LIST = 200
"""Units of a list that is made for a few parts."""
_DIRECTIVE = re.compile(r"%(?:\([^()]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?.", re.DOTALL)
"""Of printf's formats, as Python reads them."""
_DATE = re.compile(r"%[-_^#0]?([aAbBcCdDeFgGhHIjklmMnNpPrRsStTuUVwWxXyYzZ%])|[^%]")
"""Of strftime's, without widths."""

# --- text -----------------------------------------------------------------------------------------------------------


def concat(values: Sequence[Any]) -> str:
    """`a ~ b`."""
    made(sum(size(value) for value in values))
    return "".join(str(value) for value in values)


def join(values: Iterable[Any], separator: str = "") -> str:
    """Of a list, or of a generator."""
    found = list(turns(values))
    made(sum(size(value) for value in found) + len(found) * len(separator))
    return separator.join(str(value) for value in found)


def replace(text: Any, old: str, new: str, count: int | None = -1) -> str:
    """As strings do, and as the filter."""
    text = str(bounded(text))
    times = len(text) + 1 if not old else text.count(old)
    made(len(text) + (times if count is None or count < 0 else min(times, count)) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def percent(text: str, values: Any) -> str:
    """`text % values`."""
    widths = [width for found in _DIRECTIVE.finditer(text) for width in found.groups("") if width]
    if any(width == "*" or len(width) > 4 or int(width) > _WIDEST for width in widths):
        out_of_bounds()
    count = text.count("%")
    charge(CALL * count)
    made(len(text) + sum(int(width) for width in widths) + count * size(values))
    return text % values


def format_filter(text: Any, *values: Any, **named: Any) -> str:
    """`text | format(…)`."""
    if values and named:
        raise jinja2.TemplateRuntimeError("format takes either values or names")
    return percent(str(text), named or values)


def indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Each line but the first, or all, begins further right."""
    text = str(bounded(text))
    lead = width if isinstance(width, str) else " " * min(width, _WIDEST + 1)
    if len(lead) > _WIDEST:
        out_of_bounds()
    lines = (text + "\n").splitlines()
    charge(PART * len(lines))
    made(len(text) + len(lines) * len(lead))
    rest = lines[1:]
    after = [lead + line if line or blank else line for line in rest]
    return "\n".join([lead + lines[0] if first else lines[0], *after])


def center(text: Any, width: int = 80) -> str:
    """Between blanks."""
    return padded(str(text), "center", width)


def padded(text: str, method: str, width: int, *fill: str) -> str:
    """center, ljust, rjust, zfill."""
    made(max(len(text), width))
    result: str = getattr(text, method)(width, *fill)
    return result


def split(text: str, method: str, *arguments: Any, **named: Any) -> Any:
    """What makes many parts of a text."""
    separator = arguments[0] if arguments else named.get("sep")
    parts = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
    charge(len(text) + PART * parts)
    return getattr(text, method)(*arguments, **named)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers' filter of that name."""
    wide = len(indent) if isinstance(indent, str) else indent or 0
    if wide > 16 or any(len(each) > 16 for each in separators or ()):
        out_of_bounds()
    length = size(value)
    made(length * (6 if ensure_ascii else 1) + (length * wide if indent is not None else 0))
    apart = (separators[0], separators[1]) if separators is not None else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=apart, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    """The time of rendering, UTC."""
    form = str(form)
    if len(form) > _WIDEST or _DATE.sub("", form):
        raise jinja2.TemplateRuntimeError("strftime_now: the format is too long, or has directives with widths")
    return datetime.now(UTC).replace(tzinfo=None).strftime(form)


# --- lists ----------------------------------------------------------------------------------------------------------


def turns(values: Iterable[Any], cost: int = 0) -> Iterator[Any]:
    """Each is charged when it is come to."""
    for value in values:
        charge(PART + cost)
        yield value


def sliced(value: Any) -> Any:
    """What a slice has made."""
    if isinstance(value, str | list | tuple):
        charge(len(value) * (1 if isinstance(value, str) else 8))
    return value


def total(values: Iterable[Any], attribute: Any = None, start: float = 0) -> Any:
    """The filter sum, of numbers: sums of lists would copy each as often as others come behind it."""
    if attribute is not None:
        raise jinja2.TemplateRuntimeError("sum of an attribute: map it first")
    found = list(turns(values))
    if not all(isinstance(each, int | float) for each in (*found, start)):
        raise jinja2.TemplateRuntimeError("sum is for numbers")
    return sum(found, start)


def times(left: Any, right: Any) -> Any:
    """`left * right`."""
    for value, count in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple):
            if not isinstance(count, int) or abs(count) > MAX_CHARACTERS:
                out_of_bounds()
            made(len(value) * max(0, count) * (1 if isinstance(value, str) else 8))
            return value * count
    return left * right


def rounded(value: float, precision: int = 0, method: str = "common") -> float:
    """The filter round, which takes ten to the power of the precision."""
    if abs(precision) > 64:
        out_of_bounds()
    charge(CALL // 2)
    return do_round(value, precision, method)  # type: ignore[arg-type]  # it looks at the method


def few(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that makes as many lists as it is told."""

    @functools.wraps(filter_)
    def bounded_filter(value: Any, count: int, *more: Any, **named: Any) -> Any:
        if count > _LONGEST_LIST:
            out_of_bounds()
        charge(_PER_LIST * count)
        return filter_(turns(value, _PER_LIST), count, *more, **named)

    return bounded_filter


# --- filters and tests of Jinja's own -------------------------------------------------------------------------------


def watched(
    function: Callable[..., Any], *, deep: bool = False, character: int = 1, part: int = PART
) -> Callable[..., Any]:
    """A filter or test that is charged for what it is given; the marks by which Jinja passes its context are kept.

    :param deep: it looks at the text of a list's parts, not only at their number.
    :param character: units of each character of a text.
    :param part: units of each part of a list.
    """

    @functools.wraps(function)
    def charged(*arguments: Any, **named: Any) -> Any:
        cost = CALL // 2 + PART * len(arguments)
        for each in arguments:
            if isinstance(each, str):
                cost += len(each) * character
            elif isinstance(each, Collection) and not isinstance(each, jinja2.runtime.Context):
                cost += part * len(each) + (size(each) if deep else 0)
        charge(cost)
        if part > PART:  # of what filters before it let through, too
            arguments = tuple(turns(each, part) if isinstance(each, Iterator) else each for each in arguments)
        return function(*arguments, **named)

    return charged


# --- globals --------------------------------------------------------------------------------------------------------


def raise_exception(message: Any) -> NoReturn:
    """The template refuses the conversation."""
    raise jinja2.TemplateError(str(message)[:1000])


def bounded_range(*bounds: int) -> range:
    """`range`."""
    result = range(*bounds)
    if len(result) > _LONGEST_LIST:
        out_of_bounds()
    return result


class _Dict:
    """`dict`, without what a class would show."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        charge(size(values))  # what becomes a key is hashed, with all that is in it
        made_of = dict(*values, **named)
        charge(PART * len(made_of))
        return made_of

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys((bounded(each) for each in turns(keys, CALL)), value)


class BoundedNamespace(Namespace):
    """Without names that lead to Python's insides."""

    def __init__(*values: Any, **named: Any) -> None:
        self, *rest = values
        attributes = dict(*rest, **named)
        charge(PART * len(attributes))
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateRuntimeError(f"a namespace has no {name!r}")


GLOBALS: dict[str, Any] = {
    "cycler": Cycler,
    "dict": _Dict(),
    "joiner": Joiner,
    "namespace": BoundedNamespace,
    "raise_exception": raise_exception,
    "range": bounded_range,
    "strftime_now": strftime_now,
}
