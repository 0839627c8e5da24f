"""Going back to how the configuration was at an earlier revision. Decides; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf import json_format
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import MAX_WRITES, Change, Write, put, raw
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, keys
from libs.rollouts import SHADOW_TENANT
from services.registry.consistency import after, faults_of
from services.registry.policy.differences import Difference
from services.registry.rollouts import require_no_rollout

RESTORED = (keys.ALIASES, keys.TENANTS, keys.LIMITS, keys.SAFETY, keys.PLANS, keys.SLOS, keys.PRICES)
"""What goes back. Versions are immutable, and their files may be gone. Whom to trust (keys, roles, trust policies) and
what protects callers now (pins, rollouts, the kill switch) is not undone by going back in time; of tenants that are
there now, neither is who may act as them (workloads, issuers of tokens)."""
_ROLLOUTS_OWN = (keys.tenant_key(SHADOW_TENANT), keys.limits_key(SHADOW_TENANT, ""))


def rollback(
    snapshot: RegistrySnapshot, stored: Sequence[Difference], *, revision: int
) -> Change[pb.RollbackToRevisionResponse]:
    """What makes the configuration what it was.

    :param stored: how the state at `revision` differs from the snapshot: `after` as it was then.
    :raises WeirError: CONFLICT, naming the resource, when the result would not hold together or an alias's rollout is
        under way; INVALID_REQUEST when it is more than one transaction takes.
    """
    writes = []
    for each in stored:
        key = keys.ROOT + each.resource
        if not key.startswith(RESTORED) or key == _ROLLOUTS_OWN[0] or key.startswith(_ROLLOUTS_OWN[1]):
            continue
        if key.startswith(keys.ALIASES):
            require_no_rollout(snapshot, key.removeprefix(keys.ALIASES))
        write = _write(snapshot, key, each.after)
        if write is not None:
            writes.append(write)
    if len(writes) > MAX_WRITES:
        raise WeirError(
            Reason.INVALID_REQUEST,
            f"revision {revision} differs in {len(writes)} resources; one transaction takes {MAX_WRITES}: go back in "
            "smaller steps, or import a snapshot with replace",
            limit="to_revision",
        )
    _require_whole(snapshot, writes, revision)
    return Change(pb.RollbackToRevisionResponse(), tuple(writes))


def _write(snapshot: RegistrySnapshot, key: str, value: str) -> Write | None:
    """None: nothing but what is not undone differs."""
    if not value:
        return Write(key, None)
    policy = snapshot.safety_policies.get(key.removeprefix(keys.SAFETY)) if key.startswith(keys.SAFETY) else None
    tenant = snapshot.tenants.get(key.removeprefix(keys.TENANTS)) if key.startswith(keys.TENANTS) else None
    if policy is not None:
        # A policy's version only grows: whoever remembers what one meant must not be told otherwise.
        former = json_format.Parse(value, pb.SafetyPolicy(), ignore_unknown_fields=True)
        former.version = policy.version + 1
        return put(former)
    if tenant is not None:
        # Who may act as the tenant is a matter of trust: who may not any more does not get it back so.
        was = json_format.Parse(value, pb.Tenant(), ignore_unknown_fields=True)
        if (was.jwt_issuer, list(was.workloads)) != (tenant.jwt_issuer, list(tenant.workloads)):
            was.jwt_issuer = tenant.jwt_issuer
            was.workloads[:] = tenant.workloads
            return None if put(was) == put(tenant) else put(was)
    return raw(key, value.encode())


def _require_whole(snapshot: RegistrySnapshot, writes: Sequence[Write], revision: int) -> None:
    """Refuses what would put something wrong that is right now."""
    before = faults_of(snapshot)
    broken = {name: fault for name, fault in faults_of(after(snapshot, writes)).items() if before.get(name) != fault}
    if not broken:
        return
    resource, fault = min(broken.items())
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    raise WeirError(
        Reason.CONFLICT, f"at revision {revision}, {resource} would not hold: {fault.message}{more}", limit=resource
    )
