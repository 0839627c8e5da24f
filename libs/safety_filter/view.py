r"""The one view of a text that patterns are compared with, for inputs and outputs alike.

`folds.txt` (written by bin/unicode-folds, which states the rules) says for each character alone what it is compared
as: nothing, an ASCII character, several, or one of the two that stand for all other letters and all other characters.
No character's fold depends on its neighbours, so a view grows with its text: nothing before a new piece changes.
Where patterns name characters beyond ASCII, `Alphabet` keeps these apart.

Escapes (`\u0046`, surrogate pairs as two) count as the character that they spell everywhere, and in JSON those of one
character (`\n`, `\/`) too.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, compress, repeat
from pathlib import Path

LETTER = "\xaa"
"""Stands for every letter and number that no pattern names. No character is compared as itself by this sign."""
OTHER = "\xa8"
"""Stands for every other character that no pattern names."""
IGNORED = "\0"
"""Stands in folds for a character that is passed over; it is in no view."""
INVISIBLE = "\U0010ffff"
"""Stands in the view of an output for the first ignored character past `MAX_IGNORED` in a row."""
MAX_IGNORED = 32
"""Most ignored characters in a row inside an output's match."""
MAX_ESCAPE = 12
r"""Characters of the longest escape, `\ud835\udc05`; at most all but one of them are held for the last."""

_CODES = 0x110000
_MAX_KNOWN = 1 << 15
_PLAIN = re.compile(r"[\t\n\r -\[\]-~]*").fullmatch
"""Finds out that the view of a text is the text."""
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_UNIT = rf"{_PAIR}|\\u[0-9a-fA-F]{{4}}"
_JSON_UNIT = rf"{_UNIT}|\\[\"\\/bfnrt]"
_PARTIAL = (
    r"\\(?:u[0-9a-fA-F]{0,3})?\Z"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z"
)
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
# By (JSON, last piece): what stands for one character, or may be the beginning of that.
_UNITS = {
    (json, last): re.compile(unit if last else f"(?P<partial>{_PARTIAL})|{unit}").finditer
    for json, unit in ((False, _UNIT), (True, _JSON_UNIT))
    for last in (False, True)
}
_PAST_LIMIT = re.compile(rf"(?<!{IGNORED}){IGNORED}{{{MAX_IGNORED}}}{IGNORED}")


def _ranges() -> Iterable[tuple[int, int, str]]:
    with (Path(__file__).parent / "folds.txt").open(encoding="ascii") as lines:
        for line in lines:
            if not line.startswith("#"):
                codes, *text = line.split()
                first, _, last = codes.partition("-")
                yield int(first, 16), int(last or first, 16), "".join(chr(int(code, 16)) for code in text)


@cache
def folds() -> list[str]:
    """What each code point is compared as, as a table for `str.translate`; 9 MB, read once."""
    table = [LETTER] * _CODES
    table[:128] = map(chr, range(128))
    for first, last, text in _ranges():
        table[first : last + 1] = [text] * (last + 1 - first)
    return table


@cache
def sources(char: str) -> str:
    """All characters that are compared as `char`, or as several that have it."""
    found = {char, *(chr(code) for first, last, text in _ranges() if char in text for code in range(first, last + 1))}
    return "".join(sorted(found))


def fold(char: str) -> str:
    """What one character of a pattern is compared as, letters beyond ASCII kept apart; "" when it is passed over."""
    plain = folds()[ord(char)]
    if LETTER not in plain and OTHER not in plain:
        return plain.replace(IGNORED, "")
    parts = unicodedata.normalize("NFKD", char)
    return "".join(
        part if known in (LETTER, OTHER) else known for part in parts if (known := folds()[ord(part)]) != IGNORED
    )


