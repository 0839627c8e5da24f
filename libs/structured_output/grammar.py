"""JSON Schemas, regular expressions and grammars for the library llguidance, with bounds on the work they cause.

The bounds, whatever a caller sends: the text has at most `MAX_BYTES`; the library ends a compilation or a step that
needs more grammar symbols, lexer states, lexer work or parser items than `_LIMITS` allow. On the build machine the
worst that fits takes about 0.3 s to compile (a typical schema 0.5 ms) and 10 ms in a step, a grammar 40 ms; the library
lets go of the interpreter lock meanwhile.

In JSON, up to two blanks or one line break with up to 32 blanks may stand where the standard allows white space: a
model that is free to write nothing but blanks sometimes does so until its tokens are spent. Grammars are written in the
library's dialect of Lark, begin with the rule `start`, and allow what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Kind = Literal["json_schema", "regex", "grammar"]

MAX_BYTES = 32 * 1024
"""The longest schema, regular expression or grammar, in bytes of UTF-8."""

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
_MAX_MESSAGE = 300
_LIMITS: dict[str, Any] = {
    "verbose_errors": False,
    "max_grammar_size": 100_000,
    "max_lexer_states": 50_000,
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_items_in_row": 2_000,
}
# A grammar may be as ambiguous as it likes, which costs the cube of a row's items: 4 s in a step with 2,000 of them,
# 20 ms with 500. Lists of some hundred elements need that many where they are written right-recursively.
_GRAMMAR_LIMITS: dict[str, Any] = _LIMITS | {"max_items_in_row": 500}
_JSON_OPTIONS: Any = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t]{0,2}|\n[ \t]{0,32}", "lenient": False}


class StructureError(ValueError):
    """A schema, expression or grammar cannot be used; the message says what is wrong in it, fit for the caller."""


def compile_matcher(kind: Kind, text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher in its first state.

    :raises StructureError: the text is too long, not well-formed, not supported, too complex, or nothing matches it.
    """
    from llguidance import LLMatcher, LLParserLimits

    _check_text(kind, text)
    try:
        if kind == "json_schema":
            grammar = LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)
        elif kind == "regex":
            grammar = LLMatcher.grammar_from_regex(text)
        else:
            grammar = LLMatcher.grammar_from_lark(unforced(text))
    except ValueError as error:  # nested too deeply, or options of the library's own that make no sense
        raise StructureError(explain(str(error))) from None
    limits = LLParserLimits(**(_GRAMMAR_LIMITS if kind == "grammar" else _LIMITS))
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    # Some faults show only when the first tokens are looked for.
    possible = any(matcher.compute_bitmask()) if not matcher.is_error() else False
    if matcher.is_error() and not matcher.get_error().startswith("NoExtension"):
        raise StructureError(explain(matcher.get_error()))
    if not possible or matcher.is_error():
        raise StructureError("nothing can match it")
    return matcher


def unforced(text: str) -> str:
    """A grammar of which the library does not work out ahead what has to follow, for it would never end with
    `start: /x+/ /x+/`, where the first expression takes every x and the second one waits. What the text says of that
    before is overridden."""
    return f'{text}\n%llguidance {{"no_forcing": true}}\n'


def check(kind: Kind, text: str) -> None:
    """Compile for a vocabulary of single bytes: finds what is wrong without a model. See the module for its cost.

    :raises StructureError: see `compile_matcher`.
    """
    compile_matcher(kind, text, _bytes_tokenizer())


def explain(message: str) -> str:
    """The library's error as one line for the caller, without the parser's state that follows it."""
    head = message.split("<state>")[0].split("<backtrace>")[0]
    if "lookarounds not supported" in head:
        head = "anchors inside it and word boundaries are not supported"
    elif "regex parse error" in head or "invalid regex" in head:
        reasons = [line.strip() for line in head.splitlines() if line.strip().startswith("error:")]
        head = reasons[-1].removeprefix("error:") if reasons else head
    if "panic" in head:
        head = "too complex"
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    line = lines[0].removeprefix("Parser Error:").removeprefix("lexer error:").strip() if lines else "cannot be used"
    return line if len(line) <= _MAX_MESSAGE else line[: _MAX_MESSAGE - 1] + "…"


def _check_text(kind: Kind, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise StructureError("it holds half of a surrogate pair") from None
    if size > MAX_BYTES:
        raise StructureError(f"it has {size} bytes; at most {MAX_BYTES} are allowed")
    if kind == "json_schema":
        try:
            schema = json.loads(text)
        except RecursionError:
            raise StructureError("it is nested too deeply") from None
        except ValueError as error:
            raise StructureError(f"it is not JSON: {error}") from None
        if not isinstance(schema, dict):
            raise StructureError("a JSON Schema is a JSON object")
    elif kind == "grammar":
        if text.lstrip().startswith("{"):  # the library would read it as its own exchange format
            raise StructureError("a grammar is Lark, not JSON")
    elif (len(text) - len(text.rstrip("\\"))) % 2:
        raise StructureError("it ends with a backslash that escapes nothing")


def regex_of(choices: Iterable[str]) -> str:
    """The regular expression that matches these texts and no other."""
    return "|".join([_SPECIAL.sub(r"\\\g<0>", choice) for choice in choices])


@cache
def _bytes_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
