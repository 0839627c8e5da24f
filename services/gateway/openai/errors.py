"""`WeirError` → HTTP status, headers and the OpenAI error envelope."""

from __future__ import annotations

import msgspec

from libs.errors import WeirError, http_status
from services.gateway.refusals import retry_of

_TYPES: dict[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's error types, by HTTP status."""


def error_object(error: WeirError) -> dict[str, str | None]:
    """The inside of the envelope: message, type, param, code. The code is the closed reason in lower case."""
    status = http_status(error.reason)
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"message": error.message, "type": kind, "param": error.limit or None, "code": error.reason.name.lower()}


def error_body(error: WeirError) -> bytes:
    """The whole envelope as JSON."""
    return msgspec.json.encode({"error": error_object(error)})


def error_headers(error: WeirError) -> list[tuple[str, str]]:
    """Headers that go with the envelope: the status for the edge's status filter, the closed reason, and when
    to come back."""
    return [
        ("x-weir-http-status", str(http_status(error.reason))),
        ("x-weir-reason", error.reason.name),
        *retry_of(error),
    ]
