"""Tenants, limits and keys."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from services.registry.policy.faults import Fault, check_id, check_text

WORKLOAD_PREFIX = "spiffe://weir.internal/sa/"
"""Internal callers have SPIFFE ids of the mesh's trust domain."""
PLANS = (1, 2)
"""Numbers of free and paid in `weir.registry.v1.Plan`."""
FAIL_MODES = (0, 1, 2)
"""Numbers of `weir.registry.v1.FailMode`; 0 means closed."""
RESERVED = frozenset({"shadow"})
"""Tenants that no caller can be; see `libs.rollouts.SHADOW_TENANT`."""
MAX_WEIGHT = 1000.0
"""Beyond this a tenant would starve the others rather than outweigh them."""
MAX_DEADLINE_SECONDS = 24 * 3600.0
MAX_PER_MINUTE = 10**12
MAX_SPEND = 10**15
"""Micro-dollars: a thousand million dollars."""
SPEND_WINDOW_SECONDS = (1.0, 31 * 86400.0)
"""Shortest and longest window of a spend cap."""
_MAX_WORKLOADS = 100
_MAX_TTL_SECONDS = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """What is checked of a tenant; fields as in `weir.registry.v1.Tenant`."""

    id: str
    display_name: str
    plan: int
    plan_policy: str
    weight: float
    workloads: Sequence[str]
    safety_policy: str
    safety_fail_mode: int
    max_deadline_seconds: float | None
    """None: unset."""
    jwt_issuer: str


@dataclass(frozen=True, slots=True)
class LimitsSpec:
    """What is checked of limits; fields as in `weir.registry.v1.Limits`."""

    tenant: str
    model: str
    requests_per_minute: int
    tokens_per_minute: int
    spend_microusd: int
    spend_window_seconds: float | None
    """None: unset."""


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What is checked of a new key."""

    tenant: str
    scopes: Sequence[str]
    note: str
    ttl_seconds: float | None
    """None: it never expires."""


def check_tenant(
    spec: TenantSpec, *, policies: Collection[str], plans: Collection[str], workload_owners: Mapping[str, str]
) -> Fault | None:
    """The first fault of a tenant, or None.

    :param policies: ids of safety policies that exist.
    :param plans: ids of plans' policies that exist.
    :param workload_owners: SPIFFE id → tenant of every workload that some tenant claims.
    """
    if fault := check_id("tenant.id", spec.id) or check_text("tenant.display_name", spec.display_name, 200):
        return fault
    if spec.id in RESERVED and (spec.workloads or spec.jwt_issuer):
        return Fault("tenant.id", f"nobody can be the tenant {spec.id!r}: mirrored requests run in its name")
    if spec.plan not in PLANS:
        return Fault("tenant.plan", "tenant.plan must be PLAN_FREE or PLAN_PAID")
    if spec.plan_policy and spec.plan_policy not in plans:
        return Fault("tenant.plan_policy", f"no plan {spec.plan_policy!r}")
    if not (math.isfinite(spec.weight) and 0.0 <= spec.weight <= MAX_WEIGHT):
        return Fault("tenant.weight", f"tenant.weight must be between 0 and {MAX_WEIGHT:g}")
    if spec.safety_policy and spec.safety_policy not in policies:
        return Fault("tenant.safety_policy", f"no safety policy {spec.safety_policy!r}")
    if spec.safety_fail_mode not in FAIL_MODES:
        return Fault("tenant.safety_fail_mode", "tenant.safety_fail_mode is not known")
    deadline = spec.max_deadline_seconds
    if deadline is not None and not 0.0 < deadline <= MAX_DEADLINE_SECONDS:
        return Fault("tenant.max_deadline", "tenant.max_deadline must be positive and at most a day")
    if spec.jwt_issuer and not _is_url(spec.jwt_issuer):
        return Fault("tenant.jwt_issuer", "tenant.jwt_issuer must be an http or https URL")
    return _check_workloads(spec, workload_owners)


def _check_workloads(spec: TenantSpec, owners: Mapping[str, str]) -> Fault | None:
    if len(spec.workloads) > _MAX_WORKLOADS:
        return Fault("tenant.workloads", f"at most {_MAX_WORKLOADS} workloads")
    if len(set(spec.workloads)) != len(spec.workloads):
        return Fault("tenant.workloads", "a workload appears twice")
    for number, workload in enumerate(spec.workloads):
        field = f"tenant.workloads[{number}]"
        name = workload.removeprefix(WORKLOAD_PREFIX)
        if not workload.startswith(WORKLOAD_PREFIX) or check_id(field, name):
            return Fault(field, f"a workload must be a SPIFFE id such as {WORKLOAD_PREFIX}demo-client")
        if owners.get(workload, spec.id) != spec.id:
            # It could not be told which of the two it acts as.
            return Fault(field, f"the workload belongs to tenant {owners[workload]!r}")
    return None


def check_limits(spec: LimitsSpec, *, tenants: Collection[str], models: Collection[str]) -> Fault | None:
    """The first fault of limits, or None.

    :param models: names of aliases and of model versions that exist.
    """
    if spec.tenant not in tenants:
        return Fault("limits.tenant", f"no tenant {spec.tenant!r}")
    if spec.model != "*" and spec.model not in models:
        return Fault("limits.model", f"no alias or model version {spec.model!r}; use '*' for all")
    for field in ("requests_per_minute", "tokens_per_minute"):
        if getattr(spec, field) > MAX_PER_MINUTE:
            return Fault(f"limits.{field}", f"{field} must be at most {MAX_PER_MINUTE}")
    if spec.spend_microusd > MAX_SPEND:
        return Fault("limits.spend_microusd", f"spend_microusd must be at most {MAX_SPEND}")
    shortest, longest = SPEND_WINDOW_SECONDS
    window = spec.spend_window_seconds
    if window is not None and not shortest <= window <= longest:
        return Fault("limits.spend_window", "spend_window must be between a second and 31 days")
    return None


def check_key(spec: KeySpec, *, tenants: Collection[str], scopes: Collection[str]) -> Fault | None:
    """The first fault of a new key, or None."""
    if spec.tenant not in tenants:
        return Fault("tenant", f"no tenant {spec.tenant!r}")
    if spec.tenant in RESERVED:
        return Fault("tenant", f"nobody can be the tenant {spec.tenant!r}: mirrored requests run in its name")
    if not spec.scopes:
        return Fault("scopes", "at least one scope is needed")
    if len(set(spec.scopes)) != len(spec.scopes):
        return Fault("scopes", "a scope appears twice")
    for number, scope in enumerate(spec.scopes):
        if scope not in scopes:
            return Fault(f"scopes[{number}]", f"{scope!r} is not one of {', '.join(sorted(scopes))}")
    if spec.ttl_seconds is not None and not 0.0 < spec.ttl_seconds <= _MAX_TTL_SECONDS:
        return Fault("ttl", "ttl must be positive and at most ten years")
    return check_text("note", spec.note, 200)


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and value.isprintable() and " " not in value
