"""Answers to Envoy, as bytes.

A principal's answer differs between its requests only in the estimated tokens, so the rest is serialised once and a
request appends one header: in protobuf's wire form a message field that comes twice is merged
(https://protobuf.dev/programming-guides/encoding/#last-one-wins).
"""

import enum
import json
from collections.abc import Mapping
from functools import lru_cache

from envoy.config.core.v3 import base_pb2
from envoy.service.auth.v3 import external_auth_pb2
from google.protobuf import struct_pb2

from libs.errors import Reason, grpc_code, http_status
from services.edge_auth.policy.credentials import CREDENTIAL_HEADERS
from services.edge_auth.policy.types import Principal, Refusal

_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_REPEATED = {"content-type": "kind", "www-authenticate": "challenge"}
"""What `edge.lua` calls the headers of a refusal."""
_TEXTS: dict[Refusal, tuple[Reason, str, str, str]] = {
    Refusal.NO_CREDENTIAL: (
        Reason.UNAUTHENTICATED,
        "missing_api_key",
        "invalid_request_error",
        "No API key provided. Send it as 'Authorization: Bearer YOUR_KEY'.",
    ),
    Refusal.BAD_CREDENTIAL: (
        Reason.UNAUTHENTICATED,
        "invalid_api_key",
        "invalid_request_error",
        "Incorrect API key provided.",
    ),
    Refusal.KEY_REVOKED: (
        Reason.KEY_REVOKED,
        "revoked_api_key",
        "invalid_request_error",
        "This API key was revoked.",
    ),
    Refusal.KEY_EXPIRED: (
        Reason.KEY_EXPIRED,
        "expired_api_key",
        "invalid_request_error",
        "This API key or token has expired.",
    ),
    Refusal.SCOPE_MISSING: (
        Reason.SCOPE_MISSING,
        "insufficient_scope",
        "permission_error",
        "This API key lacks the scope that this request needs.",
    ),
    Refusal.TENANT_INACTIVE: (
        Reason.PERMISSION_DENIED,
        "account_inactive",
        "permission_error",
        "This account is not active.",
    ),
    Refusal.UNKNOWN_PATH: (Reason.NOT_FOUND, "unknown_url", "invalid_request_error", "Unknown request URL."),
}


def allowed_start(principal: Principal) -> bytes:
    """All of an OK answer but the estimate."""
    words = {
        "tenant": principal.tenant,
        "plan": principal.plan,
        "scopes": " ".join(sorted(principal.scopes)),
        "key_id": principal.key_id,
    }
    metadata = struct_pb2.Struct()
    metadata.update(words)
    ok = external_auth_pb2.OkHttpResponse(
        headers=[
            *(_header(f"x-weir-{name.replace('_', '-')}", value) for name, value in words.items()),
            # The limiter is to be asked.
            _header("x-weir-ask", principal.tenant),
        ],
        headers_to_remove=CREDENTIAL_HEADERS,
    )
    response = external_auth_pb2.CheckResponse(ok_response=ok, dynamic_metadata=metadata)
    response.status.SetInParent()
    return response.SerializeToString()


@lru_cache(maxsize=8192)
def allowed_end(estimated_tokens: int) -> bytes:
    """The rest of an OK answer."""
    ok = external_auth_pb2.OkHttpResponse(headers=[_header("x-weir-estimated-tokens", str(estimated_tokens))])
    return external_auth_pb2.CheckResponse(ok_response=ok).SerializeToString()


_MOST_TTL_MS = 60_000
_TTL_STEP_MS = 100


def ttl_of(expires_at: float, now: float) -> int:
    """For how many milliseconds the edge may go by an answer: not beyond the credential's own expiry (both in Unix
    seconds), and otherwise for longer than it does anyway."""
    left = min(max(0.0, expires_at - now) * 1000, _MOST_TTL_MS)
    return int(left / _TTL_STEP_MS) * _TTL_STEP_MS


