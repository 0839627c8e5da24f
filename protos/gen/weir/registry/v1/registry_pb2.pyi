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
    LOAD_STATE_UNLOADED: _ClassVar[LoadState]

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

class BudgetEnforcement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUDGET_ENFORCEMENT_UNSPECIFIED: _ClassVar[BudgetEnforcement]
    BUDGET_ENFORCEMENT_HARD: _ClassVar[BudgetEnforcement]
    BUDGET_ENFORCEMENT_SOFT: _ClassVar[BudgetEnforcement]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_CREATED: _ClassVar[Outcome]
    OUTCOME_CHANGED: _ClassVar[Outcome]
    OUTCOME_UNCHANGED: _ClassVar[Outcome]
    OUTCOME_DELETED: _ClassVar[Outcome]

class Steering(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEERING_UNSPECIFIED: _ClassVar[Steering]
    STEERING_ADVANCE: _ClassVar[Steering]
    STEERING_PROMOTE: _ClassVar[Steering]
    STEERING_PAUSE: _ClassVar[Steering]
    STEERING_RESUME: _ClassVar[Steering]
    STEERING_ABORT: _ClassVar[Steering]
    STEERING_RESTART: _ClassVar[Steering]
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
LOAD_STATE_UNLOADED: LoadState
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
BUDGET_ENFORCEMENT_UNSPECIFIED: BudgetEnforcement
BUDGET_ENFORCEMENT_HARD: BudgetEnforcement
BUDGET_ENFORCEMENT_SOFT: BudgetEnforcement
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_CREATED: Outcome
OUTCOME_CHANGED: Outcome
OUTCOME_UNCHANGED: Outcome
OUTCOME_DELETED: Outcome
STEERING_UNSPECIFIED: Steering
STEERING_ADVANCE: Steering
STEERING_PROMOTE: Steering
STEERING_PAUSE: Steering
STEERING_RESUME: Steering
STEERING_ABORT: Steering
STEERING_RESTART: Steering

class Resource(_message.Message):
    __slots__ = ("metadata", "tenant", "limits", "plan", "slo", "price", "budget", "safety_policy", "trust", "role", "model", "alias", "pin", "rollout", "switch", "key", "model_grant", "safety_floor", "rollout_state", "error_budget", "level", "endpoint", "spend")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SLO_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    SAFETY_POLICY_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_GRANT_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FLOOR_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_BUDGET_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SPEND_FIELD_NUMBER: _ClassVar[int]
    metadata: Metadata
    tenant: Tenant
    limits: Limits
    plan: PlanPolicy
    slo: Slo
    price: Price
    budget: Budget
    safety_policy: SafetyPolicy
    trust: TrustPolicy
    role: RoleBinding
    model: ModelVersion
    alias: Alias
    pin: Pin
    rollout: Rollout
    switch: RolloutSwitch
    key: ApiKey
    model_grant: ModelGrant
    safety_floor: SafetyFloor
    rollout_state: RolloutState
    error_budget: ErrorBudget
    level: PoolLevel
    endpoint: Endpoint
    spend: Spend
    def __init__(self, metadata: _Optional[_Union[Metadata, _Mapping]] = ..., tenant: _Optional[_Union[Tenant, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., plan: _Optional[_Union[PlanPolicy, _Mapping]] = ..., slo: _Optional[_Union[Slo, _Mapping]] = ..., price: _Optional[_Union[Price, _Mapping]] = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., safety_policy: _Optional[_Union[SafetyPolicy, _Mapping]] = ..., trust: _Optional[_Union[TrustPolicy, _Mapping]] = ..., role: _Optional[_Union[RoleBinding, _Mapping]] = ..., model: _Optional[_Union[ModelVersion, _Mapping]] = ..., alias: _Optional[_Union[Alias, _Mapping]] = ..., pin: _Optional[_Union[Pin, _Mapping]] = ..., rollout: _Optional[_Union[Rollout, _Mapping]] = ..., switch: _Optional[_Union[RolloutSwitch, _Mapping]] = ..., key: _Optional[_Union[ApiKey, _Mapping]] = ..., model_grant: _Optional[_Union[ModelGrant, _Mapping]] = ..., safety_floor: _Optional[_Union[SafetyFloor, _Mapping]] = ..., rollout_state: _Optional[_Union[RolloutState, _Mapping]] = ..., error_budget: _Optional[_Union[ErrorBudget, _Mapping]] = ..., level: _Optional[_Union[PoolLevel, _Mapping]] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., spend: _Optional[_Union[Spend, _Mapping]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("name", "namespace", "revision", "labels", "owner")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    revision: int
    labels: _containers.ScalarMap[str, str]
    owner: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., revision: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., owner: _Optional[str] = ...) -> None: ...

class ResourceName(_message.Message):
    __slots__ = ("kind", "name", "revision")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    revision: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("name", "version", "digest", "artifacts", "source", "architecture", "context_length", "tier", "pool", "sampling_defaults", "eos_token_ids", "safety_policies", "training_data_sha256", "created_at", "chat_template_sha256", "namespace", "signature", "schema_sha256", "offline_metrics", "provenance", "tokenizer_sha256", "prediction")
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
    SAFETY_POLICIES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_DATA_SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_METRICS_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
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
    safety_policies: _containers.RepeatedScalarFieldContainer[str]
    training_data_sha256: str
    created_at: _timestamp_pb2.Timestamp
    chat_template_sha256: str
    namespace: str
    signature: str
    schema_sha256: str
    offline_metrics: _containers.ScalarMap[str, float]
    provenance: Provenance
    tokenizer_sha256: str
    prediction: PredictionSpec
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., source: _Optional[str] = ..., architecture: _Optional[str] = ..., context_length: _Optional[int] = ..., tier: _Optional[str] = ..., pool: _Optional[str] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., safety_policies: _Optional[_Iterable[str]] = ..., training_data_sha256: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., chat_template_sha256: _Optional[str] = ..., namespace: _Optional[str] = ..., signature: _Optional[str] = ..., schema_sha256: _Optional[str] = ..., offline_metrics: _Optional[_Mapping[str, float]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., tokenizer_sha256: _Optional[str] = ..., prediction: _Optional[_Union[PredictionSpec, _Mapping]] = ...) -> None: ...

class PredictionSpec(_message.Message):
    __slots__ = ("steps", "inputs", "outputs", "max_rows", "lane", "golden", "profile", "smaller", "prior", "cache_seconds", "no_golden_reason")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SMALLER_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    CACHE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NO_GOLDEN_REASON_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[PredictionStep]
    inputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    max_rows: int
    lane: str
    golden: str
    profile: str
    smaller: _containers.RepeatedScalarFieldContainer[str]
    prior: str
    cache_seconds: int
    no_golden_reason: str
    def __init__(self, steps: _Optional[_Iterable[_Union[PredictionStep, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., max_rows: _Optional[int] = ..., lane: _Optional[str] = ..., golden: _Optional[str] = ..., profile: _Optional[str] = ..., smaller: _Optional[_Iterable[str]] = ..., prior: _Optional[str] = ..., cache_seconds: _Optional[int] = ..., no_golden_reason: _Optional[str] = ...) -> None: ...

class PredictionStep(_message.Message):
    __slots__ = ("format", "path", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    format: str
    path: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, format: _Optional[str] = ..., path: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "datatype", "shape", "rules", "columns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    rules: _containers.RepeatedCompositeFieldContainer[ValueRule]
    columns: _containers.RepeatedCompositeFieldContainer[ColumnSpec]
    def __init__(self, name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., rules: _Optional[_Iterable[_Union[ValueRule, _Mapping]]] = ..., columns: _Optional[_Iterable[_Union[ColumnSpec, _Mapping]]] = ...) -> None: ...

class ValueRule(_message.Message):
    __slots__ = ("columns", "nan", "default_value", "categories", "unseen", "min", "max", "beyond")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    NAN_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedScalarFieldContainer[int]
    nan: str
    default_value: float
    categories: _containers.RepeatedScalarFieldContainer[str]
    unseen: str
    min: float
    max: float
    beyond: str
    def __init__(self, columns: _Optional[_Iterable[int]] = ..., nan: _Optional[str] = ..., default_value: _Optional[float] = ..., categories: _Optional[_Iterable[str]] = ..., unseen: _Optional[str] = ..., min: _Optional[float] = ..., max: _Optional[float] = ..., beyond: _Optional[str] = ...) -> None: ...

class ColumnSpec(_message.Message):
    __slots__ = ("name", "categorical", "categories")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CATEGORICAL_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    categorical: bool
    categories: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., categorical: _Optional[bool] = ..., categories: _Optional[_Iterable[str]] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("source_uri", "revision", "builder", "built_at", "base", "unchecked")
    SOURCE_URI_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    BUILDER_FIELD_NUMBER: _ClassVar[int]
    BUILT_AT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    UNCHECKED_FIELD_NUMBER: _ClassVar[int]
    source_uri: str
    revision: str
    builder: str
    built_at: _timestamp_pb2.Timestamp
    base: str
    unchecked: str
    def __init__(self, source_uri: _Optional[str] = ..., revision: _Optional[str] = ..., builder: _Optional[str] = ..., built_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., base: _Optional[str] = ..., unchecked: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("temperature", "top_p", "max_tokens", "top_k", "min_p", "repetition_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    max_tokens: int
    top_k: int
    min_p: float
    repetition_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., max_tokens: _Optional[int] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("id", "display_name", "plan", "weight", "workloads", "safety_policies", "safety_fail_mode", "audit_required", "max_deadline", "training_allowed", "jwt_issuer", "revision", "plan_policy", "time_zone", "allowed_regions", "tell_cost")
    ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    SAFETY_POLICIES_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FAIL_MODE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    MAX_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    JWT_ISSUER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PLAN_POLICY_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_REGIONS_FIELD_NUMBER: _ClassVar[int]
    TELL_COST_FIELD_NUMBER: _ClassVar[int]
    id: str
    display_name: str
    plan: Plan
    weight: float
    workloads: _containers.RepeatedScalarFieldContainer[str]
    safety_policies: _containers.RepeatedScalarFieldContainer[str]
    safety_fail_mode: FailMode
    audit_required: bool
    max_deadline: _duration_pb2.Duration
    training_allowed: bool
    jwt_issuer: str
    revision: int
    plan_policy: str
    time_zone: str
    allowed_regions: _containers.RepeatedScalarFieldContainer[str]
    tell_cost: bool
    def __init__(self, id: _Optional[str] = ..., display_name: _Optional[str] = ..., plan: _Optional[_Union[Plan, str]] = ..., weight: _Optional[float] = ..., workloads: _Optional[_Iterable[str]] = ..., safety_policies: _Optional[_Iterable[str]] = ..., safety_fail_mode: _Optional[_Union[FailMode, str]] = ..., audit_required: _Optional[bool] = ..., max_deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., training_allowed: _Optional[bool] = ..., jwt_issuer: _Optional[str] = ..., revision: _Optional[int] = ..., plan_policy: _Optional[str] = ..., time_zone: _Optional[str] = ..., allowed_regions: _Optional[_Iterable[str]] = ..., tell_cost: _Optional[bool] = ...) -> None: ...

class ModelGrant(_message.Message):
    __slots__ = ("subject", "namespaces", "models", "pinned_namespaces", "revision")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PINNED_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    subject: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    models: _containers.RepeatedScalarFieldContainer[str]
    pinned_namespaces: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    def __init__(self, subject: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., models: _Optional[_Iterable[str]] = ..., pinned_namespaces: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("tenant", "model", "requests_per_minute", "tokens_per_minute", "concurrency", "max_context", "max_output", "revision", "spend_microusd", "spend_window", "rows_per_minute")
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
    ROWS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
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
    rows_per_minute: int
    def __init__(self, tenant: _Optional[str] = ..., model: _Optional[str] = ..., requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ..., concurrency: _Optional[int] = ..., max_context: _Optional[int] = ..., max_output: _Optional[int] = ..., revision: _Optional[int] = ..., spend_microusd: _Optional[int] = ..., spend_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rows_per_minute: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("model", "input_microusd_per_million", "output_microusd_per_million", "revision", "input_cost_microusd_per_million", "output_cost_microusd_per_million", "cached_input_microusd_per_million", "row_microusd_per_million", "row_cost_microusd_per_million")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    INPUT_COST_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_COST_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    ROW_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    ROW_COST_MICROUSD_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    model: str
    input_microusd_per_million: int
    output_microusd_per_million: int
    revision: int
    input_cost_microusd_per_million: int
    output_cost_microusd_per_million: int
    cached_input_microusd_per_million: int
    row_microusd_per_million: int
    row_cost_microusd_per_million: int
    def __init__(self, model: _Optional[str] = ..., input_microusd_per_million: _Optional[int] = ..., output_microusd_per_million: _Optional[int] = ..., revision: _Optional[int] = ..., input_cost_microusd_per_million: _Optional[int] = ..., output_cost_microusd_per_million: _Optional[int] = ..., cached_input_microusd_per_million: _Optional[int] = ..., row_microusd_per_million: _Optional[int] = ..., row_cost_microusd_per_million: _Optional[int] = ...) -> None: ...

class PoolLevel(_message.Message):
    __slots__ = ("pool", "admission", "at", "classes", "tenants", "epoch")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    pool: str
    admission: str
    at: _timestamp_pb2.Timestamp
    classes: _containers.RepeatedCompositeFieldContainer[ClassLevel]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantLevel]
    epoch: int
    def __init__(self, pool: _Optional[str] = ..., admission: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., classes: _Optional[_Iterable[_Union[ClassLevel, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantLevel, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

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
    version: str
    rules: _containers.RepeatedCompositeFieldContainer[SafetyRule]
    revision: int
    def __init__(self, id: _Optional[str] = ..., version: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[SafetyRule, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class SafetyFloor(_message.Message):
    __slots__ = ("policies", "revision")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    def __init__(self, policies: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("service", "instance", "address", "zone", "metrics_address", "pool", "model_versions", "engine", "simulated", "started_at", "model_states", "leaving", "region", "numerics")
    class NumericsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
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
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
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
    leaving: bool
    region: str
    numerics: _containers.ScalarMap[str, str]
    def __init__(self, service: _Optional[str] = ..., instance: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., metrics_address: _Optional[str] = ..., pool: _Optional[str] = ..., model_versions: _Optional[_Iterable[str]] = ..., engine: _Optional[str] = ..., simulated: _Optional[bool] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., model_states: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., leaving: _Optional[bool] = ..., region: _Optional[str] = ..., numerics: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("model_version", "state", "detail", "digest", "memory_bytes")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    state: LoadState
    detail: str
    digest: str
    memory_bytes: int
    def __init__(self, model_version: _Optional[str] = ..., state: _Optional[_Union[LoadState, str]] = ..., detail: _Optional[str] = ..., digest: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("alias", "id", "baseline", "arms", "steps", "shadow", "sticky", "blast_radius", "gates", "alpha", "on_rollback", "keep_warm", "capacity_share", "reason", "override_reason", "state", "revision", "prepare_timeout", "few_keys_reason", "schema_changed")
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
    FEW_KEYS_REASON_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_CHANGED_FIELD_NUMBER: _ClassVar[int]
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
    few_keys_reason: str
    schema_changed: bool
    def __init__(self, alias: _Optional[str] = ..., id: _Optional[str] = ..., baseline: _Optional[str] = ..., arms: _Optional[_Iterable[_Union[RolloutArm, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[RolloutStep, _Mapping]]] = ..., shadow: _Optional[_Union[ShadowPlan, _Mapping]] = ..., sticky: _Optional[_Union[StickyBy, str]] = ..., blast_radius: _Optional[_Union[BlastRadius, _Mapping]] = ..., gates: _Optional[_Iterable[_Union[Gate, _Mapping]]] = ..., alpha: _Optional[float] = ..., on_rollback: _Optional[_Union[InFlight, str]] = ..., keep_warm: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., capacity_share: _Optional[float] = ..., reason: _Optional[str] = ..., override_reason: _Optional[str] = ..., state: _Optional[_Union[RolloutState, _Mapping]] = ..., revision: _Optional[int] = ..., prepare_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., few_keys_reason: _Optional[str] = ..., schema_changed: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("share", "min_duration", "min_samples", "requests_per_minute", "tokens_per_minute", "max_duration", "rows_per_minute")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    share: int
    min_duration: _duration_pb2.Duration
    min_samples: int
    requests_per_minute: int
    tokens_per_minute: int
    max_duration: _duration_pb2.Duration
    rows_per_minute: int
    def __init__(self, share: _Optional[int] = ..., min_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., min_samples: _Optional[int] = ..., requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ..., max_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rows_per_minute: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("principal", "roles", "namespaces", "revision", "tenants")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    principal: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, principal: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., namespaces: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., tenants: _Optional[_Iterable[str]] = ...) -> None: ...

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

class Budget(_message.Message):
    __slots__ = ("tenant", "monthly_microusd", "daily_microusd", "enforcement", "alert_percent")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MONTHLY_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    DAILY_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    ENFORCEMENT_FIELD_NUMBER: _ClassVar[int]
    ALERT_PERCENT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    monthly_microusd: int
    daily_microusd: int
    enforcement: BudgetEnforcement
    alert_percent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tenant: _Optional[str] = ..., monthly_microusd: _Optional[int] = ..., daily_microusd: _Optional[int] = ..., enforcement: _Optional[_Union[BudgetEnforcement, str]] = ..., alert_percent: _Optional[_Iterable[int]] = ...) -> None: ...

class Spend(_message.Message):
    __slots__ = ("tenant", "day", "day_microusd", "month", "month_microusd", "day_alert_percent", "month_alert_percent", "at")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    DAY_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    MONTH_FIELD_NUMBER: _ClassVar[int]
    MONTH_MICROUSD_FIELD_NUMBER: _ClassVar[int]
    DAY_ALERT_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MONTH_ALERT_PERCENT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    day: str
    day_microusd: int
    month: str
    month_microusd: int
    day_alert_percent: int
    month_alert_percent: int
    at: _timestamp_pb2.Timestamp
    def __init__(self, tenant: _Optional[str] = ..., day: _Optional[str] = ..., day_microusd: _Optional[int] = ..., month: _Optional[str] = ..., month_microusd: _Optional[int] = ..., day_alert_percent: _Optional[int] = ..., month_alert_percent: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ChangeOptions(_message.Message):
    __slots__ = ("dry_run", "reason")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    reason: str
    def __init__(self, dry_run: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("resource", "referrers")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    REFERRERS_FIELD_NUMBER: _ClassVar[int]
    resource: Resource
    referrers: _containers.RepeatedCompositeFieldContainer[ResourceName]
    def __init__(self, resource: _Optional[_Union[Resource, _Mapping]] = ..., referrers: _Optional[_Iterable[_Union[ResourceName, _Mapping]]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("kinds", "selector", "page_size", "page_token", "secrets")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    selector: str
    page_size: int
    page_token: str
    secrets: bool
    def __init__(self, kinds: _Optional[_Iterable[str]] = ..., selector: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., secrets: _Optional[bool] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("resources", "revision", "next_page_token")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[Resource]
    revision: int
    next_page_token: str
    def __init__(self, resources: _Optional[_Iterable[_Union[Resource, _Mapping]]] = ..., revision: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("resources", "owner", "prune", "take_over", "restore", "change")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PRUNE_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[Resource]
    owner: str
    prune: bool
    take_over: bool
    restore: bool
    change: ChangeOptions
    def __init__(self, resources: _Optional[_Iterable[_Union[Resource, _Mapping]]] = ..., owner: _Optional[str] = ..., prune: _Optional[bool] = ..., take_over: _Optional[bool] = ..., restore: _Optional[bool] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("results", "revision")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Applied]
    revision: int
    def __init__(self, results: _Optional[_Iterable[_Union[Applied, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("resource", "outcome", "change")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    resource: ResourceName
    outcome: Outcome
    change: ResourceChange
    def __init__(self, resource: _Optional[_Union[ResourceName, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., change: _Optional[_Union[ResourceChange, _Mapping]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("resources", "change")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[ResourceName]
    change: ChangeOptions
    def __init__(self, resources: _Optional[_Iterable[_Union[ResourceName, _Mapping]]] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("results", "revision")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Applied]
    revision: int
    def __init__(self, results: _Optional[_Iterable[_Union[Applied, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("kinds", "from_revision", "selector", "at_least")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    from_revision: int
    selector: str
    at_least: int
    def __init__(self, kinds: _Optional[_Iterable[str]] = ..., from_revision: _Optional[int] = ..., selector: _Optional[str] = ..., at_least: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("revision", "resources", "deleted", "more")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    resources: _containers.RepeatedCompositeFieldContainer[Resource]
    deleted: _containers.RepeatedCompositeFieldContainer[ResourceName]
    more: bool
    def __init__(self, revision: _Optional[int] = ..., resources: _Optional[_Iterable[_Union[Resource, _Mapping]]] = ..., deleted: _Optional[_Iterable[_Union[ResourceName, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("kind", "name", "limit", "before_revision")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_REVISION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    limit: int
    before_revision: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., limit: _Optional[int] = ..., before_revision: _Optional[int] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ...) -> None: ...

class DiffRequest(_message.Message):
    __slots__ = ("from_revision", "to_revision", "kind", "name")
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    from_revision: int
    to_revision: int
    kind: str
    name: str
    def __init__(self, from_revision: _Optional[int] = ..., to_revision: _Optional[int] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DiffResponse(_message.Message):
    __slots__ = ("changes", "to_revision")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ResourceChange]
    to_revision: int
    def __init__(self, changes: _Optional[_Iterable[_Union[ResourceChange, _Mapping]]] = ..., to_revision: _Optional[int] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("principal", "known_by", "roles", "namespaces", "tenants")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    KNOWN_BY_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    principal: str
    known_by: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, principal: _Optional[str] = ..., known_by: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., namespaces: _Optional[_Iterable[str]] = ..., tenants: _Optional[_Iterable[str]] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("to_revision", "kind", "name", "change")
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    to_revision: int
    kind: str
    name: str
    change: ChangeOptions
    def __init__(self, to_revision: _Optional[int] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., change: _Optional[_Union[ChangeOptions, _Mapping]] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("changes", "revision", "kept")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ResourceChange]
    revision: int
    kept: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changes: _Optional[_Iterable[_Union[ResourceChange, _Mapping]]] = ..., revision: _Optional[int] = ..., kept: _Optional[_Iterable[str]] = ...) -> None: ...

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
    key: Resource
    secret: str
    def __init__(self, key: _Optional[_Union[Resource, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

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
    key: Resource
    def __init__(self, key: _Optional[_Union[Resource, _Mapping]] = ...) -> None: ...

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
    rollout: Resource
    def __init__(self, rollout: _Optional[_Union[Resource, _Mapping]] = ...) -> None: ...