class Alphabet(dict[int, str]):
    """A table for `str.translate` in which the characters that patterns name stand for themselves.

    Characters between the same two bounds of the patterns' ranges are alike to all patterns: the first one seen of them
    stands for all (letters and others apart), so that however many there are, an automaton meets few.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        super().__init__({code: folds()[code] for code in range(128)})
        wide = [(max(low, 128), high) for low, high in ranges if high >= 128]
        self._bounds = sorted({bound for low, high in wide for bound in (low, high + 1)})
        self._named = [any(low <= bound <= high for low, high in wide) for bound in self._bounds]
        self._stand: dict[tuple[int, bool], str] = {}

    def __missing__(self, code: int) -> str:
        text = folds()[code]
        if LETTER in text or OTHER in text:
            parts = unicodedata.normalize("NFKD", chr(code))
            text = "".join(self._one(part) for part in parts if folds()[ord(part)] != IGNORED)
        if len(self) < _MAX_KNOWN:
            self[code] = text
        return text

    def _one(self, part: str) -> str:
        known = folds()[ord(part)]
        place = bisect_right(self._bounds, ord(part)) - 1
        if known not in (LETTER, OTHER) or place < 0 or not self._named[place]:
            return known
        return self._stand.setdefault((place, part.isalnum()), part)


def table_for(ranges: Sequence[tuple[int, int]]) -> Alphabet | list[str]:
    """The table for patterns with these ranges of characters: the shared one where they are all ASCII."""
    return Alphabet(ranges) if any(high >= 128 for _, high in ranges) else folds()


class Viewer:
    """Views the pieces of one text, each with `take`; `offsets` tells where in the text the last view came from."""

    __slots__ = ("_chars", "_ignored", "_json", "_lengths", "_limited", "_symbols", "_table", "plain", "tail", "taken")

    def __init__(self, table: Alphabet | list[str], *, json: bool, limited: bool) -> None:
        """`json`: the text is JSON. `limited`: runs of ignored characters are; see `INVISIBLE`."""
        self._table = table
        self._json = json
        self._limited = limited
        self._ignored = 0
        self._chars = self._symbols = ""
        self._lengths: list[int] | None = None
        self.taken = ""
        """The text that the last view is of."""
        self.tail = ""
        """The end of the text, at most `MAX_ESCAPE` - 1 characters: perhaps the beginning of an escape."""
        self.plain = True
        """Whether `taken` is its own view."""

    def take(self, piece: str, *, last: bool = False) -> str:
        """Return the view of the tail and the next piece; what may be the beginning of an escape is the new tail."""
        if not self.tail and _PLAIN(piece):
            if piece:
                self._ignored = 0
            self.plain = True
            self.taken = piece
            return piece
        self.plain = False
        self.taken, self.tail = self.tail + piece, ""
        self._chars, self._lengths = self._decoded(last=last) if "\\" in self.taken else (self.taken, None)
        symbols = self._chars.translate(self._table)
        if IGNORED in symbols:
            symbols = self._counted(symbols)
        elif symbols:
            self._ignored = 0
        self._symbols = symbols
        return symbols.replace(IGNORED, "")

    def offsets(self, base: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return where each character of the last view begins and ends, if `taken` begins at `base`."""
        if self.plain:
            return range(base, base + len(self.taken)), range(base + 1, base + len(self.taken) + 1)
        chars, symbols, lengths = self._chars, self._symbols, self._lengths
        if lengths is None:
            begins: Sequence[int] = range(base, base + len(chars))
            ends: Sequence[int] = range(base + 1, base + len(chars) + 1)
        else:
            ends = list(accumulate(lengths, initial=base))[1:]
            begins = [end - length for end, length in zip(ends, lengths, strict=True)]
        if len(symbols) != len(chars):
            widths = [len(self._table[ord(char)]) for char in chars]
            begins = [begin for begin, width in zip(begins, widths, strict=True) for _ in range(width)]
            ends = [end for end, width in zip(ends, widths, strict=True) for _ in range(width)]
        if IGNORED in symbols:
            seen = [symbol != IGNORED for symbol in symbols]
            return list(compress(begins, seen)), list(compress(ends, seen))
        return begins, ends

    def _decoded(self, *, last: bool) -> tuple[str, list[int]]:
        """Return the characters that `taken` spells and how long each is there; cut a partial escape off."""
        raw, at = self.taken, 0
        parts: list[str] = []
        lengths: list[int] = []
        for unit in _UNITS[self._json, last](raw):
            start = unit.start()
            parts.append(raw[at:start])
            lengths += repeat(1, start - at)
            at = unit.end()
            if not last and unit["partial"]:
                self.taken, self.tail = raw[:start], raw[start:]
                break
            parts.append(_spelt(unit[0]))
            lengths.append(at - start)
        parts.append(raw[at:])
        lengths += repeat(1, len(raw) - at)
        return "".join(parts), lengths

    def _counted(self, symbols: str) -> str:
        """Count ignored characters in a row, over pieces too; mark the first past the limit."""
        size = len(symbols)
        before, leading = self._ignored, size - len(symbols.lstrip(IGNORED))
        trailing = size - len(symbols.rstrip(IGNORED))
        self._ignored = min(before + size, MAX_IGNORED + 1) if leading == size else trailing
        if self._limited and max(before + leading, trailing, size) > MAX_IGNORED:
            # The run that began earlier is marked where it passes the limit, or was.
            head = IGNORED * leading
            place = MAX_IGNORED - before
            if 0 <= place < leading:
                head = f"{IGNORED * place}{INVISIBLE}{IGNORED * (leading - place - 1)}"
            rest = symbols[leading:]
            return head + _PAST_LIMIT.sub(IGNORED * MAX_IGNORED + INVISIBLE, rest)
        return symbols


def _spelt(escape: str) -> str:
    if len(escape) == MAX_ESCAPE:
        high, low = int(escape[2:6], 16), int(escape[8:], 16)
        return chr(0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00)
    return chr(int(escape[2:], 16)) if escape[1] == "u" else _SHORT.get(escape[1], escape[1])
