"""Where a version runs, by what it costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from services.predictor.port import LoadError

INLINE_SECONDS = 0.0003
"""Up to which a hand-over to another thread would cost more than it spares the others (a wake-up there and back is
0.05–0.1 ms, and the event loop waits for the interpreter's lock meanwhile): ℓ(1) of a version in the lane, and then
each of its batches. Of larger batches the hand-over is a small part: to keep those of up to 1 ms here as well spared
7 µs of the processor per call, of 16 and of 64 callers with single rows, which is within the noise."""
STALL_SECONDS = 0.02
"""For which loading a version may hold the interpreter's lock; longer ones are not loaded beside the event loop."""

_LEAST = 1e-6
_LATELY = 16
"""Batches that count as lately."""


class Lane(Enum):
    """Where a version runs."""

    INLINE = "inline"
    """On the event loop: whatever arrived in one turn of it, at once."""
    THREAD = "thread"
    """In a thread of the server's process, for libraries that release the interpreter's lock."""
    PROCESS = "process"
    """In a process of its own."""


def declared(lane: str) -> Lane | None:
    """The lane that a manifest asks for, if it does.

    :raises LoadError: there is no such lane.
    """
    try:
        return Lane(lane) if lane else None
    except ValueError:
        names = ", ".join(known.value for known in Lane)
        raise LoadError(f"there is no lane {lane[:32]!r}; there are {names}") from None


def choose(*, wanted: Lane | None, native: bool, samples: Sequence[tuple[int, float]], stall: float) -> Lane:
    """The lane of a version.

    :param wanted: by its manifest.
    :param native: its runs release the interpreter's lock and cannot end the process.
    :param samples: (rows, seconds) of warm runs.
    :param stall: seconds for which loading it held the interpreter's lock at a time.
    """
    if wanted is not None:
        return wanted
    if not native or stall > STALL_SECONDS:
        return Lane.PROCESS
    _, seconds = undisturbed(samples)[0]
    return Lane.INLINE if seconds <= INLINE_SECONDS else Lane.THREAD


def undisturbed(samples: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The quickest run of each number of rows, fewest first: others may have kept the machine busy in all but one."""
    best: dict[int, float] = {}
    for rows, seconds in samples:
        best[rows] = min(seconds, best.get(rows, seconds))
    return sorted(best.items())


class OwnCost:
    """Seconds that batches of a version take, whatever else the machine does meanwhile: a line through undisturbed
    runs, times what batches took of the processor lately in proportion to it. Less than the line it is never: what
    waits for other threads or a GPU takes none of it."""

    def __init__(self, samples: Sequence[tuple[int, float]]) -> None:
        """:param samples: (rows, seconds) of warm runs; at least one."""
        best = undisturbed(samples)
        (least, first), (most, last) = best[0], best[-1]
        self._beta = max(0.0, last - first) / (most - least) if most > least else 0.0
        self._alpha = max(first - self._beta * least, _LEAST)
        self._lately = 1.0

    def of(self, rows: int) -> float:
        """Expected of a batch."""
        return self._lately * (self._alpha + self._beta * rows)

    def observe(self, rows: int, seconds: float) -> None:
        """A batch took so much."""
        now = seconds / (self._alpha + self._beta * rows)
        self._lately = max(1.0, self._lately + (now - self._lately) / _LATELY)
