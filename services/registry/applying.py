"""What `Apply` and `Delete` would write, given the registry as it is. Decides; writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Touched, may_change
from libs.changes import Change, Write, resource_of
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, WatchEvent, apply_events
from libs.resources.checks.faults import Fault, check_text
from libs.resources.codec import encode, key_of, kind_of, pack, unpack
from libs.resources.kind import Kind
from libs.resources.kinds import ATTRIBUTE, BY_NAME, BY_PLURAL, KINDS
from libs.resources.references import missing, referrers_of
from services.registry.admitting import (
    Call,
    admitted,
    kept_by,
    require_owner_left,
    require_within,
    versions_kept,
)
from services.registry.rollouts import require_ready

ABSENT = -1
"""The `revision` of what must not be there yet."""
MAX_LABELS = 50
MAX_LABEL = 63
MAX_OWNER = 100
_NAMED = 5
"""Resources that a refusal names; of more it tells how many there are."""

Stored = Callable[[str], pb.Resource | None]
"""What lies under a key of the store, with its revision."""


class StaleError(WeirError):
    """A resource is not at the revision that was read."""

    def __init__(self, key: str, expected: int, current: int) -> None:
        state = f"is at revision {current}" if current else "does not exist"
        if expected == ABSENT:
            message = f"{resource_of(key)} exists already, at revision {current}"
        else:
            message = f"{resource_of(key)} {state}, not at revision {expected}; read it again"
        super().__init__(Reason.ALREADY_EXISTS if expected == ABSENT else Reason.CONFLICT, message, limit="revision")
        self.key = key
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Wanted:
    """One resource of an apply."""

    key: str
    kind: Kind
    message: Message
    metadata: pb.Metadata
    stored: pb.Resource | None

    @property
    def name(self) -> str:
        """For people: "tenants/acme"."""
        return resource_of(self.key)


def apply(snapshot: RegistrySnapshot, request: pb.ApplyRequest, call: Call, stored: Stored) -> Change[pb.ApplyResponse]:
    """Everything as the request says it, and what it prunes gone.

    :raises WeirError: INVALID_REQUEST with every fault; CONFLICT (of a revision, an owner, or with what goes on now);
        ALREADY_EXISTS; whatever the kinds' own conditions raise.
    """
    faults: list[Fault] = []
    wanted = list(_wanted(request, stored, faults))
    _refuse(faults)
    if call.grant.tenants:
        # Before anything tells what is there of others.
        asked = ((each.kind, each.kind.tenant_of(each.metadata.name, each.message) or "") for each in wanted)
        require_within(call.grant, (Touched(kind, tenant, frozenset()) for kind, tenant in asked))
    for each in wanted:
        expected = each.metadata.revision
        # What is restored says where it was in another store.
        _require_fresh(each.key, min(expected, 0) if request.restore else expected, each.stored)
        if not request.restore:
            _require_owner(each, request)
    writes: dict[str, Write] = {}
    then, named = snapshot, {each.key for each in wanted}
    for _, of_kind in groupby(sorted(wanted, key=lambda each: KINDS.index(each.kind)), key=lambda each: each.kind):
        # What a resource refers to may be in the same request: a new alias and its rollout, keys and what they sign.
        made = [write for each in of_kind for write in _writes(then, each, request, call) if write.key not in writes]
        writes |= {write.key: write for write in made}
        then = after(then, made)
    surplus = list(_surplus(snapshot, request, named | writes.keys(), stored, call)) if request.prune else []
    writes |= {key: Write(key, None) for key in surplus}
    then = after(then, [writes[key] for key in surplus])
    _refuse(
        Fault(f"{each.name} {fault.field}", fault.message)
        for each in wanted
        if each.key in writes
        for fault in faults_of(each.kind, each.metadata.name, then, whole=not request.restore)
    )
    for each in wanted:
        if each.key in writes and each.kind.plural == "rollouts" and not request.restore:
            require_ready(then.rollouts[each.metadata.name], then)
    _require_deletable(snapshot, then, surplus, call)
    require_owner_left(snapshot, then)
    results = [_result(each.key, each.stored, writes.get(each.key)) for each in wanted]
    results += [_result(key, stored(key), write) for key, write in writes.items() if key not in named]
    return Change(pb.ApplyResponse(results=results), tuple(writes.values()))


def delete(
    snapshot: RegistrySnapshot, request: pb.DeleteRequest, call: Call, stored: Stored
) -> Change[pb.DeleteResponse]:
    """Without the named resources.

    :raises WeirError: NOT_FOUND; CONFLICT, naming what refers to them or why they are needed.
    """
    keys = []
    for number, name in enumerate(request.resources):
        kind = BY_NAME.get(name.kind)
        if kind is None or not kind.change:
            _refuse([Fault(f"resources[{number}].kind", f"{name.kind!r} is no kind that can be deleted")])
            continue
        key = kind.prefix + name.name
        there = stored(key)
        if there is None:
            raise WeirError(Reason.NOT_FOUND, f"there is no {resource_of(key)}", limit=resource_of(key))
        _require_fresh(key, name.revision, there)
        keys.append(key)
    writes = tuple(Write(key, None) for key in dict.fromkeys(keys))
    then = after(snapshot, writes)
    _require_deletable(snapshot, then, [write.key for write in writes], call)
    require_owner_left(snapshot, then)
    results = [_result(write.key, stored(write.key), write) for write in writes]
    return Change(pb.DeleteResponse(results=results), writes)


def after(snapshot: RegistrySnapshot, writes: Iterable[Write]) -> RegistrySnapshot:
    """The snapshot as it would be with the writes, at the same revision."""
    events = [
        WatchEvent(write.key, None if write.resource is None else encode(write.resource), snapshot.revision)
        for write in writes
    ]
    return apply_events(snapshot, events, snapshot.revision)


def message_of(snapshot: RegistrySnapshot, kind: Kind, name: str) -> Message | None:
    """A resource's message in a snapshot."""
    collection: Mapping[object, Message] = getattr(snapshot, ATTRIBUTE[kind.plural])
    return collection.get(kind.entry(name))


