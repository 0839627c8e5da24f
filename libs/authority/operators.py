"""What those may do who operate the mesh: people, keys and services, by roles that the registry binds to them.

The one decision of every service that operators call. Who somebody is (a `principal`):

    operator:<name>         a person, by the certificate `spiffe://weir.internal/operator/<name>`
    oidc:<issuer>/<name>    a person, by a token of an issuer that edge-auth's settings call one of operators
    key:<id>                an API key
    spiffe://…/sa/<name>    a service, whichever of its processes, or a workload

Tokens of tenants' issuers are nobody here, whatever they claim. A certificate or token says only who somebody is:
without a binding it may do nothing, so to revoke is to delete the binding; nobody needs lists of revoked certificates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from libs.apikeys import PSEUDONYM
from libs.authority.identity import Identity, Operator
from libs.resources.kind import Kind, Role

EDGE_PEER = "envoy"
"""The one peer whose identity metadata is believed: it sets it after authentication and strips it from outside."""
ADMIN_SCOPE = "admin"
"""The scope of API keys whose bearers are owners."""
OPERATOR, OIDC, KEY = "operator:", "oidc:", "key:"
"""Lead the principals of people with certificates, of people with tokens, and of keys."""

_ANY = frozenset(Role)
_OWNER = frozenset({Role.OWNER})
_AUDITOR = frozenset({Role.AUDITOR, Role.OWNER})

CHANGES = frozenset({"Apply", "Delete", "CreateKey", "RevokeKey", "SteerRollout"})
"""Calls of the registry that change resources: of each kind, whoever its row names."""
CALLS: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        **dict.fromkeys(("Get", "List", "Watch", "History", "Diff", "WhoAmI"), _ANY),
        "Rollback": _OWNER,
        "audit.Tail": _AUDITOR,
        "audit.Verify": _AUDITOR,
        **dict.fromkeys(("audit.Export", "audit.Reconcile", "records.ListRequests", "records.Compare"), _AUDITOR),
        "records.Usage": _ANY,
        "records.Rebuild": _OWNER,
        **dict.fromkeys(("audit.Accept", "audit.Erase", "audit.RotateKeys"), _OWNER),
        "admission.ListWorkers": _ANY,
        "controlplane.FetchClientStatus": _ANY,
        "rollout.GetRollout": _ANY,
        "rollout.WatchRollout": _ANY,
        "rollout.GetSloStatus": _ANY,
        "rollout.ReportScores": frozenset({Role.RELEASER, Role.OWNER}),
        "safety.Try": _ANY,
    }
)
"""Roles of which one suffices for every other call: the registry's by name, others' as "<service>.<call>"."""
PER_TENANT = CHANGES | {
    *("Get", "List", "Watch", "History", "Diff", "WhoAmI"),
    *("audit.Tail", "audit.Export", "records.ListRequests", "records.Usage"),
}
"""Calls that tell and change no more than the tenants that a caller is kept to; the others are about the whole mesh."""
TENANT_ROLES = frozenset({Role.VIEWER, Role.OPERATOR, Role.AUDITOR})
NAMESPACE_ROLES = frozenset({Role.VIEWER, Role.PUBLISHER, Role.RELEASER})
"""Roles that can be kept to tenants, and to namespaces."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of a caller."""

    peer: str
    """Service name in its certificate; empty for people and without TLS."""
    spiffe: str
    """Its SPIFFE id; empty without TLS."""
    scopes: frozenset[str] = frozenset()
    """Scopes from the edge's metadata; meaningless for other peers."""
    key_id: str = ""
    """From the edge's metadata: the public id of a key, the principal of a person with a token ("oidc:…"), or the
    pseudonym of a token's subject."""

    @property
    def principal(self) -> str:
        """Who it is; empty for nobody: without an identity, or with a tenant's token."""
        if self.peer == EDGE_PEER:
            return at_edge(self.key_id)
        if person := Operator.parse(self.spiffe):
            return f"{OPERATOR}{person.name}"
        workload = Identity.parse(self.spiffe)
        return Identity(workload.service).spiffe if workload else ""

    @property
    def known_by(self) -> str:
        """How it is known: "certificate", "key" or "token"."""
        if self.peer != EDGE_PEER:
            return "certificate"
        return "token" if self.key_id.startswith((OIDC, PSEUDONYM)) else "key"


@dataclass(frozen=True, slots=True)
class Binding:
    """What a principal is trusted with."""

    roles: frozenset[Role]
    namespaces: frozenset[str] = frozenset()
    """Changes only models of these, and the aliases, pins and rollouts of those; empty: of all."""
    tenants: frozenset[str] = frozenset()
    """Knows and changes only resources of these; empty: of all."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A caller that may go on."""

    actor: str
    """For the history and the audit log: the principal."""
    roles: frozenset[Role]
    namespaces: frozenset[str] = field(default_factory=frozenset)
    tenants: frozenset[str] = field(default_factory=frozenset)
    """Both as in `Binding`."""
    trusted: str = ""
    """The service that watches as one that the table of kinds names; it sees the secrets of kinds that trust it."""

    @property
    def owner(self) -> bool:
        """It may do everything."""
        return Role.OWNER in self.roles

    def knows(self, tenant: str) -> bool:
        """Whether what is of this tenant exists for it; "" is of none, and of the mesh as a whole."""
        return not self.tenants or tenant in self.tenants


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a caller may not."""

    actor: str
    """Who it was, as far as it is known."""
    scope_missing: bool
    """It is the right door, with too little right; otherwise the wrong door."""
    message: str
    """One sentence for the caller. It names nothing but the caller and what it asked for."""


def at_edge(key_id: str) -> str:
    """The principal of a caller that edge-auth let through; empty for a tenant's token."""
    if not key_id or key_id.startswith(PSEUDONYM):
        return ""
    return key_id if key_id.startswith(OIDC) else f"{KEY}{key_id}"


