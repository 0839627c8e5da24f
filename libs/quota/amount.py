"""How much of everything that limits count: what is held, told, given out or left."""

from __future__ import annotations

from operator import add, sub
from typing import NamedTuple

NO_LIMIT = 1 << 62
"""Of what nothing limits. Whatever is taken of it, it stays more than is ever asked for."""


class Amount(NamedTuple):
    """So much together. What is left may be negative: more was given out."""

    tokens: int = 0
    """Rows where the limits entry counts these."""
    requests: int = 0
    spend: int = 0
    """Micro-dollars."""
    slots: int = 0
    """Streams at once."""
    uncounted: int = 0
    """Of the requests, those that are held against the edge as well: it did not count the holder's."""

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(*map(add, self, other))

    def minus(self, other: Amount) -> Amount:
        """What is left without the other."""
        return Amount(*map(sub, self, other))

    def most(self, other: Amount) -> Amount:
        """Of each the larger."""
        return Amount(*map(max, self, other))

    def covers(self, other: Amount) -> bool:
        """Whether the other can be taken out of it; of what it has nothing of, whatever is left."""
        return all(much <= left or much <= 0 for left, much in zip(self[:4], other[:4], strict=True))


NOTHING = Amount()
