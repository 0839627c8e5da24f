"""Which scope a path needs."""

from typing import Any

import pytest
from google.api import annotations_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.openai.v1 import openai_pb2

from libs.paths import required_scope

SERVICE = openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"]


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/v1/chat/completions", "inference"),
        ("/v1/chat/completions?x=1", "inference"),
        ("/v1/completions", "inference"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/models", "models.read"),
        ("/v1/organization/costs?start_time=1", "usage.read"),
        ("/v1/organization/usage/completions", "usage.read"),
        ("/v1/organization/usage/embeddings", "usage.read"),
        ("/v1/organization/usage/predictions", "usage.read"),
        ("/v1/status", "usage.read"),
        ("/v1/models/weir-fast@1", "models.read"),
        ("/v1/models/org%40x", "models.read"),
        ("/admin/v1/keys", "admin"),
        ("/admin/v1/keys/abc:revoke", "admin"),
        ("/weir.registry.v1.RegistryService/SetLimits", "admin"),
        ("/weir.inference.v1.InferenceService/Generate", "inference"),
        ("/weir.inference.v1.InferenceService/Embed", "embeddings"),
        ("/inference.GRPCInferenceService/ModelInfer", "inference"),
    ],
)
def test_known_paths(path: str, scope: str) -> None:
    assert required_scope(path) == scope


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: method.name)
def test_a_call_needs_the_same_scope_before_and_after_envoy_has_transcoded_it(method: Any) -> None:
    rule = method.GetOptions().Extensions[annotations_pb2.http]
    path = getattr(rule, rule.WhichOneof("pattern")).replace("{id=**}", "x")
    assert required_scope(path) is not None
    assert required_scope(f"/{SERVICE.full_name}/{method.name}") == required_scope(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "*",
        "/healthz",
        "/v1/chat/completions/",
        "/V1/models",
        "/admin",
        "/weir.quota.v1.QuotaService/Session",
        "/weir.inference.v1.InferenceService/",
        "http://elsewhere/v1/models",
    ],
)
def test_what_is_not_listed_is_refused(path: str) -> None:
    assert required_scope(path) is None


@settings(deadline=None)
@given(
    start=st.sampled_from(["/v1/models/", "/v1/files/", "/inference.GRPCInferenceService/"]),
    trick=st.sampled_from(["../", "..%2f", "%2E%2E/", "/", "..\\", "%252e%252e/", "./", "%5c"]),
    rest=st.sampled_from(["admin/v1/keys", "weir.registry.v1.RegistryService/SetTenant"]),
)
def test_no_spelling_of_another_path_gets_a_lesser_scope(start: str, trick: str, rest: str) -> None:
    assert required_scope(start + trick + rest) is None
