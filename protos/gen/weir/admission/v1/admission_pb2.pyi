import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from weir.errors.v1 import errors_pb2 as _errors_pb2
from weir.mux.v1 import mux_pb2 as _mux_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUEUE_CLASS_UNSPECIFIED: _ClassVar[QueueClass]
    QUEUE_CLASS_PAID: _ClassVar[QueueClass]
    QUEUE_CLASS_FREE: _ClassVar[QueueClass]
    QUEUE_CLASS_OVER_QUOTA: _ClassVar[QueueClass]
    QUEUE_CLASS_BATCH: _ClassVar[QueueClass]
    QUEUE_CLASS_SHADOW: _ClassVar[QueueClass]
QUEUE_CLASS_UNSPECIFIED: QueueClass
QUEUE_CLASS_PAID: QueueClass
QUEUE_CLASS_FREE: QueueClass
QUEUE_CLASS_OVER_QUOTA: QueueClass
QUEUE_CLASS_BATCH: QueueClass
QUEUE_CLASS_SHADOW: QueueClass

class SessionRequest(_message.Message):
    __slots__ = ("hello", "calls", "cancel")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    hello: _mux_pb2.Hello
    calls: AdmissionCalls
    cancel: _mux_pb2.CancelCalls
    def __init__(self, hello: _Optional[_Union[_mux_pb2.Hello, _Mapping]] = ..., calls: _Optional[_Union[AdmissionCalls, _Mapping]] = ..., cancel: _Optional[_Union[_mux_pb2.CancelCalls, _Mapping]] = ...) -> None: ...

class AdmissionCalls(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AdmissionCall]
    def __init__(self, items: _Optional[_Iterable[_Union[AdmissionCall, _Mapping]]] = ...) -> None: ...

