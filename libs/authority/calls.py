"""Which workload may call which method, by its certificate: the one table, which every server of the mesh applies
before anything else (libs.service). A method that is not in it is refused to everybody. What a caller may beyond that,
an operator by role or a tenant's workload by its tenant's grants, the method itself decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from libs.authority.identity import PERSON
from libs.authority.stores import ROWS

ANY = "*"
"""Whoever has a certificate of the mesh with an id: tenants' workloads and people too."""

_PEOPLE = frozenset({PERSON})
_ALL = frozenset({ANY})
_MESH = frozenset(ROWS) | {"envoy"}
_BEHIND_THE_DOOR = frozenset(service for service, row in ROWS.items() if not row.direct)
_ENVOY = frozenset({"envoy"})
_GATEWAY = frozenset({"gateway"})
_SERVING = frozenset({"gateway", "predictor"})
"""Who serves callers, and accounts for that."""

Methods = Mapping[str, frozenset[str]]

CALLS: Mapping[str, Methods] = {
    "envoy.service.accesslog.v3.AccessLogService": {"StreamAccessLogs": _ENVOY},
    "envoy.service.auth.v3.Authorization": {"Check": _ENVOY},
    # Everybody finds the services here; what is told of the edge is for Envoy alone.
    "envoy.service.discovery.v3.AggregatedDiscoveryService": {"StreamAggregatedResources": _ALL},
    "envoy.service.ratelimit.v3.RateLimitService": {"ShouldRateLimit": _ENVOY},
    "envoy.service.status.v3.ClientStatusDiscoveryService": {
        "FetchClientStatus": _PEOPLE,
        "StreamClientStatus": _PEOPLE,
    },
    # Which of them may read and write which keys is in the table of stores.
    "etcdserverpb.KV": dict.fromkeys(("Range", "Txn"), _BEHIND_THE_DOOR),
    "etcdserverpb.Lease": dict.fromkeys(("LeaseGrant", "LeaseKeepAlive", "LeaseRevoke"), _BEHIND_THE_DOOR),
    "grpc.health.v1.Health": {"Check": _ALL, "Watch": _ALL},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _PEOPLE},
    # Tenants' workloads call these, through the edge or not; the last ones are refused by name.
    "inference.GRPCInferenceService": dict.fromkeys(
        (
            *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer"),
            *("ModelConfig", "ModelStatistics", "RepositoryIndex"),
            *("ModelStreamInfer", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
            *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
            *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
        ),
        _ALL,
    ),
    "opentelemetry.proto.collector.trace.v1.TraceService": {"Export": _MESH},
    "weir.admission.v1.AdmissionService": {
        "Session": _GATEWAY,
        "ReportCapacity": frozenset({"worker"}),
        "ListWorkers": _PEOPLE,
    },
    "weir.audit.v1.AuditService": {
        "Session": _SERVING | {"edge-auth", "ratelimit", "registry", "safety"},
        "Tail": _PEOPLE,
        "Verify": _PEOPLE,
        **dict.fromkeys(("Accept", "Erase", "Export", "RotateKeys", "Reconcile"), _PEOPLE),
        **dict.fromkeys(("Read", "Users"), frozenset({"records"})),
    },
    # Tenants' workloads call these, through the edge or not.
    "weir.inference.v1.InferenceService": dict.fromkeys(("Generate", "Complete", "Embed", "CountTokens"), _ALL),
    # The HTTP face of the Open Inference Protocol, which the edge's transcoder calls; everybody else has the gRPC one.
    "weir.inference.v1.PredictionService": dict.fromkeys(
        (
            *("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex", "ModelReady", "ModelMetadata"),
            *("ModelConfig", "ModelStatistics", "ModelInfer", "Unsupported"),
        ),
        _ENVOY,
    ),
    "weir.openai.v1.OpenAIService": dict.fromkeys(
        (
            *("CreateChatCompletion", "CreateCompletion", "CreateEmbedding", "ListModels", "GetModel"),
            *("GetUsage", "GetEmbeddings", "GetPredictions", "GetCosts", "GetStatus"),
        ),
        _ALL,
    ),
    "weir.quota.v1.QuotaService": {"Session": _SERVING | {"ratelimit"}},
    "weir.records.v1.AnswersService": dict.fromkeys(("Begin", "Keep", "Drop", "Hold"), _SERVING),
    "weir.records.v1.RecordsService": {
        # For a tenant's own admins the gateway asks, who knows them and their tenant.
        "Usage": _PEOPLE | _GATEWAY,
        **dict.fromkeys(("ListRequests", "Rebuild", "Compare"), _PEOPLE),
    },
    # By role; a service follows, by Watch, the kinds that name it as a follower, and gets what names it as a reader.
    "weir.registry.v1.RegistryService": {
        **dict.fromkeys(("Get", "List", "Watch", "History", "Diff", "WhoAmI"), _ALL),
        **dict.fromkeys(("Apply", "Delete", "Rollback", "CreateKey", "RevokeKey", "SteerRollout"), _ALL),
    },
    "weir.rollout.v1.RolloutService": {
        # The control plane of what the edge lost, which nobody who serves has heard of.
        "ReportOutcomes": _SERVING | {"controlplane"},
        "ReportScores": _PEOPLE | {"gateway", "rollout"},
        **dict.fromkeys(
            ("GetRollout", "WatchRollout", "GetSloStatus"), _PEOPLE | {"envoy", "gateway", "registry", "rollout"}
        ),
    },
    "weir.router.v1.RouterService": {"Session": _GATEWAY},
    "weir.safety.v1.SafetyService": {"Session": _GATEWAY},
    "weir.worker.v1.WorkerService": {"Session": _GATEWAY, "Embed": _GATEWAY},
}
"""By service and method."""


def callers_of(method: str) -> frozenset[str]:
    """Who may call a method ("/weir.audit.v1.AuditService/Tail"); nobody, when it is not in the table."""
    service, _, name = method.removeprefix("/").partition("/")
    return CALLS.get(service, {}).get(name, frozenset())


def may_call(method: str, caller: str) -> bool:
    """Whether a service, or `PERSON`, may call a method; nobody without a name may."""
    callers = callers_of(method)
    return bool(caller) and (caller in callers or ANY in callers)
