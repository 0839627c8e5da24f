"""Which words Envoy's own answers get: the mappers are read here as Envoy reads them, the first that matches."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.rpc import status_pb2

from libs.errors import Reason, WeirError, grpc_code
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.replies import local_replies

CHAT, INFER = "/v1/chat/completions", "/v2/models/m/infer"


@dataclass(frozen=True)
class Reply:
    """What Envoy is about to answer, and to what."""

    status: int
    details: str = ""
    flags: str = ""
    path: str = CHAT
    headers: Mapping[str, str] = field(default_factory=dict)


def takes(one: Any, reply: Reply) -> bool:
    """Whether a filter matches."""
    [(kind, told)] = one.items()
    if kind == "and_filter":
        return all(takes(each, reply) for each in told["filters"])
    if kind == "or_filter":
        return any(takes(each, reply) for each in told["filters"])
    if kind == "status_code_filter":
        value = told["comparison"]["value"]["default_value"]
        return {"EQ": reply.status == value, "GE": reply.status >= value, "LE": reply.status <= value}[
            told["comparison"]["op"]
        ]
    if kind == "response_flag_filter":
        return reply.flags in told["flags"]
    if kind == "extension_filter":
        found = re.fullmatch(r'response\.code_details\.contains\("(\w+)"\)', told["typed_config"]["expression"])
        assert found is not None
        return found[1] in reply.details
    assert kind == "header_filter"
    header = told["header"]
    value = {":path": reply.path, **reply.headers}.get(header["name"])
    if "present_match" in header:
        return value is not None
    if value is None:
        if not header.get("treat_missing_header_as_empty"):
            return False
        value = ""
    match = header["string_match"]
    matched = (
        value.startswith(match["prefix"])
        if "prefix" in match
        else re.fullmatch(match["safe_regex"]["regex"], value) is not None
    )
    return matched is not bool(header.get("invert_match"))


def mapper_of(reply: Reply) -> Any:
    """The mapper that Envoy takes."""
    return next((each for each in local_replies(EdgeConfig())["mappers"] if takes(each["filter"], reply)), None)


def body_of(reply: Reply) -> Any:
    """The JSON that goes out."""
    return mapper_of(reply)["body_format_override"]["json_format"]


WORDS = [
    (400, "path_normalization_failed", 404, "not_found"),
    (400, "http1.codec_error", 400, "invalid_request"),
    (400, "missing_host_header", 400, "invalid_request"),
    (400, "http1.unexpected_underscore", 400, "invalid_request"),
    (403, "upgrade_failed", 403, "invalid_request"),
    (404, "route_not_found", 404, "not_found"),
    (405, "", 405, "not_found"),
    (408, "request_header_timeout", 408, "deadline_exceeded"),
    (413, "request_payload_too_large", 413, "payload_too_large"),
    (415, "", 415, "invalid_request"),
    (426, "low_version", 426, "invalid_request"),
    (431, "http1.headers_too_large", 431, "payload_too_large"),
    (500, "", 500, "internal"),
    (501, "http1.invalid_transfer_encoding", 501, "unimplemented"),
    (502, "upstream_reset_before_response_started{protocol_error}", 502, "internal"),
    (503, "no_healthy_upstream", 503, "dependency_unavailable"),
    (504, "upstream_max_stream_duration_reached", 504, "deadline_exceeded"),
]


@pytest.mark.parametrize(("status", "details", "told", "code"), WORDS)
def test_every_answer_of_envoy_has_a_message_and_a_code_of_our_own(
    status: int, details: str, told: int, code: str
) -> None:
    mapper = mapper_of(Reply(status, details))
    assert mapper.get("status_code", status) == told
    assert mapper["body_format_override"]["content_type"] == "application/json"
    error = body_of(Reply(status, details))["error"]
    assert (error["code"], error["param"]) == (code, None)
    assert error["type"] in ("invalid_request_error", "server_error")
    assert error["message"]
    assert "%" not in error["message"], "Envoy's own text may be empty"
    said = body_of(Reply(status, details, path=INFER))
    assert said == {"error": error["message"]} or status == 413
    behind = Reply(status, details, path="/weir.openai.v1.X/Y", headers={"x-envoy-original-path": INFER})
    assert body_of(behind) == said


def test_a_body_that_is_too_large_hears_its_own_bound() -> None:
    edge = EdgeConfig()
    assert f" {edge.max_body_bytes} bytes" in body_of(Reply(413))["error"]["message"]
    assert f" {edge.max_prediction_bytes} bytes" in body_of(Reply(413, path=INFER))["error"]


def test_no_status_is_without_words() -> None:
    for status in range(400, 600):
        message = body_of(Reply(status))["error"]["message"]
        assert message, status
        assert status == 429 or "%" not in message, status


@pytest.mark.parametrize(
    ("reply", "message", "code"),
    [
        (Reply(400, "early_grpc_json_transcode_failure{INVALID_ARGUMENT}"), "%LOCAL_REPLY_BODY%", "invalid_request"),
        (Reply(429, "request_rate_limited", "RL"), "%LOCAL_REPLY_BODY%", "%RESP(x-weir-code)%"),
        (Reply(429, "lua_response"), "%LOCAL_REPLY_BODY%", "rejected_overload"),
    ],
)
def test_texts_that_are_always_there_are_told(reply: Reply, message: str, code: str) -> None:
    error = body_of(reply)["error"]
    assert (error["message"], error["code"]) == (message, code)


@pytest.mark.parametrize(
    "reply", [Reply(401, "ext_authz_denied", "UAEX"), Reply(403, "", "UAEX"), Reply(401, "lua_response")]
)
def test_what_edge_auth_says_passes_unchanged(reply: Reply) -> None:
    assert "body_format_override" not in mapper_of(reply)


@pytest.mark.parametrize("status", [400, 404, 413, 503])
def test_grpc_keeps_its_status_and_its_message(status: int) -> None:
    mapper = mapper_of(Reply(status, path="/x.Y/Z", headers={"content-type": "application/grpc+proto"}))
    assert mapper is None or not {"body_format_override", "status_code"} & set(mapper)


@pytest.mark.parametrize("seconds", [1, 200])
@pytest.mark.parametrize(
    ("details", "flags"),
    [
        ("no_healthy_upstream", "UH"),
        ("upstream_reset_before_response_started{connection_termination}", "UC"),
        ("ext_authz_error", "UAEX"),
    ],
)
def test_grpc_clients_hear_of_what_is_away_as_services_would_say_it(details: str, flags: str, seconds: int) -> None:
    reply = Reply(503, details, flags, "/x.Y/Z", {"content-type": "application/grpc+proto"})
    mappers = local_replies(EdgeConfig(retry_after_seconds=seconds))["mappers"]
    added = next(each for each in mappers if takes(each["filter"], reply))["headers_to_add"]
    headers = {each["header"]["key"]: each["header"]["value"] for each in added}
    status = status_pb2.Status.FromString(base64.b64decode(headers["grpc-status-details-bin"], validate=True))
    told = WeirError.from_status(status)
    assert (told.reason, told.retry_after) == (Reason.DEPENDENCY_UNAVAILABLE, seconds)
    assert told.message
    assert status.code == grpc_code(told.reason).value[0]
    assert status == WeirError(told.reason, told.message, retry_after=seconds).to_status()
    assert (headers["x-weir-reason"], headers["retry-after"]) == (told.reason.name, str(seconds))