@lru_cache(maxsize=1024)
def remembered(revision: int, ttl_ms: int, rules: str) -> bytes:
    """What is added to an OK answer so that the edge may repeat it.

    :param revision: the registry's, by which it was decided.
    :param rules: those by which callers were placed.
    """
    return _metadata({"rev": revision, "ttl": ttl_ms, "rules": rules})


def _metadata(content: Mapping[str, str | float]) -> bytes:
    metadata = struct_pb2.Struct()
    metadata.update(content)
    return external_auth_pb2.CheckResponse(dynamic_metadata=metadata).SerializeToString()


NO_MODEL = external_auth_pb2.CheckResponse(
    ok_response=external_auth_pb2.OkHttpResponse(headers_to_remove=["x-weir-model"])
).SerializeToString() + _metadata({"hidden": True})
"""What is added to an OK answer for a model that the caller may not use."""


@lru_cache(maxsize=32768)
def placed(bucket: int, rollout_id: str) -> bytes:
    """What is added to an OK answer for a caller with a place among the versions of its model; the edge remembers it as
    it remembers who the caller is.

    The rollout is named only to those who take part in it: Envoy lets nobody else meet its arms.
    """
    headers = [_header("x-weir-bucket", str(bucket))]
    told: dict[str, str | float] = {"bucket": bucket}
    if rollout_id:
        headers.append(_header("x-weir-rollout", rollout_id))
        told["rollout"] = rollout_id
    ok = external_auth_pb2.OkHttpResponse(headers=headers)
    return external_auth_pb2.CheckResponse(ok_response=ok).SerializeToString() + _metadata(told)


class Form(enum.Enum):
    """How an error reads."""

    OPENAI = enum.auto()
    """The envelope of the OpenAI API."""
    PREDICTION = enum.auto()
    """That of the Open Inference Protocol over HTTP, `{"error": …}`."""
    GRPC = enum.auto()
    """A plain sentence: it becomes the status message."""


@lru_cache(maxsize=64)
def denied(refusal: Refusal, form: Form, *, scope: str = "", revision: int = 0) -> bytes:
    """A refusal; and the same once more for the edge, which repeats it for a second.

    :param revision: the registry's, by which it was decided.
    """
    reason, code, kind, message = _TEXTS[refusal]
    if refusal is Refusal.SCOPE_MISSING:
        message = f"{message[:-1]}: {scope}."
    headers = []
    body = message
    if form is not Form.GRPC:
        told = {"message": message, "type": kind, "param": None, "code": code} if form is Form.OPENAI else message
        body = json.dumps({"error": told}, separators=(",", ":"))
        headers.append(_header("content-type", "application/json"))
    status = http_status(reason)
    if status in (401, 403):
        headers.append(_header("www-authenticate", _challenge(refusal, scope)))
    response = external_auth_pb2.CheckResponse(
        denied_response=external_auth_pb2.DeniedHttpResponse(headers=headers, body=body)
    )
    response.denied_response.status.code = status  # type: ignore[assignment]
    response.status.code = grpc_code(reason).value[0]
    response.status.message = refusal.value
    repeated = {_REPEATED[each.header.key]: each.header.value for each in headers}
    return response.SerializeToString() + _metadata(
        {"rev": revision, "refused": True, "status": status, "body": body, **repeated}
    )


def _challenge(refusal: Refusal, scope: str) -> str:
    """RFC 6750, section 3: no error code for a request that showed nothing."""
    if refusal is Refusal.NO_CREDENTIAL:
        return 'Bearer realm="weir"'
    if refusal is Refusal.SCOPE_MISSING:
        return f'Bearer realm="weir", error="insufficient_scope", scope="{scope}"'
    return 'Bearer realm="weir", error="invalid_token"'


def _header(name: str, value: str) -> base_pb2.HeaderValueOption:
    return base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=name, value=value), append_action=_OVERWRITE)
