"""What the router tells Prometheus. Pools and zones are few and come from our own registry and gateways."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from libs.breaker import BreakerState
from libs.errors import Reason

_RESOLUTIONS = Counter("weir_router_resolutions_total", "Resolve calls by how they ended.", ["outcome"])
RESOLVED = _RESOLUTIONS.labels("resolved")
REFUSED = {
    reason: _RESOLUTIONS.labels(reason.name.lower())
    for reason in (Reason.MODEL_NOT_FOUND, Reason.INVALID_REQUEST, Reason.DEPENDENCY_UNAVAILABLE)
}
OUTCOMES = Counter("weir_router_outcomes_total", "Outcomes that gateways reported.", ["pool", "zone", "result"])
REVISION = Gauge("weir_router_snapshot_revision", "The registry revision that decisions are made on.")
_BREAKERS = Gauge("weir_router_breaker_state", "0 closed, 1 half-open, 2 open.", ["pool", "zone"])
_VALUES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


def publish_breakers(states: dict[tuple[str, str], BreakerState]) -> None:
    """Sets the gauges to where the breakers stand."""
    for (pool, zone), state in states.items():
        _BREAKERS.labels(pool, zone).set(_VALUES[state])
