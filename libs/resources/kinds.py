"""The kinds of resources: the table of what the registry keeps, who may change it and who follows it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.access import check_binding
from libs.resources.checks.models import check_alias, check_model, check_pin
from libs.resources.checks.plans import check_plan, check_price, check_slo
from libs.resources.checks.rollouts import check_rollout, check_switch
from libs.resources.checks.safety import check_floor, check_policy
from libs.resources.checks.tenants import check_budget, check_limits, check_model_grant, check_tenant
from libs.resources.checks.trust import check_trust
from libs.resources.kind import Column, Kind, Ref, Role

_PUBLISHER = frozenset({Role.PUBLISHER})
_RELEASER = frozenset({Role.RELEASER})
_OPERATOR = frozenset({Role.OPERATOR})
_OWNER = frozenset({Role.OWNER})
_MODEL = ("aliases", "models")
FLOOR = "mesh"
"""The name of the one safety floor."""
_ROUTING = ("gateway", "predictor", "router", "edge-auth", "controlplane")
"""Services that resolve names to versions."""


_ROWS: Mapping[str, Kind] = {
    "safety_policies": Kind(
        message=pb.SafetyPolicy,
        plural="safety",
        key=("id", "version"),
        joint="@",
        part="safety_policy",
        check=check_policy,
        change=_OPERATOR,
        followers=("predictor", "safety", "worker"),
        columns=(Column("RULES", "rules.id"),),
    ),
    "safety_floors": Kind(
        message=pb.SafetyFloor,
        plural="safety-floor",
        key=(),
        fixed=FLOOR,
        part="safety_floor",
        check=check_floor,
        refs=(Ref("policies", ("safety",)),),
        # It binds every tenant: lowering it is for nobody who merely runs the mesh.
        change=_OWNER,
        followers=("gateway", "predictor", "safety"),
        columns=(Column("POLICIES", "policies"),),
    ),
    "trust": Kind(
        message=pb.TrustPolicy,
        plural="trust",
        key=("namespace",),
        part="trust",
        check=check_trust,
        change=_OWNER,
        followers=("gateway", "predictor", "worker"),
        columns=(Column("KEYS", "keys.note"), Column("THRESHOLD", "threshold", "1")),
    ),
    "roles": Kind(
        message=pb.RoleBinding,
        plural="roles",
        key=("principal",),
        part="role",
        check=check_binding,
        change=_OWNER,
        followers=("edge-auth", "admission", "audit", "controlplane", "records", "rollout"),
        columns=(
            Column("ROLES", "roles"),
            Column("NAMESPACES", "namespaces", "all"),
            Column("TENANTS", "tenants", "all"),
        ),
    ),
    "model_versions": Kind(
        message=pb.ModelVersion,
        plural="models",
        short=("version", "versions"),
        key=("name", "version"),
        joint="@",
        part="model",
        namespace="namespace",
        check=check_model,
        refs=(Ref("safety_policies", ("safety",)),),
        change=_PUBLISHER,
        followers=(*_ROUTING, "ratelimit", "admission", "worker", "rollout", "safety"),
        bulk=("signature",),
        computed=("digest", "created_at"),
        columns=(
            Column("TIER", "tier"),
            Column("POOL", "pool"),
            Column("CONTEXT", "context_length"),
            Column("ARCHITECTURE", "architecture", wide=True),
            Column("SOURCE", "source", wide=True),
            Column("DIGEST", "digest", wide=True),
        ),
    ),
    "aliases": Kind(
        message=pb.Alias,
        plural="aliases",
        key=("name",),
        part="alias",
        check=check_alias,
        refs=(Ref("targets.model_version", ("models",)),),
        change=_RELEASER,
        followers=(*_ROUTING, "ratelimit", "admission", "worker", "rollout"),
        restored=True,
        columns=(Column("TARGETS", "targets.model_version"), Column("WEIGHTS", "targets.weight")),
    ),
    "plans": Kind(
        message=pb.PlanPolicy,
        plural="plans",
        key=("id",),
        part="plan",
        check=check_plan,
        refs=(Ref("ladder.smaller_model.models", _MODEL),),
        change=_OPERATOR,
        followers=("gateway", "predictor", "admission", "ratelimit"),
        restored=True,
        columns=(
            Column("WEIGHT", "weight", "1"),
            Column("OVER QUOTA", "over_quota", "refuse"),
            Column("KV SHARE", "kv_share", "all"),
            Column("LADDER", "ladder", "refuse"),
        ),
    ),
    "tenants": Kind(
        message=pb.Tenant,
        plural="tenants",
        key=("id",),
        part="tenant",
        check=check_tenant,
        refs=(Ref("safety_policies", ("safety",)), Ref("plan_policy", ("plans",))),
        change=_OPERATOR,
        followers=(*_ROUTING, "ratelimit", "admission", "safety"),
        restored=True,
        columns=(
            Column("DISPLAY NAME", "display_name"),
            Column("PLAN", "plan"),
            Column("POLICY", "plan_policy"),
            Column("WEIGHT", "weight", "1"),
            Column("SAFETY", "safety_policies", "the floor"),
            Column("AUDIT REQUIRED", "audit_required", "no", wide=True),
            Column("WORKLOADS", "workloads", wide=True),
        ),
    ),
    "model_grants": Kind(
        message=pb.ModelGrant,
        plural="model-grants",
        key=("subject",),
        part="model_grant",
        check=check_model_grant,
        refs=(
            Ref("subject", ("tenants",), prefix="tenant:"),
            Ref("subject", ("plans",), prefix="plan:"),
            Ref("models", _MODEL),
        ),
        change=_OPERATOR,
        followers=_ROUTING,
        columns=(Column("NAMESPACES", "namespaces"), Column("MODELS", "models"), Column("PINNED", "pinned_namespaces")),
    ),
    "keys": Kind(
        message=pb.ApiKey,
        plural="keys",
        key=("id",),
        part="key",
        refs=(Ref("tenant", ("tenants",)),),
        over=lambda key: key.HasField("revoked_at"),
        change=_OPERATOR,
        followers=("edge-auth",),
        secret=("hash",),
        trusted=("edge-auth",),
        columns=(
            Column("TENANT", "tenant"),
            Column("SCOPES", "scopes"),
            Column("EXPIRES", "expires_at", "never"),
            Column("REVOKED", "revoked_at", "no"),
            Column("NOTE", "note"),
        ),
    ),
    "limits": Kind(
        message=pb.Limits,
        plural="limits",
        key=("tenant", "model"),
        part="limits",
        check=check_limits,
        refs=(Ref("tenant", ("tenants",)), Ref("model", _MODEL, any=True)),
        change=_OPERATOR,
        followers=("gateway", "predictor", "ratelimit"),
        restored=True,
        columns=(
            Column("RPM", "requests_per_minute", "unlimited"),
            Column("TPM", "tokens_per_minute", "unlimited"),
            Column("ROWS/MIN", "rows_per_minute", "unlimited", wide=True),
            Column("STREAMS", "concurrency", "unlimited"),
            Column("CONTEXT", "max_context", "unlimited"),
            Column("OUTPUT", "max_output", "unlimited"),
            Column("SPEND", "spend_microusd", "unlimited"),
            Column("WITHIN", "spend_window", "1d", wide=True),
        ),
    ),
    "budgets": Kind(
        message=pb.Budget,
        plural="budgets",
        key=("tenant",),
        part="budget",
        observed="spend",
        check=check_budget,
        refs=(Ref("tenant", ("tenants",)),),
        change=_OPERATOR,
        followers=("gateway", "predictor", "ratelimit"),
        restored=True,
        columns=(
            Column("MONTHLY", "monthly_microusd", "no bound"),
            Column("DAILY", "daily_microusd", "no bound"),
            Column("ENFORCEMENT", "enforcement", "hard"),
            Column("THIS MONTH", "status.month_microusd"),
            Column("TODAY", "status.day_microusd"),
        ),
    ),
    "slos": Kind(
        message=pb.Slo,
        plural="slos",
        key=("route", "tier"),
        part="slo",
        observed="error-budgets",
        check=check_slo,
        change=_OPERATOR,
        followers=("gateway", "predictor", "admission", "rollout"),
        restored=True,
        columns=(
            Column("TTFT P95", "ttft_p95"),
            Column("ITL P95", "itl_p95"),
            Column("E2E P95", "e2e_p95"),
            Column("E2E P99", "e2e_p99", wide=True),
            Column("AVAILABILITY", "availability"),
            Column("COMPLETION", "stream_completion"),
        ),
    ),
    "prices": Kind(
        message=pb.Price,
        plural="prices",
        key=("model",),
        part="price",
        check=check_price,
        refs=(Ref("model", _MODEL, any=True),),
        change=_OPERATOR,
        followers=("gateway", "predictor", "ratelimit"),
        restored=True,
        columns=(
            Column("INPUT / 1M", "input_microusd_per_million", "free"),
            Column("OUTPUT / 1M", "output_microusd_per_million", "free"),
            Column("ROWS / 1M", "row_microusd_per_million", "free"),
            Column("CACHED / 1M", "cached_input_microusd_per_million", "-", wide=True),
            Column("INPUT COST", "input_cost_microusd_per_million", "as the price", wide=True),
            Column("OUTPUT COST", "output_cost_microusd_per_million", "as the price", wide=True),
            Column("ROW COST", "row_cost_microusd_per_million", "as the price", wide=True),
        ),
    ),
    "pins": Kind(
        message=pb.Pin,
        plural="pins",
        key=("model_version",),
        part="pin",
        check=check_pin,
        refs=(Ref("model_version", ("models",)),),
        change=_PUBLISHER,
        followers=("gateway", "predictor", "worker"),
        columns=(Column("WARM", "warm", "no"), Column("REASON", "reason")),
    ),
    "rollouts": Kind(
        message=pb.Rollout,
        plural="rollouts",
        key=("alias",),
        part="rollout",
        status="state",
        check=check_rollout,
        refs=(
            Ref("alias", ("aliases",)),
            Ref("baseline", ("models",)),
            Ref("arms.model_version", ("models",)),
            Ref("blast_radius.only_tenants", ("tenants",)),
            Ref("blast_radius.except_tenants", ("tenants",)),
        ),
        over=lambda rollout: rollout.state.HasField("ended_at"),
        change=_RELEASER,
        followers=(*_ROUTING, "worker", "rollout"),
        computed=("id", "baseline"),
        columns=(
            Column("BASELINE", "baseline"),
            Column("ARMS", "arms.model_version"),
            Column("PHASE", "status.phase"),
            Column("STEP", "status.step", "0"),
            Column("WHY", "status.reason", wide=True),
        ),
    ),
    "switches": Kind(
        message=pb.RolloutSwitch,
        plural="switches",
        key=(),
        fixed="rollouts",
        part="switch",
        check=check_switch,
        # An operator who sees harm must be able to stop it.
        change=_RELEASER | _OPERATOR,
        followers=(*_ROUTING, "worker", "rollout"),
        columns=(Column("KILL", "kill", "no"), Column("FREEZE", "freeze", "no"), Column("REASON", "reason")),
    ),
    "error_budgets": Kind(
        message=pb.ErrorBudget,
        plural="error-budgets",
        key=("route", "tier"),
        part="error_budget",
        followers=("rollout",),
        bulk=("windows",),
        columns=(
            Column("OBJECTIVES", "objectives.objective"),
            Column("CONSUMED", "objectives.consumed"),
            Column("ALERTS", "objectives.alert"),
        ),
    ),
    "spend": Kind(
        message=pb.Spend,
        plural="spend",
        key=("tenant",),
        part="spend",
        followers=("ratelimit",),
        readers=("gateway",),
        columns=(
            Column("MONTH", "month"),
            Column("SPENT", "month_microusd", "$0"),
            Column("DAY", "day"),
            Column("SPENT", "day_microusd", "$0"),
        ),
    ),
    "levels": Kind(
        message=pb.PoolLevel,
        plural="levels",
        key=("pool",),
        part="level",
        followers=("gateway", "predictor", "ratelimit"),
        leased=True,
        columns=(
            Column("CLASSES", "classes.queue_class"),
            Column("WAIT", "classes.wait"),
            Column("QUEUED", "classes.queued"),
            Column("SHED TENANTS", "tenants.tenant"),
            Column("TOLD BY", "admission", wide=True),
        ),
    ),
    "endpoints": Kind(
        message=pb.Endpoint,
        plural="endpoints",
        key=("service", "instance"),
        part="endpoint",
        followers=(*_ROUTING, "ratelimit", "admission", "worker", "safety", "rollout"),
        leased=True,
        columns=(
            Column("ADDRESS", "address"),
            Column("ZONE", "zone"),
            Column("POOL", "pool"),
            Column("ENGINE", "engine"),
            Column("MODELS", "model_versions", wide=True),
            Column("METRICS", "metrics_address", wide=True),
            Column("LEAVING", "leaving", wide=True),
        ),
    ),
}
"""By the attribute of `RegistrySnapshot` that has its resources. What is referred to comes before what refers to it."""
ATTRIBUTE: Mapping[str, str] = MappingProxyType({row.plural: name for name, row in _ROWS.items()})
"""Plural name → the snapshot's attribute."""
UNREADY = "unready"
"""Likewise, of the endpoints that nobody counts."""
KINDS: tuple[Kind, ...] = tuple(_ROWS.values())
"""All kinds; what is referred to before what refers to it."""
BY_PLURAL: Mapping[str, Kind] = MappingProxyType({row.plural: row for row in KINDS})
BY_NAME: Mapping[str, Kind] = MappingProxyType({row.name: row for row in KINDS})
BY_MESSAGE: Mapping[type, Kind] = MappingProxyType({row.message: row for row in KINDS})
BY_PART: Mapping[str, Kind] = MappingProxyType({row.part: row for row in KINDS})


def attribute_of(message: Message) -> str:
    """The attribute of `RegistrySnapshot` that it belongs to."""
    if isinstance(message, pb.Endpoint) and message.leaving:
        return UNREADY
    return ATTRIBUTE[BY_MESSAGE[type(message)].plural]
