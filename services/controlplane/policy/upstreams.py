"""Envoy's clusters and secrets: HTTP/2 with mTLS to services, endpoints over ADS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from libs.authority.identity import dns_name
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.names import ADS, KEYED, PREDICTOR, Piece, Resource, shared

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
_AGGREGATE = "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig"
_NO_PANIC: Resource = {"healthy_panic_threshold": {"value": 0}}
_BUDGET: Resource = {"retry_budget": {"budget_percent": {"value": 20}, "min_retry_concurrency": 16}}
"""Of the requests in flight, as many per cent may be repetitions, and so many in any case."""
_FAILURES = 2
"""After so many a predictor is left out for 2 s: a request that met them is sent once more, to somebody else."""


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


def prediction_cluster_name(model_version: str) -> str:
    """The cluster that routes name: the predictors of a version, and while none of them answers any other."""
    return f"prediction/{model_version}"


@lru_cache(maxsize=8)
def prediction_clusters(edge: EdgeConfig) -> Callable[[str], Sequence[Piece]]:
    """What gives the clusters of a version, and the same ones every time."""

    @shared
    def of_its_own(model_version: str) -> Piece:
        return Piece(predictor_cluster(edge, name=predictor_cluster_name(model_version)))

    @shared
    def with_others(model_version: str) -> Piece:
        return Piece(_in_this_order(prediction_cluster_name(model_version), model_version))

    return lambda model_version: (of_its_own(model_version), with_others(model_version))


def predictor_cluster(edge: EdgeConfig, *, name: str = PREDICTOR) -> Resource:
    """Predictors: of a version, or all of them.

    Predictions change nothing, so they are repeated, within a budget. Who cannot be connected to is left out at once,
    be it the last: a panic, which sends requests to those known to be dead, would hide that a version has nobody left.
    """
    cluster = service_cluster(PREDICTOR, edge, name=name)
    outliers = {
        **cluster["outlier_detection"],
        "consecutive_local_origin_failure": _FAILURES,
        "max_ejection_percent": 100,
    }
    (threshold,) = cluster["circuit_breakers"]["thresholds"]
    return {
        **cluster,
        # Whoever was left out comes back to be tried, and must be out at once if he is dead still: by default Envoy
        # lets a second pass since he came back, and sends him all that is meant for the version meanwhile.
        "common_lb_config": {**_NO_PANIC, "update_merge_window": "0s"},
        "outlier_detection": outliers,
        "circuit_breakers": {"thresholds": [{**threshold, **_BUDGET}]},
    }


def _in_this_order(name: str, model_version: str) -> Resource:
    """An aggregate cluster (`envoy.extensions.clusters.aggregate.v3.ClusterConfig`): the first that has anybody."""
    clusters = [predictor_cluster_name(model_version), PREDICTOR]
    return {
        "name": name,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {"@type": _AGGREGATE, "clusters": clusters},
        },
        "common_lb_config": _NO_PANIC,
        # Retries are counted here, everything else where the request goes.
        "circuit_breakers": {"thresholds": [{"max_requests": 2**32 - 1, "max_pending_requests": 2**32 - 1, **_BUDGET}]},
    }


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


def keyed_cluster(edge: EdgeConfig) -> Resource:
    """The gateways once more, for requests with an idempotency key: a key is one gateway's while that lives."""
    return {
        **service_cluster("gateway", edge),
        "name": KEYED,
        "lb_policy": "RING_HASH",
        "ring_hash_lb_config": {"minimum_ring_size": 1024, "hash_function": "XX_HASH"},
    }


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
