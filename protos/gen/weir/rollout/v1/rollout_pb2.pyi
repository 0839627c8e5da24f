import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from weir.registry.v1 import registry_pb2 as _registry_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_UNDECIDED: _ClassVar[Verdict]
    VERDICT_HOLDS: _ClassVar[Verdict]
    VERDICT_BREACHED: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_UNDECIDED: Verdict
VERDICT_HOLDS: Verdict
VERDICT_BREACHED: Verdict

class ReportOutcomesRequest(_message.Message):
    __slots__ = ("source", "incarnation", "arms", "objectives")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    source: str
    incarnation: str
    arms: _containers.RepeatedCompositeFieldContainer[ArmOutcomes]
    objectives: _containers.RepeatedCompositeFieldContainer[ObjectiveOutcomes]
    def __init__(self, source: _Optional[str] = ..., incarnation: _Optional[str] = ..., arms: _Optional[_Iterable[_Union[ArmOutcomes, _Mapping]]] = ..., objectives: _Optional[_Iterable[_Union[ObjectiveOutcomes, _Mapping]]] = ...) -> None: ...

class ReportOutcomesResponse(_message.Message):
    __slots__ = ("next",)
    NEXT_FIELD_NUMBER: _ClassVar[int]
    next: _duration_pb2.Duration
    def __init__(self, next: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ArmOutcomes(_message.Message):
    __slots__ = ("alias", "rollout_id", "phase", "step", "arm", "mirrored", "model_version", "requests", "errors", "streams", "completed", "ttft", "itl", "cost", "scores", "objectives", "route", "tier", "cohorts", "keys")
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Moments
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Moments, _Mapping]] = ...) -> None: ...
    class ObjectivesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GoodBad
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GoodBad, _Mapping]] = ...) -> None: ...
    class KeysEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: KeySums
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[KeySums, _Mapping]] = ...) -> None: ...
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    ITL_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    COHORTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    alias: str
    rollout_id: str
    phase: _registry_pb2.RolloutPhase
    step: int
    arm: str
    mirrored: bool
    model_version: str
    requests: int
    errors: int
    streams: int
    completed: int
    ttft: Distribution
    itl: Distribution
    cost: CostMoments
    scores: _containers.MessageMap[str, Moments]
    objectives: _containers.MessageMap[str, GoodBad]
    route: str
    tier: str
    cohorts: Cohorts
    keys: _containers.MessageMap[str, KeySums]
    def __init__(self, alias: _Optional[str] = ..., rollout_id: _Optional[str] = ..., phase: _Optional[_Union[_registry_pb2.RolloutPhase, str]] = ..., step: _Optional[int] = ..., arm: _Optional[str] = ..., mirrored: _Optional[bool] = ..., model_version: _Optional[str] = ..., requests: _Optional[int] = ..., errors: _Optional[int] = ..., streams: _Optional[int] = ..., completed: _Optional[int] = ..., ttft: _Optional[_Union[Distribution, _Mapping]] = ..., itl: _Optional[_Union[Distribution, _Mapping]] = ..., cost: _Optional[_Union[CostMoments, _Mapping]] = ..., scores: _Optional[_Mapping[str, Moments]] = ..., objectives: _Optional[_Mapping[str, GoodBad]] = ..., route: _Optional[str] = ..., tier: _Optional[str] = ..., cohorts: _Optional[_Union[Cohorts, _Mapping]] = ..., keys: _Optional[_Mapping[str, KeySums]] = ...) -> None: ...

class Cohorts(_message.Message):
    __slots__ = ("seconds", "started", "ended", "errors", "broken", "prompt", "longest", "now")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    seconds: _containers.RepeatedScalarFieldContainer[int]
    started: _containers.RepeatedScalarFieldContainer[int]
    ended: _containers.RepeatedScalarFieldContainer[int]
    errors: _containers.RepeatedScalarFieldContainer[int]
    broken: _containers.RepeatedScalarFieldContainer[int]
    prompt: _containers.RepeatedScalarFieldContainer[int]
    longest: float
    now: float
    def __init__(self, seconds: _Optional[_Iterable[int]] = ..., started: _Optional[_Iterable[int]] = ..., ended: _Optional[_Iterable[int]] = ..., errors: _Optional[_Iterable[int]] = ..., broken: _Optional[_Iterable[int]] = ..., prompt: _Optional[_Iterable[int]] = ..., longest: _Optional[float] = ..., now: _Optional[float] = ...) -> None: ...

