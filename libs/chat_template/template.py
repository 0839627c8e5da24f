"""The bounded sandbox: transformers' environment for chat templates, with charges."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.filters import sync_do_slice
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from libs.chat_template import functions
from libs.chat_template.budget import (
    CALL,
    MAX_CHARACTERS,
    PART,
    bounded,
    charge,
    made,
    number,
    out_of_bounds,
    rendering,
    size,
)
from libs.chat_template.metering import metered


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_SOURCE = 256 << 10
"""Characters of a template."""
MAX_TOKENS = 16 << 10
"""Words and signs of a template's program: a popular one has 3,000 at most, and Python takes 60 microseconds and 4 kB
for each to compile it."""
_PLAIN = _words("""
    capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower
    isnumeric isprintable isspace istitle isupper lower lstrip partition removeprefix removesuffix rfind rindex
    rpartition rstrip startswith strip swapcase title upper
""")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill"})
_SPLITTING = frozenset({"rsplit", "split", "splitlines"})
_TEXT_METHODS = _PLAIN | _PADDING | _SPLITTING | {"format", "join", "replace"}
"""What a template may call of strings."""
_WITHOUT_LOOKING = _words("abs attr count d default first float int last length safe")
_AT_ONCE = _words("capitalize items lower reverse title trim truncate upper wordcount")
"""Filters that look at a text once, or at how many parts a list has."""
_ONE_BY_ONE = frozenset({"map", "reject", "rejectattr", "select", "selectattr"})
_COMPARING = frozenset({"dictsort", "groupby", "max", "min", "sort", "unique"})
_ENLARGING = {"e": 5, "escape": 5, "forceescape": 5, "urlencode": 200}
_PER_PART = 700
"""Units of what such a filter does with a part."""
_ASKING = _words("defined undefined none default d")
"""Tests and filters that ask whether there is something."""
_TESTS = _words("""
    != < <= == > >= eq equalto ge greaterthan gt in le lessthan lower lt ne upper
""")
"""Tests that look at text."""


class TemplateError(Exception):
    """A template cannot be used, or refuses a conversation; the message is fit for whoever sent it."""


class ChatTemplate:
    """A compiled template. Immutable; threads may render at the same time."""

    def __init__(self, source: str) -> None:
        """Compiles a template.

        :raises TemplateError: it is no Jinja, or none that Python compiles; it is too long, or uses what conversations
            do not need.
        """
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has more than {MAX_SOURCE} characters")
        try:
            tree = _ENVIRONMENT.parse(source)
            texts = [each.data for each in tree.find_all(nodes.TemplateData)]
            texts += [each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)]
            self.literals = "\0".join(texts)
            """Text that stands in the template."""
            self.variables = _asked_for(tree)
            """What it takes from outside, the conversation among it."""
            self._template = _ENVIRONMENT.from_string(tree)
        except jinja2.TemplateError as error:
            raise TemplateError(error.message or type(error).__name__) from error
        except Exception as error:  # of any kind: a stranger's program, which Jinja hands to Python as it finds it
            raise TemplateError(_told("cannot be compiled", error)) from error

    def render(self, messages: Sequence[Mapping[str, Any]], names: Mapping[str, Any]) -> str:
        """The conversation as text, open for the assistant's turn. `names` are variables such as `bos_token`.

        :raises TemplateError: the template refuses the messages, fails, or goes beyond its bounds.
        """
        variables = {"tools": None, "documents": None, "add_generation_prompt": True, **names}
        try:
            with rendering():
                parts: list[str] = []
                length = 0
                for part in self._template.generate(messages=list(messages), **variables):
                    length += len(part)
                    if length > MAX_CHARACTERS:
                        out_of_bounds()
                    parts.append(part)
            text = "".join(parts)
            text.encode()  # half a surrogate pair is no text, which a template may hold and no caller
            return text
        except jinja2.TemplateError as error:
            raise TemplateError(error.message or type(error).__name__) from error
        except Exception as error:  # likewise
            raise TemplateError(_told("fails", error)) from error


def _told(what: str, error: Exception) -> str:
    return f"the chat template {what} ({type(error).__name__}: {str(error)[:200]})"


def _asked_for(tree: nodes.Template) -> frozenset[str]:
    """Variables that it looks up; of those that it sets itself, the ones of which it asks first whether they are."""
    names = {each.name for each in tree.find_all(nodes.Name) if each.ctx != "load"}
    looks = [each for each in tree.find_all((nodes.Test, nodes.Filter)) if each.name in _ASKING]
    asked = {each.node.name for each in looks if isinstance(each.node, nodes.Name)}
    return frozenset(meta.find_undeclared_variables(tree) - (names - asked))


class _Bounds(Extension):
    """Ends the reading of a template that goes on for too long."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:  # type: ignore[override]
        for count, token in enumerate(stream):
            if count >= MAX_TOKENS:
                raise jinja2.TemplateSyntaxError(f"the chat template has more than {MAX_TOKENS} tokens", token.lineno)
            yield token


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks what the assistant says for training: rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the library has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    def _as_it_is(self, caller: Callable[[], str]) -> str:
        return caller()


