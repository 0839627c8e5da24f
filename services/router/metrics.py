"""What the router tells Prometheus. Versions and zones are few: they come from our own registry and gateways."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from libs.breaker import BreakerState
from libs.errors import Reason
from libs.telemetry.counter import FastCounter

_RESOLUTIONS = Counter("weir_router_resolutions_total", "Resolve calls by how they ended.", ["outcome"])
RESOLVED = _RESOLUTIONS.labels("resolved")
REFUSED = {
    reason: _RESOLUTIONS.labels(reason.name.lower())
    for reason in (
        Reason.MODEL_NOT_FOUND,
        Reason.REGION_NOT_ALLOWED,
        Reason.INVALID_REQUEST,
        Reason.DEPENDENCY_UNAVAILABLE,
    )
}
MIRRORED = Counter("weir_router_mirrored_total", "Routes that ask for a second, mirrored answer.")
OUTCOMES = FastCounter(
    "weir_router_outcomes_total", "Outcomes that gateways reported.", ("model_version", "zone", "result")
)
IGNORED = Counter("weir_router_outcomes_ignored_total", "Outcomes of pools that are not the version's own.")
REVISION = Gauge("weir_router_snapshot_revision", "The registry revision that decisions are made on.")
_BREAKERS = Gauge("weir_router_breaker_state", "0 closed, 1 half-open, 2 open.", ["model_version", "zone"])
_VALUES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_published: set[tuple[str, str]] = set()


def publish_breakers(states: dict[tuple[str, str], BreakerState]) -> None:
    """Sets the gauges to where the breakers stand; those of breakers that were forgotten go."""
    for gone in _published - states.keys():
        _BREAKERS.remove(*gone)
        _published.remove(gone)
    for pair, state in states.items():
        _BREAKERS.labels(*pair).set(_VALUES[state])
        _published.add(pair)