class AdmissionCall(_message.Message):
    __slots__ = ("header", "admit", "release")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.CallHeader
    admit: Admit
    release: Release
    def __init__(self, header: _Optional[_Union[_mux_pb2.CallHeader, _Mapping]] = ..., admit: _Optional[_Union[Admit, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ...) -> None: ...

class Admit(_message.Message):
    __slots__ = ("request_id", "tenant", "weight", "queue_class", "pool", "model_version", "zones", "prompt_tokens", "max_output_tokens", "choices", "exclude_workers", "ttft_target", "prefix_hashes", "prefix_block", "resumed_tokens", "kv_share", "version_share", "credits", "credit")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ZONES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    TTFT_TARGET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_BLOCK_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_SHARE_FIELD_NUMBER: _ClassVar[int]
    VERSION_SHARE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    weight: float
    queue_class: QueueClass
    pool: str
    model_version: str
    zones: _containers.RepeatedScalarFieldContainer[str]
    prompt_tokens: int
    max_output_tokens: int
    choices: int
    exclude_workers: _containers.RepeatedScalarFieldContainer[str]
    ttft_target: _duration_pb2.Duration
    prefix_hashes: _containers.RepeatedScalarFieldContainer[int]
    prefix_block: int
    resumed_tokens: int
    kv_share: float
    version_share: float
    credits: int
    credit: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., weight: _Optional[float] = ..., queue_class: _Optional[_Union[QueueClass, str]] = ..., pool: _Optional[str] = ..., model_version: _Optional[str] = ..., zones: _Optional[_Iterable[str]] = ..., prompt_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., choices: _Optional[int] = ..., exclude_workers: _Optional[_Iterable[str]] = ..., ttft_target: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefix_hashes: _Optional[_Iterable[int]] = ..., prefix_block: _Optional[int] = ..., resumed_tokens: _Optional[int] = ..., kv_share: _Optional[float] = ..., version_share: _Optional[float] = ..., credits: _Optional[int] = ..., credit: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("request_id", "output_tokens", "unused", "failed", "first_token", "cached_prompt_tokens", "cut_short")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNUSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CUT_SHORT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    output_tokens: int
    unused: bool
    failed: bool
    first_token: _duration_pb2.Duration
    cached_prompt_tokens: int
    cut_short: bool
    def __init__(self, request_id: _Optional[str] = ..., output_tokens: _Optional[int] = ..., unused: _Optional[bool] = ..., failed: _Optional[bool] = ..., first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., cached_prompt_tokens: _Optional[int] = ..., cut_short: _Optional[bool] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "replies", "go_away")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    welcome: _mux_pb2.Welcome
    replies: AdmissionReplies
    go_away: _mux_pb2.GoAway
    def __init__(self, welcome: _Optional[_Union[_mux_pb2.Welcome, _Mapping]] = ..., replies: _Optional[_Union[AdmissionReplies, _Mapping]] = ..., go_away: _Optional[_Union[_mux_pb2.GoAway, _Mapping]] = ...) -> None: ...

class AdmissionReplies(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AdmissionReply]
    def __init__(self, items: _Optional[_Iterable[_Union[AdmissionReply, _Mapping]]] = ...) -> None: ...

class AdmissionReply(_message.Message):
    __slots__ = ("header", "granted", "rejected", "released", "contended")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    CONTENDED_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.ReplyHeader
    granted: Granted
    rejected: _errors_pb2.Rejection
    released: Released
    contended: bool
    def __init__(self, header: _Optional[_Union[_mux_pb2.ReplyHeader, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., rejected: _Optional[_Union[_errors_pb2.Rejection, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., contended: _Optional[bool] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("grant", "worker", "address", "zone", "simulated", "queue_wait", "pressure", "predicted_first_token", "credits")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    grant: SignedGrant
    worker: str
    address: str
    zone: str
    simulated: bool
    queue_wait: _duration_pb2.Duration
    pressure: float
    predicted_first_token: _duration_pb2.Duration
    credits: _containers.RepeatedCompositeFieldContainer[Credit]
    def __init__(self, grant: _Optional[_Union[SignedGrant, _Mapping]] = ..., worker: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., simulated: _Optional[bool] = ..., queue_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., pressure: _Optional[float] = ..., predicted_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., credits: _Optional[_Iterable[_Union[Credit, _Mapping]]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("id", "granted", "prompt_tokens", "max_output_tokens", "lifetime", "indifferent_tokens")
    ID_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    INDIFFERENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    id: str
    granted: Granted
    prompt_tokens: int
    max_output_tokens: int
    lifetime: _duration_pb2.Duration
    indifferent_tokens: int
    def __init__(self, id: _Optional[str] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., lifetime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., indifferent_tokens: _Optional[int] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: _Optional[bool] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("nonce", "worker", "request_id", "model_version", "prompt_tokens", "max_output_tokens", "choices", "expires_at", "tenant", "epoch", "kv_share", "blocks", "credit")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KV_SHARE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    worker: str
    request_id: str
    model_version: str
    prompt_tokens: int
    max_output_tokens: int
    choices: int
    expires_at: _timestamp_pb2.Timestamp
    tenant: str
    epoch: int
    kv_share: float
    blocks: int
    credit: bool
    def __init__(self, nonce: _Optional[bytes] = ..., worker: _Optional[str] = ..., request_id: _Optional[str] = ..., model_version: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., choices: _Optional[int] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tenant: _Optional[str] = ..., epoch: _Optional[int] = ..., kv_share: _Optional[float] = ..., blocks: _Optional[int] = ..., credit: _Optional[bool] = ...) -> None: ...

class SignedGrant(_message.Message):
    __slots__ = ("grant", "mac", "key_id", "holder")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    grant: bytes
    mac: bytes
    key_id: str
    holder: Holder
    def __init__(self, grant: _Optional[bytes] = ..., mac: _Optional[bytes] = ..., key_id: _Optional[str] = ..., holder: _Optional[_Union[Holder, _Mapping]] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class ReportCapacityRequest(_message.Message):
    __slots__ = ("hello", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    report: CapacityReport
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., report: _Optional[_Union[CapacityReport, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("worker", "address", "zone", "pool", "model_versions", "block_size", "total_blocks", "max_running", "max_context", "simulated", "engine", "preemptive", "epoch", "owner", "holds_shares", "takes_credits")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIVE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    HOLDS_SHARES_FIELD_NUMBER: _ClassVar[int]
    TAKES_CREDITS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    address: str
    zone: str
    pool: str
    model_versions: _containers.RepeatedScalarFieldContainer[str]
    block_size: int
    total_blocks: int
    max_running: int
    max_context: int
    simulated: bool
    engine: str
    preemptive: bool
    epoch: int
    owner: str
    holds_shares: bool
    takes_credits: bool
    def __init__(self, worker: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., pool: _Optional[str] = ..., model_versions: _Optional[_Iterable[str]] = ..., block_size: _Optional[int] = ..., total_blocks: _Optional[int] = ..., max_running: _Optional[int] = ..., max_context: _Optional[int] = ..., simulated: _Optional[bool] = ..., engine: _Optional[str] = ..., preemptive: _Optional[bool] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., holds_shares: _Optional[bool] = ..., takes_credits: _Optional[bool] = ...) -> None: ...

class CapacityReport(_message.Message):
    __slots__ = ("free_blocks", "running", "waiting", "queued_prefill_tokens", "last_step", "draining", "decode_step", "prefill_tokens_per_second", "cached_blocks", "swapped", "fragmentation", "prefix_queried_total", "prefix_hit_total", "preemptions_total", "spilled_blocks", "resident_models", "model_versions", "epoch", "owner", "earlier_blocks", "earlier_sequences", "progress")
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEP_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTATION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_QUERIED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_MODELS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EARLIER_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EARLIER_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    free_blocks: int
    running: int
    waiting: int
    queued_prefill_tokens: int
    last_step: _duration_pb2.Duration
    draining: bool
    decode_step: _duration_pb2.Duration
    prefill_tokens_per_second: float
    cached_blocks: int
    swapped: int
    fragmentation: float
    prefix_queried_total: int
    prefix_hit_total: int
    preemptions_total: int
    spilled_blocks: int
    resident_models: _containers.RepeatedScalarFieldContainer[str]
    model_versions: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    owner: str
    earlier_blocks: int
    earlier_sequences: int
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, free_blocks: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., queued_prefill_tokens: _Optional[int] = ..., last_step: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., draining: _Optional[bool] = ..., decode_step: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill_tokens_per_second: _Optional[float] = ..., cached_blocks: _Optional[int] = ..., swapped: _Optional[int] = ..., fragmentation: _Optional[float] = ..., prefix_queried_total: _Optional[int] = ..., prefix_hit_total: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., spilled_blocks: _Optional[int] = ..., resident_models: _Optional[_Iterable[str]] = ..., model_versions: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., earlier_blocks: _Optional[int] = ..., earlier_sequences: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("request_id", "output_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    output_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class ReportCapacityResponse(_message.Message):
    __slots__ = ("welcome", "preempt", "drain", "owns")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PREEMPT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    OWNS_FIELD_NUMBER: _ClassVar[int]
    welcome: WorkerWelcome
    preempt: Preempt
    drain: Drain
    owns: Owns
    def __init__(self, welcome: _Optional[_Union[WorkerWelcome, _Mapping]] = ..., preempt: _Optional[_Union[Preempt, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., owns: _Optional[_Union[Owns, _Mapping]] = ...) -> None: ...

class WorkerWelcome(_message.Message):
    __slots__ = ("grant_key", "key_id", "heartbeat", "admission", "epoch", "time")
    GRANT_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    grant_key: bytes
    key_id: str
    heartbeat: _duration_pb2.Duration
    admission: str
    epoch: int
    time: _timestamp_pb2.Timestamp
    def __init__(self, grant_key: _Optional[bytes] = ..., key_id: _Optional[str] = ..., heartbeat: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., admission: _Optional[str] = ..., epoch: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Owns(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Preempt(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("hello", "report", "report_age", "held_sequences", "held_blocks", "draining")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REPORT_AGE_FIELD_NUMBER: _ClassVar[int]
    HELD_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    report: CapacityReport
    report_age: _duration_pb2.Duration
    held_sequences: int
    held_blocks: int
    draining: bool
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., report: _Optional[_Union[CapacityReport, _Mapping]] = ..., report_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., held_sequences: _Optional[int] = ..., held_blocks: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...
