"""Everything that the public edge (Envoy) has: listeners, routes, clusters, secrets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.filters import ADMIN, OPENAI, http_filters, named_filters
from services.controlplane.policy.listeners import listener
from services.controlplane.policy.losses import ASKED_FOR
from services.controlplane.policy.names import (
    ADS,
    CLUSTER,
    CONTROLPLANE,
    EXTENSION,
    KEYED,
    LISTENER,
    PREDICTOR,
    ROUTES,
    SECRET,
    Resource,
    Resources,
)
from services.controlplane.policy.predictions import Prediction
from services.controlplane.policy.replies import local_replies
from services.controlplane.policy.routes import ADMIN_ROUTES, ROUTE_CONFIG, admin_routes, edge_routes
from services.controlplane.policy.upstreams import (
    COLLECTOR,
    collector_cluster,
    keyed_cluster,
    prediction_clusters,
    predictor_cluster,
    secrets,
    service_cluster,
)

EDGE_UPSTREAMS = ("edge-auth", "gateway", PREDICTOR, "ratelimit", "registry")
"""Services that the edge itself calls."""
CALLERS_OWN = ("x-weir-model", "x-weir-session", "x-weir-user")
"""Headers of ours that callers may send: which model a unary prediction is for, and by what they keep their arm."""
TRACE_HEADERS = ("b3", "baggage", "traceparent", "tracestate", "uber-trace-id", "x-client-trace-id", "x-request-id")
"""Headers by which a caller would choose the trace id, its sampling, or the id of his request in our records."""

_TYPE = "type.googleapis.com/envoy.extensions."
_ACCESS_FIELDS = {
    "event": "access",
    "time": "%START_TIME%",
    "request_id": "%RESP(X-REQUEST-ID)%",
    "trace_id": "%TRACE_ID%",
    "method": "%REQ(:METHOD)%",
    # Not the path, nor any header that a caller wrote: they could hold a user's words.
    "route": "%ROUTE_NAME%",
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


_SILENCED_TAGS = ("http.url", "user_agent", "grpc.authority", "grpc.path", "grpc.timeout", "grpc.message")
"""What Envoy would put into its spans of a caller's own words: paths with queries, headers, errors that quote them."""


def edge_resources(edge: EdgeConfig, descriptors: str) -> Resources:
    """All of Envoy's resources but the endpoints and the filter that is pushed by itself (`EPOCH`)."""
    clusters: dict[str, Resource] = {service: service_cluster(service, edge) for service in EDGE_UPSTREAMS}
    clusters[KEYED] = keyed_cluster(edge)
    clusters[PREDICTOR] = predictor_cluster(edge)
    if edge.trace_endpoint:
        clusters[COLLECTOR] = collector_cluster(edge)
    return {
        CLUSTER: clusters,
        SECRET: secrets(edge),
        LISTENER: {found["name"]: found for found in _listeners(edge)},
        EXTENSION: named_filters(edge, descriptors),
        ROUTES: {ROUTE_CONFIG: edge_routes(edge), ADMIN_ROUTES: admin_routes(edge)},
    }


def with_predictions(
    resources: Resources, edge: EdgeConfig, predictions: Sequence[Prediction], versions: Sequence[str]
) -> Resources:
    """The edge's resources with routes to predictors, and clusters of these versions."""
    clusters_of = prediction_clusters(edge)
    predictors = {cluster["name"]: cluster for version in versions for cluster in clusters_of(version)}
    routes = {ROUTE_CONFIG: edge_routes(edge, predictions)} if predictions else {}
    return {**resources, CLUSTER: {**resources[CLUSTER], **predictors}, ROUTES: {**resources[ROUTES], **routes}}


