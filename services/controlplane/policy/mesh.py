"""Resources for proxyless gRPC: `xds:///<service>.weir.internal`.

Source: gRFCs A27 (xDS), A31 (routes), A42 (ring hash), A32 (circuit breaking).
"""

from __future__ import annotations

from collections.abc import Sequence

from libs.authority.identity import dns_name
from services.controlplane.policy.names import ADS, CLUSTER, KEY_HEADER, KEYED, LISTENER, ROUTES, Resource, Resources

HASHED = {"admission": "x-weir-pool", "ratelimit": "x-weir-shard"}
"""Services whose state has one owner: the request header that picks it."""

_HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
# gRPC applies a default of 1024 requests in flight per cluster when none is given; admission bounds our load, not this.
_MAX_REQUESTS = 1_000_000
_RING: Resource = {
    "lb_policy": "RING_HASH",
    "ring_hash_lb_config": {"minimum_ring_size": 1024, "hash_function": "XX_HASH"},
}


def mesh_resources(services: Sequence[str]) -> Resources:
    """Listener, routes and cluster of every service, all but the endpoints."""
    return {
        CLUSTER: {service: _cluster(service) for service in services} | {KEYED: _keyed()},
        LISTENER: {dns_name(service): _listener(dns_name(service)) for service in services},
        ROUTES: {dns_name(service): _routes(service) for service in services},
    }


def _listener(name: str) -> Resource:
    manager = {
        "@type": _HCM,
        "rds": {"route_config_name": name, "config_source": ADS},
        "http_filters": [{"name": "router", "typed_config": {"@type": _ROUTER}}],
    }
    return {"name": name, "api_listener": {"api_listener": manager}}


def _routes(service: str) -> Resource:
    action: dict[str, object] = {"cluster": service}
    if service in HASHED:
        action["hash_policy"] = [{"header": {"header_name": HASHED[service]}}]
    routes: list[Resource] = [{"match": {"prefix": ""}, "route": action}]
    if service == "gateway":
        with_key = {"prefix": "", "headers": [{"name": KEY_HEADER, "present_match": True}]}
        by_key = {"cluster": KEYED, "hash_policy": [{"header": {"header_name": KEY_HEADER}}]}
        routes.insert(0, {"match": with_key, "route": by_key})
    return {
        "name": dns_name(service),
        "virtual_hosts": [{"name": service, "domains": ["*"], "routes": routes}],
    }


def _cluster(service: str) -> Resource:
    cluster: dict[str, object] = {
        "name": service,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": ADS, "service_name": service},
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", "max_requests": _MAX_REQUESTS}]},
    }
    return {**cluster, **_RING} if service in HASHED else cluster


def _keyed() -> Resource:
    """The gateways once more, for requests with an idempotency key."""
    return {**_cluster("gateway"), "name": KEYED, **_RING}
