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
    __slots__ = ("header", "append", "append_batch")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_BATCH_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.CallHeader
    append: Append
    append_batch: AppendBatch
    def __init__(self, header: _Optional[_Union[_mux_pb2.CallHeader, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., append_batch: _Optional[_Union[AppendBatch, _Mapping]] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: Record
    def __init__(self, record: _Optional[_Union[Record, _Mapping]] = ...) -> None: ...

class AppendBatch(_message.Message):
    __slots__ = ("source", "journal", "epoch", "first", "records", "start")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    source: str
    journal: str
    epoch: str
    first: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    start: int
    def __init__(self, source: _Optional[str] = ..., journal: _Optional[str] = ..., epoch: _Optional[str] = ..., first: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ..., start: _Optional[int] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("journal", "epoch", "sequence")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    journal: str
    epoch: str
    sequence: int
    def __init__(self, journal: _Optional[str] = ..., epoch: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class MarksEvent(_message.Message):
    __slots__ = ("marks",)
    MARKS_FIELD_NUMBER: _ClassVar[int]
    marks: _containers.RepeatedCompositeFieldContainer[Mark]
    def __init__(self, marks: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("source", "journal", "epoch", "sequence")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    source: str
    journal: str
    epoch: str
    sequence: int
    def __init__(self, source: _Optional[str] = ..., journal: _Optional[str] = ..., epoch: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class GapEvent(_message.Message):
    __slots__ = ("source", "journal", "epoch", "first", "last", "reason")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    source: str
    journal: str
    epoch: str
    first: int
    last: int
    reason: str
    def __init__(self, source: _Optional[str] = ..., journal: _Optional[str] = ..., epoch: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("id", "time", "source", "request", "admin", "safety", "security", "tombstone", "marks", "gap", "origin")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    id: str
    time: _timestamp_pb2.Timestamp
    source: str
    request: RequestEvent
    admin: AdminEvent
    safety: SafetyEvent
    security: SecurityEvent
    tombstone: TombstoneEvent
    marks: MarksEvent
    gap: GapEvent
    origin: Origin
    def __init__(self, id: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., source: _Optional[str] = ..., request: _Optional[_Union[RequestEvent, _Mapping]] = ..., admin: _Optional[_Union[AdminEvent, _Mapping]] = ..., safety: _Optional[_Union[SafetyEvent, _Mapping]] = ..., security: _Optional[_Union[SecurityEvent, _Mapping]] = ..., tombstone: _Optional[_Union[TombstoneEvent, _Mapping]] = ..., marks: _Optional[_Union[MarksEvent, _Mapping]] = ..., gap: _Optional[_Union[GapEvent, _Mapping]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ...) -> None: ...

class RequestEvent(_message.Message):
    __slots__ = ("request_id", "tenant", "key_id", "model", "model_version", "arm", "operation", "outcome", "reason", "prompt_tokens", "completion_tokens", "duration", "time_to_first_token", "worker", "zone", "simulated", "degraded", "trace_id", "training_allowed", "safety_policies", "cached_prompt_tokens", "resumes", "resumed_tokens", "spend_microusd", "user", "queue_class", "at_most_tokens", "at_most_microusd", "rows", "at_most_rows", "lease")
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
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPEND_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_ROWS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
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
    resumes: str
    resumed_tokens: int
    spend_microusd: int
    user: str
    queue_class: str
    at_most_tokens: int
    at_most_microusd: int
    rows: int
    at_most_rows: int
    lease: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., key_id: _Optional[str] = ..., model: _Optional[str] = ..., model_version: _Optional[str] = ..., arm: _Optional[str] = ..., operation: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., worker: _Optional[str] = ..., zone: _Optional[str] = ..., simulated: _Optional[bool] = ..., degraded: _Optional[_Iterable[str]] = ..., trace_id: _Optional[str] = ..., training_allowed: _Optional[bool] = ..., safety_policies: _Optional[_Iterable[str]] = ..., cached_prompt_tokens: _Optional[int] = ..., resumes: _Optional[str] = ..., resumed_tokens: _Optional[int] = ..., spend_microusd: _Optional[int] = ..., user: _Optional[str] = ..., queue_class: _Optional[str] = ..., at_most_tokens: _Optional[int] = ..., at_most_microusd: _Optional[int] = ..., rows: _Optional[int] = ..., at_most_rows: _Optional[int] = ..., lease: _Optional[str] = ...) -> None: ...

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

class TombstoneEvent(_message.Message):
    __slots__ = ("actor", "reason", "reference", "tenant", "subject", "data_class", "before", "upto", "keys", "keys_destroyed", "signature")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DATA_CLASS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEYS_DESTROYED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    actor: str
    reason: str
    reference: str
    tenant: str
    subject: str
    data_class: str
    before: str
    upto: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    keys_destroyed: int
    signature: str
    def __init__(self, actor: _Optional[str] = ..., reason: _Optional[str] = ..., reference: _Optional[str] = ..., tenant: _Optional[str] = ..., subject: _Optional[str] = ..., data_class: _Optional[str] = ..., before: _Optional[str] = ..., upto: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ..., keys_destroyed: _Optional[int] = ..., signature: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("sequence", "record", "hash", "damage", "erased_by")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    ERASED_BY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    record: Record
    hash: str
    damage: str
    erased_by: int
    def __init__(self, sequence: _Optional[int] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., hash: _Optional[str] = ..., damage: _Optional[str] = ..., erased_by: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("ok", "records", "checkpoints", "head", "faults", "notes", "key_fingerprint", "first", "sealed", "erased", "tombstones")
    OK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    ERASED_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    records: int
    checkpoints: int
    head: str
    faults: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    key_fingerprint: str
    first: int
    sealed: int
    erased: int
    tombstones: int
    def __init__(self, ok: _Optional[bool] = ..., records: _Optional[int] = ..., checkpoints: _Optional[int] = ..., head: _Optional[str] = ..., faults: _Optional[_Iterable[str]] = ..., notes: _Optional[_Iterable[str]] = ..., key_fingerprint: _Optional[str] = ..., first: _Optional[int] = ..., sealed: _Optional[int] = ..., erased: _Optional[int] = ..., tombstones: _Optional[int] = ...) -> None: ...

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

class EraseRequest(_message.Message):
    __slots__ = ("tenant", "subject", "data_class", "before", "reason", "reference", "dry_run")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DATA_CLASS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    subject: str
    data_class: str
    before: str
    reason: str
    reference: str
    dry_run: bool
    def __init__(self, tenant: _Optional[str] = ..., subject: _Optional[str] = ..., data_class: _Optional[str] = ..., before: _Optional[str] = ..., reason: _Optional[str] = ..., reference: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("tombstones", "keys", "clear_upto")
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CLEAR_UPTO_FIELD_NUMBER: _ClassVar[int]
    tombstones: _containers.RepeatedScalarFieldContainer[int]
    keys: int
    clear_upto: int
    def __init__(self, tombstones: _Optional[_Iterable[int]] = ..., keys: _Optional[int] = ..., clear_upto: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("tenant", "data_class", "first", "last")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DATA_CLASS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    data_class: str
    first: int
    last: int
    def __init__(self, tenant: _Optional[str] = ..., data_class: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class ExportResponse(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: bytes
    def __init__(self, lines: _Optional[bytes] = ...) -> None: ...

class RotateKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RotateKeysResponse(_message.Message):
    __slots__ = ("kek", "keys")
    KEK_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    kek: str
    keys: int
    def __init__(self, kek: _Optional[str] = ..., keys: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("after", "wait", "again")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    after: int
    wait: _duration_pb2.Duration
    again: bool
    def __init__(self, after: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., again: _Optional[bool] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("lines", "segment", "count", "base")
    LINES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    lines: bytes
    segment: int
    count: int
    base: int
    def __init__(self, lines: _Optional[bytes] = ..., segment: _Optional[int] = ..., count: _Optional[int] = ..., base: _Optional[int] = ...) -> None: ...

class UsersRequest(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class UsersResponse(_message.Message):
    __slots__ = ("users", "erased")
    USERS_FIELD_NUMBER: _ClassVar[int]
    ERASED_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedScalarFieldContainer[str]
    erased: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, users: _Optional[_Iterable[str]] = ..., erased: _Optional[_Iterable[int]] = ...) -> None: ...

class ReconcileRequest(_message.Message):
    __slots__ = ("ledger", "delivered")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ledger: _containers.RepeatedCompositeFieldContainer[LedgerSpend]
    delivered: _containers.RepeatedCompositeFieldContainer[Delivered]
    def __init__(self, ledger: _Optional[_Iterable[_Union[LedgerSpend, _Mapping]]] = ..., delivered: _Optional[_Iterable[_Union[Delivered, _Mapping]]] = ...) -> None: ...

class LedgerSpend(_message.Message):
    __slots__ = ("tenant", "time_zone", "day", "day_microusd", "month", "month_microusd")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    DAY_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    MONTH_FIELD_NUMBER: _ClassVar[int]
    MONTH_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    time_zone: str
    day: str
    day_microusd: int
    month: str
    month_microusd: int
    def __init__(self, tenant: _Optional[str] = ..., time_zone: _Optional[str] = ..., day: _Optional[str] = ..., day_microusd: _Optional[int] = ..., month: _Optional[str] = ..., month_microusd: _Optional[int] = ...) -> None: ...

class Delivered(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "completion_tokens", "rows")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: int
    completion_tokens: int
    rows: int
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class ReconcileResponse(_message.Message):
    __slots__ = ("differences", "requests", "sequence")
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    differences: _containers.RepeatedCompositeFieldContainer[Difference]
    requests: int
    sequence: int
    def __init__(self, differences: _Optional[_Iterable[_Union[Difference, _Mapping]]] = ..., requests: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("what", "subject", "detail")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    what: str
    subject: str
    detail: str
    def __init__(self, what: _Optional[str] = ..., subject: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...
