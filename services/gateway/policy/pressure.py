"""How hard each pool was wanted when admission last said so."""

from __future__ import annotations

REFUSED = 1.0
"""The pressure that a refusal under overload tells; see `weir.admission.v1.Granted.pressure`."""
MOST = 10_000
"""Pressures remembered at once."""


class Pressures:
    """The last pressure per pool, class and tenant. One that nobody renewed for `hold` seconds says nothing any more.

    By tenant, because admission queues fairly: one that floods waits long where another, of the same class, has room.
    """

    def __init__(self, *, hold: float) -> None:
        self._hold = hold
        self._seen: dict[tuple[str, int, str], tuple[float, float]] = {}  # oldest first

    def note(self, pool: str, queue_class: int, tenant: str, pressure: float, now: float) -> None:
        """Admission has told it at `now` (monotonic seconds)."""
        key = pool, queue_class, tenant
        self._seen.pop(key, None)
        self._seen[key] = pressure, now
        if len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]

    def of(self, pool: str, queue_class: int, tenant: str, now: float) -> float:
        """The pressure in force; 0 when none is known."""
        pressure, at = self._seen.get((pool, queue_class, tenant), (0.0, 0.0))
        return pressure if now - at <= self._hold else 0.0
