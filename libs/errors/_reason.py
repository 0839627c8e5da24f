"""The closed set of reasons, equal to `weir.errors.v1.Reason` in names and numbers (a test compares them)."""

from __future__ import annotations

import enum


class Reason(enum.IntEnum):
    """Why a request was not served as asked; meanings are documented in the proto."""

    UNSPECIFIED = 0
    INVALID_REQUEST = 1
    MODEL_NOT_FOUND = 2
    CONTEXT_LENGTH_EXCEEDED = 3
    PAYLOAD_TOO_LARGE = 4
    UNAUTHENTICATED = 5
    KEY_REVOKED = 6
    KEY_EXPIRED = 7
    SCOPE_MISSING = 8
    PERMISSION_DENIED = 9
    QUOTA_REQUESTS = 10
    QUOTA_TOKENS = 11
    QUOTA_CONCURRENCY = 12
    REJECTED_QUEUE_FULL = 13
    REJECTED_DEADLINE = 14
    REJECTED_NO_CAPACITY = 15
    EVICTED_TTL = 16
    EVICTED_DEADLINE = 17
    EVICTED_SHED = 18
    CONTENT_FILTER = 19
    GRANT_INVALID = 20
    GRANT_EXPIRED = 21
    GRANT_REPLAYED = 22
    WORKER_LOST = 23
    ENGINE_ERROR = 24
    DEADLINE_EXCEEDED = 25
    CANCELLED = 26
    DEPENDENCY_UNAVAILABLE = 27
    DRAINING = 28
    IDEMPOTENCY_CONFLICT = 29
    CONFLICT = 30
    NOT_FOUND = 31
    ALREADY_EXISTS = 32
    INTERNAL = 33
    UNIMPLEMENTED = 34
    QUOTA_SPEND = 35
    REJECTED_OVERLOAD = 36
    SLOW_READER = 37
    PREEMPTED = 38
    REVISION_GONE = 39
    NOT_OWNER = 40
    REGION_NOT_ALLOWED = 44
    CURSOR_INVALID = 45
    CURSOR_GONE = 46
    QUOTA_ROWS = 47
    UNSUPPORTED_MEDIA_TYPE = 48
    NO_WORKERS = 49

    @classmethod
    def parse(cls, name: str) -> Reason:
        """The reason of this name; INTERNAL for a name that this build does not know."""
        return cls.__members__.get(name, cls.INTERNAL)