class KeySums(_message.Message):
    __slots__ = ("counts", "sums")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., sums: _Optional[_Iterable[float]] = ...) -> None: ...

class Distribution(_message.Message):
    __slots__ = ("bins", "counts", "sum_log", "sum_log2")
    BINS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_LOG_FIELD_NUMBER: _ClassVar[int]
    SUM_LOG2_FIELD_NUMBER: _ClassVar[int]
    bins: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum_log: float
    sum_log2: float
    def __init__(self, bins: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., sum_log: _Optional[float] = ..., sum_log2: _Optional[float] = ...) -> None: ...

class Moments(_message.Message):
    __slots__ = ("count", "sum", "sum2")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    SUM2_FIELD_NUMBER: _ClassVar[int]
    count: int
    sum: float
    sum2: float
    def __init__(self, count: _Optional[int] = ..., sum: _Optional[float] = ..., sum2: _Optional[float] = ...) -> None: ...

class CostMoments(_message.Message):
    __slots__ = ("count", "cost", "tokens", "cost2", "tokens2", "cost_tokens", "reference", "reference2", "cost_reference")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST2_FIELD_NUMBER: _ClassVar[int]
    TOKENS2_FIELD_NUMBER: _ClassVar[int]
    COST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE2_FIELD_NUMBER: _ClassVar[int]
    COST_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    count: int
    cost: float
    tokens: float
    cost2: float
    tokens2: float
    cost_tokens: float
    reference: float
    reference2: float
    cost_reference: float
    def __init__(self, count: _Optional[int] = ..., cost: _Optional[float] = ..., tokens: _Optional[float] = ..., cost2: _Optional[float] = ..., tokens2: _Optional[float] = ..., cost_tokens: _Optional[float] = ..., reference: _Optional[float] = ..., reference2: _Optional[float] = ..., cost_reference: _Optional[float] = ...) -> None: ...

class GoodBad(_message.Message):
    __slots__ = ("good", "bad")
    GOOD_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    good: int
    bad: int
    def __init__(self, good: _Optional[int] = ..., bad: _Optional[int] = ...) -> None: ...

class ObjectiveOutcomes(_message.Message):
    __slots__ = ("route", "tier", "objectives")
    class ObjectivesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GoodBad
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GoodBad, _Mapping]] = ...) -> None: ...
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    route: str
    tier: str
    objectives: _containers.MessageMap[str, GoodBad]
    def __init__(self, route: _Optional[str] = ..., tier: _Optional[str] = ..., objectives: _Optional[_Mapping[str, GoodBad]] = ...) -> None: ...

