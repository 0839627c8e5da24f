"""What each administrative call would write, given the registry as it is. Decides; writes nothing."""

from __future__ import annotations

from collections.abc import Set

from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.artifacts import TrustError, key_id_of, namespace_of, verify
from libs.changes import Change, delete, nothing, put
from libs.clock.stamps import timestamp
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.rollouts import needed_versions
from libs.safety_filter import PatternError, parse_pattern
from services.registry import convert
from services.registry.messages import at_revision, copy, replaced, require
from services.registry.policy import access, models, pins, plans, safety, tenants, trust
from services.registry.rollouts import require_no_rollout


def create_model_version(snapshot: RegistrySnapshot, wanted: pb.ModelVersion, now: float) -> Change[pb.ModelVersion]:
    """A new version; again with the same content is fine and may move `source` or be signed anew.

    :raises WeirError: INVALID_REQUEST, also when its signature does not hold; ALREADY_EXISTS when the version exists
        with other content.
    """
    policies = {name: policy.version for name, policy in snapshot.safety_policies.items()}
    require(models.check_model(convert.model_spec(wanted), policies=policies))
    made = copy(wanted)
    made.digest = convert.model_digest(wanted)
    stored = snapshot.model_versions.get(f"{wanted.name}@{wanted.version}")
    if stored is not None and stored.digest != made.digest:
        raise WeirError(
            Reason.ALREADY_EXISTS,
            f"{wanted.name}@{wanted.version} exists with other content (digest {stored.digest[:12]}, this one "
            f"{made.digest[:12]}); versions are immutable, register a new one",
            limit="model_version.version",
        )
    if stored is not None:
        made.created_at.CopyFrom(stored.created_at)
        made.signature = wanted.signature or stored.signature
        if made == stored:
            return nothing(stored)
    else:
        made.created_at.CopyFrom(timestamp(now))
    try:
        verify(made, snapshot.trust.get(namespace_of(made)), now)
    except TrustError as error:
        raise WeirError(Reason.INVALID_REQUEST, str(error), limit="model_version.signature") from error
    return Change(made, (put(made),))


def set_alias(snapshot: RegistrySnapshot, wanted: pb.Alias) -> Change[pb.Alias]:
    """An alias as wanted.

    :raises WeirError: INVALID_REQUEST; CONFLICT when it is not at the revision that was read, or while a rollout of it
        is under way.
    """
    fault = models.check_alias(wanted.name, convert.target_specs(wanted), versions=snapshot.model_versions)
    require(fault)
    change = replaced(f"aliases/{wanted.name}", wanted, snapshot.aliases.get(wanted.name))
    if change.writes:
        require_no_rollout(snapshot, wanted.name)
    return change


def set_tenant(snapshot: RegistrySnapshot, wanted: pb.Tenant) -> Change[pb.Tenant]:
    """A tenant as wanted.

    :raises WeirError: as in `set_limits`.
    """
    owners = {workload: tenant.id for tenant in snapshot.tenants.values() for workload in tenant.workloads}
    spec = convert.tenant_spec(wanted)
    require(tenants.check_tenant(spec, policies=snapshot.safety_policies, plans=snapshot.plans, workload_owners=owners))
    return replaced(f"tenants/{wanted.id}", wanted, snapshot.tenants.get(wanted.id))


def set_limits(snapshot: RegistrySnapshot, wanted: pb.Limits) -> Change[pb.Limits]:
    """Limits as wanted.

    :raises WeirError: INVALID_REQUEST; CONFLICT when they are not at the revision that was read.
    """
    require(tenants.check_limits(convert.limits_spec(wanted), tenants=snapshot.tenants, models=_models(snapshot)))
    return replaced(
        f"limits/{wanted.tenant}/{wanted.model}", wanted, snapshot.limits.get((wanted.tenant, wanted.model))
    )


def set_plan_policy(snapshot: RegistrySnapshot, wanted: pb.PlanPolicy) -> Change[pb.PlanPolicy]:
    """A plan's policy as wanted.

    :raises WeirError: as in `set_limits`.
    """
    pools = {version.pool for version in snapshot.model_versions.values()}
    pools.update(worker.pool for worker in snapshot.endpoints_of("worker"))
    require(plans.check_plan(convert.plan_spec(wanted), models=_models(snapshot), pools=pools))
    return replaced(f"plans/{wanted.id}", wanted, snapshot.plans.get(wanted.id))


def set_slo(snapshot: RegistrySnapshot, wanted: pb.Slo) -> Change[pb.Slo]:
    """Objectives as wanted.

    :raises WeirError: as in `set_limits`.
    """
    require(plans.check_slo(convert.slo_spec(wanted)))
    return replaced(f"slos/{wanted.route}/{wanted.tier}", wanted, snapshot.slos.get((wanted.route, wanted.tier)))


def set_price(snapshot: RegistrySnapshot, wanted: pb.Price) -> Change[pb.Price]:
    """A price as wanted.

    :raises WeirError: as in `set_limits`.
    """
    require(plans.check_price(convert.price_spec(wanted), models=_models(snapshot)))
    return replaced(f"prices/{wanted.model}", wanted, snapshot.prices.get(wanted.model))


