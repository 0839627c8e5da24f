"""Resources as text: YAML documents or JSON, one way to write each.

Scalars are read as YAML 1.2's core schema has them: `on` and `2026-01-01` are text, true and false are not. Doubled
keys, aliases and tags are refused: none of them says anything here that a reader would not take for something else.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_INT, _FLOAT = re.compile(r"[-+]?[0-9]{1,40}"), re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DEEPEST = 100
_INNERMOST = re.compile(r"(\.[^.\[]*|\[[^\[]*)$")
_PLAIN_LINES = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?\n)+")
"""Text of several lines that is as readable in a literal block as it is safe there."""


class DocumentError(ValueError):
    """A text is none, or says more than is read here; the message names place and fault."""


class Place(str):
    """Where a document is written, "acme.yaml:12"."""

    lines: Mapping[str, int] = {}
    """By the path of a field, such as "spec.targets[1].weight"; of JSON none."""
    inside = ""
    """The path of what is meant, of several in a document."""

    def of(self, field: str) -> str:
        """The place of a field; of what it is in, if it is not written there."""
        at = self.inside + ("." if self.inside and field else "") + field
        while at and at not in self.lines:
            at = _INNERMOST.sub("", at) if _INNERMOST.search(at) else ""
        return f"{self.rpartition(':')[0]}:{self.lines[at]}" if at else str(self)


class _Writer(_Dumper):
    """Quotes whatever YAML 1.1 or 1.2 would not read as text."""

    def represent_text(self, text: str) -> Any:
        """A string, in lines of its own if it has some."""
        style = None
        if _PLAIN_LINES.fullmatch(text):
            style = "|"
        elif not text.isprintable():
            style = '"'
        elif _FLOAT.fullmatch(text) or text[:2] in ("0o", "0x"):
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _Writer.represent_text)


def dump(data: Any) -> str:
    """A value as a YAML document, its fields in their order."""
    return yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=sys.maxsize >> 33)


def dump_all(documents: Sequence[Any]) -> str:
    """Values as documents."""
    return "---\n".join(map(dump, documents))


def load_all(text: str, where: str) -> Iterator[tuple[Place, Any]]:
    """The documents of a text that say something, each with its place.

    :raises DocumentError: it is no YAML, or more than is read here; the message names place and fault.
    """
    try:
        events = yaml.parse(text, Loader=_Loader)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                first, lines = next(events), dict[str, int]()
                if (value := _plain(first, events, where, "", lines)) is not None:
                    place = Place(f"{where}:{first.start_mark.line + 1}")
                    place.lines = lines
                    yield place, value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise DocumentError(f"{where}{line}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise DocumentError(f"{where}: {' '.join(str(error).split())}") from error


def _plain(event: Any, events: Iterator[Any], where: str, path: str, lines: dict[str, int], depth: int = 0) -> Any:
    """The value that begins with the event; `lines` gets its fields'."""
    here = f"{where}:{event.start_mark.line + 1}"
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise DocumentError(f"{here}: an alias (*, &) is used; write the value out")
    if event.tag and event.tag != "!":
        raise DocumentError(f"{here}: a tag (!) is used; write the value without")
    if depth > _DEEPEST:
        raise DocumentError(f"{here}: nested too deeply")
    if isinstance(event, yaml.ScalarEvent):
        return event.value if event.style else _word(event.value)
    if isinstance(event, yaml.SequenceStartEvent):
        made: list[Any] = []
        for each in _until(events, yaml.SequenceEndEvent):
            at = f"{path}[{len(made)}]"
            lines[at] = each.start_mark.line + 1
            made.append(_plain(each, events, where, at, lines, depth + 1))
        return made
    fields: dict[str, Any] = {}
    for key in _until(events, yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent):
            raise DocumentError(f"{here}: a field's name must be a word")
        if key.value in fields:
            raise DocumentError(f"{where}:{key.start_mark.line + 1}: {key.value!r} is there twice")
        at = f"{path}.{key.value}" if path else key.value
        lines[at] = key.start_mark.line + 1
        fields[key.value] = _plain(next(events), events, where, at, lines, depth + 1)
    return fields


def _until(events: Iterator[Any], end: type) -> Iterator[Any]:
    while not isinstance(event := next(events), end):
        yield event


def _word(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def documents(text: str, where: str) -> Iterator[tuple[Place, Any]]:
    """Every resource of a text, JSON or YAML by the ending of `where`, with its place; a list of them is taken apart.

    :raises DocumentError: as `load_all`.
    """
    found = [(Place(f"{where}:1"), _json(text, where))] if where.endswith(".json") else load_all(text, where)
    for place, document in found:
        listed = document.get("resources") if isinstance(document, dict) else document
        if not isinstance(listed, list):
            yield place, document
            continue
        for number, each in enumerate(listed):
            one = Place(place)
            one.lines, one.inside = place.lines, f"{'' if document is listed else 'resources'}[{number}]"
            yield one, each


def _json(text: str, where: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise DocumentError(f"{where}: a field is there twice: {[name for name, _ in pairs]}")
        return made

    try:
        return json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise DocumentError(f"{where}: {error}") from error
    except RecursionError:
        raise DocumentError(f"{where}: nested too deeply") from None
