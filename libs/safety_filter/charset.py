"""Sets of characters, as patterns name them and as views have them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from libs.safety_filter.view import fold

_COMMON_END = "\u0100"


def _category(name: str, char: str) -> bool:
    if name == "d":
        return char.isdecimal()
    if name == "w":
        return char.isalnum() or char == "_"
    return char.isspace()


@dataclass(frozen=True, slots=True)
class CharSet:
    """A set of characters of a view: code ranges (inclusive) and categories, negated or not."""

    ranges: tuple[tuple[int, int], ...] = ()
    categories: tuple[str, ...] = ()
    """Of "d", "w", "s" and, for their complements, "D", "W", "S"."""
    negated: bool = False
    _known: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    """Of the characters that every view has: to compile a pack is to ask for these a hundred thousand times."""

    def has(self, char: str) -> bool:
        """Tell whether one character of a view is in the set."""
        known = self._known.get(char)
        if known is None:
            known = self._plain(char) != self.negated
            if char < _COMMON_END:
                self._known[char] = known
        return known

    def _plain(self, char: str) -> bool:
        code = ord(char)
        if any(low <= code <= high for low, high in self.ranges):
            return True
        return any(_category(name.lower(), char) != name.isupper() for name in self.categories)


@lru_cache(maxsize=512)
def folded(low: int, high: int, *, ignore_case: bool) -> tuple[tuple[int, int], ...]:
    """Return the code ranges that the characters from `low` to `high` are compared as; those of several are left out.

    Takes about a microsecond for each character beyond ASCII.
    """
    if high < 128 and not ignore_case:
        return ((low, high),)
    found: set[str] = set()
    for char in map(chr, range(low, high + 1)):
        found.add(fold(char))
        if ignore_case:
            found.update((fold(char.lower()[:1]), fold(char.upper()[:1])))
    return _joined(sorted(ord(char) for char in found if len(char) == 1))


def _joined(codes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = ranges[-1][0], code
        else:
            ranges.append((code, code))
    return tuple(ranges)


WORD = CharSet(categories=("w",))
"""Letters, digits and underscore: the two sides of a word boundary."""
ANY = CharSet(ranges=((10, 10),), negated=True)
"""What "." matches."""
