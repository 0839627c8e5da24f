"""Envoy's public listeners: an address, and its connections shared out among the addresses that they come from."""

from __future__ import annotations

from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.names import Resource
from services.controlplane.policy.upstreams import PUBLIC, sds

_TYPE = "type.googleapis.com/envoy.extensions."


def listener(
    name: str, host: str, port: int, edge: EdgeConfig, manager: Resource, *, tls: bool, limited: bool = True
) -> Resource:
    """A listener that hands connections to an HTTP connection manager.

    Envoy counts connections per filter chain and not per source. So there are `edge.source_parts` chains, a source's
    address decides (by its hash) which one it gets, and each has an equal part of the connections for itself: who fills
    his own locks nobody out of the others. The chains are otherwise the same.

    :param limited: it counts towards, and is refused at, the edge's limit over all listeners.
    """
    names = [f"{name}-{number}" for number in range(edge.source_parts)]
    most = max(1, edge.max_connections // edge.source_parts)
    found: dict[str, object] = {
        "name": name,
        "address": {"socket_address": {"address": host, "port_value": port}},
        "per_connection_buffer_limit_bytes": edge.buffer_bytes,
        "filter_chains": [_chain(part, most, edge, manager, tls=tls) for part in names],
        "filter_chain_matcher": {"matcher_list": {"matchers": _by_source(names)}},
    }
    if not limited:
        found["ignore_global_conn_limit"] = True
    return found


def _chain(name: str, most: int, edge: EdgeConfig, manager: Resource, *, tls: bool) -> Resource:
    limit = {
        "name": "envoy.filters.network.connection_limit",
        "typed_config": {
            "@type": _TYPE + "filters.network.connection_limit.v3.ConnectionLimit",
            "stat_prefix": name,
            "max_connections": most,
        },
    }
    http = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    chain: dict[str, object] = {"name": name, "filters": [limit, http]}
    if tls:
        chain["transport_socket"] = {"name": "tls", "typed_config": _public_tls()}
        # A peer that never finishes the handshake must not hold a connection.
        chain["transport_socket_connect_timeout"] = f"{edge.header_seconds}s"
    return chain


def _by_source(names: list[str]) -> list[Resource]:
    """The matcher of number n takes hashes whose remainder is n or more; the first that takes one wins."""
    source = {
        "name": "source",
        "typed_config": {"@type": _TYPE + "matching.common_inputs.network.v3.SourceIPInput"},
    }

    def takes(number: int) -> Resource:
        kind = _TYPE + "matching.input_matchers.consistent_hashing.v3.ConsistentHashing"
        hashed = {
            "name": "envoy.matching.matchers.consistent_hashing",
            "typed_config": {"@type": kind, "threshold": number, "modulo": len(names)},
        }
        chosen = {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": names[number]}
        return {
            "predicate": {"single_predicate": {"input": source, "custom_match": hashed}},
            "on_match": {"action": {"name": names[number], "typed_config": chosen}},
        }

    return [takes(number) for number in reversed(range(len(names)))]


def _public_tls() -> Resource:
    return {
        "@type": _TYPE + "transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificate_sds_secret_configs": [sds(PUBLIC)],
        },
    }
