import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from weir.mux.v1 import mux_pb2 as _mux_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionRequest(_message.Message):
    __slots__ = ("hello", "calls", "cancel")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    hello: _mux_pb2.Hello
    calls: AuditCalls
    cancel: _mux_pb2.CancelCalls
    def __init__(self, hello: _Optional[_Union[_mux_pb2.Hello, _Mapping]] = ..., calls: _Optional[_Union[AuditCalls, _Mapping]] = ..., cancel: _Optional[_Union[_mux_pb2.CancelCalls, _Mapping]] = ...) -> None: ...

class AuditCalls(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AuditCall]
    def __init__(self, items: _Optional[_Iterable[_Union[AuditCall, _Mapping]]] = ...) -> None: ...

class AuditCall(_message.Message):
    __slots__ = ("header", "append")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.CallHeader
    append: Append
    def __init__(self, header: _Optional[_Union[_mux_pb2.CallHeader, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: Record
    def __init__(self, record: _Optional[_Union[Record, _Mapping]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("id", "time", "source", "request", "admin", "safety", "security")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    id: str
    time: _timestamp_pb2.Timestamp
    source: str
    request: RequestEvent
    admin: AdminEvent
    safety: SafetyEvent
    security: SecurityEvent
    def __init__(self, id: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., source: _Optional[str] = ..., request: _Optional[_Union[RequestEvent, _Mapping]] = ..., admin: _Optional[_Union[AdminEvent, _Mapping]] = ..., safety: _Optional[_Union[SafetyEvent, _Mapping]] = ..., security: _Optional[_Union[SecurityEvent, _Mapping]] = ...) -> None: ...

class RequestEvent(_message.Message):
    __slots__ = ("request_id", "tenant", "key_id", "model", "model_version", "arm", "operation", "outcome", "reason", "prompt_tokens", "completion_tokens", "duration", "time_to_first_token", "worker", "zone", "simulated", "degraded", "trace_id", "training_allowed", "safety_policies", "cached_prompt_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    SAFETY_POLICIES_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    key_id: str
    model: str
    model_version: str
    arm: str
    operation: str
    outcome: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    duration: _duration_pb2.Duration
    time_to_first_token: _duration_pb2.Duration
    worker: str
    zone: str
    simulated: bool
    degraded: _containers.RepeatedScalarFieldContainer[str]
    trace_id: str
    training_allowed: bool
    safety_policies: _containers.RepeatedScalarFieldContainer[str]
    cached_prompt_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., key_id: _Optional[str] = ..., model: _Optional[str] = ..., model_version: _Optional[str] = ..., arm: _Optional[str] = ..., operation: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., worker: _Optional[str] = ..., zone: _Optional[str] = ..., simulated: _Optional[bool] = ..., degraded: _Optional[_Iterable[str]] = ..., trace_id: _Optional[str] = ..., training_allowed: _Optional[bool] = ..., safety_policies: _Optional[_Iterable[str]] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class AdminEvent(_message.Message):
    __slots__ = ("actor", "action", "resource", "revision", "reason")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    actor: str
    action: str
    resource: str
    revision: int
    reason: str
    def __init__(self, actor: _Optional[str] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ..., revision: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SafetyEvent(_message.Message):
    __slots__ = ("request_id", "tenant", "stage", "category", "pattern", "action", "pack")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    stage: str
    category: str
    pattern: str
    action: str
    pack: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., stage: _Optional[str] = ..., category: _Optional[str] = ..., pattern: _Optional[str] = ..., action: _Optional[str] = ..., pack: _Optional[str] = ...) -> None: ...

class SecurityEvent(_message.Message):
    __slots__ = ("kind", "reason", "network", "key_id", "tenant", "actor", "action", "count", "since", "summed")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    reason: str
    network: str
    key_id: str
    tenant: str
    actor: str
    action: str
    count: int
    since: _timestamp_pb2.Timestamp
    summed: bool
    def __init__(self, kind: _Optional[str] = ..., reason: _Optional[str] = ..., network: _Optional[str] = ..., key_id: _Optional[str] = ..., tenant: _Optional[str] = ..., actor: _Optional[str] = ..., action: _Optional[str] = ..., count: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., summed: _Optional[bool] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "replies", "go_away")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    welcome: _mux_pb2.Welcome
    replies: AuditReplies
    go_away: _mux_pb2.GoAway
    def __init__(self, welcome: _Optional[_Union[_mux_pb2.Welcome, _Mapping]] = ..., replies: _Optional[_Union[AuditReplies, _Mapping]] = ..., go_away: _Optional[_Union[_mux_pb2.GoAway, _Mapping]] = ...) -> None: ...

class AuditReplies(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AuditReply]
    def __init__(self, items: _Optional[_Iterable[_Union[AuditReply, _Mapping]]] = ...) -> None: ...

class AuditReply(_message.Message):
    __slots__ = ("header", "appended")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.ReplyHeader
    appended: Appended
    def __init__(self, header: _Optional[_Union[_mux_pb2.ReplyHeader, _Mapping]] = ..., appended: _Optional[_Union[Appended, _Mapping]] = ...) -> None: ...

class Appended(_message.Message):
    __slots__ = ("sequence", "duplicate")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    duplicate: bool
    def __init__(self, sequence: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class TailRequest(_message.Message):
    __slots__ = ("limit", "tenant")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    tenant: str
    def __init__(self, limit: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class TailResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ...) -> None: ...

class StoredRecord(_message.Message):
    __slots__ = ("sequence", "record", "hash", "damage")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    record: Record
    hash: str
    damage: str
    def __init__(self, sequence: _Optional[int] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., hash: _Optional[str] = ..., damage: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("ok", "records", "checkpoints", "head", "faults", "notes", "key_fingerprint")
    OK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    records: int
    checkpoints: int
    head: str
    faults: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    key_fingerprint: str
    def __init__(self, ok: _Optional[bool] = ..., records: _Optional[int] = ..., checkpoints: _Optional[int] = ..., head: _Optional[str] = ..., faults: _Optional[_Iterable[str]] = ..., notes: _Optional[_Iterable[str]] = ..., key_fingerprint: _Optional[str] = ...) -> None: ...

class AcceptRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class AcceptResponse(_message.Message):
    __slots__ = ("sequence", "faults")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    faults: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sequence: _Optional[int] = ..., faults: _Optional[_Iterable[str]] = ...) -> None: ...
