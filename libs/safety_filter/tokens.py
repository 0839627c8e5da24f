r"""Tokens in the place of what a tokenising rule finds: the model reads `⟦EMAIL_1⟧`, the caller reads the value again.

`Tokens` is one request's: it names values while its input is checked, and is forgotten with it. `Restorer` puts the
values back into an output that arrives in pieces, after the output filter: what the filter passed is what the model
said. A token that the request did not make is text like any other, whoever wrote it: the user, whose own numbers are
left out here, or a model that invents one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

_TOKEN = re.compile(r"⟦([A-Z][A-Z0-9_]{0,31})_([0-9]{1,9})⟧")
_OPEN, _CLOSE = "⟦", "⟧"
_JSON_OPEN = r"\\u27[eE]6"
_JSON_CLOSE = r"\\u27[eE]7"


class Tokens:
    """The tokens of one request. Equal values of one label have one token; it holds users' words, so log it never."""

    __slots__ = ("_by_value", "_counts", "_taken", "values")

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` are all that the model will read: tokens that are written there already are never given out."""
        self._taken = {found[0] for text in texts for found in _TOKEN.finditer(text)}
        self._counts: dict[str, int] = {}
        self._by_value: dict[tuple[str, str], str] = {}
        self.values: dict[str, str] = {}
        """What each token stands for."""

    def token(self, label: str, value: str) -> str:
        """Return the token for a value, `⟦LABEL_n⟧`."""
        token = self._by_value.get((label, value))
        while token is None:
            number = self._counts[label] = self._counts.get(label, 0) + 1
            candidate = f"{_OPEN}{label}_{number}{_CLOSE}"
            if candidate not in self._taken:
                token = self._by_value[label, value] = candidate
                self.values[token] = value
        return token


class Restorer:
    """Puts values back into one output. Holds at most the longest token's length, less one, for the next piece."""

    def __init__(self, values: Mapping[str, str], *, json: bool = False) -> None:
        """`json`: the output is JSON, in whose strings values are escaped, and tokens may be."""
        self._json = json
        self._values = dict(values)
        names = sorted({token[1:-1] for token in values}, key=len, reverse=True)
        opening, closing = (f"(?:{_OPEN}|{_JSON_OPEN})", f"(?:{_CLOSE}|{_JSON_CLOSE})") if json else (_OPEN, _CLOSE)
        self._found = re.compile(f"{opening}({'|'.join(map(re.escape, names))}){closing}") if names else None
        self._marks = ("\\" if json else "") + _OPEN
        self._forms = self._spellings(names)
        self._longest = max(map(len, self._forms), default=0)
        self._held = ""

    @property
    def held(self) -> int:
        """Characters taken in and not let go yet."""
        return len(self._held)

    def feed(self, piece: str) -> str:
        """Take in the next piece and return what may leave now."""
        if self._found is None:
            return piece
        text = self._held + piece
        cut = self._cut(text)
        self._held = text[cut:]
        return self._found.sub(self._value, text[:cut])

    def finish(self) -> str:
        """Return the rest: the beginning of a token that never came."""
        rest, self._held = self._held, ""
        return rest

    def _value(self, found: re.Match[str]) -> str:
        value = self._values[f"{_OPEN}{found[1]}{_CLOSE}"]
        return json.dumps(value, ensure_ascii=False)[1:-1] if self._json else value

    def _cut(self, text: str) -> int:
        """Return where the beginning of a token that the next piece may end is; the text's length where none is."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._marks:
                rest = _lower(text[at:])
                if any(len(rest) < len(form) and form.startswith(rest) for form in self._forms):
                    return at
        return len(text)

    def _spellings(self, names: Iterable[str]) -> list[str]:
        marks = [(_OPEN, _CLOSE)]
        if self._json:
            marks = [(begin, end) for begin in (_OPEN, r"\u27e6") for end in (_CLOSE, r"\u27e7")]
        return [f"{begin}{name}{end}" for name in names for begin, end in marks]


def _lower(text: str) -> str:
    """Return a text with the digits of its escapes in lower case."""
    return re.sub(r"\\u27E?", lambda escape: escape[0].lower(), text)
