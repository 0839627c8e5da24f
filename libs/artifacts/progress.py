"""How far a push is: bytes, rate and time left, in one line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_WINDOW = 5.0
"""Seconds that a rate looks back: long enough to be calm, short enough to notice that a link has become slow."""
_EVERY = 0.1
"""Seconds between two lines."""


def size_in_words(count: float) -> str:
    """ "512 B", "2.04 MB"."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:.0f} GB"


def time_in_words(seconds: float) -> str:
    """ "42 s", "3:05 min", "2:10 h"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"


def line_of(stage: str, done: int, whole: int, rate: float) -> str:
    """ "sending 1.2 GB of 3.4 GB (35%), 163 MB/s, 13 s left".

    :param rate: bytes per second; 0: not known yet, and nothing is said of it.
    """
    share = f" ({done / whole:.0%})" if whole else ""
    said = f"{stage} {size_in_words(done)} of {size_in_words(whole)}{share}"
    return f"{said}, {size_in_words(rate)}/s, {time_in_words((whole - done) / rate)} left" if rate > 0 else said


class Watch:
    """Sees how far a push is, and looks away."""

    def begin(self, stage: str, whole: int) -> None:
        """A stage of so many bytes begins."""

    def add(self, count: int) -> None:
        """So many more bytes are dealt with; from any thread."""

    def skip(self, count: int) -> None:
        """So many bytes need not be dealt with."""


class Meter(Watch):
    """Shows it: a line now and then."""

    def __init__(self, clock: Callable[[], float], show: Callable[[str], None]) -> None:
        """:param clock: monotonic seconds."""
        self._clock = clock
        self._show = show
        self._lock = threading.Lock()
        self._stage, self._done, self._whole = "", 0, 0
        self._began = self._last = clock()
        self._marks: deque[tuple[float, int]] = deque()
        self._due = 0.0

    def begin(self, stage: str, whole: int) -> None:
        """See `Watch`."""
        with self._lock:
            self._stage, self._done, self._whole = stage, 0, whole
            self._began = self._last = self._clock()
            self._marks.clear()
            self._due = 0.0

    def add(self, count: int) -> None:
        """See `Watch`."""
        with self._lock:
            self._done += count
            now = self._last = self._clock()
            if now < self._due:
                return
            self._due = now + _EVERY
            self._marks.append((now, self._done))
            while self._marks[0][0] < now - _WINDOW:
                self._marks.popleft()
            since, before = self._marks[0]
            rate = (self._done - before) / (now - since) if now > since else 0.0
            self._show(line_of(self._stage, self._done, self._whole, rate))

    def skip(self, count: int) -> None:
        """See `Watch`."""
        with self._lock:
            self._whole -= count

    @property
    def rate(self) -> float:
        """Bytes per second of the latest stage, from its beginning to its latest byte."""
        with self._lock:
            return self._done / max(1e-9, self._last - self._began)