def _listeners(edge: EdgeConfig) -> Iterator[Resource]:
    """The public API over TLS, in plaintext only where a port is named for it, and the admin API apart from both."""
    public = "edge-https", "edge-http"
    https, http = (_manager(name, ROUTE_CONFIG, http_filters(edge, OPENAI), edge) for name in public)
    if edge.certificate is not None:
        yield listener("edge-https", edge.host, edge.https_port, edge, https, tls=True)
    if edge.http_port is not None:
        yield listener("edge-http", edge.host, edge.http_port, edge, http, tls=False)
    if edge.certificate is not None and edge.admin_port is not None:
        admin = _manager("edge-admin", ADMIN_ROUTES, http_filters(edge, ADMIN), edge)
        # Who operates the mesh gets in while the public has filled the edge.
        yield listener("edge-admin", edge.admin_host, edge.admin_port, edge, admin, tls=True, limited=False)


def _manager(name: str, routes: str, filters: Sequence[Resource], edge: EdgeConfig) -> Resource:
    manager: dict[str, object] = {
        "@type": _TYPE + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "AUTO",
        "rds": {"route_config_name": routes, "config_source": ADS},
        "http_filters": filters,
        "server_name": "weir",
        "use_remote_address": True,
        # Identity comes from authentication alone: nobody outside may bring the headers that say who he is. Nor those
        # that say which trace or log lines his request belongs to.
        "early_header_mutation_extensions": [_strip()],
        "generate_request_id": True,
        "always_set_request_id_in_response": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "max_request_headers_kb": edge.max_header_kib,
        "request_headers_timeout": f"{edge.header_seconds}s",
        "request_timeout": f"{edge.request_seconds}s",
        # A stream may be silent for longer than a connection without one.
        "stream_idle_timeout": f"{edge.stream_idle_seconds}s",
        "common_http_protocol_options": {
            "idle_timeout": f"{edge.idle_seconds}s",
            "max_headers_count": 100,
            # To some servers they are the same as dashes: two names for one header, of which only one was looked at.
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        # Old defaults (nginx until 1.29, ab); the answer's end is the connection's.
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": "edge"},
        "http2_protocol_options": {
            "max_concurrent_streams": edge.max_concurrent_streams,
            "initial_stream_window_size": 256 * 1024,
            "initial_connection_window_size": 1024 * 1024,
            "connection_keepalive": {"interval": "30s", "timeout": "10s"},
        },
        "local_reply_config": local_replies(edge),
    }
    manager["access_log"] = [*([_access_log()] if edge.access_log else []), _losses()]
    if edge.trace_endpoint:
        manager["tracing"] = _tracing(edge)
    return manager


def _strip() -> Resource:
    removed: list[Resource] = [
        *({"safe_regex": {"regex": regex}} for regex in all_but("x-weir-", CALLERS_OWN)),
        *({"prefix": prefix} for prefix in ("x-envoy-", "x-b3-")),
        *({"exact": name} for name in TRACE_HEADERS),
    ]
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": _TYPE + "http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [{"remove_on_match": {"key_matcher": matcher}} for matcher in removed],
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


def _losses() -> Resource:
    """Requests that count nowhere else are told to the control plane: see `losses.py`."""
    return {
        "name": "envoy.access_loggers.http_grpc",
        "filter": {"response_flag_filter": {"flags": [*ASKED_FOR]}},
        "typed_config": {
            "@type": _TYPE + "access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": "losses",
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": CONTROLPLANE}},
                "buffer_flush_interval": "0.25s",
            },
        },
    }


def _tracing(edge: EdgeConfig) -> Resource:
    """Every trace begins here, and the sampler alone decides.

    With a ratio of Envoy's own, unsampled requests would reach the gateway undecided, and it would decide again.
    """
    ratio = {
        "@type": _TYPE + "tracers.opentelemetry.samplers.v3.TraceIdRatioBasedSamplerConfig",
        "sampling_percentage": {"numerator": round(edge.trace_sample_ratio * 1_000_000), "denominator": "MILLION"},
    }
    sampler = {"name": "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based", "typed_config": ratio}
    return {
        "custom_tags": [{"tag": tag, "literal": {"value": "-"}} for tag in _SILENCED_TAGS],
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
                "sampler": sampler,
            },
        },
    }
