"""Which calendar day and month it is in a time zone. Pure: time comes in as Unix nanoseconds. A zone's rules are read
once, from the machine's files or those of the package tzdata."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_SECOND = 1_000_000_000
_MOST_SECONDS = {len("2026-11-23"): 3 * 86_400, len("2026-11"): 33 * 86_400}
"""No day or month is longer, by the length of its key: also where a zone moves over the date line."""


class Period(NamedTuple):
    """One calendar day or month in one time zone."""

    key: str
    """"2026-11-23" or "2026-11": a later one is greater."""
    begins: int
    """Unix nanoseconds."""
    ends: int
    """When the next one begins; 23 or 25 hours later on days when clocks are put forward or back."""


class Zone:
    """The days and months of one time zone.

    :param name: of the IANA database; empty is UTC, and so is one that is not known (`known`).
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.known = True
        self._rules: tzinfo = UTC
        if name:
            try:
                self._rules = ZoneInfo(name)
            except (KeyError, ValueError, OSError):  # not there; no name of a file; a folder
                self.known = False
        self._day = self._month = Period("", 0, 0)

    def day(self, wall: int) -> Period:
        """The day that it is at `wall`, the same object throughout."""
        if not self._day.begins <= wall < self._day.ends:
            self._day = self._period(wall, len("2026-11-23"))
        return self._day

    def month(self, wall: int) -> Period:
        """The month that it is at `wall`, the same object throughout."""
        if not self._month.begins <= wall < self._month.ends:
            self._month = self._period(wall, len("2026-11"))
        return self._month

    def _period(self, wall: int, length: int) -> Period:
        # Looked for and not computed: midnight may come twice or not at all, and whole days have been left out.
        second, most = wall // _SECOND, _MOST_SECONDS[length]

        def key(at: int) -> str:
            return datetime.fromtimestamp(at, self._rules).isoformat()[:length]

        present, before, after = key(second), range(second - most, second), range(second, second + most)
        begins = before.start + bisect_left(before, present, key=key)
        ends = after.start + bisect_right(after, present, key=key)
        return Period(present, begins * _SECOND, ends * _SECOND)


class Zones:
    """Time zones by name, and the time of day: how far Unix time is from the clock that the ledger counts by."""

    def __init__(self) -> None:
        self.offset = 0
        """Unix nanoseconds less the ledger's."""
        self._zones: dict[str, Zone] = {}

    def of(self, name: str) -> Zone:
        """The zone of a name, one object for all who have it."""
        if name not in self._zones:
            self._zones[name] = Zone(name)
        return self._zones[name]
