"""The HTTP filters of the edge, in the order in which requests pass them.

A listener holds them once per part (`listeners.py`). So what is long, the Lua and the transcoder's descriptors, comes
over ECDS, once for all parts, and a listener names it; so does what is pushed by itself (`EPOCH`).
"""

from __future__ import annotations

from pathlib import Path

from libs import paths
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.cors import CORS
from services.controlplane.policy.names import ADS, Resource

AUTH = "envoy.filters.http.ext_authz"
RATE_LIMIT = "envoy.filters.http.ratelimit"
RATE_LIMIT_DOMAIN = "weir-edge"
OPENAI = "weir.openai.v1.OpenAIService"
"""The gRPC service whose HTTP face is the public API."""
PREDICTION = "weir.inference.v1.PredictionService"
"""The one whose HTTP face is the Open Inference Protocol; it is public as well."""
ADMIN = "weir.registry.v1.RegistryService"
"""The one whose HTTP face is the admin API."""
LUA = "weir.lua"
"""The filter of `edge.lua`."""
TRANSCODERS = {
    OPENAI: "weir.transcoder",
    PREDICTION: "weir.transcoder.predictions",
    ADMIN: "weir.transcoder.admin",
}
"""The filter that gives a gRPC service its HTTP face; each has its own bound of bodies."""
_FACES = {OPENAI: (PREDICTION, OPENAI), ADMIN: (ADMIN,)}
"""By the gRPC service that a listener is for, those that have an HTTP face there. What is none of the last one's either
is refused; a request that one of them has made gRPC's passes the others."""
EPOCH = "weir.epoch"
"""The filter that tells `edge.lua` the registry's revision at the last revocation, and the metadata that it sets."""
AUTH_SEES = (
    "api-key",
    "authorization",
    "content-length",
    "content-type",
    "user-agent",
    "x-api-key",
    "x-request-id",
    "x-weir-model",
    "x-weir-refused",
    "x-weir-session",
    "x-weir-user",
)
"""Request headers that edge-auth gets; fewer headers are less work per request, and bodies are not its business."""

OTHER_HOST: Resource = {
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            },
        }
    ],
    # The one that has just died has the fewest requests, so that of two the balancer draws it three times in four.
    "host_selection_retry_max_attempts": 40,
}
"""What is tried again is tried elsewhere."""

_TYPE = "type.googleapis.com/envoy.extensions.filters.http."
_EPOCH_TYPE = _TYPE + "set_metadata.v3.Config"
_LUA_TYPE = _TYPE + "lua.v3.Lua"
_TRANSCODER_TYPE = _TYPE + "grpc_json_transcoder.v3.GrpcJsonTranscoder"
_SOURCES = 4096
"""Sources remembered per filter chain; one takes about 300 bytes."""

_CLASSES = ", ".join(f'["{path}"] = "{scope[0]}"' for path, scope in paths.counted())
_LUA = Path(__file__).with_name("edge.lua").read_text().replace("CLASSES = {}", f"CLASSES = {{{_CLASSES}}}", 1)


def http_filters(edge: EdgeConfig, service: str) -> list[Resource]:
    """Every filter of a listener.

    :param service: the gRPC service whose HTTP face the listener is for.
    """
    known = edge.known_callers and service == OPENAI
    return [
        *([_filter(CORS, "cors.v3.Cors")] if edge.cors and service == OPENAI else []),
        _filter("envoy.filters.http.grpc_web", "grpc_web.v3.GrpcWeb"),
        # Before anybody is asked who it is, so that asking cannot be what wears the mesh out.
        _filter("envoy.filters.http.local_ratelimit", "local_ratelimit.v3.LocalRateLimit", _source_limit(edge)),
        # Without it the next one knows nobody.
        *([_EPOCH_FILTER] if known else []),
        _named(LUA, _LUA_TYPE),
        _filter(AUTH, "ext_authz.v3.ExtAuthz", _auth(edge) | (_UNKNOWN if known else {})),
        _filter(RATE_LIMIT, "ratelimit.v3.RateLimit", _rate_limit(edge)),
        # Where a body is first held whole: whoever sent it is known by now, and was counted.
        *(_named(TRANSCODERS[each], _TRANSCODER_TYPE) for each in _FACES[service]),
        _filter("envoy.filters.http.router", "router.v3.Router", {"suppress_envoy_headers": True}),
    ]


def named_filters(edge: EdgeConfig, descriptors: str) -> dict[str, Resource]:
    """What `http_filters` names, by name, but for `epoch`.

    :param descriptors: a FileDescriptorSet of the services that get an HTTP face, base64.
    """
    configs = {
        LUA: {"@type": _LUA_TYPE, "default_source_code": {"inline_string": _LUA}},
        **{
            name: {"@type": _TRANSCODER_TYPE, **_transcoder(edge, service, descriptors)}
            for service, name in TRANSCODERS.items()
        },
    }
    return {name: {"name": name, "typed_config": config} for name, config in configs.items()}


def epoch(revision: int, rules: str) -> Resource:
    """The filter of `EPOCH`, as it is pushed: a caller of whom edge-auth spoke at an earlier revision is unknown, and
    so is the place of one whom it placed by other rules (`libs.routing.rules_of`)."""
    return {"name": EPOCH, "typed_config": _epoch_config(revision, rules)}


