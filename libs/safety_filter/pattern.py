r"""Parses the bounded regular-expression dialect of safety packs.

Allowed: literals, `.`, escapes (`\d \w \s \D \W \S \n \t \r \xHH \uHHHH` and escaped punctuation), classes `[…]`,
groups `(…)` and `(?:…)`, `|`, the quantifiers `?`, `{n}`, `{m,n}`, `{,n}`, the boundaries `\b` and `\B`, look-ahead and
look-behind of exactly one character (`(?=[…])`, `(?!…)`, `(?<=…)`, `(?<!…)`), and in front `(?i)` (ignore case) and
`(?#card)` or another of `CHECKS` (that the match must pass).

Patterns are compared with the view of a text (see `view`), so they are folded as texts are: "é" is "e", "–" is "-", a
class has what its members fold to, and what is passed over in texts cannot be written.

Refused: `*`, `+`, `{m,}` (no bound), lazy and possessive quantifiers (the longest match is always taken), `^`, `$`
(a stream has no known start after a reconnect), back-references, patterns that match nothing, that match more than
`MAX_LENGTH` characters or that expand to more than `MAX_POSITIONS` positions (nested quantifiers multiply).
"""

from dataclasses import dataclass

from libs.safety_filter.charset import ANY, CharSet, folded
from libs.safety_filter.checks import BY_NAME
from libs.safety_filter.view import fold

MAX_LENGTH = 256
"""Longest text, in characters, that one pattern may match."""
MAX_POSITIONS = 1024
"""Most character positions that one pattern may expand to."""
MAX_WIDE = 32_768
"""Most characters beyond ASCII that the classes of one pattern may name."""
CHECKS = tuple(BY_NAME)
"""Checks that a pattern may ask for."""


class PatternError(ValueError):
    """A pattern is outside the dialect or past its bounds; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Look:
    """An assertion about one neighbouring character; `chars` None is a word boundary."""

    chars: CharSet | None
    ahead: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Alt:
    """Any one of them."""

    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times."""

    item: "Node"
    low: int
    high: int


