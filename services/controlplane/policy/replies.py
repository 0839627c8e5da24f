"""Envoy's own answers (404, 413, 503 …) as the errors of the API that was called; gRPC clients keep plain messages,
and get the details that services send (`libs.errors`) of what is away.

Source: `envoy.extensions.filters.network.http_connection_manager.v3.LocalReplyConfig`: the first mapper whose filter
matches decides.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence

from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.names import Resource

_BODY = "%LOCAL_REPLY_BODY%"
_SOURCE = "too many requests from this address; try again after the seconds in retry-after"
_CODE = "%RESP(x-weir-code)%"
"""The limiter's reason in lower case (services/ratelimit/edge.py)."""

_OF_STATUS: Mapping[int, Sequence[tuple[str, str, str]]] = {
    400: [
        # The transcoder's own words, of the body that it could not read.
        ("grpc_json_transcode_failure", "invalid_request", _BODY),
        ("path_normalization_failed", "not_found", "no such path: no path has an escaped slash, a NUL or a fragment"),
        ("unexpected_underscore", "invalid_request", "names of headers with underscores are refused"),
        ("", "invalid_request", "the request is not well-formed HTTP: its first line, host, headers or framing"),
    ],
    403: [("", "invalid_request", "protocol upgrades are not offered")],
    404: [("", "not_found", "no such path")],
    405: [("", "not_found", "no such method")],
    408: [("", "deadline_exceeded", "the request did not arrive in time")],
    431: [("", "payload_too_large", "the request headers are too large")],
    501: [("", "unimplemented", "no other transfer-encoding than chunked is offered")],
}
"""By Envoy's status, how its refusals of a caller's request are told: a part of the response code's details (empty:
any), our code, the message. Envoy's own texts are not told: most are empty or repeat the status."""


def local_replies(edge: EdgeConfig) -> Resource:
    """The LocalReplyConfig. Denials of edge-auth, repeated ones too, carry their own body and pass unchanged."""
    later = [_header("retry-after", str(edge.retry_after_seconds))]
    away = "the service is briefly unavailable; try again after the seconds in retry-after"
    return {
        "mappers": [
            _mapper([_flag("UAEX"), _between(400, 499)]),
            _mapper([_between(401, 404), _REPEATED]),
            *_http([_MANY, _TOO_MANY], "rate_limit_error", "rejected_overload", _SOURCE, later),
            _mapper([_MANY, _TOO_MANY], None, later),
            *_http([_MANY, _flag("RL")], "rate_limit_error", _CODE, _BODY),
            # A flood of bad keys comes here.
            *_http([_MANY], "rate_limit_error", "rejected_overload", _BODY, later),
            *_too_large(edge),
            *(mapper for status, refusal in _OF_STATUS.items() for mapper in _refusals(status, refusal)),
            *_http([_between(400, 499)], "invalid_request_error", "invalid_request", "this is not served here"),
            *_http([_between(503, 503)], "server_error", "dependency_unavailable", away, later),
            *_http(
                [_between(504, 504)], "server_error", "deadline_exceeded", "the service did not answer in time", later
            ),
            *_http([_between(500, 599)], "server_error", "internal", "internal error"),
            # Only gRPC clients come this far.
            _mapper([_between(503, 503)], None, [*later, *_details_of_away(away, edge.retry_after_seconds)]),
        ]
    }


def _too_large(edge: EdgeConfig) -> Iterator[Resource]:
    """Each by its own bound."""
    words = "the request body is too large: it may have {} bytes"
    yield _mapper([_between(413, 413), _PREDICTION], {"error": words.format(edge.max_prediction_bytes)})
    told = "invalid_request_error", "payload_too_large", words.format(edge.max_body_bytes)
    yield _mapper([_between(413, 413), _HTTP], _envelope(*told))


def _refusals(status: int, refusal: Sequence[tuple[str, str, str]]) -> Iterator[Resource]:
    """Those of one status: what the details tell apart first, the rest of them last."""
    for details, code, message in refusal:
        filters = [_between(status, status), *([_details(details)] if details else [])]
        # A path that cannot be has nothing behind it.
        to = 404 if (status, code) == (400, "not_found") else 0
        kind = "server_error" if code == "deadline_exceeded" else "invalid_request_error"
        yield from _http(filters, kind, code, message, status=to)


