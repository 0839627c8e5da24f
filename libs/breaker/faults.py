"""Which ends of a request speak against the zone that served it."""

from __future__ import annotations

from libs.errors import Reason

FAULTS = frozenset({Reason.WORKER_LOST, Reason.ENGINE_ERROR})
"""Everything else is the caller's doing (a bad request, a deadline, a quota, a slow reader), the mesh's decision
(refused, shed, preempted, draining) or the fault of a service that is in no zone of a model."""


def is_fault(reason: Reason) -> bool:
    """May this end open a breaker? Client errors and refusals never do."""
    return reason in FAULTS
