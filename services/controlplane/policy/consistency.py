"""The check that a snapshot must pass before anybody sees it: everything that is pointed at is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from libs.config.addresses import join, split
from libs.routing import BUCKETS
from services.controlplane.policy.names import (
    CLUSTER,
    CONTROLPLANE,
    EDGE,
    ENDPOINTS,
    EXTENSION,
    LISTENER,
    MESH,
    ROUTES,
    SECRET,
    Piece,
    Resource,
    Resources,
    remembered,
)
from services.controlplane.policy.snapshot import Snapshot


def consistent(snapshot: Snapshot) -> list[str]:
    """What is wrong with the snapshot, one line per fault; empty when it may be published."""
    faults: list[str] = []
    for cluster in (EDGE, MESH):
        static = snapshot.static[cluster]
        wanted = {
            found["eds_cluster_config"]["service_name"]
            for found in static.get(CLUSTER, {}).values()
            if found.get("type") == "EDS"
        }
        faults += [f"{cluster}: {fault}" for fault in _static_faults(static)]
        for zone in sorted({*snapshot.zones(cluster), ""}):
            where = f"{cluster}/{zone}" if zone else cluster
            served = snapshot.resources(cluster, zone)[ENDPOINTS]
            faults += [f"{where}: {fault}" for fault in _endpoint_faults(served, wanted)]
    return faults


def clusters_named(kind: str, resource: Resource) -> frozenset[str]:
    """The clusters that a listener, or a route configuration, names."""
    if kind == LISTENER:
        return frozenset(_called(resource))
    return frozenset(name for part in _parts(resource) for name in _route_clusters(part))


def _static_faults(resources: Resources) -> Iterator[str]:
    clusters = resources.get(CLUSTER, {})
    routes = resources.get(ROUTES, {})
    secrets = resources.get(SECRET, {})
    filters = resources.get(EXTENSION, {})
    yield from _misnamed(resources)
    for name, listener in resources.get(LISTENER, {}).items():
        for reference in sorted({*_route_names(listener)}):
            if reference not in routes:
                yield f"listener {name} names the absent routes {reference}"
        for reference in sorted({*_filter_names(listener)}):
            if reference not in filters:
                yield f"listener {name} names the absent filter {reference}"
        for reference in sorted(clusters_named(LISTENER, listener)):
            if reference not in clusters:
                yield f"listener {name} names the absent cluster {reference}"
    for name, cluster in clusters.items():
        for reference in cluster.get("cluster_type", {}).get("typed_config", {}).get("clusters", ()):
            if reference not in clusters:
                yield f"cluster {name} names the absent cluster {reference}"
    for name, config in routes.items():
        for part in _parts(config):
            for reference in _route_clusters(part):
                if reference not in clusters:
                    yield f"routes {name} name the absent cluster {reference}"
            yield from (f"routes {name}: {fault}" for fault in _weight_faults(part))
        if not config.get("virtual_hosts"):
            yield f"routes {name} are empty"
    for kind in (CLUSTER, LISTENER):
        for name, resource in resources.get(kind, {}).items():
            for reference in sorted({*_sds_names(resource)}):
                if reference not in secrets:
                    yield f"{name} names the absent secret {reference}"


def _endpoint_faults(served: Mapping[str, Resource], wanted: Set[str]) -> Iterator[str]:
    for name in sorted(wanted - served.keys()):
        yield f"cluster {name} has no assignment"
    for name in sorted(served.keys() - wanted):
        yield f"assignment {name} belongs to no cluster"
    yield from _misnamed({ENDPOINTS: served})
    for name, assignment in served.items():
        yield from (f"assignment {name}: {fault}" for fault in _assignment_faults(assignment))


def _misnamed(resources: Resources) -> Iterator[str]:
    for kind, named in resources.items():
        for name, resource in named.items():
            own = resource.get("cluster_name" if kind == ENDPOINTS else "name")
            if own != name:
                yield f"{kind.rsplit('.', 1)[-1]} {name} calls itself {own}"


def _parts(node: Any) -> Iterator[Resource]:
    """The pieces in it, wherever they are."""
    if isinstance(node, Piece):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _parts(value)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for value in node:
            yield from _parts(value)


def _remembering(find: Callable[[Resource], Iterable[str]]) -> Callable[[Resource], Sequence[str]]:
    """The same function, which looks into a `Piece` only once."""

    @remembered
    def first(piece: Piece) -> Sequence[str]:
        return tuple(find(piece))

    def found(resource: Resource) -> Sequence[str]:
        return first(resource) if isinstance(resource, Piece) else tuple(find(resource))

    return found


@_remembering
def _assignment_faults(assignment: Resource) -> Iterator[str]:
    seen: set[tuple[str, int]] = set()
    priorities: set[int] = set()
    for locality in assignment["endpoints"]:
        priorities.add(locality["priority"])
        if locality["load_balancing_weight"] < 1 or not locality["lb_endpoints"]:
            yield f"zone {locality['locality']['zone']} is empty"
        for endpoint in locality["lb_endpoints"]:
            socket = endpoint["endpoint"]["address"]["socket_address"]
            address = (socket["address"], socket["port_value"])
            if address in seen:
                yield f"{address[0]}:{address[1]} occurs twice"
            seen.add(address)
            try:
                split(join(*address))
            except ValueError:
                yield f"{address[0]}:{address[1]} is no address"
    if priorities != set(range(len(priorities))):
        yield f"priorities {sorted(priorities)} have gaps"


@_remembering
def _route_clusters(part: Resource) -> Iterator[str]:
    """The clusters that routes name, alone or with weights."""
    for found in _nodes(part):
        if isinstance(found.get("cluster"), str):
            yield found["cluster"]
        if "weighted_clusters" in found:
            yield from (each["name"] for each in found["weighted_clusters"]["clusters"])


@_remembering
def _weight_faults(part: Resource) -> Iterator[str]:
    for found in _nodes(part):
        clusters = found.get("weighted_clusters", {}).get("clusters", ())
        if clusters and sum(each["weight"] for each in clusters) != BUCKETS:
            yield f"the weights of {', '.join(each['name'] for each in clusters)} do not make {BUCKETS}"


@_remembering
def _route_names(listener: Resource) -> Iterator[str]:
    yield from _values(listener, "route_config_name")


@_remembering
def _filter_names(listener: Resource) -> Iterator[str]:
    for found in _nodes(listener):
        if "config_discovery" in found:
            yield found["name"]


@_remembering
def _called(listener: Resource) -> Iterator[str]:
    """The clusters that filters call, but for the one that Envoy has of its own."""
    yield from (name for name in _values(listener, "cluster_name") if name != CONTROLPLANE)


def _values(node: Any, key: str) -> Iterator[str]:
    """Every string under `key`, at any depth."""
    for found in _nodes(node):
        value = found.get(key)
        if isinstance(value, str):
            yield value


@_remembering
def _sds_names(resource: Resource) -> Iterator[str]:
    for found in _nodes(resource):
        if "sds_config" in found:
            yield found["name"]


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping in it, at any depth; one that is there several times, as the chains of a listener are, once."""
    waiting, seen = [node], set[int]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if id(each) not in seen:
                seen.add(id(each))
                yield each
                waiting += reversed(list(each.values()))
        elif isinstance(each, Sequence) and not isinstance(each, str):
            waiting += reversed(each)
