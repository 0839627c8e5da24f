"""The edge's routes: path → service. The admin API has routes of its own, which the public listeners do not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from libs import paths
from libs.routing import BUCKETS
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.cors import CORS, cors_policy
from services.controlplane.policy.filters import AUTH, OTHER_HOST, RATE_LIMIT, TRANSCODERS
from services.controlplane.policy.names import KEY_HEADER, KEYED, PREDICTOR, Piece, Resource, shared
from services.controlplane.policy.predictions import Prediction, Share
from services.controlplane.policy.upstreams import prediction_cluster_name

ROUTE_CONFIG = "edge"
ADMIN_ROUTES = "edge-admin"
MODEL_HEADER = "x-weir-model"
"""Names the alias or pinned version of a unary prediction: the caller sends it, or `edge.lua` finds it in the path."""
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

# Only what provably did not begin.
_RETRY = {
    "retry_on": "connect-failure,refused-stream",
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.250s"},
    **OTHER_HOST,
}
# And what asks for an answer of which nothing has come: a process that dies takes what it ran with it (its grants and
# leases end, its worker is told), and nobody has seen or is billed for any of it. Never what changes something.
_RETRY_ANSWER = {**_RETRY, "retry_on": "connect-failure,refused-stream,reset"}
# Predictions change nothing, and who leaves says so (UNAVAILABLE): within a budget, see `predictor_cluster`.
# Often enough that a version's last predictor has been found dead before the last try.
_RETRY_PREDICTION = {**_RETRY, "retry_on": "connect-failure,refused-stream,reset,unavailable", "num_retries": 4}
_PREDICTIONS = (paths.PREDICTION, paths.PREDICTION_HTTP)
_OF_PREDICTIONS = (*({"prefix": path} for path in _PREDICTIONS), {"path": "/v2"})
_OFF = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
_OPEN = dict.fromkeys((AUTH, *TRANSCODERS.values()), _OFF)
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
    cors = {"typed_per_filter_config": {CORS: cors_policy(edge.cors)}} if edge.cors else {}
    if not predictions:
        return _configuration(ROUTE_CONFIG, {"routes": _fixed_routes(edge), **cors})
    routes_of = prediction_routes(edge)
    by_model = {prediction.model: routes_of(prediction) for prediction in predictions}
    return _configuration(ROUTE_CONFIG, {"matcher": _by_model(by_model, _otherwise(edge)), **cors})


def admin_routes(edge: EdgeConfig) -> Resource:
    """The route configuration of the admin listener."""
    routes = [*(_route({"prefix": path}, "registry", edge) for path in paths.ADMIN_PATHS), _NOTHING]
    return _configuration(ADMIN_ROUTES, {"routes": routes})


def _configuration(name: str, routes: Resource) -> Resource:
    host = {
        "name": name,
        "domains": ["*"],
        # Credentials end here; the mesh knows tenants. So does what the edge tells itself.
        "request_headers_to_remove": ["authorization", "api-key", "x-api-key", ASK_HEADER, "x-weir-refused"],
        # Between services and Envoy.
        "response_headers_to_remove": ["x-envoy-ratelimited"],
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
            "prefix_match_map": {"map": {path: {"matcher": models} for path in _PREDICTIONS}},
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
        *_generating({"path": paths.CHAT}, edge),
        *_generating({"path": paths.COMPLETIONS}, edge),
        *_generating({"path": paths.EMBED}, edge),
        _route({"prefix": paths.OPENAI}, "gateway", edge),
        *_generating({"prefix": paths.NATIVE}, edge),
        # Of no model that is known here: any predictor knows which it is, and who has it.
        *(_prediction(match, PREDICTOR, edge) for match in _OF_PREDICTIONS),
        _NOTHING,
    ]


def _generating(match: Resource, edge: EdgeConfig) -> Iterator[Resource]:
    """A request with an idempotency key goes to its key's gateway, every other one to any."""
    with_key = {**match, "headers": [{"name": KEY_HEADER, "present_match": True}]}
    by_key = {"cluster": KEYED, "hash_policy": [{"header": {"header_name": KEY_HEADER}}]}
    yield _route(with_key, by_key, edge, limited=True)
    yield _route(match, "gateway", edge, limited=True)


