import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListRequestsRequest(_message.Message):
    __slots__ = ("tenant", "key_id", "user", "model", "model_version", "queue_class", "outcome", "request_id", "since", "until", "page_size", "page_token", "after")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    key_id: str
    user: str
    model: str
    model_version: str
    queue_class: str
    outcome: str
    request_id: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    page_size: int
    page_token: str
    after: int
    def __init__(self, tenant: _Optional[str] = ..., key_id: _Optional[str] = ..., user: _Optional[str] = ..., model: _Optional[str] = ..., model_version: _Optional[str] = ..., queue_class: _Optional[str] = ..., outcome: _Optional[str] = ..., request_id: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "next_page_token", "sequence")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    next_page_token: str
    sequence: int
    def __init__(self, requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("sequence", "request_id", "time", "tenant", "key_id", "user", "model", "model_version", "queue_class", "operation", "outcome", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "rows", "spend_microusd", "at_most_tokens", "at_most_rows")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SPEND_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_ROWS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    request_id: str
    time: _timestamp_pb2.Timestamp
    tenant: str
    key_id: str
    user: str
    model: str
    model_version: str
    queue_class: str
    operation: str
    outcome: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    rows: int
    spend_microusd: int
    at_most_tokens: int
    at_most_rows: int
    def __init__(self, sequence: _Optional[int] = ..., request_id: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tenant: _Optional[str] = ..., key_id: _Optional[str] = ..., user: _Optional[str] = ..., model: _Optional[str] = ..., model_version: _Optional[str] = ..., queue_class: _Optional[str] = ..., operation: _Optional[str] = ..., outcome: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., rows: _Optional[int] = ..., spend_microusd: _Optional[int] = ..., at_most_tokens: _Optional[int] = ..., at_most_rows: _Optional[int] = ...) -> None: ...

class UsageRequest(_message.Message):
    __slots__ = ("tenant", "since", "until", "by", "models", "keys", "operations")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    by: _containers.RepeatedScalarFieldContainer[str]
    models: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.RepeatedScalarFieldContainer[str]
    operations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[_Iterable[str]] = ..., models: _Optional[_Iterable[str]] = ..., keys: _Optional[_Iterable[str]] = ..., operations: _Optional[_Iterable[str]] = ...) -> None: ...

class UsageResponse(_message.Message):
    __slots__ = ("rows", "sequence")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[UsageRow]
    sequence: int
    def __init__(self, rows: _Optional[_Iterable[_Union[UsageRow, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class UsageRow(_message.Message):
    __slots__ = ("values", "requests", "refused", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "spend_microusd", "unknown", "at_most_tokens", "rows", "at_most_rows", "predictions")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPEND_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_ROWS_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    requests: int
    refused: int
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    spend_microusd: int
    unknown: int
    at_most_tokens: int
    rows: int
    at_most_rows: int
    predictions: int
    def __init__(self, values: _Optional[_Iterable[str]] = ..., requests: _Optional[int] = ..., refused: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., spend_microusd: _Optional[int] = ..., unknown: _Optional[int] = ..., at_most_tokens: _Optional[int] = ..., rows: _Optional[int] = ..., at_most_rows: _Optional[int] = ..., predictions: _Optional[int] = ...) -> None: ...

class RebuildRequest(_message.Message):
    __slots__ = ("patience",)
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    patience: _duration_pb2.Duration
    def __init__(self, patience: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RebuildResponse(_message.Message):
    __slots__ = ("first", "sequence", "upto")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    first: int
    sequence: int
    upto: int
    def __init__(self, first: _Optional[int] = ..., sequence: _Optional[int] = ..., upto: _Optional[int] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompareResponse(_message.Message):
    __slots__ = ("differences", "first", "last")
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    differences: _containers.RepeatedCompositeFieldContainer[SumDifference]
    first: int
    last: int
    def __init__(self, differences: _Optional[_Iterable[_Union[SumDifference, _Mapping]]] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class SumDifference(_message.Message):
    __slots__ = ("subject", "detail")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    subject: str
    detail: str
    def __init__(self, subject: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...
