"""The public routes: path → service."""

from __future__ import annotations

from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.filters import AUTH, RATE_LIMIT, TRANSCODER
from services.controlplane.policy.names import Resource

ROUTE_CONFIG = "edge"

_OFF = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
_OPEN = {AUTH: _OFF, TRANSCODER: _OFF}
_TENANT = {"request_headers": {"header_name": "x-weir-tenant", "descriptor_key": "tenant"}}


def edge_routes(edge: EdgeConfig) -> Resource:
    """The route configuration of both listeners."""
    spending = [
        _route({"path": path}, "gateway", edge, limited=True)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
    ]
    return {
        "name": ROUTE_CONFIG,
        "virtual_hosts": [
            {
                "name": "public",
                "domains": ["*"],
                # Credentials end here; the mesh knows tenants.
                "request_headers_to_remove": ["authorization", "api-key", "x-api-key"],
                "routes": [
                    {
                        "match": {"path": "/healthz"},
                        "direct_response": {"status": 200, "body": {"inline_string": "ok\n"}},
                        "typed_per_filter_config": _OPEN,
                    },
                    *spending,
                    _route({"prefix": "/v1/"}, "gateway", edge),
                    _route({"prefix": "/weir.inference.v1.InferenceService/"}, "gateway", edge, limited=True),
                    _route({"prefix": "/inference.GRPCInferenceService/"}, "gateway", edge, limited=True),
                    _route({"prefix": "/weir.registry.v1.RegistryService/"}, "registry", edge),
                    _route({"prefix": "/admin/v1/"}, "registry", edge),
                    {
                        # Answered without asking edge-auth: strangers get nothing and cost nothing.
                        "match": {"prefix": "/"},
                        "direct_response": {"status": 404},
                        "typed_per_filter_config": _OPEN,
                    },
                ],
            }
        ],
    }


def _route(match: Resource, cluster: str, edge: EdgeConfig, *, limited: bool = False) -> Resource:
    longest = f"{edge.max_stream_seconds}s"
    action: dict[str, object] = {
        "cluster": cluster,
        # Streams end by their own deadline, not by a response time-out.
        "timeout": "0s",
        "idle_timeout": f"{edge.idle_seconds}s",
        "max_stream_duration": {"max_stream_duration": longest, "grpc_timeout_header_max": longest},
        # Only what provably did not begin may be sent again.
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream",
            "num_retries": 2,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": "type.googleapis.com/"
                        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                    },
                }
            ],
            "host_selection_retry_max_attempts": 3,
            "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.250s"},
        },
    }
    route: dict[str, object] = {"match": match, "route": action}
    if limited:
        # Only here, not under `route.rate_limits`, does Envoy honour a descriptor's own addend.
        route["typed_per_filter_config"] = {
            RATE_LIMIT: {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
                "rate_limits": [{"actions": [_TENANT]}, _token_limit()],
            }
        }
    return route


def _token_limit() -> Resource:
    """A descriptor of its own for tokens that costs as many as edge-auth estimates; absent without an estimate."""
    return {
        "actions": [_TENANT, {"generic_key": {"descriptor_key": "unit", "descriptor_value": "tokens"}}],
        "hits_addend": {"format": "%REQ(x-weir-estimated-tokens)%"},
    }
