import datetime

from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Plan(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_UNSPECIFIED: _ClassVar[Plan]
    PLAN_FREE: _ClassVar[Plan]
    PLAN_PAID: _ClassVar[Plan]

class FailMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAIL_MODE_UNSPECIFIED: _ClassVar[FailMode]
    FAIL_MODE_CLOSED: _ClassVar[FailMode]
    FAIL_MODE_FLAG: _ClassVar[FailMode]

class OverQuota(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVER_QUOTA_UNSPECIFIED: _ClassVar[OverQuota]
    OVER_QUOTA_REFUSE: _ClassVar[OverQuota]
    OVER_QUOTA_SERVE_IDLE: _ClassVar[OverQuota]

class LoadState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOAD_STATE_UNSPECIFIED: _ClassVar[LoadState]
    LOAD_STATE_FETCHING: _ClassVar[LoadState]
    LOAD_STATE_VERIFYING: _ClassVar[LoadState]
    LOAD_STATE_LOADING: _ClassVar[LoadState]
    LOAD_STATE_READY: _ClassVar[LoadState]
    LOAD_STATE_FAILED: _ClassVar[LoadState]

class StickyBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STICKY_BY_UNSPECIFIED: _ClassVar[StickyBy]
    STICKY_BY_TENANT: _ClassVar[StickyBy]
    STICKY_BY_USER: _ClassVar[StickyBy]
    STICKY_BY_SESSION: _ClassVar[StickyBy]

class InFlight(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IN_FLIGHT_UNSPECIFIED: _ClassVar[InFlight]
    IN_FLIGHT_FINISH: _ClassVar[InFlight]
    IN_FLIGHT_MIGRATE: _ClassVar[InFlight]

class RolloutPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_PHASE_UNSPECIFIED: _ClassVar[RolloutPhase]
    ROLLOUT_PHASE_PREPARING: _ClassVar[RolloutPhase]
    ROLLOUT_PHASE_SHADOW: _ClassVar[RolloutPhase]
    ROLLOUT_PHASE_CANARY: _ClassVar[RolloutPhase]
    ROLLOUT_PHASE_EXPERIMENT: _ClassVar[RolloutPhase]
    ROLLOUT_PHASE_PROMOTED: _ClassVar[RolloutPhase]
    ROLLOUT_PHASE_ROLLED_BACK: _ClassVar[RolloutPhase]
    ROLLOUT_PHASE_ABORTED: _ClassVar[RolloutPhase]

class GateAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GATE_ACTION_UNSPECIFIED: _ClassVar[GateAction]
    GATE_ACTION_ROLL_BACK: _ClassVar[GateAction]
    GATE_ACTION_HOLD: _ClassVar[GateAction]

class Steering(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEERING_UNSPECIFIED: _ClassVar[Steering]
    STEERING_ADVANCE: _ClassVar[Steering]
    STEERING_PROMOTE: _ClassVar[Steering]
    STEERING_PAUSE: _ClassVar[Steering]
    STEERING_RESUME: _ClassVar[Steering]
PLAN_UNSPECIFIED: Plan
PLAN_FREE: Plan
PLAN_PAID: Plan
FAIL_MODE_UNSPECIFIED: FailMode
FAIL_MODE_CLOSED: FailMode
FAIL_MODE_FLAG: FailMode
OVER_QUOTA_UNSPECIFIED: OverQuota
OVER_QUOTA_REFUSE: OverQuota
OVER_QUOTA_SERVE_IDLE: OverQuota
LOAD_STATE_UNSPECIFIED: LoadState
LOAD_STATE_FETCHING: LoadState
LOAD_STATE_VERIFYING: LoadState
LOAD_STATE_LOADING: LoadState
LOAD_STATE_READY: LoadState
LOAD_STATE_FAILED: LoadState
STICKY_BY_UNSPECIFIED: StickyBy
STICKY_BY_TENANT: StickyBy
STICKY_BY_USER: StickyBy
STICKY_BY_SESSION: StickyBy
IN_FLIGHT_UNSPECIFIED: InFlight
IN_FLIGHT_FINISH: InFlight
IN_FLIGHT_MIGRATE: InFlight
ROLLOUT_PHASE_UNSPECIFIED: RolloutPhase
ROLLOUT_PHASE_PREPARING: RolloutPhase
ROLLOUT_PHASE_SHADOW: RolloutPhase
ROLLOUT_PHASE_CANARY: RolloutPhase
ROLLOUT_PHASE_EXPERIMENT: RolloutPhase
ROLLOUT_PHASE_PROMOTED: RolloutPhase
ROLLOUT_PHASE_ROLLED_BACK: RolloutPhase
ROLLOUT_PHASE_ABORTED: RolloutPhase
GATE_ACTION_UNSPECIFIED: GateAction
GATE_ACTION_ROLL_BACK: GateAction
GATE_ACTION_HOLD: GateAction
STEERING_UNSPECIFIED: Steering
STEERING_ADVANCE: Steering
STEERING_PROMOTE: Steering
STEERING_PAUSE: Steering
STEERING_RESUME: Steering

class ModelVersion(_message.Message):
    __slots__ = ("name", "version", "digest", "artifacts", "source", "architecture", "context_length", "tier", "pool", "sampling_defaults", "eos_token_ids", "safety_policy", "training_data_sha256", "created_at", "chat_template_sha256", "namespace", "signature", "schema_sha256", "offline_metrics", "provenance", "safety_policy_version", "tokenizer_sha256")
    class OfflineMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAFETY_POLICY_FIELD_NUMBER: _ClassVar[int]
    TRAINING_DATA_SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_METRICS_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    SAFETY_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    digest: str
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    source: str
    architecture: str
    context_length: int
    tier: str
    pool: str
    sampling_defaults: SamplingDefaults
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    safety_policy: str
    training_data_sha256: str
    created_at: _timestamp_pb2.Timestamp
    chat_template_sha256: str
    namespace: str
    signature: str
    schema_sha256: str
    offline_metrics: _containers.ScalarMap[str, float]
    provenance: Provenance
    safety_policy_version: int
    tokenizer_sha256: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., source: _Optional[str] = ..., architecture: _Optional[str] = ..., context_length: _Optional[int] = ..., tier: _Optional[str] = ..., pool: _Optional[str] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., safety_policy: _Optional[str] = ..., training_data_sha256: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., chat_template_sha256: _Optional[str] = ..., namespace: _Optional[str] = ..., signature: _Optional[str] = ..., schema_sha256: _Optional[str] = ..., offline_metrics: _Optional[_Mapping[str, float]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., safety_policy_version: _Optional[int] = ..., tokenizer_sha256: _Optional[str] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("source_uri", "revision", "builder", "built_at", "base")
    SOURCE_URI_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    BUILDER_FIELD_NUMBER: _ClassVar[int]
    BUILT_AT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    source_uri: str
    revision: str
    builder: str
    built_at: _timestamp_pb2.Timestamp
    base: str
    def __init__(self, source_uri: _Optional[str] = ..., revision: _Optional[str] = ..., builder: _Optional[str] = ..., built_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., base: _Optional[str] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("path", "sha256", "bytes", "role")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    path: str
    sha256: str
    bytes: int
    role: str
    def __init__(self, path: _Optional[str] = ..., sha256: _Optional[str] = ..., bytes: _Optional[int] = ..., role: _Optional[str] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_p", "max_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    max_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Alias(_message.Message):
    __slots__ = ("name", "targets", "revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    targets: _containers.RepeatedCompositeFieldContainer[AliasTarget]
    revision: int
    def __init__(self, name: _Optional[str] = ..., targets: _Optional[_Iterable[_Union[AliasTarget, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class AliasTarget(_message.Message):
    __slots__ = ("model_version", "weight", "arm")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    weight: int
    arm: str
    def __init__(self, model_version: _Optional[str] = ..., weight: _Optional[int] = ..., arm: _Optional[str] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("id", "display_name", "plan", "weight", "workloads", "safety_policy", "safety_fail_mode", "audit_required", "max_deadline", "training_allowed", "jwt_issuer", "revision", "plan_policy")
    ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    SAFETY_POLICY_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FAIL_MODE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    MAX_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    JWT_ISSUER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PLAN_POLICY_FIELD_NUMBER: _ClassVar[int]
    id: str
    display_name: str
    plan: Plan
    weight: float
    workloads: _containers.RepeatedScalarFieldContainer[str]
    safety_policy: str
    safety_fail_mode: FailMode
    audit_required: bool
    max_deadline: _duration_pb2.Duration
    training_allowed: bool
    jwt_issuer: str
    revision: int
    plan_policy: str
    def __init__(self, id: _Optional[str] = ..., display_name: _Optional[str] = ..., plan: _Optional[_Union[Plan, str]] = ..., weight: _Optional[float] = ..., workloads: _Optional[_Iterable[str]] = ..., safety_policy: _Optional[str] = ..., safety_fail_mode: _Optional[_Union[FailMode, str]] = ..., audit_required: _Optional[bool] = ..., max_deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., training_allowed: _Optional[bool] = ..., jwt_issuer: _Optional[str] = ..., revision: _Optional[int] = ..., plan_policy: _Optional[str] = ...) -> None: ...

class ApiKey(_message.Message):
    __slots__ = ("id", "tenant", "hash", "scopes", "note", "created_at", "expires_at", "revoked_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    hash: bytes
    scopes: _containers.RepeatedScalarFieldContainer[str]
    note: str
    created_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    revoked_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., hash: _Optional[bytes] = ..., scopes: _Optional[_Iterable[str]] = ..., note: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("tenant", "model", "requests_per_minute", "tokens_per_minute", "concurrency", "max_context", "max_output", "revision", "spend_microusd", "spend_window")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SPEND_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    SPEND_WINDOW_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    model: str
    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int
    max_context: int
    max_output: int
    revision: int
    spend_microusd: int
    spend_window: _duration_pb2.Duration
    def __init__(self, tenant: _Optional[str] = ..., model: _Optional[str] = ..., requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ..., concurrency: _Optional[int] = ..., max_context: _Optional[int] = ..., max_output: _Optional[int] = ..., revision: _Optional[int] = ..., spend_microusd: _Optional[int] = ..., spend_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PlanPolicy(_message.Message):
    __slots__ = ("id", "weight", "over_quota", "kv_share", "ladder", "revision")
    ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    KV_SHARE_FIELD_NUMBER: _ClassVar[int]
    LADDER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    id: str
    weight: float
    over_quota: OverQuota
    kv_share: float
    ladder: _containers.RepeatedCompositeFieldContainer[DegradationStep]
    revision: int
    def __init__(self, id: _Optional[str] = ..., weight: _Optional[float] = ..., over_quota: _Optional[_Union[OverQuota, str]] = ..., kv_share: _Optional[float] = ..., ladder: _Optional[_Iterable[_Union[DegradationStep, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class DegradationStep(_message.Message):
    __slots__ = ("cap_output", "smaller_model", "cached_answer", "default_answer", "cpu_fallback")
    CAP_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SMALLER_MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHED_ANSWER_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    CPU_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    cap_output: CapOutput
    smaller_model: SmallerModel
    cached_answer: CachedAnswer
    default_answer: DefaultAnswer
    cpu_fallback: CpuFallback
    def __init__(self, cap_output: _Optional[_Union[CapOutput, _Mapping]] = ..., smaller_model: _Optional[_Union[SmallerModel, _Mapping]] = ..., cached_answer: _Optional[_Union[CachedAnswer, _Mapping]] = ..., default_answer: _Optional[_Union[DefaultAnswer, _Mapping]] = ..., cpu_fallback: _Optional[_Union[CpuFallback, _Mapping]] = ...) -> None: ...

class CapOutput(_message.Message):
    __slots__ = ("max_tokens", "pressure")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    pressure: float
    def __init__(self, max_tokens: _Optional[int] = ..., pressure: _Optional[float] = ...) -> None: ...

class SmallerModel(_message.Message):
    __slots__ = ("models",)
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.ScalarMap[str, str]
    def __init__(self, models: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CachedAnswer(_message.Message):
    __slots__ = ("max_age",)
    MAX_AGE_FIELD_NUMBER: _ClassVar[int]
    max_age: _duration_pb2.Duration
    def __init__(self, max_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DefaultAnswer(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class CpuFallback(_message.Message):
    __slots__ = ("pools",)
    class PoolsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.ScalarMap[str, str]
    def __init__(self, pools: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Slo(_message.Message):
    __slots__ = ("route", "tier", "ttft_p95", "itl_p95", "e2e_p95", "e2e_p99", "availability", "stream_completion", "revision")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_FIELD_NUMBER: _ClassVar[int]
    ITL_P95_FIELD_NUMBER: _ClassVar[int]
    E2E_P95_FIELD_NUMBER: _ClassVar[int]
    E2E_P99_FIELD_NUMBER: _ClassVar[int]
    AVAILABILITY_FIELD_NUMBER: _ClassVar[int]
    STREAM_COMPLETION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    route: str
    tier: str
    ttft_p95: _duration_pb2.Duration
    itl_p95: _duration_pb2.Duration
    e2e_p95: _duration_pb2.Duration
    e2e_p99: _duration_pb2.Duration
    availability: float
    stream_completion: float
    revision: int
    def __init__(self, route: _Optional[str] = ..., tier: _Optional[str] = ..., ttft_p95: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., itl_p95: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., e2e_p95: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., e2e_p99: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., availability: _Optional[float] = ..., stream_completion: _Optional[float] = ..., revision: _Optional[int] = ...) -> None: ...

class Price(_message.Message):
    __slots__ = ("model", "input_microusd_per_million", "output_microusd_per_million", "revision", "input_cost_microusd_per_million", "output_cost_microusd_per_million")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    INPUT_COST_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_COST_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    model: str
    input_microusd_per_million: int
    output_microusd_per_million: int
    revision: int
    input_cost_microusd_per_million: int
    output_cost_microusd_per_million: int
    def __init__(self, model: _Optional[str] = ..., input_microusd_per_million: _Optional[int] = ..., output_microusd_per_million: _Optional[int] = ..., revision: _Optional[int] = ..., input_cost_microusd_per_million: _Optional[int] = ..., output_cost_microusd_per_million: _Optional[int] = ...) -> None: ...

class PoolLevel(_message.Message):
    __slots__ = ("pool", "admission", "at", "classes", "tenants")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    admission: str
    at: _timestamp_pb2.Timestamp
    classes: _containers.RepeatedCompositeFieldContainer[ClassLevel]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantLevel]
    def __init__(self, pool: _Optional[str] = ..., admission: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., classes: _Optional[_Iterable[_Union[ClassLevel, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantLevel, _Mapping]]] = ...) -> None: ...

class ClassLevel(_message.Message):
    __slots__ = ("queue_class", "wait", "queued")
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    queue_class: str
    wait: _duration_pb2.Duration
    queued: int
    def __init__(self, queue_class: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., queued: _Optional[int] = ...) -> None: ...

class TenantLevel(_message.Message):
    __slots__ = ("tenant", "shed", "retry_after")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    shed: float
    retry_after: _duration_pb2.Duration
    def __init__(self, tenant: _Optional[str] = ..., shed: _Optional[float] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SafetyPolicy(_message.Message):
    __slots__ = ("id", "version", "rules", "revision")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: int
    rules: _containers.RepeatedCompositeFieldContainer[SafetyRule]
    revision: int
    def __init__(self, id: _Optional[str] = ..., version: _Optional[int] = ..., rules: _Optional[_Iterable[_Union[SafetyRule, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class SafetyRule(_message.Message):
    __slots__ = ("id", "category", "pattern", "action", "stage", "replacement")
    ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    category: str
    pattern: str
    action: str
    stage: str
    replacement: str
    def __init__(self, id: _Optional[str] = ..., category: _Optional[str] = ..., pattern: _Optional[str] = ..., action: _Optional[str] = ..., stage: _Optional[str] = ..., replacement: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("service", "instance", "address", "zone", "metrics_address", "pool", "model_versions", "engine", "simulated", "started_at", "model_states")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    MODEL_STATES_FIELD_NUMBER: _ClassVar[int]
    service: str
    instance: str
    address: str
    zone: str
    metrics_address: str
    pool: str
    model_versions: _containers.RepeatedScalarFieldContainer[str]
    engine: str
    simulated: bool
    started_at: _timestamp_pb2.Timestamp
    model_states: _containers.RepeatedCompositeFieldContainer[ModelState]
    def __init__(self, service: _Optional[str] = ..., instance: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., metrics_address: _Optional[str] = ..., pool: _Optional[str] = ..., model_versions: _Optional[_Iterable[str]] = ..., engine: _Optional[str] = ..., simulated: _Optional[bool] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., model_states: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("model_version", "state", "detail", "digest")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    state: LoadState
    detail: str
    digest: str
    def __init__(self, model_version: _Optional[str] = ..., state: _Optional[_Union[LoadState, str]] = ..., detail: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class TrustPolicy(_message.Message):
    __slots__ = ("namespace", "keys", "threshold", "revision")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedCompositeFieldContainer[TrustedKey]
    threshold: int
    revision: int
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[TrustedKey, _Mapping]]] = ..., threshold: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class TrustedKey(_message.Message):
    __slots__ = ("key_id", "public_key", "note", "expires_at")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    public_key: str
    note: str
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, key_id: _Optional[str] = ..., public_key: _Optional[str] = ..., note: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("model_version", "reason", "warm", "revision")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    reason: str
    warm: bool
    revision: int
    def __init__(self, model_version: _Optional[str] = ..., reason: _Optional[str] = ..., warm: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("alias", "id", "baseline", "arms", "steps", "shadow", "sticky", "blast_radius", "gates", "alpha", "on_rollback", "keep_warm", "capacity_share", "reason", "override_reason", "state", "revision", "prepare_timeout")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    STICKY_FIELD_NUMBER: _ClassVar[int]
    BLAST_RADIUS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    ON_ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    KEEP_WARM_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_SHARE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PREPARE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    alias: str
    id: str
    baseline: str
    arms: _containers.RepeatedCompositeFieldContainer[RolloutArm]
    steps: _containers.RepeatedCompositeFieldContainer[RolloutStep]
    shadow: ShadowPlan
    sticky: StickyBy
    blast_radius: BlastRadius
    gates: _containers.RepeatedCompositeFieldContainer[Gate]
    alpha: float
    on_rollback: InFlight
    keep_warm: _duration_pb2.Duration
    capacity_share: float
    reason: str
    override_reason: str
    state: RolloutState
    revision: int
    prepare_timeout: _duration_pb2.Duration
    def __init__(self, alias: _Optional[str] = ..., id: _Optional[str] = ..., baseline: _Optional[str] = ..., arms: _Optional[_Iterable[_Union[RolloutArm, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[RolloutStep, _Mapping]]] = ..., shadow: _Optional[_Union[ShadowPlan, _Mapping]] = ..., sticky: _Optional[_Union[StickyBy, str]] = ..., blast_radius: _Optional[_Union[BlastRadius, _Mapping]] = ..., gates: _Optional[_Iterable[_Union[Gate, _Mapping]]] = ..., alpha: _Optional[float] = ..., on_rollback: _Optional[_Union[InFlight, str]] = ..., keep_warm: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., capacity_share: _Optional[float] = ..., reason: _Optional[str] = ..., override_reason: _Optional[str] = ..., state: _Optional[_Union[RolloutState, _Mapping]] = ..., revision: _Optional[int] = ..., prepare_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RolloutArm(_message.Message):
    __slots__ = ("name", "model_version", "weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_version: str
    weight: int
    def __init__(self, name: _Optional[str] = ..., model_version: _Optional[str] = ..., weight: _Optional[int] = ...) -> None: ...

class RolloutStep(_message.Message):
    __slots__ = ("weight", "min_duration", "max_duration", "min_samples")
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    weight: int
    min_duration: _duration_pb2.Duration
    max_duration: _duration_pb2.Duration
    min_samples: int
    def __init__(self, weight: _Optional[int] = ..., min_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., min_samples: _Optional[int] = ...) -> None: ...

class ShadowPlan(_message.Message):
    __slots__ = ("share", "min_duration", "min_samples", "requests_per_minute", "tokens_per_minute", "max_duration")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_FIELD_NUMBER: _ClassVar[int]
    share: int
    min_duration: _duration_pb2.Duration
    min_samples: int
    requests_per_minute: int
    tokens_per_minute: int
    max_duration: _duration_pb2.Duration
    def __init__(self, share: _Optional[int] = ..., min_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., min_samples: _Optional[int] = ..., requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ..., max_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BlastRadius(_message.Message):
    __slots__ = ("max_share", "max_tenants", "only_tenants", "except_tenants", "max_cost_microusd")
    MAX_SHARE_FIELD_NUMBER: _ClassVar[int]
    MAX_TENANTS_FIELD_NUMBER: _ClassVar[int]
    ONLY_TENANTS_FIELD_NUMBER: _ClassVar[int]
    EXCEPT_TENANTS_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    max_share: int
    max_tenants: int
    only_tenants: _containers.RepeatedScalarFieldContainer[str]
    except_tenants: _containers.RepeatedScalarFieldContainer[str]
    max_cost_microusd: int
    def __init__(self, max_share: _Optional[int] = ..., max_tenants: _Optional[int] = ..., only_tenants: _Optional[_Iterable[str]] = ..., except_tenants: _Optional[_Iterable[str]] = ..., max_cost_microusd: _Optional[int] = ...) -> None: ...

class Gate(_message.Message):
    __slots__ = ("metric", "tolerance", "on_breach", "lower_is_better", "must_hold", "at_least")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    ON_BREACH_FIELD_NUMBER: _ClassVar[int]
    LOWER_IS_BETTER_FIELD_NUMBER: _ClassVar[int]
    MUST_HOLD_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    metric: str
    tolerance: float
    on_breach: GateAction
    lower_is_better: bool
    must_hold: bool
    at_least: float
    def __init__(self, metric: _Optional[str] = ..., tolerance: _Optional[float] = ..., on_breach: _Optional[_Union[GateAction, str]] = ..., lower_is_better: _Optional[bool] = ..., must_hold: _Optional[bool] = ..., at_least: _Optional[float] = ...) -> None: ...

class RolloutState(_message.Message):
    __slots__ = ("phase", "step", "weights", "entered_at", "held", "reason", "decided_by", "started_at", "ended_at", "paused", "cost_microusd")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ENTERED_AT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    COST_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    phase: RolloutPhase
    step: int
    weights: _containers.RepeatedScalarFieldContainer[int]
    entered_at: _timestamp_pb2.Timestamp
    held: bool
    reason: str
    decided_by: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    paused: bool
    cost_microusd: int
    def __init__(self, phase: _Optional[_Union[RolloutPhase, str]] = ..., step: _Optional[int] = ..., weights: _Optional[_Iterable[int]] = ..., entered_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., held: _Optional[bool] = ..., reason: _Optional[str] = ..., decided_by: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paused: _Optional[bool] = ..., cost_microusd: _Optional[int] = ...) -> None: ...

class RolloutSwitch(_message.Message):
    __slots__ = ("kill", "freeze", "reason", "revision")
    KILL_FIELD_NUMBER: _ClassVar[int]
    FREEZE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kill: bool
    freeze: bool
    reason: str
    revision: int
    def __init__(self, kill: _Optional[bool] = ..., freeze: _Optional[bool] = ..., reason: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ErrorBudget(_message.Message):
    __slots__ = ("route", "tier", "objectives", "at", "windows")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    route: str
    tier: str
    objectives: _containers.RepeatedCompositeFieldContainer[ObjectiveBudget]
    at: _timestamp_pb2.Timestamp
    windows: bytes
    def __init__(self, route: _Optional[str] = ..., tier: _Optional[str] = ..., objectives: _Optional[_Iterable[_Union[ObjectiveBudget, _Mapping]]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., windows: _Optional[bytes] = ...) -> None: ...

class ObjectiveBudget(_message.Message):
    __slots__ = ("objective", "consumed", "good", "bad", "burn_rates", "alert")
    class BurnRatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    GOOD_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    BURN_RATES_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    objective: str
    consumed: float
    good: int
    bad: int
    burn_rates: _containers.ScalarMap[str, float]
    alert: str
    def __init__(self, objective: _Optional[str] = ..., consumed: _Optional[float] = ..., good: _Optional[int] = ..., bad: _Optional[int] = ..., burn_rates: _Optional[_Mapping[str, float]] = ..., alert: _Optional[str] = ...) -> None: ...

class RoleBinding(_message.Message):
    __slots__ = ("principal", "roles", "namespaces", "revision")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    principal: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    def __init__(self, principal: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., namespaces: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ...) -> None: ...

class HistoryEntry(_message.Message):
    __slots__ = ("id", "revision", "at", "actor", "action", "reason", "changes")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    id: str
    revision: int
    at: _timestamp_pb2.Timestamp
    actor: str
    action: str
    reason: str
    changes: _containers.RepeatedCompositeFieldContainer[ResourceChange]
    def __init__(self, id: _Optional[str] = ..., revision: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., actor: _Optional[str] = ..., action: _Optional[str] = ..., reason: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[ResourceChange, _Mapping]]] = ...) -> None: ...

class ResourceChange(_message.Message):
    __slots__ = ("resource", "before", "after")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    resource: str
    before: str
    after: str
    def __init__(self, resource: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ExportedValue(_message.Message):
    __slots__ = ("resource", "value")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    resource: str
    value: bytes
    def __init__(self, resource: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class CreateModelVersionRequest(_message.Message):
    __slots__ = ("model_version", "change")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    model_version: ModelVersion
    change: ChangeOptions
    def __init__(self, model_version: _Optional[_Union[ModelVersion, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class CreateModelVersionResponse(_message.Message):
    __slots__ = ("model_version", "revision")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    model_version: ModelVersion
    revision: int
    def __init__(self, model_version: _Optional[_Union[ModelVersion, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("model_versions", "aliases")
    MODEL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    model_versions: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    aliases: _containers.RepeatedCompositeFieldContainer[Alias]
    def __init__(self, model_versions: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ..., aliases: _Optional[_Iterable[_Union[Alias, _Mapping]]] = ...) -> None: ...

class SetAliasRequest(_message.Message):
    __slots__ = ("alias", "change")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    alias: Alias
    change: ChangeOptions
    def __init__(self, alias: _Optional[_Union[Alias, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetAliasResponse(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: Alias
    def __init__(self, alias: _Optional[_Union[Alias, _Mapping]] = ...) -> None: ...

class SetTenantRequest(_message.Message):
    __slots__ = ("tenant", "change")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    change: ChangeOptions
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetTenantResponse(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("tenant", "scopes", "ttl", "note", "change")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    ttl: _duration_pb2.Duration
    note: str
    change: ChangeOptions
    def __init__(self, tenant: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., note: _Optional[str] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class CreateKeyResponse(_message.Message):
    __slots__ = ("key", "secret")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    secret: str
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("key_id", "change")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    change: ChangeOptions
    def __init__(self, key_id: _Optional[str] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class RevokeKeyResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ApiKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[ApiKey, _Mapping]]] = ...) -> None: ...

class SetLimitsRequest(_message.Message):
    __slots__ = ("limits", "change")
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    limits: Limits
    change: ChangeOptions
    def __init__(self, limits: _Optional[_Union[Limits, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetLimitsResponse(_message.Message):
    __slots__ = ("limits",)
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    limits: Limits
    def __init__(self, limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class ListLimitsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListLimitsResponse(_message.Message):
    __slots__ = ("limits",)
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    limits: _containers.RepeatedCompositeFieldContainer[Limits]
    def __init__(self, limits: _Optional[_Iterable[_Union[Limits, _Mapping]]] = ...) -> None: ...

class SetPlanPolicyRequest(_message.Message):
    __slots__ = ("plan", "change")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    plan: PlanPolicy
    change: ChangeOptions
    def __init__(self, plan: _Optional[_Union[PlanPolicy, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetPlanPolicyResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: PlanPolicy
    def __init__(self, plan: _Optional[_Union[PlanPolicy, _Mapping]] = ...) -> None: ...

class ListPlanPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPlanPoliciesResponse(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedCompositeFieldContainer[PlanPolicy]
    def __init__(self, plans: _Optional[_Iterable[_Union[PlanPolicy, _Mapping]]] = ...) -> None: ...

class SetSloRequest(_message.Message):
    __slots__ = ("slo", "change")
    SLO_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    slo: Slo
    change: ChangeOptions
    def __init__(self, slo: _Optional[_Union[Slo, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetSloResponse(_message.Message):
    __slots__ = ("slo",)
    SLO_FIELD_NUMBER: _ClassVar[int]
    slo: Slo
    def __init__(self, slo: _Optional[_Union[Slo, _Mapping]] = ...) -> None: ...

class ListSlosRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSlosResponse(_message.Message):
    __slots__ = ("slos",)
    SLOS_FIELD_NUMBER: _ClassVar[int]
    slos: _containers.RepeatedCompositeFieldContainer[Slo]
    def __init__(self, slos: _Optional[_Iterable[_Union[Slo, _Mapping]]] = ...) -> None: ...

class SetPriceRequest(_message.Message):
    __slots__ = ("price", "change")
    PRICE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    price: Price
    change: ChangeOptions
    def __init__(self, price: _Optional[_Union[Price, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetPriceResponse(_message.Message):
    __slots__ = ("price",)
    PRICE_FIELD_NUMBER: _ClassVar[int]
    price: Price
    def __init__(self, price: _Optional[_Union[Price, _Mapping]] = ...) -> None: ...

class ListPricesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPricesResponse(_message.Message):
    __slots__ = ("prices",)
    PRICES_FIELD_NUMBER: _ClassVar[int]
    prices: _containers.RepeatedCompositeFieldContainer[Price]
    def __init__(self, prices: _Optional[_Iterable[_Union[Price, _Mapping]]] = ...) -> None: ...

class ListPoolLevelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoolLevelsResponse(_message.Message):
    __slots__ = ("levels",)
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[PoolLevel]
    def __init__(self, levels: _Optional[_Iterable[_Union[PoolLevel, _Mapping]]] = ...) -> None: ...

class SetSafetyPolicyRequest(_message.Message):
    __slots__ = ("policy", "change")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    policy: SafetyPolicy
    change: ChangeOptions
    def __init__(self, policy: _Optional[_Union[SafetyPolicy, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetSafetyPolicyResponse(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: SafetyPolicy
    def __init__(self, policy: _Optional[_Union[SafetyPolicy, _Mapping]] = ...) -> None: ...

class ListEndpointsRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class ListEndpointsResponse(_message.Message):
    __slots__ = ("endpoints",)
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ...) -> None: ...

class ChangeOptions(_message.Message):
    __slots__ = ("dry_run", "reason")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    reason: str
    def __init__(self, dry_run: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class ListSafetyPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSafetyPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[SafetyPolicy]
    def __init__(self, policies: _Optional[_Iterable[_Union[SafetyPolicy, _Mapping]]] = ...) -> None: ...

class SetTrustPolicyRequest(_message.Message):
    __slots__ = ("trust", "change")
    TRUST_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    trust: TrustPolicy
    change: ChangeOptions
    def __init__(self, trust: _Optional[_Union[TrustPolicy, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetTrustPolicyResponse(_message.Message):
    __slots__ = ("trust",)
    TRUST_FIELD_NUMBER: _ClassVar[int]
    trust: TrustPolicy
    def __init__(self, trust: _Optional[_Union[TrustPolicy, _Mapping]] = ...) -> None: ...

class ListTrustPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTrustPoliciesResponse(_message.Message):
    __slots__ = ("trusts",)
    TRUSTS_FIELD_NUMBER: _ClassVar[int]
    trusts: _containers.RepeatedCompositeFieldContainer[TrustPolicy]
    def __init__(self, trusts: _Optional[_Iterable[_Union[TrustPolicy, _Mapping]]] = ...) -> None: ...

class SetPinRequest(_message.Message):
    __slots__ = ("pin", "change")
    PIN_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    change: ChangeOptions
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetPinResponse(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ...) -> None: ...

class DeletePinRequest(_message.Message):
    __slots__ = ("model_version", "change")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    change: ChangeOptions
    def __init__(self, model_version: _Optional[str] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class DeletePinResponse(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ...) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class DeleteModelVersionRequest(_message.Message):
    __slots__ = ("model_version", "change")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    change: ChangeOptions
    def __init__(self, model_version: _Optional[str] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class DeleteModelVersionResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: ModelVersion
    def __init__(self, deleted: _Optional[_Union[ModelVersion, _Mapping]] = ...) -> None: ...

class StartRolloutRequest(_message.Message):
    __slots__ = ("rollout", "change")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    rollout: Rollout
    change: ChangeOptions
    def __init__(self, rollout: _Optional[_Union[Rollout, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class StartRolloutResponse(_message.Message):
    __slots__ = ("rollout",)
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    rollout: Rollout
    def __init__(self, rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class SteerRolloutRequest(_message.Message):
    __slots__ = ("alias", "steering", "arm", "change")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    STEERING_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    alias: str
    steering: Steering
    arm: str
    change: ChangeOptions
    def __init__(self, alias: _Optional[str] = ..., steering: _Optional[_Union[Steering, str]] = ..., arm: _Optional[str] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SteerRolloutResponse(_message.Message):
    __slots__ = ("rollout",)
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    rollout: Rollout
    def __init__(self, rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class AbortRolloutRequest(_message.Message):
    __slots__ = ("alias", "change")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    alias: str
    change: ChangeOptions
    def __init__(self, alias: _Optional[str] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class AbortRolloutResponse(_message.Message):
    __slots__ = ("rollout",)
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    rollout: Rollout
    def __init__(self, rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class ListRolloutsRequest(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: str
    def __init__(self, alias: _Optional[str] = ...) -> None: ...

class ListRolloutsResponse(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ...) -> None: ...

class SetRolloutSwitchRequest(_message.Message):
    __slots__ = ("switch", "change")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    switch: RolloutSwitch
    change: ChangeOptions
    def __init__(self, switch: _Optional[_Union[RolloutSwitch, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetRolloutSwitchResponse(_message.Message):
    __slots__ = ("switch",)
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    switch: RolloutSwitch
    def __init__(self, switch: _Optional[_Union[RolloutSwitch, _Mapping]] = ...) -> None: ...

class GetRolloutSwitchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRolloutSwitchResponse(_message.Message):
    __slots__ = ("switch",)
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    switch: RolloutSwitch
    def __init__(self, switch: _Optional[_Union[RolloutSwitch, _Mapping]] = ...) -> None: ...

class ListErrorBudgetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListErrorBudgetsResponse(_message.Message):
    __slots__ = ("budgets",)
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[ErrorBudget]
    def __init__(self, budgets: _Optional[_Iterable[_Union[ErrorBudget, _Mapping]]] = ...) -> None: ...

class SetRoleBindingRequest(_message.Message):
    __slots__ = ("binding", "change")
    BINDING_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    binding: RoleBinding
    change: ChangeOptions
    def __init__(self, binding: _Optional[_Union[RoleBinding, _Mapping]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class SetRoleBindingResponse(_message.Message):
    __slots__ = ("binding",)
    BINDING_FIELD_NUMBER: _ClassVar[int]
    binding: RoleBinding
    def __init__(self, binding: _Optional[_Union[RoleBinding, _Mapping]] = ...) -> None: ...

class ListRoleBindingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRoleBindingsResponse(_message.Message):
    __slots__ = ("bindings",)
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    bindings: _containers.RepeatedCompositeFieldContainer[RoleBinding]
    def __init__(self, bindings: _Optional[_Iterable[_Union[RoleBinding, _Mapping]]] = ...) -> None: ...

class ListHistoryRequest(_message.Message):
    __slots__ = ("resource", "limit", "before_revision")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_REVISION_FIELD_NUMBER: _ClassVar[int]
    resource: str
    limit: int
    before_revision: int
    def __init__(self, resource: _Optional[str] = ..., limit: _Optional[int] = ..., before_revision: _Optional[int] = ...) -> None: ...

class ListHistoryResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ...) -> None: ...

class DiffRevisionsRequest(_message.Message):
    __slots__ = ("from_revision", "to_revision")
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    from_revision: int
    to_revision: int
    def __init__(self, from_revision: _Optional[int] = ..., to_revision: _Optional[int] = ...) -> None: ...

class DiffRevisionsResponse(_message.Message):
    __slots__ = ("changes", "to_revision")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ResourceChange]
    to_revision: int
    def __init__(self, changes: _Optional[_Iterable[_Union[ResourceChange, _Mapping]]] = ..., to_revision: _Optional[int] = ...) -> None: ...

class RollbackToRevisionRequest(_message.Message):
    __slots__ = ("to_revision", "change")
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    to_revision: int
    change: ChangeOptions
    def __init__(self, to_revision: _Optional[int] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class RollbackToRevisionResponse(_message.Message):
    __slots__ = ("changes", "revision")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ResourceChange]
    revision: int
    def __init__(self, changes: _Optional[_Iterable[_Union[ResourceChange, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("history",)
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    history: bool
    def __init__(self, history: _Optional[bool] = ...) -> None: ...

class ExportResponse(_message.Message):
    __slots__ = ("values", "revision", "digest")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[ExportedValue]
    revision: int
    digest: str
    def __init__(self, values: _Optional[_Iterable[_Union[ExportedValue, _Mapping]]] = ..., revision: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class ImportRequest(_message.Message):
    __slots__ = ("values", "digest", "replace", "change")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[ExportedValue]
    digest: str
    replace: bool
    change: ChangeOptions
    def __init__(self, values: _Optional[_Iterable[_Union[ExportedValue, _Mapping]]] = ..., digest: _Optional[str] = ..., replace: _Optional[bool] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class ImportResponse(_message.Message):
    __slots__ = ("imported", "deleted", "revision")
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    imported: int
    deleted: int
    revision: int
    def __init__(self, imported: _Optional[int] = ..., deleted: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...