def faults_of(kind: Kind, name: str, then: RegistrySnapshot, *, whole: bool = True) -> Iterator[Fault]:
    """Every fault of a resource that there would be then.

    :param whole: also what it says; else only that what it names is there.
    """
    message = message_of(then, kind, name)
    if message is not None:
        yield from kind.check(message, then) if whole and kind.check is not None else ()
        yield from missing(message, then)


def place_of(key: str) -> tuple[Kind, str]:
    """Kind and name of what a `Write` writes."""
    plural, _, name = resource_of(key).partition("/")
    return BY_PLURAL[plural], name


def _wanted(request: pb.ApplyRequest, stored: Stored, faults: list[Fault]) -> Iterator[Wanted]:
    """The request's resources, with what is not theirs to say left out."""
    seen: set[str] = set()
    for number, given in enumerate(request.resources):
        kind = kind_of(given)
        where = given.metadata.name or f"resources[{number}]"
        if kind is None or kind.leased or not (kind.applied or request.restore):
            what = "says no spec" if kind is None else f"is a {kind.name}: nobody applies those"
            faults.append(Fault(where, what))
            continue
        where = f"{kind.plural}/{given.metadata.name}"
        owner = given.metadata.owner or request.owner
        faults += (*_check_metadata(kind, given, where), *check_text(f"{where} metadata.owner", owner, MAX_OWNER))
        key = key_of(given)
        if key in seen:
            faults.append(Fault(where, "appears twice"))
        seen.add(key)
        try:
            message = unpack(given)
        except ValueError as error:
            faults.append(Fault(f"{where} metadata.name", str(error)))
            continue
        if kind.status and not request.restore:
            message.ClearField(kind.status)
        metadata = pb.Metadata()
        metadata.CopyFrom(given.metadata)
        metadata.owner = owner
        yield Wanted(key, kind, message, metadata, stored(key))


def _check_metadata(kind: Kind, resource: pb.Resource, where: str) -> Iterator[Fault]:
    metadata = resource.metadata
    if kind.fixed and metadata.name != kind.fixed:
        yield Fault(f"{where} metadata.name", f"the only {kind.name} is called {kind.fixed!r}")
    if metadata.namespace and not kind.namespace:
        yield Fault(f"{where} metadata.namespace", f"a {kind.name} has no namespace")
    if len(metadata.labels) > MAX_LABELS:
        yield Fault(f"{where} metadata.labels", f"at most {MAX_LABELS} labels")
    for name, value in list(metadata.labels.items())[:MAX_LABELS]:
        if not name or set(name + value) & set(",=!") or not (name + value).isprintable():
            yield Fault(f"{where} metadata.labels", "a label is printable, without ',', '=' and '!'")
        elif max(len(name), len(value)) > MAX_LABEL:
            yield Fault(f"{where} metadata.labels", f"a label has at most {MAX_LABEL} characters on each side")


