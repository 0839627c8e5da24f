"""How much service brings every waiting tenant up to a level: one sum over all of them, without asking each.

A tenant with counter c, weight w, backlog b and n requests takes, until its counter has passed a level,

    0 below c,   then min(b, (level − c)·w + b/n):   one request more than what fits exactly, at most all it has.

That jumps at c, rises by w, and is flat from c + (b − b/n)/w on; so the sum is a line between two such points, and the
line at a level is the sum of what the points below it add to slope and offset. The points are kept sorted in blocks,
each with the sums of its own: a change costs O(log n), a question the number of blocks.

Sums are kept by adding and taking away. What that rounds off goes with the block, whose points all pass as counters
advance.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort

_WIDTH = 96  # points of a block, at which it is split

_Point = tuple[float, int, float, float]
"""Counter, a number of its own, what it adds to the slope, what to the offset."""


class ServiceCurve:
    """The curve of one queue's tenants, each known by a number of its own."""

    def __init__(self) -> None:
        self._blocks: list[list[_Point]] = []
        self._lasts: list[_Point] = []  # of each block
        self._slopes: list[float] = []
        self._offsets: list[float] = []
        self._points: dict[int, tuple[_Point, ...]] = {}  # by tenant

    def put(self, key: int, *, counter: float, weight: float, backlog: float, size: int) -> None:
        """The tenant waits with this from now on, instead of what it had before; `size` is at least 1."""
        self.drop(key)
        if size == 1:
            points: tuple[_Point, ...] = ((counter, 2 * key, 0.0, backlog),)
        else:
            one = backlog / size
            start = counter, 2 * key, weight, one - weight * counter
            # Beyond its end a tenant takes its backlog exactly, whatever rounding made of the point.
            points = start, (counter + (backlog - one) / weight, 2 * key + 1, -weight, backlog - start[3])
        self._points[key] = points
        for point in points:
            self._add(point)

    def drop(self, key: int) -> None:
        """The tenant waits no more; nothing when it did not."""
        for point in self._points.pop(key, ()):
            self._take(point)

    def at(self, level: float) -> float:
        """Cost units until all counters have passed this level."""
        until = (level, math.inf)
        full = bisect_right(self._lasts, until)  # type: ignore[type-var]
        slope, offset = sum(self._slopes[:full]), sum(self._offsets[:full])
        if full < len(self._blocks):
            block = self._blocks[full]
            for _, _, steeper, more in block[: bisect_right(block, until)]:  # type: ignore[type-var]
                slope += steeper
                offset += more
        return offset + slope * level

    def _add(self, point: _Point) -> None:
        if not self._blocks:
            self._blocks.append([])
            self._lasts.append(point)
            self._slopes.append(0.0)
            self._offsets.append(0.0)
        at = min(bisect_left(self._lasts, point), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, point)
        self._lasts[at] = block[-1]
        self._slopes[at] += point[2]
        self._offsets[at] += point[3]
        if len(block) > _WIDTH:
            self._split(at)

    def _take(self, point: _Point) -> None:
        at = bisect_left(self._lasts, point)
        block = self._blocks[at]
        del block[bisect_left(block, point)]
        if block:
            self._lasts[at] = block[-1]
            self._slopes[at] -= point[2]
            self._offsets[at] -= point[3]
        else:
            for each in (self._blocks, self._lasts, self._slopes, self._offsets):
                del each[at]  # type: ignore[attr-defined]

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        halves = block[: _WIDTH // 2], block[_WIDTH // 2 :]
        self._blocks[at : at + 1] = halves
        self._lasts[at : at + 1] = [half[-1] for half in halves]
        self._slopes[at : at + 1] = [sum(point[2] for point in half) for half in halves]
        self._offsets[at : at + 1] = [sum(point[3] for point in half) for half in halves]