def enough_for(call: str, kind: Kind | None = None) -> frozenset[Role]:
    """Roles of which one suffices for a call as far as it is about this kind; one that is not known is for nobody.

    :param kind: None: of none, such as an apply that only prunes, of which each resource is looked at when it is known.
    """
    if call in CHANGES:
        return kind.change | _OWNER if kind is not None else _ANY
    return CALLS.get(call, frozenset())


def authorize(
    call: str,
    caller: Caller,
    *,
    kinds: Collection[Kind] = (),
    secrets: bool = False,
    bound: Binding | None,
    owners: Collection[str] = (),
    tls: bool,
) -> Grant | Refused:
    """Whether a caller may use a call on these kinds. What it changes is held against the grant's bounds later, by
    `foreign`, and what it is told, by `Grant.knows`.

    A service may watch, without any binding, what the table of kinds says that it follows, and get what it reads.

    :param secrets: it wants what only owners get.
    :param bound: what the registry binds to the caller's principal.
    :param owners: principals that are owners without a binding.
    """
    if not tls:
        return Grant("insecure", _OWNER)
    edge, principal = caller.peer == EDGE_PEER, caller.principal
    if call == "Watch" and kinds and caller.peer and all(caller.peer in kind.followers for kind in kinds):
        return Grant(principal, frozenset(), trusted=caller.peer)
    if call == "Get" and kinds and caller.peer and all(caller.peer in kind.readers for kind in kinds):
        return Grant(principal, frozenset())
    actor = principal or ("a tenant's token" if edge else "an unidentified peer")
    holds_scope = ADMIN_SCOPE in caller.scopes and principal.startswith(KEY)
    if principal and ((edge and holds_scope) or principal in owners):
        grant = Grant(actor, _OWNER)
    else:
        if not principal or bound is None or not bound.roles:
            needs = f"a key with the scope {ADMIN_SCOPE!r}, or " if edge else ""
            right_door = edge or principal.startswith(OPERATOR)
            return Refused(actor, right_door, f"{call} needs {needs}a role; {actor} has none")
        grant = Grant(actor, bound.roles, bound.namespaces, bound.tenants)
    if grant.tenants and call not in PER_TENANT:
        return Refused(actor, True, f"{call} is about the whole mesh; {actor} is kept to tenants")
    for kind in kinds or (None,):
        enough = _OWNER if secrets else enough_for(call, kind)
        if not grant.roles & enough:
            held, needed = _named(grant.roles), " or ".join(_named(enough).split(", ")) or "of nobody"
            what = f"{call} of {kind.plural}" if kind is not None else call
            return Refused(actor, True, f"{what} needs the role {needed}; {actor} has {held}")
    return grant


def may_change(grant: Grant, kind: Kind) -> bool:
    """Whether a grant's roles suffice to change resources of a kind."""
    return bool(grant.roles & (kind.change | _OWNER))


class Touched(NamedTuple):
    """A resource that a change writes over, or writes."""

    kind: Kind
    tenant: str
    """Whose it is; empty: of none."""
    namespaces: frozenset[str]
    """Of the versions that it is, or is about."""


def foreign(grant: Grant, touched: Iterable[Touched]) -> tuple[str, str]:
    """What a change touches beyond the grant's bounds: ("namespace" or "tenant", why it is refused); ("", ""): nothing.

    What the registry writes along of kinds that the caller has no role for (the quota of a rollout's mirrored requests)
    is the registry's own.
    """
    for each in touched if grant.tenants or grant.namespaces else ():
        whole = f"{each.kind.plural}, which are the whole mesh's"
        if grant.tenants and each.tenant not in grant.tenants:
            kept, what = ", ".join(sorted(grant.tenants)), repr(each.tenant) if each.tenant else whole
            return "tenant", f"{grant.actor} is kept to the tenants {kept}: not {what}"
        beyond = sorted(each.namespaces - grant.namespaces)
        if grant.namespaces and may_change(grant, each.kind) and (beyond or not each.namespaces):
            kept, what = ", ".join(sorted(grant.namespaces)), repr(beyond[0]) if beyond else whole
            return "namespace", f"{grant.actor} is kept to the namespaces {kept}: not {what}"
    return "", ""


def binding_of(roles: Sequence[str], namespaces: Iterable[str] = (), tenants: Iterable[str] = ()) -> Binding:
    """A stored binding; roles that this version does not know count nothing."""
    known = {role.value: role for role in Role}
    return Binding(frozenset(known[role] for role in roles if role in known), frozenset(namespaces), frozenset(tenants))


def parse_scopes(value: str) -> frozenset[str]:
    """Scopes of a metadata value, separated by commas or spaces."""
    return frozenset(value.replace(",", " ").split())


class Row(NamedTuple):
    """A line of the table of who may do what."""

    what: str
    """A kind's plural name, or a call that is about no kind."""
    verb: str
    """"read", "change" or "call"."""
    roles: frozenset[Role]


def rows(kinds: Iterable[Kind]) -> Iterator[Row]:
    """The whole table role × kind × verb, as documents show it."""
    for kind in kinds:
        yield Row(kind.plural, "read", enough_for("List", kind))
        yield Row(kind.plural, "change", enough_for("Apply", kind))
    for call, roles in CALLS.items():
        if "." in call or roles != _ANY:
            yield Row(call, "call", roles)


def _named(roles: Iterable[Role]) -> str:
    return ", ".join(sorted(role.value for role in roles))
