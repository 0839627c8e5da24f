"""The gateway's own refusals, and what a refused caller is told beside the reason."""

from __future__ import annotations

from collections import Counter

from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from services.gateway.catalog import Catalog
from services.gateway.policy.spec import Identity
from services.gateway.ports import Reservation

log = get_logger(__name__)
State = tuple[int, int, float]
"""(limit, remaining, seconds until all of it is free)."""
WINDOW = 60
"""Seconds that limits of requests and tokens are about."""


class Refused(WeirError):
    """A refusal with the state of the caller's limits, where the edge has not told it: see `libs/quota/headers.py`."""

    def __init__(self, error: WeirError, *, requests: State | None, tokens: State | None) -> None:
        super().__init__(error.reason, error.message, limit=error.limit, retry_after=error.retry_after)
        self.requests = requests
        self.tokens = tokens


def outcome_of(error: WeirError) -> str:
    """ "evicted" when it was queued and "rejected" when it never was."""
    return "evicted" if error.reason.name.startswith("EVICTED_") else "rejected"


def with_limits(
    error: WeirError, identity: Identity, model: str, reservation: Reservation | None, catalog: Catalog
) -> WeirError:
    """The refusal with what is known of the limits: after a reservation, what it said; for a refused one, that
    nothing is left of the limit that refused until its time to come back."""
    if identity.request_counted:
        return error
    if reservation is not None:
        requests, tokens = reservation.requests, reservation.tokens
    else:
        requests, tokens = _refused_limits(error, catalog.per_minute(identity.tenant, model))
    if requests is None and tokens is None:
        return error
    return Refused(error, requests=requests, tokens=tokens)


def _refused_limits(error: WeirError, per_minute: tuple[int, int]) -> tuple[State | None, State | None]:
    if error.reason not in (Reason.QUOTA_REQUESTS, Reason.QUOTA_TOKENS):
        return None, None
    reset = WINDOW if error.retry_after is None else error.retry_after
    if error.reason is Reason.QUOTA_REQUESTS:
        return ((per_minute[0], 0, reset) if per_minute[0] else None), None
    return None, ((per_minute[1], 0, reset) if per_minute[1] else None)


class RefusalLog:
    """One line per reason and half second, however many were refused: a flood must not become a flood of lines."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def note(self, operation: str, error: WeirError) -> None:
        """One more."""
        self._counts[operation, outcome_of(error), error.reason.name] += 1

    def flush(self) -> None:
        """Write what came since the last time."""
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        for (operation, outcome, reason), count in counts.items():
            log.info("refused", operation=operation, outcome=outcome, reason=reason, count=count)
