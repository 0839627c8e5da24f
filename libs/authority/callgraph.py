"""Who calls whom, as the tables of calls and of stores allow it. Pure: what network policies are made from."""

from __future__ import annotations

from libs.authority.calls import ANY, CALLS
from libs.authority.stores import DOOR, ROWS
from libs.resources.kinds import KINDS

_SERVED_BY = {
    "envoy.service.accesslog.v3.AccessLogService": "controlplane",
    "envoy.service.auth.v3.Authorization": "edge-auth",
    "envoy.service.discovery.v3.AggregatedDiscoveryService": "controlplane",
    "envoy.service.ratelimit.v3.RateLimitService": "ratelimit",
    "envoy.service.status.v3.ClientStatusDiscoveryService": "controlplane",
    "etcdserverpb.KV": DOOR,
    "etcdserverpb.Lease": DOOR,
    "inference.GRPCInferenceService": "predictor",
    "opentelemetry.proto.collector.trace.v1.TraceService": "collector",
    "weir.inference.v1.InferenceService": "gateway",
    "weir.inference.v1.PredictionService": "predictor",
    "weir.openai.v1.OpenAIService": "gateway",
    "weir.quota.v1.QuotaService": "ratelimit",
}
"""Services whose gRPC service is not called like them."""
_EVERYBODYS = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
"""Of every process: supervisors and people look, services do not."""
_OPEN = {
    # Whoever follows a kind of resources (`Kind.followers`) and does not read etcd itself; Envoy, for operators.
    "registry": frozenset({"envoy"}).union(*(kind.followers for kind in KINDS))
    - {service for service, row in ROWS.items() if row.direct},
    # Whoever dials xds:///. The door, the collector and etcd dial nobody by name.
    "controlplane": (frozenset(ROWS) | {"envoy"}) - {DOOR, "collector", "controlplane"},
    "gateway": frozenset({"envoy"}),
    # One that has not the version that it is asked for hands on to one that has.
    "predictor": frozenset({"envoy", "predictor"}),
}
"""Who of the mesh calls what everybody may call. Tenants' workloads call the gateway, the predictors
and the control plane too."""


def calls(service: str) -> frozenset[str]:
    """The services that a service opens connections to, its own name where its processes call one another."""
    called = _listed(service) | {each for each, callers in _OPEN.items() if service in callers}
    return called | {"etcd"} if service in ROWS and ROWS[service].direct else called


def workloads_call() -> frozenset[str]:
    """The services that tenants' own workloads open connections to."""
    return _listed(ANY)


def _listed(caller: str) -> frozenset[str]:
    """What the table of calls lets it call."""
    found = (name for name, methods in CALLS.items() if any(caller in callers for callers in methods.values()))
    return frozenset(_SERVED_BY.get(name) or name.split(".")[1] for name in found if name not in _EVERYBODYS)
