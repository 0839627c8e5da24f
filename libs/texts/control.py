"""A tokenizer's control tokens in what callers write: where they stand, and how they are told from the template's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer

_NONCHARACTERS = [chr(each) for each in range(0xFDD0, 0xFDF0)]
"""Of no language (Unicode, chapter 23.7): two of them stand around what callers wrote that spells a control token."""


class ControlTokens:
    """Those that callers may not write."""

    def __init__(self, tokens: Iterable[AddedToken], tokenizer: Tokenizer) -> None:
        """Of this tokenizer's added tokens."""
        tokens = list(tokens)
        self.contents = [token.content for token in tokens]
        self._any = _any_of(self.contents)
        # Some are looked for in the normalised text, where "＜s＞" is one too.
        normal = tokenizer.normalizer
        folded = [token.content for token in tokens if token.normalized] if normal is not None else []
        self._normalised = normal.normalize_str if folded else None
        self._folded = _any_of(normal.normalize_str(content) for content in folded)
        self._longest = max(map(len, self.contents), default=0)
        self._inside = "\0".join(self.contents)
        self._begins = {content[:end] for content in self.contents for end in range(1, len(content))}
        self._ends = {content[start:] for content in self.contents for start in range(1, len(content))}

    def spelled(self, text: str) -> bool:
        """The text has one."""
        if self._any.search(text):
            return True
        return self._normalised is not None and bool(self._folded.search(self._normalised(text)))

    def found(self, text: str) -> list[str]:
        """Those that stand in it, in their order."""
        return self._any.findall(text)

    def part(self, text: str) -> bool:
        """Together with what stands beside it the text may become one: it is a part, or begins or ends as one does."""
        if not text:
            return False
        if len(text) < self._longest and text in self._inside:
            return True
        lengths = range(1, min(len(text), self._longest) + 1)
        return any(text[:length] in self._ends or text[-length:] in self._begins for length in lengths)

    def marked(self, text: str, begin: str, end: str) -> str:
        """The text with a mark before and behind each."""
        if self._any.search(text):
            return self._any.sub(f"{begin}\\g<0>{end}", text)
        # Only when it is normalised, where nobody can say what is what.
        return f"{begin}{text}{end}" if self.spelled(text) else text


def free_marks(texts: Sequence[str], count: int) -> list[str]:
    """Characters that none of the texts has, nor has as JSON escapes them; fewer where there are not so many."""
    every = "".join(texts)
    free = [each for each in _NONCHARACTERS if each not in every and escaped(each) not in every]
    return free[:count]


def escaped(mark: str) -> str:
    """As `tojson(ensure_ascii=True)` writes it."""
    return f"\\u{ord(mark):04x}"


def between(rendered: str, begin: str, end: str) -> list[str]:
    """A rendered text in turns: the template's own, a caller's between two marks, the template's own, …

    What a template does to a text may part two marks: one alone is left out, and still parts what is beside it.
    """
    for mark in (begin, end):
        rendered = rendered.replace(escaped(mark), mark)
    parts = re.split(f"{begin}([^{begin}{end}]*){end}|{begin}|{end}", rendered)
    return [part or "" for part in parts]


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the words; nothing where there are none."""
    return re.compile("|".join(map(re.escape, words)) or r"(?!)")
