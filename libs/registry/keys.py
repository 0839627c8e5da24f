"""The layout of the registry in the store, and the form of its values (protobuf JSON of `weir.registry.v1`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2

ROOT = "/weir/v1/"
"""Every key of the mesh starts with this; the version changes with an incompatible layout."""

MODELS = ROOT + "models/"
"""{name}@{version} → ModelVersion."""
ALIASES = ROOT + "aliases/"
"""{name} → Alias."""
TENANTS = ROOT + "tenants/"
"""{id} → Tenant."""
KEYS = ROOT + "keys/"
"""{id} → ApiKey."""
LIMITS = ROOT + "limits/"
"""{tenant}/{model} → Limits."""
SAFETY = ROOT + "safety/"
"""{id} → SafetyPolicy."""
PLANS = ROOT + "plans/"
"""{id} → PlanPolicy."""
SLOS = ROOT + "slos/"
"""{route}/{tier} → Slo."""
PRICES = ROOT + "prices/"
"""{model} → Price."""
TRUST = ROOT + "trust/"
"""{namespace} → TrustPolicy."""
PINS = ROOT + "pins/"
"""{name}@{version} → Pin."""
ROLLOUTS = ROOT + "rollouts/"
"""{alias} → Rollout."""
SWITCHES = ROOT + "switches/"
"""rollouts → RolloutSwitch."""
BUDGETS = ROOT + "budgets/"
"""{route}/{tier} → ErrorBudget."""
ROLES = ROOT + "roles/"
"""{principal} → RoleBinding; a SPIFFE id's slashes are part of the key."""
LEVELS = ROOT + "levels/"
"""{pool} → PoolLevel, under a lease."""
ENDPOINTS = ROOT + "endpoints/"
"""{service}/{instance} → Endpoint, under a lease."""
FENCE = ROOT + "fence"
"""Rewritten by every change of the configuration, so that each is validated against exactly what it applies to; its
value is the id of the last change."""
AUDIT_OUTBOX = ROOT + "audit-outbox/"
"""{record id} → weir.audit.v1.Record (binary): changes whose audit record is not acknowledged yet."""
IMPORT = ROOT + "import"
"""The digest of the snapshot that is being imported; while it is there the registry takes no other change."""

HISTORY = "/weir/history/v1/"
"""{nanoseconds, 20 digits}-{change id} → HistoryEntry. Outside `ROOT`: services do not watch it."""
LEADERS = "/weir/leaders/v1/"
"""{service} → the instance that leads, under its lease. Outside `ROOT` likewise."""


def model_key(name: str, version: str) -> str:
    """Where a model version lies."""
    return f"{MODELS}{name}@{version}"


def alias_key(name: str) -> str:
    """Where an alias lies."""
    return ALIASES + name


def tenant_key(tenant: str) -> str:
    """Where a tenant lies."""
    return TENANTS + tenant


def api_key_key(key_id: str) -> str:
    """Where an API key lies."""
    return KEYS + key_id


def limits_key(tenant: str, model: str) -> str:
    """Where a tenant's limits for a model (or "*") lie."""
    return f"{LIMITS}{tenant}/{model}"


def safety_key(policy: str) -> str:
    """Where a safety policy lies."""
    return SAFETY + policy


def plan_key(plan: str) -> str:
    """Where a plan's policy lies."""
    return PLANS + plan


def slo_key(route: str, tier: str) -> str:
    """Where the objectives of a route and tier lie."""
    return f"{SLOS}{route}/{tier}"


def price_key(model: str) -> str:
    """Where a model's price lies."""
    return PRICES + model


def trust_key(namespace: str) -> str:
    """Where a namespace's trust policy lies."""
    return TRUST + namespace


def pin_key(model_version: str) -> str:
    """Where the pin of a version lies."""
    return PINS + model_version


def rollout_key(alias: str) -> str:
    """Where the rollout of an alias lies."""
    return ROLLOUTS + alias


def switch_key() -> str:
    """Where the kill switch of rollouts lies."""
    return SWITCHES + "rollouts"


def budget_key(route: str, tier: str) -> str:
    """Where the error budgets of a route and tier lie."""
    return f"{BUDGETS}{route}/{tier}"


def role_key(principal: str) -> str:
    """Where a principal's roles lie."""
    return ROLES + principal


def level_key(pool: str) -> str:
    """Where a pool's level lies."""
    return LEVELS + pool


def endpoint_key(service: str, instance: str) -> str:
    """Where a live endpoint lies."""
    return f"{ENDPOINTS}{service}/{instance}"


def key_of(message: Message) -> str:
    """Where a message lies, by its own fields.

    :raises TypeError: for a message that the registry does not hold.
    """
    place = _PLACES.get(type(message))
    if place is not None:
        return place(message)
    raise TypeError(f"{type(message).__name__} has no place in the registry")


def encode(message: Message) -> bytes:
    """A message as stored: compact JSON with proto field names, the same bytes for the same content."""
    text = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None, sort_keys=True)
    return text.encode()


_PLACES: dict[type[Message], Callable[[Any], str]] = {
    registry_pb2.ModelVersion: lambda m: model_key(m.name, m.version),
    registry_pb2.Alias: lambda m: alias_key(m.name),
    registry_pb2.Tenant: lambda m: tenant_key(m.id),
    registry_pb2.ApiKey: lambda m: api_key_key(m.id),
    registry_pb2.Limits: lambda m: limits_key(m.tenant, m.model),
    registry_pb2.SafetyPolicy: lambda m: safety_key(m.id),
    registry_pb2.PlanPolicy: lambda m: plan_key(m.id),
    registry_pb2.Slo: lambda m: slo_key(m.route, m.tier),
    registry_pb2.Price: lambda m: price_key(m.model),
    registry_pb2.TrustPolicy: lambda m: trust_key(m.namespace),
    registry_pb2.Pin: lambda m: pin_key(m.model_version),
    registry_pb2.Rollout: lambda m: rollout_key(m.alias),
    registry_pb2.RolloutSwitch: lambda m: switch_key(),
    registry_pb2.ErrorBudget: lambda m: budget_key(m.route, m.tier),
    registry_pb2.RoleBinding: lambda m: role_key(m.principal),
    registry_pb2.PoolLevel: lambda m: level_key(m.pool),
    registry_pb2.Endpoint: lambda m: endpoint_key(m.service, m.instance),
}
