"""One table from reasons to gRPC codes, one to HTTP statuses."""

from __future__ import annotations

import grpc

from libs.errors._reason import Reason

_C = grpc.StatusCode

# reason: (gRPC code, HTTP status)
_TABLE: dict[Reason, tuple[grpc.StatusCode, int]] = {
    Reason.UNSPECIFIED: (_C.INTERNAL, 500),
    Reason.INVALID_REQUEST: (_C.INVALID_ARGUMENT, 400),
    Reason.MODEL_NOT_FOUND: (_C.NOT_FOUND, 404),
    Reason.CONTEXT_LENGTH_EXCEEDED: (_C.INVALID_ARGUMENT, 400),
    Reason.PAYLOAD_TOO_LARGE: (_C.RESOURCE_EXHAUSTED, 413),
    Reason.UNAUTHENTICATED: (_C.UNAUTHENTICATED, 401),
    Reason.KEY_REVOKED: (_C.UNAUTHENTICATED, 401),
    Reason.KEY_EXPIRED: (_C.UNAUTHENTICATED, 401),
    Reason.SCOPE_MISSING: (_C.PERMISSION_DENIED, 403),
    Reason.PERMISSION_DENIED: (_C.PERMISSION_DENIED, 403),
    Reason.QUOTA_REQUESTS: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.QUOTA_TOKENS: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.QUOTA_CONCURRENCY: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.REJECTED_QUEUE_FULL: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.REJECTED_DEADLINE: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.REJECTED_NO_CAPACITY: (_C.UNAVAILABLE, 503),
    Reason.EVICTED_TTL: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.EVICTED_DEADLINE: (_C.DEADLINE_EXCEEDED, 504),
    Reason.EVICTED_SHED: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.CONTENT_FILTER: (_C.INVALID_ARGUMENT, 400),
    Reason.GRANT_INVALID: (_C.PERMISSION_DENIED, 500),
    Reason.GRANT_EXPIRED: (_C.FAILED_PRECONDITION, 503),
    Reason.GRANT_REPLAYED: (_C.PERMISSION_DENIED, 500),
    Reason.WORKER_LOST: (_C.UNAVAILABLE, 503),
    Reason.ENGINE_ERROR: (_C.INTERNAL, 500),
    Reason.DEADLINE_EXCEEDED: (_C.DEADLINE_EXCEEDED, 504),
    # 499 is the de facto "client closed request"; nobody is left to read it.
    Reason.CANCELLED: (_C.CANCELLED, 499),
    Reason.DEPENDENCY_UNAVAILABLE: (_C.UNAVAILABLE, 503),
    Reason.DRAINING: (_C.UNAVAILABLE, 503),
    Reason.IDEMPOTENCY_CONFLICT: (_C.ABORTED, 409),
    Reason.CONFLICT: (_C.ABORTED, 409),
    Reason.NOT_FOUND: (_C.NOT_FOUND, 404),
    Reason.ALREADY_EXISTS: (_C.ALREADY_EXISTS, 409),
    Reason.INTERNAL: (_C.INTERNAL, 500),
    Reason.UNIMPLEMENTED: (_C.UNIMPLEMENTED, 501),
    Reason.QUOTA_SPEND: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.REJECTED_OVERLOAD: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.SLOW_READER: (_C.ABORTED, 408),
    Reason.PREEMPTED: (_C.UNAVAILABLE, 503),
    Reason.REVISION_GONE: (_C.OUT_OF_RANGE, 410),
    Reason.NOT_OWNER: (_C.UNAVAILABLE, 503),
    Reason.REGION_NOT_ALLOWED: (_C.UNAVAILABLE, 503),
    Reason.CURSOR_INVALID: (_C.INVALID_ARGUMENT, 400),
    Reason.CURSOR_GONE: (_C.FAILED_PRECONDITION, 410),
    Reason.QUOTA_ROWS: (_C.RESOURCE_EXHAUSTED, 429),
    Reason.UNSUPPORTED_MEDIA_TYPE: (_C.INVALID_ARGUMENT, 415),
    Reason.NO_WORKERS: (_C.UNAVAILABLE, 503),
}

# Used when a foreign status carries no ErrorInfo of ours.
_FROM_CODE: dict[grpc.StatusCode, Reason] = {
    _C.CANCELLED: Reason.CANCELLED,
    _C.INVALID_ARGUMENT: Reason.INVALID_REQUEST,
    _C.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    _C.NOT_FOUND: Reason.NOT_FOUND,
    _C.ALREADY_EXISTS: Reason.ALREADY_EXISTS,
    _C.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    _C.RESOURCE_EXHAUSTED: Reason.REJECTED_QUEUE_FULL,
    _C.ABORTED: Reason.CONFLICT,
    _C.UNIMPLEMENTED: Reason.UNIMPLEMENTED,
    _C.UNAVAILABLE: Reason.DEPENDENCY_UNAVAILABLE,
    _C.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
}


def grpc_code(reason: Reason) -> grpc.StatusCode:
    """The canonical gRPC code of a reason."""
    return _TABLE[reason][0]


def http_status(reason: Reason) -> int:
    """The HTTP status of a reason."""
    return _TABLE[reason][1]


def reason_of_code(code: grpc.StatusCode) -> Reason:
    """The nearest reason for a code that came without details."""
    return _FROM_CODE.get(code, Reason.INTERNAL)
