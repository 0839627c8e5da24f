"""Registry messages → endpoints of the core; resources as data → protobuf `Any`s with stable versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Every message that a resource may hold must be known to the JSON parser; importing a module makes it known.
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.config.trace.v3 import opentelemetry_pb2 as _opentelemetry
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2 as _cel
from envoy.extensions.access_loggers.grpc.v3 import als_pb2 as _als
from envoy.extensions.access_loggers.stream.v3 import stream_pb2 as _stream
from envoy.extensions.clusters.aggregate.v3 import cluster_pb2 as _aggregate
from envoy.extensions.filters.http.cors.v3 import cors_pb2 as _cors
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2 as _ext_authz
from envoy.extensions.filters.http.grpc_json_transcoder.v3 import transcoder_pb2 as _transcoder
from envoy.extensions.filters.http.grpc_web.v3 import grpc_web_pb2 as _grpc_web
from envoy.extensions.filters.http.local_ratelimit.v3 import local_rate_limit_pb2 as _local_rate_limit
from envoy.extensions.filters.http.lua.v3 import lua_pb2 as _lua
from envoy.extensions.filters.http.ratelimit.v3 import rate_limit_pb2 as _rate_limit
from envoy.extensions.filters.http.router.v3 import router_pb2 as _router
from envoy.extensions.filters.http.set_metadata.v3 import set_metadata_pb2 as _set_metadata
from envoy.extensions.filters.network.connection_limit.v3 import connection_limit_pb2 as _connection_limit
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as _manager
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2 as _header_mutation
from envoy.extensions.matching.common_inputs.network.v3 import network_inputs_pb2 as _network_inputs
from envoy.extensions.matching.input_matchers.consistent_hashing.v3 import consistent_hashing_pb2 as _hashing
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2 as _previous_hosts
from envoy.extensions.tracers.opentelemetry.samplers.v3 import trace_id_ratio_based_sampler_pb2 as _ratio_based
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2 as _tls
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2 as _http_options
from envoy.type.matcher.v3 import http_inputs_pb2 as _http_inputs
from google.protobuf import any_pb2, json_format
from google.protobuf import wrappers_pb2 as _wrappers
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2

from libs.config.addresses import split
from services.controlplane.policy.consistency import clusters_named
from services.controlplane.policy.endpoints import Endpoint
from services.controlplane.policy.names import (
    CLUSTER,
    EDGE,
    ENDPOINTS,
    EXTENSION,
    LISTENER,
    MESH,
    PREDICTOR,
    ROUTES,
    SECRET,
    Resource,
    Resources,
    dns_form,
)
from services.controlplane.policy.snapshot import Snapshot
from services.controlplane.policy.subscription import Offer
from services.controlplane.route_encoding import route_configuration

KNOWN_EXTENSIONS = (
    _aggregate,
    _als,
    _cel,
    _connection_limit,
    _cors,
    _ext_authz,
    _grpc_web,
    _hashing,
    _header_mutation,
    _http_inputs,
    _http_options,
    _local_rate_limit,
    _lua,
    _manager,
    _network_inputs,
    _opentelemetry,
    _previous_hosts,
    _rate_limit,
    _ratio_based,
    _router,
    _set_metadata,
    _stream,
    _tls,
    _transcoder,
    _wrappers,
)
"""Modules imported for their messages."""

_MESSAGES: dict[str, type[Message]] = {
    CLUSTER: cluster_pb2.Cluster,
    ENDPOINTS: endpoint_pb2.ClusterLoadAssignment,
    EXTENSION: extension_pb2.TypedExtensionConfig,
    LISTENER: listener_pb2.Listener,
    ROUTES: route_pb2.RouteConfiguration,
    SECRET: secret_pb2.Secret,
}
Versions = Mapping[str, tuple[str, str]]
""""cluster/zone/type" → (version, SHA-256 of the content): what survives a restart."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A snapshot as it goes out."""

    revision: int
    offers: Mapping[tuple[str, str], Mapping[str, Offer]]
    """(node cluster, zone) → type → offer."""
    source: Mapping[tuple[str, str], Resources]
    """What the offers were made of."""
    versions: Versions

    def offers_for(self, cluster: str, zone: str) -> Mapping[str, Offer]:
        """What a client of this node cluster in this zone gets.

        :raises KeyError: an unknown node cluster.
        """
        own = self.offers.get((cluster, zone))
        return self.offers[cluster, ""] if own is None else own


EMPTY = Encoded(0, {}, {}, {})
"""Before the first snapshot."""


def endpoints_of(messages: Iterable[registry_pb2.Endpoint]) -> tuple[list[Endpoint], list[str]]:
    """The core's endpoints, and the names of those that have no address which Envoy takes: one bad entry must not keep
    the others from being served."""
    found: list[Endpoint] = []
    bad: list[str] = []
    for message in messages:
        try:
            host, port = split(message.address)
        except ValueError:
            host, port = "", 0
        if not host or not message.service:
            bad.append(f"{message.service}/{message.instance}")
            continue
        started = message.started_at.seconds + message.started_at.nanos / 1e9
        service = dns_form(message.service)
        versions = tuple(sorted(set(message.model_versions))) if service == PREDICTOR else ()
        found.append(Endpoint(service, message.instance, host, port, message.zone, float(started), versions))
    return found, bad