Node = Chars | Look | Seq | Alt | Repeat


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern. `longest` is the most characters that it matches; `check` is "" or one of `CHECKS`."""

    source: str
    node: Node
    longest: int
    positions: int
    """Size after expansion: what the pattern costs in memory."""
    check: str
    needs: tuple[CharSet, ...] = ()
    """Sets of one or two characters, of which every match has one: a text without has no match."""


def parse_pattern(source: str) -> Pattern:
    """Parse a pattern.

    Raises:
        PatternError: it is outside the dialect or its bounds.
    """
    parser = _Parser(source)
    node = parser.parse()
    shortest, longest, positions = _measure(node)
    if shortest == 0:
        raise PatternError("matches the empty text")
    if longest > MAX_LENGTH:
        raise PatternError(f"matches up to {longest} characters; the limit is {MAX_LENGTH}")
    if positions > MAX_POSITIONS:
        raise PatternError(f"expands to {positions} positions; the limit is {MAX_POSITIONS}")
    needs = tuple(sorted(_needs(node), key=lambda chars: chars.ranges))
    return Pattern(source, node, longest, positions, parser.check, needs)


def _needs(node: Node) -> frozenset[CharSet]:
    if isinstance(node, Chars):
        chars = node.chars
        few = sum(high + 1 - low for low, high in chars.ranges) <= 2
        return frozenset((chars,)) if few and not (chars.negated or chars.categories) else frozenset()
    if isinstance(node, Repeat):
        return _needs(node.item) if node.low else frozenset()
    if isinstance(node, Seq):
        return frozenset().union(*map(_needs, node.items))
    if isinstance(node, Alt):
        return frozenset.intersection(*map(_needs, node.options))
    return frozenset()


def _measure(node: Node) -> tuple[int, int, int]:
    """Return (shortest match, longest match, positions after expansion)."""
    if isinstance(node, Chars):
        return 1, 1, 1
    if isinstance(node, Look):
        return 0, 0, 1
    if isinstance(node, Repeat):
        low, high, positions = _measure(node.item)
        return low * node.low, high * node.high, max(positions, 1) * node.high
    parts = [_measure(item) for item in (node.items if isinstance(node, Seq) else node.options)]
    positions = sum(part[2] for part in parts)
    if isinstance(node, Seq):
        return sum(part[0] for part in parts), sum(part[1] for part in parts), positions
    # Options count too: those that match nothing cost as much.
    return min(part[0] for part in parts), max(part[1] for part in parts), positions + len(parts)


_CATEGORIES = frozenset("dwsDWS")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r"}
_HEX = {"x": 2, "u": 4}
_MAX_DEPTH = 32  # Deeper nesting would only serve to exhaust the parser's stack.


class _Parser:
    def __init__(self, source: str) -> None:
        self._text = source
        self._at = 0
        self._depth = 0
        self._ignore_case = False
        self._wide = 0
        self.check = ""

    def parse(self) -> Node:
        self._prefixes()
        node = self._alternation()
        if self._at < len(self._text):
            raise self._error("unbalanced ')'")
        return node

    def _prefixes(self) -> None:
        while True:
            if self._take("(?i)"):
                self._ignore_case = True
                continue
            name = next((check for check in CHECKS if self._take(f"(?#{check})")), "")
            if not name:
                return
            self.check = name

    def _alternation(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error("groups nest too deep")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            atom = self._atom()
            items.append(self._quantified(atom))
        return Seq(tuple(items))

    def _quantified(self, atom: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return atom
        if isinstance(atom, Look):
            raise self._error("an assertion cannot be repeated")
        if self._at < len(self._text) and self._peek() in "?+*{":
            raise self._error("lazy, possessive and stacked quantifiers are not allowed")
        return Repeat(atom, *bounds)

    def _bounds(self) -> tuple[int, int] | None:
        if self._at == len(self._text):
            return None
        if self._peek() in "*+":
            raise self._error("'*' and '+' have no bound; write {m,n}")
        if self._take("?"):
            return 0, 1
        if not self._take("{"):
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at : end].partition(",")
        if end < 0 or not (high if comma else low).isdecimal() or not (low or "0").isdecimal():
            raise self._error("a quantifier is {n}, {m,n} or {,n}, with an upper bound")
        bounds = int(low or 0), int(high if comma else low)
        if bounds[1] < max(bounds[0], 1) or bounds[1] > MAX_LENGTH:
            raise self._error(f"the quantifier's bounds must be ordered and within 1..{MAX_LENGTH}")
        self._at = end + 1
        return bounds

    def _atom(self) -> Node:
        for opening, ahead, negated in (
            ("(?=", True, False),
            ("(?!", True, True),
            ("(?<=", False, False),
            ("(?<!", False, True),
        ):
            if self._take(opening):
                return self._look(ahead=ahead, negated=negated)
        if self._take("(?:") or (self._peek() == "(" and not self._text.startswith("(?", self._at) and self._take("(")):
            node = self._alternation()
            self._close()
            return node
        if self._take(r"\b"):
            return Look(None, ahead=True, negated=False)
        if self._take(r"\B"):
            return Look(None, ahead=True, negated=True)
        return self._characters()

    def _look(self, *, ahead: bool, negated: bool) -> Look:
        node = self._characters()
        if not isinstance(node, Chars) or not self._take(")"):
            raise self._error("look-ahead and look-behind take exactly one character or class")
        return Look(node.chars, ahead=ahead, negated=negated)

    def _characters(self) -> Node:
        """Parse one character or class; a character that is compared as several comes to a sequence."""
        if self._take("["):
            return Chars(self._class())
        char = self._next()
        if char == ".":
            return Chars(ANY)
        if char == "\\":
            return self._escape()
        if char in "^$()|?*+{}":
            raise self._error(f"{char!r} is not allowed here")
        return self._literal(char)

    def _escape(self) -> Node:
        char = self._next()
        if char in _CATEGORIES:
            return Chars(CharSet(categories=(char,)))
        return self._literal(self._escaped(char))

    def _escaped(self, char: str) -> str:
        if char in _CONTROL:
            return _CONTROL[char]
        if char in _HEX:
            digits = self._text[self._at : self._at + _HEX[char]]
            if len(digits) < _HEX[char] or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise self._error(f"\\{char} takes {_HEX[char]} hex digits")
            self._at += len(digits)
            return chr(int(digits, 16))
        if char.isalnum():
            raise self._error(f"unknown escape \\{char}")
        return char

    def _literal(self, char: str) -> Node:
        text = fold(char)
        if not text:
            raise self._error("characters that print nothing are passed over and cannot be matched")
        parts = [Chars(CharSet(ranges=self._folded(ord(part), ord(part)))) for part in text]
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _folded(self, low: int, high: int) -> tuple[tuple[int, int], ...]:
        self._wide += max(0, high + 1 - max(low, 128))
        if self._wide > MAX_WIDE:
            raise self._error(f"its classes name more than {MAX_WIDE} characters beyond ASCII")
        ranges = folded(low, high, ignore_case=self._ignore_case)
        if not ranges:
            raise self._error("a class has a character that is passed over, or compared as several")
        return ranges

    def _class(self) -> CharSet:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        categories: list[str] = []
        while not self._take("]"):
            low = self._member()
            if len(low) == 2:
                categories.append(low[1])
                continue
            high = low
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._member()
            if len(high) == 2 or high < low:
                raise self._error("bad range in a class")
            ranges.extend(self._folded(ord(low), ord(high)))
        if not ranges and not categories:
            raise self._error("empty class")
        return CharSet(tuple(ranges), tuple(categories), negated=negated)

    def _member(self) -> str:
        r"""Parse one member: a character, or a category by its escape, such as "\d"."""
        char = self._next()
        if char == "[":
            raise self._error("write '[' inside a class as '\\['")
        if char != "\\":
            return char
        char = self._next()
        return f"\\{char}" if char in _CATEGORIES else self._escaped(char)

    def _close(self) -> None:
        if not self._take(")"):
            raise self._error("missing ')'")

    def _peek(self) -> str:
        return self._text[self._at]

    def _next(self) -> str:
        if self._at == len(self._text):
            raise self._error("ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _error(self, why: str) -> PatternError:
        return PatternError(f"{why} (at {self._at})")
