"""The calls that change one thing: which plan each makes, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import Change, Committed
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from services.registry import changes, convert, rollouts
from services.registry.policy.access import Grant


@dataclass(frozen=True, slots=True)
class Call:
    """A call's circumstances; the same over all attempts at it."""

    grant: Grant
    now: float
    """Unix seconds."""
    new_id: str
    """For what the call makes."""


@dataclass(frozen=True, slots=True)
class ChangeRpc:
    """A call that changes the registry."""

    plan: Callable[[RegistrySnapshot, Any, Call], Change[Any]]
    """From the snapshot, the request and the circumstances; may refuse."""
    answer: Callable[[Committed[Any]], Message]
    """From what came of it."""
    reason: Callable[[Any], str] = lambda request: ""
    """Why, where the resource itself says so and the change's options do not."""


def _set_tenant(snapshot: RegistrySnapshot, request: pb.SetTenantRequest, call: Call) -> Change[pb.Tenant]:
    if f"tenant:{request.tenant.id}" in snapshot.roles and not call.grant.owner:
        # Its issuer's tokens carry the role; an operator could name an issuer of his own.
        raise WeirError(
            Reason.SCOPE_MISSING,
            f"tenant {request.tenant.id!r} holds a role; only an owner may change it",
            limit="role",
        )
    return changes.set_tenant(snapshot, request.tenant)


CHANGES: Mapping[str, ChangeRpc] = {
    "CreateModelVersion": ChangeRpc(
        lambda snapshot, request, call: changes.create_model_version(snapshot, request.model_version, call.now),
        lambda done: pb.CreateModelVersionResponse(model_version=done.message, revision=done.revision),
    ),
    "DeleteModelVersion": ChangeRpc(
        lambda snapshot, request, call: changes.delete_model_version(snapshot, request.model_version, call.now),
        lambda done: pb.DeleteModelVersionResponse(deleted=done.message),
    ),
    "SetAlias": ChangeRpc(
        lambda snapshot, request, call: changes.set_alias(snapshot, request.alias),
        lambda done: pb.SetAliasResponse(alias=done.message),
    ),
    "SetTenant": ChangeRpc(_set_tenant, lambda done: pb.SetTenantResponse(tenant=done.message)),
    "SetLimits": ChangeRpc(
        lambda snapshot, request, call: changes.set_limits(snapshot, request.limits),
        lambda done: pb.SetLimitsResponse(limits=done.message),
    ),
    "SetPlanPolicy": ChangeRpc(
        lambda snapshot, request, call: changes.set_plan_policy(snapshot, request.plan),
        lambda done: pb.SetPlanPolicyResponse(plan=done.message),
    ),
    "SetSlo": ChangeRpc(
        lambda snapshot, request, call: changes.set_slo(snapshot, request.slo),
        lambda done: pb.SetSloResponse(slo=done.message),
    ),
    "SetPrice": ChangeRpc(
        lambda snapshot, request, call: changes.set_price(snapshot, request.price),
        lambda done: pb.SetPriceResponse(price=done.message),
    ),
    "SetSafetyPolicy": ChangeRpc(
        lambda snapshot, request, call: changes.set_safety_policy(snapshot, request.policy),
        lambda done: pb.SetSafetyPolicyResponse(policy=done.message),
    ),
    "SetTrustPolicy": ChangeRpc(
        lambda snapshot, request, call: changes.set_trust_policy(snapshot, request.trust),
        lambda done: pb.SetTrustPolicyResponse(trust=done.message),
    ),
    "SetPin": ChangeRpc(
        lambda snapshot, request, call: changes.set_pin(snapshot, request.pin),
        lambda done: pb.SetPinResponse(pin=done.message),
        lambda request: request.pin.reason,
    ),
    "DeletePin": ChangeRpc(
        lambda snapshot, request, call: changes.delete_pin(snapshot, request.model_version),
        lambda done: pb.DeletePinResponse(pin=done.message),
    ),
    "RevokeKey": ChangeRpc(
        lambda snapshot, request, call: changes.revoke_key(snapshot, request.key_id, call.now),
        lambda done: pb.RevokeKeyResponse(key=convert.without_hash(done.message)),
    ),
    "SetRoleBinding": ChangeRpc(
        lambda snapshot, request, call: changes.set_role_binding(snapshot, request.binding),
        lambda done: pb.SetRoleBindingResponse(binding=done.message),
    ),
    "StartRollout": ChangeRpc(
        lambda snapshot, request, call: rollouts.start_rollout(
            snapshot, request.rollout, rollout_id=call.new_id, actor=call.grant.actor, now=call.now
        ),
        lambda done: pb.StartRolloutResponse(rollout=done.message),
        lambda request: request.rollout.reason,
    ),
    "SteerRollout": ChangeRpc(
        lambda snapshot, request, call: rollouts.steer_rollout(snapshot, request, actor=call.grant.actor, now=call.now),
        lambda done: pb.SteerRolloutResponse(rollout=done.message),
    ),
    "AbortRollout": ChangeRpc(
        lambda snapshot, request, call: rollouts.abort_rollout(
            snapshot, request.alias, reason=request.change.reason, actor=call.grant.actor, now=call.now
        ),
        lambda done: pb.AbortRolloutResponse(rollout=done.message),
    ),
    "SetRolloutSwitch": ChangeRpc(
        lambda snapshot, request, call: rollouts.set_switch(snapshot, request.switch),
        lambda done: pb.SetRolloutSwitchResponse(switch=done.message),
        lambda request: request.switch.reason,
    ),
}
"""By RPC. `CreateKey`, whose answer holds a secret, and the calls on many resources are the servicer's own."""
