"""What to do about readers that do not read: pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Verdict(enum.Enum):
    """About one reader."""

    KEEP = "keep"
    END = "end"
    """The generation ends; a reader that comes back finds its end."""
    CUT = "cut"
    """The call is broken off, and with it goes what was written for it."""


def verdict(*, idle: float, unread: int, ended: bool, stall: float, most: int) -> Verdict:
    """About a reader that has not all there is: it took something last `idle` seconds ago and has `unread` characters
    left.

    `ended`: its generation is over. One that stands still for `stall` seconds, or leaves more than `most`, loses its
    generation; one that stands still for another `stall` seconds loses its call.
    """
    if not ended:
        return Verdict.END if idle >= stall or unread > most else Verdict.KEEP
    return Verdict.CUT if idle >= 2 * stall else Verdict.KEEP


def beyond(unread: Sequence[int], most: int) -> list[int]:
    """Places of the readers to cut so that what is left sums to at most `most`: the largest first."""
    total = sum(unread)
    found: list[int] = []
    for place in sorted(range(len(unread)), key=lambda at: -unread[at]):
        if total <= most:
            break
        total -= unread[place]
        found.append(place)
    return found
