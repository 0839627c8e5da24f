"""Answers of the calls that only read: each from one snapshot, also while the store is away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import M
from libs.registry import RegistrySnapshot
from services.registry import convert
from services.registry.messages import copy

Read = Callable[[RegistrySnapshot, Any], Message]
"""The response to a request."""


def _models(snapshot: RegistrySnapshot, request: pb.ListModelsRequest) -> pb.ListModelsResponse:
    return pb.ListModelsResponse(model_versions=_in_order(snapshot.model_versions), aliases=_in_order(snapshot.aliases))


def _keys(snapshot: RegistrySnapshot, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
    chosen = (key for key in _in_order(snapshot.keys) if request.tenant in ("", key.tenant))
    return pb.ListKeysResponse(keys=[convert.without_hash(key) for key in chosen])


def _limits(snapshot: RegistrySnapshot, request: pb.ListLimitsRequest) -> pb.ListLimitsResponse:
    return pb.ListLimitsResponse(
        limits=(each for each in _in_order(snapshot.limits) if request.tenant in ("", each.tenant))
    )


def _rollouts(snapshot: RegistrySnapshot, request: pb.ListRolloutsRequest) -> pb.ListRolloutsResponse:
    return pb.ListRolloutsResponse(
        rollouts=(each for each in _in_order(snapshot.rollouts) if request.alias in ("", each.alias))
    )


def _switch(snapshot: RegistrySnapshot, request: pb.GetRolloutSwitchRequest) -> pb.GetRolloutSwitchResponse:
    return pb.GetRolloutSwitchResponse(switch=snapshot.switches.get("rollouts") or pb.RolloutSwitch())


def _budgets(snapshot: RegistrySnapshot, request: pb.ListErrorBudgetsRequest) -> pb.ListErrorBudgetsResponse:
    return pb.ListErrorBudgetsResponse(budgets=_without_windows(_in_order(snapshot.budgets)))


def _endpoints(snapshot: RegistrySnapshot, request: pb.ListEndpointsRequest) -> pb.ListEndpointsResponse:
    return pb.ListEndpointsResponse(
        endpoints=(each for each in _in_order(snapshot.endpoints) if request.service in ("", each.service))
    )


READS: Mapping[str, Read] = {
    "ListModels": _models,
    "ListTenants": lambda snapshot, _: pb.ListTenantsResponse(tenants=_in_order(snapshot.tenants)),
    "ListKeys": _keys,
    "ListLimits": _limits,
    "ListPlanPolicies": lambda snapshot, _: pb.ListPlanPoliciesResponse(plans=_in_order(snapshot.plans)),
    "ListSlos": lambda snapshot, _: pb.ListSlosResponse(slos=_in_order(snapshot.slos)),
    "ListPrices": lambda snapshot, _: pb.ListPricesResponse(prices=_in_order(snapshot.prices)),
    "ListPoolLevels": lambda snapshot, _: pb.ListPoolLevelsResponse(levels=_in_order(snapshot.levels)),
    "ListSafetyPolicies": lambda snapshot, _: pb.ListSafetyPoliciesResponse(
        policies=_in_order(snapshot.safety_policies)
    ),
    "ListTrustPolicies": lambda snapshot, _: pb.ListTrustPoliciesResponse(trusts=_in_order(snapshot.trust)),
    "ListPins": lambda snapshot, _: pb.ListPinsResponse(pins=_in_order(snapshot.pins)),
    "ListRollouts": _rollouts,
    "GetRolloutSwitch": _switch,
    "ListErrorBudgets": _budgets,
    "ListRoleBindings": lambda snapshot, _: pb.ListRoleBindingsResponse(bindings=_in_order(snapshot.roles)),
    "ListEndpoints": _endpoints,
}
"""By RPC."""


def _in_order(collection: Mapping[Any, M]) -> list[M]:
    """A collection's messages by key."""
    return [collection[key] for key in sorted(collection)]


def _without_windows(budgets: Iterable[pb.ErrorBudget]) -> Iterable[pb.ErrorBudget]:
    for budget in budgets:
        shown = copy(budget)
        shown.ClearField("windows")
        yield shown
