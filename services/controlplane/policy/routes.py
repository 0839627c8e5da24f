"""The edge's routes: path → service. The admin API has routes of its own, which the public listeners do not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from libs.routing import BUCKETS
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.filters import AUTH, RATE_LIMIT, TRANSCODER
from services.controlplane.policy.names import Piece, Resource, shared
from services.controlplane.policy.predictions import Prediction, Share
from services.controlplane.policy.upstreams import predictor_cluster_name

ROUTE_CONFIG = "edge"
ADMIN_ROUTES = "edge-admin"
MODEL_HEADER = "x-weir-model"
"""Names the alias or pinned version of a unary prediction; the caller sends it."""
BUCKET_HEADER = "x-weir-bucket"
"""The caller's bucket in 0 … 9999; edge-auth sets it."""
ROLLOUT_HEADER = "x-weir-rollout"
"""The rollout whose bucket that is; edge-auth sets it for callers that take part in one."""
VERSION_HEADER = "x-weir-model-version"
"""The version that was chosen, for predictors that have several."""
ARM_HEADER = "x-weir-arm"
"""The rollout's arm that was chosen."""
ASK_HEADER = "x-weir-ask"
"""The tenant about whom the limiter is to be asked: set by edge-auth, or by `edge.lua`, which leaves it out while the
limiter lets it."""

# Only what provably did not begin may be sent again.
_RETRY = {
    "retry_on": "connect-failure,refused-stream",
    "num_retries": 2,
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            },
        }
    ],
    "host_selection_retry_max_attempts": 3,
    "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.250s"},
}
_PREDICT = "/inference.GRPCInferenceService/"
_OFF = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
_OPEN = {AUTH: _OFF, TRANSCODER: _OFF}
# Answered without asking edge-auth: strangers get nothing and cost nothing.
_NOTHING = {
    "name": "/",
    "match": {"prefix": "/"},
    "direct_response": {"status": 404},
    "typed_per_filter_config": _OPEN,
}
_TENANT = {"request_headers": {"header_name": ASK_HEADER, "descriptor_key": "tenant"}}
"""Without the header there is no descriptor, and the limiter is not asked."""


def edge_routes(edge: EdgeConfig, predictions: Sequence[Prediction] = ()) -> Resource:
    """The route configuration of the public listeners.

    Envoy tries the routes of a list one by one (half a microsecond each), so those of the many models are found by the
    model's name in a table instead.
    """
    if not predictions:
        return _configuration(ROUTE_CONFIG, {"routes": _fixed_routes(edge)})
    routes_of = prediction_routes(edge)
    by_model = {prediction.model: routes_of(prediction) for prediction in predictions}
    return _configuration(ROUTE_CONFIG, {"matcher": _by_model(by_model, _otherwise(edge))})


def admin_routes(edge: EdgeConfig) -> Resource:
    """The route configuration of the admin listener."""
    paths = ("/weir.registry.v1.RegistryService/", "/admin/v1/")
    routes = [*(_route({"prefix": path}, "registry", edge) for path in paths), _NOTHING]
    return _configuration(ADMIN_ROUTES, {"routes": routes})


def _configuration(name: str, routes: Resource) -> Resource:
    host = {
        "name": name,
        "domains": ["*"],
        # Credentials end here; the mesh knows tenants. So does what the edge tells itself.
        "request_headers_to_remove": ["authorization", "api-key", "x-api-key", ASK_HEADER, "x-weir-refused"],
        "retry_policy": _RETRY,
        **routes,
    }
    return {"name": name, "virtual_hosts": [host]}


def _by_model(by_model: Resource, otherwise: Piece) -> Resource:
    """First by path, then by model, where there is a predictor for it."""
    models = {
        "matcher_tree": {"input": _header_input(MODEL_HEADER), "exact_match_map": {"map": by_model}},
        "on_no_match": otherwise,
    }
    return {
        "matcher_tree": {
            "input": _header_input(":path"),
            "prefix_match_map": {"map": {_PREDICT: {"matcher": models}}},
        },
        "on_no_match": otherwise,
    }


