"""The bounded sandbox: a syntax tree in which loops, joins and comparisons are charged, operators that look first."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARACTERS = 4 << 20
"""Of a rendered conversation and of any text on the way: what the edge lets in, four times over."""
MAX_SOURCE = 256 << 10
"""Characters of a template."""
_WORK = 64 << 20
"""Units per rendering: turns of loops, calls, characters made or compared."""
_TURN, _CALL, _PART = 64, 512, 32
"""Units of a turn, a call, a part of a list that is measured: a unit stands for about ten nanoseconds."""
_LARGEST = 1 << 64
_TEXT_METHODS = frozenset(
    {
        "capitalize",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isdigit",
        "islower",
        "isspace",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "title",
        "upper",
    }
)
"""What a template may call of strings: nothing that takes a width or a format."""
_FILTERS = frozenset(
    {
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "first",
        "float",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "sort",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "unique",
        "upper",
    }
)
"""What a template may pipe through; none makes more than it gets, but those that are bounded below."""

_spent: contextvars.ContextVar[list[int]] = contextvars.ContextVar("spent")


class TemplateError(Exception):
    """A template cannot be used, or refuses a conversation; the message is fit for whoever sent it."""


class ChatTemplate:
    """A compiled template. Immutable; threads may render at the same time."""

    def __init__(self, source: str) -> None:
        """Compiles a template.

        :raises TemplateError: it is no Jinja, too long, or uses what conversations do not need.
        """
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has more than {MAX_SOURCE} characters")
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:
            raise TemplateError(str(error) or type(error).__name__) from error

    def render(self, messages: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
        """The conversation as text, open for the assistant's turn. `names` are variables such as `bos_token`.

        :raises TemplateError: the template refuses the messages, fails, or goes beyond its bounds.
        """
        token = _spent.set([0])
        try:
            parts: list[str] = []
            length = 0
            for part in self._template.generate(messages=list(messages), add_generation_prompt=True, **names):
                length += len(part)
                if length > MAX_CHARACTERS:
                    _out_of_bounds()
                parts.append(part)
            return "".join(parts)
        except jinja2.TemplateError as error:
            raise TemplateError(error.message or type(error).__name__) from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template fails ({type(error).__name__})") from error
        finally:
            _spent.reset(token)


def _out_of_bounds() -> NoReturn:
    raise jinja2.TemplateRuntimeError("the chat template makes or does more than is allowed")


def _charge(units: int) -> None:
    spent = _spent.get(None)
    if spent is None:
        return  # constants are folded while the template is compiled; what comes out is bounded all the same
    spent[0] += units
    if spent[0] > _WORK:
        _out_of_bounds()


def _size(value: Any, depth: int = 0) -> int:
    """Characters that a value has as text, about; charged while it is counted, since values may share parts."""
    if isinstance(value, str):
        size = len(value)
        if size > MAX_CHARACTERS:
            _out_of_bounds()
        return size
    if depth > 32:
        _out_of_bounds()
    if isinstance(value, Mapping):
        _charge(_PART * len(value))
        return sum(_size(key, depth + 1) + _size(each, depth + 1) + 6 for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        _charge(_PART * len(value))
        return sum(_size(each, depth + 1) + 2 for each in value)
    return 24


def _bounded(value: Any) -> Any:
    """The value, after its text is charged."""
    size = _size(value)
    if size > MAX_CHARACTERS:
        _out_of_bounds()
    _charge(size)
    return value


def _turns(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _charge(_TURN)
        yield value


def _made(length: int) -> None:
    if length > MAX_CHARACTERS:
        _out_of_bounds()
    _charge(length)


def _concat(values: Sequence[Any]) -> str:
    _made(sum(_size(value) for value in values))
    return "".join(str(value) for value in values)


def _join(values: Iterable[Any], separator: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = [_ENVIRONMENT.getitem(value, attribute) for value in values]
    found = list(_turns(values))
    _made(sum(_size(value) for value in found) + len(found) * len(separator))
    return separator.join(str(value) for value in found)


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    text = str(_bounded(text))
    times = len(text) + 1 if not old else text.count(old)
    _made(len(text) + (times if count is None or count < 0 else min(times, count)) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    _bounded(value)
    return json.dumps(value, ensure_ascii=False, indent=min(8, indent) if indent else None)


def _times(left: Any, right: Any) -> Any:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple):
            if not isinstance(times, int) or abs(times) > MAX_CHARACTERS:
                _out_of_bounds()
            _made(len(value) * max(0, times))
            return value * times
    return left * right


class _Metered(NodeTransformer):
    """Puts the charges into a syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as the library calls it
        self.generic_visit(node)
        node.iter = self._through("_turns", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._through("_concat", nodes.List(list(node.nodes), lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._through("_bounded", node.expr)
        for operand in node.ops:
            operand.expr = self._through("_bounded", operand.expr)
        return node

    def _through(self, name: str, value: nodes.Node) -> nodes.Filter:
        return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%", "//", "/"})
    optimized = False  # or constants would be folded, unbounded, while a template is compiled

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for kind in (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends):
            if (found := template.find(kind)) is not None:
                raise jinja2.TemplateAssertionError("other templates cannot be used", found.lineno)
        metered: nodes.Template = _Metered().visit(template)
        return metered

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            return self._number(_times(left, right))
        if operator in ("**", "%") and not all(isinstance(each, int | float) for each in (left, right)):
            raise jinja2.TemplateRuntimeError(f"{operator} is for numbers")
        if operator == "**" and (abs(right) > 64 or abs(left) > 1 << 32):
            _out_of_bounds()
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _made(len(left) + len(right))
        return self._number(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        _charge(_CALL)
        text = getattr(function, "__self__", None)
        if isinstance(text, str):
            name = getattr(function, "__name__", "")
            if name == "replace":
                return _replace(text, *arguments, **named)
            if name == "join":
                return _join(arguments[0], text)
            _charge(len(text))
        return super().call(context, function, *arguments, **named)

    def wrap_str_format(self, value: Any) -> None:
        """No `str.format`: the library's own is safe, and makes as much as a width says."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        return super().is_safe_attribute(obj, attr, value)

    @staticmethod
    def _number(value: Any) -> Any:
        if isinstance(value, int) and abs(value) > _LARGEST:
            _out_of_bounds()
        return value


def _raise(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message)[:1000])


def _range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > 10_000:
        _out_of_bounds()
    return made


def _text(value: Any) -> Any:
    return str(_bounded(value))


def _environment() -> _Environment:
    # loop.length and the like are read through the filter that counts turns, which is a generator: Jinja makes a list.
    made = _Environment(trim_blocks=True, lstrip_blocks=True, finalize=_bounded, extensions=["jinja2.ext.loopcontrols"])
    kept = {name: each for name, each in made.filters.items() if name in _FILTERS}
    made.filters = {
        **{name: _watched(each) for name, each in kept.items()},
        "_turns": _turns,
        "_concat": _concat,
        "_bounded": _bounded,
        "join": _join,
        "replace": _replace,
        "string": _text,
        "tojson": _to_json,
    }
    made.globals = {"raise_exception": _raise, "range": _range, "namespace": made.globals["namespace"]}
    return made


def _watched(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is charged for what it is given; the marks by which Jinja passes its context are kept."""

    def watched(*arguments: Any, **named: Any) -> Any:
        value = next((each for each in arguments if isinstance(each, str | list | tuple | dict)), "")
        _charge(_CALL + _size(value))
        return filter_(*arguments, **named)

    if (mark := getattr(filter_, "jinja_pass_arg", None)) is not None:
        watched.jinja_pass_arg = mark  # type: ignore[attr-defined]
    return watched


_ENVIRONMENT = _environment()
