"""Counts of good and bad events over time, from seconds to thirty days, in a few hundred numbers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import NamedTuple

_LEVELS = ((5.0, 64), (60.0, 64), (300.0, 80), (3600.0, 80), (21600.0, 124))
"""Width of a slot in seconds and number of slots, finest first. The windows of `libs.burn.WINDOWS` are at least 24
slots of the level that answers them, so the far edge of a window is off by a 24th of it at most; thirty days by six
hours."""


class Counted(NamedTuple):
    """Events of a window."""

    good: int
    bad: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.good + self.bad


class TallyError(ValueError):
    """What was stored is not a tally."""


@dataclass(slots=True)
class _Level:
    width: float
    slots: int
    counts: dict[int, list[int]]
    """Slot number (time over width, rounded down) → [good, bad]; only slots with events, only the newest."""

    def add(self, good: int, bad: int, now: float) -> None:
        slot = math.floor(now / self.width)
        found = self.counts.get(slot)
        if found is None:
            if len(self.counts) >= self.slots:
                self._forget(slot)
            found = self.counts[slot] = [0, 0]
        found[0] += good
        found[1] += bad

    def _forget(self, newest: int) -> None:
        kept = {slot: count for slot, count in self.counts.items() if slot > newest - self.slots}
        while len(kept) >= self.slots:  # the clock went back: the newest by number go, the present counts
            del kept[max(kept)]
        self.counts = kept

    def sum(self, window: float, now: float) -> Counted:
        last = math.floor(now / self.width)
        first = math.floor((now - window) / self.width) + 1
        found = [count for slot, count in self.counts.items() if first <= slot <= last]
        return Counted(sum(count[0] for count in found), sum(count[1] for count in found))


class Tally:
    """Good and bad events of one objective.

    Times are Unix seconds, so that what a process wrote down another can go on with. `scale` shrinks every slot
    (0.01: five minutes become three seconds) for tests and for canaries that are minutes old; ask it with windows
    scaled alike.
    """

    def __init__(self, *, scale: float = 1.0) -> None:
        self._scale = scale
        self._levels = [_Level(width * scale, slots, {}) for width, slots in _LEVELS]
        self._since: float | None = None

    @property
    def since(self) -> float | None:
        """When the first event was counted; None before."""
        return self._since

    def add(self, good: int, bad: int, now: float) -> None:
        """Counts events that ended by `now`."""
        if not good and not bad:
            return
        if self._since is None or now < self._since:
            self._since = now
        for level in self._levels:
            level.add(good, bad, now)

    def count(self, window: float, now: float) -> Counted:
        """Events of the last `window` seconds; of the longest that is kept, when the window is longer."""
        for level in self._levels:
            if level.width * (level.slots - 1) >= window:
                return level.sum(window, now)
        return self._levels[-1].sum(window, now)

    def dump(self) -> bytes:
        """All of it as bytes, a few kilobytes at most; `load` reads them."""
        levels = [[[slot, *count] for slot, count in sorted(level.counts.items())] for level in self._levels]
        return json.dumps({"scale": self._scale, "since": self._since, "levels": levels}).encode()

    @classmethod
    def load(cls, stored: bytes) -> Tally:
        """What `dump` gave.

        :raises TallyError: it did not come from `dump`.
        """
        try:
            value = json.loads(stored)
            tally = cls(scale=float(value["scale"]))
            tally._since = None if value["since"] is None else float(value["since"])
            if len(value["levels"]) != len(tally._levels):
                raise ValueError("another number of levels")
            for level, slots in zip(tally._levels, value["levels"], strict=True):
                level.counts = {int(slot): [int(good), int(bad)] for slot, good, bad in slots[-level.slots :]}
        except (ValueError, KeyError, TypeError) as error:
            raise TallyError(f"not a stored tally: {error}") from error
        return tally
