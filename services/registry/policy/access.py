"""Who may change the registry, and what the audit log calls them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

EDGE_PEER = "envoy"
"""The one peer whose identity metadata is believed: it sets it after authentication and strips it from outside."""
ADMIN_SCOPE = "admin"


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
    """Public key id from the edge's metadata; empty for a JWT."""
    tenant: str
    """Tenant from the edge's metadata."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a caller may not."""

    scope_missing: bool
    """It is the right door, with too little right; otherwise the wrong door."""
    message: str
    """One sentence for the caller."""


def authorize(caller: Caller, *, admin_services: Collection[str], tls: bool) -> str | Refused:
    """The actor's name for the audit log ("key:<id>", "tenant:<id>" or a SPIFFE id), or why it is refused."""
    if not tls:
        return "insecure"
    if caller.peer == EDGE_PEER:
        if ADMIN_SCOPE not in caller.scopes:
            return Refused(True, f"this needs a key with the scope {ADMIN_SCOPE!r}")
        return f"key:{caller.key_id}" if caller.key_id else f"tenant:{caller.tenant}"
    if caller.peer and caller.peer in admin_services:
        return caller.spiffe
    return Refused(False, f"{caller.peer or 'an unidentified peer'} may not administer the registry")


def parse_scopes(value: str) -> frozenset[str]:
    """Scopes of a metadata value, separated by commas or spaces."""
    return frozenset(value.replace(",", " ").split())
