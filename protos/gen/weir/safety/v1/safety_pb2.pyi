from weir.errors.v1 import errors_pb2 as _errors_pb2
from weir.mux.v1 import mux_pb2 as _mux_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_FLAG: _ClassVar[Action]
    ACTION_REDACT: _ClassVar[Action]
    ACTION_BLOCK: _ClassVar[Action]
    ACTION_TOKENISE: _ClassVar[Action]
ACTION_UNSPECIFIED: Action
ACTION_FLAG: Action
ACTION_REDACT: Action
ACTION_BLOCK: Action
ACTION_TOKENISE: Action

class SessionRequest(_message.Message):
    __slots__ = ("hello", "calls", "cancel")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    hello: _mux_pb2.Hello
    calls: SafetyCalls
    cancel: _mux_pb2.CancelCalls
    def __init__(self, hello: _Optional[_Union[_mux_pb2.Hello, _Mapping]] = ..., calls: _Optional[_Union[SafetyCalls, _Mapping]] = ..., cancel: _Optional[_Union[_mux_pb2.CancelCalls, _Mapping]] = ...) -> None: ...

class SafetyCalls(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[SafetyCall]
    def __init__(self, items: _Optional[_Iterable[_Union[SafetyCall, _Mapping]]] = ...) -> None: ...

class SafetyCall(_message.Message):
    __slots__ = ("header", "check_input", "filter_output")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHECK_INPUT_FIELD_NUMBER: _ClassVar[int]
    FILTER_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.CallHeader
    check_input: CheckInput
    filter_output: FilterOutput
    def __init__(self, header: _Optional[_Union[_mux_pb2.CallHeader, _Mapping]] = ..., check_input: _Optional[_Union[CheckInput, _Mapping]] = ..., filter_output: _Optional[_Union[FilterOutput, _Mapping]] = ...) -> None: ...

class CheckInput(_message.Message):
    __slots__ = ("tenant", "policies", "texts", "request_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    policies: _containers.RepeatedScalarFieldContainer[str]
    texts: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    def __init__(self, tenant: _Optional[str] = ..., policies: _Optional[_Iterable[str]] = ..., texts: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class FilterOutput(_message.Message):
    __slots__ = ("open", "filters", "deltas", "last", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: _containers.RepeatedCompositeFieldContainer[OpenFilter]
    filters: _containers.RepeatedScalarFieldContainer[int]
    deltas: _containers.RepeatedScalarFieldContainer[str]
    last: _containers.RepeatedScalarFieldContainer[bool]
    close: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, open: _Optional[_Iterable[_Union[OpenFilter, _Mapping]]] = ..., filters: _Optional[_Iterable[int]] = ..., deltas: _Optional[_Iterable[str]] = ..., last: _Optional[_Iterable[bool]] = ..., close: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenFilter(_message.Message):
    __slots__ = ("filter", "tenant", "policies", "request_id", "context", "json")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    filter: int
    tenant: str
    policies: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    context: str
    json: bool
    def __init__(self, filter: _Optional[int] = ..., tenant: _Optional[str] = ..., policies: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., context: _Optional[str] = ..., json: _Optional[bool] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "replies", "go_away")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    welcome: _mux_pb2.Welcome
    replies: SafetyReplies
    go_away: _mux_pb2.GoAway
    def __init__(self, welcome: _Optional[_Union[_mux_pb2.Welcome, _Mapping]] = ..., replies: _Optional[_Union[SafetyReplies, _Mapping]] = ..., go_away: _Optional[_Union[_mux_pb2.GoAway, _Mapping]] = ...) -> None: ...

class SafetyReplies(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[SafetyReply]
    def __init__(self, items: _Optional[_Iterable[_Union[SafetyReply, _Mapping]]] = ...) -> None: ...

class SafetyReply(_message.Message):
    __slots__ = ("header", "input", "output")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    header: _mux_pb2.ReplyHeader
    input: InputVerdict
    output: OutputReleased
    def __init__(self, header: _Optional[_Union[_mux_pb2.ReplyHeader, _Mapping]] = ..., input: _Optional[_Union[InputVerdict, _Mapping]] = ..., output: _Optional[_Union[OutputReleased, _Mapping]] = ...) -> None: ...

class Intervention(_message.Message):
    __slots__ = ("category", "pattern", "action", "pack")
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    category: str
    pattern: str
    action: Action
    pack: str
    def __init__(self, category: _Optional[str] = ..., pattern: _Optional[str] = ..., action: _Optional[_Union[Action, str]] = ..., pack: _Optional[str] = ...) -> None: ...

class InputVerdict(_message.Message):
    __slots__ = ("action", "texts", "interventions", "rejection", "policies", "alters_output", "values")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    INTERVENTIONS_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    ALTERS_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    action: Action
    texts: _containers.RepeatedScalarFieldContainer[str]
    interventions: _containers.RepeatedCompositeFieldContainer[Intervention]
    rejection: _errors_pb2.Rejection
    policies: _containers.RepeatedScalarFieldContainer[str]
    alters_output: bool
    values: _containers.RepeatedCompositeFieldContainer[TokenValue]
    def __init__(self, action: _Optional[_Union[Action, str]] = ..., texts: _Optional[_Iterable[str]] = ..., interventions: _Optional[_Iterable[_Union[Intervention, _Mapping]]] = ..., rejection: _Optional[_Union[_errors_pb2.Rejection, _Mapping]] = ..., policies: _Optional[_Iterable[str]] = ..., alters_output: _Optional[bool] = ..., values: _Optional[_Iterable[_Union[TokenValue, _Mapping]]] = ...) -> None: ...

class TokenValue(_message.Message):
    __slots__ = ("token", "value")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    token: str
    value: str
    def __init__(self, token: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class OutputReleased(_message.Message):
    __slots__ = ("released", "findings", "held", "replaced", "absent")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    released: _containers.RepeatedScalarFieldContainer[str]
    findings: _containers.RepeatedCompositeFieldContainer[OutputFinding]
    held: _containers.RepeatedScalarFieldContainer[int]
    replaced: _containers.RepeatedCompositeFieldContainer[ReplacedSpan]
    absent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, released: _Optional[_Iterable[str]] = ..., findings: _Optional[_Iterable[_Union[OutputFinding, _Mapping]]] = ..., held: _Optional[_Iterable[int]] = ..., replaced: _Optional[_Iterable[_Union[ReplacedSpan, _Mapping]]] = ..., absent: _Optional[_Iterable[int]] = ...) -> None: ...

class ReplacedSpan(_message.Message):
    __slots__ = ("position", "begin", "end")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    position: int
    begin: int
    end: int
    def __init__(self, position: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class OutputFinding(_message.Message):
    __slots__ = ("position", "intervention")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INTERVENTION_FIELD_NUMBER: _ClassVar[int]
    position: int
    intervention: Intervention
    def __init__(self, position: _Optional[int] = ..., intervention: _Optional[_Union[Intervention, _Mapping]] = ...) -> None: ...
