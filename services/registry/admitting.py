"""What some kinds do when they are applied, and what keeps some from being deleted. Decides; writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import TrustError, namespace_of, verify
from libs.artifacts.manifest import manifest_digest
from libs.authority.operators import ADMIN_SCOPE, Grant, Touched, foreign
from libs.clock.stamps import timestamp
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.registry.roles import owners_of
from libs.resources.kind import Kind
from libs.rollouts import is_live, needed_versions
from services.registry.rollouts import begun, require_no_rollout


@dataclass(frozen=True, slots=True)
class Call:
    """A call's circumstances; the same over all attempts at it."""

    grant: Grant
    now: float
    """Unix seconds."""
    new_id: str
    """For what the call makes."""
    reason: str = ""
    """Why."""


def admitted(
    snapshot: RegistrySnapshot, kind: Kind, wanted: Message, stored: Message | None, call: Call
) -> list[Message]:
    """What is stored for what is wanted, computed fields filled in, and what it brings along.

    :param snapshot: with what the same change says of kinds that this one may refer to.
    :param stored: what is there now.
    :raises WeirError: it cannot be now.
    """
    for field in kind.computed:
        wanted.ClearField(field)
    admit = _ADMIT.get(kind.plural)
    return admit(snapshot, wanted, stored, call) if admit is not None else [wanted]


def versions_kept(now: RegistrySnapshot, then: RegistrySnapshot, call: Call) -> Mapping[str, Sequence[str]]:
    """Beside what refers to them: why versions must stay. Workers that have them, rollouts that just ended, and what
    was made from them."""
    told = ("alias", "pin")
    # With the versions themselves: bases are found by what is registered.
    needed = needed_versions(replace(then, model_versions=now.model_versions), call.now)
    return {name: sorted(each for each in reasons if not each.startswith(told)) for name, reasons in needed.items()}


def kept_by(now: RegistrySnapshot, kind: Kind, name: str, call: Call) -> Iterator[str]:
    """Why a resource of another kind must stay.

    :raises WeirError: SCOPE_MISSING: it may go, but not by this caller.
    """
    if kind.plural == "rollouts" and is_live(now.rollouts[name]):
        yield "its own traffic (`weir rollout abort` ends it)"
    elif kind.plural == "keys":
        require_owner_of_admin(now.keys[name], call)
        if not now.keys[name].HasField("revoked_at"):
            yield "whoever has it (`weir keys revoke` closes it)"


def require_within(grant: Grant, touched: Iterable[Touched]) -> None:
    """Refuses what is beyond the caller's namespaces and tenants, whether or not it is there.

    :raises WeirError: PERMISSION_DENIED.
    """
    what, why = foreign(grant, touched)
    if why:
        raise WeirError(Reason.PERMISSION_DENIED, why, limit=what)


def require_owner_left(now: RegistrySnapshot, then: RegistrySnapshot) -> None:
    """The last owner stays one: nobody else could name the next.

    :raises WeirError: CONFLICT.
    """
    if then.roles is not now.roles and owners_of(now) and not owners_of(then):
        raise WeirError(Reason.CONFLICT, "the last owner stays; name another one first", limit="roles")


def _model(
    snapshot: RegistrySnapshot, wanted: pb.ModelVersion, stored: pb.ModelVersion | None, call: Call
) -> list[Message]:
    """A version never changes; again with the same content is fine and may be signed anew."""
    wanted.digest = manifest_digest(wanted)
    name = f"{wanted.name}@{wanted.version}"
    if stored is not None:
        if stored.digest != wanted.digest:
            raise WeirError(
                Reason.ALREADY_EXISTS,
                f"{name} exists with other content (digest {stored.digest[:12]}, this one {wanted.digest[:12]}); "
                "versions are immutable, register a new one",
                limit="metadata.name",
            )
        wanted.created_at.CopyFrom(stored.created_at)
        wanted.signature = wanted.signature or stored.signature
        if wanted == stored:
            return [wanted]
    else:
        wanted.created_at.CopyFrom(timestamp(call.now))
    try:
        verify(wanted, snapshot.trust.get(namespace_of(wanted)), call.now)
    except TrustError as error:
        raise WeirError(Reason.INVALID_REQUEST, f"{name}: {error}", limit="spec.signature") from error
    return [wanted]


def _safety(
    snapshot: RegistrySnapshot, wanted: pb.SafetyPolicy, stored: pb.SafetyPolicy | None, call: Call
) -> list[Message]:
    """A policy never changes: requests and their records name exactly what held for them."""
    if stored is not None and not _same(wanted, stored):
        name = f"{wanted.id}@{wanted.version}"
        raise WeirError(
            Reason.ALREADY_EXISTS,
            f"{name} exists with other rules; safety policies are immutable, register another version",
            limit="metadata.name",
        )
    return [wanted]


def _alias(snapshot: RegistrySnapshot, wanted: pb.Alias, stored: pb.Alias | None, call: Call) -> list[Message]:
    """While a rollout of it is under way, it stays: a change would pull the baseline from under it."""
    if stored is None or not _same(wanted, stored):
        require_no_rollout(snapshot, wanted.name)
    return [wanted]


def _rollout(snapshot: RegistrySnapshot, wanted: pb.Rollout, stored: pb.Rollout | None, call: Call) -> list[Message]:
    """It begins; one that says what the alias's last one said is that one, ended or not."""
    if stored is not None:
        same = pb.Rollout()
        same.CopyFrom(stored)
        for field in ("id", "baseline", "state"):
            same.ClearField(field)
        # Without a reason of its own it was given the call's.
        same.reason = wanted.reason and same.reason
        if _same(wanted, same):
            return [stored]
    wanted.reason = wanted.reason or call.reason
    made, beside = begun(snapshot, wanted, rollout_id=call.new_id, actor=call.grant.actor, now=call.now)
    return [made, *beside]


def _tenant(snapshot: RegistrySnapshot, wanted: pb.Tenant, stored: pb.Tenant | None, call: Call) -> list[Message]:
    """Who acts as a tenant is not for a grant that is kept to tenants: an issuer or workload may be another tenant's,
    who would be nobody then, and to hear so would tell whose it is.

    :raises WeirError: PERMISSION_DENIED.
    """
    before = stored or pb.Tenant()
    changed = wanted.jwt_issuer != before.jwt_issuer or list(wanted.workloads) != list(before.workloads)
    if call.grant.tenants and changed:
        message = f"{call.grant.actor} is kept to tenants: who acts as one (jwt_issuer, workloads) is not theirs to say"
        raise WeirError(Reason.PERMISSION_DENIED, message, limit="tenant")
    return [wanted]


def require_owner_of_admin(key: pb.ApiKey, call: Call) -> None:
    """A key of an owner is an owner's to close.

    :raises WeirError: SCOPE_MISSING.
    """
    if ADMIN_SCOPE in key.scopes and not call.grant.owner:
        raise WeirError(
            Reason.SCOPE_MISSING, f"only an owner touches a key with the scope {ADMIN_SCOPE!r}", limit="key"
        )


def _same(one: Any, other: Any) -> bool:
    """Whether two messages say the same, whatever their revisions."""
    copy = type(one)()
    copy.CopyFrom(one)
    copy.revision = other.revision
    return bool(copy == other)


_ADMIT: Mapping[str, Callable[[RegistrySnapshot, Any, Any, Call], list[Message]]] = {
    "models": _model,
    "safety": _safety,
    "aliases": _alias,
    "rollouts": _rollout,
    "tenants": _tenant,
}
