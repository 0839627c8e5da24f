"""The answers, as Envoy reads them."""

import json

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.auth.v3 import external_auth_pb2

from services.edge_auth.policy.types import NEVER, Principal, Refusal
from services.edge_auth.responses import Form, allowed_end, allowed_start, denied, remembered, ttl_of

PRINCIPAL = Principal("acme", "paid", frozenset({"models.read", "inference"}), "k1")


def parsed(content: bytes) -> external_auth_pb2.CheckResponse:
    return external_auth_pb2.CheckResponse.FromString(content)


def test_the_two_halves_of_an_ok_answer_merge() -> None:
    response = parsed(allowed_start(PRINCIPAL) + allowed_end(123) + remembered(7, 1200, "r"))
    assert response.status.code == 0
    assert response.WhichOneof("http_response") == "ok_response"
    assert {option.header.key: option.header.value for option in response.ok_response.headers} == {
        "x-weir-tenant": "acme",
        "x-weir-plan": "paid",
        "x-weir-scopes": "inference models.read",
        "x-weir-key-id": "k1",
        "x-weir-ask": "acme",
        "x-weir-estimated-tokens": "123",
    }
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert {option.append_action for option in response.ok_response.headers} == {overwrite}
    assert list(response.ok_response.headers_to_remove) == ["authorization", "api-key", "x-api-key"]
    assert dict(response.dynamic_metadata) == {
        "tenant": "acme",
        "plan": "paid",
        "scopes": "inference models.read",
        "key_id": "k1",
        "rev": 7,
        "ttl": 1200,
        "rules": "r",
    }


@pytest.mark.parametrize(
    ("expires_at", "ttl"), [(NEVER, 60_000), (1160.0, 60_000), (1001.25, 1200), (1000.05, 0), (1000.0, 0), (990.0, 0)]
)
def test_the_edge_remembers_nobody_beyond_his_own_end(expires_at: float, ttl: int) -> None:
    assert ttl_of(expires_at, 1000.0) == ttl


@pytest.mark.parametrize(
    ("refusal", "status", "code", "error"),
    [
        (Refusal.NO_CREDENTIAL, 401, "missing_api_key", ""),
        (Refusal.BAD_CREDENTIAL, 401, "invalid_api_key", "invalid_token"),
        (Refusal.KEY_REVOKED, 401, "revoked_api_key", "invalid_token"),
        (Refusal.KEY_EXPIRED, 401, "expired_api_key", "invalid_token"),
        (Refusal.SCOPE_MISSING, 403, "insufficient_scope", 'insufficient_scope", scope="admin'),
        (Refusal.TENANT_INACTIVE, 403, "account_inactive", "invalid_token"),
    ],
)
def test_refusals_over_http(refusal: Refusal, status: int, code: str, error: str) -> None:
    scope = "admin" if refusal is Refusal.SCOPE_MISSING else ""
    response = parsed(denied(refusal, Form.OPENAI, scope=scope, revision=7))
    refused = response.denied_response
    assert refused.status.code == status
    assert response.status.code in (7, 16)
    body = json.loads(refused.body)["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] == code
    headers = {option.header.key: option.header.value for option in refused.headers}
    assert headers["content-type"] == "application/json"
    assert headers["www-authenticate"] == 'Bearer realm="weir"' + (f', error="{error}"' if error else "")
    assert dict(response.dynamic_metadata) == {
        "rev": 7,
        "refused": True,
        "status": status,
        "body": refused.body,
        "kind": "application/json",
        "challenge": headers["www-authenticate"],
    }


def test_an_unknown_path_is_not_found() -> None:
    response = parsed(denied(Refusal.UNKNOWN_PATH, Form.OPENAI))
    assert response.denied_response.status.code == 404
    assert response.status.code == 5


def test_refusals_over_grpc_are_plain_sentences() -> None:
    refused = parsed(denied(Refusal.SCOPE_MISSING, Form.GRPC, scope="admin")).denied_response
    assert refused.body == "This API key lacks the scope that this request needs: admin."
    assert [option.header.key for option in refused.headers] == ["www-authenticate"]


def test_refusals_of_predictions_over_http_are_one_word() -> None:
    refused = parsed(denied(Refusal.SCOPE_MISSING, Form.PREDICTION, scope="inference")).denied_response
    assert json.loads(refused.body) == {"error": "This API key lacks the scope that this request needs: inference."}
    assert {each.header.key for each in refused.headers} == {"content-type", "www-authenticate"}
