"""Which scope a path needs. A path that is not listed needs none and gets nothing: it is refused."""

INFERENCE = "inference"
EMBEDDINGS = "embeddings"
MODELS_READ = "models.read"
USAGE_READ = "usage.read"
ADMIN = "admin"

_EXACT = {
    "/v1/chat/completions": INFERENCE,
    "/v1/completions": INFERENCE,
    "/v1/files": INFERENCE,
    "/v1/batches": INFERENCE,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/models": MODELS_READ,
    "/v1/organization/usage/completions": USAGE_READ,
    "/v1/organization/usage/predictions": USAGE_READ,
    "/v1/organization/costs": USAGE_READ,
    "/weir.inference.v1.InferenceService/Generate": INFERENCE,
    "/weir.inference.v1.InferenceService/Complete": INFERENCE,
    "/weir.inference.v1.InferenceService/CountTokens": INFERENCE,
    "/weir.inference.v1.InferenceService/Embed": EMBEDDINGS,
    "/v2": INFERENCE,
    "/weir.openai.v1.OpenAIService/CreateChatCompletion": INFERENCE,
    "/weir.openai.v1.OpenAIService/CreateCompletion": INFERENCE,
    "/weir.openai.v1.OpenAIService/CreateEmbedding": EMBEDDINGS,
    "/weir.openai.v1.OpenAIService/ListModels": MODELS_READ,
    "/weir.openai.v1.OpenAIService/GetModel": MODELS_READ,
    "/weir.openai.v1.OpenAIService/GetUsage": USAGE_READ,
    "/weir.openai.v1.OpenAIService/GetCosts": USAGE_READ,
}
_PREFIXES = (
    ("/v1/models/", MODELS_READ),
    ("/v1/files/", INFERENCE),
    ("/v1/batches/", INFERENCE),
    ("/inference.GRPCInferenceService/", INFERENCE),
    ("/v2/", INFERENCE),
    ("/weir.registry.v1.RegistryService/", ADMIN),
    ("/admin/", ADMIN),
)
# What a proxy or a server behind us might read as another path than we do.
_AMBIGUOUS = ("//", "/.", "\\", "%2e", "%2f", "%5c", "%25", "\x00")


def is_prediction(path: str) -> bool:
    """Whether it is one of the Open Inference Protocol, over gRPC or HTTP."""
    return path.startswith("/inference.GRPCInferenceService/") or is_prediction_over_http(path)


def is_prediction_over_http(path: str) -> bool:
    """Whether its errors read `{"error": …}`."""
    return path.startswith("/v2/") or path.partition("?")[0] == "/v2"


def required_scope(path: str) -> str | None:
    """The scope that a request's path (with or without its query) needs; None where nothing is served."""
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
