import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from weir.errors.v1 import errors_pb2 as _errors_pb2
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
    calls: QuotaCalls
    cancel: _mux_pb2.CancelCalls
    def __init__(self, hello: _Optional[_Union[_mux_pb2.Hello, _Mapping]] = ..., calls: _Optional[_Union[QuotaCalls, _Mapping]] = ..., cancel: _Optional[_Union[_mux_pb2.CancelCalls, _Mapping]] = ...) -> None: ...

class QuotaCalls(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[QuotaCall]
    def __init__(self, items: _Optional[_Iterable[_Union[QuotaCall, _Mapping]]] = ...) -> None: ...

class QuotaCall(_message.Message):
    __slots__ = ("header", "reserve", "settle", "check_edge", "replicate", "fetch_state", "renew")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    CHECK_EDGE_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    FETCH_STATE_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.CallHeader
    reserve: Reserve
    settle: Settle
    check_edge: CheckEdge
    replicate: Replicate
    fetch_state: FetchState
    renew: Renew
    def __init__(self, header: _Optional[_Union[_mux_pb2.CallHeader, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., check_edge: _Optional[_Union[CheckEdge, _Mapping]] = ..., replicate: _Optional[_Union[Replicate, _Mapping]] = ..., fetch_state: _Optional[_Union[FetchState, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("tenant", "model", "request_id", "tokens", "request_counted", "lease", "prompt_tokens", "max_output_tokens", "choices", "model_version", "over_quota_allowed", "share_seen", "granted", "grows", "share_wanted", "rows", "requests")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_COUNTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    OVER_QUOTA_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    SHARE_SEEN_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    GROWS_FIELD_NUMBER: _ClassVar[int]
    SHARE_WANTED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    model: str
    request_id: str
    tokens: int
    request_counted: bool
    lease: _duration_pb2.Duration
    prompt_tokens: int
    max_output_tokens: int
    choices: int
    model_version: str
    over_quota_allowed: bool
    share_seen: int
    granted: bool
    grows: bool
    share_wanted: bool
    rows: bool
    requests: int
    def __init__(self, tenant: _Optional[str] = ..., model: _Optional[str] = ..., request_id: _Optional[str] = ..., tokens: _Optional[int] = ..., request_counted: _Optional[bool] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., choices: _Optional[int] = ..., model_version: _Optional[str] = ..., over_quota_allowed: _Optional[bool] = ..., share_seen: _Optional[int] = ..., granted: _Optional[bool] = ..., grows: _Optional[bool] = ..., share_wanted: _Optional[bool] = ..., rows: _Optional[bool] = ..., requests: _Optional[int] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("tenant", "model", "request_id", "tokens", "prompt_tokens", "model_version", "over_quota", "cached_prompt_tokens", "rows")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    model: str
    request_id: str
    tokens: int
    prompt_tokens: int
    model_version: str
    over_quota: bool
    cached_prompt_tokens: int
    rows: bool
    def __init__(self, tenant: _Optional[str] = ..., model: _Optional[str] = ..., request_id: _Optional[str] = ..., tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., model_version: _Optional[str] = ..., over_quota: _Optional[bool] = ..., cached_prompt_tokens: _Optional[int] = ..., rows: _Optional[bool] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("held", "lease")
    HELD_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[Held]
    lease: _duration_pb2.Duration
    def __init__(self, held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("tenant", "request_ids")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckEdge(_message.Message):
    __slots__ = ("tenant", "requests", "tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    requests: int
    tokens: int
    def __init__(self, tenant: _Optional[str] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Replicate(_message.Message):
    __slots__ = ("origin", "life", "sequence", "operations")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    life: str
    sequence: int
    operations: bytes
    def __init__(self, origin: _Optional[str] = ..., life: _Optional[str] = ..., sequence: _Optional[int] = ..., operations: _Optional[bytes] = ...) -> None: ...

class FetchState(_message.Message):
    __slots__ = ("instance", "cursor")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    instance: str
    cursor: bytes
    def __init__(self, instance: _Optional[str] = ..., cursor: _Optional[bytes] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "replies", "go_away")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    welcome: _mux_pb2.Welcome
    replies: QuotaReplies
    go_away: _mux_pb2.GoAway
    def __init__(self, welcome: _Optional[_Union[_mux_pb2.Welcome, _Mapping]] = ..., replies: _Optional[_Union[QuotaReplies, _Mapping]] = ..., go_away: _Optional[_Union[_mux_pb2.GoAway, _Mapping]] = ...) -> None: ...

class QuotaReplies(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[QuotaReply]
    def __init__(self, items: _Optional[_Iterable[_Union[QuotaReply, _Mapping]]] = ...) -> None: ...

class QuotaReply(_message.Message):
    __slots__ = ("header", "reserved", "rejected", "settled", "edge_passed", "replicated", "state", "renewed", "shares", "share_number", "share_lasts", "allowance")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    EDGE_PASSED_FIELD_NUMBER: _ClassVar[int]
    REPLICATED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SHARE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SHARE_LASTS_FIELD_NUMBER: _ClassVar[int]
    ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.ReplyHeader
    reserved: Reserved
    rejected: _errors_pb2.Rejection
    settled: Settled
    edge_passed: Reserved
    replicated: Replicated
    state: State
    renewed: Renewed
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    share_number: int
    share_lasts: _duration_pb2.Duration
    allowance: bool
    def __init__(self, header: _Optional[_Union[_mux_pb2.ReplyHeader, _Mapping]] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., rejected: _Optional[_Union[_errors_pb2.Rejection, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., edge_passed: _Optional[_Union[Reserved, _Mapping]] = ..., replicated: _Optional[_Union[Replicated, _Mapping]] = ..., state: _Optional[_Union[State, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., share_number: _Optional[int] = ..., share_lasts: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., allowance: _Optional[bool] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("model", "tokens", "requests", "spend", "slots")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SPEND_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: int
    requests: int
    spend: int
    slots: int
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[int] = ..., requests: _Optional[int] = ..., spend: _Optional[int] = ..., slots: _Optional[int] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("requests", "tokens", "concurrency", "spend", "over_quota", "local_tokens", "local_requests")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    SPEND_FIELD_NUMBER: _ClassVar[int]
    OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: LimitStatus
    tokens: LimitStatus
    concurrency: LimitStatus
    spend: LimitStatus
    over_quota: bool
    local_tokens: int
    local_requests: int
    def __init__(self, requests: _Optional[_Union[LimitStatus, _Mapping]] = ..., tokens: _Optional[_Union[LimitStatus, _Mapping]] = ..., concurrency: _Optional[_Union[LimitStatus, _Mapping]] = ..., spend: _Optional[_Union[LimitStatus, _Mapping]] = ..., over_quota: _Optional[bool] = ..., local_tokens: _Optional[int] = ..., local_requests: _Optional[int] = ...) -> None: ...

class LimitStatus(_message.Message):
    __slots__ = ("limit", "remaining", "reset", "period")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    limit: int
    remaining: int
    reset: _duration_pb2.Duration
    period: _duration_pb2.Duration
    def __init__(self, limit: _Optional[int] = ..., remaining: _Optional[int] = ..., reset: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., period: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Replicated(_message.Message):
    __slots__ = ("gap",)
    GAP_FIELD_NUMBER: _ClassVar[int]
    gap: bool
    def __init__(self, gap: _Optional[bool] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("unknown",)
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, unknown: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("state", "seen", "cursor")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    seen: _containers.RepeatedCompositeFieldContainer[Seen]
    cursor: bytes
    def __init__(self, state: _Optional[bytes] = ..., seen: _Optional[_Iterable[_Union[Seen, _Mapping]]] = ..., cursor: _Optional[bytes] = ...) -> None: ...

class Seen(_message.Message):
    __slots__ = ("origin", "life", "sequence")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    origin: str
    life: str
    sequence: int
    def __init__(self, origin: _Optional[str] = ..., life: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: _Optional[bool] = ...) -> None: ...
