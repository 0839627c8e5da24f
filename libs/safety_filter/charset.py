"""Sets of characters, and how text is folded before it is compared with them."""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

IGNORABLE: frozenset[str] = frozenset(
    chr(code)
    for first, last in (
        (0x00AD, 0x00AD),
        (0x034F, 0x034F),
        (0x061C, 0x061C),
        (0x180E, 0x180E),
        (0x200B, 0x200F),
        (0x202A, 0x202E),
        (0x2060, 0x2064),
        (0x2066, 0x2069),
        (0xFE00, 0xFE0F),
        (0xFEFF, 0xFEFF),
    )
    for code in range(first, last + 1)
)
"""Characters that print nothing. Matching passes over them, so that they cannot split a match invisibly."""


@lru_cache(maxsize=4096)
def fold(char: str) -> str:
    """Return the character that `char` is compared as: its NFKC form where that is one character, else itself.

    Full-width and mathematical letters and digits so count as the plain ones. Forms that become several characters
    (ligatures) and look-alikes of other scripts stay as they are.
    """
    if char < "\x80":
        return char
    normal = unicodedata.normalize("NFKC", char)
    return normal if len(normal) == 1 else char


def _category(name: str, char: str) -> bool:
    if name == "d":
        return char.isdecimal()
    if name == "w":
        return char.isalnum() or char == "_"
    return char.isspace()


@dataclass(frozen=True, slots=True)
class CharSet:
    """A set of folded characters: code ranges (inclusive) and categories, negated or not."""

    ranges: tuple[tuple[int, int], ...] = ()
    categories: tuple[str, ...] = ()
    """Of "d", "w", "s" and, for their complements, "D", "W", "S"."""
    negated: bool = False
    ignore_case: bool = False

    def has(self, char: str) -> bool:
        """Tell whether one folded character is in the set."""
        found = self._plain(char)
        if not found and self.ignore_case:
            # Some characters change length with their case ("ß"): those have no other case here.
            found = any(len(other) == 1 and self._plain(other) for other in (char.lower(), char.upper()))
        return found != self.negated

    def _plain(self, char: str) -> bool:
        code = ord(char)
        if any(low <= code <= high for low, high in self.ranges):
            return True
        return any(_category(name.lower(), char) != name.isupper() for name in self.categories)


WORD = CharSet(categories=("w",))
"""Letters, digits and underscore: the two sides of a word boundary."""
ANY = CharSet(ranges=((10, 10),), negated=True)
"""What "." matches."""
