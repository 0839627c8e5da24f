"""How much of everything that limits count: what is held, told, given out or left."""

from __future__ import annotations

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
        return Amount(
            self.tokens + other.tokens,
            self.requests + other.requests,
            self.spend + other.spend,
            self.slots + other.slots,
            self.uncounted + other.uncounted,
        )

    def minus(self, other: Amount) -> Amount:
        """What is left without the other."""
        return Amount(
            self.tokens - other.tokens,
            self.requests - other.requests,
            self.spend - other.spend,
            self.slots - other.slots,
            self.uncounted - other.uncounted,
        )

    def most(self, other: Amount) -> Amount:
        """Of each the larger."""
        return Amount(*map(max, self, other))


NOTHING = Amount()
