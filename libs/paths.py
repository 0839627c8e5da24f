"""The paths that the edge serves, said once: the scope that each needs, and what is counted behind the edge as well.

From these edge-auth knows scopes, the control plane makes Envoy's routes and the table of its Lua filter, and what the
edge loses is told apart.
"""

from __future__ import annotations

from collections.abc import Iterator

INFERENCE = "inference"
EMBEDDINGS = "embeddings"
MODELS_READ = "models.read"
USAGE_READ = "usage.read"
ADMIN = "admin"

OPENAI = "/v1/"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBED = "/v1/embeddings"
NATIVE = "/weir.inference.v1.InferenceService/"
PREDICTION = "/inference.GRPCInferenceService/"
PREDICTION_HTTP = "/v2/"
ADMIN_PATHS = ("/weir.registry.v1.RegistryService/", "/admin/v1/")
_TRANSCODED = "/weir.openai.v1.OpenAIService/"
"""What Envoy's transcoder makes of OpenAI's paths, before edge-auth is asked."""

_COUNTED = {
    CHAT: INFERENCE,
    COMPLETIONS: INFERENCE,
    EMBED: EMBEDDINGS,
    NATIVE + "Generate": INFERENCE,
    NATIVE + "Complete": INFERENCE,
    NATIVE + "Embed": EMBEDDINGS,
    PREDICTION + "ModelInfer": INFERENCE,
}
_EXACT = _COUNTED | {
    "/v1/files": INFERENCE,
    "/v1/batches": INFERENCE,
    "/v1/models": MODELS_READ,
    "/v1/organization/usage/completions": USAGE_READ,
    "/v1/organization/usage/embeddings": USAGE_READ,
    "/v1/organization/usage/predictions": USAGE_READ,
    "/v1/organization/costs": USAGE_READ,
    "/v1/status": USAGE_READ,
    NATIVE + "CountTokens": INFERENCE,
    "/v2": INFERENCE,
    _TRANSCODED + "CreateChatCompletion": INFERENCE,
    _TRANSCODED + "CreateCompletion": INFERENCE,
    _TRANSCODED + "CreateEmbedding": EMBEDDINGS,
    _TRANSCODED + "ListModels": MODELS_READ,
    _TRANSCODED + "GetModel": MODELS_READ,
    _TRANSCODED + "GetUsage": USAGE_READ,
    _TRANSCODED + "GetEmbeddings": USAGE_READ,
    _TRANSCODED + "GetPredictions": USAGE_READ,
    _TRANSCODED + "GetCosts": USAGE_READ,
    _TRANSCODED + "GetStatus": USAGE_READ,
}
_PREFIXES = (
    ("/v1/models/", MODELS_READ),
    ("/v1/files/", INFERENCE),
    ("/v1/batches/", INFERENCE),
    (PREDICTION, INFERENCE),
    (PREDICTION_HTTP, INFERENCE),
    (ADMIN_PATHS[0], ADMIN),
    ("/admin/", ADMIN),
)
# What a proxy or a server behind us might read as another path than we do.
_AMBIGUOUS = ("//", "/.", "\\", "%2e", "%2f", "%5c", "%25", "\x00")


def counted() -> Iterator[tuple[str, str]]:
    """Paths whose requests gateways and predictors count, too, and the scope of each: where the tenant is far from its
    limits, the edge need not ask."""
    return iter(_COUNTED.items())


def is_prediction(path: str) -> bool:
    """Whether it is one of the Open Inference Protocol, over gRPC or HTTP."""
    return path.startswith(PREDICTION) or is_prediction_over_http(path)


def is_prediction_over_http(path: str) -> bool:
    """Whether its errors read `{"error": …}`."""
    return path.startswith(PREDICTION_HTTP) or path.partition("?")[0] == "/v2"


def required_scope(path: str) -> str | None:
    """The scope that a request's path (with or without its query) needs; None where nothing is served: a path that is
    not listed gets nothing."""
    path = path.partition("?")[0]
    scope = _EXACT.get(path)
    if scope is not None:
        return scope
    lowered = path.lower()
    if any(sign in lowered for sign in _AMBIGUOUS):
        return None
    for prefix, scope in _PREFIXES:
        if path.startswith(prefix):
            return scope
    return None
