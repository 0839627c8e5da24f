"""Going back to how resources were at an earlier revision. Decides; writes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence

from weir.registry.v1 import registry_pb2 as pb

from libs.changes import Change, Write, resource_of
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.resources.codec import pack, unpack
from libs.resources.forms import from_plain
from libs.resources.kind import Kind
from libs.resources.kinds import BY_PLURAL
from libs.resources.references import referrers_of
from libs.rollouts import SHADOW_TENANT
from services.registry.applying import after, faults_of, message_of, place_of
from services.registry.rollouts import require_no_rollout


def rollback(
    snapshot: RegistrySnapshot, stored: Sequence[pb.ResourceChange], *, revision: int, named: bool
) -> Change[pb.RollbackResponse]:
    """What makes the resources what they were: those of kinds that go back (`Kind.restored`).

    Versions of models and safety policies are immutable, and a model's files may be gone. Whom to trust (keys, roles,
    trust policies, model grants) and what protects callers now (pins, rollouts, the kill switch, the safety floor) is
    not undone by going back in time; neither is who may act as a tenant (workloads, issuers of tokens).

    :param stored: how the state at `revision` differs from the snapshot: `after` as it was then.
    :param named: one resource is meant; else what was made since and is needed by what does not go back stays, and is
        told: a whole registry must go back although a tenant came and has a key.
    :raises WeirError: CONFLICT, naming the resource, when the result would not hold together or an alias's rollout is
        under way.
    """
    writes = {write.key: write for each in stored if (write := _write(snapshot, each)) is not None}
    kept: set[str] = set()
    while not named and (needed := _needed(snapshot, writes.values(), kept)):
        kept |= needed
        writes = {key: write for key, write in writes.items() if key not in needed}
    made = tuple(writes.values())
    _require_whole(after(snapshot, made), made, revision)
    return Change(pb.RollbackResponse(kept=sorted(map(resource_of, kept))), made)


def _needed(snapshot: RegistrySnapshot, writes: Iterable[Write], kept: Collection[str]) -> set[str]:
    """Keys of what would be deleted although something that stays names it. Of a tenant that stays, so does what bounds
    it: without limits it would have none."""
    gone = {write.key: place_of(write.key) for write in writes if write.resource is None}
    then = after(snapshot, writes)
    missed = referrers_of([(kind.plural, name) for kind, name in gone.values()], then)
    tenants = {name for kind, name in map(place_of, kept) if kind.plural == "tenants"}
    return {
        key
        for key, (kind, name) in gone.items()
        if (kind.plural, name) in missed or kind.tenant_of(name, message_of(snapshot, kind, name)) in tenants
    }


def _write(snapshot: RegistrySnapshot, difference: pb.ResourceChange) -> Write | None:
    """None: it does not go back, or differs in nothing but what is not undone."""
    plural, _, name = difference.resource.partition("/")
    kind = BY_PLURAL.get(plural)
    if kind is None or not kind.restored or _is_rollouts_own(kind, name):
        return None
    key = kind.prefix + name
    if kind.plural == "aliases":
        require_no_rollout(snapshot, name)
    if not difference.after:
        return Write(key, None)
    former = from_plain(json.loads(difference.after))
    message, present = unpack(former), message_of(snapshot, kind, name)
    if isinstance(message, pb.Tenant):
        # Who may act as the tenant is a matter of trust: who may not any more does not get it back so.
        now = present if isinstance(present, pb.Tenant) else pb.Tenant()
        message.jwt_issuer = now.jwt_issuer
        message.workloads[:] = now.workloads
        message.revision = now.revision
        if message == present:
            return None
        message.revision = 0
    resource = pack(message)
    resource.metadata.CopyFrom(former.metadata)
    return Write(key, resource)


def _is_rollouts_own(kind: Kind, name: str) -> bool:
    """What rollouts made for their mirrored requests is theirs."""
    return kind.plural in ("tenants", "limits") and name.partition("/")[0] == SHADOW_TENANT


def _require_whole(then: RegistrySnapshot, writes: Sequence[Write], revision: int) -> None:
    """Refuses what would put something wrong that is right now."""
    found = sorted(_broken(then, writes))
    if not found:
        return
    resource, message = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    plural, _, name = resource.partition("/")
    then_what = f"; `weir keys revoke {name}` first" if plural == "keys" else ""
    raise WeirError(
        Reason.CONFLICT,
        f"at revision {revision}, {resource} would not hold: {message}{more}{then_what}",
        limit=resource,
    )


def _broken(then: RegistrySnapshot, writes: Sequence[Write]) -> Iterator[tuple[str, str]]:
    places = {write.key: place_of(write.key) for write in writes}
    gone = [(kind.plural, name) for kind, name in places.values() if message_of(then, kind, name) is None]
    for (plural, name), named in referrers_of(gone, then).items():
        for other, its in named:
            yield f"{other.plural}/{its}", f"no {BY_PLURAL[plural].name} {name!r}"
    for kind, name in places.values():
        for fault in faults_of(kind, name, then):
            yield f"{kind.plural}/{name}", f"{fault.field} {fault.message}"
