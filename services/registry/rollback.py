"""Going back to how resources were at an earlier revision. Decides; writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from weir.registry.v1 import registry_pb2 as pb

from libs.changes import Change, Write
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.resources.codec import pack, unpack
from libs.resources.forms import from_plain
from libs.resources.kind import Kind
from libs.resources.references import referrers_of
from libs.resources.snapshot import BY_PLURAL
from libs.rollouts import SHADOW_TENANT
from services.registry.applying import after, faults_of, message_of, place_of
from services.registry.rollouts import require_no_rollout


def rollback(
    snapshot: RegistrySnapshot, stored: Sequence[pb.ResourceChange], *, revision: int
) -> Change[pb.RollbackResponse]:
    """What makes the resources what they were: those of kinds that go back (`Kind.restored`).

    Versions of models and safety policies are immutable, and a model's files may be gone. Whom to trust (keys, roles,
    trust policies, model grants) and what protects callers now (pins, rollouts, the kill switch, the safety floor) is
    not undone by going back in time; neither is who may act as a tenant (workloads, issuers of tokens).

    :param stored: how the state at `revision` differs from the snapshot: `after` as it was then.
    :raises WeirError: CONFLICT, naming the resource, when the result would not hold together or an alias's rollout is
        under way.
    """
    writes = tuple(write for each in stored if (write := _write(snapshot, each)) is not None)
    _require_whole(after(snapshot, writes), writes, revision)
    return Change(pb.RollbackResponse(), writes)


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
    raise WeirError(
        Reason.CONFLICT, f"at revision {revision}, {resource} would not hold: {message}{more}", limit=resource
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
