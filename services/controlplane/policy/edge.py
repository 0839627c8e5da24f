"""Everything that the public edge (Envoy) has: listeners, routes, clusters, secrets."""

from __future__ import annotations

from collections.abc import Sequence

from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.filters import http_filters
from services.controlplane.policy.names import ADS, CLUSTER, LISTENER, ROUTES, SECRET, Resource, Resources
from services.controlplane.policy.predictions import Prediction
from services.controlplane.policy.replies import local_replies
from services.controlplane.policy.routes import ROUTE_CONFIG, edge_routes
from services.controlplane.policy.upstreams import (
    COLLECTOR,
    PUBLIC,
    collector_cluster,
    predictor_cluster_name,
    predictor_clusters,
    sds,
    secrets,
    service_cluster,
)

EDGE_UPSTREAMS = ("edge-auth", "gateway", "ratelimit", "registry")
"""Services that the edge itself calls."""
CALLERS_OWN = ("x-weir-model", "x-weir-session", "x-weir-user")
"""Headers of ours that callers may send: which model a unary prediction is for, and by what they keep their arm."""

_TYPE = "type.googleapis.com/envoy.extensions."
_ACCESS_FIELDS = {
    "event": "access",
    "time": "%START_TIME%",
    "request_id": "%RESP(X-REQUEST-ID)%",
    "trace": "%REQ(TRACEPARENT)%",
    "method": "%REQ(:METHOD)%",
    # Without the query: it could hold what a user wrote.
    "path": "%PATH(NQ:ORIG)%",
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "reason": "%RESP(X-WEIR-REASON)%",
    "flags": "%RESPONSE_FLAGS%",
    "tenant": "%REQ(X-WEIR-TENANT)%",
    "plan": "%REQ(X-WEIR-PLAN)%",
    "key_id": "%REQ(X-WEIR-KEY-ID)%",
    "duration_ms": "%DURATION%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "upstream": "%UPSTREAM_CLUSTER%",
    "upstream_host": "%UPSTREAM_HOST%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
}


def edge_resources(edge: EdgeConfig, descriptors: str) -> Resources:
    """All of Envoy's resources but the endpoints."""
    clusters: dict[str, Resource] = {service: service_cluster(service, edge) for service in EDGE_UPSTREAMS}
    if edge.trace_endpoint:
        clusters[COLLECTOR] = collector_cluster(edge)
    listeners = {"edge-http": _listener("edge-http", edge.http_port, edge, descriptors)}
    if edge.certificate is not None:
        listeners["edge-https"] = _listener("edge-https", edge.https_port, edge, descriptors, tls=True)
    return {
        CLUSTER: clusters,
        SECRET: secrets(edge),
        LISTENER: listeners,
        ROUTES: {ROUTE_CONFIG: edge_routes(edge)},
    }


def with_predictions(
    resources: Resources, edge: EdgeConfig, predictions: Sequence[Prediction], versions: Sequence[str]
) -> Resources:
    """The edge's resources with routes to predictors, and clusters of these versions."""
    cluster_of = predictor_clusters(edge)
    predictors = {predictor_cluster_name(version): cluster_of(version) for version in versions}
    routes = {ROUTE_CONFIG: edge_routes(edge, predictions)} if predictions else resources[ROUTES]
    return {**resources, CLUSTER: {**resources[CLUSTER], **predictors}, ROUTES: routes}


def _listener(name: str, port: int, edge: EdgeConfig, descriptors: str, *, tls: bool = False) -> Resource:
    limit = {
        "name": "envoy.filters.network.connection_limit",
        "typed_config": {
            "@type": _TYPE + "filters.network.connection_limit.v3.ConnectionLimit",
            "stat_prefix": name,
            "max_connections": edge.max_connections,
        },
    }
    manager = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": _manager(name, edge, descriptors),
    }
    chain: dict[str, object] = {"filters": [limit, manager]}
    if tls:
        chain["transport_socket"] = {"name": "tls", "typed_config": _public_tls()}
        # A peer that never finishes the handshake must not hold a connection.
        chain["transport_socket_connect_timeout"] = "10s"
    return {
        "name": name,
        "address": {"socket_address": {"address": edge.host, "port_value": port}},
        "per_connection_buffer_limit_bytes": edge.buffer_bytes,
        "filter_chains": [chain],
    }