def _epoch_config(revision: int, rules: str = "") -> Resource:
    told = {"metadata_namespace": EPOCH, "allow_overwrite": True, "value": {"rev": revision, "rules": rules}}
    return {"@type": _EPOCH_TYPE, "metadata": [told]}


def _auth(edge: EdgeConfig) -> dict[str, object]:
    return {
        "grpc_service": {**_grpc("edge-auth", edge.auth_timeout_ms), **again(edge.auth_timeout_ms // 3)},
        "transport_api_version": "V3",
        "failure_mode_allow": False,
        # The caller's bucket decides the cluster.
        "clear_route_cache": True,
        "status_on_error": {"code": "ServiceUnavailable"},
        "allowed_headers": {"patterns": [{"exact": name} for name in AUTH_SEES]},
    }


def again(each_ms: int) -> dict[str, object]:
    """What makes a question be asked of another process where one does not answer it: dead, hanging, or about to leave.
    For questions that change nothing; each is given `each_ms`."""
    return {
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset,unavailable",
            "num_retries": 2,
            "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.100s"},
            **OTHER_HOST,
        },
        "initial_metadata": [{"key": "x-envoy-upstream-rq-per-try-timeout-ms", "value": str(each_ms)}],
    }


def _source_limit(edge: EdgeConfig) -> Resource:
    """A bucket per source: an IPv4 address, or an IPv6 network of 64 bits, which is what one customer gets."""
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    source = {"masked_remote_address": {"v4_prefix_mask_len": 32, "v6_prefix_mask_len": 64}}
    bucket = {
        "max_tokens": 2 * edge.source_requests_per_second,
        "tokens_per_fill": edge.source_requests_per_second,
        "fill_interval": "1s",
    }
    return {
        "stat_prefix": "source",
        "filter_enabled": always,
        "filter_enforced": always,
        # Envoy demands a bucket for what no descriptor matches; every request has a source.
        "token_bucket": bucket,
        "always_consume_default_token_bucket": False,
        "rate_limits": [{"actions": [source]}],
        # Without a value it stands for each one that occurs; the longest unused are forgotten.
        "descriptors": [{"entries": [{"key": "masked_remote_address"}], "token_bucket": bucket}],
        "max_dynamic_descriptors": _SOURCES,
        "rate_limited_as_resource_exhausted": True,
    }


def _rate_limit(edge: EdgeConfig) -> Resource:
    return {
        "domain": RATE_LIMIT_DOMAIN,
        "timeout": _millis(edge.ratelimit_timeout_ms),
        # The mesh reserves real tokens once more, so the edge may err towards serving.
        "failure_mode_deny": False,
        "rate_limited_as_resource_exhausted": True,
        "disable_x_envoy_ratelimited_header": True,
        "rate_limit_service": {
            "grpc_service": _grpc("ratelimit", edge.ratelimit_timeout_ms),
            "transport_api_version": "V3",
        },
    }


def _transcoder(edge: EdgeConfig, service: str, descriptors: str) -> Resource:
    most = edge.max_prediction_bytes
    bounds = {"max_request_body_size": most, "max_response_body_size": most}
    return {
        "proto_descriptor_bin": descriptors,
        "services": [service],
        "auto_mapping": False,
        "convert_grpc_status": True,
        "ignore_unknown_query_parameters": True,
        # Model ids hold "@", which clients may escape.
        "url_unescape_spec": "ALL_CHARACTERS",
        "match_incoming_request_route": True,
        "request_validation_options": {"reject_unknown_method": service != PREDICTION},
        **(bounds if service == PREDICTION else {"max_request_body_size": edge.max_body_bytes}),
        "print_options": {"preserve_proto_field_names": True},
    }


def _grpc(cluster: str, timeout_ms: int) -> Resource:
    return {"envoy_grpc": {"cluster_name": cluster}, "timeout": _millis(timeout_ms)}


def _millis(value: int) -> str:
    return f"{value / 1000:.3f}s"


def _filter(name: str, kind: str, config: Resource | None = None) -> Resource:
    return {"name": name, "typed_config": {"@type": _TYPE + kind, **(config or {})}}


def _named(name: str, kind: str) -> Resource:
    """A filter that comes over ECDS. However long that takes, the listener waits and the one before it serves on: one
    without it would let pass, or answer with 500, whatever comes."""
    source = {**ADS, "initial_fetch_timeout": "0s"}
    return {"name": name, "config_discovery": {"config_source": source, "type_urls": [kind]}}


_EPOCH_FILTER: Resource = {
    "name": EPOCH,
    "config_discovery": {
        "config_source": ADS,
        # Until it is told, everybody is asked about; the listener does not wait for it.
        "default_config": _epoch_config(0),
        "apply_default_config_without_warming": True,
        "type_urls": [_EPOCH_TYPE],
    },
}
_UNKNOWN = {
    "filter_enabled_metadata": {
        "filter": "weir.edge",
        "path": [{"key": "known"}],
        "value": {"bool_match": True},
        "invert": True,
    }
}
"""Edge-auth is asked about whom `edge.lua` does not know."""
