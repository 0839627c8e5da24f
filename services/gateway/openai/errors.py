"""`WeirError` → HTTP status, headers and the OpenAI error envelope."""

from __future__ import annotations

import math

import msgspec

from libs.errors import Reason, WeirError, http_status

_CODES: dict[Reason, tuple[str, str]] = {
    Reason.MODEL_NOT_FOUND: ("invalid_request_error", "model_not_found"),
    Reason.CONTEXT_LENGTH_EXCEEDED: ("invalid_request_error", "context_length_exceeded"),
    Reason.CONTENT_FILTER: ("invalid_request_error", "content_filter"),
    Reason.QUOTA_REQUESTS: ("rate_limit_error", "rate_limit_exceeded"),
    Reason.QUOTA_TOKENS: ("rate_limit_error", "rate_limit_exceeded"),
    Reason.QUOTA_CONCURRENCY: ("rate_limit_error", "rate_limit_exceeded"),
    Reason.SCOPE_MISSING: ("permission_error", "insufficient_scope"),
    Reason.PERMISSION_DENIED: ("permission_error", "permission_denied"),
    Reason.UNAUTHENTICATED: ("authentication_error", "invalid_api_key"),
}


def error_object(error: WeirError) -> dict[str, str | None]:
    """The inside of the envelope: message, type, param, code."""
    status = http_status(error.reason)
    kind, code = _CODES.get(error.reason, (_kind(status), error.reason.name.lower()))
    return {"message": error.message, "type": kind, "param": error.limit or None, "code": code}


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def error_body(error: WeirError) -> bytes:
    """The whole envelope as JSON."""
    return msgspec.json.encode({"error": error_object(error)})


def error_headers(error: WeirError) -> list[tuple[str, str]]:
    """Headers that go with the envelope: the status for the edge's status filter, and when to come back."""
    headers = [("x-weir-http-status", str(http_status(error.reason)))]
    if error.retry_after is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after)))))
        headers.append(("retry-after-ms", str(max(1, math.ceil(error.retry_after * 1000)))))
    return headers
