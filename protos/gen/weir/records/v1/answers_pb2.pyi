import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AnswerKey(_message.Message):
    __slots__ = ("tenant", "key")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    key: bytes
    def __init__(self, tenant: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ("key", "body", "holder", "lease", "life", "take_over")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    key: AnswerKey
    body: bytes
    holder: str
    lease: _duration_pb2.Duration
    life: _duration_pb2.Duration
    take_over: bool
    def __init__(self, key: _Optional[_Union[AnswerKey, _Mapping]] = ..., body: _Optional[bytes] = ..., holder: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., life: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., take_over: _Optional[bool] = ...) -> None: ...

class BeginResponse(_message.Message):
    __slots__ = ("state", "answer")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[BeginResponse.State]
        STATE_BEGUN: _ClassVar[BeginResponse.State]
        STATE_RUNNING: _ClassVar[BeginResponse.State]
        STATE_ENDED: _ClassVar[BeginResponse.State]
        STATE_CONFLICT: _ClassVar[BeginResponse.State]
    STATE_UNSPECIFIED: BeginResponse.State
    STATE_BEGUN: BeginResponse.State
    STATE_RUNNING: BeginResponse.State
    STATE_ENDED: BeginResponse.State
    STATE_CONFLICT: BeginResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    state: BeginResponse.State
    answer: bytes
    def __init__(self, state: _Optional[_Union[BeginResponse.State, str]] = ..., answer: _Optional[bytes] = ...) -> None: ...

class KeepRequest(_message.Message):
    __slots__ = ("key", "holder", "answer")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    key: AnswerKey
    holder: str
    answer: bytes
    def __init__(self, key: _Optional[_Union[AnswerKey, _Mapping]] = ..., holder: _Optional[str] = ..., answer: _Optional[bytes] = ...) -> None: ...

class KeepResponse(_message.Message):
    __slots__ = ("kept",)
    KEPT_FIELD_NUMBER: _ClassVar[int]
    kept: bool
    def __init__(self, kept: _Optional[bool] = ...) -> None: ...

class DropRequest(_message.Message):
    __slots__ = ("key", "holder")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    key: AnswerKey
    holder: str
    def __init__(self, key: _Optional[_Union[AnswerKey, _Mapping]] = ..., holder: _Optional[str] = ...) -> None: ...

class DropResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("holder", "lease")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    holder: str
    lease: _duration_pb2.Duration
    def __init__(self, holder: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("claims",)
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    claims: int
    def __init__(self, claims: _Optional[int] = ...) -> None: ...
