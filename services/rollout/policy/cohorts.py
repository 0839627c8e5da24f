"""Requests by when they began, so that rates do not hang on how long answers take.

Failures are quick. Among the requests that have *ended*, too many have failed: in the first seconds of a step all that
ended may be failures, and an arm whose answers take longer looks worse than it is for as long as the step is young. So
shares are of the requests that *began*, and what has not ended yet counts for the arm that is suspected and against
the other one:

    least:  p̂ = errors / begun of the arm,              q̂ = (errors + still open) / begun of the baseline
    most:   p̂ = (errors + still open) / begun of the arm, q̂ = errors / begun of the baseline

Whatever becomes of the open ones, the arm has failed at least as often as the first p̂ says and the baseline at most as
often as the first q̂. The limits of `proportions` hold at every look for the requests in the order of their beginnings,
their eventual outcomes taken as known when they begin (Ville's inequality holds in that finer filtration, too); with
counts that err on these sides they hold all the more. And since they hold at every number of requests at once, any
prefix of the requests may be looked at: of all prefixes, both arms' by the same clock, the one counts that says most. A
prefix that ends earlier has fewer requests and fewer open ones: a cohort is of use as soon as most of it had time to
end, and nobody must say how long that is.

While answers take minutes no prefix has few open ones. What failed within two seconds of its beginning is known two
seconds later, however long answers take: `prompt` is a test of its own, of a number that is not open to anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

_AGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Seconds before the youngest cohort at which prefixes end."""


class Cell(NamedTuple):
    """What became of the requests that began in one second, or in several."""

    started: int = 0
    ended: int = 0
    errors: int = 0
    broken: int = 0
    """Gave a first token and did not come to their end."""

    @property
    def open(self) -> int:
        """Not over."""
        return self.started - self.ended

    def plus(self, other: Cell) -> Cell:
        """Of both."""
        return Cell(
            self.started + other.started,
            self.ended + other.ended,
            self.errors + other.errors,
            self.broken + other.broken,
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """Requests that began more than two seconds ago, and how many of them failed within two seconds."""

    started: int = 0
    errors: int = 0

    def __add__(self, other: Prompt) -> Prompt:
        return Prompt(self.started + other.started, self.errors + other.errors)


@dataclass(frozen=True, slots=True)
class Cohorts:
    """Of one arm during one step."""

    older: Cell = field(default_factory=Cell)
    """Began before all of `seconds`."""
    seconds: tuple[tuple[int, Cell], ...] = ()
    """By the Unix second in which they began, ascending."""
    prompt: Prompt = Prompt()

    @property
    def every(self) -> Cell:
        """All of them."""
        return self._sums()[-1]

    def before(self, moments: Sequence[int]) -> list[Cell]:
        """Those that began before each of these seconds."""
        sums = self._sums()
        began = [second for second, _ in self.seconds]
        return [sums[bisect_left(began, moment)] for moment in moments]

    def _sums(self) -> list[Cell]:
        return list(accumulate((cell for _, cell in self.seconds), Cell.plus, initial=self.older))

    def __add__(self, other: Cohorts) -> Cohorts:
        seconds = dict(self.seconds)
        for second, cell in other.seconds:
            seconds[second] = seconds[second].plus(cell) if second in seconds else cell
        return Cohorts(self.older.plus(other.older), tuple(sorted(seconds.items())), self.prompt + other.prompt)


def prefixes(arm: Cohorts, baseline: Cohorts) -> Iterator[tuple[Cell, Cell]]:
    """Both arms' requests up to the same moments, of all of them first; only such as hold some of both."""
    last = max((second for each in (arm, baseline) for second, _ in each.seconds[-1:]), default=0) + 1
    moments = [last - age for age in _AGES]
    known = (0, 0)
    for ours, theirs in zip(arm.before(moments), baseline.before(moments), strict=True):
        if not ours.started or not theirs.started:
            return
        if (ours.started, theirs.started) != known:
            yield ours, theirs
        known = ours.started, theirs.started