class ReportScoresRequest(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[Score]
    def __init__(self, scores: _Optional[_Iterable[_Union[Score, _Mapping]]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("id", "alias", "rollout_id", "arm", "metric", "value")
    ID_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    id: str
    alias: str
    rollout_id: str
    arm: str
    metric: str
    value: float
    def __init__(self, id: _Optional[str] = ..., alias: _Optional[str] = ..., rollout_id: _Optional[str] = ..., arm: _Optional[str] = ..., metric: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class ReportScoresResponse(_message.Message):
    __slots__ = ("accepted", "repeated_scores", "unknown")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_SCORES_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    repeated_scores: int
    unknown: int
    def __init__(self, accepted: _Optional[int] = ..., repeated_scores: _Optional[int] = ..., unknown: _Optional[int] = ...) -> None: ...

class GetRolloutRequest(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: str
    def __init__(self, alias: _Optional[str] = ...) -> None: ...

class GetRolloutResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RolloutStatus
    def __init__(self, status: _Optional[_Union[RolloutStatus, _Mapping]] = ...) -> None: ...

class WatchRolloutRequest(_message.Message):
    __slots__ = ("alias", "interval")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    alias: str
    interval: _duration_pb2.Duration
    def __init__(self, alias: _Optional[str] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchRolloutResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RolloutStatus
    def __init__(self, status: _Optional[_Union[RolloutStatus, _Mapping]] = ...) -> None: ...

class RolloutStatus(_message.Message):
    __slots__ = ("rollout", "arms", "gates", "decisions", "workers", "leader", "leader_instance", "sources", "waits_for")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    rollout: _registry_pb2.Rollout
    arms: _containers.RepeatedCompositeFieldContainer[ArmStatus]
    gates: _containers.RepeatedCompositeFieldContainer[GateStatus]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    leader: bool
    leader_instance: str
    sources: int
    waits_for: str
    def __init__(self, rollout: _Optional[_Union[_registry_pb2.Rollout, _Mapping]] = ..., arms: _Optional[_Iterable[_Union[ArmStatus, _Mapping]]] = ..., gates: _Optional[_Iterable[_Union[GateStatus, _Mapping]]] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., leader: _Optional[bool] = ..., leader_instance: _Optional[str] = ..., sources: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class ArmStatus(_message.Message):
    __slots__ = ("arm", "model_version", "weight", "measured_share", "requests", "error_rate", "stream_completion", "ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "cost_per_1k_tokens", "cost_per_request", "scores", "mirrored")
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ARM_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MEASURED_SHARE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    STREAM_COMPLETION_FIELD_NUMBER: _ClassVar[int]
    TTFT_P50_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_FIELD_NUMBER: _ClassVar[int]
    TTFT_P99_FIELD_NUMBER: _ClassVar[int]
    ITL_P50_FIELD_NUMBER: _ClassVar[int]
    ITL_P95_FIELD_NUMBER: _ClassVar[int]
    COST_PER_1K_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    arm: str
    model_version: str
    weight: int
    measured_share: int
    requests: int
    error_rate: float
    stream_completion: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    itl_p50: float
    itl_p95: float
    cost_per_1k_tokens: float
    cost_per_request: float
    scores: _containers.ScalarMap[str, float]
    mirrored: int
    def __init__(self, arm: _Optional[str] = ..., model_version: _Optional[str] = ..., weight: _Optional[int] = ..., measured_share: _Optional[int] = ..., requests: _Optional[int] = ..., error_rate: _Optional[float] = ..., stream_completion: _Optional[float] = ..., ttft_p50: _Optional[float] = ..., ttft_p95: _Optional[float] = ..., ttft_p99: _Optional[float] = ..., itl_p50: _Optional[float] = ..., itl_p95: _Optional[float] = ..., cost_per_1k_tokens: _Optional[float] = ..., cost_per_request: _Optional[float] = ..., scores: _Optional[_Mapping[str, float]] = ..., mirrored: _Optional[int] = ...) -> None: ...

class GateStatus(_message.Message):
    __slots__ = ("gate", "arm", "verdict", "difference", "low", "high", "samples", "baseline_samples", "text")
    GATE_FIELD_NUMBER: _ClassVar[int]
    ARM_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BASELINE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    gate: _registry_pb2.Gate
    arm: str
    verdict: Verdict
    difference: float
    low: float
    high: float
    samples: int
    baseline_samples: int
    text: str
    def __init__(self, gate: _Optional[_Union[_registry_pb2.Gate, _Mapping]] = ..., arm: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., difference: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., samples: _Optional[int] = ..., baseline_samples: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("at", "kind", "text", "by", "revision")
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    kind: str
    text: str
    by: str
    revision: int
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., by: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("worker", "zone", "state")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    zone: str
    state: _registry_pb2.ModelState
    def __init__(self, worker: _Optional[str] = ..., zone: _Optional[str] = ..., state: _Optional[_Union[_registry_pb2.ModelState, _Mapping]] = ...) -> None: ...

class GetSloStatusRequest(_message.Message):
    __slots__ = ("route", "tier")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    route: str
    tier: str
    def __init__(self, route: _Optional[str] = ..., tier: _Optional[str] = ...) -> None: ...

class GetSloStatusResponse(_message.Message):
    __slots__ = ("budgets", "frozen")
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[_registry_pb2.ErrorBudget]
    frozen: bool
    def __init__(self, budgets: _Optional[_Iterable[_Union[_registry_pb2.ErrorBudget, _Mapping]]] = ..., frozen: _Optional[bool] = ...) -> None: ...
