"""What is known of a difference: an interval that holds at every look.

All tests here are built alike. For a guess about a difference there is an e-process: a number that is at most 1 on
average, at whatever moment one looks, while the guess is true (Ramdas, Grünwald, Vovk, Shafer, "Game-theoretic
statistics and safe anytime-valid inference", 2023, arXiv 2210.01948). By Ville's inequality it ever reaches 1/alpha
with a probability of at most alpha, so the guesses at which it has not make an interval that holds at every look.
Where each arm has an e-process of its own (shares, quantiles) the two multiply, since they see different requests: a
pair of guesses is ruled out once the sum of both logarithms reaches log(1/alpha), and the interval of the difference
spans all pairs that are not. Both arms' uncertainty counts, and neither is paid for twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """How sure an interval is: log(1/alpha) of its lower and of its upper end."""

    low: float
    high: float

    @classmethod
    def of(cls, alpha_low: float, alpha_high: float) -> Level:
        """The probabilities, each over all looks, that the truth is ever below the interval, and above it."""
        return cls(-math.log(alpha_low), -math.log(alpha_high))

    @property
    def flipped(self) -> Level:
        """Of the same quantity with its sign changed."""
        return Level(self.high, self.low)

    @property
    def coverage(self) -> float:
        """The probability that the truth never leaves the interval."""
        return 1.0 - math.exp(-self.low) - math.exp(-self.high)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def negated(self) -> Interval:
        """Of the same quantity with its sign changed."""
        return Interval(-self.estimate, -self.high, -self.low)

    @property
    def exponential(self) -> Interval:
        """Of the quantity whose logarithm this is of, less 1: a relative difference."""
        return Interval(_expm1(self.estimate), _expm1(self.low), _expm1(self.high))


NOTHING = Interval(0.0, -math.inf, math.inf)
"""Nothing is known."""


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700.0 else math.inf