@lru_cache(maxsize=8)
def _otherwise(edge: EdgeConfig) -> Piece:
    return Piece(action=_actions(_fixed_routes(edge)))


def _header_input(name: str) -> Resource:
    kind = "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
    return {"name": name, "typed_config": {"@type": kind, "header_name": name}}


def _actions(routes: Sequence[Resource]) -> Resource:
    kind = "type.googleapis.com/envoy.config.route.v3.RouteList"
    return {"name": "routes", "typed_config": {"@type": kind, "routes": [*routes]}}


def _fixed_routes(edge: EdgeConfig) -> list[Resource]:
    """Those that depend on the configuration alone."""
    return [
        {
            "name": "/healthz",
            "match": {"path": "/healthz"},
            "direct_response": {"status": 200, "body": {"inline_string": "ok\n"}},
            "typed_per_filter_config": _OPEN,
        },
        _route({"path": "/v1/chat/completions"}, "gateway", edge, limited=True),
        _route({"path": "/v1/completions"}, "gateway", edge, limited=True),
        _route({"path": "/v1/embeddings"}, "gateway", edge, limited=True),
        _route({"prefix": "/v1/"}, "gateway", edge),
        _route({"prefix": "/weir.inference.v1.InferenceService/"}, "gateway", edge, limited=True),
        _route({"prefix": _PREDICT}, "gateway", edge, limited=True),
        _NOTHING,
    ]


@lru_cache(maxsize=8)
def prediction_routes(edge: EdgeConfig) -> Callable[[Prediction], Piece]:
    """What gives the routes of a name (an `OnMatch`), and the same ones while nothing about it changes.

    With a rollout, its arms are only for callers whom edge-auth placed in this very rollout: while edge-auth and Envoy
    know different registries, and for tenants outside the blast radius, it is the baseline.
    """

    @shared
    def routes_of(prediction: Prediction) -> Piece:
        if not prediction.rollout_id:
            return Piece(action=_actions([_predict({"prefix": _PREDICT}, prediction.shares, edge)]))
        placed = {"name": ROLLOUT_HEADER, "string_match": {"exact": prediction.rollout_id}}
        arms = _predict({"prefix": _PREDICT, "headers": [placed]}, prediction.shares, edge)
        others = _predict({"prefix": _PREDICT}, (Share(prediction.otherwise, "", BUCKETS),), edge)
        return Piece(action=_actions([arms, others]))

    return routes_of


def _predict(match: Resource, shares: Sequence[Share], edge: EdgeConfig) -> Resource:
    if len(shares) == 1:
        cluster: Resource = {"cluster": predictor_cluster_name(shares[0].model_version)}
        return {**_route(match, cluster, edge, limited=True), "request_headers_to_add": _chosen(shares[0])}
    weighted = {
        # In the order of the buckets, and as many as there are: Envoy walks the list until it has passed the bucket.
        "header_name": BUCKET_HEADER,
        "clusters": [
            {
                "name": predictor_cluster_name(share.model_version),
                "weight": share.weight,
                "request_headers_to_add": _chosen(share),
            }
            for share in shares
        ],
    }
    return _route(match, {"weighted_clusters": weighted}, edge, limited=True)


def _chosen(share: Share) -> list[Resource]:
    found = {VERSION_HEADER: share.model_version} | ({ARM_HEADER: share.arm} if share.arm else {})
    return [
        {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for key, value in found.items()
    ]


def _route(match: Resource, to: str | Resource, edge: EdgeConfig, *, limited: bool = False) -> Resource:
    """`to`: a cluster's name, or how to choose one."""
    longest = f"{edge.max_stream_seconds}s"
    action: dict[str, object] = {
        **({"cluster": to} if isinstance(to, str) else to),
        # Streams end by their own deadline, not by a response time-out.
        "timeout": "0s",
        "idle_timeout": f"{edge.stream_idle_seconds}s",
        "max_stream_duration": {"max_stream_duration": longest, "grpc_timeout_header_max": longest},
    }
    # The name is what the access log tells of the path: the rest of a path is a caller's own words.
    route: dict[str, object] = {"name": match.get("path") or match.get("prefix", ""), "match": match, "route": action}
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