def set_safety_policy(snapshot: RegistrySnapshot, wanted: pb.SafetyPolicy) -> Change[pb.SafetyPolicy]:
    """A policy as wanted; its version is one more than the stored one's.

    :raises WeirError: as in `set_limits`.
    """
    require(safety.check_policy(wanted.id, convert.rule_specs(wanted), pattern_fault=pattern_fault))
    stored = snapshot.safety_policies.get(wanted.id)
    same = copy(wanted)
    same.version = stored.version if stored else 1
    change = replaced(f"safety/{wanted.id}", same, stored)
    if stored is None or not change.writes:
        return change
    change.message.version = stored.version + 1
    return Change(change.message, (put(change.message),))


def create_key(
    snapshot: RegistrySnapshot, request: pb.CreateKeyRequest, made: apikeys.ParsedKey, hashed: bytes, now: float
) -> Change[pb.ApiKey]:
    """A new key for `made`.

    :raises WeirError: INVALID_REQUEST.
    """
    require(tenants.check_key(convert.key_spec(request), tenants=snapshot.tenants, scopes=apikeys.SCOPES))
    stored = snapshot.keys.get(made.id)
    if stored is not None:
        if stored.hash == hashed:
            # An attempt whose outcome was unclear had succeeded.
            return nothing(stored)
        raise WeirError(Reason.CONFLICT, "the key's id is taken; try again", retry_after=0.0)
    key = pb.ApiKey(id=made.id, tenant=request.tenant, hash=hashed, scopes=request.scopes, note=request.note)
    key.created_at.CopyFrom(timestamp(now))
    if request.HasField("ttl"):
        key.expires_at.CopyFrom(timestamp(now + to_seconds(request.ttl)))
    return Change(key, (put(key),))


def revoke_key(snapshot: RegistrySnapshot, key_id: str, now: float) -> Change[pb.ApiKey]:
    """The key, revoked; fine when it is already.

    :raises WeirError: NOT_FOUND.
    """
    stored = snapshot.keys.get(key_id)
    if stored is None:
        raise WeirError(Reason.NOT_FOUND, "no key with this id", limit="key_id")
    if stored.HasField("revoked_at"):
        return nothing(stored)
    revoked = copy(stored)
    revoked.revoked_at.CopyFrom(timestamp(now))
    return Change(revoked, (put(revoked),))


def set_trust_policy(snapshot: RegistrySnapshot, wanted: pb.TrustPolicy) -> Change[pb.TrustPolicy]:
    """A namespace's trust as wanted. Versions that are registered already are not looked at: workers do at each load.

    :raises WeirError: as in `set_limits`.
    """
    require(trust.check_trust(convert.trust_spec(wanted), key_id_of=key_id_of))
    return replaced(f"trust/{wanted.namespace}", wanted, snapshot.trust.get(wanted.namespace))


def delete_model_version(snapshot: RegistrySnapshot, name: str, now: float) -> Change[pb.ModelVersion]:
    """Without the version. Prices and limits that name it stay: they mean nothing then, and are there again with it.

    :raises WeirError: NOT_FOUND; CONFLICT with all reasons why it is needed.
    """
    stored = snapshot.model_versions.get(name)
    if stored is None:
        raise WeirError(Reason.NOT_FOUND, f"no model version {name!r}", limit="model_version")
    if needed := needed_versions(snapshot, now).get(name):
        raise WeirError(Reason.CONFLICT, f"{name} is needed: {', '.join(sorted(set(needed)))}", limit="model_version")
    return Change(stored, (delete(stored),))


def set_pin(snapshot: RegistrySnapshot, wanted: pb.Pin) -> Change[pb.Pin]:
    """A pin as wanted.

    :raises WeirError: as in `set_limits`.
    """
    require(pins.check_pin(wanted.model_version, wanted.reason, versions=snapshot.model_versions))
    return replaced(f"pins/{wanted.model_version}", wanted, snapshot.pins.get(wanted.model_version))


def delete_pin(snapshot: RegistrySnapshot, model_version: str) -> Change[pb.Pin]:
    """Without the pin.

    :raises WeirError: NOT_FOUND.
    """
    stored = snapshot.pins.get(model_version)
    if stored is None:
        raise WeirError(Reason.NOT_FOUND, f"{model_version!r} is not pinned", limit="model_version")
    return Change(stored, (delete(stored),))


def set_role_binding(snapshot: RegistrySnapshot, wanted: pb.RoleBinding) -> Change[pb.RoleBinding]:
    """A binding as wanted; without roles it is taken away.

    :raises WeirError: as in `set_limits`.
    """
    require(access.check_binding(wanted.principal, list(wanted.roles), list(wanted.namespaces)))
    resource, stored = f"roles/{wanted.principal}", snapshot.roles.get(wanted.principal)
    if wanted.roles:
        return replaced(resource, wanted, stored)
    at_revision(resource, wanted, stored)
    return nothing(wanted) if stored is None else Change(wanted, (delete(stored),))


def pattern_fault(pattern: str) -> str:
    """Why the safety service would refuse a pattern; empty when it would take it."""
    try:
        parse_pattern(pattern)
    except PatternError as error:
        return str(error)
    return ""


def _models(snapshot: RegistrySnapshot) -> Set[str]:
    """What callers may ask for."""
    return snapshot.aliases.keys() | snapshot.model_versions.keys()
