"""The gateway's own refusals, and what a refused caller is told beside the reason."""

from __future__ import annotations

import math
from collections import Counter

from libs.callers import Identity
from libs.catalog import Catalog
from libs.errors import Reason, WeirError
from libs.limiter import Reservation
from libs.quota import MINUTE_NS, Header, LimitReport, retry_headers
from libs.telemetry import get_logger

log = get_logger(__name__)


class Refused(WeirError):
    """A refusal with the state of the caller's limits, where the edge has not told it: see `libs/quota/headers.py`."""

    def __init__(self, error: WeirError, limits: Reservation) -> None:
        super().__init__(error.reason, error.message, limit=error.limit, retry_after=error.retry_after)
        self.limits = limits


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
    limits = reservation or _refused_limits(error, catalog.per_minute(identity.tenant, model))
    return error if limits is None else Refused(error, limits)


def _refused_limits(error: WeirError, per_minute: tuple[int, int]) -> Reservation | None:
    requests, tokens = per_minute
    reset = MINUTE_NS if error.retry_after is None else math.ceil(error.retry_after * 1e9)
    if error.reason is Reason.QUOTA_REQUESTS and requests:
        return Reservation(requests=LimitReport(requests, 0, reset, MINUTE_NS))
    if error.reason is Reason.QUOTA_TOKENS and tokens:
        return Reservation(tokens=LimitReport(tokens, 0, reset, MINUTE_NS))
    return None


def limits_of(error: WeirError) -> list[Header]:
    """The limit headers of a refusal; none where the edge has told them."""
    return error.limits.headers() if isinstance(error, Refused) else []


def retry_of(error: WeirError) -> list[Header]:
    """When to come back, where the refusal knows a time."""
    return retry_headers(None if error.retry_after is None else math.ceil(error.retry_after * 1e9))


class EndLog:
    """Requests that did not end as they should: one line per reason and half second, however many there were. A flood
    of refusals must not become a flood of lines."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self._latest: dict[tuple[str, str, str, str], str] = {}

    def refused(self, operation: str, error: WeirError, trace: str) -> None:
        """One more that never ran; `trace` is its traceparent."""
        self._note("refused", operation, outcome_of(error), error.reason.name, trace)

    def broke(self, operation: str, outcome: str, reason: str, trace: str) -> None:
        """One more that ran and was ended by something other than itself or its caller."""
        self._note("broke", operation, outcome, reason, trace)

    def _note(self, event: str, operation: str, outcome: str, reason: str, trace: str) -> None:
        kind = (event, operation, outcome, reason)
        self._counts[kind] += 1
        self._latest[kind] = trace

    def flush(self) -> None:
        """Write what came since the last time, with the trace of the last of each kind."""
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        for kind, count in counts.items():
            event, operation, outcome, reason = kind
            log.info(
                event, trace=self._latest.pop(kind), operation=operation, outcome=outcome, reason=reason, count=count
            )
