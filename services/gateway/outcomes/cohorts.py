"""Requests by when they began and by their sticky key: what rates are judged by.

Failures come sooner than answers, so among the requests that have ended too many failed, the more so the longer answers
take. Errors of the requests that began do not depend on that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.gateway.policy.finals import ArmKey

BUCKETS = 64
"""Of sticky keys."""
PROMPT_SECONDS = 2.0
"""An error within so many seconds of the beginning is told apart."""
KEPT_SECONDS = 160
"""Seconds that are told one by one; what began earlier is one sum."""


@dataclass(slots=True)
class Begun:
    """A request that was given an arm."""

    key: ArmKey
    second: int
    """Unix time of its beginning."""
    at: float
    """The same, monotonic seconds."""
    bucket: int | None
    """Of its sticky key; None: mirrored copies are drawn one by one, whatever their keys."""
    open: bool = True
    """It is not over."""


@dataclass(slots=True)
class Cell:
    """What became of the requests of one second."""

    started: int = 0
    ended: int = 0
    errors: int = 0
    broken: int = 0
    prompt: int = 0

    def take(self, other: Cell) -> None:
        """Add another second's."""
        self.started += other.started
        self.ended += other.ended
        self.errors += other.errors
        self.broken += other.broken
        self.prompt += other.prompt


@dataclass(slots=True)
class Cohorts:
    """Those of one arm in one step."""

    older: Cell = field(default_factory=Cell)
    seconds: dict[int, Cell] = field(default_factory=dict)
    """Unix second → what began in it, in the order of the beginnings."""
    longest: float = 0.0
    """Seconds: the longest time that a request was given."""

    def begin(self, second: int, given: float) -> None:
        """One more; `given` seconds to its deadline."""
        while self.seconds and (first := next(iter(self.seconds))) < second - KEPT_SECONDS:
            self.older.take(self.seconds.pop(first))
        self.longest = max(self.longest, given)
        cell = self.seconds.get(second)
        if cell is None:
            cell = self.seconds[second] = Cell()
        cell.started += 1

    def of(self, second: int) -> Cell:
        """Where a request counts that began then."""
        return self.seconds.get(second, self.older)

    @property
    def open(self) -> bool:
        """Some have not ended."""
        return any(cell.started > cell.ended for cell in self.cells())

    def cells(self) -> Iterator[Cell]:
        """Of the older ones first, then second by second."""
        yield self.older
        yield from self.seconds.values()


class KeySums:
    """Counts and sums of one metric by the bucket of the sticky key."""

    __slots__ = ("counts", "sums")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sums = [0.0] * BUCKETS

    def add(self, bucket: int, value: float, count: int = 1) -> None:
        """So many more requests that sum up to `value`."""
        self.counts[bucket] += count
        self.sums[bucket] += value
