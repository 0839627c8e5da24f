"""What creating and revoking a key would write. Decides; writes nothing."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.authority.operators import ADMIN_SCOPE, Touched
from libs.changes import Change, nothing, put
from libs.clock.stamps import timestamp
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.resources.checks.tenants import check_key
from libs.resources.kinds import BY_PLURAL
from services.registry.admitting import Call, require_owner_of_admin, require_within


def created(
    snapshot: RegistrySnapshot, request: pb.CreateKeyRequest, made: apikeys.ParsedKey, hashed: bytes, call: Call
) -> Change[pb.ApiKey]:
    """A new key for `made`.

    :raises WeirError: INVALID_REQUEST; SCOPE_MISSING for a scope that only owners give; PERMISSION_DENIED for a tenant
        that the caller is not kept to, there or not.
    """
    require_within(call.grant, [Touched(BY_PLURAL["keys"], request.tenant, frozenset())])
    if ADMIN_SCOPE in request.scopes and not call.grant.owner:
        # Such a key is an owner; whoever may make one is one.
        raise WeirError(Reason.SCOPE_MISSING, f"only an owner gives the scope {ADMIN_SCOPE!r}", limit="scopes")
    faults = [(fault.field, fault.message) for fault in check_key(request, apikeys.SCOPES)]
    if request.tenant not in snapshot.tenants:
        faults.insert(0, ("tenant", f"no tenant {request.tenant!r}"))
    if faults:
        field, message = faults[0]
        raise WeirError(Reason.INVALID_REQUEST, message, limit=field, faults=faults)
    stored = snapshot.keys.get(made.id)
    if stored is not None:
        if stored.hash == hashed:
            # An attempt whose outcome was unclear had succeeded.
            return nothing(stored)
        raise WeirError(Reason.CONFLICT, "the key's id is taken; try again", retry_after=0.0)
    key = pb.ApiKey(id=made.id, tenant=request.tenant, hash=hashed, scopes=request.scopes, note=request.note)
    key.created_at.CopyFrom(timestamp(call.now))
    if request.HasField("ttl"):
        key.expires_at.CopyFrom(timestamp(call.now + to_seconds(request.ttl)))
    return Change(key, (put(key),))


def revoked(snapshot: RegistrySnapshot, key_id: str, call: Call) -> Change[pb.ApiKey]:
    """The key, revoked; fine when it is already.

    :raises WeirError: NOT_FOUND; SCOPE_MISSING for an owner's key.
    """
    stored = snapshot.keys.get(key_id)
    if stored is None or not call.grant.knows(stored.tenant):
        raise WeirError(Reason.NOT_FOUND, "no key with this id", limit="key_id")
    require_owner_of_admin(stored, call)
    if stored.HasField("revoked_at"):
        return nothing(stored)
    key = pb.ApiKey()
    key.CopyFrom(stored)
    key.revoked_at.CopyFrom(timestamp(call.now))
    return Change(key, (put(key),))