class _Formatter(SandboxedFormatter):
    """`str.format`, with widths that are bounded."""

    def format_field(self, value: Any, format_spec: str) -> str:
        widths = [int(each) if len(each) < 5 else MAX_CHARACTERS for each in re.findall(r"\d+", format_spec)]
        if any(width > 1000 for width in widths):
            out_of_bounds()
        charge(5 * CALL)
        made(size(value) + sum(widths))
        return str(super().format_field(value, format_spec))


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%", "//", "/"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return metered(super()._parse(source, name, filename))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):
            charge(size(argument))  # it is hashed
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is functions.BoundedNamespace and not attribute.startswith("_"):
            try:  # the library asks five times what kind of object it is, each time through the namespace
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            return number(functions.times(left, right))
        if operator == "%" and isinstance(left, str):
            return functions.percent(left, right)
        if operator in ("**", "%") and not all(isinstance(each, int | float) for each in (left, right)):
            raise jinja2.TemplateRuntimeError(f"{operator} is for numbers")
        if operator == "**" and (abs(right) > 64 or abs(left) > 1 << 32):
            out_of_bounds()
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            made((len(left) + len(right)) * (1 if isinstance(left, str) else 8))
        return number(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        charge(CALL + PART * (len(arguments) + len(named)))
        of = getattr(function, "__self__", None)
        if isinstance(of, str):
            # Inside of loops and blocks Jinja passes their variables, which no string's method takes.
            given = {name: each for name, each in named.items() if name not in ("_loop_vars", "_block_vars")}
            return self._call_text(of, getattr(function, "__name__", ""), *arguments, **given)
        if isinstance(of, Collection):
            charge(PART * len(of))  # of a dictionary, say, copy
        if isinstance(of, list | tuple):
            charge(size(of))  # count and index compare
        if of is not None:
            charge(size(arguments))  # with these, or hash them: values may share parts
        return super().call(context, function, *arguments, **named)

    def _call_text(self, text: str, method: str, *arguments: Any, **named: Any) -> Any:
        if method == "replace":
            return functions.replace(text, *arguments, **named)
        if method == "join":
            return functions.join(arguments[0], text)
        if method == "format":
            return _Formatter(self).vformat(text, arguments, named)
        if method in _PADDING:
            return functions.padded(text, method, *arguments)
        if method in _SPLITTING:
            return functions.split(text, method, *arguments, **named)
        if method not in _PLAIN:
            raise jinja2.TemplateRuntimeError(f"strings have no {method} here")
        charge(len(text))
        return getattr(text, method)(*arguments, **named)

    def wrap_str_format(self, value: Any) -> None:
        """Calls of it come to `_call_text`."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        if isinstance(obj, int | float):
            return False  # to_bytes makes as many as it is told
        return super().is_safe_attribute(obj, attr, value)


def _join(environment: jinja2.Environment, values: Any, separator: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = [environment.getitem(value, attribute) for value in values]
    return functions.join(values, separator)


def _text(value: Any) -> str:
    return str(bounded(value))


def _shown(context: jinja2.runtime.Context, value: Any) -> Any:
    """What is written out. Since it takes the context, Jinja writes out nothing while it compiles."""
    return bounded(value)


def _spend(units: int) -> None:
    charge(units)


def _environment() -> _Environment:
    # loop.length and the like are read through the filter that counts turns, which is a generator: Jinja makes a list.
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # or constants would be folded, unbounded, while a template is compiled
        finalize=jinja2.pass_context(_shown),
        extensions=[_Bounds, _Generation, "jinja2.ext.loopcontrols"],
    )
    own = environment.filters
    environment.filters = {
        **{name: functions.watched(own[name], character=0, part=0) for name in _WITHOUT_LOOKING},
        **{name: functions.watched(own[name]) for name in _AT_ONCE},
        **{name: functions.watched(own[name], part=_PER_PART, character=_PER_PART) for name in _ONE_BY_ONE},
        **{name: functions.watched(own[name], part=_PER_PART, deep=True) for name in _COMPARING},
        **{name: functions.watched(own[name], character=much) for name, much in _ENLARGING.items()},
        "_bounded": bounded,
        "_concat": functions.concat,
        "_sliced": functions.sliced,
        "_spend": _spend,
        "_turns": functions.turns,
        "batch": functions.few(own["batch"]),
        "center": functions.center,
        "format": functions.format_filter,
        "indent": functions.indent,
        "join": jinja2.pass_environment(_join),
        "list": _listed,
        "replace": functions.replace,
        "round": functions.rounded,
        "slice": functions.few(sync_do_slice),
        "string": _text,
        "sum": functions.total,
        "tojson": functions.to_json,
    }
    known: dict[str, Any] = environment.tests
    environment.tests = {**known, **{name: functions.watched(known[name], deep=True) for name in _TESTS}}
    environment.globals = dict(functions.GLOBALS)
    return environment


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        charge(PART * len(value))
    return list(functions.turns(value))


_ENVIRONMENT = _environment()
