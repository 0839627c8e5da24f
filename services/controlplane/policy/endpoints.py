"""Live endpoints, and how one client sees those of a service: localities by zone, priorities by its own zone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.controlplane.policy.names import PREDICTOR, Piece, Resource, shared

_ONE_SUFFICES = 100_000
"""Per cent: a priority takes all requests while this, times the share of its endpoints that answer, is 100 or more."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One live process."""

    service: str
    """In DNS form."""
    instance: str
    host: str
    port: int
    zone: str
    started_at: float = 0.0
    """Seconds since the epoch; decides between two that claim one address."""
    versions: tuple[str, ...] = ()
    """Of a predictor: the model versions that it answers for, sorted."""

    def __hash__(self) -> int:
        # Assignments are looked up by their endpoints with every snapshot; what tells most of them apart is enough.
        return hash((self.service, self.instance, self.port))


def group(endpoints: Iterable[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    """Endpoints by service, ordered by instance, each address once.

    A killed process keeps its lease for seconds while its successor may already have its address; gRPC refuses a
    whole assignment for one double address, so the later one to start wins.
    """
    newest: dict[tuple[str, str, int], Endpoint] = {}
    for endpoint in sorted(endpoints, key=lambda e: (e.started_at, e.instance)):
        newest[endpoint.service, endpoint.host, endpoint.port] = endpoint
    found: dict[str, list[Endpoint]] = {}
    for endpoint in newest.values():
        found.setdefault(endpoint.service, []).append(endpoint)
    return {service: tuple(sorted(members, key=lambda e: e.instance)) for service, members in found.items()}


# Most services have the endpoints that they had a moment ago.
@shared
def assignment(service: str, endpoints: tuple[Endpoint, ...], own_zone: str = "") -> Piece:
    """The ClusterLoadAssignment of a service for clients in `own_zone`; "" treats all zones alike.

    Priorities start at 0 without gaps (gRPC refuses gaps): the own zone when it has endpoints, then all others. A
    locality weighs as many as it has endpoints, so that each endpoint gets the same share; gRPC ignores localities
    without a weight. While one predictor of a version is there, nobody else is asked for it.
    """
    zones: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        zones.setdefault(endpoint.zone, []).append(endpoint)
    elsewhere = 1 if own_zone and own_zone in zones else 0
    only = {"policy": {"overprovisioning_factor": _ONE_SUFFICES}} if service.startswith(f"{PREDICTOR}/") else {}
    return Piece(
        cluster_name=service,
        **only,
        endpoints=[
            {
                "locality": {"zone": zone},
                "priority": 0 if zone == own_zone else elsewhere,
                "load_balancing_weight": len(members),
                "lb_endpoints": [_lb_endpoint(member) for member in members],
            }
            for zone, members in sorted(zones.items(), key=lambda item: (item[0] != own_zone, item[0]))
        ],
    )


def predictors_of(endpoints: Iterable[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    """Predictors by the model version that they answer for, ordered by instance, each address once."""
    found: dict[str, list[Endpoint]] = {}
    for endpoint in group(endpoint for endpoint in endpoints if endpoint.versions).get(PREDICTOR, ()):
        for version in endpoint.versions:
            found.setdefault(version, []).append(endpoint)
    return {version: tuple(members) for version, members in found.items()}


def assignments(
    services: Iterable[str], by_service: Mapping[str, tuple[Endpoint, ...]], own_zone: str, all_zones: frozenset[str]
) -> dict[str, Resource]:
    """One assignment per service, empty ones included; services in `all_zones` never prefer a zone."""
    return {
        service: assignment(service, by_service.get(service, ()), "" if service in all_zones else own_zone)
        for service in services
    }


def _lb_endpoint(endpoint: Endpoint) -> Resource:
    address = {"socket_address": {"address": endpoint.host, "port_value": endpoint.port}}
    return {"health_status": "HEALTHY", "endpoint": {"address": address}}
