"""Who may do what with the registry, and what the audit log calls them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from libs.apikeys.principals import principals_of
from libs.resources.kind import Kind, Role

EDGE_PEER = "envoy"
"""The one peer whose identity metadata is believed: it sets it after authentication and strips it from outside."""
ADMIN_SCOPE = "admin"
"""The scope that has always meant everything here: its keys are owners."""


_ANY = frozenset(Role)
_OWNER = frozenset({Role.OWNER})

READS = frozenset({"Get", "List", "Watch", "History", "Diff"})
"""Calls that change nothing."""
WHOLE = frozenset({"Rollback"})
"""Calls that touch the registry as a whole."""
CHANGES = frozenset({"Apply", "Delete", "CreateKey", "RevokeKey", "SteerRollout"})
"""Calls that change resources of some kinds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of a caller."""

    peer: str
    """Service name in its certificate; empty without TLS."""
    spiffe: str
    """Its SPIFFE id; empty without TLS."""
    scopes: frozenset[str]
    """Scopes from the edge's metadata; meaningless for other peers."""
    key_id: str
    """Public key id from the edge's metadata; for a token the pseudonym of its subject."""
    tenant: str
    """Tenant from the edge's metadata."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What a principal is trusted with beyond its scopes."""

    roles: frozenset[Role]
    namespaces: frozenset[str]
    """Only models, aliases, pins and rollouts of these; empty: of all."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A caller that may go on."""

    actor: str
    """For the audit log: "key:<id>", "tenant:<id>" or a SPIFFE id."""
    roles: frozenset[Role]
    namespaces: frozenset[str] = field(default_factory=frozenset)
    """As in `Binding`."""
    trusted: str = ""
    """The service that watches as one that the table of kinds names; it sees the secrets of kinds that trust it."""

    @property
    def owner(self) -> bool:
        """It may do everything."""
        return Role.OWNER in self.roles


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a caller may not."""

    actor: str
    """Who it was, as far as it is known."""
    scope_missing: bool
    """It is the right door, with too little right; otherwise the wrong door."""
    message: str
    """One sentence for the caller."""


def enough_for(rpc: str, kind: Kind | None = None) -> frozenset[Role]:
    """Roles of which one suffices for a call as far as it is about this kind; an RPC that is not known is for nobody.

    :param kind: None: of none, such as an apply that only prunes, of which each resource is looked at when it is known.
    """
    if rpc in READS:
        return _ANY
    if rpc in WHOLE:
        return _OWNER
    if rpc not in CHANGES:
        return frozenset()
    return kind.change | _OWNER if kind is not None else _ANY


def authorize(
    rpc: str,
    caller: Caller,
    *,
    kinds: Collection[Kind] = (),
    secrets: bool = False,
    bindings: Mapping[str, Binding],
    admin_services: Collection[str],
    tls: bool,
) -> Grant | Refused:
    """Whether a caller may use an RPC on these kinds; what it changes is held against the grant's namespaces later.

    A binding counts for exactly one kind of identity: "key:<id>" for a key (or a token's pseudonym), "tenant:<id>" for
    callers with a token that have no binding of their own, a SPIFFE id for services; see `libs.apikeys.principals`.
    A service may watch, without any binding, what the table of kinds says that it follows.

    :param secrets: it wants what only owners get.
    :param bindings: by principal.
    """
    if not tls:
        return Grant("insecure", _OWNER)
    if caller.peer == EDGE_PEER:
        actor = f"key:{caller.key_id}" if caller.key_id else f"tenant:{caller.tenant}"
        grant = Grant(actor, _OWNER) if ADMIN_SCOPE in caller.scopes else None
        for principal in principals_of(caller.key_id, caller.tenant):
            grant = grant or _bound(actor, bindings.get(principal))
        lacking = f"this needs a key with the scope {ADMIN_SCOPE!r}, or a role that allows {rpc}"
    elif caller.peer and caller.peer in admin_services:
        return Grant(caller.spiffe, _OWNER)
    else:
        actor = caller.spiffe or caller.peer or "an unidentified peer"
        grant = _bound(actor, bindings.get(caller.spiffe))
        if rpc == "Watch" and kinds and all(caller.peer in kind.followers for kind in kinds):
            return Grant(actor, frozenset(), trusted=caller.peer)
        lacking = f"{caller.peer or actor} may not administer the registry"
    if grant is None:
        return Refused(actor, caller.peer == EDGE_PEER, lacking)
    for kind in kinds or (None,):
        enough = _OWNER if secrets else enough_for(rpc, kind)
        if not grant.roles & enough:
            held = ", ".join(sorted(role.value for role in grant.roles))
            needed = " or ".join(sorted(role.value for role in enough)) or "of nobody"
            what = f"{rpc} of {kind.plural}" if kind is not None else rpc
            return Refused(actor, True, f"{what} needs the role {needed}; {actor} has {held}")
    return grant


def may_change(grant: Grant, kind: Kind) -> bool:
    """Whether a grant suffices to change resources of a kind."""
    return bool(grant.roles & (kind.change | _OWNER))


def check_namespaces(grant: Grant, touched: Collection[str]) -> str:
    """Why a change of models, aliases, pins or rollouts of these namespaces is refused; empty: it is not."""
    foreign = sorted(set(touched) - grant.namespaces) if grant.namespaces and not grant.owner else []
    if not foreign:
        return ""
    return f"{grant.actor} may change the namespaces {', '.join(sorted(grant.namespaces))}, not {foreign[0]!r}"


def binding_of(roles: Sequence[str], namespaces: Sequence[str]) -> Binding:
    """A stored binding; roles that this version does not know count nothing."""
    known = {role.value: role for role in Role}
    return Binding(frozenset(known[role] for role in roles if role in known), frozenset(namespaces))


def parse_scopes(value: str) -> frozenset[str]:
    """Scopes of a metadata value, separated by commas or spaces."""
    return frozenset(value.replace(",", " ").split())


def _bound(actor: str, binding: Binding | None) -> Grant | None:
    return Grant(actor, binding.roles, binding.namespaces) if binding is not None and binding.roles else None
