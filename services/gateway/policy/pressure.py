"""How hard each pool was wanted when admission last said so."""

from __future__ import annotations

REFUSED = 1.0
"""The pressure that a refusal under overload tells; see `weir.admission.v1.Granted.pressure`."""


class Pressures:
    """The last pressure per pool and class. One that nobody renewed for `hold` seconds says nothing any more."""

    def __init__(self, *, hold: float) -> None:
        self._hold = hold
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}

    def note(self, pool: str, queue_class: int, pressure: float, now: float) -> None:
        """Admission has told it at `now` (monotonic seconds)."""
        self._seen[pool, queue_class] = (pressure, now)

    def of(self, pool: str, queue_class: int, now: float) -> float:
        """The pressure in force; 0 when none is known."""
        pressure, at = self._seen.get((pool, queue_class), (0.0, 0.0))
        return pressure if now - at <= self._hold else 0.0