@lru_cache(maxsize=8)
def prediction_routes(edge: EdgeConfig) -> Callable[[Prediction], Piece]:
    """What gives the routes of a name (an `OnMatch`), and the same ones while nothing about it changes.

    With a rollout, its arms are only for callers whom edge-auth placed in this very rollout: while edge-auth and Envoy
    know different registries, and for tenants outside the blast radius, it is the baseline.
    """

    @shared
    def routes_of(prediction: Prediction) -> Piece:
        if not prediction.rollout_id:
            return Piece(action=_actions([_predict({"prefix": "/"}, prediction.shares, edge)]))
        placed = {"name": ROLLOUT_HEADER, "string_match": {"exact": prediction.rollout_id}}
        arms = _predict({"prefix": "/", "headers": [placed]}, prediction.shares, edge)
        others = _predict({"prefix": "/"}, (Share(prediction.otherwise, "", BUCKETS),), edge)
        return Piece(action=_actions([arms, others]))

    return routes_of


def _predict(match: Resource, shares: Sequence[Share], edge: EdgeConfig) -> Resource:
    if len(shares) == 1:
        cluster = prediction_cluster_name(shares[0].model_version)
        route = _prediction(match, cluster, edge)
        return {**route, "request_headers_to_add": [_BEGAN, *_chosen(shares[0])]}
    weighted = {
        # In the order of the buckets, and as many as there are: Envoy walks the list until it has passed the bucket.
        "header_name": BUCKET_HEADER,
        "clusters": [
            {
                "name": prediction_cluster_name(share.model_version),
                "weight": share.weight,
                "request_headers_to_add": _chosen(share),
            }
            for share in shares
        ],
    }
    return _prediction(match, {"weighted_clusters": weighted}, edge)


def _prediction(match: Resource, to: str | Resource, edge: EdgeConfig) -> Resource:
    """Counted as a request; by rows it is charged where they are counted."""
    route = _route(match, to, edge)
    route["name"] = "prediction"
    route["request_headers_to_add"] = [_BEGAN]
    route["route"]["retry_policy"] = _RETRY_PREDICTION
    route["typed_per_filter_config"] = _limits([_TENANT])
    return route


def _chosen(share: Share) -> list[Resource]:
    found = {VERSION_HEADER: share.model_version} | ({ARM_HEADER: share.arm} if share.arm else {})
    return [_overwriting(key, value) for key, value in found.items()]


def _overwriting(key: str, value: str) -> Resource:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


_BEGAN = _overwriting("x-request-start", "t=%START_TIME(%s.%6f)%")
"""When the edge had its headers, Unix seconds: what comes before gateway or predictor is a stage of the answer, too."""


def _route(match: Resource, to: str | Resource, edge: EdgeConfig, *, limited: bool = False) -> dict[str, Any]:
    """`to`: a cluster's name, or how to choose one. `limited`: it asks for an answer, and is counted."""
    longest = f"{edge.max_stream_seconds}s"
    action: dict[str, object] = {
        **({"cluster": to} if isinstance(to, str) else to),
        # Streams end by their own deadline, not by a response time-out.
        "timeout": "0s",
        "idle_timeout": f"{edge.stream_idle_seconds}s",
        "max_stream_duration": {"max_stream_duration": longest, "grpc_timeout_header_max": longest},
    }
    # The name is what the access log tells of the path: the rest of a path is a caller's own words.
    route: dict[str, Any] = {"name": match.get("path") or match.get("prefix", ""), "match": match, "route": action}
    if limited:
        action["retry_policy"] = _RETRY_ANSWER
        route["request_headers_to_add"] = [_BEGAN]
        route["typed_per_filter_config"] = _limits([_TENANT], _token_limit())
    return route


def _limits(request: Sequence[Resource], *more: Resource) -> Resource:
    """A descriptor of a request, and further ones."""
    # Only here, not under `route.rate_limits`, does Envoy honour a descriptor's own addend.
    kind = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
    return {RATE_LIMIT: {"@type": kind, "rate_limits": [{"actions": request}, *more]}}


def _token_limit() -> Resource:
    """A descriptor of its own for tokens that costs as many as edge-auth estimates; absent without an estimate."""
    return {
        "actions": [_TENANT, {"generic_key": {"descriptor_key": "unit", "descriptor_value": "tokens"}}],
        "hits_addend": {"format": "%REQ(x-weir-estimated-tokens)%"},
    }
