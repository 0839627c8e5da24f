"""Where a version runs, by what it costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from statistics import median

from services.predictor.port import LoadError

INLINE_SECONDS = 0.0003
"""ℓ(1) up to which a hand-over to another thread would cost more than it spares the others (a wake-up there and back is
0.05–0.1 ms, and the event loop waits for the interpreter's lock meanwhile)."""
INLINE_BATCH_SECONDS = 0.001
"""For what is expected to run longer, the event loop is not kept."""
STALL_SECONDS = 0.02
"""For which loading a version may hold the interpreter's lock; longer ones are not loaded beside the event loop."""


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
    least = min(rows for rows, _ in samples)
    seconds = median(seconds for rows, seconds in samples if rows == least)  # others may have kept the machine busy
    return Lane.INLINE if seconds <= INLINE_SECONDS else Lane.THREAD
