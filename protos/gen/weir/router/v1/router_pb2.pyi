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
    calls: RouterCalls
    cancel: _mux_pb2.CancelCalls
    def __init__(self, hello: _Optional[_Union[_mux_pb2.Hello, _Mapping]] = ..., calls: _Optional[_Union[RouterCalls, _Mapping]] = ..., cancel: _Optional[_Union[_mux_pb2.CancelCalls, _Mapping]] = ...) -> None: ...

class RouterCalls(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[RouterCall]
    def __init__(self, items: _Optional[_Iterable[_Union[RouterCall, _Mapping]]] = ...) -> None: ...

class RouterCall(_message.Message):
    __slots__ = ("header", "resolve", "report", "follow")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESOLVE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.CallHeader
    resolve: Resolve
    report: ReportOutcomes
    follow: Follow
    def __init__(self, header: _Optional[_Union[_mux_pb2.CallHeader, _Mapping]] = ..., resolve: _Optional[_Union[Resolve, _Mapping]] = ..., report: _Optional[_Union[ReportOutcomes, _Mapping]] = ..., follow: _Optional[_Union[Follow, _Mapping]] = ...) -> None: ...

class Resolve(_message.Message):
    __slots__ = ("tenant", "model", "sticky_key", "zone", "user", "session", "request_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STICKY_KEY_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    model: str
    sticky_key: str
    zone: str
    user: str
    session: str
    request_id: str
    def __init__(self, tenant: _Optional[str] = ..., model: _Optional[str] = ..., sticky_key: _Optional[str] = ..., zone: _Optional[str] = ..., user: _Optional[str] = ..., session: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Follow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportOutcomes(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[OutcomeCount]
    def __init__(self, counts: _Optional[_Iterable[_Union[OutcomeCount, _Mapping]]] = ...) -> None: ...

class OutcomeCount(_message.Message):
    __slots__ = ("pool", "zone", "successes", "failures", "model_version")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SUCCESSES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    pool: str
    zone: str
    successes: int
    failures: int
    model_version: str
    def __init__(self, pool: _Optional[str] = ..., zone: _Optional[str] = ..., successes: _Optional[int] = ..., failures: _Optional[int] = ..., model_version: _Optional[str] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "replies", "go_away")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    welcome: _mux_pb2.Welcome
    replies: RouterReplies
    go_away: _mux_pb2.GoAway
    def __init__(self, welcome: _Optional[_Union[_mux_pb2.Welcome, _Mapping]] = ..., replies: _Optional[_Union[RouterReplies, _Mapping]] = ..., go_away: _Optional[_Union[_mux_pb2.GoAway, _Mapping]] = ...) -> None: ...

class RouterReplies(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[RouterReply]
    def __init__(self, items: _Optional[_Iterable[_Union[RouterReply, _Mapping]]] = ...) -> None: ...

class RouterReply(_message.Message):
    __slots__ = ("header", "route", "rejected", "noted", "state")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    NOTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.ReplyHeader
    route: Route
    rejected: _errors_pb2.Rejection
    noted: OutcomesNoted
    state: RouterState
    def __init__(self, header: _Optional[_Union[_mux_pb2.ReplyHeader, _Mapping]] = ..., route: _Optional[_Union[Route, _Mapping]] = ..., rejected: _Optional[_Union[_errors_pb2.Rejection, _Mapping]] = ..., noted: _Optional[_Union[OutcomesNoted, _Mapping]] = ..., state: _Optional[_Union[RouterState, _Mapping]] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("model_version", "arm", "pool", "tier", "zones", "revision", "rollout_id", "step", "mirror")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ZONES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MIRROR_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    arm: str
    pool: str
    tier: str
    zones: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    rollout_id: str
    step: int
    mirror: Mirror
    def __init__(self, model_version: _Optional[str] = ..., arm: _Optional[str] = ..., pool: _Optional[str] = ..., tier: _Optional[str] = ..., zones: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., rollout_id: _Optional[str] = ..., step: _Optional[int] = ..., mirror: _Optional[_Union[Mirror, _Mapping]] = ...) -> None: ...

class Mirror(_message.Message):
    __slots__ = ("model_version", "arm", "pool", "tier", "zones")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ZONES_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    arm: str
    pool: str
    tier: str
    zones: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model_version: _Optional[str] = ..., arm: _Optional[str] = ..., pool: _Optional[str] = ..., tier: _Optional[str] = ..., zones: _Optional[_Iterable[str]] = ...) -> None: ...

class OutcomesNoted(_message.Message):
    __slots__ = ("next",)
    NEXT_FIELD_NUMBER: _ClassVar[int]
    next: _duration_pb2.Duration
    def __init__(self, next: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RouterState(_message.Message):
    __slots__ = ("revision", "lasts", "breakers", "slow_start")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LASTS_FIELD_NUMBER: _ClassVar[int]
    BREAKERS_FIELD_NUMBER: _ClassVar[int]
    SLOW_START_FIELD_NUMBER: _ClassVar[int]
    revision: int
    lasts: _duration_pb2.Duration
    breakers: _containers.RepeatedCompositeFieldContainer[ZoneBreaker]
    slow_start: _duration_pb2.Duration
    def __init__(self, revision: _Optional[int] = ..., lasts: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., breakers: _Optional[_Iterable[_Union[ZoneBreaker, _Mapping]]] = ..., slow_start: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ZoneBreaker(_message.Message):
    __slots__ = ("model_version", "zone", "half_open_in", "closed_for")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    HALF_OPEN_IN_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FOR_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    zone: str
    half_open_in: _duration_pb2.Duration
    closed_for: _duration_pb2.Duration
    def __init__(self, model_version: _Optional[str] = ..., zone: _Optional[str] = ..., half_open_in: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., closed_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