def _require_fresh(key: str, expected: int, there: pb.Resource | None) -> None:
    current = there.metadata.revision if there is not None else 0
    if expected and expected != (current or ABSENT):
        raise StaleError(key, expected, current)


def _require_owner(wanted: Wanted, request: pb.ApplyRequest) -> None:
    have = wanted.stored.metadata.owner if wanted.stored is not None else ""
    claims = wanted.metadata.owner
    if have and claims and have != claims and not request.take_over:
        raise WeirError(Reason.CONFLICT, f"{wanted.name} belongs to {have!r}, not to {claims!r}", limit="owner")


def _writes(snapshot: RegistrySnapshot, wanted: Wanted, request: pb.ApplyRequest, call: Call) -> Iterator[Write]:
    """What makes the resource what it shall be, with what its kind brings along; nothing when it is so already."""
    metadata = pb.Metadata()
    metadata.CopyFrom(wanted.metadata)
    metadata.revision = 0
    if wanted.stored is not None and not request.restore:
        metadata.owner = metadata.owner or wanted.stored.metadata.owner
    stored = message_of(snapshot, wanted.kind, wanted.metadata.name)
    made = [wanted.message]
    if not request.restore:
        made = admitted(snapshot, wanted.kind, wanted.message, stored, call)
    for number, each in enumerate(made):
        resource = pack(each)
        if number:
            yield Write(key_of(resource), resource, keep=True)
            continue
        resource.metadata.CopyFrom(metadata)
        if wanted.stored is None or encode(resource) != encode(wanted.stored):
            yield Write(wanted.key, resource)


def _surplus(
    snapshot: RegistrySnapshot, request: pb.ApplyRequest, named: set[str], stored: Stored, call: Call
) -> Iterator[str]:
    """What belongs to the owner and is not among the resources; what refers to others first."""
    if not request.owner:
        _refuse([Fault("owner", "pruning needs an owner: only what is its own is deleted")])
    for kind in reversed(KINDS):
        if not kind.applied:
            continue
        for message in getattr(snapshot, ATTRIBUTE[kind.plural]).values():
            key = key_of(message)
            there = stored(key)
            if key in named or there is None or there.metadata.owner != request.owner:
                continue
            if not may_change(call.grant, kind):
                raise WeirError(
                    Reason.SCOPE_MISSING, f"{call.grant.actor} may not prune {resource_of(key)}", limit="prune"
                )
            yield key


def _require_deletable(now: RegistrySnapshot, then: RegistrySnapshot, keys: Iterable[str], call: Call) -> None:
    named = {key: place_of(key) for key in keys}
    referring = referrers_of([(kind.plural, name) for kind, name in named.values()], then)
    kept = versions_kept(now, then, call) if any(kind.plural == "models" for kind, _ in named.values()) else {}
    for key, (kind, name) in named.items():
        reasons = [*kept_by(now, kind, name, call), *(kept.get(name, ()) if kind.plural == "models" else ())]
        for other, its in referring.get((kind.plural, name), ()):
            known = call.grant.knows(other.tenant_of(its, message_of(then, other, its)) or "")
            reasons.append(f"{other.plural}/{its}" if known else "what others keep")
        if reasons:
            more = f" and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
            raise WeirError(
                Reason.CONFLICT,
                f"{resource_of(key)} is needed by {', '.join(reasons[:_NAMED])}{more}; change or delete that first",
                limit=resource_of(key),
            )


def _result(key: str, stored: pb.Resource | None, write: Write | None) -> pb.Applied:
    kind, name = place_of(key)
    result = pb.Applied(resource=pb.ResourceName(kind=kind.name, name=name), outcome=pb.OUTCOME_UNCHANGED)
    if stored is not None:
        result.resource.revision = stored.metadata.revision
    if write is None:
        return result
    result.outcome = pb.OUTCOME_DELETED if write.resource is None else pb.OUTCOME_CHANGED
    if stored is None:
        result.outcome = pb.OUTCOME_CREATED
    return result


def _refuse(faults: Iterable[Fault]) -> None:
    """:raises WeirError: INVALID_REQUEST, when there is any fault."""
    found = [(fault.field, fault.message) for fault in faults]
    if found:
        field, message = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise WeirError(Reason.INVALID_REQUEST, f"{field}: {message}{more}", limit=field, faults=found)
