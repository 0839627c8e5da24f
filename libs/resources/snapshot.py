"""The registry at one revision, decoded: the immutable value that every service decides by. What its
collections hold is said in libs/resources/kinds.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from weir.registry.v1 import registry_pb2 as pb


def _none() -> Any:
    return field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """The registry at one revision; messages in it are shared and must not be changed.

    In the order of the table, what is referred to comes before what refers to it. Collections are copied on write: one
    that is the same object as in an older snapshot has not changed.
    """

    revision: int = 0
    """The store's revision; 0 means that nothing was ever read."""
    safety_policies: Mapping[str, pb.SafetyPolicy] = _none()
    """By "id@version"."""
    safety_floors: Mapping[str, pb.SafetyFloor] = _none()
    """"mesh" → what every request is under."""
    trust: Mapping[str, pb.TrustPolicy] = _none()
    """By namespace."""
    roles: Mapping[str, pb.RoleBinding] = _none()
    """By principal."""
    model_versions: Mapping[str, pb.ModelVersion] = _none()
    """By "name@version"."""
    aliases: Mapping[str, pb.Alias] = _none()
    """By name."""
    plans: Mapping[str, pb.PlanPolicy] = _none()
    """By id."""
    tenants: Mapping[str, pb.Tenant] = _none()
    """By id."""
    model_grants: Mapping[str, pb.ModelGrant] = _none()
    """By subject; see libs/authority/models.py."""
    keys: Mapping[str, pb.ApiKey] = _none()
    """By public id."""
    limits: Mapping[tuple[str, str], pb.Limits] = _none()
    """By (tenant, model or "*")."""
    budgets: Mapping[str, pb.Budget] = _none()
    """By tenant."""
    slos: Mapping[tuple[str, str], pb.Slo] = _none()
    """By (route, tier or "*")."""
    prices: Mapping[str, pb.Price] = _none()
    """By model or "*"."""
    pins: Mapping[str, pb.Pin] = _none()
    """By "name@version"."""
    rollouts: Mapping[str, pb.Rollout] = _none()
    """By alias, ended ones too."""
    switches: Mapping[str, pb.RolloutSwitch] = _none()
    """"rollouts" → the kill switch."""
    error_budgets: Mapping[tuple[str, str], pb.ErrorBudget] = _none()
    """By (route, tier)."""
    spend: Mapping[str, pb.Spend] = _none()
    """By tenant."""
    levels: Mapping[str, pb.PoolLevel] = _none()
    """By pool."""
    endpoints: Mapping[tuple[str, str], pb.Endpoint] = _none()
    """By (service, instance): those that serve."""
    unready: Mapping[tuple[str, str], pb.Endpoint] = _none()
    """Likewise: those that run and do not, or are about to end. Nobody counts them; they have metrics."""
    faults: Mapping[str, str] = _none()
    """Store key → why its value could not be read; such a key is absent from its collection."""

    def endpoints_of(self, service: str) -> list[pb.Endpoint]:
        """Live endpoints of a service, by instance."""
        return [self.endpoints[key] for key in sorted(self.endpoints) if key[0] == service]

    def same_contents(self, other: RegistrySnapshot) -> bool:
        """Whether nothing but the revision changed, by identity of the collections."""
        return all(getattr(self, name) is getattr(other, name) for name in self.__slots__ if name != "revision")
