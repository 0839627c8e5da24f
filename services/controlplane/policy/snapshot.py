"""The snapshot: everything that every client shall have at one etcd revision, as one immutable value.

After go-control-plane's `Snapshot` and `Consistent()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.edge import EDGE_UPSTREAMS, edge_resources, with_predictions
from services.controlplane.policy.endpoints import Endpoint, assignments, group
from services.controlplane.policy.filters import EPOCH, epoch
from services.controlplane.policy.mesh import HASHED, mesh_resources
from services.controlplane.policy.names import EDGE, ENDPOINTS, EXTENSION, MESH, Piece, Resource, Resources
from services.controlplane.policy.predictions import Prediction
from services.controlplane.policy.upstreams import predictor_cluster_name


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Resources of both kinds of clients; their endpoints differ by the client's zone."""

    version: int
    """etcd revision."""
    static: Mapping[str, Resources]
    """Node cluster → type → name → resource, without endpoints."""
    endpoints: Mapping[tuple[str, str], Mapping[str, Resource]]
    """(node cluster, zone) → service → assignment. Zone "" is for clients of a zone that has no endpoints."""

    def zones(self, cluster: str) -> frozenset[str]:
        """The zones whose clients get assignments of their own."""
        return frozenset(zone for found, zone in self.endpoints if found == cluster)

    def resources(self, cluster: str, zone: str) -> Resources:
        """Everything for a client of this node cluster in this zone.

        :raises KeyError: an unknown node cluster.
        """
        own = self.endpoints.get((cluster, zone))
        return {**self.static[cluster], ENDPOINTS: self.endpoints[cluster, ""] if own is None else own}


def build_snapshot(
    version: int,
    endpoints: Iterable[Endpoint],
    edge: EdgeConfig,
    *,
    services: Sequence[str],
    descriptors: str,
    predictions: Sequence[Prediction] = (),
    predictors: Mapping[str, tuple[Endpoint, ...]] = MappingProxyType({}),
    revoked_at: int = 0,
    rules: str = "",
) -> Snapshot:
    """The snapshot for these live endpoints.

    :param services: names that are always served; those of the endpoints are added.
    :param descriptors: the transcoder's FileDescriptorSet, base64.
    :param predictions: what the edge's requests for unary predictions are routed by.
    :param predictors: of every model version that shall have a cluster at the edge; those that predictions name are
        among them.
    :param revoked_at: the revision at which credentials were last revoked or narrowed; 0: at none that is known.
    :param rules: by which callers are placed in rollouts.
    """
    by_service = group(endpoints)
    names = tuple(sorted({*services, *by_service, *EDGE_UPSTREAMS}))
    zones = {endpoint.zone for members in by_service.values() for endpoint in members if endpoint.zone}
    hashed = frozenset(HASHED)
    found = {(MESH, zone): assignments(names, by_service, zone, hashed) for zone in ("", *sorted(zones))}
    versions = sorted(predictors)
    by_upstream = {**by_service, **{predictor_cluster_name(name): members for name, members in predictors.items()}}
    upstreams = (*EDGE_UPSTREAMS, *(predictor_cluster_name(name) for name in versions))
    found[EDGE, ""] = assignments(upstreams, by_upstream, "", hashed)
    if edge.zone_local:
        found |= {(EDGE, zone): assignments(upstreams, by_upstream, zone, hashed) for zone in sorted(zones)}
    static = _static(edge, names, descriptors)
    if versions:
        static = {**static, EDGE: with_predictions(static[EDGE], edge, predictions, versions)}
    return with_epoch(Snapshot(version, static, found), revoked_at, rules)


def with_epoch(snapshot: Snapshot, revoked_at: int, rules: str) -> Snapshot:
    """The snapshot with another word on what the edge may remember; see `build_snapshot`."""
    edge = snapshot.static[EDGE]
    # To Envoy, 0 means that it was not told.
    filters = {**edge[EXTENSION], EPOCH: Piece(epoch(max(1, revoked_at), rules))}
    return replace(snapshot, static={**snapshot.static, EDGE: {**edge, EXTENSION: filters}})


# Only endpoints and predictions change from snapshot to snapshot; the rest is built once per configuration and set of
# names.
@lru_cache(maxsize=8)
def _static(edge: EdgeConfig, names: tuple[str, ...], descriptors: str) -> Mapping[str, Resources]:
    made = {EDGE: edge_resources(edge, descriptors), MESH: mesh_resources(names)}
    return {
        cluster: {kind: {name: Piece(found) for name, found in named.items()} for kind, named in resources.items()}
        for cluster, resources in made.items()
    }
