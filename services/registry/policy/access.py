"""Who may do what with the registry, and what the audit log calls them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from libs.apikeys.principals import principals_of
from services.registry.policy.faults import Fault, check_name

EDGE_PEER = "envoy"
"""The one peer whose identity metadata is believed: it sets it after authentication and strips it from outside."""
ADMIN_SCOPE = "admin"
"""The scope that has always meant everything here: its keys are owners."""
MAX_NAMESPACES = 100
_SPIFFE = re.compile(r"spiffe://weir\.internal/sa/[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_IDENTITY = re.compile(r"(?:key|tenant):[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126})")


class Role(Enum):
    """What a caller is trusted with."""

    VIEWER = "viewer"
    """Reads everything but secrets."""
    PUBLISHER = "publisher"
    """Registers model versions and keeps them: models, pins."""
    RELEASER = "releaser"
    """Decides what callers get: aliases, rollouts."""
    OPERATOR = "operator"
    """Decides on whose terms: tenants, keys, limits, plans, prices, objectives, safety policies."""
    OWNER = "owner"
    """Everything: also who else may, whose signatures count, and the registry as a whole."""


_ANY = frozenset(Role)
_OWNER = frozenset({Role.OWNER})
_PUBLISHER = frozenset({Role.PUBLISHER, Role.OWNER})
_RELEASER = frozenset({Role.RELEASER, Role.OWNER})
_OPERATOR = frozenset({Role.OPERATOR, Role.OWNER})

ALLOWED: Mapping[str, frozenset[Role]] = {
    "ListModels": _ANY,
    "ListTenants": _ANY,
    "ListKeys": _ANY,
    "ListLimits": _ANY,
    "ListPlanPolicies": _ANY,
    "ListSlos": _ANY,
    "ListPrices": _ANY,
    "ListPoolLevels": _ANY,
    "ListSafetyPolicies": _ANY,
    "ListTrustPolicies": _ANY,
    "ListPins": _ANY,
    "ListRollouts": _ANY,
    "GetRolloutSwitch": _ANY,
    "ListErrorBudgets": _ANY,
    "ListRoleBindings": _ANY,
    "ListHistory": _ANY,
    "DiffRevisions": _ANY,
    "ListEndpoints": _ANY,
    "CreateModelVersion": _PUBLISHER,
    "DeleteModelVersion": _PUBLISHER,
    "SetPin": _PUBLISHER,
    "DeletePin": _PUBLISHER,
    "SetAlias": _RELEASER,
    "StartRollout": _RELEASER,
    "SteerRollout": _RELEASER,
    "AbortRollout": _RELEASER,
    # An operator who sees harm must be able to stop it.
    "SetRolloutSwitch": _RELEASER | _OPERATOR,
    "SetTenant": _OPERATOR,
    "CreateKey": _OPERATOR,
    "RevokeKey": _OPERATOR,
    "SetLimits": _OPERATOR,
    "SetPlanPolicy": _OPERATOR,
    "SetSlo": _OPERATOR,
    "SetPrice": _OPERATOR,
    "SetSafetyPolicy": _OPERATOR,
    "SetTrustPolicy": _OWNER,
    "SetRoleBinding": _OWNER,
    "RollbackToRevision": _OWNER,
    # They carry hashes of keys, and whose they are.
    "Export": _OWNER,
    "Import": _OWNER,
}
"""Which roles suffice for which RPC. One that is missing here is for nobody; a test compares this with the proto."""


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


def authorize(
    rpc: str, caller: Caller, *, bindings: Mapping[str, Binding], admin_services: Collection[str], tls: bool
) -> Grant | Refused:
    """Whether a caller may use an RPC at all; what it changes is held against the grant's namespaces later.

    A binding counts for exactly one kind of identity: "key:<id>" for a key (or a token's pseudonym), "tenant:<id>" for
    callers with a token that have no binding of their own, a SPIFFE id for services; see `libs.apikeys.principals`.

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
        lacking = f"{caller.peer or actor} may not administer the registry"
    if grant is None:
        return Refused(actor, caller.peer == EDGE_PEER, lacking)
    if grant.roles & ALLOWED.get(rpc, frozenset()):
        return grant
    held = ", ".join(sorted(role.value for role in grant.roles))
    enough = " or ".join(sorted(role.value for role in ALLOWED.get(rpc, frozenset())))
    return Refused(actor, True, f"{rpc} needs the role {enough}; {actor} has {held}")


def check_namespaces(grant: Grant, touched: Collection[str]) -> str:
    """Why a change of models, aliases, pins or rollouts of these namespaces is refused; empty: it is not."""
    foreign = sorted(set(touched) - grant.namespaces) if grant.namespaces and not grant.owner else []
    if not foreign:
        return ""
    return f"{grant.actor} may change the namespaces {', '.join(sorted(grant.namespaces))}, not {foreign[0]!r}"


def check_binding(principal: str, roles: Sequence[str], namespaces: Sequence[str]) -> Fault | None:
    """The first fault of a binding, or None; one without roles is taken away."""
    if not (_SPIFFE.fullmatch(principal) or _IDENTITY.fullmatch(principal)):
        return Fault(
            "binding.principal", "a principal is 'key:<id>', 'tenant:<id>' or spiffe://weir.internal/sa/<service>"
        )
    known = [role.value for role in Role]
    for number, role in enumerate(roles):
        if role not in known:
            return Fault(f"binding.roles[{number}]", f"{role!r} is not one of {', '.join(known)}")
    if len(set(roles)) != len(roles):
        return Fault("binding.roles", "a role appears twice")
    if len(namespaces) > MAX_NAMESPACES:
        return Fault("binding.namespaces", f"at most {MAX_NAMESPACES} namespaces")
    for number, namespace in enumerate(namespaces):
        if fault := check_name(f"binding.namespaces[{number}]", namespace):
            return fault
    if namespaces and Role.OWNER.value in roles:
        return Fault("binding.namespaces", "an owner has everything; it cannot be kept to namespaces")
    return None


def binding_of(roles: Sequence[str], namespaces: Sequence[str]) -> Binding:
    """A stored binding; roles that this version does not know count nothing."""
    known = {role.value: role for role in Role}
    return Binding(frozenset(known[role] for role in roles if role in known), frozenset(namespaces))


def parse_scopes(value: str) -> frozenset[str]:
    """Scopes of a metadata value, separated by commas or spaces."""
    return frozenset(value.replace(",", " ").split())


def _bound(actor: str, binding: Binding | None) -> Grant | None:
    return Grant(actor, binding.roles, binding.namespaces) if binding is not None and binding.roles else None