def _http(
    filters: Sequence[Resource], kind: str, code: str, message: str, headers: Sequence[Resource] = (), status: int = 0
) -> Iterator[Resource]:
    """For HTTP clients: those of the Open Inference Protocol read one word, those of OpenAI an envelope.

    :param status: the answer's, where it is another than Envoy's own.
    """
    first, *rest = filters
    yield _mapper([first, _PREDICTION, *rest], {"error": message}, headers, status)
    yield _mapper([first, _HTTP, *rest], _envelope(kind, code, message), headers, status)


def _envelope(kind: str, code: str, message: str) -> Resource:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _mapper(
    filters: Sequence[Resource], body: Resource | None = None, headers: Sequence[Resource] = (), status: int = 0
) -> Resource:
    mapper: dict[str, object] = {"filter": filters[0] if len(filters) == 1 else {"and_filter": {"filters": filters}}}
    if status:
        mapper["status_code"] = status
    if body is not None:
        mapper["body_format_override"] = {"json_format": body, "content_type": "application/json"}
    # Requests that fail before their headers are read have no id yet; this one is in the access log too.
    mapper["headers_to_add"] = [_header("x-request-id", "%UNIQUE_ID%"), *headers]
    return mapper


def _details_of_away(message: str, later: int) -> Iterator[Resource]:
    """Of UNAVAILABLE, which Envoy makes of a 503: a `google.rpc.Status` with ErrorInfo and RetryInfo, written by hand,
    since decisions know no wire types."""
    reason = "DEPENDENCY_UNAVAILABLE"
    info = _field(1, reason.encode()) + _field(2, b"weir")
    retry = _field(1, b"\x08" + _varint(later))
    status = b"\x08\x0e" + _field(2, message.encode())
    for kind, detail in (("ErrorInfo", info), ("RetryInfo", retry)):
        status += _field(3, _field(1, f"type.googleapis.com/google.rpc.{kind}".encode()) + _field(2, detail))
    yield _header("x-weir-reason", reason)
    yield _header("grpc-status-details-bin", base64.b64encode(status).decode())


def _field(number: int, value: bytes) -> bytes:
    """Of a protobuf message: text, or another message."""
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = []
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _between(low: int, high: int) -> Resource:
    if low == high:
        return _status("EQ", low)
    return {"and_filter": {"filters": [_status("GE", low), _status("LE", high)]}}


def _status(op: str, value: int) -> Resource:
    # Envoy wants a runtime key, though nobody overrides it.
    comparison = {"op": op, "value": {"default_value": value, "runtime_key": f"weir.local_reply.{op.lower()}_{value}"}}
    return {"status_code_filter": {"comparison": comparison}}


def _flag(flag: str) -> Resource:
    return {"response_flag_filter": {"flags": [flag]}}


def _header(name: str, value: str) -> Resource:
    return {"header": {"key": name, "value": value}, "append_action": "ADD_IF_ABSENT"}


# The transcoder has made a gRPC request of an HTTP one by the time that the router fails; it leaves the original path.
_TRANSCODED: Resource = {"header_filter": {"header": {"name": "x-envoy-original-path", "present_match": True}}}
_NOT_GRPC: Resource = {
    "header_filter": {
        "header": {
            "name": "content-type",
            "string_match": {"prefix": "application/grpc"},
            "invert_match": True,
            "treat_missing_header_as_empty": True,
        }
    }
}


def _details(part: str) -> Resource:
    return {
        "extension_filter": {
            "name": "envoy.access_loggers.extension_filters.cel",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
                "expression": f'response.code_details.contains("{part}")',
            },
        }
    }


# The filter that limits sources and the limiter are told apart by the details alone. To look at details costs more than
# all other filters: they come last.
_MANY = _between(429, 429)
_TOO_MANY = _details("local_rate_limited")
_REPEATED = _details("lua_response")
_HTTP: Resource = {"or_filter": {"filters": [_NOT_GRPC, _TRANSCODED]}}


def _path(header: str) -> Resource:
    return {"header_filter": {"header": {"name": header, "string_match": {"safe_regex": {"regex": "/v2([/?].*)?"}}}}}


_PREDICTION: Resource = {"or_filter": {"filters": [_path(":path"), _path("x-envoy-original-path")]}}
"""A gRPC call has no such path, neither before nor after the transcoder."""
