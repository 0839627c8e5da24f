"""Which of many names stand as labels: those of whom most is heard, a bounded number, and the rest is "other". Pure.

Prometheus keeps a series for each name that was ever shown. So a name that is shown stays, until another is heard of
twice as often, and once a minute at most one takes another's place.
"""

from __future__ import annotations

from collections.abc import Callable

OTHER = "other"
_PLACE_SECONDS = 60.0
_HALF_LIFE = 3600.0
_KNOWN = 8
"""So many names are counted for each that is shown."""


class Named:
    """Counts names."""

    def __init__(self, most: int, gone: Callable[[str], None]) -> None:
        """:param most: names that are shown at a time. :param gone: told of one that is shown no longer."""
        self._most, self._gone = most, gone
        self._counts: dict[str, float] = {}
        self._shown: set[str] = set()
        self._placed = self._halved = 0.0

    def label(self, name: str, now: float) -> str:
        """The name, or "other"; it was heard once more. `now`: seconds of any clock that does not go back."""
        counts = self._counts
        count = counts[name] = counts.get(name, 0.0) + 1.0
        if now - self._halved >= _HALF_LIFE or len(counts) > _KNOWN * self._most:
            self._forget(now)
        if name in self._shown:
            return name
        if len(self._shown) >= self._most:
            if now - self._placed < _PLACE_SECONDS:
                return OTHER
            least = min(self._shown, key=lambda each: counts.get(each, 0.0))
            if count <= 2.0 * counts.get(least, 0.0):
                return OTHER
            self._shown.remove(least)
            self._gone(least)
            self._placed = now
        self._shown.add(name)
        return name

    def _forget(self, now: float) -> None:
        """Half of everything; and of the names the lesser half, where there are too many."""
        kept = sorted(self._counts.items(), key=lambda item: -item[1])[: _KNOWN * self._most // 2]
        if now - self._halved >= _HALF_LIFE:
            self._halved = now
            kept = [(name, count / 2) for name, count in kept]
        self._counts = dict(kept)
