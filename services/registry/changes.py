"""What each administrative call would write, given the registry as it is. Decides; writes nothing."""

from __future__ import annotations

from collections.abc import Set

from google.protobuf.timestamp_pb2 import Timestamp
from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.changes import Change, M, nothing, put
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.safety_filter import PatternError, parse_pattern
from services.registry import convert
from services.registry.policy import models, plans, safety, tenants
from services.registry.policy.faults import Fault

WHATEVER = -1
"""The `revision` of a write that does not care what it replaces."""


def create_model_version(snapshot: RegistrySnapshot, wanted: pb.ModelVersion, now: float) -> Change[pb.ModelVersion]:
    """A new version; again with the same content is fine and may move `source`.

    :raises WeirError: INVALID_REQUEST; ALREADY_EXISTS when the version exists with other content.
    """
    _require(models.check_model(convert.model_spec(wanted), policies=snapshot.safety_policies))
    made = _copy(wanted)
    made.digest = convert.model_digest(wanted)
    stored = snapshot.model_versions.get(f"{wanted.name}@{wanted.version}")
    if stored is None:
        made.created_at.CopyFrom(_timestamp(now))
        return Change(made, (put(made),))
    if stored.digest != made.digest:
        raise WeirError(
            Reason.ALREADY_EXISTS,
            f"{wanted.name}@{wanted.version} exists with other content (digest {stored.digest[:12]}, this one "
            f"{made.digest[:12]}); versions are immutable, register a new one",
            limit="model_version.version",
        )
    if stored.source == wanted.source:
        return nothing(stored)
    made.created_at.CopyFrom(stored.created_at)
    return Change(made, (put(made),))


def set_alias(snapshot: RegistrySnapshot, wanted: pb.Alias) -> Change[pb.Alias]:
    """An alias as wanted.

    :raises WeirError: INVALID_REQUEST; CONFLICT when it is not at the revision that was read.
    """
    fault = models.check_alias(wanted.name, convert.target_specs(wanted), versions=snapshot.model_versions)
    _require(fault)
    return _replace(f"aliases/{wanted.name}", wanted, snapshot.aliases.get(wanted.name))


def set_tenant(snapshot: RegistrySnapshot, wanted: pb.Tenant) -> Change[pb.Tenant]:
    """A tenant as wanted.

    :raises WeirError: as in `set_alias`.
    """
    owners = {workload: tenant.id for tenant in snapshot.tenants.values() for workload in tenant.workloads}
    spec = convert.tenant_spec(wanted)
    _require(
        tenants.check_tenant(spec, policies=snapshot.safety_policies, plans=snapshot.plans, workload_owners=owners)
    )
    return _replace(f"tenants/{wanted.id}", wanted, snapshot.tenants.get(wanted.id))


def set_limits(snapshot: RegistrySnapshot, wanted: pb.Limits) -> Change[pb.Limits]:
    """Limits as wanted.

    :raises WeirError: as in `set_alias`.
    """
    _require(tenants.check_limits(convert.limits_spec(wanted), tenants=snapshot.tenants, models=_models(snapshot)))
    return _replace(
        f"limits/{wanted.tenant}/{wanted.model}", wanted, snapshot.limits.get((wanted.tenant, wanted.model))
    )


def set_plan_policy(snapshot: RegistrySnapshot, wanted: pb.PlanPolicy) -> Change[pb.PlanPolicy]:
    """A plan's policy as wanted.

    :raises WeirError: as in `set_alias`.
    """
    pools = {version.pool for version in snapshot.model_versions.values()}
    pools.update(worker.pool for worker in snapshot.endpoints_of("worker"))
    _require(plans.check_plan(convert.plan_spec(wanted), models=_models(snapshot), pools=pools))
    return _replace(f"plans/{wanted.id}", wanted, snapshot.plans.get(wanted.id))


def set_slo(snapshot: RegistrySnapshot, wanted: pb.Slo) -> Change[pb.Slo]:
    """Objectives as wanted.

    :raises WeirError: as in `set_alias`.
    """
    _require(plans.check_slo(convert.slo_spec(wanted)))
    return _replace(f"slos/{wanted.route}/{wanted.tier}", wanted, snapshot.slos.get((wanted.route, wanted.tier)))


def set_price(snapshot: RegistrySnapshot, wanted: pb.Price) -> Change[pb.Price]:
    """A price as wanted.

    :raises WeirError: as in `set_alias`.
    """
    _require(plans.check_price(convert.price_spec(wanted), models=_models(snapshot)))
    return _replace(f"prices/{wanted.model}", wanted, snapshot.prices.get(wanted.model))


def set_safety_policy(snapshot: RegistrySnapshot, wanted: pb.SafetyPolicy) -> Change[pb.SafetyPolicy]:
    """A policy as wanted; its version is one more than the stored one's.

    :raises WeirError: as in `set_alias`.
    """
    _require(safety.check_policy(wanted.id, convert.rule_specs(wanted), pattern_fault=pattern_fault))
    stored = snapshot.safety_policies.get(wanted.id)
    same = _copy(wanted)
    same.version = stored.version if stored else 1
    change = _replace(f"safety/{wanted.id}", same, stored)
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
    _require(tenants.check_key(convert.key_spec(request), tenants=snapshot.tenants, scopes=apikeys.SCOPES))
    stored = snapshot.keys.get(made.id)
    if stored is not None:
        if stored.hash == hashed:
            # An attempt whose outcome was unclear had succeeded.
            return nothing(stored)
        raise WeirError(Reason.CONFLICT, "the key's id is taken; try again", retry_after=0.0)
    key = pb.ApiKey(id=made.id, tenant=request.tenant, hash=hashed, scopes=request.scopes, note=request.note)
    key.created_at.CopyFrom(_timestamp(now))
    if request.HasField("ttl"):
        key.expires_at.CopyFrom(_timestamp(now + to_seconds(request.ttl)))
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
    revoked = _copy(stored)
    revoked.revoked_at.CopyFrom(_timestamp(now))
    return Change(revoked, (put(revoked),))


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


def _replace(resource: str, wanted: M, stored: M | None) -> Change[M]:
    current = stored.revision if stored is not None else 0  # type: ignore[attr-defined]
    expected = wanted.revision  # type: ignore[attr-defined]
    if expected not in (WHATEVER, current):
        state = f"is at revision {current}" if current else "does not exist"
        raise WeirError(
            Reason.CONFLICT, f"{resource} {state}, not at revision {expected}; read it again", limit="revision"
        )
    made = _copy(wanted)
    made.revision = current  # type: ignore[attr-defined]
    if stored is not None and made == stored:
        return nothing(stored)
    made.ClearField("revision")
    return Change(made, (put(made),))


def _copy(message: M) -> M:
    copied: M = type(message)()
    copied.CopyFrom(message)
    return copied


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp


def _require(fault: Fault | None) -> None:
    if fault is not None:
        raise WeirError(Reason.INVALID_REQUEST, fault.message, limit=fault.field)
