"""Envoy's clusters and secrets: HTTP/2 with mTLS to services, endpoints over ADS."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from libs.authority.identity import dns_name
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.names import ADS, PREDICTOR, Piece, Resource, shared

IDENTITY = "edge-identity"
"""Secret: Envoy's workload certificate."""
TRUST = "mesh-trust"
"""Secret: the CA of the mesh."""
PUBLIC = "edge-public"
"""Secret: the certificate of the public listener."""
COLLECTOR = "trace-collector"
"""Cluster of the OTLP collector."""

_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def secrets(edge: EdgeConfig) -> dict[str, Resource]:
    """Secrets name files that Envoy itself reads and watches: keys never travel over ADS, and a renewed file is taken
    up without a restart."""
    found: dict[str, Resource] = {}
    if edge.identity is not None:
        found[IDENTITY] = _certificate(IDENTITY, edge.identity.cert, edge.identity.key)
        found[TRUST] = {
            "name": TRUST,
            "validation_context": {
                "trusted_ca": {"filename": edge.identity.ca},
                "watched_directory": {"path": _directory(edge.identity.ca)},
            },
        }
    if edge.certificate is not None:
        found[PUBLIC] = _certificate(PUBLIC, edge.certificate.cert, edge.certificate.key)
    return found


def predictor_cluster_name(model_version: str) -> str:
    """The cluster, and the endpoint set, of the predictors of a version."""
    return f"{PREDICTOR}/{model_version}"


@lru_cache(maxsize=8)
def predictor_clusters(edge: EdgeConfig) -> Callable[[str], Piece]:
    """What gives the cluster of a version's predictors, and the same one every time."""

    @shared
    def cluster_of(model_version: str) -> Piece:
        return Piece(service_cluster(PREDICTOR, edge, name=predictor_cluster_name(model_version)))

    return cluster_of


def service_cluster(service: str, edge: EdgeConfig, *, name: str = "") -> Resource:
    """A service of the mesh as Envoy reaches it; `name` where it is not that of the service."""
    cluster: dict[str, object] = {
        "name": name or service,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": ADS, "service_name": name or service},
        # Streams live long and differ in length: the replica with the fewest is the better choice.
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": edge.buffer_bytes,
        "ignore_health_on_host_removal": True,
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_requests": edge.upstream_max_requests,
                    "max_pending_requests": edge.upstream_max_requests,
                    "max_connections": 1024,
                    "max_retries": 64,
                }
            ]
        },
        # A 503 or 429 of a healthy service is an answer, not an illness: eject only what cannot be connected to.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 3,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "interval": "1s",
            "base_ejection_time": "2s",
            "max_ejection_time": "10s",
            "max_ejection_percent": 50,
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _http2()},
    }
    if edge.identity is not None:
        cluster["transport_socket"] = {
            "name": "tls",
            "typed_config": {"@type": _TLS, "sni": dns_name(service), "common_tls_context": _mutual(service)},
        }
    return cluster


def collector_cluster(edge: EdgeConfig) -> Resource:
    """The OTLP collector that the edge's spans go to."""
    host, _, port = edge.trace_endpoint.rpartition(":")
    address = {"socket_address": {"address": host, "port_value": int(port)}}
    cluster: dict[str, object] = {
        "name": COLLECTOR,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": COLLECTOR,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _http2()},
    }
    if edge.identity is not None:
        cluster["transport_socket"] = {
            "name": "tls",
            "typed_config": {"@type": _TLS, "sni": dns_name("collector"), "common_tls_context": _mutual("collector")},
        }
    return cluster


def sds(name: str) -> Resource:
    """A reference to a secret over ADS."""
    return {"name": name, "sds_config": ADS}


def _mutual(service: str) -> Resource:
    return {
        "tls_certificate_sds_secret_configs": [sds(IDENTITY)],
        "combined_validation_context": {
            "default_validation_context": {
                "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": dns_name(service)}}]
            },
            "validation_context_sds_secret_config": sds(TRUST),
        },
    }


def _certificate(name: str, cert: str, key: str) -> Resource:
    return {
        "name": name,
        "tls_certificate": {
            "certificate_chain": {"filename": cert},
            "private_key": {"filename": key},
            "watched_directory": {"path": _directory(cert)},
        },
    }


def _directory(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _http2() -> Resource:
    http2 = {
        # A stream's window bounds what a slow client can hold in Envoy; the connection's must not let one block others.
        "initial_stream_window_size": 256 * 1024,
        "initial_connection_window_size": 16 * 1024 * 1024,
        "connection_keepalive": {"interval": "10s", "timeout": "5s"},
    }
    return {"@type": _HTTP, "explicit_http_config": {"http2_protocol_options": http2}}
