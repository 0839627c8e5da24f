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
PLAN_UNSPECIFIED: Plan
PLAN_FREE: Plan
PLAN_PAID: Plan
FAIL_MODE_UNSPECIFIED: FailMode
FAIL_MODE_CLOSED: FailMode
FAIL_MODE_FLAG: FailMode
OVER_QUOTA_UNSPECIFIED: OverQuota
OVER_QUOTA_REFUSE: OverQuota
OVER_QUOTA_SERVE_IDLE: OverQuota

class ModelVersion(_message.Message):
    __slots__ = ("name", "version", "digest", "artifacts", "source", "architecture", "context_length", "tier", "pool", "sampling_defaults", "eos_token_ids", "safety_policy", "training_data_sha256", "created_at", "chat_template_sha256")
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
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., source: _Optional[str] = ..., architecture: _Optional[str] = ..., context_length: _Optional[int] = ..., tier: _Optional[str] = ..., pool: _Optional[str] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., safety_policy: _Optional[str] = ..., training_data_sha256: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., chat_template_sha256: _Optional[str] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("path", "sha256", "bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    sha256: str
    bytes: int
    def __init__(self, path: _Optional[str] = ..., sha256: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("model", "input_microusd_per_million", "output_microusd_per_million", "revision")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    model: str
    input_microusd_per_million: int
    output_microusd_per_million: int
    revision: int
    def __init__(self, model: _Optional[str] = ..., input_microusd_per_million: _Optional[int] = ..., output_microusd_per_million: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("service", "instance", "address", "zone", "metrics_address", "pool", "model_versions", "engine", "simulated", "started_at")
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
    def __init__(self, service: _Optional[str] = ..., instance: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., metrics_address: _Optional[str] = ..., pool: _Optional[str] = ..., model_versions: _Optional[_Iterable[str]] = ..., engine: _Optional[str] = ..., simulated: _Optional[bool] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateModelVersionRequest(_message.Message):
    __slots__ = ("model_version",)
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_version: ModelVersion
    def __init__(self, model_version: _Optional[_Union[ModelVersion, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: Alias
    def __init__(self, alias: _Optional[_Union[Alias, _Mapping]] = ...) -> None: ...

class SetAliasResponse(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: Alias
    def __init__(self, alias: _Optional[_Union[Alias, _Mapping]] = ...) -> None: ...

class SetTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("tenant", "scopes", "ttl", "note")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    ttl: _duration_pb2.Duration
    note: str
    def __init__(self, tenant: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class CreateKeyResponse(_message.Message):
    __slots__ = ("key", "secret")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    secret: str
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    def __init__(self, key_id: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("limits",)
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    limits: Limits
    def __init__(self, limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: PlanPolicy
    def __init__(self, plan: _Optional[_Union[PlanPolicy, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("slo",)
    SLO_FIELD_NUMBER: _ClassVar[int]
    slo: Slo
    def __init__(self, slo: _Optional[_Union[Slo, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("price",)
    PRICE_FIELD_NUMBER: _ClassVar[int]
    price: Price
    def __init__(self, price: _Optional[_Union[Price, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: SafetyPolicy
    def __init__(self, policy: _Optional[_Union[SafetyPolicy, _Mapping]] = ...) -> None: ...

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