def _manager(name: str, edge: EdgeConfig, descriptors: str) -> Resource:
    manager: dict[str, object] = {
        "@type": _TYPE + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "AUTO",
        "rds": {"route_config_name": ROUTE_CONFIG, "config_source": ADS},
        "http_filters": http_filters(edge, descriptors),
        "server_name": "weir",
        "use_remote_address": True,
        # Identity comes from authentication alone: nobody outside may bring the headers that say who he is.
        "early_header_mutation_extensions": [_strip()],
        "generate_request_id": True,
        "always_set_request_id_in_response": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "max_request_headers_kb": edge.max_header_kib,
        "request_headers_timeout": "10s",
        "stream_idle_timeout": f"{edge.idle_seconds}s",
        "common_http_protocol_options": {
            "idle_timeout": f"{edge.idle_seconds}s",
            "max_headers_count": 100,
            "headers_with_underscores_action": "ALLOW",
        },
        "http2_protocol_options": {
            "max_concurrent_streams": edge.max_concurrent_streams,
            "initial_stream_window_size": 256 * 1024,
            "initial_connection_window_size": 1024 * 1024,
            "connection_keepalive": {"interval": "30s", "timeout": "10s"},
        },
        "local_reply_config": local_replies(edge.retry_after_seconds),
    }
    if edge.access_log:
        manager["access_log"] = [_access_log()]
    if edge.trace_endpoint:
        manager["tracing"] = _tracing(edge)
    return manager


def _strip() -> Resource:
    removed: list[Resource] = [{"safe_regex": {"regex": regex}} for regex in all_but("x-weir-", CALLERS_OWN)]
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": _TYPE + "http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [
                {"remove_on_match": {"key_matcher": matcher}} for matcher in (*removed, {"prefix": "x-envoy-"})
            ],
        },
    }


def all_but(prefix: str, names: Sequence[str]) -> list[str]:
    """Regular expressions that together match whatever begins with `prefix`, except these names.

    RE2 knows no look-ahead, and Envoy refuses programs of more than 100 instructions; so there is one for all that
    differs from the names in the first letter, and one for each such letter. The names consist of letters.
    """
    rests = [name.removeprefix(prefix) for name in names]
    firsts = sorted({rest[0] for rest in rests})
    each = [prefix + first + _unlike([rest[1:] for rest in rests if rest[0] == first]) for first in firsts]
    return [f"{prefix}(?:[^{''.join(firsts)}].*)?", *each]


def _unlike(rests: Sequence[str]) -> str:
    """What is none of these: it ends where none does, goes on where none does, or shares a letter and differs later."""
    firsts = sorted({rest[0] for rest in rests if rest})
    if not firsts:
        return ".+"
    ways = [] if "" in rests else [""]
    ways.append(f"[^{''.join(firsts)}].*")
    ways += [first + _unlike([rest[1:] for rest in rests if rest[:1] == first]) for first in firsts]
    return f"(?:{'|'.join(ways)})"


def _access_log() -> Resource:
    return {
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": _TYPE + "access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"json_format": _ACCESS_FIELDS},
        },
    }


def _tracing(edge: EdgeConfig) -> Resource:
    """A sampled `traceparent` from outside stays sampled, whatever the ratio for requests that bring none.

    Envoy's own ratio would overrule the caller's decision, so it is 100% and the tracer's samplers decide.
    """
    ratio = {
        "@type": _TYPE + "tracers.opentelemetry.samplers.v3.TraceIdRatioBasedSamplerConfig",
        "sampling_percentage": {"numerator": round(edge.trace_sample_ratio * 1_000_000), "denominator": "MILLION"},
    }
    by_parent = {
        "@type": _TYPE + "tracers.opentelemetry.samplers.v3.ParentBasedSamplerConfig",
        "wrapped_sampler": {
            "name": "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
            "typed_config": ratio,
        },
    }
    return {
        "random_sampling": {"value": 100},
        "client_sampling": {"value": 100},
        "overall_sampling": {"value": 100},
        "spawn_upstream_span": False,
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "grpc_service": {"envoy_grpc": {"cluster_name": COLLECTOR}, "timeout": "1s"},
                "service_name": "envoy",
                "sampler": {"name": "envoy.tracers.opentelemetry.samplers.parent_based", "typed_config": by_parent},
            },
        },
    }


def _public_tls() -> Resource:
    return {
        "@type": _TYPE + "transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificate_sds_secret_configs": [sds(PUBLIC)],
        },
    }
