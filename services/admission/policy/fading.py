"""Averages whose memory fades exponentially: the past counts less the longer ago it is."""

from __future__ import annotations

import math


class FadingRate:
    """Amounts per second, as an average in which what happened `memory` seconds ago counts 1/e."""

    __slots__ = ("_born", "_memory", "_sum", "at")

    def __init__(self, memory: float, now: float) -> None:
        """`memory` in seconds."""
        self._memory = memory
        self._born = now
        self.at = now
        """When something came last."""
        self._sum = 0.0

    def add(self, now: float, amount: float) -> None:
        """`amount` came now."""
        self._sum = self._sum * math.exp((self.at - now) / self._memory) + amount
        self.at = now

    def per_second(self, now: float) -> float:
        """The average; of a shorter time than `memory` it is the plain one. 0 before anything was seen."""
        seen = self._memory * -math.expm1((self._born - now) / self._memory)
        return self._sum * math.exp((self.at - now) / self._memory) / seen if seen > 0.0 else 0.0


class TimedMean:
    """Mean and mean absolute deviation of samples that count the less the longer ago they are."""

    __slots__ = ("_memory", "_weight", "at", "count", "deviation", "mean")

    def __init__(self, memory: float) -> None:
        """`memory` in seconds: what is so old counts 1/e."""
        self._memory = memory
        self._weight = 0.0
        self.at = 0.0
        """When the last sample came."""
        self.count = 0
        self.mean = 0.0
        self.deviation = 0.0

    def add(self, now: float, sample: float) -> None:
        """Counts one more."""
        self._weight = self._weight * math.exp((self.at - now) / self._memory) + 1.0
        self.at = now
        self.count += 1
        gain = 1.0 / self._weight
        difference = sample - self.mean
        self.mean += gain * difference
        if self.count > 1:
            self.deviation += gain * (abs(difference) - self.deviation)


class FadingMean:
    """Mean and mean absolute deviation of samples, of which about the last `memory` count."""

    __slots__ = ("_memory", "count", "deviation", "mean")

    def __init__(self, memory: float) -> None:
        """`memory` in samples."""
        self._memory = memory
        self.count = 0
        self.mean = 0.0
        self.deviation = 0.0

    def add(self, sample: float) -> None:
        """Counts one more; the first few count equally."""
        self.count += 1
        gain = 1.0 / min(self.count, self._memory)
        difference = sample - self.mean
        self.mean += gain * difference
        if self.count > 1:
            self.deviation += gain * (abs(difference) - self.deviation)
