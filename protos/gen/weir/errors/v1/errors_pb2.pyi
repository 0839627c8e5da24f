import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_INVALID_REQUEST: _ClassVar[Reason]
    REASON_MODEL_NOT_FOUND: _ClassVar[Reason]
    REASON_CONTEXT_LENGTH_EXCEEDED: _ClassVar[Reason]
    REASON_PAYLOAD_TOO_LARGE: _ClassVar[Reason]
    REASON_UNAUTHENTICATED: _ClassVar[Reason]
    REASON_KEY_REVOKED: _ClassVar[Reason]
    REASON_KEY_EXPIRED: _ClassVar[Reason]
    REASON_SCOPE_MISSING: _ClassVar[Reason]
    REASON_PERMISSION_DENIED: _ClassVar[Reason]
    REASON_QUOTA_REQUESTS: _ClassVar[Reason]
    REASON_QUOTA_TOKENS: _ClassVar[Reason]
    REASON_QUOTA_CONCURRENCY: _ClassVar[Reason]
    REASON_REJECTED_QUEUE_FULL: _ClassVar[Reason]
    REASON_REJECTED_DEADLINE: _ClassVar[Reason]
    REASON_REJECTED_NO_CAPACITY: _ClassVar[Reason]
    REASON_EVICTED_TTL: _ClassVar[Reason]
    REASON_EVICTED_DEADLINE: _ClassVar[Reason]
    REASON_EVICTED_SHED: _ClassVar[Reason]
    REASON_CONTENT_FILTER: _ClassVar[Reason]
    REASON_GRANT_INVALID: _ClassVar[Reason]
    REASON_GRANT_EXPIRED: _ClassVar[Reason]
    REASON_GRANT_REPLAYED: _ClassVar[Reason]
    REASON_WORKER_LOST: _ClassVar[Reason]
    REASON_ENGINE_ERROR: _ClassVar[Reason]
    REASON_DEADLINE_EXCEEDED: _ClassVar[Reason]
    REASON_CANCELLED: _ClassVar[Reason]
    REASON_DEPENDENCY_UNAVAILABLE: _ClassVar[Reason]
    REASON_DRAINING: _ClassVar[Reason]
    REASON_IDEMPOTENCY_CONFLICT: _ClassVar[Reason]
    REASON_CONFLICT: _ClassVar[Reason]
    REASON_NOT_FOUND: _ClassVar[Reason]
    REASON_ALREADY_EXISTS: _ClassVar[Reason]
    REASON_INTERNAL: _ClassVar[Reason]
    REASON_UNIMPLEMENTED: _ClassVar[Reason]
    REASON_QUOTA_SPEND: _ClassVar[Reason]
    REASON_REJECTED_OVERLOAD: _ClassVar[Reason]
    REASON_SLOW_READER: _ClassVar[Reason]
    REASON_PREEMPTED: _ClassVar[Reason]
    REASON_REVISION_GONE: _ClassVar[Reason]
    REASON_NOT_OWNER: _ClassVar[Reason]
    REASON_REGION_NOT_ALLOWED: _ClassVar[Reason]
    REASON_CURSOR_INVALID: _ClassVar[Reason]
    REASON_CURSOR_GONE: _ClassVar[Reason]
    REASON_QUOTA_ROWS: _ClassVar[Reason]
    REASON_UNSUPPORTED_MEDIA_TYPE: _ClassVar[Reason]
    REASON_NO_WORKERS: _ClassVar[Reason]
REASON_UNSPECIFIED: Reason
REASON_INVALID_REQUEST: Reason
REASON_MODEL_NOT_FOUND: Reason
REASON_CONTEXT_LENGTH_EXCEEDED: Reason
REASON_PAYLOAD_TOO_LARGE: Reason
REASON_UNAUTHENTICATED: Reason
REASON_KEY_REVOKED: Reason
REASON_KEY_EXPIRED: Reason
REASON_SCOPE_MISSING: Reason
REASON_PERMISSION_DENIED: Reason
REASON_QUOTA_REQUESTS: Reason
REASON_QUOTA_TOKENS: Reason
REASON_QUOTA_CONCURRENCY: Reason
REASON_REJECTED_QUEUE_FULL: Reason
REASON_REJECTED_DEADLINE: Reason
REASON_REJECTED_NO_CAPACITY: Reason
REASON_EVICTED_TTL: Reason
REASON_EVICTED_DEADLINE: Reason
REASON_EVICTED_SHED: Reason
REASON_CONTENT_FILTER: Reason
REASON_GRANT_INVALID: Reason
REASON_GRANT_EXPIRED: Reason
REASON_GRANT_REPLAYED: Reason
REASON_WORKER_LOST: Reason
REASON_ENGINE_ERROR: Reason
REASON_DEADLINE_EXCEEDED: Reason
REASON_CANCELLED: Reason
REASON_DEPENDENCY_UNAVAILABLE: Reason
REASON_DRAINING: Reason
REASON_IDEMPOTENCY_CONFLICT: Reason
REASON_CONFLICT: Reason
REASON_NOT_FOUND: Reason
REASON_ALREADY_EXISTS: Reason
REASON_INTERNAL: Reason
REASON_UNIMPLEMENTED: Reason
REASON_QUOTA_SPEND: Reason
REASON_REJECTED_OVERLOAD: Reason
REASON_SLOW_READER: Reason
REASON_PREEMPTED: Reason
REASON_REVISION_GONE: Reason
REASON_NOT_OWNER: Reason
REASON_REGION_NOT_ALLOWED: Reason
REASON_CURSOR_INVALID: Reason
REASON_CURSOR_GONE: Reason
REASON_QUOTA_ROWS: Reason
REASON_UNSUPPORTED_MEDIA_TYPE: Reason
REASON_NO_WORKERS: Reason

class Rejection(_message.Message):
    __slots__ = ("reason", "message", "limit", "retry_after")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    message: str
    limit: str
    retry_after: _duration_pb2.Duration
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ..., limit: _Optional[str] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
