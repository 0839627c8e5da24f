import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from weir.admission.v1 import admission_pb2 as _admission_pb2
from weir.errors.v1 import errors_pb2 as _errors_pb2
from weir.mux.v1 import mux_pb2 as _mux_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_DEADLINE: FinishReason
FINISH_REASON_ERROR: FinishReason

class SessionRequest(_message.Message):
    __slots__ = ("hello", "submissions", "cancel")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    hello: _mux_pb2.Hello
    submissions: Submissions
    cancel: CancelSequences
    def __init__(self, hello: _Optional[_Union[_mux_pb2.Hello, _Mapping]] = ..., submissions: _Optional[_Union[Submissions, _Mapping]] = ..., cancel: _Optional[_Union[CancelSequences, _Mapping]] = ...) -> None: ...

class Submissions(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Submit]
    def __init__(self, items: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("handle", "grant", "request_id", "model_version", "prompt", "sampling", "remaining", "traceparent", "choice", "priority", "group_tokens", "resumed_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GROUP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    grant: _admission_pb2.SignedGrant
    request_id: str
    model_version: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    remaining: _duration_pb2.Duration
    traceparent: str
    choice: int
    priority: int
    group_tokens: int
    resumed_tokens: int
    def __init__(self, handle: _Optional[int] = ..., grant: _Optional[_Union[_admission_pb2.SignedGrant, _Mapping]] = ..., request_id: _Optional[str] = ..., model_version: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., traceparent: _Optional[str] = ..., choice: _Optional[int] = ..., priority: _Optional[int] = ..., group_tokens: _Optional[int] = ..., resumed_tokens: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop_token_ids", "ignore_eos", "logprobs", "structure", "min_tokens", "bad_words")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: int
    structure: Structure
    min_tokens: int
    bad_words: _containers.RepeatedCompositeFieldContainer[Tokens]
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[int] = ..., structure: _Optional[_Union[Structure, _Mapping]] = ..., min_tokens: _Optional[int] = ..., bad_words: _Optional[_Iterable[_Union[Tokens, _Mapping]]] = ...) -> None: ...

class Structure(_message.Message):
    __slots__ = ("json_schema", "regex", "grammar")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    grammar: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ...) -> None: ...

class CancelSequences(_message.Message):
    __slots__ = ("handles",)
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "step", "refusals", "go_away")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    welcome: WorkerWelcome
    step: StepFrame
    refusals: Refusals
    go_away: _mux_pb2.GoAway
    def __init__(self, welcome: _Optional[_Union[WorkerWelcome, _Mapping]] = ..., step: _Optional[_Union[StepFrame, _Mapping]] = ..., refusals: _Optional[_Union[Refusals, _Mapping]] = ..., go_away: _Optional[_Union[_mux_pb2.GoAway, _Mapping]] = ...) -> None: ...

class WorkerWelcome(_message.Message):
    __slots__ = ("worker", "engine", "simulated")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    engine: str
    simulated: bool
    def __init__(self, worker: _Optional[str] = ..., engine: _Optional[str] = ..., simulated: _Optional[bool] = ...) -> None: ...

class StepFrame(_message.Message):
    __slots__ = ("step", "handles", "counts", "tokens", "finished", "logprobs", "first")
    STEP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    step: int
    handles: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finished: _containers.RepeatedCompositeFieldContainer[Finished]
    logprobs: _containers.RepeatedCompositeFieldContainer[SequenceLogprobs]
    first: _containers.RepeatedCompositeFieldContainer[FirstToken]
    def __init__(self, step: _Optional[int] = ..., handles: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., finished: _Optional[_Iterable[_Union[Finished, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[SequenceLogprobs, _Mapping]]] = ..., first: _Optional[_Iterable[_Union[FirstToken, _Mapping]]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("handle", "cached_prompt_tokens", "after", "numerics")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    cached_prompt_tokens: int
    after: _duration_pb2.Duration
    numerics: str
    def __init__(self, handle: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., numerics: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("handle", "reason", "message")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: FinishReason
    message: str
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class SequenceLogprobs(_message.Message):
    __slots__ = ("handle", "tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, handle: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Refusals(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, items: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("handle", "rejection")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    handle: int
    rejection: _errors_pb2.Rejection
    def __init__(self, handle: _Optional[int] = ..., rejection: _Optional[_Union[_errors_pb2.Rejection, _Mapping]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model_version", "inputs", "grant", "request_id")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    inputs: _containers.RepeatedCompositeFieldContainer[Tokens]
    grant: _admission_pb2.SignedGrant
    request_id: str
    def __init__(self, model_version: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Tokens, _Mapping]]] = ..., grant: _Optional[_Union[_admission_pb2.SignedGrant, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("vectors", "simulated")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    simulated: bool
    def __init__(self, vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., simulated: _Optional[bool] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...