def encode(snapshot: Snapshot, previous: Encoded = EMPTY, saved: Versions | None = None) -> Encoded:
    """The snapshot as protobuf. What equals a resource of `previous` stays the same object, and a type without
    changes keeps its version; after a restart `saved` says which version a content had.

    :raises json_format.ParseError: a resource does not fit its message.
    """
    known: Versions = previous.versions or saved or {}
    offers: dict[tuple[str, str], dict[str, Offer]] = {}
    source: dict[tuple[str, str], Resources] = {}
    versions: dict[str, tuple[str, str]] = {}
    memo: dict[int, any_pb2.Any] = {}
    for cluster in (MESH, EDGE):
        for zone in sorted({*snapshot.zones(cluster), ""}):
            resources = snapshot.resources(cluster, zone)
            source[cluster, zone] = resources
            before = previous.source.get((cluster, zone), {})
            old = previous.offers.get((cluster, zone), {})
            offers[cluster, zone] = {}
            for kind, named in resources.items():
                key = f"{cluster}/{zone}/{kind.rsplit('.', 1)[-1]}"
                encoded = _encode_type(kind, named, before.get(kind, {}), old.get(kind), memo)
                if kind in old and _same(encoded, old[kind].resources):
                    offer, digest = old[kind], known[key][1]
                else:
                    digest = _digest(encoded)
                    same = known.get(key)
                    kept = same is not None and same[1] == digest
                    version = same[0] if same is not None and kept else _version(snapshot, same)
                    offer = Offer(version, encoded, _needs(kind, named, encoded, old.get(kind)))
                offers[cluster, zone][kind] = offer
                versions[key] = (offer.version, digest)
    return Encoded(snapshot.version, offers, source, versions)


def _needs(
    kind: str, named: Mapping[str, Resource], encoded: Mapping[str, any_pb2.Any], old: Offer | None
) -> dict[str, frozenset[str]]:
    if kind not in (LISTENER, ROUTES):
        return {}
    return {
        name: old.needs[name]
        if old is not None and old.resources.get(name) is encoded[name]
        else clusters_named(kind, resource)
        for name, resource in named.items()
    }


def _version(snapshot: Snapshot, before: tuple[str, str] | None) -> str:
    """The registry's revision. An endpoint that is given up changes the content at one that has been served."""
    revision, _, changes = (before or ("", ""))[0].partition(".")
    return f"{revision}.{int(changes or 0) + 1}" if revision == str(snapshot.version) else str(snapshot.version)


def _encode_type(
    kind: str,
    named: Mapping[str, Resource],
    before: Mapping[str, Resource],
    old: Offer | None,
    memo: dict[int, any_pb2.Any],
) -> dict[str, any_pb2.Any]:
    found: dict[str, any_pb2.Any] = {}
    for name, resource in named.items():
        if old is not None and before.get(name) == resource:
            found[name] = old.resources[name]
            continue
        # Zones share resources: the same data need not be parsed for each of them.
        if id(resource) not in memo:
            memo[id(resource)] = _pack(kind, resource)
        packed, known = memo[id(resource)], None if old is None else old.resources.get(name)
        # Other data may well say the same: what clients have is not sent again.
        found[name] = known if known is not None and known.value == packed.value else packed
    return found


def _same(new: Mapping[str, any_pb2.Any], old: Mapping[str, any_pb2.Any]) -> bool:
    return new.keys() == old.keys() and all(value is old[name] for name, value in new.items())


def _pack(kind: str, resource: Resource) -> any_pb2.Any:
    if kind == ROUTES:
        return any_pb2.Any(type_url=kind, value=route_configuration(resource))
    message = _listener(resource) if kind == LISTENER else json_format.ParseDict(dict(resource), _MESSAGES[kind]())
    return any_pb2.Any(type_url=kind, value=message.SerializeToString(deterministic=True))


def _listener(resource: Resource) -> Message:
    """The chains of a listener are alike but for their names: what they share, its whole HTTP, is parsed once."""
    message = listener_pb2.Listener()
    json_format.ParseDict({**resource, "filter_chains": []}, message)
    parsed: dict[int, Message] = {}
    for chain in resource.get("filter_chains", ()):
        made = message.filter_chains.add()
        json_format.ParseDict({**chain, "filters": []}, made)
        for each in chain["filters"]:
            own = made.filters.add()
            if (known := parsed.get(id(each["typed_config"]))) is None:
                parsed[id(each["typed_config"])] = json_format.ParseDict(each, own)
            else:
                own.CopyFrom(known)
    return message


def _digest(encoded: Mapping[str, any_pb2.Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(encoded):
        digest.update(name.encode() + b"\0" + hashlib.sha256(encoded[name].value).digest())
    return digest.hexdigest()
