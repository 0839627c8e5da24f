from google.api import annotations_pb2 as _annotations_pb2
from google.api import httpbody_pb2 as _httpbody_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("start_time", "end_time", "bucket_width", "group_by", "limit", "page", "models", "api_key_ids")
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    BUCKET_WIDTH_FIELD_NUMBER: _ClassVar[int]
    GROUP_BY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    API_KEY_IDS_FIELD_NUMBER: _ClassVar[int]
    start_time: int
    end_time: int
    bucket_width: str
    group_by: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    page: str
    models: _containers.RepeatedScalarFieldContainer[str]
    api_key_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, start_time: _Optional[int] = ..., end_time: _Optional[int] = ..., bucket_width: _Optional[str] = ..., group_by: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., page: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., api_key_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetCostsRequest(_message.Message):
    __slots__ = ("start_time", "end_time", "bucket_width", "group_by", "limit", "page")
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    BUCKET_WIDTH_FIELD_NUMBER: _ClassVar[int]
    GROUP_BY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    start_time: int
    end_time: int
    bucket_width: str
    group_by: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    page: str
    def __init__(self, start_time: _Optional[int] = ..., end_time: _Optional[int] = ..., bucket_width: _Optional[str] = ..., group_by: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., page: _Optional[str] = ...) -> None: ...
